//! Trees from items in key order: counted, then written with full leaves.

use std::sync::Arc;

use btrfs_format::block::ITEM_HEADER_BYTES;
use btrfs_format::block::{item_bytes_max, leaf_capacity_bytes, node_capacity_ptrs};
use btrfs_format::features::header_flags;
use btrfs_format::{BlockExpect, HeaderFields, Key, LeafBuilder, LogicalAddr, NodeBuilder, TreeBlock, TreeId};

use cowshed_device::BlockDevice;
use cowshed_runtime::Workers;

use crate::plan::{ChunkPlanner, GENERATION, PlannedTree, TreeRoot};
use crate::write::write_blocks;
use crate::{MkfsError, Settings};

/// Blocks that are gathered before they are verified and written.
const WAITING_BYTES_MAX: usize = 8 << 20;
/// Blocks of one job.
const JOB_BYTES: usize = 512 << 10;

/// Takes the items of one tree, in key order.
pub(super) trait Sink {
    /// Takes an item, whose data is the parts one after the other.
    fn put(&mut self, key: Key, parts: &[&[u8]]) -> Result<(), MkfsError>;
}

/// Counts leaves.
#[derive(Debug)]
pub(super) struct Counter {
    nodesize_bytes: usize,
    free_bytes: usize,
    leaves: usize,
}

impl Counter {
    pub fn new(nodesize_bytes: usize) -> Self {
        Self {
            nodesize_bytes,
            free_bytes: leaf_capacity_bytes(nodesize_bytes),
            leaves: 1,
        }
    }
    /// The blocks of the tree, level by level from the leaves up.
    pub fn levels(&self) -> Vec<usize> {
        levels(self.leaves, self.nodesize_bytes)
    }
    /// Counts an item of so many bytes of data.
    pub fn put_len(&mut self, len: usize) {
        let bytes = len + ITEM_HEADER_BYTES;
        assert!(
            len <= item_bytes_max(self.nodesize_bytes),
            "an item is too large for a leaf"
        );
        if bytes > self.free_bytes {
            self.leaves += 1;
            self.free_bytes = leaf_capacity_bytes(self.nodesize_bytes);
        }
        self.free_bytes -= bytes;
    }
}

impl Sink for Counter {
    fn put(&mut self, _: Key, parts: &[&[u8]]) -> Result<(), MkfsError> {
        self.put_len(parts.iter().map(|part| part.len()).sum());
        Ok(())
    }
}

/// Blocks of each level above so many leaves, the leaves first, the root last.
fn levels(leaves: usize, nodesize_bytes: usize) -> Vec<usize> {
    let mut levels = vec![leaves];
    while let Some(&below) = levels.last()
        && below > 1
    {
        levels.push(below.div_ceil(node_capacity_ptrs(nodesize_bytes)));
    }
    levels
}

/// A tree whose blocks have addresses.
#[derive(Clone, Debug)]
pub(super) struct PlacedBlocks {
    pub id: TreeId,
    /// Level by level from the leaves up.
    pub addrs: Vec<Vec<LogicalAddr>>,
}

impl PlacedBlocks {
    pub fn root(&self) -> TreeRoot {
        let top = self.addrs.last().and_then(|level| level.first());
        TreeRoot {
            id: self.id,
            addr: *top.expect("a placed tree has a root"),
            level: self.root_level(),
            block_count: self.addrs.iter().map(|level| level.len() as u64).sum(),
        }
    }

    fn root_level(&self) -> u8 {
        u8::try_from(self.addrs.len() - 1).expect("a tree has at most eight levels")
    }
}

/// Address, level and first key of a block.
pub(super) type BlockAt = (LogicalAddr, u8, Key);

/// Blocks on their way to the devices: verified, checksummed and written by all threads.
pub(super) struct Blocks<'b> {
    devices: &'b [Arc<dyn BlockDevice>],
    chunks: &'b ChunkPlanner,
    workers: &'b Workers,
    waiting: Vec<(Vec<u8>, BlockExpect)>,
    waiting_bytes: usize,
}

impl<'b> Blocks<'b> {
    pub fn new(devices: &'b [Arc<dyn BlockDevice>], chunks: &'b ChunkPlanner, workers: &'b Workers) -> Self {
        Self {
            devices,
            chunks,
            workers,
            waiting: Vec::new(),
            waiting_bytes: 0,
        }
    }

    fn put(&mut self, bytes: Vec<u8>, expect: BlockExpect) -> Result<(), MkfsError> {
        self.waiting_bytes += bytes.len();
        self.waiting.push((bytes, expect));
        match self.waiting_bytes < WAITING_BYTES_MAX {
            true => Ok(()),
            false => self.write(),
        }
    }

    /// Writes what waits.
    pub fn write(&mut self) -> Result<(), MkfsError> {
        let mut jobs: Vec<Vec<(Vec<u8>, BlockExpect)>> = Vec::new();
        let mut job_bytes = JOB_BYTES;
        for block in self.waiting.drain(..) {
            if job_bytes >= JOB_BYTES {
                jobs.push(Vec::new());
                job_bytes = 0;
            }
            job_bytes += block.0.len();
            jobs.last_mut().expect("a job was begun").push(block);
        }
        self.waiting_bytes = 0;
        let written = self.workers.run(jobs, |job| {
            let sealed = job.into_iter().map(|(bytes, expect)| TreeBlock::seal(bytes, &expect));
            let sealed = sealed.collect::<Result<Vec<TreeBlock>, _>>()?;
            write_blocks(self.devices, self.chunks, &sealed)
        });
        written.into_iter().collect()
    }
}

