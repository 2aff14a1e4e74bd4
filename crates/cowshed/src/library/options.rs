//! How a volume is opened.

use std::sync::Arc;

use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_device::BlockDevice;
use cowshed_vfs::{Compression, Context, Credentials};

use crate::formats::Options;

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

/// What to overlook on a damaged volume, as the mount option `rescue=` names it. Most of it goes
/// with [`OpenOptions::read_only`] alone. Of XFS volumes only the log, an interrupted repair and a
/// damaged first superblock can be overlooked; what else is asked for is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescue {
    /// Try older tree roots that the superblock remembers.
    pub use_backup_root: bool,
    /// Leave the log alone: what was synced last before a crash does not show.
    pub no_log_replay: bool,
    /// Do without trees that cannot be read.
    pub ignore_bad_roots: bool,
    /// Read data without comparing checksums.
    pub ignore_data_csums: bool,
    /// Read metadata without comparing checksums.
    pub ignore_meta_csums: bool,
    /// Ignore flags of the superblock that are not known.
    pub ignore_super_flags: bool,
    /// Use what is sound in damaged metadata, and go around what cannot be read. Where no root that
    /// the superblock names leads to files, the newest one is used that a search finds.
    pub salvage: bool,
    /// Read the volume by the root of the root tree at this logical address, as of an earlier
    /// commit. `cowshed inspect find-root` lists what there is.
    pub tree_root: Option<u64>,
    /// Read a volume whose repair was interrupted (XFS).
    pub needs_repair: bool,
    /// Where the first superblock is damaged, read by a copy of it (XFS).
    pub use_superblock_copy: bool,
}

/// How a volume is opened: read-write, its default subvolume, all devices present.
///
/// A volume of XFS can be opened [read-only](OpenOptions::read_only) alone. Subvolumes, compression
/// and missing devices are btrfs' own: asking for them is an error for an XFS volume.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub(super) formats: Options,
    owner: (u32, u32),
}

impl OpenOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Change nothing on the devices, whatever happens. Works on volumes that could not be written,
    /// too.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.formats.read_only = read_only;
        self
    }

    /// Shows another subvolume as the root.
    pub fn subvolume(mut self, subvolume: Subvolume) -> Self {
        use cowshed_btrfs::fs::SubvolChoice;
        self.formats.btrfs.fs.subvol = match subvolume {
            Subvolume::Default => SubvolChoice::Default,
            Subvolume::Id(id) => SubvolChoice::Id(btrfs_format::TreeId(id)),
            Subvolume::Path(path) => SubvolChoice::Path(path),
        };
        self
    }

    /// Opens although devices are missing, as far as the profiles allow.
    pub fn degraded(mut self, degraded: bool) -> Self {
        self.formats.btrfs.open.degraded = degraded;
        self
    }

    /// What to overlook on a damaged volume.
    pub fn rescue(mut self, rescue: Rescue) -> Self {
        self.formats.no_log_replay = rescue.no_log_replay;
        self.formats.xfs.needs_repair = rescue.needs_repair;
        self.formats.xfs.use_superblock_copy = rescue.use_superblock_copy;
        self.formats.btrfs.open.rescue = btrfs_store::volume::Rescue {
            use_backup_root: rescue.use_backup_root,
            no_log_replay: false,
            ignore_bad_roots: rescue.ignore_bad_roots,
            ignore_data_csums: rescue.ignore_data_csums,
            ignore_meta_csums: rescue.ignore_meta_csums,
            ignore_super_flags: rescue.ignore_super_flags,
            salvage: rescue.salvage,
            tree_root: rescue.tree_root.map(btrfs_format::LogicalAddr),
            top_level_root: None,
        };
        self
    }

    /// Bound for pending changes and cached blocks, in bytes.
    pub fn memory_bytes_max(mut self, bytes: u64) -> Self {
        self.formats.memory_bytes_max = Some(bytes);
        self
    }

    /// Seconds between commits of the file system itself.
    pub fn commit_interval_seconds(mut self, seconds: u32) -> Self {
        self.formats.btrfs.engine.commit_interval_s = seconds;
        self
    }

    /// Compresses what is written, where it seems worth it: a file of which something did not
    /// become smaller is left alone from there on. Properties of single files count more.
    pub fn compress(self, how: Compression) -> Self {
        self.compress_as(how, false)
    }

    /// As [`Self::compress`], without looking first.
    pub fn compress_force(self, how: Compression) -> Self {
        self.compress_as(how, true)
    }

    fn compress_as(mut self, how: Compression, force: bool) -> Self {
        self.formats.btrfs.fs.compress = Some(CompressPolicy { how, force });
        self
    }

    /// The device of the log, for an XFS volume that has an external one.
    pub fn log_device(mut self, device: Arc<dyn BlockDevice>) -> Self {
        self.formats.xfs.log_device = Some(device);
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
