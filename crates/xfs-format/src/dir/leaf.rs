//! Leaf blocks: entries by hash. A directory with one leaf (form "leaf") keeps the free space of
//! its data blocks at the end of it, one with several (form "node") in blocks of their own.

use std::mem::offset_of;

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::index::{DirLeafEntry, check_leaf_entries};
use crate::corrupt::{Checked, field, truncated};
use crate::da::{self, DaBlockInfo, DaBlockInfoV5, put_siblings};
use crate::geometry::Geometry;
use crate::header::{Expect, Kind, stamp, verified_block};
use crate::ids::DaBlock;
use crate::num::{count_of, to_len};
use crate::view;

on_disk!(
    /// `xfs_dir2_leaf_hdr`, on V4.
    /// docs/format/xfs/directories.md
    DirLeafHeader(16) { info: DaBlockInfo, count: U16, stale: U16 }
);
on_disk!(
    /// `xfs_dir3_leaf_hdr`, on V5.
    /// docs/format/xfs/directories.md
    DirLeafHeaderV5(64) { info: DaBlockInfoV5, count: U16, stale: U16, pad: U32 }
);
on_disk!(
    /// `xfs_dir2_leaf_tail`: at the end of the only leaf of a directory.
    /// docs/format/xfs/directories.md
    DirLeafTail(4) { bestcount: U32 }
);

fn leaf1_kind(is_v5: bool) -> Kind {
    da::kind("directory leaf", [0xd2f1, 0x3df1], is_v5)
}
fn leafn_kind(is_v5: bool) -> Kind {
    da::kind("directory leaf of several", [0xd2ff, 0x3dff], is_v5)
}
fn size(geometry: &Geometry) -> u32 {
    geometry.dir_block_bytes
}

fn header_bytes(is_v5: bool) -> usize {
    if is_v5 {
        size_of::<DirLeafHeaderV5>()
    } else {
        size_of::<DirLeafHeader>()
    }
}

fn counts_at(is_v5: bool) -> usize {
    if is_v5 {
        offset_of!(DirLeafHeaderV5, count)
    } else {
        offset_of!(DirLeafHeader, count)
    }
}

fn counts(bytes: &[u8], is_v5: bool) -> Option<(u16, u16)> {
    match view::slice::<U16>(bytes, counts_at(is_v5), 2)? {
        [count, stale] => Some((count.get(), stale.get())),
        _ => None,
    }
}

fn entries(bytes: &[u8], is_v5: bool) -> Option<&[DirLeafEntry]> {
    let (count, _) = counts(bytes, is_v5)?;
    view::slice(bytes, header_bytes(is_v5), count.into())
}

/// Checks the entries of a leaf with this much room behind its header.
fn check_entries(bytes: &[u8], room: usize, is_v5: bool) -> Checked {
    let short = || truncated("header", header_bytes(is_v5), bytes.len());
    let (count, stale) = counts(bytes, is_v5).ok_or_else(short)?;
    let most = count_of::<DirLeafEntry>(room);
    field("count", count, Rule::AtMost(u64::try_from(most).unwrap_or_default()))?;
    let entries = entries(bytes, is_v5).ok_or_else(short)?;
    check_leaf_entries(entries, stale.into())
}

fn check_leafn(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let is_v5 = expect.geometry.is_v5();
    check_entries(bytes, bytes.len().saturating_sub(header_bytes(is_v5)), is_v5)
}

/// The free space of the data blocks, at the end of the only leaf.
fn bests(bytes: &[u8]) -> Option<&[U16]> {
    let tail_at = bytes.len().checked_sub(size_of::<DirLeafTail>())?;
    let tail = view::at::<DirLeafTail>(bytes, tail_at)?;
    let count = to_len(tail.bestcount.get().into());
    let at = tail_at.checked_sub(count.checked_mul(size_of::<U16>())?)?;
    view::slice(bytes, at, count)
}

