//! The blocks of logs: allocated without references, copied before they change, written with the
//! superblock behind.
//!
//! A block that a superblock on disk leads to is never written again: a crash in the middle of a
//! sync finds the previous log whole. The old copies are free once the new superblock is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use btrfs_format::builder::{HeaderFields, LeafBuilder};
use btrfs_format::features::header_flags;
use btrfs_format::{Generation, Key, LogicalAddr, TreeBlock, TreeId};
use zerocopy::IntoBytes;

use super::collect::{Step, Stop};
use super::ranges::Ranges;
use crate::log::{root_item, root_key};
use btrfs_store::overlay::Edit;
use btrfs_store::space::BlockKind;
use btrfs_store::tree::{Edits, FullLeaves, MergeHost, Merger, RootPtr, Tree};
use btrfs_store::volume::SuperblockCopies;
use btrfs_store::{Result, Store};

/// The log of one subvolume.
#[derive(Debug, Default)]
pub(super) struct SubvolLog {
    /// `None` while nothing is logged.
    pub tree: Option<Arc<Tree>>,
    /// Disk addresses whose data checksums the log has.
    pub sums: Ranges,
}

/// All logs of the running transaction.
#[derive(Debug, Default)]
pub(super) struct LogTrees {
    pub subvols: BTreeMap<TreeId, SubvolLog>,
    root: Option<Arc<Tree>>,
    /// Blocks in use by what was written, or by what was tried.
    blocks: BTreeSet<u64>,
    /// A sync did not come to its end.
    pub is_broken: bool,
}

/// What one sync wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub blocks: u64,
    pub bytes: u64,
}

impl LogTrees {
    /// Tree blocks that logging `items` of `bytes` takes at most.
    pub(crate) fn blocks_needed(&self, nodesize_bytes: u64, items: u64, bytes: u64) -> u64 {
        /// Levels of a log that are copied with a leaf, its root tree's, and one split on each.
        const PATH_BLOCKS: u64 = 12;
        let copied = (self.blocks.len() as u64).min(items.saturating_mul(4));
        copied + bytes.div_ceil(nodesize_bytes / 2) + bytes.div_ceil(nodesize_bytes / 2) / 64 + PATH_BLOCKS
    }

    /// Merges the edits, writes what changed, and makes it durable. After an error the logs are in
    /// no known state: only a commit helps.
    pub(super) fn sync(&mut self, store: &Store, transid: Generation, edits: Vec<(TreeId, Edits)>) -> Step<Written> {
        let mut host = Host {
            store,
            transid,
            blocks: &mut self.blocks,
            fresh: BTreeMap::new(),
            replaced: Vec::new(),
            full: FullLeaves::default(),
        };
        let mut roots: Edits = Vec::new();
        for (id, edits) in edits {
            let log = self.subvols.entry(id).or_default();
            host.merge(&mut log.tree, &edits)?;
            if let Some(tree) = &log.tree {
                roots.push((root_key(id), Some(root_item(tree.root()).as_bytes().into())));
            }
        }
        host.merge(&mut self.root, &roots)?;
        if store.space().has_new_chunk() {
            return Err(Stop::Commit("a chunk was made for the log"));
        }
        let blocks = host.fresh.len() as u64;
        host.write_out()?;
        let replaced = host.replaced;
        if let Some(root) = &self.root {
            publish(store, root.root())?;
        }
        for addr in replaced {
            self.blocks.remove(&addr);
            store.nodes().forget(LogicalAddr(addr));
            store.space().free_log_block(LogicalAddr(addr));
        }
        Ok(Written {
            blocks,
            bytes: blocks * store.nodes().nodesize_bytes() as u64,
        })
    }

    /// No superblock leads to any of it any more.
    pub(crate) fn clear(&mut self, store: &Store) {
        for addr in std::mem::take(&mut self.blocks) {
            store.nodes().forget(LogicalAddr(addr));
            store.space().free_log_block(LogicalAddr(addr));
        }
        *self = Self::default();
    }
}

/// Writes the superblock that leads to the log.
fn publish(store: &Store, root: RootPtr) -> Result<()> {
    let volume = store.volume();
    let mut sb = volume.superblock();
    sb.log_root = root.addr.into();
    sb.log_root_level = root.level;
    // Barrier: the log's blocks and the file data that its items name must be on disk before the
    // superblock leads to them.
    volume.flush()?;
    volume.write_superblock_copies(&sb, SuperblockCopies::First)?;
    // Barrier: what fsync promises holds once the superblock is durable; the blocks it replaced are
    // free only then.
    volume.flush()
}

