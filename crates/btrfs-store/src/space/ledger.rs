//! The ledger: how much of each pool is free, promised and pinned; and the reservations that it
//! hands out.
//!
//! One mutex over plain numbers, held for nanoseconds. docs/design/space.md has the arithmetic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cowshed_runtime::lock::Mutex;

use crate::overlay::ENTRY_OVERHEAD_BYTES;
use crate::rank::LockRank;

/// A thread lets others run so many times at most before it tries again: some hundred microseconds.
const YIELDS_MAX: u32 = 1000;

/// What a block group is for. Mixed groups are all in `Data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pool {
    Data,
    Metadata,
    System,
}
pub(super) const POOLS: [Pool; 3] = [Pool::Data, Pool::Metadata, Pool::System];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolBytes {
    /// What the block groups hold, without superblocks.
    pub total: u64,
    /// May be allocated now.
    pub free: u64,
    /// Free after the commit.
    pub pinned: u64,
    /// What new chunks could add (at least).
    pub addable: u64,
}

#[derive(Debug, Default)]
struct Numbers {
    pools: [PoolBytes; 3],
    /// Data bytes promised and not yet allocated.
    data_reserved_bytes: u64,
    /// Tree blocks promised to operations that have not applied their batch yet.
    meta_reserved_blocks: u64,
    /// Kept for the commit and for deleting on a full volume.
    global_reserve_bytes: u64,
    /// Tree blocks in use.
    tree_blocks: u64,
    /// Deletions that found no room and try again.
    refused: u32,
}

/// What is pending in front of the trees.
#[derive(Debug, Default)]
struct PendingCounts {
    items: AtomicU64,
    bytes: AtomicU64,
    refs: AtomicU64,
}

impl PendingCounts {
    fn add(&self, items: u64, bytes: u64, refs: u64) {
        self.items.fetch_add(items, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.refs.fetch_add(refs, Ordering::AcqRel);
    }
    fn take(&self) -> (u64, u64, u64) {
        (
            self.items.swap(0, Ordering::AcqRel),
            self.bytes.swap(0, Ordering::AcqRel),
            self.refs.swap(0, Ordering::AcqRel),
        )
    }
    fn get(&self) -> (u64, u64, u64) {
        (
            self.items.load(Ordering::Acquire),
            self.bytes.load(Ordering::Acquire),
            self.refs.load(Ordering::Acquire),
        )
    }
}

#[derive(Debug)]
pub(super) struct Ledger {
    nodesize_bytes: u64,
    /// One pool for data and metadata.
    mixed: bool,
    numbers: Mutex<Numbers>,
    /// In the active overlays.
    pending: PendingCounts,
    /// In the frozen overlays that the commit merges.
    frozen: PendingCounts,
}

/// A deletion that tries again.
#[derive(Debug)]
pub(super) struct Refused(Arc<Ledger>);

impl Drop for Refused {
    fn drop(&mut self) {
        self.0.numbers.lock().refused -= 1;
    }
}

/// Why a reservation cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short;

impl Ledger {
    pub(crate) fn new(nodesize_bytes: u64, mixed: bool) -> Self {
        Self {
            nodesize_bytes,
            mixed,
            numbers: Mutex::new(LockRank::Ledger, Numbers::default()),
            pending: PendingCounts::default(),
            frozen: PendingCounts::default(),
        }
    }

    pub(crate) fn meta_pool(&self) -> Pool {
        if self.mixed { Pool::Data } else { Pool::Metadata }
    }
    pub(crate) fn pool(&self, pool: Pool) -> PoolBytes {
        self.numbers.lock().pools[pool as usize]
    }
    pub(crate) fn update(&self, pool: Pool, change: impl FnOnce(&mut PoolBytes)) {
        change(&mut self.numbers.lock().pools[pool as usize]);
    }
    pub(crate) fn set_global_reserve(&self, bytes: u64) {
        self.numbers.lock().global_reserve_bytes = bytes;
    }
    /// Data bytes and tree blocks that are promised.
    pub(crate) fn reserved(&self) -> (u64, u64) {
        let n = self.numbers.lock();
        (n.data_reserved_bytes, n.meta_reserved_blocks)
    }
    pub(crate) fn add_tree_blocks(&self, change: i64) {
        let mut n = self.numbers.lock();
        n.tree_blocks = n.tree_blocks.saturating_add_signed(change);
    }

