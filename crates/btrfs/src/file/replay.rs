//! What the replay of a log needs of file extents: the same range-replace as everything else,
//! planned from logged items.

use btrfs_format::items::compression;
use btrfs_format::{Key, LogicalAddr, ObjectId};

use super::csum;
use super::replace::{Plan, Replacement, plan_checked};
use crate::error::{Error, Result, StoreError};
use crate::extent::{Extent, Kind, Walk, extent_key};
use crate::files::Files;
use btrfs_store::commit::removal_edits;
use btrfs_store::overlay::Edit;
use btrfs_store::tree::{Item, Tree};
use btrfs_store::txn::Batch;
use std::sync::Arc;

/// Item edits of one file, with what they do to references and to the bytes that the inode counts.
#[derive(Debug, Default)]
pub(crate) struct ExtentChange {
    pub edits: Vec<(Key, Edit)>,
    /// Address and bytes of an extent, the offset that its reference carries, and how many
    /// references more.
    pub refs: Vec<(LogicalAddr, u64, u64, i64)>,
    pub nbytes: i64,
    /// Data that came from the log and may have checksums there: address and bytes.
    pub summed: Vec<(LogicalAddr, u64)>,
}

impl ExtentChange {
    fn of(ino: ObjectId, plan: Plan) -> Self {
        let edit = |(start, extent): (u64, Option<Extent>)| (extent_key(ino, start), extent.map(|e| e.encode()));
        Self {
            edits: plan.edits.into_iter().map(edit).collect(),
            refs: plan
                .refs
                .into_iter()
                .map(|(name, n)| (name.addr, name.len_bytes, name.offset, n))
                .collect(),
            nbytes: plan.nbytes,
            summed: Vec::new(),
        }
    }
}

/// Plans the removal of everything behind the end of a file.
pub(crate) fn plan_cut(tree: &Arc<Tree>, ino: ObjectId, size: u64) -> Result<ExtentChange> {
    let cut = Replacement {
        range: size.checked_next_multiple_of(tree.sector_bytes()).unwrap_or(u64::MAX)..u64::MAX,
        extents: Vec::new(),
    };
    let existing = Walk::new(tree, ino, cut.range.clone())?.collect()?;
    Ok(ExtentChange::of(ino, plan_checked(tree, ino, &existing, &[cut])?))
}

/// Plans logged extent items of one file, in order, into its tree. `no_holes`: holes have no items.
pub(crate) fn plan_extents(
    tree: &Arc<Tree>,
    log: &Tree,
    ino: ObjectId,
    items: Vec<(Key, Item)>,
    no_holes: bool,
) -> Result<ExtentChange> {
    let mut replacements = Vec::new();
    let mut summed = Vec::new();
    let mut end = 0;
    for (key, item) in items {
        if tree.get(&key)?.is_some_and(|ours| ours[..] == item[..]) {
            continue;
        }
        let extent = Extent::decode(log, &key, item)?;
        if extent.start < end {
            return Err(corrupt(log, format!("file extent {key} overlaps the one before it")));
        }
        end = extent.end();
        summed.extend(data_of(&extent));
        let is_dropped = no_holes && matches!(extent.kind, Kind::Hole);
        replacements.push(Replacement {
            range: extent.range(),
            extents: if is_dropped { Vec::new() } else { vec![extent] },
        });
    }
    let (Some(first), Some(last)) = (replacements.first(), replacements.last()) else {
        return Ok(ExtentChange::default());
    };
    let existing = Walk::new(tree, ino, first.range.start..last.range.end)?.collect()?;
    let mut change = ExtentChange::of(ino, plan_checked(tree, ino, &existing, &replacements)?);
    change.summed = summed;
    Ok(change)
}

/// The data on disk that an extent item needs checksums of: its own part, or all where only all can
/// be read.
fn data_of(extent: &Extent) -> Option<(LogicalAddr, u64)> {
    let disk = extent.on_disk().filter(|disk| !disk.is_prealloc)?;
    if disk.compression != compression::NONE {
        return Some((disk.addr, disk.len_bytes));
    }
    Some((LogicalAddr(disk.addr.get() + disk.offset_bytes), extent.len_bytes))
}

