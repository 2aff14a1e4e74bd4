//! Block groups and the free-space tree.

use zerocopy::FromBytes;

use super::item::{Item, aligned_end};
use super::volume::check_block_group_type;
use crate::corrupt::CorruptKind;
use crate::items::{BlockGroupItem, FREE_SPACE_BITMAP_BYTES, FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
use crate::key::{Key, KeyType};
use cowshed_layout::Rule;

/// Checks that the key states a range: an address and a length, both aligned, not empty.
fn check_range(item: &Item<'_>) -> Result<u64, CorruptKind> {
    item.field("length", item.key.offset, Rule::NonZero)?;
    item.field("length", item.key.offset, Rule::AlignedTo(item.ctx.sectorsize_bytes))?;
    aligned_end(item, "address", item.key.objectid.get(), item.key.offset)
}

pub(super) fn check_block_group(item: &Item<'_>) -> Result<(), CorruptKind> {
    let group: &BlockGroupItem = item.exact()?;
    check_range(item)?;
    item.field("chunk_objectid", group.chunk_objectid.get(), Rule::Equal(256))?;
    item.field("used", group.used.get(), Rule::AtMost(item.key.offset))?;
    check_block_group_type(item, group.flags.get())
}

pub(super) fn check_free_space_info(item: &Item<'_>) -> Result<(), CorruptKind> {
    let info: &FreeSpaceInfo = item.exact()?;
    check_range(item)?;
    item.field(
        "flags",
        info.flags.get().into(),
        Rule::KnownBits(FREE_SPACE_USING_BITMAPS.into()),
    )
}

/// Ranges of the free-space tree do not overlap, and lie in the block group whose info comes before
/// them.
fn check_after(item: &Item<'_>, prev: Option<(Key, &[u8])>, end: u64) -> Result<(), CorruptKind> {
    let Some((prev, data)) = prev else { return Ok(()) };
    let prev_end = prev.objectid.get().saturating_add(prev.offset);
    match prev.ty {
        KeyType::FREE_SPACE_INFO => {
            item.field("end", end, Rule::AtMost(prev_end))?;
            if let Ok(info) = FreeSpaceInfo::ref_from_bytes(data) {
                let bitmaps = info.flags.get() & FREE_SPACE_USING_BITMAPS != 0;
                let expected = if bitmaps {
                    KeyType::FREE_SPACE_BITMAP
                } else {
                    KeyType::FREE_SPACE_EXTENT
                };
                item.field("type", item.key.ty.0.into(), Rule::Equal(expected.0.into()))?;
            }
            Ok(())
        }
        KeyType::FREE_SPACE_EXTENT | KeyType::FREE_SPACE_BITMAP => {
            item.no_overlap(prev, prev_end, item.key.objectid.get())
        }
        _ => Ok(()),
    }
}

pub(super) fn check_free_space_extent(item: &Item<'_>, prev: Option<(Key, &[u8])>) -> Result<(), CorruptKind> {
    item.size(Rule::Equal(0))?;
    let end = check_range(item)?;
    check_after(item, prev, end)
}

pub(super) fn check_free_space_bitmap(item: &Item<'_>, prev: Option<(Key, &[u8])>) -> Result<(), CorruptKind> {
    let end = check_range(item)?;
    let bits = item
        .key
        .offset
        .checked_div(item.ctx.sectorsize_bytes)
        .unwrap_or_default();
    let most = u64::try_from(FREE_SPACE_BITMAP_BYTES).unwrap_or_default();
    item.field("bits", bits, Rule::AtMost(most.saturating_mul(8)))?;
    item.size(Rule::Equal(bits.div_ceil(8)))?;
    check_after(item, prev, end)
}
