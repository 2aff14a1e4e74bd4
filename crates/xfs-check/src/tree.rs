//! Walks of B-trees, level by level.
//!
//! Each block is read once: a block that a walk meets again is a finding, and is not followed, so
//! every walk ends.

use std::collections::HashSet;

use xfs_format::btree::{BlockPtr, BtreeBlock, TreeKind, leaf_records_max, node_children_max};
use xfs_format::{AgBlock, AgNumber, FsBlock, Ino, Owner};

use crate::finding::{FindingId, Sink, Site};
use crate::volume::Volume;

/// A block that a walk will read.
pub(crate) struct Child<K: TreeKind> {
    pub(crate) ptr: K::Ptr,
    /// The key in the parent; `None` for the root.
    pub(crate) key: Option<K::NodeKey>,
}

/// A tree and its root.
pub(crate) struct Walk {
    /// The owner of the blocks.
    pub(crate) owner: Owner,
    /// Where the tree belongs, for findings.
    pub(crate) site: Site,
    /// Level of the first blocks that are read.
    pub(crate) level: u8,
    /// Blocks must be half full.
    pub(crate) needs_half: bool,
}

impl Walk {
    pub(crate) fn of_group(group: AgNumber, levels: u32) -> Self {
        Self {
            owner: Owner::Ag(group),
            site: Site::group(group),
            level: u8::try_from(levels.saturating_sub(1)).unwrap_or(u8::MAX),
            needs_half: true,
        }
    }
    pub(crate) fn of_inode(ino: Ino, level: u8) -> Self {
        Self {
            owner: Owner::Inode(ino),
            site: Site::inode(ino),
            level,
            needs_half: false,
        }
    }
}

/// Gets the records of a leaf.
pub(crate) type Visit<'a, K> = dyn FnMut(&mut Sink, Site, &[<K as TreeKind>::Record]) + 'a;

/// Where a pointer leads.
fn place<K: TreeKind>(vol: &Volume, owner: Owner, ptr: K::Ptr) -> Option<(AgNumber, AgBlock)> {
    match owner {
        Owner::Ag(group) if !K::TREE.is_long() => Some((group, AgBlock(u32::try_from(ptr.number()).ok()?))),
        _ => vol.geometry.split(FsBlock(ptr.number())),
    }
}

/// Walks a tree. `visit` gets the records of each leaf in order, `claim` every block. Returns true
/// where all of it was read.
pub(crate) fn walk<K: TreeKind>(
    vol: &Volume,
    sink: &mut Sink,
    walk: &Walk,
    roots: Vec<Child<K>>,
    claim: &mut dyn FnMut(AgNumber, AgBlock),
    visit: &mut Visit<'_, K>,
) -> bool {
    let mut seen = HashSet::new();
    let (mut level, mut children, mut whole) = (walk.level, roots, true);
    loop {
        let mut below = Vec::new();
        let mut blocks = Level::<K>::new(walk.site);
        for child in &children {
            let Some((group, block)) = place::<K>(vol, walk.owner, child.ptr) else {
                sink.broken(
                    FindingId::BtreeInvalid,
                    walk.site,
                    format!("{}: a pointer to {}", K::TREE.name(), child.ptr.number()),
                );
                whole = false;
                continue;
            };
            let site = Site {
                group: Some(group),
                block: Some(block),
                ..walk.site
            };
            if !seen.insert((group, block)) {
                sink.broken(
                    FindingId::BlockTwice,
                    site,
                    format!("{}: two pointers lead to the block", K::TREE.name()),
                );
                whole = false;
                continue;
            }
            claim(group, block);
            let Some(read) = read::<K>(vol, sink, walk, site, level) else {
                whole = false;
                blocks.broken();
                continue;
            };
            sink.report.statistics.tree_blocks = sink.report.statistics.tree_blocks.saturating_add(1);
            let is_root = child.key.is_none();
            blocks.check(sink, site, &read, child);
            if walk.needs_half && !is_root {
                check_half::<K>(vol, sink, site, &read);
            }
            if read.is_leaf() {
                visit(sink, site, read.records());
            }
            let keys = read.keys().iter().zip(read.pointers());
            below.extend(keys.map(|(key, ptr)| Child {
                ptr: *ptr,
                key: Some(*key),
            }));
        }
        blocks.end(sink);
        let Some(next) = level.checked_sub(1) else { break };
        (level, children) = (next, below);
    }
    whole
}

