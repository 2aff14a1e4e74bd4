//! Allocating: data out of reservations, tree blocks for the commit, chunks; and the reservations
//! themselves.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use btrfs_format::{LogicalAddr, view};
use cowshed_runtime::lock;

use super::chunks::Chunks;
use super::disk_view::Shape;
use super::group::Group;
use super::ledger::{DataReservation, MetaReservation, Pool, Short};
use super::placement::{Device, Placement};
use super::profile::superblock_ranges;
use super::turns::Turns;
use super::{BlockKind, Budget, DATA_EXTENT_BYTES_MAX, Drops, Flusher, Space, range_of};
use crate::error::{Error, Result};
use crate::rank::LockRank;
use crate::volume::Chunk;

/// Blocks of system space below which another system chunk is made before any other: the chunk
/// tree's paths for one chunk and its devices, many times over.
const SYSTEM_BLOCKS_MIN: u64 = 32;

/// Blocks of system space below which no chunk is made at all: two paths of the chunk tree, copied
/// and split.
pub(super) const SYSTEM_BLOCKS_LAST: u64 = 12;

/// Linux makes no data chunk where its reserve would fill most of metadata: this much of it stays
/// free for it.
const METADATA_RESERVE_SHARES: u64 = 2;

/// Steps of making space, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    /// Before all others: nothing is held for the items that dirty data will need, so it must not
    /// pile up where room is short.
    WriteBack,
    /// Leaves are counted rather than items.
    Count,
    Commit,
    /// Empty groups of other kinds go. After the commit, which may have emptied them.
    Retire,
}

impl Flush {
    const ALL: [Self; 4] = [Self::WriteBack, Self::Count, Self::Commit, Self::Retire];
    /// For write-back, which cannot wait for itself, and counts item by item as deletions do.
    const OF_WRITE_BACK: [Self; 2] = [Self::Commit, Self::Retire];
}

/// A reservation that is wanted.
struct Want<'a, A, C> {
    pool: Pool,
    /// The outermost lock that making space takes.
    waits_for: LockRank,
    /// The line to wait in; `None`: it is tried at any time.
    turns: Option<&'a Turns>,
    /// What is done for it, in this order.
    steps: &'a [Flush],
    /// How much data it is for.
    data_bytes: u64,
    attempt: A,
    is_count_worth_it: C,
}

/// So many times the first of the line waits for what others were promised.
const PROMISE_WAITS_MAX: u32 = 100;

/// So many waits in a row for a step of the drop of a deleted subvolume may bring nothing. Each
/// takes half a second at most.
const DROP_WAITS_WITHOUT_MAX: u32 = 5;

/// A reservation for a deletion is tried so many times.
const RELEASE_TRIES_MAX: u32 = 100;

impl Space {
    /// Sets metadata aside; waits for flushing where space is short; ENOSPC when nothing helps. The
    /// caller holds no lock from [`LockRank::SpaceTurn`] on.
    pub fn reserve_meta(&self, budget: Budget) -> Result<MetaReservation> {
        // What deletions need lies in the global reserve: they wait for no one.
        let turns = (!budget.is_release).then_some(&self.turns);
        self.reserve_meta_by(budget, LockRank::SpaceTurn, turns, &Flush::ALL)
    }

    /// As [`Space::reserve_meta`], for write-back of data: it cannot wait for write-back, nor in a
    /// line whose first may wait for it. The caller may hold [`LockRank::SpaceTurn`].
    pub fn reserve_meta_for_data(&self, budget: Budget) -> Result<MetaReservation> {
        self.reserve_meta_by(budget, LockRank::Commit, None, &Flush::OF_WRITE_BACK)
    }

    fn reserve_meta_by(
        &self,
        budget: Budget,
        waits_for: LockRank,
        turns: Option<&Turns>,
        steps: &[Flush],
    ) -> Result<MetaReservation> {
        let (blocks, is_release) = (budget.blocks.into(), budget.is_release);
        let want = Want {
            pool: self.ledger.meta_pool(),
            waits_for,
            turns,
            steps,
            data_bytes: 0,
            attempt: || self.ledger.try_reserve_meta(budget.purpose, blocks, is_release),
            is_count_worth_it: || !is_release && self.ledger.is_count_worth_it(blocks),
        };
        let reserved = match is_release {
            true => self.reserve_for_release(&want),
            false => self.reserve(&want),
        };
        reserved.inspect_err(|error| {
            if matches!(error, Error::NoSpace) {
                self.ledger.note_failed(budget.purpose);
                tracing::debug!(?budget, account = ?self.account(), "no space for metadata");
            }
        })
    }

