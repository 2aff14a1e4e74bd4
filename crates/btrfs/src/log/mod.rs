//! The fsync log: trees beside the subvolumes' trees, which the superblock leads to until the next
//! commit.
//!
//! What a log holds and how it is replayed is in docs/design/log-tree.md. This file has what writer
//! and reader share: where the log begins, and the keys that only logs have.
//!
//! ```text
//!   superblock.log_root -> log root tree
//!                          (TREE_LOG ROOT_ITEM subvolume) -> one log tree for each subvolume
//! ```
//!
//! All blocks are owned by tree -6 ([`TreeId::TREE_LOG`]), carry the number of the transaction
//! under way (one above the superblock's) and have no extent items: only the superblock knows them,
//! and a commit forgets them.

pub(crate) mod replay;
pub(crate) mod write;

use btrfs_format::items::{DirLogItem, RootItem};
use btrfs_format::{Generation, Key, KeyType, ObjectId, Superblock, TreeId};
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

use btrfs_store::tree::RootPtr;

/// Where the log root tree names a subvolume's log.
pub(crate) fn root_key(subvol: TreeId) -> Key {
    Key::new(ObjectId::TREE_LOG, KeyType::ROOT_ITEM, subvol.get())
}

/// The item that says that a log has all entries of a directory from `first_index` to the item's
/// `end`, both included.
pub(crate) fn dir_range_key(dir: ObjectId, first_index: u64) -> Key {
    Key::new(dir, KeyType::DIR_LOG_INDEX, first_index)
}

/// See [`dir_range_key`].
pub(crate) fn dir_range_item(last_index: u64) -> DirLogItem {
    DirLogItem {
        end: U64::new(last_index),
    }
}

/// The item of the log root tree for one log. Watched: all other fields are zero, inode and `refs`
/// included.
pub(crate) fn root_item(log: RootPtr) -> RootItem {
    let mut item = RootItem::new_zeroed();
    item.bytenr = log.addr.into();
    item.level = log.level;
    item.generation = log.generation.into();
    item.generation_v2 = log.generation.into();
    item
}

/// The root of the log root tree; `None` where the volume has no log.
pub(crate) fn root_of(sb: &Superblock) -> Option<RootPtr> {
    (sb.log_root.get() != 0).then(|| RootPtr {
        addr: sb.log_root.into(),
        generation: Generation::from(sb.generation).next(),
        level: sb.log_root_level,
    })
}
