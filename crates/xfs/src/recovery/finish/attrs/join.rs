//! Attributes that are removed: leaves and nodes are joined, and the tree loses levels, where Linux
//! does it.

use xfs_format::DaBlock;

use super::blocks::{AttrFork, Block, Leaf, NONE, Node, ROOT, Siblings, node_max};
use super::list::{Attr, last_hash, leaf_bytes};
use super::walk::{Step, Way};
use crate::error::Result;

/// Two blocks that become one.
struct Joined {
    /// The block of the smaller number stays.
    kept: Way,
    dropped: Way,
    /// The blocks before and behind both.
    outer: Siblings,
}

impl Joined {
    fn new((way, siblings): (Way, Siblings), (other, others): (Way, Siblings), is_behind: bool) -> Self {
        let outer = if is_behind {
            (siblings.0, others.1)
        } else {
            (others.0, siblings.1)
        };
        let (kept, dropped) = if way.block < other.block {
            (way, other)
        } else {
            (other, way)
        };
        Self { kept, dropped, outer }
    }
}

/// The contents of a block and of the one beside it, in order.
fn whole<T: Clone>(own: &[T], other: &[T], is_behind: bool) -> Vec<T> {
    if is_behind {
        [own, other].concat()
    } else {
        [other, own].concat()
    }
}

/// In which order the blocks beside one are looked at: that of the smaller number first.
fn order((back, forw): Siblings) -> impl Iterator<Item = (bool, DaBlock)> {
    let order = if forw < back {
        [(true, forw), (false, back)]
    } else {
        [(false, back), (true, forw)]
    };
    order.into_iter().filter(|(_, block)| *block != NONE)
}

impl AttrFork<'_, '_> {
    /// Takes an attribute out of its leaf. A leaf that is at most half full is joined with
    /// one beside it if both leave a quarter free, and freed where it is empty.
    pub(super) fn remove(&mut self, way: Way, mut leaf: Leaf, attr: &Attr) -> Result<()> {
        let geometry = self.geometry();
        let before = last_hash(&leaf.attrs, &geometry);
        let at = leaf.attrs.iter().position(|other| other.is(attr));
        let Some(gone) = at.map(|at| leaf.attrs.remove(at)) else {
            return Ok(());
        };
        self.free_value(&gone.value)?;
        let is_root = way.nodes.is_empty();
        if !leaf.attrs.is_empty() || is_root {
            self.write_leaf(way.block, &leaf.attrs, leaf.siblings)?;
        }
        let last = last_hash(&leaf.attrs, &geometry).filter(|last| before != Some(*last));
        if let Some(last) = last {
            self.raise_keys(&way.nodes, last)?;
        }
        let is_small = leaf_bytes(&leaf.attrs, &geometry) <= geometry.block_bytes as usize / 2;
        if is_root || !is_small {
            return Ok(());
        }
        if leaf.attrs.is_empty() {
            return self.drop_empty(way, leaf.siblings);
        }
        let Some((pair, whole)) = self.leaf_to_join(way, leaf)? else {
            return Ok(());
        };
        self.write_leaf(pair.kept.block, &whole, pair.outer)?;
        let nodes = self.close_pair(pair, last_hash(&whole, &geometry))?;
        self.drop_child(nodes)
    }

    fn leaf_to_join(&self, way: Way, leaf: Leaf) -> Result<Option<(Joined, Vec<Attr>)>> {
        let geometry = self.geometry();
        let most = geometry.block_bytes as usize / 4 * 3;
        for (is_behind, block) in order(leaf.siblings) {
            let Some(other) = self.beside_as_named(&way, is_behind, block)? else {
                continue;
            };
            let beside = self.read_leaf(block)?;
            let whole = whole(&leaf.attrs, &beside.attrs, is_behind);
            if leaf_bytes(&whole, &geometry) <= most {
                let pair = Joined::new((way, leaf.siblings), (other, beside.siblings), is_behind);
                return Ok(Some((pair, whole)));
            }
        }
        Ok(None)
    }

