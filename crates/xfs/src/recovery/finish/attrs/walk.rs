//! Ways from the root of the hash tree to its leaves.

use xfs_format::DaBlock;
use xfs_format::da::DA_LEVELS_MAX;

use super::blocks::{AttrFork, Block, Leaf, NONE, Node, ROOT};
use super::list::{Attr, last_hash};
use crate::error::Result;

/// A node, and the child that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub node: DaBlock,
    pub slot: usize,
}

/// The nodes from the root to a block, which is a leaf, or a node itself.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub nodes: Vec<Step>,
    pub block: DaBlock,
}

impl AttrFork<'_, '_> {
    /// The way to the first leaf that may have a hash.
    fn way_to(&self, hash: u32) -> Result<(Way, Leaf)> {
        let mut way = Way {
            nodes: Vec::new(),
            block: ROOT,
        };
        loop {
            let node = match self.read(way.block)? {
                Block::Leaf(leaf) => return Ok((way, leaf)),
                Block::Node(node) => node,
            };
            // A verified node has a child.
            let last = node.entries.len().saturating_sub(1);
            let slot = node.entries.partition_point(|entry| entry.hashval.get() < hash);
            self.step_down(&mut way, &node, slot.min(last))?;
        }
    }

    /// Goes on from a node, to which a way leads, to a child.
    fn step_down(&self, way: &mut Way, node: &Node, slot: usize) -> Result<()> {
        way.nodes.push(Step { node: way.block, slot });
        if way.nodes.len() as u64 > DA_LEVELS_MAX {
            let depth = way.nodes.len();
            return Err(self.ags.disk.broken("nodes of attributes", depth, DA_LEVELS_MAX));
        }
        way.block = DaBlock(node.entries.get(slot).map_or(0, |child| child.before.get()));
        Ok(())
    }

    /// The way to the block before or behind another one, on the same level. `None`: there is none.
    pub(super) fn beside(&self, way: &Way, is_behind: bool) -> Result<Option<Way>> {
        for (depth, step) in way.nodes.iter().enumerate().rev() {
            let node = self.read_node(step.node)?;
            let slot = if is_behind {
                Some(step.slot + 1).filter(|slot| *slot < node.entries.len())
            } else {
                step.slot.checked_sub(1)
            };
            let Some(slot) = slot else { continue };
            let mut other = Way {
                nodes: way.nodes.get(..depth).unwrap_or_default().to_vec(),
                block: step.node,
            };
            self.step_down(&mut other, &node, slot)?;
            while other.nodes.len() < way.nodes.len() {
                let node = self.read_node(other.block)?;
                let last = node.entries.len().saturating_sub(1);
                self.step_down(&mut other, &node, if is_behind { 0 } else { last })?;
            }
            return Ok(Some(other));
        }
        Ok(None)
    }

    /// The same; the block that is named as sibling has to be the one that the nodes lead to, and
    /// another one.
    pub(super) fn beside_as_named(&self, way: &Way, is_behind: bool, named: DaBlock) -> Result<Option<Way>> {
        let other = self.beside(way, is_behind)?;
        let found = other.as_ref().map_or(NONE, |other| other.block);
        if found != named || found == way.block {
            let text = format_args!("{named} beside {}", way.block).to_string();
            return Err(self.ags.disk.broken("siblings of attributes", text, found));
        }
        Ok(other)
    }

    /// The leaf that has an attribute, or the one that it goes to. Attributes of one hash may fill
    /// several leaves: while it is not found and may be in the next leaf, that one is looked at,
    /// and like Linux we put a new one into the last leaf that was.
    pub(super) fn find(&self, attr: &Attr) -> Result<(Way, Leaf)> {
        let geometry = &self.geometry();
        let hash = attr.hash(geometry);
        let (mut way, mut leaf) = self.way_to(hash)?;
        let first = way.block;
        loop {
            let may_be_behind = last_hash(&leaf.attrs, geometry) == Some(hash);
            if !may_be_behind || leaf.attrs.iter().any(|other| other.is(attr)) {
                return Ok((way, leaf));
            }
            let Some(next) = self.beside(&way, true)? else {
                return Ok((way, leaf));
            };
            let behind = self.read_leaf(next.block)?;
            // As each leaf names the one before it, a circle would lead back to the first one.
            if leaf.siblings.1 != next.block || behind.siblings.0 != way.block || next.block == first {
                let found = format_args!("{} and {} beside each other", way.block, next.block).to_string();
                return Err(self
                    .ags
                    .disk
                    .broken("leaves of attributes", found, "leaves that say so"));
            }
            (way, leaf) = (next, behind);
        }
    }

    /// The greatest hash below some nodes changed: they say so.
    pub(super) fn raise_keys(&mut self, nodes: &[Step], hash: u32) -> Result<()> {
        for step in nodes.iter().rev() {
            let mut node = self.read_node(step.node)?;
            if let Some(entry) = node.entries.get_mut(step.slot) {
                entry.hashval.set(hash);
            }
            self.write_node(step.node, &node)?;
            if step.slot + 1 < node.entries.len() {
                break;
            }
        }
        Ok(())
    }
}
