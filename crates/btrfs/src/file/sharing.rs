//! May somebody else see an extent? Asked before data is written in place.

use std::sync::Arc;

use btrfs_format::view::{BackRef, ExtentView};
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId};

use super::extent::{Extent, OnDisk};
use crate::engine::Engine;
use crate::error::Result;
use crate::inode::Inode;

/// True where nobody but this inode can see the extent, so that its unwritten part may be written in place.
///
/// Snapshots share whole leaves: an item that is not younger than the last one may be shared without a trace. Clones
/// leave references of their own in the extent tree. We ourselves never share preallocated extents (a clone of one
/// is a hole), so what the extent tree says is complete: an extent that it does not know yet is ours alone.
pub(super) fn is_exclusive(engine: &Engine, inode: &Arc<Inode>, extent: &Extent, disk: &OnDisk) -> Result<bool> {
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
    let is_ours = |found: BackRef| match found {
        BackRef::ExtentData { root, objectid, .. } => root == tree.get() && objectid == inode.ino.get(),
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
