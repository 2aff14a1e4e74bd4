//! Tree blocks by address: a bounded cache of verified blocks, the blocks of the running
//! transaction, and loading.
//!
//! Locks: one per shard, a leaf of [`crate::rank`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use btrfs_format::builder::{HeaderFields, LeafBuilder};
use btrfs_format::{BlockExpect, Generation, LogicalAddr, TreeBlock, TreeId};
use cowshed_runtime::lock::Mutex;

use crate::error::Result;
use crate::rank::LockRank;
use crate::volume::{BlockPtr, Volume};
use cowshed_runtime::Workers;

const SHARDS: usize = 16;
/// Bytes of blocks sealed and written in one batch: small enough that what was sealed is still in a
/// processor's cache when it is written.
const WRITE_BATCH_BYTES: usize = 1 << 20;

/// Bytes of full leaves that are gathered before they are written: a batch for each of a few
/// workers.
const FULL_BYTES_MAX: usize = 4 << 20;

/// Places in a clock that may belong to blocks gone or dirty before the clock is swept.
const STALE_CLOCK_PLACES_MAX: usize = 1024;

#[derive(Debug)]
struct Slot {
    block: TreeBlock,
    /// Touched since the clock's hand came by.
    hot: bool,
    /// A block of the running transaction that is not on disk yet: must not be dropped.
    dirty: bool,
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<u64, Slot, AddrHash>,
    /// Clean blocks in the order in which the clock's hand visits them.
    clock: VecDeque<u64>,
    clean_bytes: usize,
}

/// Addresses are multiples of 4 KiB: mixing them is enough of a hash.
#[derive(Clone, Debug, Default)]
pub struct AddrHash;
#[derive(Debug, Default)]
pub struct AddrHasher(u64);
impl std::hash::BuildHasher for AddrHash {
    type Hasher = AddrHasher;
    fn build_hasher(&self) -> AddrHasher {
        AddrHasher(0)
    }
}
impl std::hash::Hasher for AddrHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64((*b).into());
        }
    }
    fn write_u64(&mut self, n: u64) {
        let x = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = x ^ (x >> 29);
    }
}

/// The blocks of all trees of a volume.
#[derive(Debug)]
pub struct NodeStore {
    volume: Arc<Volume>,
    shards: [Mutex<Shard>; SHARDS],
    cache_bytes_max: AtomicUsize,
    full_bytes_max: AtomicUsize,
    /// What stands for the root of a tree that no commit has written yet. On no device.
    empty_leaf: TreeBlock,
}

impl NodeStore {
    pub(crate) fn new(volume: Arc<Volume>, cache_bytes_max: usize) -> Self {
        let header = HeaderFields {
            fsid: volume.metadata_fsid(),
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            addr: LogicalAddr(u64::MAX),
            generation: Generation(0),
            owner: TreeId(0),
            level: 0,
            flags: 0,
        };
        let nodesize_bytes = usize::try_from(volume.nodesize_bytes()).expect("verified to be at most 64 KiB");
        Self {
            empty_leaf: TreeBlock::from_builder(LeafBuilder::new(nodesize_bytes).finish(&header)),
            volume,
            shards: std::array::from_fn(|_| Mutex::new(LockRank::TreeBlocks, Shard::default())),
            cache_bytes_max: AtomicUsize::new(cache_bytes_max),
            full_bytes_max: AtomicUsize::new(FULL_BYTES_MAX),
        }
    }

    /// Bytes of full leaves that a merge gathers before they are written.
    pub(crate) fn full_bytes_max(&self) -> usize {
        self.full_bytes_max.load(Ordering::Relaxed)
    }
    /// For tests, whose merges are small.
    pub fn set_full_bytes_max(&self, bytes: usize) {
        self.full_bytes_max.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }
    /// Size of a tree block.
    pub fn nodesize_bytes(&self) -> usize {
        self.volume.nodesize_bytes() as usize
    }

    fn shard(&self, addr: LogicalAddr) -> &Mutex<Shard> {
        // Neighbouring blocks go to different shards whatever the node size: fold the bits that can
        // differ.
        let n = addr.get() >> 12;
        &self.shards[((n ^ (n >> 4) ^ (n >> 8)) as usize) % SHARDS]
    }

    /// The block behind `ptr`: from memory, or read and verified.
    pub fn load(&self, ptr: &BlockPtr, tree: TreeId) -> Result<TreeBlock> {
        if let Some(block) = self.kept(ptr) {
            return Ok(block);
        }
        let block = self.volume.read_block(ptr, tree)?;
        self.insert_clean(block.clone());
        Ok(block)
    }

    /// As [`NodeStore::load`], of a block that will not be wanted again: it is not kept.
    pub(crate) fn load_once(&self, ptr: &BlockPtr, tree: TreeId) -> Result<TreeBlock> {
        match self.kept(ptr) {
            Some(block) => Ok(block),
            None => self.volume.read_block(ptr, tree),
        }
    }

