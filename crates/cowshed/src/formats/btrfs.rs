//! btrfs: views of an open volume.

use std::sync::Arc;

use btrfs_store::volume;
use cowshed_btrfs::Mount;
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_device::BlockDevice;
use cowshed_runtime::SystemEnv;
use cowshed_vfs::{Failure, Volume};

use super::options::Options;

/// An open volume, which is closed when its last view is destroyed.
#[derive(Clone, Debug)]
pub struct Views(Arc<Fs>);

pub(super) fn open(devices: Vec<Arc<dyn BlockDevice>>, options: &Options) -> Result<Views, Failure> {
    let mut open = options.btrfs.open;
    open.read_only = options.read_only;
    open.rescue.no_log_replay = options.no_log_replay || options.rescue_all;
    if options.rescue_all {
        open.rescue.ignore_bad_roots = true;
        open.rescue.ignore_data_csums = true;
        open.rescue.ignore_meta_csums = true;
        open.rescue.ignore_super_flags = true;
    }
    let mut engine = options.btrfs.engine;
    if let Some(bytes) = options.memory_bytes_max {
        engine.memory_bytes_max = bytes;
    }
    let volume = volume::Volume::open(devices, &open).map_err(cowshed_btrfs::Error::from)?;
    let mount = Mount::open(volume, Arc::new(SystemEnv), engine)?;
    let shown = shown(&mount, options);
    Ok(Views(Arc::new(Fs::new(mount, shown)?)))
}

fn shown(mount: &Mount, options: &Options) -> MountOptions {
    let fs = &options.btrfs.fs;
    MountOptions {
        read_only: options.read_only,
        // Of a volume that cannot change, `open` has nothing to say.
        stateless_open: fs.stateless_open || mount.store().volume().is_read_only(),
        ..fs.clone()
    }
}

impl Views {
    pub(super) fn first(&self) -> Arc<dyn Volume> {
        self.0.clone()
    }

    pub(super) fn another(&self, options: &Options) -> Result<Arc<dyn Volume>, Failure> {
        Ok(Arc::new(self.0.view(shown(self.0.mount(), options))?))
    }
}
