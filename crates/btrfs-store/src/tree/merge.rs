//! The bulk merge: sorted edits laid into a tree in one pass.
//!
//! Top-down, each block is opened once: its fate is settled with the [`MergeHost`] (rewritten in
//! place, replaced, shared with a snapshot), its items and the edits that fall into its range are
//! merged, and the result is packed into as few blocks as it takes. Nothing of it is visible before
//! [`super::Tree::publish`].
//!
//! Packing: items that go to the end of what was there fill leaves to the brim; otherwise the last
//! two leaves share evenly, so that the next edits find room. Blocks that become small are joined
//! with a neighbour.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::iter::Peekable;
use std::ops::Range;

use btrfs_format::block::{
    ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, LEVEL_MAX, leaf_capacity_bytes, node_capacity_ptrs,
};
use btrfs_format::builder::{HeaderFields, LeafBuilder, NodeBuilder};
use btrfs_format::features::header_flags;
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, TreeBlock, TreeId, Uuid};

use super::store::{AddrHash, NodeStore};
use super::{RootPtr, child_ptr};
use crate::error::{Error, Result};
use crate::overlay::Edit;
use crate::volume::BlockPtr;

/// Sorted edits that a commit makes itself.
pub type Edits = Vec<(Key, Edit)>;

/// A block that takes less than one part in this many of its room is joined with a neighbour where
/// both fit.
const SMALL_FRACTION: usize = 4;

/// Bytes that two blocks have at most which are joined: a full one would be split again by the next
/// edit.
fn joined_bytes_max(nodesize_bytes: usize) -> usize {
    let capacity = leaf_capacity_bytes(nodesize_bytes);
    capacity - capacity / 8
}

/// Allocates and frees the blocks of a merge: the commit, or the log.
pub trait MergeHost {
    /// The generation that new blocks carry.
    fn transid(&self) -> Generation;
    /// A new block for the tree, referenced by it from now on.
    fn alloc(&mut self, tree: TreeId, level: u8) -> Result<LogicalAddr>;
    /// The block's place in the tree goes to others. `Some`: it belongs to this transaction and its
    /// address may be used again for one of them. `None`: its reference was dropped (or moved,
    /// where it is shared).
    fn replace(&mut self, tree: TreeId, block: &TreeBlock) -> Result<Option<LogicalAddr>>;
    /// A block of this transaction is not needed after all.
    fn release(&mut self, tree: TreeId, addr: LogicalAddr, level: u8) -> Result<()>;
    /// A leaf that this merge looks at no more, without its checksum. `None`: the host took it,
    /// will see to it that it can be read once the outcome is published, and
    /// [`MergeOutcome::blocks`] does not have it.
    fn take_full(&mut self, _addr: LogicalAddr, bytes: Vec<u8>) -> Result<Option<Vec<u8>>> {
        Ok(Some(bytes))
    }
    /// Memory of a leaf that the host took and does not need any more.
    fn spare_buffer(&mut self) -> Option<Vec<u8>> {
        None
    }
}

/// What a merge made: to be published.
#[derive(Debug)]
pub struct MergeOutcome {
    pub(crate) root: RootPtr,
    /// The new blocks that are still in memory, by address.
    pub blocks: HashMap<u64, TreeBlock, AddrHash>,
    /// Blocks of this transaction that are gone.
    pub(crate) released: Vec<LogicalAddr>,
}

type EditStream<'s, 'e> = Peekable<&'s mut dyn Iterator<Item = (&'e Key, &'e Edit)>>;

/// A block in the list of its parent's children.
#[derive(Clone, Copy, Debug)]
struct Child {
    key: Key,
    addr: LogicalAddr,
    generation: Generation,
    level: u8,
    /// Bytes in use, where this merge made the block.
    used_bytes: Option<usize>,
}

/// Items on their way into a leaf.
#[derive(Clone, Debug)]
enum Piece<'a> {
    /// Neighbours in the old leaf, which are copied in one go.
    Run { slots: Range<usize>, bytes: usize },
    /// A new item, or one that new ones were joined to.
    Item { key: Key, data: Cow<'a, [u8]> },
}

