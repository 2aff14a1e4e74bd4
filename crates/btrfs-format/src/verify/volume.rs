//! Items of the chunk and device trees, and the chunks in the superblock.

use zerocopy::FromBytes;

use super::item::{Item, aligned_end};
use crate::corrupt::CorruptKind;
use crate::features::block_group as bg;
use crate::ids::{ObjectId, TreeId};
use crate::items::{ChunkHead, DevExtent, DevItem, STRIPE_LEN_BYTES, Stripe};
use crate::key::{Key, KeyType};
use cowshed_layout::{Rule, len_u64};

/// Chunks are counted in stripes by 32 bits.
const CHUNK_BYTES_MAX: u64 = STRIPE_LEN_BYTES.saturating_mul(0xffff_ffff);

/// What a chunk type demands of `num_stripes`.
fn num_stripes_rule(profile: u64) -> Rule {
    match profile {
        0 => Rule::Equal(1),
        bg::DUP | bg::RAID1 => Rule::Equal(2),
        bg::RAID1C3 => Rule::Equal(3),
        bg::RAID1C4 => Rule::Equal(4),
        bg::RAID5 => Rule::AtLeast(2),
        bg::RAID6 => Rule::AtLeast(3),
        bg::RAID10 => Rule::MultipleOf(2),
        _ => Rule::AtLeast(1),
    }
}

/// `type` of a chunk or `flags` of a block group.
pub(super) fn check_block_group_type(item: &Item<'_>, flags: u64) -> Result<(), CorruptKind> {
    item.field("type", flags, Rule::KnownBits(bg::TYPE_MASK | bg::PROFILE_MASK))?;
    item.field("profile", flags, Rule::OneBitAtMostOf(bg::PROFILE_MASK))?;
    item.field(
        "usage",
        flags & bg::TYPE_MASK,
        Rule::OneOf(&[bg::DATA, bg::SYSTEM, bg::METADATA, bg::DATA | bg::METADATA]),
    )
}

/// A chunk item, in the chunk tree or in the superblock's array.
pub(super) fn check_chunk(item: &Item<'_>, data: &[u8]) -> Result<(), CorruptKind> {
    let Ok((head, stripes)) = ChunkHead::ref_from_prefix(data) else {
        return Err(item.size_error(Rule::AtLeast(48)));
    };
    let sectorsize = item.ctx.sectorsize_bytes;
    item.field("objectid", item.key.objectid.get(), Rule::Equal(256))?;
    item.field("num_stripes", head.num_stripes.get().into(), Rule::NonZero)?;
    let stripes_bytes = u64::from(head.num_stripes.get()).saturating_mul(32);
    if len_u64(stripes) != stripes_bytes {
        return Err(item.size_error(Rule::Equal(stripes_bytes.saturating_add(48))));
    }
    let ty = head.ty.get();
    check_block_group_type(item, ty)?;
    let profile = ty & bg::PROFILE_MASK;
    item.field("num_stripes", head.num_stripes.get().into(), num_stripes_rule(profile))?;
    if profile == bg::RAID10 {
        item.field("sub_stripes", head.sub_stripes.get().into(), Rule::Equal(2))?;
    }
    item.field("sector_size", head.sector_size.get().into(), Rule::Equal(sectorsize))?;
    item.field("stripe_len", head.stripe_len.get(), Rule::Equal(STRIPE_LEN_BYTES))?;
    let length = head.length.get();
    item.field("length", length, Rule::Between(1, CHUNK_BYTES_MAX))?;
    item.field("length", length, Rule::AlignedTo(sectorsize))?;
    aligned_end(item, "logical address", item.key.offset, length)?;
    let (stripes, _) =
        <[Stripe]>::ref_from_prefix_with_elems(stripes, head.num_stripes.get().into()).unwrap_or_default();
    for stripe in stripes {
        item.field("stripe devid", stripe.devid.get(), Rule::NonZero)?;
        // No stripe is longer than its chunk; the exact length depends on the profile.
        aligned_end(item, "stripe offset", stripe.offset.get(), 0)?;
    }
    Ok(())
}

pub(super) fn check_dev_item(item: &Item<'_>) -> Result<(), CorruptKind> {
    let dev: &DevItem = item.exact()?;
    item.field(
        "objectid",
        item.key.objectid.get(),
        Rule::Equal(ObjectId::DEV_ITEMS.get()),
    )?;
    item.field("devid", dev.devid.get(), Rule::Equal(item.key.offset))?;
    item.field("bytes_used", dev.bytes_used.get(), Rule::AtMost(dev.total_bytes.get()))
}

pub(super) fn check_dev_extent(item: &Item<'_>, prev: Option<(Key, &[u8])>) -> Result<(), CorruptKind> {
    let extent: &DevExtent = item.exact()?;
    let sectorsize = item.ctx.sectorsize_bytes;
    item.field("devid", item.key.objectid.get(), Rule::NonZero)?;
    item.field("chunk_tree", extent.chunk_tree.get(), Rule::Equal(TreeId::CHUNK.get()))?;
    item.field("chunk_objectid", extent.chunk_objectid.get(), Rule::Equal(256))?;
    item.field("chunk_offset", extent.chunk_offset.get(), Rule::AlignedTo(sectorsize))?;
    item.field("length", extent.length.get(), Rule::NonZero)?;
    item.field("length", extent.length.get(), Rule::AlignedTo(sectorsize))?;
    aligned_end(item, "device offset", item.key.offset, extent.length.get())?;
    if let Some((prev, data)) = prev
        && prev.ty == KeyType::DEV_EXTENT
        && prev.objectid == item.key.objectid
        && let Ok(before) = DevExtent::ref_from_bytes(data)
    {
        item.no_overlap(prev, prev.offset.saturating_add(before.length.get()), item.key.offset)?;
    }
    Ok(())
}
