//! The ledger: how much of each pool is free, promised and pinned; and the reservations that it
//! hands out.
//!
//! One mutex over plain numbers, held for nanoseconds. docs/design/space.md has the arithmetic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cowshed_runtime::lock::Mutex;

use super::account::{Account, PoolBytes, PurposeCounts};
use super::budget::Purpose;
use super::pending::{Blocks, Pending, PendingCounts};
use crate::overlay::{ENTRY_OVERHEAD_BYTES, Growth};
use crate::rank::LockRank;
use crate::tree::Opened;

/// A thread lets others run so many times at most before it tries again: some hundred microseconds.
const YIELDS_MAX: u32 = 1000;

/// How often the first in line looks whether a promise came back: for 40 ms at least. On a busy
/// machine the thread that holds a promise may not run for some milliseconds. It may also wait for
/// a lock of the caller, which ends only when the caller is refused; therefore a bound.
const PROMISE_LOOKS_MAX: u32 = 200;
const PROMISE_LOOK: Duration = Duration::from_micros(200);

/// Pending items below which no commit is wished for: it would bring little.
const PENDING_ITEMS_MIN: u64 = 1024;

/// In mixed volumes, the share of promised data that is held for its items. At worst each block is
/// an extent of its own: its checksum (32 bytes), a file extent item and an extent item (78 each
/// with headers), in leaves that are half full.
const DATA_ITEMS_DIVISOR: u64 = 10;
const _: () = assert!(4096 / DATA_ITEMS_DIVISOR >= 2 * (32 + 78 + 78));

