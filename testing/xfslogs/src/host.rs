//! A file system in memory that clones files: an image's clone is a copy of one moment.

use std::path::{Path, PathBuf};

use anyhow::Result;
use cowshed_harness::{KernelMount, LoopDevice, run};

/// Bytes of the host. It is sparse.
const HOST_BYTES: u64 = 8 << 30;

/// The host, mounted.
pub struct Host {
    // Dropped in this order.
    mount: KernelMount,
    _device: LoopDevice,
    _dir: tempfile::TempDir,
    /// Where images are mounted.
    pub mountpoint: PathBuf,
}

impl Host {
    pub fn new() -> Result<Host> {
        let dir = tempfile::tempdir_in("/dev/shm")?;
        let image = dir.path().join("host");
        std::fs::File::create(&image)?.set_len(HOST_BYTES)?;
        run(
            "mkfs.xfs",
            &["-q".as_ref(), "-m".as_ref(), "reflink=1".as_ref(), image.as_os_str()],
        )?;
        let device = LoopDevice::attach(&image)?;
        let (at, mountpoint) = (dir.path().join("host.mnt"), dir.path().join("mnt"));
        std::fs::create_dir(&at)?;
        std::fs::create_dir(&mountpoint)?;
        let mount = KernelMount::new("xfs", &[device.path()], &at, "")?;
        Ok(Host {
            mount,
            _device: device,
            _dir: dir,
            mountpoint,
        })
    }

    /// A path on it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.dir().join(name)
    }

    /// A copy of a file at one moment.
    pub fn copy(&self, from: &Path, name: &str) -> Result<PathBuf> {
        let to = self.path(name);
        let paths = [from, &to].map(Path::as_os_str);
        run("cp", &["--reflink=always".as_ref(), paths[0], paths[1]])?;
        Ok(to)
    }
}
