//! How a volume is opened.

use btrfs_format::LogicalAddr;

/// What `rescue=` allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescue {
    /// Read-only: fall back to the roots that the superblock remembers, newest first.
    pub use_backup_root: bool,
    /// Do not replay the log.
    pub no_log_replay: bool,
    /// Read-only: go on without the extent, free-space and checksum trees if they cannot be read.
    pub ignore_bad_roots: bool,
    /// Do not verify checksums of data.
    pub ignore_data_csums: bool,
    /// Read-only: use tree blocks whose checksum does not match, if they are sound otherwise.
    pub ignore_meta_csums: bool,
    /// Read-only: use of a damaged tree block what is sound in it, and go around blocks of which
    /// nothing is. Where no root of the superblock leads to files, the newest one is used that a
    /// search finds; and where the chunk tree cannot be read, what is left of its leaves.
    pub salvage: bool,
    /// Read-only: the root of the root tree is the block at this address. Blocks that were
    /// overwritten since its commit are errors, or with `salvage` left out.
    pub tree_root: Option<LogicalAddr>,
    /// Read-only: the root of the top level is the block at this address, whatever the root tree
    /// says.
    pub top_level_root: Option<LogicalAddr>,
    /// Read-only: open in spite of unknown flags in the superblock.
    pub ignore_super_flags: bool,
}

/// How a volume is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Never write.
    pub read_only: bool,
    /// Open although devices are missing, as far as the profiles allow.
    pub degraded: bool,
    /// Leniencies for damaged volumes.
    pub rescue: Rescue,
    /// Large I/O and barriers go to several devices at once, on threads. Off where a run must
    /// repeat exactly.
    pub parallel_devices: bool,
}