/// One sync at work.
struct Host<'e> {
    store: &'e Store,
    transid: Generation,
    blocks: &'e mut BTreeSet<u64>,
    /// Blocks of this sync, by address; `None` while a merge has not made them yet.
    fresh: BTreeMap<u64, Option<TreeBlock>>,
    /// Blocks of earlier syncs that are not in use any more.
    replaced: Vec<u64>,
    /// Leaves that the merge under way is done with. Those of a small log are kept, for the next
    /// sync.
    full: FullLeaves,
}

impl Host<'_> {
    fn take_block(&mut self) -> Result<LogicalAddr> {
        let addr = self.store.space().alloc_block(BlockKind::Metadata)?;
        self.blocks.insert(addr.get());
        self.fresh.insert(addr.get(), None);
        Ok(addr)
    }

    fn merge(&mut self, slot: &mut Option<Arc<Tree>>, edits: &Edits) -> Result<()> {
        let store = self.store.nodes().clone();
        let tree = match slot {
            Some(tree) => tree.clone(),
            None => slot.insert(self.empty_tree()?).clone(),
        };
        let mut stream = edits.iter().map(|(key, edit): &(Key, Edit)| (key, edit));
        let merged = Merger::new(&store, self, TreeId::TREE_LOG).merge(tree.root(), &mut stream)?;
        for block in self.full.take_rest() {
            store.insert_dirty(block.clone());
            self.fresh.insert(block.addr().get(), Some(block));
        }
        for (addr, block) in &merged.blocks {
            self.fresh.insert(*addr, Some(block.clone()));
        }
        tree.publish(merged, false);
        Ok(())
    }

    fn empty_tree(&mut self) -> Result<Arc<Tree>> {
        let addr = self.take_block()?;
        let volume = &self.store.volume();
        let header = HeaderFields {
            fsid: volume.metadata_fsid(),
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            addr,
            generation: self.transid,
            owner: TreeId::TREE_LOG,
            level: 0,
            flags: header_flags::CURRENT,
        };
        let nodes = self.store.nodes();
        let block = TreeBlock::from_builder(LeafBuilder::new(nodes.nodesize_bytes()).finish(&header));
        nodes.insert_dirty(block.clone());
        self.fresh.insert(addr.get(), Some(block));
        let root = RootPtr {
            addr,
            generation: self.transid,
            level: 0,
        };
        Ok(Arc::new(Tree::new(TreeId::TREE_LOG, nodes.clone(), root)))
    }

    /// Seals and writes the blocks of this sync.
    fn write_out(&mut self) -> Result<()> {
        let blocks: Vec<TreeBlock> = std::mem::take(&mut self.fresh).into_values().flatten().collect();
        let store = self.store;
        store
            .nodes()
            .write_out(store.workers(), blocks, self.transid, Some(TreeId::TREE_LOG))
    }
}

impl MergeHost for Host<'_> {
    fn transid(&self) -> Generation {
        self.transid
    }

    fn alloc(&mut self, _: TreeId, _: u8) -> Result<LogicalAddr> {
        self.take_block()
    }

    fn replace(&mut self, _: TreeId, block: &TreeBlock) -> Result<Option<LogicalAddr>> {
        let addr = block.addr().get();
        if self.fresh.contains_key(&addr) {
            return Ok(Some(block.addr()));
        }
        self.replaced.push(addr);
        Ok(None)
    }

    fn release(&mut self, _: TreeId, addr: LogicalAddr, _: u8) -> Result<()> {
        // Blocks of earlier syncs are never released but replaced: this one was never written.
        self.fresh.remove(&addr.get());
        self.blocks.remove(&addr.get());
        self.store.space().free_block(addr);
        Ok(())
    }

    fn take_full(&mut self, addr: LogicalAddr, bytes: Vec<u8>) -> Result<Option<Vec<u8>>> {
        // An empty root may have been there before.
        self.fresh.insert(addr.get(), None);
        let store = self.store;
        let what = (self.transid, TreeId::TREE_LOG);
        self.full.take((store.nodes(), store.workers()), what, (addr, bytes))?;
        Ok(None)
    }

    fn spare_buffer(&mut self) -> Option<Vec<u8>> {
        self.full.spare_buffer()
    }
}
