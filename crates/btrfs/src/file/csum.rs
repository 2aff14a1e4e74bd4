//! Checksums of file data: one per block, in items keyed by the disk address of the first.

use btrfs_format::{ChecksumType, Key, KeyType, LogicalAddr, ObjectId, TreeId};

use crate::block::{BLOCK, EXTENT_BYTES_MAX};
use crate::error::{Error, Result, StoreError};
use crate::files::Files;
use btrfs_store::tree::csum_item_bytes_max;
use btrfs_store::txn::Batch;

pub(super) fn csum_key(addr: u64) -> Key {
    Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, addr)
}

/// The checksums of whole blocks of data.
pub(super) fn compute(ty: ChecksumType, data: &[u8]) -> Vec<u8> {
    let len = ty.size_bytes();
    let mut out = Vec::with_capacity(data.len() / BLOCK as usize * len);
    for block in data.chunks(BLOCK as usize) {
        out.extend_from_slice(&ty.compute(block)[..len]);
    }
    out
}

/// The checksums of `len_bytes` from `addr` on; a block without one is an error, as on the kernel's
/// side.
pub(crate) fn load(files: &Files, addr: LogicalAddr, len_bytes: u64) -> Result<Vec<u8>> {
    let size = files.store().volume().csum_type().size_bytes();
    let end = addr.get() + len_bytes;
    // Of what a stranger says to be longer than anything, there are not many.
    let sector = files.sector_bytes();
    let mut sums = Vec::with_capacity((len_bytes.min(EXTENT_BYTES_MAX) / sector) as usize * size);
    let mut at = addr.get();
    while at < end {
        let before = at;
        if let Some((key, item)) = files.csum_tree().floor_same_type(&csum_key(at))? {
            take(&key, &item, &mut at, end, (sector, size), &mut sums)?;
        }
        if at == before {
            return Err(Error::Store(StoreError::DataChecksum { addr: LogicalAddr(at) }));
        }
        if at == end {
            break;
        }
        let mut cursor = files.csum_tree().cursor(csum_key(at), csum_key(end - 1));
        while at < end
            && let Some((key, item)) = cursor.next()?
            && key.offset == at
        {
            take(&key, &item, &mut at, end, (sector, size), &mut sums)?;
        }
        // A commit may have joined the next item to the last one meanwhile: only the item before
        // tells that it is missing.
    }
    Ok(sums)
}

/// Is there a checksum for any block of the range?
pub(super) fn has_any(files: &Files, addr: LogicalAddr, len_bytes: u64) -> Result<bool> {
    let end = addr.get() + len_bytes;
    let size = files.store().volume().csum_type().size_bytes() as u64;
    let last = files.csum_tree().floor_same_type(&csum_key(end - 1))?;
    let ends_behind = |offset: u64, blocks: u64| offset.saturating_add(blocks * files.sector_bytes()) > addr.get();
    Ok(last.is_some_and(|(key, item)| ends_behind(key.offset, item.len() as u64 / size)))
}

/// Takes what an item has for `at..end`. `sector`, `size`: bytes of one, and of its checksum.
fn take(
    key: &Key,
    item: &[u8],
    at: &mut u64,
    end: u64,
    (sector, size): (u64, usize),
    sums: &mut Vec<u8>,
) -> Result<()> {
    let bad = || {
        Error::Store(StoreError::CorruptTree {
            tree: TreeId::CSUM,
            what: format!("checksum item {key} is malformed"),
        })
    };
    let blocks = (item.len() / size) as u64;
    let item_end = key.offset.checked_add(blocks * sector).ok_or_else(bad)?;
    if !key.offset.is_multiple_of(sector) || item.is_empty() || !item.len().is_multiple_of(size) {
        return Err(bad());
    }
    if item_end <= *at {
        return Ok(());
    }
    let to = item_end.min(end);
    let slot = |addr: u64| ((addr - key.offset) / sector) as usize * size;
    sums.extend_from_slice(&item[slot(*at)..slot(to)]);
    *at = to;
    Ok(())
}

/// Puts checksums into a batch. `runs` are (address, checksums) in any order; neighbours on disk
/// share items. (The commit joins them to what the tree has.)
pub(super) fn put(files: &Files, batch: &mut Batch, mut runs: Vec<(LogicalAddr, Vec<u8>)>) {
    let size = files.store().volume().csum_type().size_bytes();
    let item_bytes_max = csum_item_bytes_max(files.store().nodes());
    runs.sort_unstable_by_key(|(addr, _)| *addr);
    let sector = files.sector_bytes();
    let mut joined: Vec<(u64, Vec<u8>)> = Vec::new();
    for (addr, sums) in runs {
        match joined.last_mut() {
            Some((start, held)) if *start + (held.len() / size) as u64 * sector == addr.get() => held.extend(sums),
            _ => joined.push((addr.get(), sums)),
        }
    }
    for (addr, sums) in joined {
        put_run(files, batch, addr, &sums, item_bytes_max);
    }
}

fn put_run(files: &Files, batch: &mut Batch, mut addr: u64, sums: &[u8], item_bytes_max: usize) {
    let size = files.store().volume().csum_type().size_bytes();
    for item in sums.chunks(item_bytes_max) {
        batch.put(files.csum_tree(), csum_key(addr), item);
        addr += (item.len() / size) as u64 * files.sector_bytes();
    }
}