    /// Free to in use.
    pub(crate) fn allocated(&self, pool: Pool, bytes: u64) {
        self.update(pool, |p| p.free = sub(p.free, bytes));
    }
    /// In use to free.
    pub(crate) fn freed(&self, pool: Pool, bytes: u64) {
        self.update(pool, |p| p.free += bytes);
    }
    /// In use to pinned.
    pub(crate) fn pinned(&self, pool: Pool, bytes: u64) {
        self.update(pool, |p| p.pinned += bytes);
    }
    /// Pinned to free.
    pub(crate) fn unpinned(&self, pool: Pool, bytes: u64) {
        self.update(pool, |p| {
            p.pinned = sub(p.pinned, bytes);
            p.free += bytes;
        });
    }
    /// Data of a reservation got its place: no longer promised, no longer free.
    pub(crate) fn allocated_reserved(&self, bytes: u64) {
        let mut n = self.numbers.lock();
        n.data_reserved_bytes = sub(n.data_reserved_bytes, bytes);
        let pool = &mut n.pools[Pool::Data as usize];
        pool.free = sub(pool.free, bytes);
    }
    /// The reverse: a place is given up, and is free for the next reservation.
    fn release_data(&self, bytes: u64) {
        let mut n = self.numbers.lock();
        n.data_reserved_bytes = sub(n.data_reserved_bytes, bytes);
    }
    fn release_meta(&self, blocks: u64) {
        let mut n = self.numbers.lock();
        n.meta_reserved_blocks = sub(n.meta_reserved_blocks, blocks);
    }

    pub(crate) fn note_pending(&self, items: u64, bytes: u64, refs: u64) {
        self.pending.add(items, bytes, refs);
    }
    /// What is pending moves to what is frozen, while nothing is applied. It counts twice for a
    /// moment, never not at all: a reservation that is made beside it would take the room of the
    /// commit.
    pub(crate) fn pending_frozen(&self) {
        let (items, bytes, refs) = self.pending.get();
        self.frozen.add(items, bytes, refs);
        self.pending.take();
    }
    pub(crate) fn pending_merged(&self) {
        self.frozen.take();
    }

    /// Memory of what is pending for the running transaction, estimated.
    pub(crate) fn pending_memory_bytes(&self) -> u64 {
        let (items, bytes, _) = self.pending.get();
        items * ENTRY_OVERHEAD_BYTES as u64 + bytes
    }

    /// True where anything is pending in front of the trees.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.get() != (0, 0, 0) || self.frozen.get() != (0, 0, 0)
    }

    #[cfg(test)]
    pub(crate) fn global_reserve_bytes(&self) -> u64 {
        self.numbers.lock().global_reserve_bytes
    }
    #[cfg(test)]
    pub(crate) fn estimate_blocks(&self) -> u64 {
        self.pending_blocks(&self.numbers.lock())
    }

    /// Tree blocks that merging everything pending writes at most, without what the global reserve
    /// covers.
    fn pending_blocks(&self, n: &Numbers) -> u64 {
        let (a, b) = (self.pending.get(), self.frozen.get());
        pending_blocks(self.nodesize_bytes, n.tree_blocks, a.0 + b.0, a.1 + b.1, a.2 + b.2)
    }

    /// Metadata bytes that must stay available.
    fn meta_needed_bytes(&self, n: &Numbers, more_blocks: u64, release: bool) -> u64 {
        let reserve = if release { 0 } else { n.global_reserve_bytes };
        (n.meta_reserved_blocks + more_blocks + self.pending_blocks(n)) * self.nodesize_bytes + reserve
    }

    /// True where metadata would still be had if new chunks could add no more than this.
    pub(crate) fn meta_holds_with(&self, addable_bytes: u64) -> bool {
        let n = self.numbers.lock();
        let pool = n.pools[self.meta_pool() as usize];
        self.meta_needed_bytes(&n, 0, false) <= pool.free + addable_bytes
    }