impl Piece<'_> {
    fn run(old: &TreeBlock, slots: Range<usize>) -> Self {
        let bytes = LeafBuilder::run_bytes(old, slots.clone());
        Self::Run { slots, bytes }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Run { bytes, .. } => *bytes,
            Self::Item { data, .. } => ITEM_HEADER_BYTES + data.len(),
        }
    }

    fn first_key(&self, old: &TreeBlock) -> Key {
        match self {
            Self::Run { slots, .. } => old.key(slots.start),
            Self::Item { key, .. } => *key,
        }
    }

    /// Key and data, where it is one item.
    fn as_item<'d>(&'d self, old: &'d TreeBlock) -> Option<(Key, &'d [u8])> {
        match self {
            Self::Run { slots, .. } => (slots.len() == 1).then(|| old.item(slots.start)),
            Self::Item { key, data } => Some((*key, data)),
        }
    }
}

/// Items of the checksum tree grow: new checksums are added to the item before them where they
/// continue it, as on the kernel's side. An item that joins no other costs a header of 25 bytes,
/// for perhaps one checksum of 4.
#[derive(Clone, Copy, Debug)]
struct Joins {
    csum_bytes: usize,
    sector_bytes: u64,
    item_bytes_max: usize,
}

impl Joins {
    fn of(tree: TreeId, store: &NodeStore) -> Option<Self> {
        let csum_bytes = store.volume().csum_type().size_bytes();
        (tree == TreeId::CSUM).then(|| Self {
            csum_bytes,
            sector_bytes: store.volume().sectorsize_bytes().into(),
            item_bytes_max: csum_item_bytes_max(store),
        })
    }

    /// Joins `piece` to the one before, if one of them is new and they belong together. A run of
    /// several old items is never joined: [`LeafPacker::push_old`] cuts off those that may be.
    fn join(&self, old: &TreeBlock, before: &mut Piece<'_>, piece: &Piece<'_>) -> bool {
        let is_new = [&*before, piece]
            .iter()
            .any(|piece| matches!(piece, Piece::Item { .. }));
        let (Some((key, data)), Some((next, added))) = (before.as_item(old), piece.as_item(old)) else {
            return false;
        };
        let are_sums = key.ty == KeyType::EXTENT_CSUM && next.ty == KeyType::EXTENT_CSUM;
        let sectors = (data.len() / self.csum_bytes) as u64;
        let end = sectors
            .checked_mul(self.sector_bytes)
            .and_then(|bytes| key.offset.checked_add(bytes));
        let is_whole = data.len().is_multiple_of(self.csum_bytes);
        let fits = data.len() + added.len() <= self.item_bytes_max;
        if !is_new || !are_sums || !is_whole || !fits || end != Some(next.offset) {
            return false;
        }
        match before {
            Piece::Item { data, .. } => data.to_mut().extend_from_slice(added),
            Piece::Run { .. } => {
                let data = [data, added].concat().into();
                *before = Piece::Item { key, data };
            }
        }
        true
    }
}

/// The largest item of checksums that is made: a quarter of a leaf, so that items pack well
/// whatever else a leaf holds.
pub fn csum_item_bytes_max(store: &NodeStore) -> usize {
    let csum_bytes = store.volume().csum_type().size_bytes();
    store.nodesize_bytes() / 4 / csum_bytes * csum_bytes
}

/// One merge into one tree.
pub struct Merger<'a> {
    store: &'a NodeStore,
    host: &'a mut dyn MergeHost,
    tree: TreeId,
    fsid: Uuid,
    chunk_tree_uuid: Uuid,
    nodesize: usize,
    joins: Option<Joins>,
    blocks: HashMap<u64, TreeBlock, AddrHash>,
    released: Vec<LogicalAddr>,
}

impl std::fmt::Debug for Merger<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Merger(tree {})", self.tree)
    }
}

