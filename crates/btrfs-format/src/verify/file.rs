//! File extents and the checksums of their data.

use zerocopy::FromBytes;

use super::item::{Item, aligned_end};
use crate::corrupt::CorruptKind;
use crate::ids::ObjectId;
use crate::items::{FileExtent, FileExtentHead, compression, file_extent_type};
use crate::key::{Key, KeyType};
use cowshed_layout::{Rule, len_u64};

/// The most that one compressed extent holds, and takes.
const COMPRESSED_EXTENT_BYTES_MAX: u64 = 128 << 10;

pub(super) fn check_file_extent(item: &Item<'_>, prev: Option<(Key, &[u8])>) -> Result<(), CorruptKind> {
    let sectorsize = item.ctx.sectorsize_bytes;
    item.field("file offset", item.key.offset, Rule::AlignedTo(sectorsize))?;
    let (head, _): (&FileExtentHead, _) = item.part("extent", item.data)?;
    item.field("type", head.ty.into(), Rule::AtMost(file_extent_type::PREALLOC.into()))?;
    let packed = head.compression;
    item.field("compression", packed.into(), Rule::AtMost(compression::ZSTD.into()))?;
    item.field("encryption", head.encryption.into(), Rule::Equal(0))?;
    item.field("other_encoding", head.other_encoding.get().into(), Rule::Equal(0))?;
    item.generation("generation", head.generation.get())?;
    if head.ty == file_extent_type::INLINE {
        check_inline(item, head)?;
    } else {
        check_regular(item, head)?;
    }
    if let Some((prev, data)) = prev
        && prev.ty == KeyType::EXTENT_DATA
        && prev.objectid == item.key.objectid
    {
        item.no_overlap(prev, file_extent_end(prev, data, sectorsize), item.key.offset)?;
    }
    Ok(())
}

/// Data in the item itself: the file's first sector, or less of it.
fn check_inline(item: &Item<'_>, head: &FileExtentHead) -> Result<(), CorruptKind> {
    item.field("file offset", item.key.offset, Rule::Equal(0))?;
    let ram_bytes = head.ram_bytes.get();
    if head.compression == compression::NONE {
        item.size(Rule::Equal(ram_bytes.saturating_add(21)))
    } else {
        item.field("ram_bytes", ram_bytes, Rule::AtMost(item.ctx.sectorsize_bytes))
    }
}

/// A regular or preallocated extent, or a hole.
fn check_regular(item: &Item<'_>, head: &FileExtentHead) -> Result<(), CorruptKind> {
    let extent: &FileExtent = item.exact()?;
    let aligned = Rule::AlignedTo(item.ctx.sectorsize_bytes);
    let (disk_num_bytes, ram_bytes) = (extent.disk_num_bytes.get(), extent.ram_bytes.get());
    let (offset, num_bytes) = (extent.offset.get(), extent.num_bytes.get());
    item.field("ram_bytes", ram_bytes, aligned)?;
    item.field("disk_num_bytes", disk_num_bytes, aligned)?;
    item.field("offset", offset, aligned)?;
    item.field("num_bytes", num_bytes, aligned)?;
    item.field("num_bytes", num_bytes, Rule::NonZero)?;
    aligned_end(item, "disk_bytenr", extent.disk_bytenr.get(), disk_num_bytes)?;
    aligned_end(item, "file offset", item.key.offset, num_bytes)?;
    let packed = head.compression != compression::NONE;
    if head.ty == file_extent_type::PREALLOC {
        item.field("compression", head.compression.into(), Rule::Equal(0))?;
    }
    if extent.disk_bytenr.get() == 0 {
        return Ok(());
    }
    // `ram_bytes` of an extent that is not compressed says nothing: kernels wrote less than the
    // extent has.
    let whole = if packed { ram_bytes } else { disk_num_bytes };
    let end = Rule::AtMost(whole);
    item.field("offset + num_bytes", offset.saturating_add(num_bytes), end)?;
    if packed {
        item.field("ram_bytes", ram_bytes, Rule::AtMost(COMPRESSED_EXTENT_BYTES_MAX))?;
        let limit = Rule::Between(1, COMPRESSED_EXTENT_BYTES_MAX);
        item.field("disk_num_bytes", disk_num_bytes, limit)?;
    }
    Ok(())
}

/// Where a verified extent item ends in its file.
fn file_extent_end(key: Key, data: &[u8], sectorsize_bytes: u64) -> u64 {
    let len = match FileExtentHead::ref_from_prefix(data) {
        Ok((head, _)) if head.ty == file_extent_type::INLINE => {
            let mask = sectorsize_bytes.wrapping_sub(1);
            head.ram_bytes.get().saturating_add(mask) & !mask
        }
        _ => FileExtent::ref_from_bytes(data).map_or(0, |extent| extent.num_bytes.get()),
    };
    key.offset.saturating_add(len)
}

/// `EXTENT_CSUM`: one checksum for each sector from the key's offset on. How many bytes one takes
/// is the volume's choice.
pub(super) fn check_csum_item(item: &Item<'_>, prev: Option<(Key, &[u8])>) -> Result<(), CorruptKind> {
    let csum_bytes = item.ctx.csum_bytes;
    item.field(
        "objectid",
        item.key.objectid.get(),
        Rule::Equal(ObjectId::EXTENT_CSUM.get()),
    )?;
    item.size(Rule::MultipleOf(csum_bytes))?;
    let covered = |data: &[u8]| {
        let sums = len_u64(data).checked_div(csum_bytes).unwrap_or_default();
        sums.saturating_mul(item.ctx.sectorsize_bytes)
    };
    aligned_end(item, "address", item.key.offset, covered(item.data))?;
    if let Some((prev, data)) = prev
        && prev.ty == KeyType::EXTENT_CSUM
    {
        item.no_overlap(prev, prev.offset.saturating_add(covered(data)), item.key.offset)?;
    }
    Ok(())
}