    /// True where a pool keeps its promises, and `keep_bytes` free, without so many of its free
    /// bytes. What new chunks could add does not count: the room of a group that goes cannot be
    /// used until a commit is done.
    pub(crate) fn can_spare(&self, pool: Pool, bytes: u64, keep_bytes: u64) -> bool {
        self.can_spare_of(&self.numbers.lock(), pool, bytes, keep_bytes)
    }
    fn can_spare_of(&self, n: &Numbers, pool: Pool, bytes: u64, keep_bytes: u64) -> bool {
        let promised = match pool {
            Pool::Data => n.data_reserved_bytes,
            Pool::Metadata => self.meta_needed_bytes(n, 0, false),
            Pool::System => return false,
        };
        let free = n.pools[pool as usize].free;
        !self.mixed && free >= bytes.saturating_add(promised.max(keep_bytes))
    }
    /// The group of so many bytes, all free, goes. False where the pool cannot spare them.
    pub(crate) fn try_retire(&self, pool: Pool, bytes: u64, keep_bytes: u64) -> bool {
        let mut n = self.numbers.lock();
        let can = self.can_spare_of(&n, pool, bytes, keep_bytes);
        if can {
            let pool = &mut n.pools[pool as usize];
            pool.free = sub(pool.free, bytes);
            pool.total = sub(pool.total, bytes);
        }
        can
    }

    /// Promises tree blocks. What new chunks could add counts.
    pub(crate) fn try_reserve_meta(self: &Arc<Self>, blocks: u64, release: bool) -> Result<MetaReservation, Short> {
        let mut n = self.numbers.lock();
        let pool = n.pools[self.meta_pool() as usize];
        let data = if self.mixed { n.data_reserved_bytes } else { 0 };
        if self.meta_needed_bytes(&n, blocks, release) + data > pool.free + pool.addable {
            return Err(Short);
        }
        n.meta_reserved_blocks += blocks;
        Ok(MetaReservation {
            ledger: self.clone(),
            blocks,
        })
    }

    /// A deletion was refused, and is about to try again. Others wait a little until what this
    /// returns is dropped.
    pub(crate) fn note_refused(self: &Arc<Self>) -> Refused {
        self.numbers.lock().refused += 1;
        Refused(self.clone())
    }

    /// A deletion that begins waits, for a moment at most, for those that were refused.
    pub(crate) fn let_refused_go_first(&self) {
        self.yield_while(|n| n.refused > 0);
    }

    /// Waits for a moment until blocks that others were promised come back. False: there are none.
    pub(crate) fn wait_for_promises(&self) -> bool {
        let promised = self.numbers.lock().meta_reserved_blocks;
        self.yield_while(|n| n.meta_reserved_blocks >= promised.max(1));
        promised > 0
    }

    /// Lets other threads run while something is so, and no longer than a moment: they may wait
    /// for a lock of the caller.
    fn yield_while(&self, is_so: impl Fn(&Numbers) -> bool) {
        for _ in 0..YIELDS_MAX {
            if !is_so(&self.numbers.lock()) {
                break;
            }
            std::thread::yield_now();
        }
    }

    /// Promises data bytes: only what block groups have counts.
    pub(crate) fn try_reserve_data(self: &Arc<Self>, bytes: u64) -> Result<DataReservation, Short> {
        let mut n = self.numbers.lock();
        let pool = n.pools[Pool::Data as usize];
        let meta = if self.mixed {
            self.meta_needed_bytes(&n, 0, false)
        } else {
            0
        };
        let promised = n.data_reserved_bytes + meta;
        // A reservation of nothing succeeds also where deletion lives on the global reserve.
        if bytes > 0 && promised.saturating_add(bytes) > pool.free {
            return Err(Short);
        }
        n.data_reserved_bytes += bytes;
        Ok(DataReservation {
            ledger: self.clone(),
            bytes,
        })
    }
}

fn sub(have: u64, take: u64) -> u64 {
    debug_assert!(have >= take, "the ledger goes below zero: {have} - {take}");
    have.saturating_sub(take)
}

/// Share of a leaf that packed new items fill at least.
const FILL_DIVISOR: u64 = 2;
/// Bytes of an item header.
const ITEM_HEADER_BYTES: u64 = 25;
/// Bytes of a key pointer.
const KEY_PTR_BYTES: u64 = 33;
/// Bytes that one reference change adds at most to the extent tree, its item header included: an
/// extent item with one inline reference (24 + 29), or a keyed reference (28).
const REF_ITEM_BYTES: u64 = ITEM_HEADER_BYTES + 24 + 29;

