//! An open volume.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_vfs::{Context, InitInfo, NodeId, StatFs, Volume as VolumeCalls};

use super::node::{Node, Shared};
use super::{Dir, Error, OpenOptions, Result};
use crate::formats;

/// An open volume. It is used as its root directory: all methods of [`Dir`] are there.
///
/// Closing it with [`Volume::close`] tells whether everything reached the disk; dropping it commits
/// too, but cannot tell. The devices are free for others when the volume, and every
/// [`File`](crate::File), [`Dir`] and [`ReadDir`](crate::ReadDir) of it, are gone.
pub struct Volume {
    root: Dir,
}

impl Volume {
    /// Opens the volume on `devices`, given in any order.
    ///
    /// # Errors
    /// What is wrong with the superblocks, the chunk tree or the main trees; a feature that is not
    /// supported; an XFS volume that is opened for writing; devices that are missing; a log that
    /// cannot be replayed; for writing, a balance that was not finished.
    pub fn open(devices: impl IntoIterator<Item = Arc<dyn BlockDevice>>, options: &OpenOptions) -> Result<Volume> {
        let volume = formats::open(devices.into_iter().collect(), &options.formats)?;
        Self::over_as(volume, options.context())
    }

    /// Opens the volume on one image file or block device.
    ///
    /// # Errors
    /// As [`Volume::open`]; the file is missing, or in use by another process.
    pub fn open_image(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Volume> {
        let mode = if options.formats.read_only {
            OpenMode::ReadOnly
        } else {
            OpenMode::ReadWrite
        };
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, mode)?);
        Self::open([device], options)
    }

    /// The library over a volume that is open already. Closing this closes that.
    #[doc(hidden)]
    pub fn over(volume: Arc<dyn VolumeCalls>) -> Result<Volume> {
        Self::over_as(volume, Context::root())
    }

    fn over_as(volume: Arc<dyn VolumeCalls>, ctx: Context) -> Result<Volume> {
        let info = InitInfo {
            read_only: volume.info().is_read_only,
            ..InitInfo::TRUSTED
        };
        volume.init(&info).map_err(Error::at("/"))?;
        let shared = Arc::new(Shared { fs: volume, ctx });
        let root = Dir::new(Node::root(shared));
        Ok(Volume { root })
    }

    /// The root directory, usable as long as anything of the volume is.
    pub fn root(&self) -> Dir {
        self.root.clone()
    }

    fn calls(&self) -> &Arc<dyn VolumeCalls> {
        &self.root.node().shared().fs
    }

    /// Makes everything durable that was done before the call.
    ///
    /// # Errors
    /// A device failed, or the volume went read-only after an earlier failure.
    pub fn sync(&self) -> Result<()> {
        Ok(self.calls().sync()?)
    }

    /// Makes everything durable and ends the use of the volume. What is still open of it can only
    /// be read.
    ///
    /// # Errors
    /// As [`Volume::sync`]: the volume is then as at its last commit.
    pub fn close(self) -> Result<()> {
        Ok(self.calls().close()?)
    }

    /// Sizes and free space, as `statfs` shows them.
    pub fn stat(&self) -> Result<StatFs> {
        let shared = self.root.node().shared();
        shared.fs.statfs(&shared.ctx, NodeId::ROOT).map_err(Error::at("/"))
    }

    /// The format, as mount(8) names it: `btrfs`, `xfs`.
    pub fn format(&self) -> &'static str {
        self.calls().info().format
    }

    /// The volume's label.
    pub fn label(&self) -> Vec<u8> {
        self.calls().info().label
    }

    /// A log was not replayed, because the options forbade it: what was fsynced last, before a
    /// crash, does not show.
    pub fn has_log(&self) -> bool {
        self.calls().info().has_unreplayed_log
    }
}

impl Deref for Volume {
    type Target = Dir;
    fn deref(&self) -> &Dir {
        &self.root
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("calls", self.calls()).finish()
    }
}