/// Address and bytes of all data on disk that a file has by now.
pub(crate) fn data_of_file(tree: &Arc<Tree>, ino: ObjectId) -> Result<Vec<(LogicalAddr, u64)>> {
    let mut walk = Walk::new(tree, ino, 0..u64::MAX)?;
    let mut data = Vec::new();
    while let Some(extent) = walk.next()? {
        data.extend(data_of(&extent));
    }
    Ok(data)
}

/// Does any block of this data have a checksum?
pub(crate) fn has_any_sum(files: &Files, addr: LogicalAddr, len_bytes: u64) -> Result<bool> {
    csum::has_any(files, addr, len_bytes)
}

/// An error where a block of this data has no checksum.
pub(crate) fn require_sums(files: &Files, addr: LogicalAddr, len_bytes: u64) -> Result<()> {
    csum::load(files, addr, len_bytes).map(drop)
}

/// Adds what the log has of the checksums of a range (address, bytes).
pub(crate) fn load_logged_sums(
    files: &Files,
    log: &Tree,
    range: &(LogicalAddr, u64),
    out: &mut Vec<(LogicalAddr, Vec<u8>)>,
) -> Result<()> {
    let size = files.store().volume().csum_type().size_bytes();
    let sector = files.sector_bytes();
    let (start, end) = (range.0.get(), range.0.get() + range.1);
    let mut take = |key: &Key, item: &[u8]| -> Result<()> {
        let blocks = (item.len() / size) as u64;
        let item_end = key
            .offset
            .checked_add(blocks * sector)
            .filter(|_| key.offset.is_multiple_of(sector));
        let item_end = item_end.ok_or_else(|| corrupt(log, format!("checksum item {key} is malformed")))?;
        let (from, to) = (key.offset.max(start), item_end.min(end));
        if from < to {
            let slot = |addr: u64| ((addr - key.offset) / sector) as usize * size;
            out.push((LogicalAddr(from), item[slot(from)..slot(to)].to_vec()));
        }
        Ok(())
    };
    let first = log.floor_same_type(&csum::csum_key(start))?;
    if let Some((key, item)) = first.filter(|(key, _)| key.offset < start) {
        take(&key, &item)?;
    }
    let mut cursor = log.cursor(csum::csum_key(start), csum::csum_key(end - 1));
    while let Some((key, item)) = cursor.next()? {
        take(&key, &item)?;
    }
    Ok(())
}

/// Puts checksums of replayed data into a batch, in the place of whatever the checksum tree has for
/// these blocks.
pub(crate) fn put_sums(files: &Files, batch: &mut Batch, mut runs: Vec<(LogicalAddr, Vec<u8>)>) -> Result<()> {
    let size = files.store().volume().csum_type().size_bytes();
    let sector = files.sector_bytes();
    runs.sort_by_key(|(addr, _)| *addr);
    // Files that share an extent bring its checksums several times.
    let mut end = 0_u64;
    for (addr, sums) in &mut runs {
        let skip = end.saturating_sub(addr.get()) / sector;
        let skip_bytes = (usize::try_from(skip).unwrap_or(usize::MAX).saturating_mul(size)).min(sums.len());
        sums.drain(..skip_bytes);
        *addr = LogicalAddr(addr.get() + skip * sector);
        if !sums.is_empty() {
            end = addr.get() + (sums.len() / size) as u64 * sector;
        }
    }
    runs.retain(|(_, sums)| !sums.is_empty());
    let bytes_of = |sums: &Vec<u8>| (sums.len() / size) as u64 * sector;
    let ranges: Vec<_> = runs.iter().map(|(addr, sums)| (*addr, bytes_of(sums))).collect();
    for (key, edit) in removal_edits(files.csum_tree(), size, sector, &ranges)? {
        match edit {
            Some(bytes) => batch.put(files.csum_tree(), key, bytes),
            None => batch.delete(files.csum_tree(), key),
        }
    }
    csum::put(files, batch, runs);
    Ok(())
}

fn corrupt(tree: &Tree, what: String) -> Error {
    Error::Store(StoreError::CorruptTree { tree: tree.id(), what })
}