    /// Keeps a block from [`NodeStore::load_once`] after all.
    pub(crate) fn keep(&self, block: &TreeBlock) {
        self.insert_clean(block.clone());
    }

    fn kept(&self, ptr: &BlockPtr) -> Option<TreeBlock> {
        if let Some(slot) = self.shard(ptr.addr).lock().slots.get_mut(&ptr.addr.get()) {
            slot.hot = true;
            // Another pointer may have brought the block here: it must be what this one says, too.
            // What is left of a damaged block may begin later.
            let may_begin_later = self.volume.is_salvaging();
            let is_meant = slot.block.generation() == ptr.generation
                && slot.block.level() == ptr.level
                && ptr.first_key.is_none_or(|key| {
                    let first = (!slot.block.is_empty()).then(|| slot.block.key(0));
                    first.is_some_and(|first| first == key || may_begin_later && first > key)
                });
            if is_meant {
                return Some(slot.block.clone());
            }
        }
        None
    }

    /// An empty leaf, which no device has.
    pub(super) fn empty_leaf(&self) -> TreeBlock {
        self.empty_leaf.clone()
    }

    /// Is some block kept for this address? It may still be another one than the pointer means.
    pub(crate) fn holds(&self, ptr: &BlockPtr) -> bool {
        self.shard(ptr.addr).lock().slots.contains_key(&ptr.addr.get())
    }

    /// Brings blocks into the cache that will be wanted soon; what cannot be read is left out.
    ///
    /// The caller holds the tree's lock, so that no block of it is freed meanwhile and comes back.
    pub(super) fn read_ahead(&self, ptrs: &[BlockPtr], tree: TreeId) {
        let missing: Vec<_> = ptrs.iter().filter(|ptr| !self.holds(ptr)).copied().collect();
        if missing.len() > 1 {
            for block in self.volume.read_blocks_ahead(&missing, tree) {
                self.insert_clean(block);
            }
        }
    }

    fn insert_clean(&self, block: TreeBlock) {
        let addr = block.addr();
        let mut shard = self.shard(addr).lock();
        if shard.slots.get(&addr.get()).is_some_and(|s| s.dirty) {
            return;
        }
        let bytes = block.bytes().len();
        if shard
            .slots
            .insert(
                addr.get(),
                Slot {
                    block,
                    hot: false,
                    dirty: false,
                },
            )
            .is_none()
        {
            shard.clean_bytes += bytes;
            shard.clock.push_back(addr.get());
        }
        self.shrink(&mut shard);
    }

    /// Drops clean blocks that were not touched lately until the shard keeps its share of the
    /// bound.
    fn shrink(&self, shard: &mut Shard) {
        let limit = self.cache_bytes_max.load(Ordering::Relaxed) / SHARDS;
        if shard.clock.len() > 2 * shard.slots.len() + STALE_CLOCK_PLACES_MAX {
            let Shard { slots, clock, .. } = shard;
            let mut seen = std::collections::HashSet::with_capacity(slots.len());
            clock.retain(|a| slots.get(a).is_some_and(|s| !s.dirty) && seen.insert(*a));
        }
        // Each block is looked at twice at most: once to cool it, once to drop it.
        let mut looks = shard.clock.len() * 2;
        while shard.clean_bytes > limit && looks > 0 {
            looks -= 1;
            let Some(addr) = shard.clock.pop_front() else { break };
            match shard.slots.get_mut(&addr) {
                Some(slot) if slot.dirty => {}
                Some(slot) if slot.hot => {
                    slot.hot = false;
                    shard.clock.push_back(addr);
                }
                Some(_) => {
                    if let Some(slot) = shard.slots.remove(&addr) {
                        shard.clean_bytes -= slot.block.bytes().len();
                    }
                }
                None => {}
            }
        }
    }

    /// Stores a block of the running transaction; it stays until `set_clean` or
    /// [`NodeStore::forget`].
    pub fn insert_dirty(&self, block: TreeBlock) {
        let addr = block.addr().get();
        let mut shard = self.shard(block.addr()).lock();
        let bytes = block.bytes().len();
        if let Some(old) = shard.slots.insert(
            addr,
            Slot {
                block,
                hot: true,
                dirty: true,
            },
        ) && !old.dirty
        {
            shard.clean_bytes -= bytes;
            // Its place in the clock is stale now: the hand skips dirty and absent blocks, and
            // set_clean adds a new one.
        }
    }

