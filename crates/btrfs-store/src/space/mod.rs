//! Space: block groups, free space, reservations, chunk allocation, pinned extents. Why:
//! docs/design/space.md.
//!
//! Locks: [`crate::rank`]. None of this module is held while a flusher runs.

mod account;
mod alloc;
mod budget;
mod chunks;
mod discard;
#[cfg(test)]
mod discard_tests;
mod disk_view;
mod group;
mod holds;
#[cfg(test)]
mod holds_tests;
#[cfg(test)]
mod leaves_tests;
mod ledger;
mod load;
mod pending;
mod placement;
mod profile;
mod ranges;
mod retire;
#[cfg(test)]
mod retire_tests;
mod statfs;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use btrfs_format::features::incompat;
use btrfs_format::items::BlockGroupItem;
use btrfs_format::{Generation, Key, LogicalAddr, ObjectId, Superblock, TreeId, U64};
use cowshed_runtime::lock::{Mutex, RwLock};
use zerocopy::IntoBytes;

pub use account::{Account, PoolBytes, PurposeCounts};
pub use budget::{Budget, Purpose};
pub use discard::Freed;
pub use holds::BlockHold;
pub use ledger::{DataReservation, MetaReservation};
pub use pending::Pending;
pub use retire::GroupStats;
pub use statfs::SpaceStat;

use crate::error::{Error, Result};
use crate::forest::Forest;
use crate::overlay::{Edit, Growth};
use crate::rank::LockRank;
use crate::tree::Opened;
use crate::volume::Volume;
use chunks::{Chunks, Delivery, pool_of};
use discard::Discards;
use group::{Contradiction, Group};
use holds::{Holds, Seen};
use ledger::{Ledger, POOLS, Pool};
use load::SpaceTrees;
use turns::Turns;

/// Longest data extent that one allocation gives.
pub(crate) const DATA_EXTENT_BYTES_MAX: u64 = 128 << 20;

/// A commit that has not begun to change anything.
#[derive(Debug)]
pub(crate) struct IdleCommit(Seen);

/// What a tree block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Blocks of all other trees.
    Metadata,
    /// Blocks of the chunk tree: they lie where the superblock's own chunk array leads.
    System,
}

/// What came of waiting for the drop of deleted subvolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    /// None is dropped.
    None,
    /// A step was done, and there may be more.
    Step,
    /// The last step was done, or none came in time.
    Over,
}

/// Makes space. Called without any lock of this module, in this order.
pub trait Flusher: Send + Sync {
    /// Counts the leaves under which pending items lie, so that less has to be held for them.
    fn count_leaves(&self);
    /// Writes dirty data back, so that what it holds too much comes back.
    fn write_back_data(&self) -> Result<()>;
    /// Commits, so that pinned space becomes free and pending items become blocks.
    fn commit(&self) -> Result<()>;
    /// Waits for a step of the drop of deleted subvolumes, half a second at most.
    fn go_on_dropping(&self) -> Drops;
    /// Waits so long, while others run.
    fn pause(&self, time: Duration);
}

/// The space of a volume.
#[derive(Debug)]
pub struct Space {
    volume: Arc<Volume>,
    trees: SpaceTrees,
    nodesize_bytes: u64,
    mixed: bool,
    compat_ro_flags: u64,
    /// The global reserve that `statfs` leaves out.
    shown_reserve_bytes: AtomicU64,
    ledger: Arc<Ledger>,
    /// By start address.
    groups: RwLock<BTreeMap<u64, Arc<Group>>>,
    /// The same, as allocation walks them.
    pools: [RwLock<Arc<Vec<Arc<Group>>>>; 3],
    /// Start of the group that served last: data, metadata, system.
    hints: [AtomicU64; 3],
    chunks: Mutex<Chunks>,
    /// Groups in which extent items came or went since the last edits.
    dirty: Mutex<BTreeSet<u64>>,
    /// Groups with pinned ranges.
    pinned: Mutex<BTreeSet<u64>>,
    discards: Discards,
    /// What the trees and we disagree about: the next commit fails with it.
    contradiction: Mutex<Option<String>>,
    flusher: RwLock<Option<Weak<dyn Flusher>>>,
    failed: AtomicBool,
    /// Pools that want the room of what others leave empty.
    retire_for: [AtomicBool; 3],
    /// Operations that found too little space.
    turns: Turns,
    /// Walks over blocks that commits have replaced.
    holds: Arc<Holds>,
    /// The last commit left pinned what it would have freed without them.
    has_held_blocks: AtomicBool,
}

