//! Work that a commit does beside merging.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use btrfs_format::items::{InodeItem, RootItem, Timespec};
use btrfs_format::superblock::LABEL_BYTES;
use btrfs_format::{Generation, Key, ObjectId, TreeId, Uuid};
use cowshed_runtime::lock::Mutex;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

use crate::rank::LockRank;
use crate::space::MetaReservation;

/// Fields of the inode in a root item that Linux gives each new subvolume.
const ROOT_INODE_BYTES: u64 = 3;
const ROOT_INODE_MODE: u32 = 0o40755;

/// The root item of an empty subvolume, as the operation that makes it puts it: the commit notes
/// where its root block lies, as for all trees. `refs`: names that lead to it.
pub fn root_item_of_new(uuid: Uuid, generation: Generation, now: Timespec, nodesize_bytes: u64) -> RootItem {
    let mut item = RootItem {
        inode: InodeItem {
            generation: U64::new(1),
            size: U64::new(ROOT_INODE_BYTES),
            nbytes: U64::new(nodesize_bytes),
            nlink: U32::new(1),
            mode: U32::new(ROOT_INODE_MODE),
            ..InodeItem::new_zeroed()
        },
        generation: generation.into(),
        generation_v2: generation.into(),
        root_dirid: ObjectId::FIRST_FREE.into(),
        refs: U32::new(1),
        uuid,
        otransid: generation.into(),
        ctransid: generation.into(),
        otime: now,
        ctime: now,
        ..RootItem::new_zeroed()
    };
    item.set_subvolume_flags(0);
    item
}

/// The tree of a snapshot, which can be written. Until [`RootChange::Named`] no name leads to it:
/// an orphan item names it, so that it is dropped after a crash.
#[derive(Debug)]
pub struct NewSnapshot {
    /// An id that no tree has had.
    pub id: TreeId,
    /// The subvolume's uuid.
    pub uuid: Uuid,
    /// What this tree has in the commit.
    pub source: TreeId,
    /// For its blocks, and for references to its children. Given back by the commit.
    pub space: MetaReservation,
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
    /// Makes a snapshot, after all pending items have been merged.
    Snapshot(Box<NewSnapshot>),
    /// Holds space for the root block of a tree that this commit writes for the first time.
    HoldSpace(MetaReservation),
    /// Changes a root item.
    ChangeRoot(TreeId, RootChange),
    /// Changes the volume's label: that field of the superblock.
    SetLabel(Box<[u8; LABEL_BYTES]>),
}

/// What one commit drops at most, but for one leaf and the shared nodes behind it, in references. A
/// few milliseconds, for which an fsync waits.
const DROP_STEP_MAX: usize = 4096;
/// Dead subvolumes that one commit looks at.
const DROPS_MAX: usize = 256;

/// A dead subvolume that waits for a commit to drop it.
#[derive(Clone, Copy, Debug)]
struct QueuedDrop {
    id: TreeId,
    handed_over: HandedOver,
}

/// How far this mount has handed over the shared nodes of a dead tree: they refer to what is below
/// them in their own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandedOver {
    /// Those before this key.
    Before(Key),
    All,
}

/// What the next commits do beside merging.
#[derive(Debug)]
pub(crate) struct Jobs {
    /// In the order in which they were added.
    queued: Mutex<Vec<Job>>,
    /// Dead subvolumes that wait for a commit to drop them.
    drops: Mutex<Vec<QueuedDrop>>,
    /// [`DROP_STEP_MAX`], but for tests.
    pub(crate) drop_step_max: AtomicUsize,
    /// Quota groups were looked after: they are off, or marked as inconsistent.
    pub(crate) quota_settled: AtomicBool,
    /// Version 1 space caches are marked as outdated.
    pub(crate) caches_settled: AtomicBool,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            queued: Mutex::new(LockRank::JobQueue, Vec::new()),
            drops: Mutex::new(LockRank::DropQueue, Vec::new()),
            drop_step_max: AtomicUsize::new(DROP_STEP_MAX),
            quota_settled: AtomicBool::new(false),
            caches_settled: AtomicBool::new(false),
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

    pub(crate) fn queue_drops(&self, dead: Vec<TreeId>) {
        let dead = dead.into_iter().map(|id| QueuedDrop {
            id,
            handed_over: HandedOver::Before(Key::MIN),
        });
        self.drops.lock().extend(dead);
    }
    pub(crate) fn queued_drops(&self) -> usize {
        self.drops.lock().len()
    }
    /// The subvolume is gone.
    pub(crate) fn forget_drop(&self, id: TreeId) {
        self.drops.lock().retain(|dead| dead.id != id);
    }

    pub(crate) fn handed_over(&self, id: TreeId) -> HandedOver {
        let drops = self.drops.lock();
        let queued = drops.iter().find(|dead| dead.id == id);
        queued.map_or(HandedOver::Before(Key::MIN), |dead| dead.handed_over)
    }
    pub(crate) fn set_handed_over(&self, id: TreeId, handed_over: HandedOver) {
        if let Some(dead) = self.drops.lock().iter_mut().find(|dead| dead.id == id) {
            dead.handed_over = handed_over;
        }
    }

    /// Dead subvolumes that the transaction that ends may drop. Those that are queued later may be
    /// dead in the next transaction only.
    pub(crate) fn waiting_drops(&self) -> Vec<TreeId> {
        self.drops
            .lock()
            .iter()
            .rev()
            .take(DROPS_MAX)
            .map(|dead| dead.id)
            .collect()
    }

    /// No job needs a commit of its own.
    pub(crate) fn is_idle(&self) -> bool {
        self.queued.lock().is_empty() && self.drops.lock().is_empty()
    }
}
