//! Opening what the user names: image files and block devices.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use cowshed_btrfs::volume::{OpenOptions, Volume};
use cowshed_device::{BlockDevice, FileDevice, OpenMode};

/// Opens all devices of a volume.
pub fn open(paths: &[PathBuf], mode: OpenMode) -> Result<Vec<Arc<dyn BlockDevice>>> {
    paths
        .iter()
        .map(|path| {
            let device = FileDevice::open(path, mode)?;
            Ok(Arc::new(device) as Arc<dyn BlockDevice>)
        })
        .collect()
}

/// Opens a volume.
pub fn open_volume(paths: &[PathBuf], options: &OpenOptions) -> Result<Arc<Volume>> {
    let mode = if options.read_only {
        OpenMode::ReadOnly
    } else {
        OpenMode::ReadWrite
    };
    let devices = open(paths, mode)?;
    Volume::open(devices, options).with_context(|| paths.first().map(|p| p.display().to_string()).unwrap_or_default())
}
