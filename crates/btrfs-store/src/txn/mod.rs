//! Transactions: joining, applying batches, and the commit.
//!
//! ```text
//!              join/apply              freeze                              write out
//!   Running(N) ----------> Running(N) -------> Running(N+1) + Committing(N) --------> Running(N+1)
//!                                                  |  error                       (N is on disk)
//!                                                  +------> Aborted: read-only until opened again
//!
//!   write out: publish, seal, write, barrier, superblock, barrier
//! ```
//!
//! A [`Join`] is never held across a reservation, I/O, or a wait for a commit. Locks:
//! [`crate::rank`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use btrfs_format::{Generation, Key, LogicalAddr};
use cowshed_runtime::lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::{SmallVec, smallvec};

use crate::error::{Error, Result};
use crate::overlay::{Edit, Growth, ItemBytes};
use crate::rank::LockRank;
use crate::refs::{RefChange, RefName, RefQueue};
use crate::space::{MetaReservation, Space};
use crate::tree::Tree;

/// What commits did so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitStats {
    /// Commits that wrote a superblock.
    pub commits: u64,
    pub(crate) items_merged: u64,
    /// Tree blocks that they wrote.
    pub blocks_written: u64,
    pub(crate) time: Duration,
}

/// Edits that most operations make: their part of a batch costs one allocation.
const EDITS_USUAL: usize = 8;

/// Edits of one tree.
#[derive(Debug)]
struct Part {
    tree: Arc<Tree>,
    edits: Vec<(Key, Edit)>,
    /// In the order of their keys, each key once.
    is_run: bool,
}

/// What one operation changes, prepared in full before any of it is applied.
///
/// Few operations change two trees. A reference to the tree for each edit would be ten changes of
/// one counter for a new file, which all processors share.
#[derive(Debug, Default)]
pub struct Batch {
    parts: SmallVec<[Part; 1]>,
    refs: Vec<RefChange>,
}

impl Batch {
    /// A batch without changes.
    pub fn new() -> Self {
        Self::default()
    }
    /// A batch of many edits of one tree, in the order of their keys, each key once. Only
    /// references may be added to it.
    pub fn of_run(tree: &Arc<Tree>, run: Vec<(Key, Edit)>, refs: Vec<RefChange>) -> Self {
        let part = Part {
            tree: tree.clone(),
            edits: run,
            is_run: true,
        };
        Self {
            parts: smallvec![part],
            refs,
        }
    }
    /// What the batch says of a key already; `None` where it says nothing.
    pub fn pending(&self, tree: &Arc<Tree>, key: &Key) -> Option<&Edit> {
        let of_tree = self.parts.iter().rev().filter(|part| Arc::ptr_eq(&part.tree, tree));
        let mut edits = of_tree.flat_map(|part| part.edits.iter().rev());
        edits.find(|(at, _)| at == key).map(|(_, edit)| edit)
    }
    /// The item under `key` shall have these bytes, whether it exists or not.
    pub fn put(&mut self, tree: &Arc<Tree>, key: Key, bytes: impl Into<ItemBytes>) {
        self.edits_of(tree).push((key, Some(bytes.into())));
    }
    /// The item under `key` shall not exist (it may not have existed).
    pub fn delete(&mut self, tree: &Arc<Tree>, key: Key) {
        self.edits_of(tree).push((key, None));
    }
    /// Adds a change of a data extent's references.
    pub fn reference(&mut self, change: RefChange) {
        self.refs.push(change);
    }
    /// Adds what another one changes; where both say something of a key, the other one wins.
    pub fn append(&mut self, other: Batch) {
        let has_run = |batch: &Self| batch.parts.iter().any(|part| part.is_run);
        assert!(!has_run(self) && !has_run(&other), "a run is a batch of its own");
        for mut part in other.parts {
            self.edits_of(&part.tree).append(&mut part.edits);
        }
        self.refs.extend(other.refs);
    }
    /// Whether nothing was put, deleted or referenced.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.refs.is_empty()
    }

    /// Where the next edit of a tree goes: trees are changed in the order of the edits.
    fn edits_of(&mut self, tree: &Arc<Tree>) -> &mut Vec<(Key, Edit)> {
        let is_next = |part: &Part| !part.is_run && Arc::ptr_eq(&part.tree, tree);
        if !self.parts.last().is_some_and(is_next) {
            self.parts.push(Part {
                tree: tree.clone(),
                edits: Vec::with_capacity(EDITS_USUAL),
                is_run: false,
            });
        }
        let last = self.parts.len() - 1;
        &mut self.parts[last].edits
    }
}

/// Entry to the running transaction: no freeze happens while one is held.
///
/// Short-lived: never held across a reservation, device I/O or a commit wait.
#[derive(Debug)]
pub struct Join<'a> {
    _gate: RwLockReadGuard<'a, ()>,
    txn: &'a Txn,
    generation: Generation,
}

