//! The tree by hash of directories and attributes: nodes over leaves.

use std::collections::HashSet;

use xfs_format::da::DaNodeEntry;
use xfs_format::{Corrupt, DaBlock, Expect};

use crate::finding::{FindingId, Site};
use crate::fork::Mapped;
use crate::scan::Scan;

/// A node as the walk needs it.
pub(crate) struct Node {
    pub(crate) level: u8,
    pub(crate) entries: Vec<DaNodeEntry>,
    pub(crate) siblings: (DaBlock, DaBlock),
}

/// What a leaf says about its place: its greatest hash and its siblings.
pub(crate) type Place = (Option<u32>, (DaBlock, DaBlock));

/// Takes a leaf, and says where it is. `None` where it is malformed.
pub(crate) type TakeLeaf<'a> = dyn FnMut(&mut Scan<'_>, Site, Vec<u8>, &Expect<'_>) -> Option<Place> + 'a;

/// Which tree.
pub(crate) struct HashTree<'a> {
    pub(crate) site: Site,
    pub(crate) map: &'a Mapped,
    pub(crate) root: DaBlock,
    /// Blocks of the fork in a block of the tree.
    pub(crate) blocks: u32,
    /// For malformed blocks, and for what blocks say about each other.
    pub(crate) ids: (FindingId, FindingId),
    pub(crate) node: fn(Vec<u8>, &Expect<'_>) -> Result<Node, Corrupt>,
}

const NODE_MAGICS: [[u8; 2]; 2] = [[0xfe, 0xbe], [0x3e, 0xbe]];
/// Where the magic of blocks with siblings lies.
const MAGIC_AT: usize = 8;

fn is_node(bytes: &[u8]) -> bool {
    let magic = bytes.get(MAGIC_AT..MAGIC_AT.saturating_add(2));
    NODE_MAGICS.iter().any(|node| magic == Some(node))
}

impl Scan<'_> {
    /// Walks a tree level by level; `leaf` takes each leaf in the order of hashes. Each block is
    /// read once. Returns true where all of it was read.
    pub(crate) fn walk_hashes(&mut self, tree: &HashTree<'_>, leaf: &mut TakeLeaf<'_>) -> bool {
        let ino = tree.site.inode.unwrap_or_default();
        let (mut seen, mut whole) = (HashSet::new(), true);
        let mut children: Vec<(DaBlock, Option<u32>)> = vec![(tree.root, None)];
        let mut level: Option<u8> = None;
        loop {
            let mut below = Vec::new();
            let mut before: Option<(DaBlock, DaBlock)> = None;
            let mut is_known = true;
            for (at, hash) in &children {
                if !seen.insert(*at) {
                    self.sink
                        .broken(tree.ids.1, tree.site, format!("two pointers lead to block {at}"));
                    whole = false;
                    continue;
                }
                let vol = self.vol;
                let read = self.read_mapped(tree.site, tree.map, *at, tree.blocks, tree.ids.0);
                let place = read.and_then(|(bytes, first)| {
                    let site = tree.site.with_block(&vol.geometry, first);
                    let expect = vol.expect_inode(first, ino);
                    let must_be_node = level.is_some_and(|level| level > 0);
                    if !(must_be_node || (level.is_none() && is_node(&bytes))) {
                        level = level.or(Some(0));
                        return leaf(self, site, bytes, &expect);
                    }
                    match (tree.node)(bytes, &expect) {
                        Ok(node) => {
                            if level.is_some_and(|level| level != node.level) {
                                let message = format!(
                                    "a node has level {}, expected {}",
                                    node.level,
                                    level.unwrap_or_default()
                                );
                                self.sink.broken(tree.ids.1, site, message);
                                return None;
                            }
                            level = Some(node.level);
                            let last = node.entries.last().map(|entry| entry.hashval.get());
                            below.extend(
                                node.entries
                                    .iter()
                                    .map(|entry| (DaBlock(entry.before.get()), Some(entry.hashval.get()))),
                            );
                            Some((last, node.siblings))
                        }
                        Err(fault) => {
                            self.sink.corrupt(&fault, site, tree.ids.0);
                            None
                        }
                    }
                });
                let Some((last, (back, forw))) = place else {
                    (whole, before, is_known) = (false, None, false);
                    continue;
                };
                if let (Some(stated), Some(last)) = (hash, last)
                    && *stated != last
                {
                    let message = format!("the node says {stated:#x} for block {at}, expected {last:#x}");
                    self.sink.add(tree.ids.1, tree.site, message);
                }
                let expected = before.map_or(DaBlock(0), |(at, _)| at);
                if is_known && back != expected {
                    self.sink.add(
                        tree.ids.1,
                        tree.site,
                        format!("back of block {at} is {back}, expected {expected}"),
                    );
                }
                if let Some((block, right)) = before
                    && right != *at
                {
                    self.sink.add(
                        tree.ids.1,
                        tree.site,
                        format!("forw of block {block} is {right}, expected {at}"),
                    );
                }
                before = Some((*at, forw));
                is_known = true;
            }
            if let Some((block, right)) = before
                && right != DaBlock(0)
            {
                self.sink.add(
                    tree.ids.1,
                    tree.site,
                    format!("forw of block {block} is {right}, expected none"),
                );
            }
            let Some(next) = level
                .and_then(|level| level.checked_sub(1))
                .filter(|_| !below.is_empty())
            else {
                return whole;
            };
            (level, children) = (Some(next), below);
        }
    }
}
