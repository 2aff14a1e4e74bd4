//! Extents and their references: what the extent tree records against what the trees use.
//!
//! References are not kept. For each extent the recorded ones are added up in a hash of multisets and the ones
//! found are taken off; nothing is left if and only if they agree (but for chance, 2^-128). An extent takes 112 bytes of
//! memory at most, however often it is shared. Only for extents where something is left are the references listed, in a
//! second walk ([`Details`]), and for at most [`DETAILS_MAX`] of them.

use std::collections::{BTreeMap, BTreeSet};

use btrfs_format::features::extent_flags;
use btrfs_format::items::{ExtentItem, TreeBlockInfo};
use btrfs_format::view::{BackRef, ExtentView, keyed_back_ref};
use btrfs_format::{Key, KeyType, TreeId};

use crate::block::Block;
use crate::finding::{FindingId as Id, Site};
use crate::util::{SetHash, is_aligned};
use crate::walk::{Cx, item_site};

/// How many extents are looked at in detail.
pub(crate) const DETAILS_MAX: usize = 1000;
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

#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) generation: u64,
    /// As the item counts them.
    refs: u64,
    /// Sum of the back references.
    recorded: u64,
    found: u64,
    left: u128,
    pub(crate) flags: u64,
    /// The trees that the recorded references name: one bit each, by hash.
    roots: u64,
    level: u8,
    /// A use of another length or kind was reported already.
    said: bool,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.addr.saturating_add(self.len)
    }
    /// References, as the item counts them.
    pub(crate) fn refs(&self) -> u64 {
        self.refs
    }
    pub(crate) fn is_data(&self) -> bool {
        self.flags & extent_flags::DATA != 0
    }
}

/// The listed references of the extents in `watch`: recorded and found counts.
#[derive(Default)]
pub(crate) struct Details {
    watch: BTreeSet<u64>,
    refs: BTreeMap<(u64, BackRef), (u64, u64)>,
}