/// What a block group is for. Mixed groups are all in `Data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pool {
    Data,
    Metadata,
    System,
}
pub(super) const POOLS: [Pool; 3] = [Pool::Data, Pool::Metadata, Pool::System];

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
    /// Of what is pending, what was counted by leaves.
    opened: Opened,
    /// The same of what is frozen.
    frozen_opened: Opened,
    /// By [`Purpose`].
    purposes: [PurposeCounts; Purpose::ALL.len()],
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
    /// As of the last reservation.
    is_half_pending: AtomicBool,
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
            is_half_pending: AtomicBool::new(false),
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
    fn release_meta(&self, reservation: &MetaReservation) {
        let mut n = self.numbers.lock();
        n.meta_reserved_blocks = sub(n.meta_reserved_blocks, reservation.blocks);
        let counts = &mut n.purposes[reservation.purpose as usize];
        counts.held_blocks = sub(counts.held_blocks, reservation.blocks);
        counts.growth += reservation.growth;
    }

    /// All numbers at one moment.
    pub fn account(&self) -> Account {
        let n = self.numbers.lock();
        let (pending, opened) = self.pending_sum(&n, n.opened);
        Account {
            pools: n.pools,
            data_reserved_bytes: n.data_reserved_bytes,
            meta_reserved_blocks: n.meta_reserved_blocks,
            global_reserve_bytes: n.global_reserve_bytes,
            pending,
            opened,
            pending_blocks: self.blocks(&n).to_merge(pending, opened),
            pending_blocks_by_items: self.blocks(&n).to_merge(pending, Opened::default()),
            purposes: n.purposes,
        }
    }

    /// A reservation for this purpose failed, whatever was flushed for it.
    pub fn note_failed(&self, purpose: Purpose) {
        self.numbers.lock().purposes[purpose as usize].refused += 1;
    }

    pub fn note_pending(&self, growth: Growth, refs: u64) {
        self.pending.add(growth, refs.cast_signed());
    }
    /// What is pending moves to what is frozen, while nothing is applied. It counts twice for a
    /// moment, never not at all: a reservation that is made beside it would take the room of the
    /// commit.
    pub fn pending_frozen(&self) {
        self.frozen.add_all(self.pending.get());
        let mut n = self.numbers.lock();
        n.frozen_opened = std::mem::take(&mut n.opened);
        drop(n);
        self.pending.clear();
    }
    pub fn pending_merged(&self) {
        self.frozen.clear();
        self.numbers.lock().frozen_opened = Opened::default();
    }

    /// Of the items that are pending, these open so many blocks. No operation is half applied, and
    /// no commit is under way.
    pub fn set_opened(&self, opened: Opened) {
        self.numbers.lock().opened = opened;
    }

    /// Might counting the leaves of what is pending make room for so many blocks? A count visits
    /// the blocks that items lie under; it is worth it where it may find a quarter less.
    pub fn is_count_worth_it(&self, more_blocks: u64) -> bool {
        const GAIN_SHARE: u64 = 4;
        const GAIN_BLOCKS_MIN: u64 = 32;
        let n = self.numbers.lock();
        let pending = self.pending.get();
        let uncounted = pending.items.saturating_sub(n.opened.items);
        let least = Opened {
            items: pending.items,
            blocks: n.opened.blocks,
        };
        let blocks = more_blocks + self.pending_blocks(&n, least);
        uncounted * self.blocks(&n).depth() >= GAIN_BLOCKS_MIN.max(n.opened.blocks / GAIN_SHARE)
            && self.meta_needed_bytes(&n, blocks, false) <= self.meta_there(&n)
    }

    /// See [`super::Space::is_half_pending`].
    pub fn is_half_pending(&self) -> bool {
        self.is_half_pending.load(Ordering::Relaxed)
    }
    /// As [`Ledger::is_half_pending`], as of this moment.
    pub fn is_half_pending_now(&self) -> bool {
        let n = self.numbers.lock();
        self.note_half_pending(&n, self.pending_blocks(&n, n.opened), self.meta_there(&n));
        self.is_half_pending()
    }
    fn note_half_pending(&self, n: &Numbers, pending_blocks: u64, there_bytes: u64) {
        let is_half = self.pending.get().items >= PENDING_ITEMS_MIN
            && pending_blocks * self.nodesize_bytes * 2 > there_bytes.saturating_sub(n.global_reserve_bytes);
        if is_half != self.is_half_pending() {
            self.is_half_pending.store(is_half, Ordering::Relaxed);
        }
    }

    /// Memory of what is pending for the running transaction, estimated.
    pub fn pending_memory_bytes(&self) -> u64 {
        let pending = self.pending.get();
        pending.items * ENTRY_OVERHEAD_BYTES as u64 + pending.bytes
    }

    /// True where anything is pending in front of the trees.
    pub fn has_pending(&self) -> bool {
        [&self.pending, &self.frozen]
            .iter()
            .any(|c| c.get() != Pending::default())
    }

    #[cfg(test)]
    pub(crate) fn global_reserve_bytes(&self) -> u64 {
        self.numbers.lock().global_reserve_bytes
    }
    #[cfg(test)]
    pub fn estimate_blocks(&self) -> u64 {
        let n = self.numbers.lock();
        self.pending_blocks(&n, n.opened)
    }

    /// Tree blocks that merging everything pending writes at most, without what the global reserve
    /// covers. `opened`: of what is not frozen.
    fn pending_blocks(&self, n: &Numbers, opened: Opened) -> u64 {
        let (pending, opened) = self.pending_sum(n, opened);
        self.blocks(n).to_merge(pending, opened)
    }
    /// As [`Ledger::pending_blocks`], each item with a leaf of its own. What may use the global
    /// reserve leaves the difference to the commit, which needs it for its own trees.
    fn pending_blocks_for_release(&self, n: &Numbers) -> u64 {
        let (pending, _) = self.pending_sum(n, n.opened);
        self.blocks(n).to_merge(pending, Opened::default())
    }
    fn pending_sum(&self, n: &Numbers, mut opened: Opened) -> (Pending, Opened) {
        let (a, b) = (self.pending.get(), self.frozen.get());
        let sum = Pending {
            items: a.items + b.items,
            bytes: a.bytes + b.bytes,
            refs: a.refs + b.refs,
        };
        opened += n.frozen_opened;
        (sum, opened)
    }

    fn blocks(&self, n: &Numbers) -> Blocks {
        Blocks {
            nodesize_bytes: self.nodesize_bytes,
            in_use: n.tree_blocks,
        }
    }

    /// Bytes that metadata has, or could have with new chunks, beside promised data.
    fn meta_there(&self, n: &Numbers) -> u64 {
        let pool = n.pools[self.meta_pool() as usize];
        let data = if self.mixed { n.data_reserved_bytes } else { 0 };
        (pool.free + pool.addable).saturating_sub(data)
    }

    /// Bytes kept for the items of so much promised data. Where metadata has block groups of its
    /// own, data cannot take the last of them, and nothing is kept.
    fn data_items_bytes(&self, data_bytes: u64) -> u64 {
        if self.mixed { data_bytes / DATA_ITEMS_DIVISOR } else { 0 }
    }

    /// Metadata bytes that must stay available, where so many blocks are held for what is pending
    /// and wanted beside what is promised. Write-back and deletions may use the global reserve, and
    /// what is kept for the items of data.
    fn meta_needed_bytes(&self, n: &Numbers, blocks: u64, release: bool) -> u64 {
        let reserve = match release {
            true => 0,
            false => n.global_reserve_bytes + self.data_items_bytes(n.data_reserved_bytes),
        };
        (n.meta_reserved_blocks + blocks) * self.nodesize_bytes + reserve
    }
    /// The same for what is pending alone.
    fn meta_held_bytes(&self, n: &Numbers) -> u64 {
        self.meta_needed_bytes(n, self.pending_blocks(n, n.opened), false)
    }

    /// True where metadata would still be had if new chunks could add no more than this.
    pub(crate) fn meta_holds_with(&self, addable_bytes: u64) -> bool {
        let n = self.numbers.lock();
        let pool = n.pools[self.meta_pool() as usize];
        self.meta_held_bytes(&n) <= pool.free + addable_bytes
    }

    /// True where a commit that no operation has reserved for, and so many blocks more, would find
    /// room beside what is promised and pending. What is frozen is merged already.
    pub(crate) fn has_room_for_commit(&self, margin_blocks: u64) -> bool {
        let n = self.numbers.lock();
        let pending = self.blocks(&n).to_merge(self.pending.get(), n.opened);
        self.meta_needed_bytes(&n, pending + margin_blocks, false) <= self.meta_there(&n)
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
            Pool::Metadata => self.meta_held_bytes(n),
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
    pub fn try_reserve_meta(
        self: &Arc<Self>,
        purpose: Purpose,
        blocks: u64,
        release: bool,
    ) -> Result<MetaReservation, Short> {
        let mut n = self.numbers.lock();
        let (pending_blocks, there) = (self.pending_blocks(&n, n.opened), self.meta_there(&n));
        self.note_half_pending(&n, pending_blocks, there);
        let pending_blocks = match release {
            true => self.pending_blocks_for_release(&n),
            false => pending_blocks,
        };
        if self.meta_needed_bytes(&n, pending_blocks + blocks, release) > there {
            return Err(Short);
        }
        n.meta_reserved_blocks += blocks;
        let counts = &mut n.purposes[purpose as usize];
        counts.held_blocks += blocks;
        counts.peak_blocks = counts.peak_blocks.max(counts.held_blocks);
        counts.granted += 1;
        Ok(MetaReservation {
            ledger: self.clone(),
            purpose,
            blocks,
            growth: Growth::default(),
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

    /// Waits until something comes back of what others were promised. False where nothing did.
    pub fn wait_for_promises(&self, pool: Pool, pause: impl Fn(Duration)) -> bool {
        let promised = self.promised(pool);
        self.wait_a_moment(pool, promised);
        for _ in 0..PROMISE_LOOKS_MAX {
            let now = self.promised(pool);
            if now < promised || now == 0 {
                break;
            }
            pause(PROMISE_LOOK);
        }
        self.promised(pool) < promised
    }

    /// Waits for a moment until metadata that others were promised comes back. False where there
    /// is none.
    pub fn wait_while_promised(&self) -> bool {
        let promised = self.promised(Pool::Metadata);
        self.wait_a_moment(Pool::Metadata, promised);
        promised > 0 || self.promised(Pool::Metadata) > 0
    }

    /// What is promised out of the same space: bytes of data, or blocks of metadata. A caller that
    /// wants data may itself have been promised metadata, and would wait for itself.
    fn promised(&self, pool: Pool) -> u64 {
        self.promised_of(&self.numbers.lock(), pool)
    }
    fn promised_of(&self, n: &Numbers, pool: Pool) -> u64 {
        match pool {
            Pool::Data if !self.mixed => n.data_reserved_bytes,
            Pool::Data | Pool::Metadata | Pool::System => n.meta_reserved_blocks,
        }
    }

    /// Lets others run until less than this is promised, and no longer than a moment.
    fn wait_a_moment(&self, pool: Pool, promised: u64) {
        self.yield_while(|n| self.promised_of(n, pool) >= promised.max(1));
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
        let meta = if self.mixed { self.meta_held_bytes(&n) } else { 0 };
        let promised = n.data_reserved_bytes + meta + self.data_items_bytes(bytes);
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

/// Metadata that an operation may need before the next commit, in tree blocks. Gives itself back
/// when dropped.
#[derive(Debug)]
pub struct MetaReservation {
    ledger: Arc<Ledger>,
    purpose: Purpose,
    blocks: u64,
    /// What it was used for.
    growth: Growth,
}

impl MetaReservation {
    /// Tree blocks set aside.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
    /// The overlays grew by its leave: for the account.
    pub(crate) fn note_used(&mut self, growth: Growth) {
        self.growth += growth;
    }
}

impl Drop for MetaReservation {
    fn drop(&mut self) {
        self.ledger.release_meta(self);
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
    use std::sync::atomic::AtomicU64;

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

    fn items(items: i64, bytes: i64) -> Growth {
        Growth { items, bytes }
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
        let m = l.try_reserve_meta(Purpose::Other, 10, false).unwrap();
        assert_eq!(l.reserved(), (0, 10));
        drop(m);
        assert_eq!(l.reserved(), (0, 0));
    }

    #[test]
    fn the_global_reserve_is_for_deletion() {
        let l = ledger(64 * 16384, false);
        l.set_global_reserve(60 * 16384);
        assert!(l.try_reserve_meta(Purpose::Other, 6, false).is_err());
        assert!(l.try_reserve_meta(Purpose::Other, 6, true).is_ok());
        l.update(Pool::Metadata, |p| p.addable = 10 * 16384);
        assert!(l.try_reserve_meta(Purpose::Other, 6, false).is_ok());
    }

    #[test]
    fn what_is_pending_never_counts_for_nothing() {
        let l = ledger(1 << 20, false);
        let (noted, looks, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let committer = scope.spawn(|| {
                for n in 1..=1000 {
                    l.note_pending(items(1, 0), 0);
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
                    let counted = l.pending.get().items + l.frozen.get().items;
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
        l.note_pending(items(1000, 300_000), 100);
        assert!(l.try_reserve_meta(Purpose::Other, 1, false).is_err());
        l.pending_frozen();
        l.note_pending(items(1, 100), 0);
        assert!(l.try_reserve_meta(Purpose::Other, 1, false).is_err());
        l.pending_merged();
        assert!(l.try_reserve_meta(Purpose::Other, 1, false).is_ok());
    }

    #[test]
    fn count_by_leaves_makes_room_until_more_items_come() {
        let l = ledger(64 * 16384, false);
        l.add_tree_blocks(60);
        l.note_pending(items(100, 0), 0);
        assert!(l.try_reserve_meta(Purpose::Other, 1, false).is_err());
        assert!(l.is_count_worth_it(1));
        assert!(!l.is_count_worth_it(60), "not even one leaf would leave so many");
        l.set_opened(Opened { items: 100, blocks: 3 });
        assert!(l.try_reserve_meta(Purpose::Other, 40, false).is_ok());
        assert!(!l.is_count_worth_it(40), "there is nothing new to count");
        l.note_pending(items(10, 0), 0);
        assert!(l.try_reserve_meta(Purpose::Other, 40, false).is_err());
        assert!(!l.is_count_worth_it(40), "little is new");
        l.note_pending(items(20, 0), 0);
        assert!(l.is_count_worth_it(40));
        // What was counted stays counted through the commit, and goes with it.
        l.pending_frozen();
        assert!(l.try_reserve_meta(Purpose::Other, 40, false).is_err());
        l.pending_merged();
        assert!(l.try_reserve_meta(Purpose::Other, 60, false).is_ok());
        l.note_pending(items(100, 0), 0);
        assert!(l.try_reserve_meta(Purpose::Other, 1, false).is_err());
    }

    #[test]
    fn pending_items_that_hold_half_of_metadata_are_noticed() {
        let l = ledger(10_000 * 16384, false);
        l.add_tree_blocks(9_000);
        let is_half = || {
            assert_eq!(l.is_half_pending_now(), l.is_half_pending());
            l.is_half_pending()
        };
        // Too few to be worth a commit, then enough, then counted, then committed.
        l.note_pending(items(PENDING_ITEMS_MIN.cast_signed() - 1, 0), 0);
        assert!(!is_half());
        l.note_pending(items(1000, 0), 0);
        assert!(is_half());
        let pending = l.account().pending.items;
        l.set_opened(Opened {
            items: pending,
            blocks: 10,
        });
        assert!(!is_half());
        l.set_opened(Opened::default());
        assert!(is_half());
        l.pending_frozen();
        assert!(!is_half(), "the commit that runs makes the room");
    }

    #[test]
    fn mixed_pools_serve_both() {
        let l = ledger(64 * 16384, true);
        // A tenth of it is held for its items.
        assert!(l.try_reserve_data(60 * 16384).is_err());
        let _d = l.try_reserve_data(50 * 16384).unwrap();
        assert!(l.try_reserve_meta(Purpose::Other, 10, false).is_err());
        let _m = l.try_reserve_meta(Purpose::Other, 9, false).unwrap();
        assert!(l.try_reserve_data(4096).is_err());
        let written_back = l.try_reserve_meta(Purpose::WriteBack, 5, true);
        assert!(
            written_back.is_ok(),
            "what is held for the items of data is there for them"
        );
    }

    #[test]
    fn a_reservation_of_no_data_succeeds_on_a_full_volume() {
        let l = ledger(64 * 16384, true);
        l.set_global_reserve(32 * 16384);
        let _release = l.try_reserve_meta(Purpose::Other, 40, true).unwrap();
        assert!(l.try_reserve_data(0).is_ok(), "the deletion goes on");
        assert!(l.try_reserve_data(4096).is_err());
    }
}