impl Join<'_> {
    /// The transaction that what is applied now belongs to: for `transid` fields.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Makes the batch part of the transaction. Cannot fail.
    pub fn apply(&self, batch: Batch, mut reservation: MetaReservation) {
        let growth = self.apply_unreserved(batch);
        reservation.note_used(growth);
        drop(reservation);
    }

    /// As [`Join::apply`], for the replay of a log: it asks whether there is space when all of it
    /// is pending. Returns by how much the overlays grew.
    pub fn apply_unreserved(&self, batch: Batch) -> Growth {
        let (items, refs) = (
            batch.parts.iter().map(|part| part.edits.len()).sum::<usize>(),
            batch.refs.len(),
        );
        self.txn.applied_items.fetch_add(items as u64, Ordering::Relaxed);
        self.txn.applied_refs.fetch_add(refs as u64, Ordering::Relaxed);
        let mut growth = Growth::default();
        for Part { tree, edits, is_run } in batch.parts {
            growth += match is_run {
                true => tree.apply_run(edits),
                false => tree.apply(edits),
            };
        }
        // The caller still holds the reservation, so that the sum of both never dips below what is
        // needed.
        self.txn.space.note_pending(growth, refs);
        if !batch.refs.is_empty() {
            let mut queue = self.txn.refs.lock();
            for change in &batch.refs {
                queue.change(change);
            }
        }
        growth
    }
}

/// The running transaction and the state of commits.
#[derive(Debug)]
pub struct Txn {
    gate: RwLock<()>,
    running: AtomicU64,
    committed: AtomicU64,
    aborted: AtomicBool,
    closed: AtomicBool,
    refs: Mutex<RefQueue>,
    space: Arc<Space>,
    /// Edits of items and changes of references in all batches so far.
    applied_items: AtomicU64,
    applied_refs: AtomicU64,
    commit_lock: Mutex<CommitStats>,
    holds: AtomicU64,
}

impl Txn {
    pub(crate) fn new(committed: Generation, space: Arc<Space>) -> Self {
        Self {
            gate: RwLock::new(LockRank::Gate, ()),
            running: AtomicU64::new(committed.next().get()),
            committed: AtomicU64::new(committed.get()),
            aborted: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            refs: Mutex::new(LockRank::RefQueue, RefQueue::default()),
            space,
            applied_items: AtomicU64::new(0),
            applied_refs: AtomicU64::new(0),
            commit_lock: Mutex::new(LockRank::Commit, CommitStats::default()),
            holds: AtomicU64::new(0),
        }
    }

    /// Enters the running transaction.
    pub fn join(&self) -> Join<'_> {
        let gate = self.gate.read();
        Join {
            _gate: gate,
            txn: self,
            generation: Generation(self.running.load(Ordering::Acquire)),
        }
    }

    /// What operations of the running transaction change about the references of an extent. A
    /// commit that is under way has taken its own along: until it is done they are neither here nor
    /// in the extent tree.
    pub fn pending_references(&self, addr: LogicalAddr) -> Vec<(RefName, i64)> {
        self.refs.lock().pending(addr)
    }

    pub(crate) fn has_no_references(&self) -> bool {
        self.refs.lock().is_empty()
    }
    /// Takes the changes of references of the transaction that ends.
    pub(crate) fn take_references(&self) -> RefQueue {
        std::mem::take(&mut *self.refs.lock())
    }
    /// Begins a transaction. Operations are kept out.
    pub(crate) fn begin(&self, generation: Generation) {
        self.running.store(generation.get(), Ordering::Release);
    }
    /// A transaction is on disk.
    pub(crate) fn set_committed(&self, generation: Generation) {
        self.committed.store(generation.get(), Ordering::Release);
    }

    /// Keeps every operation out: what is in the overlays is whole while it is held.
    pub fn exclude(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
    }
    /// Keeps commits out.
    pub fn hold_commits(&self) -> MutexGuard<'_, CommitStats> {
        self.holds.fetch_add(1, Ordering::Relaxed);
        self.commit_lock.lock()
    }

    /// How often commits were held, by commits and logs mostly: what background work gives way to.
    pub fn holds(&self) -> u64 {
        self.holds.load(Ordering::Relaxed)
    }

    /// The transaction that a batch applied now would belong to.
    pub fn running(&self) -> Generation {
        Generation(self.running.load(Ordering::Acquire))
    }
    /// The last transaction that is on disk.
    pub fn committed(&self) -> Generation {
        Generation(self.committed.load(Ordering::Acquire))
    }
    /// Edits of items, and changes of references, in all batches so far.
    pub fn applied(&self) -> (u64, u64) {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (load(&self.applied_items), load(&self.applied_refs))
    }

    /// True after a commit failed: nothing can be made durable any more, the mount is read-only.
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }
    /// Makes the mount read-only: nothing is committed from now on.
    pub fn abort(&self, why: &str) {
        if !self.aborted.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "{why}: the volume is read-only from now on; it is as after transaction {}",
                self.committed()
            );
        }
    }
    /// The mount has ended: what comes later is refused.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
    /// True once the mount has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
    /// Refuses to go on where changes could not be made durable.
    pub fn check_writable(&self) -> Result<()> {
        if self.is_aborted() || self.is_closed() {
            Err(Error::ReadOnly)
        } else {
            Ok(())
        }
    }
}
