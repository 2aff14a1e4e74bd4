//! A mount of the kernel.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::{run, run_raw};

/// Mounted while this value lives.
#[derive(Debug)]
pub struct KernelMount {
    dir: PathBuf,
    mounted: bool,
}

impl KernelMount {
    /// `mount -t fs_type -o options devices[0] dir`; further devices are given as `device=`
    /// (btrfs).
    pub fn new(fs_type: &str, devices: &[&Path], dir: &Path, options: &str) -> Result<KernelMount> {
        let mut all = OsString::from(options);
        for device in devices.get(1..).unwrap_or_default() {
            if !all.is_empty() {
                all.push(",");
            }
            all.push("device=");
            all.push(device);
        }
        let mut args: Vec<OsString> = vec!["-t".into(), fs_type.into()];
        if !all.is_empty() {
            args.extend(["-o".into(), all]);
        }
        args.extend([devices[0].into(), dir.into()]);
        run("mount", &args)?;
        Ok(KernelMount {
            dir: dir.to_owned(),
            mounted: true,
        })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts; an error if something still uses the mount.
    pub fn unmount(mut self) -> Result<()> {
        self.unmount_now()
    }

    fn unmount_now(&mut self) -> Result<()> {
        unmount(&self.dir)?;
        self.mounted = false;
        Ok(())
    }
}

/// Takes a mount away, however its file system is served. Waits for what is on its way out: a file
/// just closed, or a descriptor that a child of another thread has between its fork and its exec.
///
/// # Errors
/// Something goes on using the mount, or it is none.
pub fn unmount(dir: &Path) -> Result<()> {
    const TRIES: u32 = 50;
    for tried in 1.. {
        let output = run_raw("umount", &[dir])?;
        if output.status.success() {
            break;
        }
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        if !complaint.contains("busy") || tried == TRIES {
            anyhow::bail!("cannot unmount {}: {complaint}", dir.display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if !self.mounted {
            return;
        }
        if let Err(error) = self.unmount_now() {
            let _ = run_raw("umount", &["-l".as_ref(), self.dir.as_os_str()]);
            if std::thread::panicking() {
                eprintln!("{error:#}");
            } else {
                panic!("{error:#}");
            }
        }
    }
}
