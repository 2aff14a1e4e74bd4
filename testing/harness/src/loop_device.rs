//! A file as a block device of the kernel.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::sys;

/// How often another program may snatch the free device from us before we give up.
const RACES_MAX: u32 = 100;

/// Bound while this value lives or the device is mounted; the kernel unbinds it by itself then,
/// also when the test is killed.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _file: File,
}

impl LoopDevice {
    pub fn attach(image: impl AsRef<Path>) -> Result<LoopDevice> {
        Self::attach_with(image, false, 512)
    }

    pub fn attach_with(image: impl AsRef<Path>, read_only: bool, sector_bytes: u32) -> Result<LoopDevice> {
        let image = image.as_ref();
        let backing = OpenOptions::new()
            .read(true)
            .write(!read_only)
            .open(image)
            .with_context(|| format!("cannot open {}", image.display()))?;
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")
            .context("loop-control")?;
        for race in 0..RACES_MAX {
            let path = PathBuf::from(format!("/dev/loop{}", sys::loop_get_free(&control)?));
            let bound = OpenOptions::new()
                .read(true)
                .write(!read_only)
                .open(&path)
                .and_then(|file| {
                    sys::loop_configure(&file, &backing, read_only, sector_bytes)?;
                    Ok(file)
                });
            match bound {
                Ok(file) => return Ok(LoopDevice { path, _file: file }),
                // Taken by another, or its node is not there yet.
                Err(error) if is_race(&error) => std::thread::sleep(Duration::from_millis(u64::from(race.min(20)))),
                Err(error) => {
                    return Err(error).context(format!("cannot bind {} to {}", path.display(), image.display()));
                }
            }
        }
        bail!("no loop device for {} after {RACES_MAX} attempts", image.display())
    }

    /// `/dev/loopN`
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn is_race(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::ENOENT | libc::ENXIO | libc::EAGAIN)
    )
}