/// Writes a tree to its blocks.
pub(super) struct Writer<'w, 'd> {
    settings: &'w Settings,
    placed: &'w PlacedBlocks,
    blocks: &'w mut Blocks<'d>,
    leaf: LeafBuilder,
    first_key: Key,
    /// Of the level that is being written.
    done: Vec<(Key, LogicalAddr)>,
}

impl<'w, 'd> Writer<'w, 'd> {
    pub fn new(settings: &'w Settings, placed: &'w PlacedBlocks, blocks: &'w mut Blocks<'d>) -> Self {
        Self {
            settings,
            placed,
            blocks,
            leaf: LeafBuilder::new(settings.nodesize()),
            first_key: Key::MIN,
            done: Vec::new(),
        }
    }

    /// Writes what is left, and the nodes above the leaves.
    pub fn finish(mut self) -> Result<(), MkfsError> {
        self.end_leaf()?;
        for level in 1..self.placed.addrs.len() {
            let below = std::mem::take(&mut self.done);
            for children in below.chunks(node_capacity_ptrs(self.settings.nodesize())) {
                let mut node = NodeBuilder::new(self.settings.nodesize());
                for (key, addr) in children {
                    node.push(*key, *addr, GENERATION);
                }
                let header = self.header(level);
                self.seal(node.finish(&header), &header, children[0].0)?;
            }
        }
        assert_eq!(self.done.len(), 1, "tree {} has one root", self.placed.id);
        Ok(())
    }

    fn end_leaf(&mut self) -> Result<(), MkfsError> {
        let full = std::mem::replace(&mut self.leaf, LeafBuilder::new(self.settings.nodesize()));
        let header = self.header(0);
        self.seal(full.finish(&header), &header, self.first_key)
    }

    /// The header of the next block of a level.
    fn header(&self, level: usize) -> HeaderFields {
        HeaderFields {
            fsid: self.settings.uuid,
            chunk_tree_uuid: self.settings.chunk_tree_uuid,
            addr: self.placed.addrs[level][self.done.len()],
            generation: GENERATION,
            owner: self.placed.id,
            level: u8::try_from(level).expect("a tree has at most eight levels"),
            flags: header_flags::CURRENT,
        }
    }

    fn seal(&mut self, bytes: Vec<u8>, header: &HeaderFields, first_key: Key) -> Result<(), MkfsError> {
        let expect = BlockExpect {
            addr: header.addr,
            fsid: header.fsid,
            csum_type: self.settings.csum_type,
            sectorsize_bytes: self.settings.sectorsize_bytes,
            level: Some(header.level),
            generation: Some(header.generation),
            first_key: None,
            tree: Some(header.owner),
        };
        self.done.push((first_key, header.addr));
        self.blocks.put(bytes, expect)
    }
}

impl Sink for Writer<'_, '_> {
    fn put(&mut self, key: Key, parts: &[&[u8]]) -> Result<(), MkfsError> {
        let len = parts.iter().map(|part| part.len()).sum();
        if !self.leaf.fits(len) {
            self.end_leaf()?;
        }
        if self.leaf.is_empty() {
            self.first_key = key;
        }
        self.leaf.push(key, parts);
        Ok(())
    }
}

/// Gives the first key of each block to `put`, as a [`Writer`] finds them.
#[derive(Debug)]
pub(super) struct FirstKeys<'p> {
    counter: Counter,
    placed: &'p PlacedBlocks,
    keys: Vec<Key>,
}

impl<'p> FirstKeys<'p> {
    pub fn new(nodesize_bytes: usize, placed: &'p PlacedBlocks) -> Self {
        Self {
            counter: Counter::new(nodesize_bytes),
            placed,
            keys: Vec::new(),
        }
    }

    /// All blocks, leaves first.
    pub fn blocks(mut self) -> Vec<BlockAt> {
        if self.keys.is_empty() {
            self.keys.push(Key::MIN);
        }
        let mut blocks = Vec::new();
        let mut keys = self.keys;
        for (addrs, level) in self.placed.addrs.iter().zip(0..) {
            blocks.extend(addrs.iter().zip(&keys).map(|(addr, key)| (*addr, level, *key)));
            let per_node = node_capacity_ptrs(self.counter.nodesize_bytes);
            keys = keys.chunks(per_node).map(|children| children[0]).collect();
        }
        blocks
    }
}

impl Sink for FirstKeys<'_> {
    fn put(&mut self, key: Key, parts: &[&[u8]]) -> Result<(), MkfsError> {
        let before = self.counter.leaves;
        self.counter.put(key, parts)?;
        if self.counter.leaves != before || self.keys.is_empty() {
            self.keys.push(key);
        }
        Ok(())
    }
}

/// Gives the items of a small tree.
pub(super) fn emit_planned(tree: &PlannedTree, sink: &mut dyn Sink) -> Result<(), MkfsError> {
    tree.items().try_for_each(|(key, data)| sink.put(*key, &[data]))
}
