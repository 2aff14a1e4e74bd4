//! Work that a commit does beside merging.

use std::mem;
use std::sync::atomic::AtomicBool;

use btrfs_format::items::Timespec;
use btrfs_format::superblock::LABEL_BYTES;
use btrfs_format::{Generation, Key, TreeId, Uuid};
use cowshed_runtime::lock::Mutex;

use crate::overlay::ItemBytes;
use crate::rank::LockRank;
use crate::space::MetaReservation;

/// The tree of a new subvolume, which can be written. Until [`RootChange::Named`] no name leads to
/// it: an orphan item names it, so that it is dropped after a crash.
#[derive(Debug)]
pub struct NewTree {
    /// An id that no tree has had.
    pub id: TreeId,
    /// The subvolume's uuid.
    pub uuid: Uuid,
    /// What it begins with.
    pub content: NewContent,
    /// For its blocks, and for references to its children. Given back by the commit.
    pub space: MetaReservation,
}

/// What a new tree begins with.
#[derive(Debug)]
pub enum NewContent {
    /// These items, in key order; they fit a leaf.
    Items(Vec<(Key, ItemBytes)>),
    /// A snapshot: what this tree has in the commit.
    CopyOf(TreeId),
}

/// A change of a root item, beside what commits note of the root block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootChange {
    /// A name leads to the subvolume. Whether anything in it can be changed from now on.
    Named {
        /// Nothing can.
        is_read_only: bool,
    },
    /// None does any more: it is to be dropped.
    Dead,
    /// Nothing in it can be changed, or it can.
    ReadOnly(bool),
    /// It was received.
    Received(Received),
}

/// What a root item says of a subvolume that was received. The transaction in which it was is that
/// of the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The uuid of what was sent.
    pub uuid: Uuid,
    /// Its transaction, on its own volume.
    pub sent_generation: Generation,
    /// When it was sent.
    pub sent: Timespec,
    /// When it was received.
    pub received: Timespec,
}

/// Work for the commit of the transaction in which it was added.
#[derive(Debug)]
pub enum Job {
    /// Makes a tree, after all pending items have been merged.
    MakeTree(Box<NewTree>),
    /// Changes a root item.
    ChangeRoot(TreeId, RootChange),
    /// Changes the volume's label: that field of the superblock.
    SetLabel(Box<[u8; LABEL_BYTES]>),
}

/// What the next commits do beside merging.
#[derive(Debug)]
pub(crate) struct Jobs {
    /// In the order in which they were added.
    queued: Mutex<Vec<Job>>,
    /// Dead subvolumes that wait for a commit to drop them.
    pub(crate) drops: Mutex<Vec<TreeId>>,
    /// Quota groups were looked after: they are off, or marked as inconsistent.
    pub(crate) quota_settled: AtomicBool,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            queued: Mutex::new(LockRank::JobQueue, Vec::new()),
            drops: Mutex::new(LockRank::DropQueue, Vec::new()),
            quota_settled: AtomicBool::new(false),
        }
    }
}

impl Jobs {
    /// Adds a job to the running transaction. The caller has joined it.
    pub(crate) fn add(&self, job: Job) {
        self.queued.lock().push(job);
    }

    /// The jobs of the transaction that ends. Operations are kept out.
    pub(crate) fn take(&self) -> Vec<Job> {
        mem::take(&mut *self.queued.lock())
    }

    /// No job needs a commit of its own.
    pub(crate) fn is_idle(&self) -> bool {
        self.queued.lock().is_empty() && self.drops.lock().is_empty()
    }
}
