//! Blocks of values that do not fit a leaf. On V5 each has a header, on V4 they are the bytes of
//! the value alone.

use std::mem::offset_of;

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::VALUE_BYTES_MAX;
use crate::corrupt::{Checked, field, truncated};
use crate::geometry::Geometry;
use crate::header::{Expect, Identity, Kind, Magic, OwnerField, stamp, verified_block};
use crate::ids::Uuid;
use crate::num::to_len;
use crate::view;

on_disk!(
    /// `xfs_attr3_rmt_hdr`; a block of a symlink's target has the same fields.
    /// docs/format/xfs/attributes.md
    AttrRemoteHeader(56) {
        magic: U32,
        offset: U32,
        bytes: U32,
        crc: [u8; 4],
        uuid: Uuid,
        owner: U64,
        blkno: U64,
        lsn: U64,
    }
);

/// `XARM`.
pub const REMOTE_MAGIC: u32 = 0x5841_524d;

fn kind(is_v5: bool) -> Kind {
    remote_kind("remote attribute value", REMOTE_MAGIC, is_v5)
}

/// A block with [`AttrRemoteHeader`]. The LSN is "none" in values of attributes, which are not
/// logged.
pub(crate) fn remote_kind(name: &'static str, magic: u32, is_v5: bool) -> Kind {
    Kind {
        name,
        magic: is_v5.then_some(Magic::Wide(offset_of!(AttrRemoteHeader, magic), magic)),
        identity: is_v5.then_some(Identity {
            crc: offset_of!(AttrRemoteHeader, crc),
            uuid: offset_of!(AttrRemoteHeader, uuid),
            lsn: Some(offset_of!(AttrRemoteHeader, lsn)),
            daddr: Some(offset_of!(AttrRemoteHeader, blkno)),
            owner: Some(OwnerField::Inode(offset_of!(AttrRemoteHeader, owner))),
        }),
    }
}
fn size(geometry: &Geometry) -> u32 {
    geometry.block_bytes
}
fn header_bytes(is_v5: bool) -> usize {
    if is_v5 { size_of::<AttrRemoteHeader>() } else { 0 }
}

/// Checks place and length of a block's part against the most that all parts have together.
pub(crate) fn check_part(bytes: &[u8], expect: &Expect<'_>, whole_max: u64) -> Checked {
    if !expect.geometry.is_v5() {
        return Ok(());
    }
    let Some(header) = view::at::<AttrRemoteHeader>(bytes, 0) else {
        return Err(truncated("header", size_of::<AttrRemoteHeader>(), bytes.len()));
    };
    let room = bytes.len().saturating_sub(size_of::<AttrRemoteHeader>());
    let room = u64::try_from(room).unwrap_or_default();
    field("bytes", header.bytes.get(), Rule::Between(1, room))?;
    let end = u64::from(header.offset.get()).saturating_add(header.bytes.get().into());
    field("offset", end, Rule::AtMost(whole_max))
}

fn check(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    check_part(bytes, expect, VALUE_BYTES_MAX.into())
}

/// Bytes of a value in a block.
pub fn remote_value_bytes(geometry: &Geometry) -> u32 {
    let header = u32::try_from(header_bytes(geometry.is_v5())).unwrap_or_default();
    geometry.block_bytes.saturating_sub(header)
}

/// Blocks of a value.
pub fn remote_blocks(value_bytes: u32, geometry: &Geometry) -> u32 {
    value_bytes.div_ceil(remote_value_bytes(geometry).max(1))
}

verified_block!(
    /// A verified block of an attribute's value.
    AttrRemoteBlock { kind: kind, size: size, check: check }
);

/// The part of the value in a block.
pub(crate) fn part(bytes: &[u8], is_v5: bool) -> &[u8] {
    if !is_v5 {
        return bytes;
    }
    let len = view::at::<AttrRemoteHeader>(bytes, 0).map_or(0, |header| header.bytes.get());
    let body = bytes.get(header_bytes(is_v5)..).unwrap_or_default();
    body.get(..to_len(len.into())).unwrap_or_default()
}

pub(crate) fn part_offset(bytes: &[u8], is_v5: bool) -> Option<u32> {
    is_v5
        .then(|| view::at::<AttrRemoteHeader>(bytes, 0).map(|header| header.offset.get()))
        .flatten()
}

/// Lays a part out in so many bytes.
pub(crate) fn build_part(
    kind: &Kind,
    len_bytes: u32,
    offset: u32,
    part: &[u8],
    expect: &Expect<'_>,
) -> Option<Vec<u8>> {
    let is_v5 = expect.geometry.is_v5();
    let mut bytes = vec![0; to_len(len_bytes.into())];
    let numbers = [U32::new(offset), U32::new(u32::try_from(part.len()).ok()?)];
    let fits = view::put(&mut bytes, header_bytes(is_v5), part)
        && (!is_v5 || view::put(&mut bytes, offset_of!(AttrRemoteHeader, offset), numbers.as_bytes()));
    stamp(kind, &mut bytes, expect);
    fits.then_some(bytes)
}

impl AttrRemoteBlock {
    /// The part of the value in this block. On V4 the last block has bytes behind the value's end.
    pub fn part(&self) -> &[u8] {
        part(&self.bytes, self.is_v5)
    }
    /// Where in the value the part begins; V4 does not say.
    pub fn offset_bytes(&self) -> Option<u32> {
        part_offset(&self.bytes, self.is_v5)
    }
    /// Lays a part of a value out, ready to be sealed with [`crate::Lsn::NULL`]. `None` where it
    /// does not fit.
    pub fn build(offset_bytes: u32, part: &[u8], expect: &Expect<'_>) -> Option<Vec<u8>> {
        build_part(
            &kind(expect.geometry.is_v5()),
            size(expect.geometry),
            offset_bytes,
            part,
            expect,
        )
    }
}
