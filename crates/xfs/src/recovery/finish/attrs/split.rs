//! Attributes that are added: leaves and nodes are split, and the tree gets levels, where Linux
//! does it, so that a fork has as many blocks.

use xfs_format::da::DaNodeEntry;
use xfs_format::{DaBlock, Geometry, U32};

use super::blocks::{AttrFork, Leaf, NONE, Node, ROOT, node_max};
use super::list::{Attr, fits_leaf, last_hash, middle, sort};
use super::walk::{Step, Way};
use crate::error::Result;

fn child(block: DaBlock, hash: Option<u32>) -> DaNodeEntry {
    DaNodeEntry {
        hashval: U32::new(hash.unwrap_or_default()),
        before: U32::new(block.get()),
    }
}

/// A leaf's child entry.
fn child_of(block: DaBlock, attrs: &[Attr], geometry: &Geometry) -> DaNodeEntry {
    child(block, last_hash(attrs, geometry))
}

fn child_of_node(block: DaBlock, entries: &[DaNodeEntry]) -> DaNodeEntry {
    child(block, entries.last().map(|entry| entry.hashval.get()))
}

impl AttrFork<'_, '_> {
    /// Adds an attribute to the leaf that it goes to.
    pub(super) fn add(&mut self, attr: Attr) -> Result<()> {
        let geometry = self.geometry();
        let (way, mut leaf) = self.find(&attr)?;
        let before = last_hash(&leaf.attrs, &geometry);
        leaf.attrs.push(attr);
        sort(&mut leaf.attrs, &geometry);
        if !fits_leaf(&leaf.attrs, &geometry) {
            return self.split(way, leaf);
        }
        self.write_leaf(way.block, &leaf.attrs, leaf.siblings)?;
        match last_hash(&leaf.attrs, &geometry) {
            Some(last) if before != Some(last) => self.raise_keys(&way.nodes, last),
            _ => Ok(()),
        }
    }

    /// Splits a leaf whose attributes do not fit it any more. A leaf that is the root gets a node
    /// above it, which takes its block.
    fn split(&mut self, mut way: Way, leaf: Leaf) -> Result<()> {
        let geometry = self.geometry();
        if way.nodes.is_empty() {
            way = Way {
                nodes: vec![Step { node: ROOT, slot: 0 }],
                block: self.grow()?,
            };
            let root = Node {
                level: 1,
                entries: vec![child_of(way.block, &leaf.attrs, &geometry)],
                siblings: (NONE, NONE),
            };
            self.write_node(ROOT, &root)?;
        }
        let parts = self.cut(way.block, leaf.attrs)?;
        let (back, forw) = leaf.siblings;
        let blocks: Vec<DaBlock> = parts.iter().map(|(block, _)| *block).collect();
        for (at, (block, attrs)) in parts.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|at| blocks.get(at)).unwrap_or(&back);
            let behind = blocks.get(at + 1).unwrap_or(&forw);
            self.write_leaf(*block, attrs, (*before, *behind))?;
        }
        let last = *blocks.last().unwrap_or(&way.block);
        self.relink(forw, |siblings| siblings.0 = last)?;
        let children = parts.iter().map(|(block, attrs)| child_of(*block, attrs, &geometry));
        let children = children.collect();
        self.replace_child(way.nodes, children)
    }

    /// Cuts a list until each part fits a leaf: two parts, or three where a large attribute goes
    /// between others. The first one stays in the block, new ones get blocks.
    fn cut(&mut self, block: DaBlock, mut attrs: Vec<Attr>) -> Result<Vec<(DaBlock, Vec<Attr>)>> {
        if fits_leaf(&attrs, &self.geometry()) {
            return Ok(vec![(block, attrs)]);
        }
        let right = attrs.split_off(middle(&attrs).min(attrs.len()));
        if right.is_empty() || attrs.is_empty() {
            return Err(self
                .ags
                .disk
                .broken("attribute", "one that fits no leaf", "one that fits"));
        }
        let new = self.grow()?;
        let mut parts = self.cut(block, attrs)?;
        parts.extend(self.cut(new, right)?);
        Ok(parts)
    }

    /// A child of the last of some nodes was split: its parts take its place. A full node is split
    /// in the middle first; a root that is split becomes two nodes below a new one.
    fn replace_child(&mut self, mut nodes: Vec<Step>, mut children: Vec<DaNodeEntry>) -> Result<()> {
        let most = node_max(&self.geometry());
        while let Some(Step { node: block, mut slot }) = nodes.pop() {
            let mut node = self.read_node(block)?;
            let is_last = slot + 1 >= node.entries.len();
            let put = |entries: &mut Vec<DaNodeEntry>, slot: usize, children: Vec<DaNodeEntry>| {
                let slot = slot.min(entries.len());
                entries.splice(slot..(slot + 1).min(entries.len()), children);
            };
            if node.entries.len() + children.len() - 1 <= most {
                put(&mut node.entries, slot, children);
                self.write_node(block, &node)?;
                return match node.entries.last().filter(|_| is_last) {
                    Some(last) => self.raise_keys(&nodes, last.hashval.get()),
                    None => Ok(()),
                };
            }
            let new = self.grow()?;
            let kept = node.entries.len() - node.entries.len() / 2;
            let mut right = Node {
                level: node.level,
                entries: node.entries.split_off(kept),
                siblings: (block, node.siblings.1),
            };
            if slot < kept {
                put(&mut node.entries, slot, children);
            } else {
                slot -= kept;
                put(&mut right.entries, slot, children);
            }
            if nodes.is_empty() {
                return self.split_root(node, (new, right));
            }
            self.relink(node.siblings.1, |siblings| siblings.0 = new)?;
            node.siblings.1 = new;
            self.write_node(block, &node)?;
            self.write_node(new, &right)?;
            children = vec![child_of_node(block, &node.entries), child_of_node(new, &right.entries)];
        }
        Ok(())
    }

    /// The root keeps its block: its first half moves.
    fn split_root(&mut self, mut left: Node, (new, mut right): (DaBlock, Node)) -> Result<()> {
        let moved = self.grow()?;
        left.siblings = (NONE, new);
        right.siblings = (moved, NONE);
        self.write_node(moved, &left)?;
        self.write_node(new, &right)?;
        let root = Node {
            level: left.level.saturating_add(1),
            entries: vec![child_of_node(moved, &left.entries), child_of_node(new, &right.entries)],
            siblings: (NONE, NONE),
        };
        self.write_node(ROOT, &root)
    }
}
