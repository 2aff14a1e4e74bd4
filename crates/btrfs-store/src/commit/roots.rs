//! What a commit writes about trees: root items, and the superblock.

use btrfs_format::items::{RootItem, Timespec};
use btrfs_format::superblock::RootBackup;
use btrfs_format::{Generation, Key, KeyType, ObjectId, Superblock, TreeId};
use cowshed_runtime::Timestamp;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::error::{Error, Result};
use crate::overlay::ItemBytes;
use crate::store::Store;
use crate::tree::{RootPtr, Tree};

/// Finds a tree's root item: its offset is 0, or for snapshots the transaction that made them.
pub(super) fn load_root_item(root_tree: &Tree, id: TreeId) -> Result<(Key, RootItem)> {
    let top = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let corrupt = |what| Error::CorruptTree {
        tree: TreeId::ROOT,
        what,
    };
    let key = root_tree
        .floor_committed_key(&top)?
        .filter(|key| key.objectid == top.objectid && key.ty == top.ty)
        .ok_or_else(|| corrupt(format!("no root item for tree {id}")))?;
    let item = root_tree.get_committed(&key)?;
    let root = item.as_deref().and_then(btrfs_format::view::root_item);
    Ok((
        key,
        root.ok_or_else(|| corrupt(format!("root item {key} is too short")))?,
    ))
}

/// The root item after the tree's root moved.
pub(super) fn update_root_item(
    item: &mut RootItem,
    root: RootPtr,
    transid: Generation,
    blocks_delta: i64,
    nodesize: u64,
) {
    item.bytenr = root.addr.into();
    item.level = root.level;
    item.generation = transid.into();
    item.generation_v2 = transid.into();
    let delta_bytes = blocks_delta.saturating_mul(nodesize.cast_signed());
    item.bytes_used = U64::new(item.bytes_used.get().saturating_add_signed(delta_bytes));
}

/// Marks a subvolume's content as changed in this transaction.
pub(super) fn touch_subvolume(item: &mut RootItem, transid: Generation, now: Timestamp) {
    item.ctransid = transid.into();
    item.ctime = Timespec {
        sec: U64::new(now.secs.cast_unsigned()),
        nsec: U32::new(now.nanos),
    };
}

pub(super) fn root_item_bytes(item: &RootItem) -> ItemBytes {
    item.as_bytes().into()
}

/// Fills everything in the superblock that a commit decides, but for what space knows.
pub(super) fn fill_superblock(store: &Store, sb: &mut Superblock, transid: Generation) -> Result<()> {
    let root = store.forest().root_tree().root();
    let chunk = store.forest().require(TreeId::CHUNK)?.root();
    let uuid_tree_current = sb.uuid_tree_generation.get() == sb.generation.get();
    sb.generation = transid.into();
    sb.root = root.addr.into();
    sb.root_level = root.level;
    sb.chunk_root = chunk.addr.into();
    sb.chunk_root_level = chunk.level;
    sb.chunk_root_generation = chunk.generation.into();
    sb.log_root = U64::ZERO;
    sb.log_root_level = 0;
    sb.flags = U64::new(sb.flags.get() | btrfs_format::features::header_flags::WRITTEN);
    if uuid_tree_current {
        sb.uuid_tree_generation = transid.into();
    } else if sb.uuid_tree_generation.get() >= transid.get() {
        // From a future that would come: the kernel looks through the subvolumes instead.
        sb.uuid_tree_generation = U64::ZERO;
    }
    Ok(())
}

/// Notes the new roots in the oldest of the superblock's four backups.
pub(super) fn fill_backup(store: &Store, sb: &mut Superblock) -> Result<()> {
    let newest = sb
        .super_roots
        .iter()
        .enumerate()
        .max_by_key(|(_, b)| b.tree_root_gen.get())
        .map_or(0, |(i, _)| i);
    let mut backup = RootBackup::new_zeroed();
    backup.tree_root = sb.root;
    backup.tree_root_gen = sb.generation;
    backup.tree_root_level = sb.root_level;
    backup.chunk_root = sb.chunk_root;
    backup.chunk_root_gen = sb.chunk_root_generation;
    backup.chunk_root_level = sb.chunk_root_level;
    let root_of = |id: TreeId| -> Result<Option<RootPtr>> { Ok(store.forest().load(id)?.map(|tree| tree.root())) };
    if let Some(root) = root_of(TreeId::EXTENT)? {
        backup.extent_root = root.addr.into();
        backup.extent_root_gen = root.generation.into();
        backup.extent_root_level = root.level;
    }
    if let Some(root) = root_of(TreeId::FS)? {
        backup.fs_root = root.addr.into();
        backup.fs_root_gen = root.generation.into();
        backup.fs_root_level = root.level;
    }
    if let Some(root) = root_of(TreeId::DEV)? {
        backup.dev_root = root.addr.into();
        backup.dev_root_gen = root.generation.into();
        backup.dev_root_level = root.level;
    }
    if let Some(root) = root_of(TreeId::CSUM)? {
        backup.csum_root = root.addr.into();
        backup.csum_root_gen = root.generation.into();
        backup.csum_root_level = root.level;
    }
    backup.total_bytes = sb.total_bytes;
    backup.bytes_used = sb.bytes_used;
    backup.num_devices = sb.num_devices;
    let slots = sb.super_roots.len();
    sb.super_roots[(newest + 1) % slots] = backup;
    Ok(())
}

/// True where root items may change outside of the commit of their own tree: those of subvolumes.
pub(super) fn has_root_item(id: TreeId) -> bool {
    id != TreeId::ROOT && id != TreeId::CHUNK && id.object_id() != ObjectId::TREE_LOG
}