impl<'a> Merger<'a> {
    /// A merge into `tree`, whose blocks come from `store` and are allocated and freed by `host`.
    pub fn new(store: &'a NodeStore, host: &'a mut dyn MergeHost, tree: TreeId) -> Self {
        let volume = store.volume();
        let (fsid, chunk_tree_uuid) = (volume.metadata_fsid(), volume.chunk_tree_uuid());
        let nodesize = store.nodesize_bytes();
        let joins = Joins::of(tree, store);
        Self {
            joins,
            store,
            host,
            tree,
            fsid,
            chunk_tree_uuid,
            nodesize,
            blocks: HashMap::default(),
            released: Vec::new(),
        }
    }

    /// Merges `edits` (in key order, each key once) into the tree under `root`.
    pub fn merge<'e>(
        mut self,
        root: RootPtr,
        edits: &mut dyn Iterator<Item = (&'e Key, &'e Edit)>,
    ) -> Result<MergeOutcome> {
        let mut stream: EditStream<'_, 'e> = edits.peekable();
        let mut children = match root.is_unborn() {
            true => {
                let made = self.empty_root()?;
                let block = self.blocks.remove(&made.addr.get()).expect("the root was made");
                self.merge_leaf(&block, Some(made.addr), &mut stream, None)?
            }
            false => self.merge_block(&root.block_ptr(), &mut stream, None)?,
        };
        assert!(stream.next().is_none(), "edits come in key order");
        let mut level = root.level;
        while children.len() > 1 {
            level += 1;
            if level > LEVEL_MAX {
                return Err(Error::CorruptTree {
                    tree: self.tree,
                    what: "would grow beyond 8 levels".into(),
                });
            }
            children = self.pack_node(&children, level, None)?;
        }
        let top = match children.pop() {
            Some(child) => self.collapse(child)?,
            None => self.empty_root()?,
        };
        Ok(MergeOutcome {
            root: top,
            blocks: self.blocks,
            released: self.released,
        })
    }

    /// Makes a tree of its own of `root`, whatever transaction that is of: a copy of the block,
    /// with the same children.
    pub fn copy_root(mut self, root: RootPtr) -> Result<MergeOutcome> {
        let block = self.store.load(&root.block_ptr(), self.tree)?;
        let top = self.copy(Child {
            key: if block.is_empty() { Key::MIN } else { block.key(0) },
            addr: root.addr,
            generation: root.generation,
            level: root.level,
            used_bytes: None,
        })?;
        Ok(self.done(top))
    }

    fn done(self, top: Child) -> MergeOutcome {
        MergeOutcome {
            root: RootPtr {
                addr: top.addr,
                generation: top.generation,
                level: top.level,
            },
            blocks: self.blocks,
            released: self.released,
        }
    }

    /// Replaces a root that has only one child by that child, as often as it goes.
    fn collapse(&mut self, mut top: Child) -> Result<RootPtr> {
        loop {
            let block = self.load(&top)?;
            if block.is_leaf() || block.len() > 1 {
                let top = self.as_root(top)?;
                return Ok(RootPtr {
                    addr: top.addr,
                    generation: top.generation,
                    level: top.level,
                });
            }
            let child = child_ptr(&block, 0);
            if let Some(addr) = self.take(&top)?.1 {
                self.release(addr, top.level)?;
            }
            top = Child {
                key: block.key(0),
                addr: child.addr,
                generation: child.generation,
                level: child.level,
                used_bytes: None,
            };
        }
    }

    /// A root carries the number of the transaction that made it one, which its root item or the
    /// superblock says, too: a child that did not change is copied when it becomes the root.
    fn as_root(&mut self, top: Child) -> Result<Child> {
        if top.generation == self.host.transid() {
            return Ok(top);
        }
        self.copy(top)
    }

    fn copy(&mut self, top: Child) -> Result<Child> {
        let (block, reuse) = self.take(&top)?;
        let mut copies = if block.is_leaf() {
            let mut nothing = std::iter::empty();
            let none: &mut dyn Iterator<Item = (&Key, &Edit)> = &mut nothing;
            self.merge_leaf(&block, reuse, &mut none.peekable(), None)?
        } else {
            let children = (0..block.len()).map(|slot| {
                let child = child_ptr(&block, slot);
                Child {
                    key: block.key(slot),
                    addr: child.addr,
                    generation: child.generation,
                    level: child.level,
                    used_bytes: None,
                }
            });
            self.pack_node(&children.collect::<Vec<_>>(), block.level(), reuse)?
        };
        let copy = copies.pop().filter(|_| copies.is_empty());
        Ok(copy.expect("what was one block fits one block"))
    }

    fn empty_root(&mut self) -> Result<RootPtr> {
        let addr = self.host.alloc(self.tree, 0)?;
        let header = self.header(addr, 0);
        self.put(TreeBlock::from_builder(LeafBuilder::new(self.nodesize).finish(&header)));
        Ok(RootPtr {
            addr,
            generation: self.host.transid(),
            level: 0,
        })
    }

    fn header(&self, addr: LogicalAddr, level: u8) -> HeaderFields {
        HeaderFields {
            fsid: self.fsid,
            chunk_tree_uuid: self.chunk_tree_uuid,
            addr,
            generation: self.host.transid(),
            owner: self.tree,
            level,
            flags: header_flags::CURRENT,
        }
    }

    fn put(&mut self, block: TreeBlock) {
        self.blocks.insert(block.addr().get(), block);
    }

    fn release(&mut self, addr: LogicalAddr, level: u8) -> Result<()> {
        self.released.push(addr);
        self.host.release(self.tree, addr, level)
    }

    fn corrupt(&self, what: String) -> Error {
        Error::CorruptTree { tree: self.tree, what }
    }

    /// A block that this merge made. A stranger's pointer may lead to an address that was free
    /// until now.
    fn made(&self, child: &Child) -> Result<Option<&TreeBlock>> {
        match self.blocks.get(&child.addr.get()) {
            Some(block) if block.generation() == child.generation && block.level() == child.level => Ok(Some(block)),
            Some(_) => Err(self.corrupt(format!("pointer to block {}, which is free", child.addr))),
            None => Ok(None),
        }
    }

    fn load(&self, child: &Child) -> Result<TreeBlock> {
        if let Some(block) = self.made(child)? {
            return Ok(block.clone());
        }
        let ptr = BlockPtr {
            addr: child.addr,
            generation: child.generation,
            level: child.level,
            first_key: Some(child.key),
        };
        self.store.load(&ptr, self.tree)
    }

    /// Takes a child out of the tree: its contents, and its address where that may be used again.
    fn take(&mut self, child: &Child) -> Result<(TreeBlock, Option<LogicalAddr>)> {
        if self.made(child)?.is_some()
            && let Some(block) = self.blocks.remove(&child.addr.get())
        {
            return Ok((block, Some(child.addr)));
        }
        let block = self.load(child)?;
        let reuse = self.host.replace(self.tree, &block)?;
        Ok((block, reuse))
    }

    fn merge_block<'e>(
        &mut self,
        ptr: &BlockPtr,
        edits: &mut EditStream<'_, 'e>,
        upper: Option<Key>,
    ) -> Result<Vec<Child>> {
        let block = self.store.load(ptr, self.tree)?;
        if let Some(upper) = upper
            && !block.is_empty()
            && block.key(block.len() - 1) >= upper
        {
            return Err(self.corrupt(format!("block {}: last key is not below {upper}", ptr.addr)));
        }
        // Top-down: a shared block's children get their references before they are replaced
        // themselves.
        let reuse = self.host.replace(self.tree, &block)?;
        if block.is_leaf() {
            return self.merge_leaf(&block, reuse, edits, upper);
        }
        let mut children = Vec::with_capacity(block.len() + 1);
        for slot in 0..block.len() {
            let child_upper = if slot + 1 < block.len() {
                Some(block.key(slot + 1))
            } else {
                upper
            };
            let child = child_ptr(&block, slot);
            if edits
                .peek()
                .is_some_and(|(key, _)| child_upper.is_none_or(|u| **key < u))
            {
                children.extend(self.merge_block(&child, edits, child_upper)?);
            } else {
                children.push(Child {
                    key: block.key(slot),
                    addr: child.addr,
                    generation: child.generation,
                    level: child.level,
                    used_bytes: None,
                });
            }
        }
        self.join_small(&mut children)?;
        self.pack_node(&children, block.level(), reuse)
    }

    fn merge_leaf<'e>(
        &mut self,
        block: &TreeBlock,
        reuse: Option<LogicalAddr>,
        edits: &mut EditStream<'_, 'e>,
        upper: Option<Key>,
    ) -> Result<Vec<Child>> {
        let first_edit = edits.peek().map(|(key, _)| **key);
        let is_append = block.is_empty() || first_edit.is_some_and(|key| block.key(block.len() - 1) < key);
        let mut packer = LeafPacker {
            old: block,
            queue: VecDeque::new(),
            queued_bytes: 0,
            reuse,
            made: Vec::new(),
            last: None,
        };
        let heads = block.item_headers();
        let mut slot = 0;
        loop {
            let edit = edits.next_if(|(key, _)| upper.is_none_or(|u| **key < u));
            let end = match edit {
                Some((key, _)) => run_end(heads, slot, key),
                None => heads.len(),
            };
            packer.push_old(self, slot..end)?;
            slot = end;
            let Some((key, edit)) = edit else { break };
            if heads.get(slot).is_some_and(|head| Key::from(head.key) == *key) {
                slot += 1;
            }
            if let Some(bytes) = edit {
                let data = Cow::Borrowed(&bytes[..]);
                packer.push(self, Piece::Item { key: *key, data })?;
            }
        }
        packer.finish(self, is_append)
    }

    /// Writes children into as many nodes of `level` as they need, evenly.
    fn pack_node(&mut self, children: &[Child], level: u8, mut reuse: Option<LogicalAddr>) -> Result<Vec<Child>> {
        let mut made = Vec::new();
        if !children.is_empty() {
            let nodes = children.len().div_ceil(node_capacity_ptrs(self.nodesize));
            for run in children.chunks(children.len().div_ceil(nodes)) {
                let addr = match reuse.take() {
                    Some(addr) => addr,
                    None => self.host.alloc(self.tree, level)?,
                };
                let mut builder = NodeBuilder::new(self.nodesize);
                for child in run {
                    builder.push(child.key, child.addr, child.generation);
                }
                self.put(TreeBlock::from_builder(builder.finish(&self.header(addr, level))));
                made.push(Child {
                    key: run[0].key,
                    addr,
                    generation: self.host.transid(),
                    level,
                    used_bytes: Some(run.len() * KEY_PTR_BYTES),
                });
            }
        }
        if let Some(addr) = reuse {
            self.release(addr, level)?;
        }
        Ok(made)
    }

    /// Joins children that this merge left small with a neighbour, where both fit into one block.
    fn join_small(&mut self, children: &mut Vec<Child>) -> Result<()> {
        let capacity = leaf_capacity_bytes(self.nodesize);
        let is_small = |child: &Child| child.used_bytes.is_some_and(|used| used < capacity / SMALL_FRACTION);
        let mut i = 0;
        while i + 1 < children.len() {
            let (left, right) = (children[i], children[i + 1]);
            if !is_small(&left) && !is_small(&right) {
                i += 1;
                continue;
            }
            let used = self.used_bytes(&left)? + self.used_bytes(&right)?;
            if used > joined_bytes_max(self.nodesize) {
                i += 1;
                continue;
            }
            children[i] = self.join(&left, &right)?;
            children.remove(i + 1);
        }
        Ok(())
    }

    fn used_bytes(&self, child: &Child) -> Result<usize> {
        match child.used_bytes {
            Some(used) => Ok(used),
            None => Ok(self.load(child)?.used_bytes()),
        }
    }

    fn join(&mut self, left: &Child, right: &Child) -> Result<Child> {
        let (left_block, left_addr) = self.take(left)?;
        let (right_block, right_addr) = self.take(right)?;
        let last = left_block.len().checked_sub(1).map(|slot| left_block.key(slot));
        if last.is_some_and(|last| right_block.is_empty() || last >= right_block.key(0)) {
            return Err(self.corrupt(format!("block {}: last key is not below {}", left.addr, right.key)));
        }
        let level = left.level;
        let addr = match (left_addr, right_addr) {
            (Some(addr), other) | (None, other @ Some(addr)) => {
                if let Some(spare) = other.filter(|o| *o != addr) {
                    self.release(spare, level)?;
                }
                addr
            }
            (None, None) => self.host.alloc(self.tree, level)?,
        };
        let header = self.header(addr, level);
        let bytes = if level == 0 {
            let mut builder = LeafBuilder::new(self.nodesize);
            builder.push_run(&left_block, 0..left_block.len());
            builder.push_run(&right_block, 0..right_block.len());
            builder.finish(&header)
        } else {
            let mut builder = NodeBuilder::new(self.nodesize);
            for block in [&left_block, &right_block] {
                for slot in 0..block.len() {
                    let (child, generation) = block.child(slot);
                    builder.push(block.key(slot), child, generation);
                }
            }
            builder.finish(&header)
        };
        let block = TreeBlock::from_builder(bytes);
        let used_bytes = Some(block.used_bytes());
        self.put(block);
        Ok(Child {
            key: left.key,
            addr,
            generation: self.host.transid(),
            level,
            used_bytes,
        })
    }
}