/// Tree blocks that merging writes at most, without the copies of extent, free-space and root tree
/// that the global reserve covers. docs/design/space.md#pending says why this is an upper bound.
pub(super) fn pending_blocks(nodesize_bytes: u64, tree_blocks: u64, items: u64, bytes: u64, refs: u64) -> u64 {
    if items == 0 && refs == 0 {
        return 0;
    }
    // Depth: nodes at least a quarter full lead to all blocks there are, and one level may be
    // added.
    let fanout = (nodesize_bytes / KEY_PTR_BYTES / 4).max(2);
    let mut depth = 2;
    let mut reach = 1u64;
    while reach < tree_blocks {
        reach = reach.saturating_mul(fanout);
        depth += 1;
    }
    let paths = items.saturating_add(refs).saturating_mul(depth);
    let copied = paths.min(tree_blocks);
    let new_bytes = bytes
        .saturating_add(items.saturating_mul(ITEM_HEADER_BYTES))
        .saturating_add(refs.saturating_mul(REF_ITEM_BYTES));
    let new_leaves = new_bytes.div_ceil(nodesize_bytes / FILL_DIVISOR);
    let new_nodes = new_leaves.div_ceil(fanout) + depth;
    copied + new_leaves + new_nodes
}

/// Metadata that an operation may need before the next commit, in tree blocks. Gives itself back
/// when dropped.
#[derive(Debug)]
pub struct MetaReservation {
    ledger: Arc<Ledger>,
    blocks: u64,
}

impl Drop for MetaReservation {
    fn drop(&mut self) {
        self.ledger.release_meta(self.blocks);
    }
}

/// Data bytes set aside for dirty ranges. Gives the rest back when dropped.
#[derive(Debug)]
pub struct DataReservation {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl DataReservation {
    /// Bytes that are still set aside.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Takes `bytes` of it away into a reservation of its own.
    pub fn split(&mut self, bytes: u64) -> DataReservation {
        assert!(bytes <= self.bytes, "{bytes} bytes are split from {}", self.bytes);
        self.bytes -= bytes;
        DataReservation {
            ledger: self.ledger.clone(),
            bytes,
        }
    }
    /// Adds another one to this.
    pub fn merge(&mut self, mut other: DataReservation) {
        assert!(Arc::ptr_eq(&self.ledger, &other.ledger), "reservations of two volumes");
        self.bytes += std::mem::take(&mut other.bytes);
    }
    /// `bytes` of it were allocated.
    pub(super) fn consume(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} bytes are allocated from {}", self.bytes);
        self.bytes -= bytes;
        self.ledger.allocated_reserved(bytes);
    }
}