impl std::fmt::Debug for dyn Flusher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Flusher")
    }
}

impl Space {
    /// Reads chunks and block groups; free space follows group by group when it is needed.
    pub(crate) fn load(volume: &Arc<Volume>, forest: &Forest) -> Result<Arc<Self>> {
        let sb = volume.superblock();
        if !volume.is_read_only() {
            load::check_writable(&sb)?;
        }
        let ignores_bad_roots = volume.options().rescue.ignore_bad_roots;
        let seen = SpaceTrees::open(&sb, forest).and_then(|trees| Ok((load::load(volume, &trees)?, trees)));
        let (loaded, trees) = match seen {
            Err(error) if volume.is_of_the_past() || (volume.is_read_only() && ignores_bad_roots) => {
                tracing::warn!(%error, "nothing says where space is: the volume counts as full");
                let trees = SpaceTrees::blind(forest)?;
                (load::load_blind(volume)?, trees)
            }
            seen => seen?,
        };
        let nodesize_bytes = u64::from(sb.nodesize.get());
        let mixed = sb.incompat_flags.get() & incompat::MIXED_GROUPS != 0;
        let space = Self {
            volume: volume.clone(),
            trees,
            nodesize_bytes,
            mixed,
            compat_ro_flags: sb.compat_ro_flags.get(),
            shown_reserve_bytes: AtomicU64::new(0),
            ledger: Arc::new(Ledger::new(nodesize_bytes, mixed)),
            groups: RwLock::new(LockRank::Groups, BTreeMap::new()),
            pools: std::array::from_fn(|_| RwLock::new(LockRank::Pools, Arc::default())),
            hints: Default::default(),
            chunks: Mutex::new(LockRank::Chunks, loaded.chunks),
            dirty: Mutex::new(LockRank::DirtyGroups, BTreeSet::new()),
            pinned: Mutex::new(LockRank::PinnedGroups, BTreeSet::new()),
            discards: Discards::default(),
            contradiction: Mutex::new(LockRank::Contradiction, None),
            flusher: RwLock::new(LockRank::Flusher, None),
            failed: AtomicBool::new(false),
            retire_for: Default::default(),
            turns: Turns::default(),
            holds: Arc::default(),
            has_held_blocks: AtomicBool::new(false),
        };
        for group in loaded.groups {
            space.add_group(group);
        }
        space.refresh_addable(&space.chunks.lock());
        space.refresh_global_reserve()?;
        Ok(Arc::new(space))
    }

    /// What is called to make space. Without one, what is free now is all there is.
    pub fn set_flusher(&self, flusher: Weak<dyn Flusher>) {
        *self.flusher.write() = Some(flusher);
    }

    fn add_group(&self, group: Arc<Group>) {
        let Some(pool) = pool_of(group.flags) else { return };
        let used = group.used_bytes();
        if load::is_allocatable(&group) {
            let list = &mut *self.pools[pool as usize].write();
            Arc::make_mut(list).push(group.clone());
            self.ledger.update(pool, |p| {
                p.total += group.usable_bytes();
                p.free += group.usable_bytes() - used;
            });
        }
        if pool != Pool::Data || self.mixed {
            self.ledger.add_tree_blocks((used / self.nodesize_bytes) as i64);
        }
        self.groups.write().insert(group.shape.start, group);
    }

    /// For tests, which look at groups and trees together.
    #[cfg(test)]
    fn all_groups(&self) -> Vec<Arc<Group>> {
        self.groups.read().values().cloned().collect()
    }

    /// The group that holds the range, and its pool.
    fn group_of(&self, addr: LogicalAddr, len_bytes: u64) -> Option<(Arc<Group>, Pool)> {
        let groups = self.groups.read();
        let (_, group) = groups.range(..=addr.get()).next_back()?;
        let end = addr.get().checked_add(len_bytes)?;
        let pool = pool_of(group.flags)?;
        (end <= group.range().end).then(|| (group.clone(), pool))
    }
    /// As [`Space::group_of`], for ranges of ours.
    fn own_group(&self, addr: LogicalAddr, len_bytes: u64) -> (Arc<Group>, Pool) {
        let found = self.group_of(addr, len_bytes);
        found.unwrap_or_else(|| panic!("{addr}+{len_bytes} lies in no block group"))
    }