/// The slot of the first key from `from` on that is not below `key`. Most edits lie close together:
/// steps double from the first slot on.
fn run_end(heads: &[ItemHeader], from: usize, key: &Key) -> usize {
    let is_below = |head: &ItemHeader| Key::from(head.key) < *key;
    let (mut low, mut step) = (from, 1);
    while heads.get(low + step - 1).is_some_and(is_below) {
        low += step;
        step *= 2;
    }
    let high = heads.len().min(low + step);
    low + heads[low..high].partition_point(is_below)
}

/// Packs the merged items of one old leaf into new leaves.
struct LeafPacker<'b> {
    old: &'b TreeBlock,
    queue: VecDeque<Piece<'b>>,
    queued_bytes: usize,
    /// The old leaf's address, for the first new one, if it may be used again.
    reuse: Option<LogicalAddr>,
    made: Vec<Child>,
    /// The last leaf made, and the bytes used in it. It may become the root, which is looked at
    /// again; those before it are not the only ones.
    last: Option<(LogicalAddr, usize, Vec<u8>)>,
}

impl<'b> LeafPacker<'b> {
    /// True where the piece was joined to the one before.
    fn push<'p>(&mut self, merger: &mut Merger<'_>, piece: Piece<'p>) -> Result<bool>
    where
        'p: 'b,
    {
        if let Some(joins) = merger.joins
            && let Some(last) = self.queue.back_mut()
            && joins.join(self.old, last, &piece)
        {
            self.queued_bytes += piece.bytes() - ITEM_HEADER_BYTES;
            return Ok(true);
        }
        self.queued_bytes += piece.bytes();
        self.queue.push_back(piece);
        // Two leaves' worth and more is certain to fill the first one, whatever follows.
        while self.queued_bytes > 2 * leaf_capacity_bytes(merger.nodesize) {
            self.emit(merger, usize::MAX)?;
        }
        Ok(false)
    }

