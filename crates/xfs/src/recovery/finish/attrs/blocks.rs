//! The blocks of an attribute fork: leaves, nodes, and their places.

use xfs_format::attr::{AttrLeafBlock, AttrNew, AttrValueView};
use xfs_format::da::{AttrNodeBlock, DaNodeEntry, DaNodeHeader, DaNodeHeaderV5};
use xfs_format::inode::ForkKind;
use xfs_format::{DaBlock, Daddr, Expect, Extent, FileBlock, FsBlock, Geometry};

use super::list::{Attr, Value};
use crate::error::Result;
use crate::recovery::finish::files::{Extents, File};
use crate::recovery::finish::groups::Ags;

const NODE_MAGICS: [u16; 2] = [0xfebe, 0x3ebe];
/// The first block of the fork is the root.
pub(super) const ROOT: DaBlock = DaBlock(0);
/// No block: the root is beside none.
pub(super) const NONE: DaBlock = DaBlock(0);

/// The blocks before and behind one of the same level.
pub(super) type Siblings = (DaBlock, DaBlock);

/// A leaf.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub attrs: Vec<Attr>,
    pub siblings: Siblings,
}

/// A node: children with the greatest hash in each.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub level: u8,
    pub entries: Vec<DaNodeEntry>,
    pub siblings: Siblings,
}

pub(super) enum Block {
    Leaf(Leaf),
    Node(Node),
}

/// Children that a node has at most.
pub(super) fn node_max(geometry: &Geometry) -> usize {
    let header = if geometry.is_v5() {
        size_of::<DaNodeHeaderV5>()
    } else {
        size_of::<DaNodeHeader>()
    };
    (geometry.block_bytes as usize - header) / size_of::<DaNodeEntry>()
}

/// An attribute fork that has blocks, while it is changed.
pub(super) struct AttrFork<'a, 'd> {
    pub ags: &'a mut Ags<'d>,
    pub file: &'a mut File,
    extents: Extents,
}

impl<'a, 'd> AttrFork<'a, 'd> {
    pub(super) fn open(ags: &'a mut Ags<'d>, file: &'a mut File) -> Result<Self> {
        let extents = file.extents(ags, ForkKind::Attr)?;
        Ok(Self { ags, file, extents })
    }

    /// Stores the extents in the inode.
    pub(super) fn store(self) -> Result<()> {
        self.file.set_extents(self.ags, ForkKind::Attr, self.extents)
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.ags.disk.geometry
    }

    /// True where the fork is its root alone.
    pub(super) fn is_one_block(&self) -> bool {
        self.extents.list.iter().map(|extent| extent.blocks).sum::<u32>() == 1
    }

    /// The place of a block of the fork. Errors: it has none.
    pub(super) fn place(&self, block: DaBlock) -> Result<Daddr> {
        let at = u64::from(block.get());
        let found = self.extents.list.ending_behind(at);
        let found = found.filter(|extent| extent.offset.get() <= at);
        let daddr = found.and_then(|extent| {
            let start = extent.start.get() + (at - extent.offset.get());
            self.ags.disk.geometry.daddr(FsBlock(start))
        });
        daddr.ok_or_else(|| {
            let expected = format_args!("a block of inode {}", self.file.ino).to_string();
            self.ags.disk.broken("block of attributes", at, expected)
        })
    }

    fn bytes(&self, block: DaBlock) -> Result<(Daddr, Vec<u8>)> {
        let daddr = self.place(block)?;
        Ok((daddr, self.ags.disk.read(daddr, self.ags.disk.geometry.block_bytes)?))
    }

