//! The free index of a directory with several leaves: how much each data block has free.

use std::mem::offset_of;

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::data::data_header_bytes;
use crate::corrupt::{Checked, field, truncated};
use crate::geometry::Geometry;
use crate::header::{Expect, Identity, Kind, Magic, OwnerField, stamp, verified_block};
use crate::ids::Uuid;
use crate::num::{count_of, to_len};
use crate::view;

on_disk!(
    /// `xfs_dir2_free_hdr`, on V4.
    /// docs/format/xfs/directories.md
    DirFreeHeader(16) { magic: U32, firstdb: U32, nvalid: U32, nused: U32 }
);
on_disk!(
    /// `xfs_dir3_free_hdr`, on V5.
    /// docs/format/xfs/directories.md
    DirFreeHeaderV5(64) {
        magic: U32,
        crc: [u8; 4],
        blkno: U64,
        lsn: U64,
        uuid: Uuid,
        owner: U64,
        firstdb: U32,
        nvalid: U32,
        nused: U32,
        pad: U32,
    }
);

/// Stands for a data block that is not there.
pub const NULL_BEST: u16 = u16::MAX;

fn kind(is_v5: bool) -> Kind {
    let magic = u32::from_be_bytes(if is_v5 { *b"XDF3" } else { *b"XD2F" });
    Kind {
        name: "directory free index",
        magic: Some(Magic::Wide(offset_of!(DirFreeHeader, magic), magic)),
        identity: is_v5.then_some(Identity {
            crc: offset_of!(DirFreeHeaderV5, crc),
            uuid: offset_of!(DirFreeHeaderV5, uuid),
            lsn: Some(offset_of!(DirFreeHeaderV5, lsn)),
            daddr: Some(offset_of!(DirFreeHeaderV5, blkno)),
            owner: Some(OwnerField::Inode(offset_of!(DirFreeHeaderV5, owner))),
        }),
    }
}
fn size(geometry: &Geometry) -> u32 {
    geometry.dir_block_bytes
}
fn header_bytes(is_v5: bool) -> usize {
    if is_v5 {
        size_of::<DirFreeHeaderV5>()
    } else {
        size_of::<DirFreeHeader>()
    }
}
fn numbers_at(is_v5: bool) -> usize {
    if is_v5 {
        offset_of!(DirFreeHeaderV5, firstdb)
    } else {
        offset_of!(DirFreeHeader, firstdb)
    }
}

/// First data block, valid slots, used slots.
fn numbers(bytes: &[u8], is_v5: bool) -> Option<(u32, u32, u32)> {
    match view::slice::<U32>(bytes, numbers_at(is_v5), 3)? {
        [first, valid, used] => Some((first.get(), valid.get(), used.get())),
        _ => None,
    }
}

/// Free bytes of a data block: none, a multiple of 8, or no block.
pub(super) fn check_best(best: u16, geometry: &Geometry) -> Checked {
    if best == NULL_BEST {
        return Ok(());
    }
    field("bests", best, Rule::AlignedTo(8))?;
    let room = to_len(geometry.dir_block_bytes.into()).saturating_sub(data_header_bytes(geometry.is_v5()));
    field("bests", best, Rule::AtMost(u64::try_from(room).unwrap_or_default()))
}

fn check(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let geometry = expect.geometry;
    let header_bytes = header_bytes(geometry.is_v5());
    let short = || truncated("header", header_bytes, bytes.len());
    let (first, valid, used) = numbers(bytes, geometry.is_v5()).ok_or_else(short)?;
    let slots = u64::try_from(count_of::<U16>(bytes.len().saturating_sub(header_bytes))).unwrap_or_default();
    if first != 0 {
        field("firstdb", first, Rule::MultipleOf(slots))?;
    }
    field("nvalid", valid, Rule::AtMost(slots))?;
    let bests = view::slice::<U16>(bytes, header_bytes, to_len(valid.into())).ok_or_else(short)?;
    let mut found = 0_u64;
    for (slot, best) in bests.iter().enumerate() {
        check_best(best.get(), geometry).map_err(|fault| fault.in_slot(slot))?;
        found = found.saturating_add(u64::from(best.get() != NULL_BEST));
    }
    field("nused", used, Rule::Equal(found))
}

verified_block!(
    /// A verified block of a directory's free index.
    DirFreeBlock { kind: kind, size: size, check: check }
);

impl DirFreeBlock {
    /// The data block for which the first slot stands.
    pub fn first_data_block(&self) -> u32 {
        numbers(&self.bytes, self.is_v5).map_or(0, |(first, ..)| first)
    }
    /// The largest free span of each data block, in bytes; [`NULL_BEST`] for a block that is not
    /// there.
    pub fn bests(&self) -> &[U16] {
        let valid = numbers(&self.bytes, self.is_v5).map_or(0, |(_, valid, _)| valid);
        view::slice(&self.bytes, header_bytes(self.is_v5), to_len(valid.into())).unwrap_or_default()
    }
    /// Lays a block out, ready to be sealed. `None` where it does not fit.
    pub fn build(first_data_block: u32, bests: &[U16], expect: &Expect<'_>) -> Option<Vec<u8>> {
        let is_v5 = expect.geometry.is_v5();
        let mut bytes = vec![0; to_len(size(expect.geometry).into())];
        let used = bests.iter().filter(|best| best.get() != NULL_BEST).count();
        let numbers = [
            U32::new(first_data_block),
            U32::new(u32::try_from(bests.len()).ok()?),
            U32::new(u32::try_from(used).ok()?),
        ];
        let fits = view::put(&mut bytes, numbers_at(is_v5), numbers.as_bytes())
            && view::put(&mut bytes, header_bytes(is_v5), bests.as_bytes());
        stamp(&kind(is_v5), &mut bytes, expect);
        fits.then_some(bytes)
    }
}