    /// Adds items of the old leaf that follow each other. In a tree whose items are joined, the
    /// first ones are added one by one as long as each is joined to what came before, and the last
    /// one by itself, so that a new item can be joined to it.
    fn push_old(&mut self, merger: &mut Merger<'_>, mut slots: Range<usize>) -> Result<()> {
        if merger.joins.is_some() {
            while let Some(slot) = slots.next()
                && self.push(merger, Piece::run(self.old, slot..slot + 1))?
            {}
            if let Some(last) = slots.next_back() {
                self.push_run(merger, slots)?;
                slots = last..last + 1;
            }
        }
        self.push_run(merger, slots)
    }

    fn push_run(&mut self, merger: &mut Merger<'_>, slots: Range<usize>) -> Result<()> {
        if !slots.is_empty() {
            self.push(merger, Piece::run(self.old, slots))?;
        }
        Ok(())
    }

    /// Packs the rest, at most two leaves' worth, and gives an unused old address back.
    fn finish(mut self, merger: &mut Merger<'_>, is_append: bool) -> Result<Vec<Child>> {
        let capacity = leaf_capacity_bytes(merger.nodesize);
        if self.queued_bytes > capacity && !is_append {
            self.emit(merger, self.queued_bytes.div_ceil(2))?;
        }
        while !self.queue.is_empty() {
            self.emit(merger, usize::MAX)?;
        }
        if let Some((_, _, bytes)) = self.last.take() {
            merger.put(TreeBlock::from_builder(bytes));
        }
        if let Some(addr) = self.reuse.take() {
            merger.release(addr, 0)?;
        }
        Ok(self.made)
    }

