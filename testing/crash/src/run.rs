//! What a recorded run is made of.

use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_model::script::BLOCK_BYTES;

use crate::discards::Discards;
use crate::rig::Layout;
use crate::threads::Threads;
use crate::workload::Mix;

/// Marks in the log: what was there after so many operations was acknowledged.
pub(crate) const SYNC_MARK: u64 = 1 << 41;
/// Operations that returned, of a thread: see [`crate::several::mark`].
pub(crate) const DONE_MARK: u64 = 1 << 42;

/// A run to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seed: u64,
    pub layout: Layout,
    pub nodesize_bytes: u32,
    pub threads: Threads,
    pub ops: usize,
    pub mix: Mix,
    /// An fsync writes a log where it can.
    pub tree_log: bool,
    /// What is written is compressed so: see [`crate::compressed::drawn`].
    pub compress: Option<CompressPolicy>,
    /// What discards freed space: see [`crate::discards::drawn`].
    pub discards: Discards,
    /// Some of the directories are subvolumes.
    pub subvolumes: bool,
    /// The kernel has made a snapshot before the run, which works on both sides. Needs root.
    pub snapshots: bool,
    /// What the devices never tear. The kernel trusts them not to tear a superblock, of 4096 bytes;
    /// with logs we must, too: the other copies of the superblock know of no log.
    pub tear_bytes: u64,
    /// Devices take their time, as real ones do: what happens beside a write under way happens.
    pub is_slow: bool,
}

impl Run {
    /// A block that is torn where it lies is neither the old one nor the new one.
    pub(crate) fn may_write_in_place(&self) -> bool {
        self.tear_bytes >= BLOCK_BYTES
    }

    pub(crate) fn is_full(&self) -> bool {
        self.threads == Threads::Full
    }

    /// Atomic groups stay open between operations: where one thread does them all, or each has its
    /// own files.
    pub(crate) fn has_open_groups(&self) -> bool {
        matches!(
            self.threads,
            Threads::One | Threads::Committer | Threads::Several | Threads::Full
        )
    }

    /// Each thread has a directory of its own.
    pub(crate) fn has_dirs(&self) -> bool {
        matches!(self.threads, Threads::Several | Threads::Full)
    }
}