    fn ensure_loaded(&self, group: &Group) -> Result<()> {
        if group.is_loaded() {
            return Ok(());
        }
        load::load_free_space(&self.trees, group, self.nodesize_bytes)
    }

    fn contradict(&self, Contradiction(what): Contradiction) {
        tracing::error!("space: {what}");
        self.contradiction.lock().get_or_insert(what);
    }

    // ---- the commit ----

    /// A tree block that was allocated in this transaction and whose extent item was never made:
    /// free again at once.
    pub fn free_block(&self, addr: LogicalAddr) {
        let (group, pool) = self.own_group(addr, self.nodesize_bytes);
        let range = addr.get()..addr.get() + self.nodesize_bytes;
        assert!(
            !group.has_extent_item(&range),
            "a block with an extent item is freed by its item"
        );
        match group.give_back(range) {
            Ok(()) => self.ledger.freed(pool, self.nodesize_bytes),
            Err(what) => self.contradict(what),
        }
    }

    /// An extent item came into the extent tree. Called before others can see it there.
    pub(crate) fn extent_inserted(&self, addr: LogicalAddr, len_bytes: u64) {
        let Some((group, pool)) = self.group_of(addr, len_bytes) else {
            return self.contradict(Contradiction(format!("an extent item at {addr} in no block group")));
        };
        self.dirty.lock().insert(group.shape.start);
        self.note_tree_blocks(pool, len_bytes, 1);
        if let Err(what) = group.extent_inserted(addr.get()..addr.get() + len_bytes) {
            self.contradict(what);
        }
    }

    /// An extent item left the extent tree; its space is pinned. Called before others can see that
    /// it is gone.
    pub(crate) fn extent_removed(&self, addr: LogicalAddr, len_bytes: u64) {
        let Some((group, pool)) = self.group_of(addr, len_bytes) else {
            return self.contradict(Contradiction(format!("an extent item at {addr} in no block group")));
        };
        self.dirty.lock().insert(group.shape.start);
        self.pinned.lock().insert(group.shape.start);
        self.note_tree_blocks(pool, len_bytes, -1);
        match group.extent_removed(addr.get()..addr.get() + len_bytes) {
            Ok(pinned) => self.ledger.pinned(pool, pinned),
            Err(what) => self.contradict(what),
        }
    }

    fn note_tree_blocks(&self, pool: Pool, len_bytes: u64, sign: i64) {
        if pool != Pool::Data || self.mixed {
            let blocks = (len_bytes / self.nodesize_bytes) as i64;
            self.ledger.add_tree_blocks(sign * blocks);
        }
    }

    /// Allocated and given up within one transaction, never in the extent tree, but perhaps in a
    /// log: free after the commit.
    pub fn pin(&self, addr: LogicalAddr, len_bytes: u64) {
        let Some((group, pool)) = self.group_of(addr, len_bytes) else {
            return self.contradict(Contradiction(format!("an extent at {addr} in no block group")));
        };
        self.pinned.lock().insert(group.shape.start);
        match group.pin(addr.get()..addr.get() + len_bytes) {
            Ok(pinned) => self.ledger.pinned(pool, pinned),
            Err(what) => self.contradict(what),
        }
    }

    /// True where a commit has something to do that no overlay has: chunks that come or go, space
    /// that was held.
    pub(crate) fn has_changes(&self) -> bool {
        let can_free_held = self.has_held_blocks.load(Ordering::Acquire) && !self.holds.are_there();
        can_free_held || self.is_retirement_wanted() || self.chunks.lock().has_undelivered()
    }

    /// True while a chunk exists that no commit on disk has: what lies in it cannot be reached
    /// after a crash.
    pub fn has_new_chunk(&self) -> bool {
        let chunks = self.chunks.lock();
        chunks.durable < chunks.made
    }

    /// Tree blocks that can be had without a new chunk.
    pub fn blocks_without_chunk(&self) -> u64 {
        self.ledger.pool(self.ledger.meta_pool()).free / self.nodesize_bytes
    }

    /// Sets tree blocks aside out of what is free now: nothing is flushed for it. `None` where
    /// there is not enough beside what is promised.
    pub fn try_reserve_blocks(&self, blocks: u64) -> Option<MetaReservation> {
        self.ledger.try_reserve_meta(Purpose::Other, blocks, false).ok()
    }

