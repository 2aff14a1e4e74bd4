//! Extents and their references: what the extent tree records against what the trees use.
//!
//! [`crate::references`] adds them up; this reads the extent tree and judges the sums. Where they
//! differ, at most [`DETAILS_MAX`] extents are looked at in detail.

use btrfs_format::features::extent_flags;
use btrfs_format::items::{ExtentItem, TreeBlockInfo};
use btrfs_format::view::{BackRef, ExtentView, keyed_back_ref};
use btrfs_format::{Key, KeyType, TreeId};

use crate::block::Block;
use crate::finding::{FindingId as Id, Site};
use crate::references::{Details, Extent, show};
use crate::util::is_aligned;
use crate::walk::{Cx, item_site};

/// How many extents are looked at in detail.
pub(crate) const DETAILS_MAX: usize = 1000;
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
        let len = if skinny { cx.vol.nodesize } else { key.offset };
        let extent = Extent::new(key.objectid.get(), len, level, view.head);
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
    cx.extents.match_early(cx.vol.nodesize);
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
    cx.extents.details = Some(Details::of(addrs));
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
