//! How a volume is opened.

use cowshed_btrfs::file::compress::{CompressPolicy, Compression};
use cowshed_btrfs::volume::Rescue;
use cowshed_btrfs::{EngineOptions, fs, volume};
use cowshed_vfs::{Context, Credentials};

/// Which subvolume a [`Volume`](crate::Volume) shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Subvolume {
    /// The one that the volume names as its default.
    #[default]
    Default,
    /// By number; 5 is the top level.
    Id(u64),
    /// By its path from the top level.
    Path(Vec<u8>),
}

/// How a volume is opened: read-write, its default subvolume, all devices present.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub(super) open: volume::OpenOptions,
    pub(super) engine: EngineOptions,
    pub(super) fs: fs::MountOptions,
    owner: (u32, u32),
}

impl OpenOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Change nothing on the devices, whatever happens. Works on volumes that could not be written, too.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.open.read_only = read_only;
        self.fs.read_only = read_only;
        self
    }

    /// Shows another subvolume as the root.
    pub fn subvolume(mut self, subvolume: Subvolume) -> Self {
        use cowshed_btrfs::subvol::SubvolChoice;
        self.fs.subvol = match subvolume {
            Subvolume::Default => SubvolChoice::Default,
            Subvolume::Id(id) => SubvolChoice::Id(btrfs_format::TreeId(id)),
            Subvolume::Path(path) => SubvolChoice::Path(path),
        };
        self
    }

    /// Opens although devices are missing, as far as the profiles allow.
    pub fn degraded(mut self, degraded: bool) -> Self {
        self.open.degraded = degraded;
        self
    }

    /// What to overlook on a damaged volume.
    pub fn rescue(mut self, rescue: Rescue) -> Self {
        self.open.rescue = rescue;
        self
    }

    /// Bound for pending changes and cached blocks, in bytes.
    pub fn memory_bytes_max(mut self, bytes: u64) -> Self {
        self.engine.memory_bytes_max = bytes;
        self
    }

    /// Seconds between commits that nobody asked for.
    pub fn commit_interval_seconds(mut self, seconds: u32) -> Self {
        self.engine.commit_interval_s = seconds;
        self
    }

    /// Compresses what is written, where it seems worth it: a file of which something did not become smaller is left alone from there
    /// on. Properties of single files count more.
    pub fn compress(self, how: Compression) -> Self {
        self.compress_as(how, false)
    }

    /// As [`Self::compress`], without looking first.
    pub fn compress_force(self, how: Compression) -> Self {
        self.compress_as(how, true)
    }

    fn compress_as(mut self, how: Compression, force: bool) -> Self {
        self.fs.compress = Some(CompressPolicy { how, force });
        self
    }

    /// Owner and group of what is made; root by default.
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    pub(super) fn context(&self) -> Context {
        Context::new(Credentials::new(self.owner.0, self.owner.1), 0, 0)
    }
}
