//! May somebody else see an extent? Asked before data is written in place.

use std::collections::HashMap;
use std::sync::Arc;

use btrfs_format::view::{BackRef, ExtentView};
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, ObjectId, TreeId};

use super::extent::{Extent, OnDisk};
use crate::engine::Engine;
use crate::error::Result;
use crate::inode::Inode;

/// Unwritten extents that the running transaction gave to one more file, or to another.
#[derive(Debug, Default)]
pub(super) struct Remapped {
    /// When: as long as that is not committed, the extent tree does not tell.
    by_addr: HashMap<LogicalAddr, Generation>,
    /// The newest of these.
    latest: Generation,
}

/// Addresses of extents that are unwritten in part.
pub(super) fn unwritten(extents: &[Extent]) -> Vec<LogicalAddr> {
    let of = |e: &Extent| e.on_disk().filter(|disk| disk.is_prealloc).map(|disk| disk.addr);
    extents.iter().filter_map(of).collect()
}

/// Notes that extents are being shared, so that nobody writes in place until the extent tree tells. The caller has joined
/// the transaction that shares them.
pub(super) fn note_shared(engine: &Engine, addrs: &[LogicalAddr]) {
    if addrs.is_empty() {
        return;
    }
    let now = engine.txn.running();
    let mut remapped = engine.file.remapped.lock();
    if remapped.latest < now {
        let committed = engine.txn.committed();
        remapped.by_addr.retain(|_, when| *when > committed);
    }
    remapped.latest = now;
    remapped.by_addr.extend(addrs.iter().map(|addr| (*addr, now)));
}

/// True where nobody but this inode can see the extent, so that its unwritten part may be written in place.
///
/// Snapshots share whole leaves: an item that is not younger than the last one may be shared without a trace. Clones
/// leave references of their own in the extent tree; those of the running transaction are not there yet, and noted
/// apart ([`note_shared`]). So what both say is complete: an extent that they do not know is ours alone.
pub(super) fn is_exclusive(engine: &Engine, inode: &Arc<Inode>, extent: &Extent, disk: &OnDisk) -> Result<bool> {
    let noted = engine.file.remapped.lock().by_addr.get(&disk.addr).copied();
    if noted.is_some_and(|when| when > engine.txn.committed()) {
        return Ok(false);
    }
    let tree = inode.tree.id();
    let root_key = Key::new(tree.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let root = engine.forest.root_tree().floor_same_type(&root_key)?;
    let root = root.and_then(|(_, item)| btrfs_format::view::root_item(&item));
    if root.is_some_and(|root| extent.generation <= Generation::from(root.last_snapshot)) {
        return Ok(false);
    }
    let extents = engine.forest.require(TreeId::EXTENT)?;
    let object = ObjectId(disk.addr.get());
    let key = Key::new(object, KeyType::EXTENT_ITEM, disk.len_bytes);
    let Some(item) = extents.get(&key)? else {
        return Ok(true);
    };
    let Some(view) = ExtentView::new(&key, &item) else {
        return Ok(false);
    };
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