    /// What must change in free-space tree, block group items, chunk tree and device tree since the
    /// last call.
    ///
    /// Merging these allocates blocks, which changes space again: call until nothing comes.
    pub(crate) fn take_edits(&self, _transid: Generation) -> Result<Vec<(TreeId, Key, Edit)>> {
        let mut out = Vec::new();
        let Delivery { come, gone, devices } = self.chunks.lock().deliver(&mut out);
        for item in devices {
            self.volume.set_device_item(item)?;
        }
        let mut dirty = std::mem::take(&mut *self.dirty.lock());
        dirty.extend(come.iter().map(|g| g.shape.start));
        for group in &gone {
            self.removal_edits(group, &mut out);
            dirty.remove(&group.shape.start);
        }
        let mut edits = Vec::new();
        for start in dirty {
            let (group, _) = self.own_group(LogicalAddr(start), 1);
            if self.trees.free_space.is_some() {
                self.ensure_loaded(&group)?;
                group.take_free_space_edits(&mut edits);
                out.extend(edits.drain(..).map(|(key, edit)| (TreeId::FREE_SPACE, key, edit)));
            }
            if let Some(used) = group.take_used() {
                let item = BlockGroupItem {
                    used: U64::new(used),
                    chunk_objectid: U64::new(ObjectId::FIRST_CHUNK_TREE.get()),
                    flags: U64::new(group.flags),
                };
                let edit = Some(item.as_bytes().into());
                out.push((self.trees.block_group.id(), group.item_key(), edit));
            }
        }
        if let Some(what) = &*self.contradiction.lock() {
            return Err(Error::CorruptTree {
                tree: TreeId::EXTENT,
                what: what.clone(),
            });
        }
        Ok(out)
    }

    /// What the superblock says of space, as the edits taken so far have it.
    pub(crate) fn fill_superblock(&self, sb: &mut Superblock) {
        let used: u64 = self.groups.read().values().map(|g| g.used_bytes()).sum();
        sb.bytes_used = U64::new(used);
        self.chunks.lock().fill_superblock(sb);
    }

    /// The superblock is on disk: pinned space becomes free.
    pub(crate) fn commit_done(&self) {
        let pinned = std::mem::take(&mut *self.pinned.lock());
        let holds = self.holds_of_commit();
        let mut is_kept = false;
        for start in pinned {
            let (group, pool) = self.own_group(LogicalAddr(start), 1);
            // Walks never read the chunk tree.
            if holds.are_there() && pool == self.ledger.meta_pool() {
                self.pinned.lock().insert(start);
                is_kept = true;
                continue;
            }
            let ranges = group.unpin();
            self.ledger.unpinned(pool, ranges.total_bytes());
            for range in ranges.iter() {
                self.discards.note(range);
            }
        }
        self.has_held_blocks.store(is_kept, Ordering::Release);
        self.holds.allow(holds);
        let mut chunks = self.chunks.lock();
        let gone = chunks.commit_done();
        if !gone.is_empty() {
            self.discards.note_room(&gone);
            self.forget_groups(gone);
            self.refresh_addable(&chunks);
        }
        drop(chunks);
        if let Err(error) = self.refresh_global_reserve() {
            tracing::warn!("space: the global reserve stays as it was: {error}");
        }
    }

    /// What the commit that is done decides by. The next one may be a commit that no operation has
    /// reserved for: where it could run out of tree blocks, nothing is held any more.
    fn holds_of_commit(&self) -> Seen {
        /// Beside the global reserve, which is of the commit before.
        const MARGIN_BLOCKS: u64 = 64;
        if self.holds.are_there() && !self.ledger.has_room_for_commit(MARGIN_BLOCKS) {
            tracing::debug!("space: replaced blocks are needed, and are not held any more");
            self.holds.revoke();
        }
        self.holds.look()
    }

    /// A commit begins: what it decides by where it finds nothing to do.
    pub(crate) fn commit_begins(&self) -> IdleCommit {
        IdleCommit(self.holds.look())
    }
    /// The commit found nothing to do, so nothing was pinned.
    pub(crate) fn commit_was_idle(&self, commit: &IdleCommit) {
        self.holds.allow(commit.0);
    }

