//! Tree roots and the single items of the root, quota and uuid trees.

use super::item::Item;
use crate::corrupt::CorruptKind;
use crate::features::root_flags;
use crate::header::LEVEL_MAX;
use crate::ids::{ObjectId, TreeId};
use crate::items::{FreeSpaceHeader, ROOT_ITEM_V0_BYTES, RootItem};
use crate::view;
use cowshed_layout::Rule;

/// Old volumes have no `enable_gen` in the status.
pub(super) const QGROUP_STATUS_SIZES: Rule = Rule::OneOf(&[32, 40]);
pub(super) const QGROUP_SIZE: Rule = Rule::Equal(40);
/// `btrfs_balance_item`.
const BALANCE_ITEM_BYTES: u64 = 448;
/// `btrfs_dev_replace_item`.
const DEV_REPLACE_BYTES: u64 = 72;
/// A root item, and one from before `generation_v2`.
const ROOT_ITEM_SIZES: [usize; 2] = [size_of::<RootItem>(), ROOT_ITEM_V0_BYTES];

pub(super) fn check_root_item(item: &Item<'_>) -> Result<(), CorruptKind> {
    let root = match view::root_item(item.data) {
        Some(root) if ROOT_ITEM_SIZES.contains(&item.data.len()) => root,
        _ => return Err(item.size_error(Rule::OneOf(&[239, 439]))),
    };
    item.field("tree", item.key.objectid.get(), Rule::NonZero)?;
    if item.key.objectid.tree_id() == TreeId::TREE_RELOC {
        // The offset names the tree that is being relocated.
        item.field("key offset", item.key.offset, Rule::NonZero)?;
    }
    item.generation("generation", root.generation.get())?;
    item.generation("generation_v2", root.generation_v2.get())?;
    item.generation("last_snapshot", root.last_snapshot.get())?;
    item.field("bytenr", root.bytenr.get(), Rule::AlignedTo(item.ctx.sectorsize_bytes))?;
    item.field("level", root.level.into(), Rule::AtMost(LEVEL_MAX.into()))?;
    item.field("drop_level", root.drop_level.into(), Rule::AtMost(LEVEL_MAX.into()))?;
    if root.drop_progress.objectid.get() != 0 {
        // Progress is kept as the key of a node.
        item.field("drop_level", root.drop_level.into(), Rule::NonZero)?;
    }
    item.field(
        "flags",
        root.flags.get(),
        Rule::KnownBits(root_flags::SUBVOL_RDONLY | root_flags::SUBVOL_DEAD),
    )
}

/// The state of a balance.
pub(super) fn check_temporary(item: &Item<'_>) -> Result<(), CorruptKind> {
    if item.key.objectid == ObjectId::BALANCE {
        return item.size(Rule::Equal(BALANCE_ITEM_BYTES));
    }
    Ok(())
}

/// Error counters of a device; later versions may count more.
pub(super) fn check_persistent(item: &Item<'_>) -> Result<(), CorruptKind> {
    if item.key.objectid == ObjectId::DEV_STATS {
        return item.size(Rule::MultipleOf(8));
    }
    Ok(())
}

pub(super) fn check_dev_replace(item: &Item<'_>) -> Result<(), CorruptKind> {
    item.size(Rule::AtLeast(DEV_REPLACE_BYTES))
}

/// The header of a version 1 free-space cache.
pub(super) fn check_untyped(item: &Item<'_>) -> Result<(), CorruptKind> {
    if item.key.objectid == ObjectId::FREE_SPACE {
        let _: &FreeSpaceHeader = item.exact()?;
    }
    Ok(())
}