impl Drop for DataReservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.ledger.release_data(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::testing::SetOnDrop;

    fn ledger(free: u64, mixed: bool) -> Arc<Ledger> {
        let ledger = Arc::new(Ledger::new(16384, mixed));
        for pool in POOLS {
            ledger.update(pool, |p| {
                p.total = free;
                p.free = free;
            });
        }
        ledger
    }

    #[test]
    fn reservations_come_back() {
        let l = ledger(1 << 20, false);
        let mut a = l.try_reserve_data(600 << 10).unwrap();
        assert_eq!(l.try_reserve_data(600 << 10).err(), Some(Short));
        let b = a.split(100 << 10);
        a.consume(200 << 10);
        assert_eq!(l.reserved().0, 400 << 10);
        a.merge(b);
        assert_eq!((a.bytes(), l.pool(Pool::Data).free), (400 << 10, 824 << 10));
        drop(a);
        let m = l.try_reserve_meta(10, false).unwrap();
        assert_eq!(l.reserved(), (0, 10));
        drop(m);
        assert_eq!(l.reserved(), (0, 0));
    }

    #[test]
    fn the_global_reserve_is_for_deletion() {
        let l = ledger(64 * 16384, false);
        l.set_global_reserve(60 * 16384);
        assert!(l.try_reserve_meta(6, false).is_err());
        assert!(l.try_reserve_meta(6, true).is_ok());
        l.update(Pool::Metadata, |p| p.addable = 10 * 16384);
        assert!(l.try_reserve_meta(6, false).is_ok());
    }

    #[test]
    fn what_is_pending_never_counts_for_nothing() {
        let l = ledger(1 << 20, false);
        let (noted, looks, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let committer = scope.spawn(|| {
                for n in 1..=1000 {
                    l.note_pending(1, 0, 0);
                    noted.store(n, Ordering::Release);
                    // The other one looks at this very step.
                    let before = looks.load(Ordering::Acquire);
                    while looks.load(Ordering::Acquire) == before {
                        if is_over.load(Ordering::Acquire) {
                            return;
                        }
                        std::thread::yield_now();
                    }
                    l.pending_frozen();
                }
            });
            let _over = SetOnDrop(&is_over);
            while !committer.is_finished() {
                let least = noted.load(Ordering::Acquire);
                looks.fetch_add(1, Ordering::Release);
                for _ in 0..20 {
                    let counted = l.pending.get().0 + l.frozen.get().0;
                    assert!(counted >= least, "{counted} items of {least}");
                }
            }
        });
    }

    #[test]
    fn what_is_promised_does_not_go() {
        let l = ledger(1 << 20, false);
        let held = l.try_reserve_data(600 << 10).unwrap();
        assert!(!l.try_retire(Pool::Data, 512 << 10, 0));
        assert!(!l.try_retire(Pool::Data, 256 << 10, 800 << 10), "this much stays free");
        assert!(l.try_retire(Pool::Data, 256 << 10, 0));
        let data = l.pool(Pool::Data);
        assert_eq!((data.free, data.total), (768 << 10, 768 << 10));
        drop(held);
        l.update(Pool::Metadata, |p| p.addable = 1 << 30);
        l.set_global_reserve(600 << 10);
        assert!(
            !l.can_spare(Pool::Metadata, 512 << 10, 0),
            "what could be added does not count"
        );
        assert!(l.can_spare(Pool::Metadata, 256 << 10, 0));
        assert!(!l.can_spare(Pool::System, 1, 0));
        assert!(
            !ledger(1 << 20, true).can_spare(Pool::Data, 1, 0),
            "mixed groups serve all"
        );
    }

    #[test]
    fn pending_items_count_until_they_are_merged() {
        let l = ledger(64 * 16384, false);
        l.add_tree_blocks(40);
        l.note_pending(1000, 300_000, 100);
        assert!(l.try_reserve_meta(1, false).is_err());
        l.pending_frozen();
        l.note_pending(1, 100, 0);
        assert!(l.try_reserve_meta(1, false).is_err());
        l.pending_merged();
        assert!(l.try_reserve_meta(1, false).is_ok());
    }

    #[test]
    fn pending_is_bounded_by_what_exists_and_what_is_added() {
        assert_eq!(pending_blocks(16384, 1000, 0, 0, 0), 0);
        // One item: its path, a split on each level at most.
        let one = pending_blocks(16384, 1000, 1, 160, 0);
        assert!((4..=12).contains(&one), "{one}");
        // Many scattered puts of equal size: every block once, and the new bytes at half-full
        // leaves.
        let many = pending_blocks(16384, 1000, 1_000_000, 0, 0);
        assert!(
            (1000 + 25_000_000 / 16384..1000 + 2 * 25_000_000 / 16384 + 200).contains(&many),
            "{many}"
        );
    }

    #[test]
    fn mixed_pools_serve_both() {
        let l = ledger(64 * 16384, true);
        let _d = l.try_reserve_data(60 * 16384).unwrap();
        assert!(l.try_reserve_meta(6, false).is_err());
        let _m = l.try_reserve_meta(4, false).unwrap();
        assert!(l.try_reserve_data(4096).is_err());
    }

    #[test]
    fn a_reservation_of_no_data_succeeds_on_a_full_volume() {
        let l = ledger(64 * 16384, true);
        l.set_global_reserve(32 * 16384);
        let _release = l.try_reserve_meta(40, true).unwrap();
        assert!(l.try_reserve_data(0).is_ok(), "the deletion goes on");
        assert!(l.try_reserve_data(4096).is_err());
    }
}
