//! Can an extent be seen by others? Asked before data is written in place.
//!
//! One of the others is the volume as it was last committed, which a crash brings back: an extent
//! that another file gave up is not written in place before the transaction in which it did is on
//! disk.

use std::sync::Arc;

use btrfs_format::items::compression;
use btrfs_format::view::{BackRef, ExtentView};
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, ObjectId, TreeId};

use super::csum;
use crate::error::Result;
use crate::extent::{Extent, OnDisk};
use crate::files::Files;
use crate::object::{Inode, flags};

/// Addresses of extents that are unwritten in part.
pub(super) fn unwritten(extents: &[Extent]) -> Vec<LogicalAddr> {
    let of = |e: &Extent| e.on_disk().filter(|disk| disk.is_prealloc).map(|disk| disk.addr);
    extents.iter().filter_map(of).collect()
}

/// Addresses of extents that might be written in place: all where one of the files is nodatacow.
pub(super) fn in_place_candidates(extents: &[Extent], files: [&Inode; 2]) -> Vec<LogicalAddr> {
    if files.iter().all(|inode| inode.flags() & flags::NODATACOW == 0) {
        return unwritten(extents);
    }
    let on_disk = extents.iter().filter_map(|e| e.on_disk());
    on_disk.map(|disk| disk.addr).collect()
}

/// Notes that extents lose references in transaction `when`, before the extent tree tells.
pub(crate) fn note_dropped(files: &Files, addrs: &[LogicalAddr], when: Generation) {
    if addrs.is_empty() {
        return;
    }
    let committed = files.store().txn().committed();
    let mut remapped = files.data().remapped.lock();
    remapped.by_addr.retain(|_, when| *when > committed);
    for addr in addrs {
        let noted = remapped.by_addr.entry(*addr).or_insert(when);
        *noted = when.max(*noted);
    }
}

/// May a part of the extent be overwritten where it is? What is preallocated may, in every file,
/// and data of files without copy on write; where it is not shared. Checksums over it, which a
/// nodatacow file does not have, would be wrong afterwards.
pub(super) fn may_write_in_place(files: &Files, inode: &Arc<Inode>, extent: &Extent, disk: &OnDisk) -> Result<bool> {
    const IN_PLACE: u64 = flags::NODATACOW | flags::NODATASUM;
    let is_file_for_it = disk.compression == compression::NONE && inode.flags() & IN_PLACE == IN_PLACE;
    if !(disk.is_prealloc || is_file_for_it) || !is_exclusive(files, inode, extent, disk)? {
        return Ok(false);
    }
    let addr = LogicalAddr(disk.addr.get() + disk.offset_bytes);
    Ok(disk.is_prealloc || !csum::has_any(files, addr, extent.len_bytes)?)
}

/// Notes that extents are being shared, so that nothing is written in place until the extent tree
/// shows it. The caller has joined the transaction that shares them.
pub(crate) fn note_shared(files: &Files, addrs: &[LogicalAddr]) {
    if addrs.is_empty() {
        return;
    }
    let now = files.store().txn().running();
    let mut remapped = files.data().remapped.lock();
    if remapped.latest < now {
        let committed = files.store().txn().committed();
        remapped.by_addr.retain(|_, when| *when > committed);
    }
    remapped.latest = now;
    remapped.by_addr.extend(addrs.iter().map(|addr| (*addr, now)));
}

/// True where this inode alone can see the extent.
///
/// Snapshots share whole leaves: an item that is not younger than the last one may be shared
/// without a trace. Clones leave references of their own in the extent tree; those of the running
/// transaction are not there yet, and noted apart ([`note_shared`]); those that a commit takes away
/// are noted until it is on disk ([`note_dropped`]). So what both say is complete: an extent that
/// they do not know is ours alone if we made it since the last commit. An older item of which the
/// extent tree does not know is not ours: it may point anywhere, at tree blocks as well as at free
/// space that will be allocated.
///
/// The notes are looked at *after* the tree: a commit notes what goes before the tree shows that it
/// is gone, and a caller that looked at the notes first may miss the one and then see the other.
fn is_exclusive(files: &Files, inode: &Arc<Inode>, extent: &Extent, disk: &OnDisk) -> Result<bool> {
    Ok(!is_noted(files, disk.addr) && is_alone_in_tree(files, inode, extent, disk)? && !is_noted(files, disk.addr))
}

/// Its references changed in a transaction that is not on disk yet.
fn is_noted(files: &Files, addr: LogicalAddr) -> bool {
    let noted = files.data().remapped.lock().by_addr.get(&addr).copied();
    noted.is_some_and(|when| when > files.store().txn().committed())
}

/// As far as the extent tree and the last snapshot tell.
fn is_alone_in_tree(files: &Files, inode: &Arc<Inode>, extent: &Extent, disk: &OnDisk) -> Result<bool> {
    let tree = inode.tree.id();
    let root_key = Key::new(tree.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let root = files.store().forest().root_tree().floor_same_type(&root_key)?;
    let root = root.and_then(|(_, item)| btrfs_format::view::root_item(&item));
    let snapshot = root.map_or(Generation(0), |root| Generation::from(root.last_snapshot));
    if extent.generation <= snapshot {
        return Ok(false);
    }
    // Before the look: an item of a commit that ends in between has its extent in the tree
    // afterwards, and no item on disk is younger than the transaction that it was read from.
    let committed = files.store().txn().committed();
    let extents = files.store().forest().require(TreeId::EXTENT)?;
    let object = ObjectId(disk.addr.get());
    let key = Key::new(object, KeyType::EXTENT_ITEM, disk.len_bytes);
    let Some(item) = extents.get(&key)? else {
        return Ok(extent.generation > committed);
    };
    let Some(view) = ExtentView::new(&key, &item) else {
        return Ok(false);
    };
    // An item may be younger than what it points to.
    if Generation::from(view.head.generation) <= snapshot {
        return Ok(false);
    }
    // A clone within the file has another offset: parts of one extent at one offset do not overlap.
    let own_offset = extent.start.wrapping_sub(disk.offset_bytes);
    let is_ours = |found: BackRef| match found {
        BackRef::ExtentData {
            root, objectid, offset, ..
        } => (root, objectid, offset) == (tree.get(), inode.ino.get(), own_offset),
        BackRef::Owner { .. } => true,
        BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } | BackRef::SharedData { .. } => false,
    };
    if !view.inline_refs().all(is_ours) {
        return Ok(false);
    }
    let (from, to) = (KeyType::EXTENT_OWNER_REF, KeyType::SHARED_DATA_REF);
    let mut keyed = extents.cursor(Key::new(object, from, 0), Key::new(object, to, u64::MAX));
    while let Some((key, item)) = keyed.next()? {
        if !btrfs_format::view::keyed_back_ref(&key, &item).is_some_and(is_ours) {
            return Ok(false);
        }
    }
    Ok(true)
}
