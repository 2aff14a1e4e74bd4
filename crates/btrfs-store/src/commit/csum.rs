//! Removing the checksums of freed extents.

use std::collections::BTreeMap;

use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId, TreeId};

use crate::error::{Error, Result};
use crate::overlay::{Edit, ItemBytes};
use crate::tree::{Edits, Tree};

fn key_at(addr: u64) -> Key {
    Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, addr)
}

/// Edits that remove the checksums of `ranges` (address, bytes; ascending, disjoint) from the
/// checksum tree; items that reach beyond a range are cut.
pub fn removal_edits(
    tree: &Tree,
    csum_bytes: usize,
    sector_bytes: u64,
    ranges: &[(LogicalAddr, u64)],
) -> Result<Edits> {
    let mut edits: BTreeMap<Key, Edit> = BTreeMap::new();
    for (addr, len) in ranges {
        let (start, end) = (addr.get(), addr.get() + len);
        for key in overlapping_keys(tree, &edits, start, end)? {
            let bytes = match edits.get(&key) {
                Some(Some(bytes)) => bytes.clone(),
                Some(None) => continue,
                None => match tree.get_committed(&key)? {
                    Some(item) => ItemBytes::from(&*item),
                    None => continue,
                },
            };
            cut(&mut edits, key, &bytes, (start, end), csum_bytes, sector_bytes)?;
        }
    }
    Ok(edits.into_iter().collect())
}

/// Keys of items that may hold checksums of `start..end`, in the tree or among the edits.
fn overlapping_keys(tree: &Tree, edits: &BTreeMap<Key, Edit>, start: u64, end: u64) -> Result<Vec<Key>> {
    let is_csum = |key: &Key| key.objectid == ObjectId::EXTENT_CSUM && key.ty == KeyType::EXTENT_CSUM;
    let mut keys = Vec::new();
    let first = tree
        .floor_committed_key(&key_at(start))?
        .filter(is_csum)
        .unwrap_or(key_at(start));
    let mut cursor = tree.cursor_committed(first, key_at(end - 1));
    while let Some((key, _)) = cursor.next()? {
        keys.push(key);
    }
    let first = edits
        .range(..=key_at(start))
        .next_back()
        .map_or(key_at(start), |(key, _)| *key);
    keys.extend(edits.range(first..key_at(end)).map(|(key, _)| *key));
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

/// Takes `start..end` out of one item.
fn cut(
    edits: &mut BTreeMap<Key, Edit>,
    key: Key,
    bytes: &ItemBytes,
    (start, end): (u64, u64),
    csum_bytes: usize,
    sector_bytes: u64,
) -> Result<()> {
    let sectors = (bytes.len() / csum_bytes) as u64;
    let (item_start, item_end) = (key.offset, key.offset + sectors * sector_bytes);
    if item_end <= start || item_start >= end {
        return Ok(());
    }
    let at = |addr: u64| (addr - item_start) as usize / sector_bytes as usize * csum_bytes;
    let misaligned = || Error::CorruptTree {
        tree: TreeId::CSUM,
        what: format!("checksum item {key} is misaligned"),
    };
    let head = if item_start < start {
        bytes.get(..at(start)).ok_or_else(misaligned)?
    } else {
        &[]
    };
    let tail = if item_end > end {
        bytes.get(at(end)..).ok_or_else(misaligned)?
    } else {
        &[]
    };
    edits.insert(key, if head.is_empty() { None } else { Some(head.into()) });
    if !tail.is_empty() {
        edits.insert(key_at(end), Some(tail.into()));
    }
    Ok(())
}