    /// A deletion always finds room in the global reserve, once the others that use it have been
    /// committed or have given theirs back: until then it is tried again.
    fn reserve_for_release<A, C>(&self, want: &Want<'_, A, C>) -> Result<MetaReservation>
    where
        A: Fn() -> std::result::Result<MetaReservation, Short>,
        C: Fn() -> bool,
    {
        self.ledger.let_refused_go_first();
        let mut reserved = self.reserve(want);
        let mut waiting = None;
        for _ in 0..RELEASE_TRIES_MAX {
            if !matches!(reserved, Err(Error::NoSpace))
                || !(self.ledger.wait_while_promised() || self.commit_would_help())
            {
                break;
            }
            waiting.get_or_insert_with(|| self.ledger.note_refused());
            reserved = self.reserve(want);
        }
        reserved
    }

    /// Sets data bytes aside (rounded up to sectors by the caller).
    pub fn reserve_data(&self, bytes: u64) -> Result<DataReservation> {
        let blocks = bytes.div_ceil(self.nodesize_bytes);
        self.reserve(&Want {
            pool: Pool::Data,
            waits_for: LockRank::SpaceTurn,
            turns: Some(&self.turns),
            steps: &Flush::ALL,
            data_bytes: bytes,
            attempt: || self.try_reserve_data(bytes),
            is_count_worth_it: || self.mixed && self.ledger.is_count_worth_it(blocks),
        })
    }

    fn try_reserve_data(&self, bytes: u64) -> std::result::Result<DataReservation, Short> {
        let reserved = self.ledger.try_reserve_data(bytes);
        if reserved.is_ok() {
            return reserved;
        }
        // No chunk is made for what will not fit all the same: the room may be wanted for metadata.
        if !self.could_hold_data(bytes) {
            return Err(Short);
        }
        let short = || self.ledger.try_reserve_data(bytes).is_err();
        while self.make_chunk_while(Pool::Data, short) {
            let reserved = self.ledger.try_reserve_data(bytes);
            if reserved.is_ok() {
                return reserved;
            }
        }
        Err(Short)
    }

    /// Might so many more bytes of data fit, if all that no chunk has became data?
    fn could_hold_data(&self, bytes: u64) -> bool {
        let chunks = self.chunks.lock();
        let left = |device: &Device| device.total_bytes.saturating_sub(device.used_bytes);
        let writable = chunks.devices.iter().filter(|d| d.writable);
        let raw = writable.map(left).fold(0, u64::saturating_add);
        let addable = chunks.profile(Pool::Data).map_or(0, |profile| raw / profile.factor());
        drop(chunks);
        let pool = self.ledger.pool(Pool::Data);
        bytes <= (pool.free + pool.pinned).saturating_add(addable)
    }

    fn reserve<T, A, C>(&self, want: &Want<'_, A, C>) -> Result<T>
    where
        A: Fn() -> std::result::Result<T, Short>,
        C: Fn() -> bool,
    {
        // Also where there is space: a flush commits.
        lock::may_wait_for(want.waits_for);
        if self.failed.load(Ordering::Acquire) || self.volume.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if want.turns.is_none_or(Turns::is_free)
            && let Ok(done) = (want.attempt)()
        {
            return Ok(done);
        }
        let _turn = want.turns.map(Turns::wait);
        if let Ok(done) = (want.attempt)() {
            return Ok(done);
        }
        for step in want.steps {
            if *step == Flush::Count && !(want.is_count_worth_it)() {
                continue;
            }
            self.flush(*step, want.pool)?;
            if let Ok(done) = (want.attempt)() {
                return Ok(done);
            }
        }
        if want.turns.is_some()
            && let Some(done) = self.wait_for_drops(want)?
        {
            return Ok(done);
        }
        // Nothing new is promised to operations meanwhile, so what they were promised comes back;
        // but deletions and write-back come and go.
        for _ in 0..PROMISE_WAITS_MAX {
            if want.turns.is_none() || !self.ledger.wait_for_promises(want.pool, |time| self.pause(time)) {
                break;
            }
            if let Ok(done) = (want.attempt)() {
                return Ok(done);
            }
        }
        Err(Error::NoSpace)
    }

    /// Space that deleted subvolumes have comes back in the background, step by step. Ends where it
    /// does not, or would not be enough.
    fn wait_for_drops<T, A, C>(&self, want: &Want<'_, A, C>) -> Result<Option<T>>
    where
        A: Fn() -> std::result::Result<T, Short>,
    {
        if want.data_bytes > self.data_capacity_bytes() {
            return Ok(None);
        }
        let free_bytes = || {
            let pools = [Pool::Data, Pool::Metadata].map(|pool| self.ledger.pool(pool));
            pools
                .iter()
                .map(|pool| pool.free + pool.pinned)
                .fold(0, u64::saturating_add)
        };
        let (mut most_bytes, mut without) = (free_bytes(), 0);
        while without < DROP_WAITS_WITHOUT_MAX {
            let drops = self.flusher().map_or(Drops::None, |flusher| flusher.go_on_dropping());
            if drops == Drops::None {
                break;
            }
            // What they had is pinned.
            self.flush(Flush::Commit, want.pool)?;
            if let Ok(done) = (want.attempt)() {
                return Ok(Some(done));
            }
            if drops == Drops::Over {
                break;
            }
            let bytes = free_bytes();
            without = if bytes > most_bytes { 0 } else { without + 1 };
            most_bytes = most_bytes.max(bytes);
        }
        Ok(None)
    }

    /// Bytes of data on a volume that has nothing else.
    fn data_capacity_bytes(&self) -> u64 {
        let chunks = self.chunks.lock();
        let writable = chunks.devices.iter().filter(|device| device.writable);
        let raw = writable.map(|device| device.total_bytes).fold(0, u64::saturating_add);
        chunks.profile(Pool::Data).map_or(raw, |profile| raw / profile.factor())
    }

    fn flusher(&self) -> Option<Arc<dyn Flusher>> {
        self.flusher.read().as_ref().and_then(std::sync::Weak::upgrade)
    }
    fn pause(&self, time: Duration) {
        if let Some(flusher) = self.flusher() {
            flusher.pause(time);
        }
    }

    fn flush(&self, step: Flush, pool: Pool) -> Result<()> {
        let Some(flusher) = self.flusher() else {
            return Ok(());
        };
        match step {
            Flush::Count => {
                flusher.count_leaves();
                Ok(())
            }
            Flush::WriteBack if self.ledger.reserved().0 > 0 => flusher.write_back_data(),
            Flush::Commit if self.commit_would_help() => {
                self.holds.revoke();
                flusher.commit()
            }
            Flush::Retire if self.want_retired_for(pool) => flusher.commit(),
            Flush::WriteBack | Flush::Commit | Flush::Retire => Ok(()),
        }
    }

    /// A commit frees what is pinned, and what pending changes drop; without either it cannot bring
    /// anything.
    fn commit_would_help(&self) -> bool {
        let pinned = |pool| self.ledger.pool(pool).pinned > 0;
        pinned(Pool::Data) || pinned(Pool::Metadata) || self.ledger.has_pending()
    }

    /// Allocates one extent of at most `want_bytes` (and at least one sector) out of the
    /// reservation.
    pub fn alloc_data(&self, from: &mut DataReservation, want_bytes: u64) -> Result<(LogicalAddr, u64)> {
        let want = want_bytes.min(from.bytes()).min(DATA_EXTENT_BYTES_MAX);
        assert!(want > 0, "an allocation of nothing");
        let found = self.alloc_from(Pool::Data, Pool::Data, want, true, |group| group.alloc(want))?;
        // The ledger promised it: only a contradiction between trees ends here.
        let range = found.ok_or(Error::NoSpace)?;
        let len = range.end - range.start;
        from.consume(len);
        Ok((LogicalAddr(range.start), len))
    }

    /// Allocates one extent of exactly `bytes` out of the reservation; `None` where no free piece
    /// is that large.
    pub fn alloc_data_whole(&self, from: &mut DataReservation, bytes: u64) -> Result<Option<LogicalAddr>> {
        assert!(bytes > 0 && bytes <= from.bytes(), "an extent has its space reserved");
        let found = self.alloc_from(Pool::Data, Pool::Data, bytes, false, |group| group.alloc_whole(bytes))?;
        Ok(found.map(|range| {
            from.consume(bytes);
            LogicalAddr(range.start)
        }))
    }

    /// What so many pieces of free space hold at most, the biggest ones there are for data; or as
    /// much as is `enough_bytes`.
    pub fn data_bytes_in(&self, pieces: usize, enough_bytes: u64) -> u64 {
        let bytes = self.unclaimed_bytes_in(pieces, enough_bytes);
        if bytes >= enough_bytes {
            return bytes;
        }
        match self.pause_discards() {
            Some(_all_is_seen) => self.unclaimed_bytes_in(pieces, enough_bytes),
            None => bytes,
        }
    }

    fn unclaimed_bytes_in(&self, pieces: usize, enough_bytes: u64) -> u64 {
        let groups = self.pools[Pool::Data as usize].read().clone();
        let (mut biggest, mut bytes): (Vec<u64>, u64) = (Vec::new(), 0);
        for group in groups.iter() {
            let is_of_use =
                biggest.len() < pieces || biggest.last().is_some_and(|least| group.biggest_bytes() > *least);
            if bytes >= enough_bytes || !is_of_use {
                continue;
            }
            group.add_biggest(pieces, &mut biggest);
            biggest.sort_unstable_by_key(|len| std::cmp::Reverse(*len));
            biggest.truncate(pieces);
            bytes = biggest.iter().sum();
        }
        bytes.min(enough_bytes)
    }

    /// Takes an allocation back that no item ever pointed to (its write failed).
    pub fn unalloc_data(&self, addr: LogicalAddr, len_bytes: u64) {
        let (group, pool) = self.own_group(addr, len_bytes);
        match group.give_back(range_of(addr, len_bytes)) {
            Ok(()) => self.ledger.freed(pool, len_bytes),
            Err(what) => self.contradict(what),
        }
    }

    /// One tree block, near the last one.
    pub fn alloc_block(&self, kind: BlockKind) -> Result<LogicalAddr> {
        let (hint, pool) = match kind {
            BlockKind::Metadata => (Pool::Metadata, self.ledger.meta_pool()),
            BlockKind::System => (Pool::System, Pool::System),
        };
        let size = self.nodesize_bytes;
        loop {
            if let Some(range) = self.alloc_from(pool, hint, size, false, |group| group.alloc_aligned(size))? {
                self.ledger.allocated(pool, size);
                return Ok(LogicalAddr(range.start));
            }
            let before = self.ledger.pool(pool).total;
            if !self.make_chunk_while(pool, || self.ledger.pool(pool).total == before) {
                return Err(Error::NoSpace);
            }
        }
    }

    /// Takes from the group that served last, else from the first that has `want` in one piece,
    /// else (where `partial`) from the one with the biggest hole.
    fn alloc_from(
        &self,
        pool: Pool,
        hint: Pool,
        want: u64,
        partial: bool,
        take: impl Fn(&Group) -> Option<Range<u64>>,
    ) -> Result<Option<Range<u64>>> {
        let found = self.alloc_unclaimed(pool, hint, want, partial, &take)?;
        if found.is_some() {
            return Ok(found);
        }
        // What is being discarded is free, too.
        match self.pause_discards() {
            Some(_all_is_seen) => self.alloc_unclaimed(pool, hint, want, partial, &take),
            None => Ok(None),
        }
    }

    fn alloc_unclaimed(
        &self,
        pool: Pool,
        hint: Pool,
        want: u64,
        partial: bool,
        take: &impl Fn(&Group) -> Option<Range<u64>>,
    ) -> Result<Option<Range<u64>>> {
        let hint = &self.hints[hint as usize];
        loop {
            let last = hint.load(Ordering::Relaxed);
            let groups = self.pools[pool as usize].read().clone();
            let first = groups.partition_point(|g| g.shape.start < last);
            let in_order = || groups[first..].iter().chain(&groups[..first]);
            let attempt = |group: &Arc<Group>| {
                let range = take(group)?;
                hint.store(group.shape.start, Ordering::Relaxed);
                Some(range)
            };
            let whole = in_order().filter(|g| g.is_loaded() && g.biggest_bytes() >= want);
            if let Some(range) = whole.into_iter().find_map(attempt) {
                return Ok(Some(range));
            }
            // Groups not loaded yet may have it; full ones need no look.
            if let Some(group) = in_order().find(|g| !g.is_loaded() && g.used_bytes() < g.usable_bytes()) {
                self.ensure_loaded(group)?;
                continue;
            }
            let biggest = groups
                .iter()
                .filter(|g| g.is_loaded() && g.biggest_bytes() > 0)
                .max_by_key(|g| (g.biggest_bytes(), std::cmp::Reverse(g.shape.start)));
            match biggest {
                Some(group) if partial => {
                    if let Some(range) = attempt(group) {
                        return Ok(Some(range));
                    }
                }
                // Chunks may have come or gone since we took the list; a change makes a new list.
                _ if !Arc::ptr_eq(&self.pools[pool as usize].read(), &groups) => {}
                _ => return Ok(None),
            }
        }
    }

    /// Makes a chunk for the pool, if it is still needed once we may. False where there is no room
    /// for one.
    fn make_chunk_while(&self, pool: Pool, still_needed: impl Fn() -> bool) -> bool {
        let mut chunks = self.chunks.lock();
        if !still_needed() {
            return true;
        }
        let Some(placement) = chunks.place(pool) else {
            return false;
        };
        if pool == Pool::Data && !self.mixed && !self.leaves_room_for_metadata(&mut chunks, &placement) {
            return false;
        }
        let system_blocks = self.ledger.pool(Pool::System).free / self.nodesize_bytes;
        let is_low = pool != Pool::System && system_blocks < SYSTEM_BLOCKS_MIN;
        if is_low && !self.make_chunk(&mut chunks, Pool::System) && system_blocks < SYSTEM_BLOCKS_LAST {
            // The chunk's own items would not find room: no space now is better than a commit that
            // fails.
            return false;
        }
        self.make_chunk(&mut chunks, pool)
    }

    /// The devices' last room belongs to metadata: what is promised, and what Linux wants to have
    /// before it deletes anything. May make a metadata chunk, which a data chunk then has to go
    /// after.
    fn leaves_room_for_metadata(&self, chunks: &mut Chunks, data: &Placement) -> bool {
        let addable = chunks.addable_bytes(Pool::Metadata, Some(data));
        let wanted = self.metadata_wanted_bytes();
        let has_room = |addable| self.ledger.pool(Pool::Metadata).free + addable >= wanted;
        if !has_room(addable) && self.make_chunk(chunks, Pool::Metadata) && chunks.place(Pool::Data).is_none() {
            return false;
        }
        let addable = match chunks.place(Pool::Data) {
            Some(placement) => chunks.addable_bytes(Pool::Metadata, Some(&placement)),
            None => 0,
        };
        self.ledger.meta_holds_with(addable)
    }

    /// Free metadata that a data chunk must leave.
    pub(super) fn metadata_wanted_bytes(&self) -> u64 {
        self.shown_reserve_bytes.load(Ordering::Relaxed) * METADATA_RESERVE_SHARES
    }

    fn make_chunk(&self, chunks: &mut Chunks, pool: Pool) -> bool {
        let Some(placement) = chunks.place(pool) else {
            return false;
        };
        let (logical, flags, item) = chunks.describe(pool, &placement);
        if let Err(error) = self.add_to_volume(logical, &item) {
            tracing::error!("space: the new chunk at {logical} is refused: {error}");
            return false;
        }
        let shape = Shape {
            start: logical.get(),
            len_bytes: placement.chunk_bytes,
            sector_bytes: self.volume.sectorsize_bytes().into(),
        };
        let physical: Vec<u64> = placement.stripes.iter().map(|&(_, offset)| offset).collect();
        let excluded = superblock_ranges(range_of(logical, placement.chunk_bytes), flags, &physical);
        let group = Arc::new(Group::newborn(shape, flags, excluded));
        chunks.commit_to(pool, &placement, item, group.clone());
        self.add_group(group);
        self.refresh_addable(chunks);
        tracing::debug!(
            "space: new chunk at {logical}, {} bytes, flags {flags:#x}",
            placement.chunk_bytes
        );
        true
    }

    /// Tells the volume where a new chunk lies.
    fn add_to_volume(&self, logical: LogicalAddr, item: &[u8]) -> Result<()> {
        let (head, stripes) = view::chunk(item).expect("a chunk item of ours is whole");
        let chunk = Chunk::from_item(logical, head, stripes, self.volume.sectorsize_bytes())?;
        self.volume.add_chunk(chunk)
    }
}
