//! Transactions: joining, applying batches, the commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use btrfs_format::{Generation, Key};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::overlay::ItemBytes;
use crate::refs::RefChange;
use crate::space::MetaReservation;
use crate::tree::Tree;

/// What one operation changes, prepared in full before any of it is applied.
#[derive(Debug, Default)]
pub struct Batch {
    edits: Vec<(Arc<Tree>, Key, Option<ItemBytes>)>,
    refs: Vec<RefChange>,
}

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }
    /// The item under `key` shall have these bytes, whether it exists or not.
    pub fn put(&mut self, tree: &Arc<Tree>, key: Key, bytes: impl Into<ItemBytes>) {
        self.edits.push((tree.clone(), key, Some(bytes.into())));
    }
    /// The item under `key` shall not exist (it may not have existed).
    pub fn delete(&mut self, tree: &Arc<Tree>, key: Key) {
        self.edits.push((tree.clone(), key, None));
    }
    pub fn reference(&mut self, change: RefChange) {
        self.refs.push(change);
    }
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.refs.is_empty()
    }
}

/// Entry to the running transaction: no freeze happens while one is held.
///
/// Short-lived: never held across a reservation, device I/O or a commit wait.
#[derive(Debug)]
pub struct Join<'a> {
    _gate: RwLockReadGuard<'a, ()>,
    generation: Generation,
}

impl Join<'_> {
    /// The transaction that what is applied now belongs to: for `transid` fields.
    pub fn generation(&self) -> Generation {
        self.generation
    }
    /// Makes the batch part of the transaction. Cannot fail.
    pub fn apply(&self, batch: Batch, _reservation: MetaReservation) {
        let mut edits = batch.edits.into_iter().peekable();
        while let Some((tree, key, edit)) = edits.next() {
            let first = std::iter::once((key, edit));
            let same = std::iter::from_fn(|| edits.next_if(|(t, ..)| Arc::ptr_eq(t, &tree)).map(|(_, k, e)| (k, e)));
            tree.apply(first.chain(same));
        }
        // References follow with the commit machinery.
        let _ = batch.refs;
    }
}

/// The running transaction.
#[derive(Debug)]
pub struct Txn {
    gate: RwLock<()>,
    running: AtomicU64,
}

impl Txn {
    pub fn new(committed: Generation) -> Self {
        Self {
            gate: RwLock::new(()),
            running: AtomicU64::new(committed.next().get()),
        }
    }
    pub fn join(&self) -> Join<'_> {
        let gate = self.gate.read();
        Join {
            _gate: gate,
            generation: Generation(self.running.load(Ordering::Acquire)),
        }
    }
}
