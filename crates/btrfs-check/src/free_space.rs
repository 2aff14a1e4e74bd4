//! The free-space tree against the extent tree: free is exactly what no extent covers.

use std::collections::BTreeMap;

use btrfs_format::items::{FREE_SPACE_BITMAP_BYTES, FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
use btrfs_format::view::fixed;
use btrfs_format::{Key, KeyType, TreeId};

use crate::block::Block;
use crate::finding::{FindingId as Id, Site};
use crate::layout::BlockGroup;
use crate::util::{count, is_aligned};
use crate::walk::{Cx, Root, Shared, item_site};

/// The block group whose items are being read.
struct Current {
    group: BlockGroup,
    bitmaps: bool,
    stated: u32,
    /// Runs of free space met so far; runs of adjacent bitmaps that touch are one.
    runs: u64,
    /// End of the last run.
    run_end: u64,
    /// All up to here has been compared with the extents.
    done: u64,
    said: bool,
}

/// Compares the tree with `groups` and with the extents.
pub(crate) fn check(cx: &mut Cx<'_>, root: &Root, groups: &BTreeMap<u64, BlockGroup>, judge: bool) {
    let mut current: Option<Current> = None;
    let mut seen = Vec::new();
    let whole = cx.walk(root, Shared::Skip, &mut |cx, leaf, _| {
        for (key, data) in leaf.items() {
            if key.ty == KeyType::FREE_SPACE_INFO {
                if let Some(done) = current.take() {
                    finish(cx, done, judge);
                }
                current = begin(cx, leaf, key, data, groups);
                seen.push(key.objectid.get());
            } else {
                read_space(cx, leaf, key, data, current.as_mut(), judge);
            }
        }
    });
    if let Some(done) = current.take() {
        finish(cx, done, judge && whole);
    }
    if whole && judge {
        for group in groups.values() {
            if seen.binary_search(&group.start).is_err() {
                cx.sink.add(
                    Id::FreeSpaceInfoMissing,
                    Site::addr(group.start),
                    "the block group has none",
                );
            }
        }
    }
}

/// The key's range lies in no chunk, and before one: mkfs.btrfs leaves what its first block groups
/// had. A new chunk comes behind the last one, so it comes there only if all chunks behind are
/// removed first.
fn is_of_gone_group(cx: &Cx<'_>, key: Key) -> bool {
    let (start, end) = (key.objectid.get(), key.objectid.get().saturating_add(key.offset));
    cx.vol.chunks.is_gap_between(start, end)
}

fn begin(cx: &mut Cx<'_>, leaf: &Block, key: Key, data: &[u8], groups: &BTreeMap<u64, BlockGroup>) -> Option<Current> {
    let site = item_site(TreeId::FREE_SPACE, leaf, key);
    let group = groups.get(&key.objectid.get()).copied();
    if group.is_none() && is_of_gone_group(cx, key) {
        cx.sink.add(Id::FreeSpaceStale, site, "the block group is gone");
        return None;
    }
    let (Some(group), Some(info)) = (group, fixed::<FreeSpaceInfo>(data)) else {
        cx.sink.add(Id::FreeSpaceOrphan, site, "no block group begins here");
        return None;
    };
    if group.len != key.offset {
        let what = format!("{} bytes, the block group has {}", key.offset, group.len);
        cx.sink.add(Id::FreeSpaceOrphan, site, what);
    } else if info.flags.get() & !FREE_SPACE_USING_BITMAPS != 0 {
        cx.sink
            .add(Id::FreeSpaceInvalid, site, format!("flags {:#x}", info.flags));
    }
    Some(Current {
        group,
        bitmaps: info.flags.get() & FREE_SPACE_USING_BITMAPS != 0,
        stated: info.extent_count.get(),
        runs: 0,
        run_end: 0,
        done: group.start,
        said: false,
    })
}

fn read_space(cx: &mut Cx<'_>, leaf: &Block, key: Key, data: &[u8], current: Option<&mut Current>, judge: bool) {
    let site = item_site(TreeId::FREE_SPACE, leaf, key);
    let bitmap = match key.ty {
        KeyType::FREE_SPACE_EXTENT => false,
        KeyType::FREE_SPACE_BITMAP => true,
        _ => {
            cx.sink
                .add(Id::ItemForeign, site, "does not belong in the free-space tree");
            return;
        }
    };
    let (start, len) = (key.objectid.get(), key.offset);
    let end = start.saturating_add(len);
    let Some(current) = current.filter(|c| start >= c.group.start && end <= c.group.start.saturating_add(c.group.len))
    else {
        if !is_of_gone_group(cx, key) {
            cx.sink.add(Id::FreeSpaceOrphan, site, "lies in no block group");
        }
        return;
    };
    let sectorsize = cx.vol.sectorsize;
    if len == 0 || !is_aligned(start, sectorsize) || !is_aligned(len, sectorsize) || bitmap != current.bitmaps {
        cx.sink.add(
            Id::FreeSpaceInvalid,
            site,
            "unaligned, empty, or not of the kind that the block group uses",
        );
        return;
    }
    if start < current.done {
        cx.sink.add(Id::FreeSpaceInvalid, site, "overlaps the item before it");
        return;
    }
    if !bitmap {
        if !data.is_empty() {
            cx.sink.add(Id::FreeSpaceInvalid, site, "an extent with data");
        }
        add_run(cx, current, start, end, judge);
        return;
    }
    let bits = len.checked_div(sectorsize).unwrap_or(0);
    let bytes = bits.div_ceil(8);
    if count(data.len()) != bytes || data.len() > FREE_SPACE_BITMAP_BYTES {
        cx.sink.add(
            Id::FreeSpaceInvalid,
            site,
            format!("{} bytes of bitmap, expected {bytes}", data.len()),
        );
        return;
    }
    read_bitmap(cx, current, start, bits, data, judge);
}

fn read_bitmap(cx: &mut Cx<'_>, current: &mut Current, start: u64, bits: u64, data: &[u8], judge: bool) {
    let sectorsize = cx.vol.sectorsize;
    let mut run: Option<u64> = None;
    let mut at = start;
    let mut left = bits;
    for byte in data {
        for bit in 0..8u32 {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(1);
            let free = byte.checked_shr(bit).unwrap_or(0) & 1 == 1;
            match (free, run) {
                (true, None) => run = Some(at),
                (false, Some(from)) => {
                    add_run(cx, current, from, at, judge);
                    run = None;
                }
                _ => {}
            }
            at = at.saturating_add(sectorsize);
        }
    }
    if let Some(from) = run {
        add_run(cx, current, from, at, judge);
    }
}

/// Free space from `start` to `end`: no extent may be there, and no gap before it.
fn add_run(cx: &mut Cx<'_>, current: &mut Current, start: u64, end: u64, judge: bool) {
    if current.runs == 0 || current.run_end != start {
        current.runs = current.runs.saturating_add(1);
    } else if !current.bitmaps && !current.said {
        current.said = true;
        cx.sink.add(
            Id::FreeSpaceInvalid,
            Site::addr(start),
            "two items where one free run is",
        );
    }
    current.run_end = end;
    if judge {
        require_used(cx, current.done, start);
        let covering = cx.extents.overlapping(start, end).next().map(|e| (e.addr, e.len));
        if let Some((addr, len)) = covering {
            let what = format!("free from {start} to {end}, but the extent at {addr} has {len} bytes");
            cx.sink.add(Id::FreeSpaceInUse, Site::addr(addr), what);
        }
    }
    current.done = end;
}

/// No byte between `start` and `end` may be free.
fn require_used(cx: &mut Cx<'_>, start: u64, end: u64) {
    let mut at = start;
    let mut lost = 0u64;
    let mut first = None;
    for extent in cx.extents.overlapping(start, end) {
        if extent.addr > at {
            lost = lost.saturating_add(extent.addr.saturating_sub(at));
            first = first.or(Some(at));
        }
        at = at.max(extent.end());
    }
    if at < end {
        lost = lost.saturating_add(end.saturating_sub(at));
        first = first.or(Some(at));
    }
    if let Some(first) = first {
        let what = format!("{lost} bytes between {start} and {end} are not in use and not free");
        cx.sink.add(Id::FreeSpaceLost, Site::addr(first), what);
    }
}

fn finish(cx: &mut Cx<'_>, current: Current, judge: bool) {
    if judge {
        require_used(cx, current.done, current.group.start.saturating_add(current.group.len));
    }
    if current.runs != u64::from(current.stated) {
        let what = format!("{} runs of free space, the items have {}", current.stated, current.runs);
        cx.sink
            .add(Id::FreeSpaceInfoCount, Site::addr(current.group.start), what);
    }
}