fn read<K: TreeKind>(vol: &Volume, sink: &mut Sink, walk: &Walk, site: Site, level: u8) -> Option<BtreeBlock<K>> {
    let (group, block) = (site.group?, site.block?);
    let bytes = vol.read_block(sink, group, block)?;
    let expect = vol.expect(vol.geometry.ag_daddr(group, block), walk.owner);
    match BtreeBlock::<K>::verify(bytes, &expect, Some(level)) {
        Ok(block) => Some(block),
        Err(fault) => {
            sink.corrupt(&fault, site, FindingId::BtreeInvalid);
            None
        }
    }
}

fn check_half<K: TreeKind>(vol: &Volume, sink: &mut Sink, site: Site, block: &BtreeBlock<K>) {
    let most = if block.is_leaf() {
        leaf_records_max::<K>(&vol.geometry)
    } else {
        node_children_max::<K>(&vol.geometry)
    };
    let least = most / 2;
    if block.len() < least {
        let message = format!("{}: {} records, expected at least {least}", K::TREE.name(), block.len());
        sink.add(FindingId::BtreeUnderfull, site, message);
    }
}

/// What the blocks of a level say about each other.
struct Level<K: TreeKind> {
    site: Site,
    /// The block before: its number, right neighbour and greatest key. `None` at the start, and
    /// behind a block that could not be read.
    before: Option<(u64, K::Ptr, Option<K::Order>)>,
    is_known: bool,
}

impl<K: TreeKind> Level<K> {
    fn new(site: Site) -> Self {
        Self {
            site,
            before: None,
            is_known: true,
        }
    }

    fn broken(&mut self) {
        self.before = None;
        self.is_known = false;
    }

    fn check(&mut self, sink: &mut Sink, site: Site, block: &BtreeBlock<K>, child: &Child<K>) {
        let tree = K::TREE.name();
        let (left, right) = (block.siblings().left, block.siblings().right);
        let found = if block.is_leaf() {
            K::node_key(block.records())
        } else {
            K::join_keys(block.keys())
        };
        let low = found.map(|key| K::order(&K::low(&key)));
        match (&self.before, self.is_known) {
            (Some((number, to_right, greatest)), _) => {
                if *to_right != child.ptr {
                    let message = format!(
                        "{tree}: rightsib of block {number} is {}, expected {}",
                        to_right.number(),
                        child.ptr.number()
                    );
                    sink.add(FindingId::BtreeSiblings, site, message);
                }
                if left.number() != *number {
                    let message = format!("{tree}: leftsib is {}, expected {number}", left.number());
                    sink.add(FindingId::BtreeSiblings, site, message);
                }
                if let (Some(greatest), Some(low)) = (greatest, low)
                    && *greatest >= low
                {
                    let message = format!(
                        "{tree}: the first key {low:?} is not above {greatest:?}, the last one of the block before"
                    );
                    sink.add(FindingId::BtreeKeys, site, message);
                }
            }
            (None, true) if left != K::Ptr::NULL => {
                let message = format!("{tree}: leftsib is {}, expected none", left.number());
                sink.add(FindingId::BtreeSiblings, site, message);
            }
            _ => {}
        }
        if let (Some(stated), Some(found)) = (child.key, found)
            && !same_key::<K>(&stated, &found)
        {
            let message = format!("{tree}: the key in the parent is {stated:?}, expected {found:?}");
            sink.add(FindingId::BtreeKeys, site, message);
        }
        let last = block.records().last().map(|record| K::order(&K::key(record)));
        let last = last.or_else(|| block.keys().last().map(|key| K::order(&K::low(key))));
        self.before = Some((child.ptr.number(), right, last));
    }

    fn end(&self, sink: &mut Sink) {
        if let Some((number, right, _)) = &self.before
            && *right != K::Ptr::NULL
        {
            let message = format!(
                "{}: rightsib of block {number} is {}, expected none",
                K::TREE.name(),
                right.number()
            );
            sink.add(FindingId::BtreeSiblings, self.site, message);
        }
    }
}

/// Compares keys by their order: old kernels left a flag in those of the rmapbt that does not
/// count.
fn same_key<K: TreeKind>(stated: &K::NodeKey, found: &K::NodeKey) -> bool {
    let high = |key| K::high(key).map(|key| K::order(&key));
    K::order(&K::low(stated)) == K::order(&K::low(found)) && high(stated) == high(found)
}
