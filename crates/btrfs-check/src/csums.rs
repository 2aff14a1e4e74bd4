//! Checksums of data: where they are, where they must be, and whether the data agrees.
//!
//! The ranges with checksums are kept as sorted, merged runs: 16 bytes per run.

use btrfs_format::{Key, KeyType, ObjectId, TreeId};

use crate::Phase;
use crate::block::Block;
use crate::finding::{FindingId as Id, Site};
use crate::util::{count, index, is_aligned};
use crate::volume::ReadFault;
use crate::walk::{Cx, Root, Shared, item_site, len_bytes};

/// Bytes read at once.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Ranges that have checksums.
#[derive(Debug, Default)]
pub(crate) struct CsumMap {
    /// Start and end, sorted, not touching.
    runs: Vec<(u64, u64)>,
    /// The tree was read whole: what is not here is missing.
    pub(crate) whole: bool,
}

impl CsumMap {
    /// Bytes of the range that have checksums.
    pub(crate) fn covered_bytes(&self, start: u64, end: u64) -> u64 {
        let from = self.runs.partition_point(|run| run.1 <= start);
        self.runs
            .get(from..)
            .unwrap_or_default()
            .iter()
            .take_while(|run| run.0 < end)
            .fold(0u64, |sum, run| {
                sum.saturating_add(run.1.min(end).saturating_sub(run.0.max(start)))
            })
    }
}

/// Reads the tree: which ranges have checksums.
pub(crate) fn read(cx: &mut Cx<'_>, root: &Root) -> CsumMap {
    let mut map = CsumMap::default();
    let whole = cx.walk(root, Shared::Skip, &mut |cx, leaf, _| {
        for (key, data) in leaf.items() {
            let site = item_site(TreeId::CSUM, leaf, key);
            if key.ty != KeyType::EXTENT_CSUM || key.objectid != ObjectId::EXTENT_CSUM {
                cx.sink
                    .add(Id::ItemForeign, site, "does not belong in the checksum tree");
                continue;
            }
            cx.stats.csum_bytes = cx.stats.csum_bytes.saturating_add(len_bytes(data));
            let size = cx.vol.csum.size_bytes();
            let whole = data.len().is_multiple_of(size) && !data.is_empty();
            if !whole || !is_aligned(key.offset, cx.vol.sectorsize) {
                cx.sink.add(
                    Id::CsumItemInvalid,
                    site,
                    format!("{} bytes at {}", data.len(), key.offset),
                );
                continue;
            }
            let sectors = count(data.len().checked_div(size).unwrap_or(0));
            let end = key.offset.saturating_add(sectors.saturating_mul(cx.vol.sectorsize));
            match map.runs.last_mut() {
                Some(last) if last.1 > key.offset => {
                    cx.sink.add(Id::CsumItemInvalid, site, "overlaps the item before it");
                    last.1 = last.1.max(end);
                }
                Some(last) if last.1 == key.offset => last.1 = end,
                _ => map.runs.push((key.offset, end)),
            }
        }
    });
    map.whole = whole;
    map
}

/// Checksums must lie on data extents.
pub(crate) fn check_orphans(cx: &mut Cx<'_>, map: &CsumMap) {
    for &(start, end) in &map.runs {
        let mut at = start;
        let mut orphan = 0u64;
        let mut first = None;
        for extent in cx.extents.overlapping(start, end).filter(|e| e.is_data()) {
            if extent.addr > at {
                orphan = orphan.saturating_add(extent.addr.saturating_sub(at));
                first = first.or(Some(at));
            }
            at = at.max(extent.end());
        }
        if at < end {
            orphan = orphan.saturating_add(end.saturating_sub(at));
            first = first.or(Some(at));
        }
        if let Some(first) = first {
            let what = format!("{orphan} bytes of {start} to {end} have checksums but are no data");
            cx.sink.add(Id::CsumOrphan, Site::addr(first), what);
        }
    }
}

/// Reads all data that has checksums, every copy, and compares.
pub(crate) fn verify_data(cx: &mut Cx<'_>, root: &Root, map: &CsumMap) {
    let total = map
        .runs
        .iter()
        .fold(0u64, |sum, run| sum.saturating_add(run.1.saturating_sub(run.0)));
    let mut done = 0u64;
    cx.seen.clear();
    let muted = std::mem::replace(&mut cx.sink.muted, true);
    cx.walk(root, Shared::Skip, &mut |cx, leaf, _| {
        cx.sink.muted = false;
        for (key, data) in leaf.items() {
            if key.ty == KeyType::EXTENT_CSUM {
                done = done.saturating_add(verify_item(cx, leaf, key, data));
            }
        }
        cx.progress(Phase::Data, done, total);
        cx.sink.muted = true;
    });
    cx.sink.muted = muted;
}

fn verify_item(cx: &mut Cx<'_>, leaf: &Block, key: Key, data: &[u8]) -> u64 {
    let size = cx.vol.csum.size_bytes();
    let sectors = count(data.len().checked_div(size).unwrap_or(0));
    let len = sectors.saturating_mul(cx.vol.sectorsize);
    let end = key.offset.saturating_add(len);
    let pieces: Vec<(u64, u64)> = cx
        .extents
        .overlapping(key.offset, end)
        .filter(|e| e.is_data())
        .map(|e| (e.addr.max(key.offset), e.end().min(end)))
        .collect();
    for (from, to) in pieces {
        let mut at = from;
        while at < to {
            let upto = to.min(at.saturating_add(READ_BYTES_MAX));
            let first = index(
                at.saturating_sub(key.offset)
                    .checked_div(cx.vol.sectorsize)
                    .unwrap_or(0),
            );
            let sums = data.get(first.saturating_mul(size)..).unwrap_or_default();
            for copy in 0..cx.vol.chunks.copies(at).max(1) {
                verify_run(cx, leaf, at, upto, copy, sums);
            }
            at = upto;
        }
    }
    len
}

/// Compares one copy of the bytes from `start` to `end` with checksums.
fn verify_run(cx: &mut Cx<'_>, leaf: &Block, start: u64, end: u64, copy: u64, sums: &[u8]) {
    let mut bytes = vec![0; index(end.saturating_sub(start))];
    let name = cx.vol.copy_name(start, copy);
    match cx.vol.read_copy(start, copy, &mut bytes) {
        Ok(()) => {}
        Err(ReadFault::Missing) => return,
        Err(ReadFault::Unmapped) => {
            cx.sink
                .add(Id::DataUnreadable, Site::addr(start), format!("{name}: in no chunk"));
            return;
        }
        Err(ReadFault::Failed {
            devid,
            physical,
            message,
        }) => {
            let site = Site {
                device: Some((devid, physical)),
                ..Site::addr(start)
            };
            cx.sink.add(Id::DataUnreadable, site, format!("{name}: {message}"));
            return;
        }
    }
    cx.stats.data_verified_bytes = cx.stats.data_verified_bytes.saturating_add(count(bytes.len()));
    let size = cx.vol.csum.size_bytes();
    let sector = index(cx.vol.sectorsize);
    let mut at = start;
    for (data, sum) in bytes.chunks(sector).zip(sums.chunks(size)) {
        let computed = cx.vol.csum.compute(data);
        if computed.get(..size) != Some(sum) {
            let name = cx.vol.copy_name(at, copy);
            let site = Site {
                tree: Some(TreeId::CSUM),
                ..Site::addr(at)
            };
            let what = format!("{name}: data does not match its checksum (kept in leaf {})", leaf.addr);
            cx.sink.add(Id::DataCsum, site, what);
        }
        at = at.saturating_add(cx.vol.sectorsize);
    }
}
