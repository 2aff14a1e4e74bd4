//! Recorded and found references of every extent.
//!
//! References are not kept. For each extent the recorded ones are added up in a hash of multisets
//! and the ones found are taken off; nothing is left if and only if they agree (but for chance,
//! 2^-128). An extent takes 112 bytes of memory at most, however often it is shared. Only for
//! extents where something is left are the references listed, in a second walk ([`Details`]).

use std::collections::{BTreeMap, BTreeSet};

use btrfs_format::TreeId;
use btrfs_format::features::extent_flags;
use btrfs_format::items::ExtentItem;
use btrfs_format::view::BackRef;

use crate::block::Block;
use crate::finding::FindingId as Id;
use crate::util::SetHash;

/// How many references the second walk lists in all.
const DETAIL_REFS_MAX: usize = 1 << 20;
/// How many addresses are remembered that are used but have no extent item.
const STRAYS_MAX: usize = 1 << 16;

/// One use of an extent, by a node, a root item or a file extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) back: BackRef,
    pub(crate) len: u64,
    pub(crate) tree_block: bool,
}

/// An extent as its item states it, and the sums of its references.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extent {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) generation: u64,
    /// As the item counts them.
    pub(crate) refs: u64,
    /// Sum of the back references.
    pub(crate) recorded: u64,
    pub(crate) found: u64,
    pub(crate) left: u128,
    pub(crate) flags: u64,
    /// The trees that the recorded references name: one bit each, by hash.
    roots: u64,
    level: u8,
    /// A use of another length or kind was reported already.
    said: bool,
}

impl Extent {
    /// Without references yet.
    pub(crate) fn new(addr: u64, len: u64, level: u8, head: &ExtentItem) -> Self {
        Self {
            addr,
            len,
            level,
            generation: head.generation.get(),
            refs: head.refs.get(),
            flags: head.flags.get(),
            ..Self::default()
        }
    }
    pub(crate) fn end(&self) -> u64 {
        self.addr.saturating_add(self.len)
    }
    pub(crate) fn is_data(&self) -> bool {
        self.flags & extent_flags::DATA != 0
    }
}

/// The listed references of the extents in `watch`: recorded and found counts.
#[derive(Default)]
pub(crate) struct Details {
    pub(crate) watch: BTreeSet<u64>,
    pub(crate) refs: BTreeMap<(u64, BackRef), (u64, u64)>,
}

#[derive(Default)]
pub(crate) struct Extents {
    /// Sorted by address.
    pub(crate) list: Vec<Extent>,
    /// The extent tree has been read: uses can be matched at once.
    ready: bool,
    early: Vec<(u64, Use)>,
    early_blocks: Vec<(u64, u8, TreeId)>,
    pub(crate) strays: BTreeMap<u64, (u64, Use)>,
    pub(crate) faults: Vec<(Id, u64, String)>,
    pub(crate) details: Option<Details>,
}

/// The reference without its count.
fn bare(back: &BackRef) -> (BackRef, u64) {
    match *back {
        BackRef::ExtentData {
            root,
            objectid,
            offset,
            count,
        } => {
            let bare = BackRef::ExtentData {
                root,
                objectid,
                offset,
                count: 0,
            };
            (bare, count.into())
        }
        BackRef::SharedData { parent, count } => (BackRef::SharedData { parent, count: 0 }, count.into()),
        BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } => (*back, 1),
        BackRef::Owner { .. } => (*back, 0),
    }
}

fn hash(back: &BackRef) -> u128 {
    let base = SetHash::new();
    match *back {
        BackRef::TreeBlock { root } => base.word(1).word(root),
        BackRef::SharedBlock { parent } => base.word(2).word(parent),
        BackRef::ExtentData {
            root, objectid, offset, ..
        } => base.word(3).word(root).word(objectid).word(offset),
        BackRef::SharedData { parent, .. } => base.word(4).word(parent),
        BackRef::Owner { root } => base.word(5).word(root),
    }
    .sum()
}

/// One of 64 bits, by hash.
fn root_bit(root: u64) -> u64 {
    let bit = SetHash::new().word(root).sum() & 63;
    u32::try_from(bit)
        .ok()
        .and_then(|bit| 1u64.checked_shl(bit))
        .unwrap_or(0)
}

/// The reference for people.
pub(crate) fn show(back: &BackRef) -> String {
    match back {
        BackRef::TreeBlock { root } => format!("tree {root}"),
        BackRef::SharedBlock { parent } => format!("parent block {parent}"),
        BackRef::ExtentData {
            root, objectid, offset, ..
        } => format!("tree {root} inode {objectid} offset {offset}"),
        BackRef::SharedData { parent, .. } => format!("parent leaf {parent}"),
        BackRef::Owner { root } => format!("owner tree {root}"),
    }
}