    pub(super) fn expect(&self, daddr: Daddr) -> Expect<'_> {
        Expect::of_inode(&self.ags.disk.geometry, daddr, self.file.ino)
    }

    /// A block that is a leaf or a node.
    pub(super) fn read(&self, block: DaBlock) -> Result<Block> {
        let (_, bytes) = self.bytes(block)?;
        let magic = bytes.get(8..10).and_then(|magic| magic.first_chunk());
        if magic.is_some_and(|magic| NODE_MAGICS.contains(&u16::from_be_bytes(*magic))) {
            return Ok(Block::Node(self.read_node(block)?));
        }
        Ok(Block::Leaf(self.read_leaf(block)?))
    }

    pub(super) fn read_leaf(&self, block: DaBlock) -> Result<Leaf> {
        let (daddr, bytes) = self.bytes(block)?;
        let leaf = AttrLeafBlock::verify(bytes, &self.expect(daddr))?;
        let attrs = leaf.entries().map(|entry| Attr {
            flags: entry.flags,
            name: entry.name.to_vec(),
            value: match entry.value {
                AttrValueView::Local(value) => Value::Local(value.to_vec()),
                AttrValueView::Remote { block, len_bytes } => Value::Remote { block, len_bytes },
            },
        });
        Ok(Leaf {
            attrs: attrs.collect(),
            siblings: leaf.siblings(),
        })
    }

    pub(super) fn read_node(&self, block: DaBlock) -> Result<Node> {
        let (daddr, bytes) = self.bytes(block)?;
        let node = AttrNodeBlock::verify(bytes, &self.expect(daddr))?;
        Ok(Node {
            level: node.level(),
            entries: node.entries().to_vec(),
            siblings: node.siblings(),
        })
    }

    pub(super) fn write_leaf(&mut self, block: DaBlock, attrs: &[Attr], siblings: Siblings) -> Result<()> {
        let daddr = self.place(block)?;
        let views: Vec<AttrNew<'_>> = attrs.iter().map(Attr::view).collect();
        let expect = self.expect(daddr);
        let bytes = AttrLeafBlock::build(&views, siblings, &expect).ok_or_else(|| {
            let count = attrs.len();
            self.ags.disk.broken("leaf of attributes", count, "attributes that fit")
        })?;
        let block = AttrLeafBlock::seal(bytes, &expect, self.ags.disk.lsn)?;
        self.ags.disk.write(daddr, block.bytes())
    }

    pub(super) fn write_node(&mut self, block: DaBlock, node: &Node) -> Result<()> {
        let daddr = self.place(block)?;
        let expect = self.expect(daddr);
        let bytes = AttrNodeBlock::build(node.level, &node.entries, node.siblings, &expect).ok_or_else(|| {
            let count = node.entries.len();
            self.ags.disk.broken("node of attributes", count, "children that fit")
        })?;
        let block = AttrNodeBlock::seal(bytes, &expect, self.ags.disk.lsn)?;
        self.ags.disk.write(daddr, block.bytes())
    }

    /// Tells a block that it has another one before or behind it.
    pub(super) fn relink(&mut self, block: DaBlock, change: impl FnOnce(&mut Siblings)) -> Result<()> {
        if block == NONE {
            return Ok(());
        }
        match self.read(block)? {
            Block::Leaf(mut leaf) => {
                change(&mut leaf.siblings);
                self.write_leaf(block, &leaf.attrs, leaf.siblings)
            }
            Block::Node(mut node) => {
                change(&mut node.siblings);
                self.write_node(block, &node)
            }
        }
    }

    /// The first hole of the fork with so many blocks.
    fn hole(&self, blocks: u32) -> u64 {
        let mut hole = 0;
        for extent in self.extents.list.iter() {
            if extent.offset.get() >= hole + u64::from(blocks) {
                break;
            }
            hole = extent.end().get();
        }
        hole
    }

    /// Takes a block for a leaf or a node.
    pub(super) fn grow(&mut self) -> Result<DaBlock> {
        self.take(1)
    }

    /// Takes blocks of the volume for a hole of the fork: behind what lies before it in the fork,
    /// else before what lies behind it, else anywhere.
    fn take_on_disk(&mut self, at: u64, blocks: u32) -> Result<(FsBlock, u32)> {
        let before = at.checked_sub(1).and_then(|last| self.extents.list.ending_behind(last));
        let before = before.filter(|extent| extent.end().get() == at);
        let end = at + u64::from(blocks);
        let behind = self.extents.list.ending_behind(end);
        let behind = behind.filter(|extent| extent.offset.get() == end);
        let target = match (before, behind) {
            (Some(before), _) => Some(before.start.get() + u64::from(before.blocks)),
            (None, Some(behind)) => behind.start.get().checked_sub(blocks.into()),
            (None, None) => None,
        };
        if let Some(target) = target
            && let Some(taken) = self.ags.take_at(FsBlock(target), blocks)?
        {
            return Ok(taken);
        }
        let near = self.file.group(self.ags);
        self.ags.take_run(near, blocks)
    }

    /// Takes so many blocks that follow each other in the fork, in as few extents as there are.
    pub(super) fn take(&mut self, blocks: u32) -> Result<DaBlock> {
        let first = self.hole(blocks);
        let end = first + u64::from(blocks);
        let number = u32::try_from(first).ok().filter(|_| u32::try_from(end).is_ok());
        let number = number.ok_or_else(|| self.ags.disk.broken("blocks of attributes", first, "a block of a fork"))?;
        let mut at = first;
        while at < end {
            let (start, blocks) = self.take_on_disk(at, (end - at) as u32)?;
            let extent = Extent {
                offset: FileBlock(at),
                start,
                blocks,
                is_unwritten: false,
            };
            self.file.map_new(self.ags, ForkKind::Attr, &extent)?;
            if !self.extents.list.put(extent) {
                return Err(self.ags.disk.broken("blocks of attributes", at, "a hole of the fork"));
            }
            at = extent.end().get();
        }
        Ok(DaBlock(number))
    }

    /// Gives blocks of the fork back.
    pub(super) fn shrink(&mut self, first: DaBlock, blocks: u32) -> Result<()> {
        let at = u64::from(first.get());
        for gone in self.extents.list.take(at, at + u64::from(blocks)) {
            let (group, mapping) = self.file.mapping(self.ags, ForkKind::Attr, &gone)?;
            self.ags.unmap(group, mapping)?;
            self.ags.free_in(group, mapping.start, mapping.blocks)?;
            self.ags.settle(group)?;
            let left = self.file.core.nblocks.get().saturating_sub(gone.blocks.into());
            self.file.core.nblocks.set(left);
        }
        Ok(())
    }
}
