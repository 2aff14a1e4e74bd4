//! An open volume.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use cowshed_btrfs::env::SystemEnv;
use cowshed_btrfs::fs::Fs;
use cowshed_btrfs::{Engine, fs, volume};
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_vfs::{Context, FileSystem, InitInfo, NodeId, StatFs};

use super::node::{Node, Shared};
use super::{Dir, Error, OpenOptions, Result};

/// An open volume. It is used as its root directory: all methods of [`Dir`] are there.
///
/// Closing it with [`Volume::close`] tells whether everything reached the disk; dropping it commits too, but cannot
/// tell. The devices are free for others when the volume, and every [`File`](crate::File), [`Dir`] and
/// [`ReadDir`](crate::ReadDir) of it, are gone.
pub struct Volume {
    root: Dir,
}

impl Volume {
    /// Opens the volume on `devices`, given in any order.
    ///
    /// # Errors
    /// What is wrong with the superblocks, the chunk tree or the main trees; a feature that is not supported; devices
    /// that are missing; a log that cannot be replayed; for writing, a balance that was not finished.
    pub fn open(devices: impl IntoIterator<Item = Arc<dyn BlockDevice>>, options: &OpenOptions) -> Result<Volume> {
        let volume = volume::Volume::open(devices.into_iter().collect(), &options.open)?;
        let engine = Engine::open(volume, Arc::new(SystemEnv), options.engine)?;
        Self::from_engine_as(engine, options.fs.clone(), options.context())
    }

    /// Opens the volume on one image file or block device.
    ///
    /// # Errors
    /// As [`Volume::open`]; the file is missing, or somebody else has it open.
    pub fn open_image(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Volume> {
        let mode = if options.open.read_only {
            OpenMode::ReadOnly
        } else {
            OpenMode::ReadWrite
        };
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, mode)?);
        Self::open([device], options)
    }

    /// For who has an engine at hand, to show one of its subvolumes. Closing the volume closes the engine.
    #[doc(hidden)]
    pub fn from_engine(engine: Arc<Engine>, options: fs::MountOptions) -> Result<Volume> {
        Self::from_engine_as(engine, options, Context::root())
    }

    fn from_engine_as(engine: Arc<Engine>, options: fs::MountOptions, ctx: Context) -> Result<Volume> {
        let fs = Fs::mount(engine, options)?;
        let info = InitInfo {
            read_only: fs.options().read_only,
            ..InitInfo::TRUSTED
        };
        fs.init(&info).map_err(Error::at("/"))?;
        let shared = Arc::new(Shared { fs, ctx });
        let root = Dir::new(Node::root(shared));
        Ok(Volume { root })
    }

    /// The root directory, usable as long as anything of the volume is.
    pub fn root(&self) -> Dir {
        self.root.clone()
    }

    fn engine(&self) -> &Arc<Engine> {
        self.root.node().shared().fs.engine()
    }

    /// Makes everything durable that was done before the call.
    ///
    /// # Errors
    /// A device failed, or the volume went read-only after an earlier failure.
    pub fn sync(&self) -> Result<()> {
        Ok(self.engine().sync()?)
    }

    /// Makes everything durable and ends the use of the volume. What is still open of it can only be read.
    ///
    /// # Errors
    /// As [`Volume::sync`]: the volume is then as at its last commit.
    pub fn close(self) -> Result<()> {
        Ok(self.engine().close()?)
    }

    /// Sizes and free space, as `statfs` shows them.
    pub fn stat(&self) -> Result<StatFs> {
        let shared = self.root.node().shared();
        shared.fs.statfs(&shared.ctx, NodeId::ROOT).map_err(Error::at("/"))
    }

    /// The volume's label.
    pub fn label(&self) -> Vec<u8> {
        self.engine().volume.superblock().label().to_vec()
    }

    /// A log was not replayed, because the options forbade it: what was fsynced last, before a crash, does not show.
    pub fn has_log(&self) -> bool {
        let volume = &self.engine().volume;
        volume.has_log() && volume.options().rescue.no_log_replay
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
        f.debug_struct("Volume").field("engine", self.engine()).finish()
    }
}