impl Extents {
    fn find(&mut self, addr: u64) -> Option<&mut Extent> {
        let slot = self.list.binary_search_by_key(&addr, |e| e.addr).ok()?;
        self.list.get_mut(slot)
    }
    pub(crate) fn get(&self, addr: u64) -> Option<&Extent> {
        let slot = self.list.binary_search_by_key(&addr, |e| e.addr).ok()?;
        self.list.get(slot)
    }
    /// Number and length of the extent at an address.
    pub(crate) fn slot(&self, addr: u64) -> Option<(usize, u64)> {
        let slot = self.list.binary_search_by_key(&addr, |e| e.addr).ok()?;
        Some((slot, self.list.get(slot)?.len))
    }
    /// The extents that share bytes with the range.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = &Extent> {
        let from = self.list.partition_point(|e| e.end() <= start);
        self.list
            .get(from..)
            .unwrap_or_default()
            .iter()
            .take_while(move |e| e.addr < end)
    }

    /// The extent tree has been read: matches the uses that were met before.
    pub(crate) fn match_early(&mut self, nodesize: u64) {
        self.ready = true;
        for (addr, used) in std::mem::take(&mut self.early) {
            self.note_use(addr, &used);
        }
        for (addr, level, owner) in std::mem::take(&mut self.early_blocks) {
            self.compare_block(addr, level, owner, nodesize);
        }
    }

    pub(crate) fn is_full_backref(&self, addr: u64) -> bool {
        self.get(addr)
            .is_some_and(|e| e.flags & extent_flags::FULL_BACKREF != 0)
    }

    /// Compares a block that is in use with its extent item.
    pub(crate) fn note_block(&mut self, block: &Block, nodesize: u64) {
        if self.details.is_some() {
        } else if self.ready {
            self.compare_block(block.addr, block.level, block.owner, nodesize);
        } else {
            self.early_blocks.push((block.addr, block.level, block.owner));
        }
    }

    fn compare_block(&mut self, addr: u64, level: u8, owner: TreeId, nodesize: u64) {
        let Some(extent) = self.get(addr) else { return };
        let full = extent.flags & extent_flags::FULL_BACKREF != 0;
        let may_be_shared = owner.is_fs_tree() || owner == TreeId::TREE_RELOC;
        let fault = if extent.len != nodesize {
            let what = format!("a tree block of {nodesize} bytes in an extent of {}", extent.len);
            (Id::ExtentSize, what)
        } else if extent.level != level {
            (
                Id::ExtentLevel,
                format!("level {}, the block has {level}", extent.level),
            )
        } else if full && !may_be_shared {
            (
                Id::ExtentFlags,
                format!("full back references on a block of tree {owner}"),
            )
        } else if !full && extent.roots & root_bit(owner.get()) == 0 {
            // What such a block refers to is counted for its owner; then the owner must hold the
            // block.
            let what = format!("owned by tree {owner}, which does not hold it, but without full back references");
            (Id::ExtentOwnerLost, what)
        } else {
            return;
        };
        self.faults.push((fault.0, addr, fault.1));
    }

    /// Counts one use.
    pub(crate) fn note_use(&mut self, addr: u64, used: &Use) {
        if let Some(details) = &mut self.details {
            details.note(addr, &used.back, 0, 1);
            return;
        }
        if !self.ready {
            self.early.push((addr, *used));
            return;
        }
        let Some(extent) = self.find(addr) else {
            if self.strays.len() < STRAYS_MAX || self.strays.contains_key(&addr) {
                let stray = self.strays.entry(addr).or_insert((0, *used));
                stray.0 = stray.0.saturating_add(1);
            }
            return;
        };
        extent.found = extent.found.saturating_add(1);
        extent.left = extent.left.wrapping_sub(hash(&used.back));
        let fault = if extent.is_data() == used.tree_block {
            let kind = if used.tree_block { "a tree block" } else { "file data" };
            Some((Id::ExtentFlags, format!("flags {:#x}, used as {kind}", extent.flags)))
        } else if extent.len != used.len {
            Some((
                Id::ExtentSize,
                format!("{} bytes, used as {} bytes", extent.len, used.len),
            ))
        } else {
            None
        };
        if let Some((id, what)) = fault
            && !extent.said
        {
            extent.said = true;
            self.faults.push((id, addr, what));
        }
    }

    pub(crate) fn note_recorded(&mut self, addr: u64, back: &BackRef) {
        let (bare, times) = bare(back);
        if let Some(details) = &mut self.details {
            details.note(addr, &bare, times, 0);
            return;
        }
        if let Some(extent) = self.list.last_mut().filter(|e| e.addr == addr) {
            extent.recorded = extent.recorded.saturating_add(times);
            extent.left = extent.left.wrapping_add(hash(&bare).wrapping_mul(times.into()));
            match bare {
                BackRef::TreeBlock { root } => extent.roots |= root_bit(root),
                // The parent may be the owner's; relocation refers to blocks like this.
                BackRef::SharedBlock { .. } => extent.roots = u64::MAX,
                _ => {}
            }
        }
    }
}

impl Details {
    /// Nothing listed yet of the extents at `addrs`.
    pub(crate) fn of(addrs: &[u64]) -> Self {
        Self {
            watch: addrs.iter().copied().collect(),
            refs: BTreeMap::new(),
        }
    }

    fn note(&mut self, addr: u64, back: &BackRef, recorded: u64, found: u64) {
        if !self.watch.contains(&addr) || matches!(back, BackRef::Owner { .. }) {
            return;
        }
        if self.refs.len() >= DETAIL_REFS_MAX && !self.refs.contains_key(&(addr, *back)) {
            return;
        }
        let sums = self.refs.entry((addr, *back)).or_default();
        sums.0 = sums.0.saturating_add(recorded);
        sums.1 = sums.1.saturating_add(found);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn extent_takes_at_most_112_bytes() {
        assert!(size_of::<super::Extent>() <= 112, "{}", size_of::<super::Extent>());
    }
}