    /// Another leaf comes behind this one: the host may have it, where it is too full to be joined
    /// with a neighbour.
    fn pass_on(merger: &mut Merger<'_>, (addr, used, bytes): (LogicalAddr, usize, Vec<u8>)) -> Result<()> {
        let is_full = used > joined_bytes_max(merger.nodesize);
        let left = match is_full {
            true => merger.host.take_full(addr, bytes)?,
            false => Some(bytes),
        };
        if let Some(bytes) = left {
            merger.put(TreeBlock::from_builder(bytes));
        }
        Ok(())
    }

    /// Makes one leaf from the head of the queue, of about `target_bytes`.
    fn emit(&mut self, merger: &mut Merger<'_>, target_bytes: usize) -> Result<()> {
        if let Some(before) = self.last.take() {
            Self::pass_on(merger, before)?;
        }
        let mut builder = match merger.host.spare_buffer() {
            Some(buffer) => LeafBuilder::in_buffer(buffer),
            None => LeafBuilder::new(merger.nodesize),
        };
        let first_key = self.queue.front().map_or(Key::MIN, |piece| piece.first_key(self.old));
        let capacity = leaf_capacity_bytes(merger.nodesize);
        let mut used = 0;
        let fits = |used, bytes| used + bytes <= capacity && (used == 0 || used + bytes <= target_bytes);
        while let Some(piece) = self.queue.pop_front() {
            let bytes = piece.bytes();
            let (taken, rest) = match piece {
                Piece::Item { key, data } if fits(used, bytes) => {
                    builder.push(key, &[&data]);
                    (bytes, None)
                }
                item @ Piece::Item { .. } => (0, Some(item)),
                Piece::Run { slots, bytes } if used + bytes <= capacity.min(target_bytes) => {
                    builder.push_run(self.old, slots);
                    (bytes, None)
                }
                Piece::Run { slots, .. } => {
                    // As much of it as fits.
                    let (mut end, mut taken) = (slots.start, 0);
                    for head in &self.old.item_headers()[slots.clone()] {
                        let bytes = ITEM_HEADER_BYTES + head.size.get() as usize;
                        if !fits(used + taken, bytes) {
                            break;
                        }
                        (end, taken) = (end + 1, taken + bytes);
                    }
                    builder.push_run(self.old, slots.start..end);
                    let rest = (end < slots.end).then(|| Piece::run(self.old, end..slots.end));
                    (taken, rest)
                }
            };
            used += taken;
            self.queued_bytes -= taken;
            if let Some(rest) = rest {
                self.queue.push_front(rest);
                break;
            }
        }
        assert!(
            used > 0,
            "an item always fits an empty leaf: sizes are checked where items are made"
        );
        let addr = match self.reuse.take() {
            Some(addr) => addr,
            None => merger.host.alloc(merger.tree, 0)?,
        };
        self.last = Some((addr, used, builder.finish(&merger.header(addr, 0))));
        self.made.push(Child {
            key: first_key,
            addr,
            generation: merger.host.transid(),
            level: 0,
            used_bytes: Some(used),
        });
        Ok(())
    }
}
