//! The items of the checksum tree and of the extent tree.

use btrfs_format::block::{ITEM_HEADER_BYTES, leaf_capacity_bytes};
use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId, TreeId};

use super::bulk::{BlockAt, Sink};
use super::extents::{DataMap, FileData};
use super::number::inode_number;
use super::plan::Plan;
use crate::plan::{DataExtent, DataRef, GENERATION, PlannedTree, items};
use crate::{MkfsError, Settings};

/// Bytes of checksums that the kernel puts into one item at most: a page of them, and what leaves
/// room for two items in a leaf.
fn csums_per_item_max(settings: &Settings) -> u64 {
    let size = settings.csum_type.size_bytes();
    let by_leaf = (leaf_capacity_bytes(settings.nodesize()) - 2 * ITEM_HEADER_BYTES) / size - 1;
    by_leaf.min(4096) as u64
}

/// Bytes of an extent item with its references, as the kernel limits it: further references become
/// items of their own.
fn extent_item_bytes_max(settings: &Settings) -> usize {
    leaf_capacity_bytes(settings.nodesize()) / 16 - ITEM_HEADER_BYTES
}

/// Gives the items of the checksum tree. Where nothing was read, the checksums are zeros.
pub(super) fn emit_csums(settings: &Settings, data: &DataMap, sink: &mut dyn Sink) -> Result<(), MkfsError> {
    let size = settings.csum_type.size_bytes();
    let max = csums_per_item_max(settings);
    let sectorsize = u64::from(settings.sectorsize_bytes);
    let zeros = vec![0; max as usize * size];
    let mut csums = &data.csums[..];
    for run in &data.csum_runs {
        let mut done = 0;
        while done < run.sectors {
            let count = (run.sectors - done).min(max);
            let bytes = count as usize * size;
            let item = match csums.split_at_checked(bytes) {
                Some((item, rest)) => {
                    csums = rest;
                    item
                }
                None => &zeros[..bytes],
            };
            let addr = run.addr.0 + done * sectorsize;
            sink.put(Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, addr), &[item])?;
            done += count;
        }
    }
    Ok(())
}

/// A tree block and the tree that it belongs to.
pub(super) type OwnedBlock = (TreeId, BlockAt);

/// Gives the items of the extent tree. `blocks` are in the order of their addresses; `groups` are
/// the block groups, where they have no tree of their own.
pub(super) fn emit_extents(
    plan: &Plan<'_, '_>,
    settings: &Settings,
    data: &DataMap,
    blocks: &[OwnedBlock],
    groups: &PlannedTree,
    sink: &mut dyn Sink,
) -> Result<(), MkfsError> {
    let inline_max = extent_item_bytes_max(settings);
    let mut blocks = blocks.iter().peekable();
    let mut groups = groups.items().peekable();
    // What lies before an address comes before its extent; a group comes behind what it begins
    // with.
    let mut before = |limit: Option<Key>, sink: &mut dyn Sink| -> Result<(), MkfsError> {
        loop {
            let block = blocks
                .peek()
                .map(|(owner, at)| items::tree_block_extent(settings, GENERATION, *owner, *at));
            let block = block.filter(|(key, _)| limit.is_none_or(|limit| *key < limit));
            let group = groups.peek().filter(|(key, _)| limit.is_none_or(|limit| **key < limit));
            match (block, group) {
                (Some((key, item)), group) if group.is_none_or(|(other, _)| key < **other) => {
                    sink.put(key, &[&item])?;
                    blocks.next();
                }
                (_, Some((key, item))) => {
                    sink.put(**key, &[item])?;
                    groups.next();
                }
                (_, None) => return Ok(()),
            }
        }
    };
    for subvolume in &plan.subvolumes {
        for index in 0..subvolume.inodes.len() {
            let FileData::Extents { start, count } = data.files[subvolume.base + index] else {
                continue;
            };
            for extent in &data.extents[start..start + count] {
                let own = (subvolume.id, inode_number(index));
                let files = std::iter::once(&own).chain(plan.followers(subvolume.base + index));
                let refs = files.map(|(root, objectid)| DataRef {
                    root: *root,
                    objectid: *objectid,
                    offset_bytes: extent.offset_bytes,
                    count: 1,
                });
                let extent = DataExtent {
                    addr: extent.addr,
                    len_bytes: extent.disk_bytes,
                    refs: refs.collect(),
                };
                let ((key, item), more) = items::data_extent_items(GENERATION, &extent, inline_max);
                before(Some(key), sink)?;
                sink.put(key, &[&item])?;
                for (key, item) in more {
                    sink.put(key, &[&item])?;
                }
            }
        }
    }
    before(None, sink)
}

/// Blocks in the order of their addresses, as far as the extent tree needs them.
pub(super) fn sorted(mut blocks: Vec<OwnedBlock>) -> Vec<OwnedBlock> {
    blocks.sort_unstable_by_key(|(_, (addr, _, _))| *addr);
    blocks
}

/// A block whose first key does not matter.
pub(super) fn unkeyed(addr: LogicalAddr, level: u8) -> BlockAt {
    (addr, level, Key::MIN)
}