    /// The kept one of two blocks is written: the other one goes. Returns the nodes above it.
    fn close_pair(&mut self, pair: Joined, last: Option<u32>) -> Result<Vec<Step>> {
        let Joined { kept, dropped, outer } = pair;
        self.relink(outer.0, |siblings| siblings.1 = kept.block)?;
        self.relink(outer.1, |siblings| siblings.0 = kept.block)?;
        if let Some(last) = last {
            self.raise_keys(&kept.nodes, last)?;
        }
        self.shrink(dropped.block, 1)?;
        Ok(dropped.nodes)
    }

    /// Frees an empty leaf.
    fn drop_empty(&mut self, way: Way, siblings: Siblings) -> Result<()> {
        self.free_between(way.block, siblings)?;
        self.drop_child(way.nodes)
    }

    fn free_between(&mut self, block: DaBlock, (back, forw): Siblings) -> Result<()> {
        self.relink(back, |siblings| siblings.1 = forw)?;
        self.relink(forw, |siblings| siblings.0 = back)?;
        self.shrink(block, 1)
    }

    /// The child that the last of some nodes names is gone. A node that is at most half full is
    /// joined with one beside it if both leave a quarter free, and freed where it is empty.
    fn drop_child(&mut self, mut nodes: Vec<Step>) -> Result<()> {
        let most = node_max(&self.geometry());
        while let Some(Step { node: block, slot }) = nodes.pop() {
            let mut node = self.read_node(block)?;
            let was_last = slot + 1 >= node.entries.len();
            node.entries.remove(slot.min(node.entries.len().saturating_sub(1)));
            if nodes.is_empty() {
                return self.close_root(&node);
            }
            let Some(last) = node.entries.last().map(|entry| entry.hashval.get()) else {
                self.free_between(block, node.siblings)?;
                continue;
            };
            self.write_node(block, &node)?;
            if was_last {
                self.raise_keys(&nodes, last)?;
            }
            if node.entries.len() > most / 2 {
                return Ok(());
            }
            let way = Way { nodes, block };
            let Some((pair, whole)) = self.node_to_join(way, node)? else {
                return Ok(());
            };
            self.write_node(pair.kept.block, &whole)?;
            let last = whole.entries.last().map(|entry| entry.hashval.get());
            nodes = self.close_pair(pair, last)?;
        }
        Ok(())
    }

    fn node_to_join(&self, way: Way, node: Node) -> Result<Option<(Joined, Node)>> {
        let most = node_max(&self.geometry());
        for (is_behind, block) in order(node.siblings) {
            let Some(other) = self.beside_as_named(&way, is_behind, block)? else {
                continue;
            };
            let beside = self.read_node(block)?;
            if node.entries.len() + beside.entries.len() > most - most / 4 {
                continue;
            }
            let pair = Joined::new((way, node.siblings), (other, beside.siblings), is_behind);
            let whole = Node {
                level: node.level,
                entries: whole(&node.entries, &beside.entries, is_behind),
                siblings: pair.outer,
            };
            return Ok(Some((pair, whole)));
        }
        Ok(None)
    }

    /// The root lost a child. One that is alone takes its place.
    fn close_root(&mut self, root: &Node) -> Result<()> {
        match root.entries.as_slice() {
            [] => self.write_leaf(ROOT, &[], (NONE, NONE)),
            [last] => {
                let last = DaBlock(last.before.get());
                match self.read(last)? {
                    Block::Leaf(leaf) => self.write_leaf(ROOT, &leaf.attrs, (NONE, NONE))?,
                    Block::Node(mut node) => {
                        node.siblings = (NONE, NONE);
                        self.write_node(ROOT, &node)?;
                    }
                }
                self.shrink(last, 1)
            }
            _ => self.write_node(ROOT, root),
        }
    }
}
