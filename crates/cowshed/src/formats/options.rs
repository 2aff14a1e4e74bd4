//! How a volume is opened.

use std::sync::Arc;

use btrfs_store::volume::OpenOptions;
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::fs::MountOptions;
use cowshed_device::BlockDevice;

/// How a volume is opened: what all formats have in common, and a part for each.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Nothing is changed on the devices.
    pub read_only: bool,
    /// The log is left alone. What was synced last before a crash does not show.
    pub no_log_replay: bool,
    /// Overlooks all that a format can overlook on a damaged volume. Goes with `read_only`.
    pub rescue_all: bool,
    /// Bound for pending changes and cached blocks, in bytes; `None`: the format's own.
    pub memory_bytes_max: Option<u64>,
    /// For a btrfs volume.
    pub btrfs: BtrfsOptions,
    /// For an XFS volume.
    pub xfs: XfsOptions,
}

/// What a btrfs volume is told beyond the options of all formats.
#[derive(Clone, Debug, Default)]
pub struct BtrfsOptions {
    /// The volume. Its `read_only` and `rescue.no_log_replay` are those of all formats.
    pub open: OpenOptions,
    /// The engine. Its bound on memory is that of all formats.
    pub engine: EngineOptions,
    /// How the volume is shown. Its `read_only` is that of all formats.
    pub fs: MountOptions,
}

/// What an XFS volume is told beyond the options of all formats.
#[derive(Clone, Debug, Default)]
pub struct XfsOptions {
    /// Reads a volume whose repair was interrupted.
    pub needs_repair: bool,
    /// Where the first superblock is damaged, a copy stands in for it.
    pub use_superblock_copy: bool,
    /// The device of the log, where the volume has an external one.
    pub log_device: Option<Arc<dyn BlockDevice>>,
}