    /// Keeps tree blocks of the last commit from being used again while commits replace them, until
    /// the volume needs their space. The caller holds commits.
    pub fn hold_blocks(&self) -> BlockHold {
        BlockHold::new(&self.holds)
    }

    /// The commit failed: nothing of memory's view can be trusted for writing any more.
    pub(crate) fn commit_failed(&self) {
        self.failed.store(true, Ordering::Release);
        self.chunks.lock().retirement.commit_failed();
    }

    /// Takes a free range out, which a log that is replayed has extents in. `type_flag` is the kind
    /// of block group that these belong in.
    pub fn claim(&self, addr: LogicalAddr, len_bytes: u64, type_flag: u64) -> Result<()> {
        let outside = || Error::CorruptTree {
            tree: TreeId::EXTENT,
            what: format!("{addr}+{len_bytes} lies in no block group"),
        };
        let (group, pool) = self.group_of(addr, len_bytes).ok_or_else(outside)?;
        if !group.is_of(type_flag) {
            return Err(Error::CorruptTree {
                tree: TreeId::EXTENT,
                what: format!(
                    "{addr}+{len_bytes} lies in a block group of the wrong type, {:#x}",
                    group.flags
                ),
            });
        }
        self.ensure_loaded(&group)?;
        let claimed = group.claim(addr.get()..addr.get() + len_bytes);
        claimed.map_err(|Contradiction(what)| Error::CorruptTree {
            tree: TreeId::EXTENT,
            what,
        })?;
        self.ledger.allocated(pool, len_bytes);
        Ok(())
    }

    // ---- what is pending ----

    /// The overlays grew, and so many reference changes came.
    pub fn note_pending(&self, growth: Growth, refs: usize) {
        self.ledger.note_pending(growth, refs as u64);
    }
    /// Of the pending items, these lie under so many blocks. The caller keeps operations and
    /// commits out.
    pub(crate) fn set_opened(&self, opened: Opened) {
        self.ledger.set_opened(opened);
    }
    /// All that is pending belongs to the commit that begins.
    pub(crate) fn pending_frozen(&self) {
        self.ledger.pending_frozen();
    }
    /// What was frozen is in the trees.
    pub(crate) fn pending_merged(&self) {
        self.ledger.pending_merged();
    }

    /// True where pending items hold half of the metadata that is there: a commit, or a count of
    /// their leaves, would make room before an operation has to wait for it.
    pub fn is_half_pending(&self) -> bool {
        self.ledger.is_half_pending()
    }

    /// [`Space::is_half_pending`], as of this moment.
    pub fn is_half_pending_now(&self) -> bool {
        self.ledger.is_half_pending_now()
    }

    /// True where a count of leaves could find that pending items need much less.
    pub fn is_count_worth_it(&self) -> bool {
        self.ledger.is_count_worth_it(0)
    }

    /// Memory of what is pending for the running transaction, estimated: the one count of it.
    pub fn pending_memory_bytes(&self) -> u64 {
        self.ledger.pending_memory_bytes()
    }

    /// Bytes of data and tree blocks that are reserved now.
    pub fn reserved(&self) -> (u64, u64) {
        self.ledger.reserved()
    }

    /// Chooses the global reserve from the sizes of the trees that a commit may have to copy.
    fn refresh_global_reserve(&self) -> Result<()> {
        /// Blocks for new leaves and nodes of those trees, whatever their size.
        const GROWTH_BLOCKS: u64 = 32;
        const RESERVE_BYTES_MAX: u64 = 512 << 20;
        let trees = load::reserve_trees_bytes(&self.trees.root)?;
        let sum: u64 = trees.values().sum();
        let bytes = (sum + GROWTH_BLOCKS * self.nodesize_bytes).min(RESERVE_BYTES_MAX);
        self.ledger.set_global_reserve(bytes);
        let shown = statfs::shown_reserve_bytes(self.compat_ro_flags, self.nodesize_bytes, &trees);
        self.shown_reserve_bytes.store(shown, Ordering::Relaxed);
        Ok(())
    }

    fn refresh_addable(&self, chunks: &Chunks) {
        for pool in POOLS {
            let addable = chunks.addable_bytes(pool, None);
            self.ledger.update(pool, |p| p.addable = addable);
        }
    }
}

fn range_of(addr: LogicalAddr, len_bytes: u64) -> Range<u64> {
    addr.get()..addr.get() + len_bytes
}
