//! The formats: recognises what lies on devices, and opens it as a [`Volume`]. The library and the
//! mount name a format nowhere else.

use std::sync::Arc;

use btrfs_store::volume::{self, OpenOptions};
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_btrfs::{EngineOptions, Mount};
use cowshed_device::BlockDevice;
use cowshed_runtime::SystemEnv;
use cowshed_vfs::{Error as Errno, Failure, Volume};

/// The magic number of XFS, at the start of the device.
const XFS_MAGIC: &[u8; 4] = b"XFSB";
/// The magic number of btrfs, in its first superblock.
const BTRFS_MAGIC: &[u8; 8] = b"_BHRfS_M";
const BTRFS_MAGIC_OFFSET: u64 = (64 << 10) + 0x40;

/// How a volume of each format is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The btrfs volume.
    pub open: OpenOptions,
    /// The btrfs engine.
    pub engine: EngineOptions,
    /// How a btrfs volume is shown.
    pub fs: MountOptions,
}

impl Options {
    /// Nothing is changed on the devices.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.open.read_only = read_only;
        self.fs.read_only = read_only;
    }
}

/// Opens the volume on `devices`, given in any order.
///
/// # Errors
/// A format that is not supported, and whatever keeps a volume of a supported one from being
/// opened.
pub fn open(devices: Vec<Arc<dyn BlockDevice>>, options: &Options) -> Result<Arc<dyn Volume>, Failure> {
    Ok(open_for_mounts(devices, options)?.first)
}

/// As [`open`], of a volume that may be shown more than once.
///
/// # Errors
/// Those of [`open`].
pub fn open_for_mounts(devices: Vec<Arc<dyn BlockDevice>>, options: &Options) -> Result<Views, Failure> {
    if devices.first().is_some_and(|device| is_xfs(&**device)) {
        return Err(Failure::new(Errno::NotSupported, "XFS volumes are not supported yet"));
    }
    let volume = volume::Volume::open(devices, &options.open).map_err(cowshed_btrfs::Error::from)?;
    let engine = Mount::open(volume, Arc::new(SystemEnv), options.engine)?;
    let first = Arc::new(Fs::new(engine, options.fs.clone())?);
    Ok(Views { first })
}

/// An open volume, which is closed when its last view is destroyed.
#[derive(Clone, Debug)]
pub struct Views {
    first: Arc<Fs>,
}

impl Views {
    /// The view that the volume was opened with.
    pub fn first(&self) -> Arc<dyn Volume> {
        self.first.clone()
    }

    /// A further view, with its own subvolume, read-only flag and rules for atime. All other options
    /// are those of the volume.
    ///
    /// # Errors
    /// There is no such subvolume; `ReadOnly`: the volume was opened read-only, and a writable view
    /// is wanted; `NotSupported`: it would show files that another view shows, whose front end
    /// cannot forget names; `NotConnected`: the last view has ended.
    pub fn another(&self, options: &Options) -> Result<Arc<dyn Volume>, Failure> {
        Ok(Arc::new(self.first.view(options.fs.clone())?))
    }
}

fn is_xfs(device: &dyn BlockDevice) -> bool {
    let has = |magic: &[u8], offset| {
        let mut found = [0; 8];
        let found = &mut found[..magic.len()];
        device.read_at(offset, found).is_ok() && found == magic
    };
    has(XFS_MAGIC, 0) && !has(BTRFS_MAGIC, BTRFS_MAGIC_OFFSET)
}

#[cfg(test)]
mod tests {
    use cowshed_device::MemDevice;

    use super::*;

    #[test]
    fn xfs_is_recognised_and_refused_by_name() {
        let device = MemDevice::new("memory", 1 << 20);
        device.write_at(0, XFS_MAGIC).unwrap();
        let error = open(vec![Arc::new(device)], &Options::default()).unwrap_err();
        assert_eq!(error.error(), Errno::NotSupported);
        assert!(error.to_string().contains("XFS"), "{error}");
    }

    #[test]
    fn btrfs_with_traces_of_xfs_is_btrfs() {
        let device = MemDevice::new("memory", 1 << 20);
        device.write_at(0, XFS_MAGIC).unwrap();
        device.write_at(BTRFS_MAGIC_OFFSET, BTRFS_MAGIC).unwrap();
        assert!(!is_xfs(&device));
    }
}