#[derive(Default)]
pub(crate) struct Extents {
    /// Sorted by address.
    pub(crate) list: Vec<Extent>,
    /// The extent tree has been read: uses can be matched at once.
    ready: bool,
    early: Vec<(u64, Use)>,
    early_blocks: Vec<(u64, u8, TreeId)>,
    strays: BTreeMap<u64, (u64, Use)>,
    faults: Vec<(Id, u64, String)>,
    details: Option<Details>,
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

fn show(back: &BackRef) -> String {
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
            // What such a block refers to is counted for its owner; then the owner must hold the block.
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

    fn note_recorded(&mut self, addr: u64, back: &BackRef) {
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

/// Reads the items of a leaf of the extent tree.
pub(crate) fn read_extent_leaf(cx: &mut Cx<'_>, leaf: &Block) {
    for (key, data) in leaf.items() {
        match key.ty {
            KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => read_extent(cx, leaf, key, data),
            KeyType::TREE_BLOCK_REF
            | KeyType::SHARED_BLOCK_REF
            | KeyType::EXTENT_DATA_REF
            | KeyType::SHARED_DATA_REF => {
                read_keyed(cx, leaf, key, data);
            }
            KeyType::BLOCK_GROUP_ITEM | KeyType::EXTENT_OWNER_REF => {}
            _ => cx.sink.add(
                Id::ItemForeign,
                item_site(TreeId::EXTENT, leaf, key),
                "does not belong in the extent tree",
            ),
        }
    }
}

/// Bytes that an inline reference takes.
fn inline_bytes(back: &BackRef) -> usize {
    match back {
        BackRef::ExtentData { .. } => 29,
        BackRef::SharedData { .. } => 13,
        BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } | BackRef::Owner { .. } => 9,
    }
}

fn judge_extent(
    key: Key,
    view: &ExtentView<'_>,
    data_len: usize,
    nodesize: u64,
    sectorsize: u64,
) -> Result<(), String> {
    let flags = view.head.flags.get();
    let tree_block = flags & extent_flags::TREE_BLOCK != 0;
    if tree_block == (flags & extent_flags::DATA != 0) {
        return Err(format!("flags {flags:#x}: neither data nor tree block, or both"));
    }
    let known = extent_flags::DATA | extent_flags::TREE_BLOCK | extent_flags::FULL_BACKREF;
    if flags & !known != 0 || (!tree_block && flags & extent_flags::FULL_BACKREF != 0) {
        return Err(format!("flags {flags:#x} are unknown or do not go together"));
    }
    if !is_aligned(key.objectid.get(), sectorsize) {
        return Err("unaligned".into());
    }
    if key.ty == KeyType::METADATA_ITEM {
        if !tree_block || key.offset > u64::from(btrfs_format::block::LEVEL_MAX) {
            return Err(format!("flags {flags:#x}, level {}", key.offset));
        }
    } else if tree_block && key.offset != nodesize {
        return Err(format!("a tree block of {} bytes", key.offset));
    } else if key.offset == 0
        || !is_aligned(key.offset, sectorsize)
        || key.objectid.get().checked_add(key.offset).is_none()
    {
        return Err(format!("length {}", key.offset));
    }
    let mut expected_len = size_of::<ExtentItem>();
    if view.block_info.is_some() {
        expected_len = expected_len.saturating_add(size_of::<TreeBlockInfo>());
    }
    for back in view.inline_refs() {
        expected_len = expected_len.saturating_add(inline_bytes(&back));
        let block_ref = matches!(back, BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. });
        if block_ref != tree_block && !matches!(back, BackRef::Owner { .. }) {
            return Err(format!("a reference by {} on the wrong kind of extent", show(&back)));
        }
    }
    if expected_len != data_len {
        return Err(format!("inline references end at byte {expected_len} of {data_len}"));
    }
    if view.head.refs.get() == 0 {
        return Err("no references".into());
    }
    Ok(())
}

fn read_extent(cx: &mut Cx<'_>, leaf: &Block, key: Key, data: &[u8]) {
    let site = item_site(TreeId::EXTENT, leaf, key);
    let Some(view) = ExtentView::new(&key, data) else {
        cx.sink.add(Id::ExtentItemInvalid, site, "too short");
        return;
    };
    if cx.extents.details.is_none() {
        if let Err(what) = judge_extent(key, &view, data.len(), cx.vol.nodesize, cx.vol.sectorsize) {
            cx.sink.add(Id::ExtentItemInvalid, site.clone(), what);
        }
        let skinny = key.ty == KeyType::METADATA_ITEM;
        let level = if skinny {
            u8::try_from(key.offset).unwrap_or(u8::MAX)
        } else {
            view.block_info.map_or(0, |info| info.level)
        };
        let extent = Extent {
            addr: key.objectid.get(),
            len: if skinny { cx.vol.nodesize } else { key.offset },
            generation: view.head.generation.get(),
            refs: view.head.refs.get(),
            recorded: 0,
            found: 0,
            left: 0,
            flags: view.head.flags.get(),
            roots: 0,
            level,
            said: false,
        };
        if extent.generation > cx.vol.sb.generation.get() {
            let what = format!(
                "generation {}, the volume is at {}",
                extent.generation, cx.vol.sb.generation
            );
            cx.sink.add(Id::ExtentGeneration, site.clone(), what);
        }
        match cx.extents.list.last() {
            Some(last) if last.addr == extent.addr => {
                cx.sink.add(Id::ExtentOverlap, site, "a second item for this address");
                return;
            }
            Some(last) if last.end() > extent.addr => {
                let what = format!("begins before the end of the extent at {}", last.addr);
                cx.sink.add(Id::ExtentOverlap, site, what);
            }
            _ => {}
        }
        cx.extents.list.push(extent);
    }
    for back in view.inline_refs() {
        cx.extents.note_recorded(key.objectid.get(), &back);
    }
}

fn read_keyed(cx: &mut Cx<'_>, leaf: &Block, key: Key, data: &[u8]) {
    let site = item_site(TreeId::EXTENT, leaf, key);
    let Some(back) = keyed_back_ref(&key, data) else {
        cx.sink.add(Id::ExtentItemInvalid, site, "too short");
        return;
    };
    let addr = key.objectid.get();
    if cx.extents.details.is_none() && cx.extents.list.last().is_none_or(|e| e.addr != addr) {
        let what = format!("a reference by {} without an extent item", show(&back));
        cx.sink.add(Id::BackrefStale, site, what);
        return;
    }
    cx.extents.note_recorded(addr, &back);
}

/// The extent tree has been read: match the uses that were met before.
pub(crate) fn ready(cx: &mut Cx<'_>) {
    cx.extents.ready = true;
    for (addr, used) in std::mem::take(&mut cx.extents.early) {
        cx.extents.note_use(addr, &used);
    }
    for (addr, level, owner) in std::mem::take(&mut cx.extents.early_blocks) {
        cx.extents.compare_block(addr, level, owner, cx.vol.nodesize);
    }
}

/// Every tree has been walked: what is left over is wrong. Returns the extents to list in detail.
pub(crate) fn judge(cx: &mut Cx<'_>, extent_tree_whole: bool) -> Vec<u64> {
    for (id, addr, what) in std::mem::take(&mut cx.extents.faults) {
        cx.sink.add(id, Site::addr(addr), what);
    }
    if extent_tree_whole {
        for (addr, (uses, used)) in std::mem::take(&mut cx.extents.strays) {
            let what = format!("no extent item; used {uses} times, first by {}", show(&used.back));
            cx.sink.add(Id::ExtentMissing, Site::addr(addr), what);
        }
    }
    let mut detail = Vec::new();
    let list = std::mem::take(&mut cx.extents.list);
    for extent in &list {
        if extent.recorded != extent.refs {
            let what = format!("counts {} references, has {}", extent.refs, extent.recorded);
            cx.sink.add(Id::ExtentRefCount, Site::addr(extent.addr), what);
        }
        if extent.left == 0 {
            continue;
        }
        if extent.found == 0 {
            if !cx.incomplete {
                let what = format!(
                    "{} bytes, {} references recorded, no use found",
                    extent.len, extent.recorded
                );
                cx.sink.add(Id::ExtentUnreferenced, Site::addr(extent.addr), what);
            }
        } else if detail.len() < DETAILS_MAX {
            detail.push(extent.addr);
        }
    }
    cx.extents.list = list;
    detail
}

/// Begins the second walk.
pub(crate) fn watch(cx: &mut Cx<'_>, addrs: &[u64]) {
    cx.extents.details = Some(Details {
        watch: addrs.iter().copied().collect(),
        ..Details::default()
    });
    cx.seen.clear();
    cx.sink.muted = true;
}

/// Ends the second walk and says what it found.
pub(crate) fn judge_details(cx: &mut Cx<'_>) {
    cx.sink.muted = false;
    let Some(details) = cx.extents.details.take() else {
        return;
    };
    for addr in &details.watch {
        let min = (*addr, BackRef::TreeBlock { root: 0 });
        let mut said = false;
        for ((found_addr, back), &(recorded, found)) in details.refs.range(min..) {
            if found_addr != addr {
                break;
            }
            let id = match (recorded, found) {
                (a, b) if a == b => continue,
                // Where a tree could not be read whole, its uses are unknown.
                (a, b) if cx.incomplete && a > b => {
                    said = true;
                    continue;
                }
                (0, _) => Id::BackrefMissing,
                (_, 0) => Id::BackrefStale,
                _ => Id::BackrefCount,
            };
            said = true;
            let what = format!("by {}: {recorded} recorded, {found} found", show(back));
            cx.sink.add(id, Site::addr(*addr), what);
        }
        if !said && !cx.incomplete {
            cx.sink.add(
                Id::BackrefMismatch,
                Site::addr(*addr),
                "recorded and found references differ",
            );
        }
    }
}

/// Extents of all kinds within a range, as the sum of their lengths.
pub(crate) fn used_within(cx: &Cx<'_>, start: u64, end: u64) -> u64 {
    cx.extents.overlapping(start, end).fold(0u64, |sum, extent| {
        sum.saturating_add(extent.end().min(end).saturating_sub(extent.addr.max(start)))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_extent_takes_little_memory() {
        assert!(size_of::<super::Extent>() <= 112, "{}", size_of::<super::Extent>());
    }
}