    /// Seals blocks of a transaction and writes them; they are clean afterwards. `tree`: whose all
    /// of them are.
    ///
    /// Batches are spread over the workers: before the barrier that follows no order matters. One
    /// worker alone writes them in order. After a batch that failed none is begun.
    pub fn write_out(
        &self,
        workers: &Workers,
        blocks: Vec<TreeBlock>,
        transid: Generation,
        tree: Option<TreeId>,
    ) -> Result<()> {
        let expect = self.expect(transid, tree);
        let written = self.write_batches(workers, blocks, |batch| self.write_batch(batch, &expect));
        written.map(drop)
    }

    /// As [`NodeStore::write_out`], for leaves as a builder made them, which are not kept. Returns
    /// their memory.
    pub(crate) fn write_leaves(
        &self,
        workers: &Workers,
        leaves: Vec<(LogicalAddr, Vec<u8>)>,
        transid: Generation,
        tree: TreeId,
    ) -> Result<Vec<Vec<u8>>> {
        let expect = self.expect(transid, Some(tree));
        let buffers = self.write_batches(workers, leaves, |mut batch| {
            for (addr, bytes) in &mut batch {
                let expect = BlockExpect {
                    addr: *addr,
                    ..expect.clone()
                };
                TreeBlock::seal_in_place(bytes, &expect)?;
                // What was at the address before.
                self.forget(*addr);
            }
            let writes: Vec<_> = batch.iter().map(|(addr, bytes)| (*addr, &bytes[..])).collect();
            self.volume.write(&writes)?;
            Ok(batch.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>())
        })?;
        Ok(buffers.into_iter().flatten().collect())
    }

    /// What blocks of a transaction have in common. `tree`: whose all of them are.
    fn expect(&self, transid: Generation, tree: Option<TreeId>) -> BlockExpect {
        let volume = &self.volume;
        BlockExpect {
            addr: LogicalAddr(0),
            fsid: volume.metadata_fsid(),
            csum_type: volume.csum_type(),
            sectorsize_bytes: volume.sectorsize_bytes(),
            level: None,
            generation: Some(transid),
            first_key: None,
            tree,
        }
    }

    /// Spreads blocks over the workers, a batch at a time. After one that failed none is begun.
    fn write_batches<B: Send, R: Default + Send>(
        &self,
        workers: &Workers,
        blocks: Vec<B>,
        write: impl Fn(Vec<B>) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let batch_blocks = (WRITE_BATCH_BYTES / self.nodesize_bytes()).max(1);
        let mut blocks = blocks.into_iter();
        let next = || Some(blocks.by_ref().take(batch_blocks).collect()).filter(|batch: &Vec<_>| !batch.is_empty());
        let batches: Vec<Vec<B>> = std::iter::from_fn(next).collect();
        let has_failed = AtomicBool::new(false);
        let results = workers.run(batches, |batch| {
            if has_failed.load(Ordering::Acquire) {
                return Ok(R::default());
            }
            let result = write(batch);
            has_failed.fetch_or(result.is_err(), Ordering::AcqRel);
            result
        });
        results.into_iter().collect()
    }

    /// The unsealed blocks go with the batch, so that the next one finds their memory.
    fn write_batch(&self, batch: Vec<TreeBlock>, expect: &BlockExpect) -> Result<()> {
        let seal = |block: TreeBlock| {
            block.sealed(&BlockExpect {
                addr: block.addr(),
                ..expect.clone()
            })
        };
        let sealed = batch
            .into_iter()
            .map(seal)
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let writes: Vec<_> = sealed.iter().map(|block| (block.addr(), block.bytes())).collect();
        self.volume.write(&writes)?;
        for block in sealed {
            self.set_clean(block);
        }
        Ok(())
    }

    /// The block is on disk, sealed: it may be dropped from now on.
    pub(crate) fn set_clean(&self, block: TreeBlock) {
        let addr = block.addr().get();
        let mut shard = self.shard(block.addr()).lock();
        let bytes = block.bytes().len();
        let before = shard.slots.insert(
            addr,
            Slot {
                block,
                hot: true,
                dirty: false,
            },
        );
        if before.is_none_or(|s| s.dirty) {
            shard.clean_bytes += bytes;
            shard.clock.push_back(addr);
        }
        self.shrink(&mut shard);
    }

    /// The address is free or will be: nothing of it may be served any more.
    pub fn forget(&self, addr: LogicalAddr) {
        let mut shard = self.shard(addr).lock();
        if let Some(slot) = shard.slots.remove(&addr.get())
            && !slot.dirty
        {
            shard.clean_bytes -= slot.block.bytes().len();
        }
    }

    /// Bytes of clean blocks kept.
    #[cfg(test)]
    pub(crate) fn clean_bytes(&self) -> usize {
        self.shards.iter().map(|s| s.lock().clean_bytes).sum()
    }

    /// Drops every clean block: what a remount would do.
    pub fn drop_clean(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.slots.retain(|_, slot| slot.dirty);
            shard.clock.clear();
            shard.clean_bytes = 0;
        }
    }
}