fn check_leaf1(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let is_v5 = expect.geometry.is_v5();
    let room = bytes
        .len()
        .saturating_sub(header_bytes(is_v5))
        .saturating_sub(size_of::<DirLeafTail>());
    let Some(bests) = bests(bytes) else {
        let tail = view::at::<DirLeafTail>(bytes, bytes.len().saturating_sub(size_of::<DirLeafTail>()));
        let most = u64::try_from(count_of::<U16>(room)).unwrap_or_default();
        return field(
            "bestcount",
            tail.map_or(0, |tail| tail.bestcount.get()),
            Rule::AtMost(most),
        );
    };
    for (slot, best) in bests.iter().enumerate() {
        super::free::check_best(best.get(), expect.geometry).map_err(|fault| fault.in_slot(slot))?;
    }
    check_entries(bytes, room.saturating_sub(size_of_val(bests)), is_v5)
}

verified_block!(
    /// The verified leaf of a directory that has one.
    DirLeaf1Block { kind: leaf1_kind, size: size, check: check_leaf1 }
);
verified_block!(
    /// A verified leaf of a directory that has several.
    DirLeafNBlock { kind: leafn_kind, size: size, check: check_leafn }
);

fn put_entries(bytes: &mut [u8], entries: &[DirLeafEntry], is_v5: bool) -> Option<()> {
    let stale = entries.iter().filter(|entry| entry.is_stale()).count();
    let counts = [
        U16::new(u16::try_from(entries.len()).ok()?),
        U16::new(u16::try_from(stale).ok()?),
    ];
    let fits = view::put(bytes, counts_at(is_v5), counts.as_bytes())
        && view::put(bytes, header_bytes(is_v5), entries.as_bytes());
    fits.then_some(())
}

impl DirLeaf1Block {
    /// Entries by hash, stale ones among them.
    pub fn entries(&self) -> &[DirLeafEntry] {
        entries(&self.bytes, self.is_v5).unwrap_or_default()
    }
    /// The largest free span of each data block, in bytes; [`super::NULL_BEST`] for a block that is
    /// not there.
    pub fn bests(&self) -> &[U16] {
        bests(&self.bytes).unwrap_or_default()
    }
    /// Lays a leaf out, ready to be sealed. `None` where it does not fit.
    pub fn build(entries: &[DirLeafEntry], bests: &[U16], expect: &Expect<'_>) -> Option<Vec<u8>> {
        let is_v5 = expect.geometry.is_v5();
        let mut bytes = vec![0; to_len(size(expect.geometry).into())];
        let tail_at = bytes.len().checked_sub(size_of::<DirLeafTail>())?;
        let tail = DirLeafTail {
            bestcount: U32::new(u32::try_from(bests.len()).ok()?),
        };
        let bests_at = tail_at.checked_sub(size_of_val(bests))?;
        let end = header_bytes(is_v5).checked_add(size_of_val(entries))?;
        let fits = end <= bests_at
            && view::put(&mut bytes, tail_at, tail.as_bytes())
            && view::put(&mut bytes, bests_at, bests.as_bytes())
            && put_entries(&mut bytes, entries, is_v5).is_some();
        stamp(&leaf1_kind(is_v5), &mut bytes, expect);
        fits.then_some(bytes)
    }
}

impl DirLeafNBlock {
    /// Entries by hash, stale ones among them.
    pub fn entries(&self) -> &[DirLeafEntry] {
        entries(&self.bytes, self.is_v5).unwrap_or_default()
    }
    /// The leaves before and behind; 0 is none.
    pub fn siblings(&self) -> (DaBlock, DaBlock) {
        da::siblings(&self.bytes)
    }
    /// Lays a leaf out, ready to be sealed. `None` where it does not fit.
    pub fn build(entries: &[DirLeafEntry], (back, forw): (DaBlock, DaBlock), expect: &Expect<'_>) -> Option<Vec<u8>> {
        let is_v5 = expect.geometry.is_v5();
        let mut bytes = vec![0; to_len(size(expect.geometry).into())];
        let fits = put_entries(&mut bytes, entries, is_v5).is_some() && put_siblings(&mut bytes, back, forw);
        stamp(&leafn_kind(is_v5), &mut bytes, expect);
        fits.then_some(bytes)
    }
}
