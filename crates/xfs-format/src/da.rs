//! What directories and attributes share: the header of blocks in a hash tree, its nodes, and the
//! hash of names.

use std::mem::offset_of;

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::corrupt::{Checked, CorruptKind, field, truncated};
use crate::geometry::Geometry;
use crate::header::{Expect, Identity, Kind, Magic, OwnerField, be32, stamp, verified_block};
use crate::ids::{DaBlock, Uuid};
use crate::num::{count_of, to_len};
use crate::view;

on_disk!(
    /// `xfs_da_blkinfo`: siblings and magic, on V4.
    /// docs/format/xfs/directories.md
    DaBlockInfo(12) { forw: U32, back: U32, magic: U16, pad: U16 }
);
on_disk!(
    /// `xfs_da3_blkinfo`: the same on V5.
    /// docs/format/xfs/directories.md
    DaBlockInfoV5(56) {
        forw: U32,
        back: U32,
        magic: U16,
        pad: U16,
        crc: [u8; 4],
        blkno: U64,
        lsn: U64,
        uuid: Uuid,
        owner: U64,
    }
);
on_disk!(
    /// The header of a node of the hash tree, on V4.
    /// docs/format/xfs/directories.md
    DaNodeHeader(16) { info: DaBlockInfo, count: U16, level: U16 }
);
on_disk!(
    /// The header of a node of the hash tree, on V5.
    /// docs/format/xfs/directories.md
    DaNodeHeaderV5(64) { info: DaBlockInfoV5, count: U16, level: U16, pad32: U32 }
);
on_disk!(
    /// A child of a node: the greatest hash in it, and its block.
    /// docs/format/xfs/directories.md
    DaNodeEntry(8) { hashval: U32, before: U32 }
);

/// Levels of a hash tree, the leaves not counted.
pub const DA_LEVELS_MAX: u64 = 5;

/// Magic of a node.
const NODE_MAGIC: u16 = 0xfebe;
const NODE_MAGIC_V5: u16 = 0x3ebe;

/// The kind of a block that begins with [`DaBlockInfo`].
pub(crate) fn kind(name: &'static str, magic: [u16; 2], is_v5: bool) -> Kind {
    let [v4, v5] = magic;
    Kind {
        name,
        magic: Some(Magic::Narrow(
            offset_of!(DaBlockInfo, magic),
            if is_v5 { v5 } else { v4 },
        )),
        identity: is_v5.then_some(Identity {
            crc: offset_of!(DaBlockInfoV5, crc),
            uuid: offset_of!(DaBlockInfoV5, uuid),
            lsn: Some(offset_of!(DaBlockInfoV5, lsn)),
            daddr: Some(offset_of!(DaBlockInfoV5, blkno)),
            owner: Some(OwnerField::Inode(offset_of!(DaBlockInfoV5, owner))),
        }),
    }
}

fn node_kind(is_v5: bool) -> Kind {
    kind("da node", [NODE_MAGIC, NODE_MAGIC_V5], is_v5)
}

/// The neighbours of a block in its hash tree; 0 is none.
pub(crate) fn siblings(bytes: &[u8]) -> (DaBlock, DaBlock) {
    let at = |at| DaBlock(be32(bytes, at).unwrap_or_default());
    (at(offset_of!(DaBlockInfo, back)), at(offset_of!(DaBlockInfo, forw)))
}

pub(crate) fn put_siblings(bytes: &mut [u8], back: DaBlock, forw: DaBlock) -> bool {
    view::put(bytes, offset_of!(DaBlockInfo, back), &back.get().to_be_bytes())
        && view::put(bytes, offset_of!(DaBlockInfo, forw), &forw.get().to_be_bytes())
}

/// Hashes that do not rise.
pub(crate) fn hash_order(prev: u32, found: u32) -> Checked {
    if prev <= found {
        return Ok(());
    }
    Err(CorruptKind::Order {
        field: "hashval",
        prev: format!("{prev:#x}").into(),
        found: format!("{found:#x}").into(),
    }
    .into())
}

fn node_header_bytes(is_v5: bool) -> usize {
    if is_v5 {
        size_of::<DaNodeHeaderV5>()
    } else {
        size_of::<DaNodeHeader>()
    }
}

/// Count and level: they follow the block info.
fn count_and_level(bytes: &[u8], is_v5: bool) -> Option<(u16, u16)> {
    if is_v5 {
        let header = view::at::<DaNodeHeaderV5>(bytes, 0)?;
        return Some((header.count.get(), header.level.get()));
    }
    let header = view::at::<DaNodeHeader>(bytes, 0)?;
    Some((header.count.get(), header.level.get()))
}

fn check_node(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let is_v5 = expect.geometry.is_v5();
    let header_bytes = node_header_bytes(is_v5);
    let short = || truncated("header", header_bytes, bytes.len());
    let (count, level) = count_and_level(bytes, is_v5).ok_or_else(short)?;
    let room = count_of::<DaNodeEntry>(bytes.len().saturating_sub(header_bytes));
    field(
        "count",
        count,
        Rule::Between(1, u64::try_from(room).unwrap_or_default()),
    )?;
    field("level", level, Rule::Between(1, DA_LEVELS_MAX))?;
    let entries = view::slice::<DaNodeEntry>(bytes, header_bytes, count.into()).ok_or_else(short)?;
    let mut before = 0;
    for (slot, entry) in entries.iter().enumerate() {
        hash_order(before, entry.hashval.get()).map_err(|fault| fault.in_slot(slot))?;
        // Block 0 is the root, or the first data block of a directory.
        field("before", entry.before.get(), Rule::NonZero).map_err(|fault| fault.in_slot(slot))?;
        before = entry.hashval.get();
    }
    Ok(())
}

fn dir_block(geometry: &Geometry) -> u32 {
    geometry.dir_block_bytes
}
fn attr_block(geometry: &Geometry) -> u32 {
    geometry.block_bytes
}

verified_block!(
    /// A verified node of a directory's hash tree.
    DirNodeBlock { kind: node_kind, size: dir_block, check: check_node }
);
verified_block!(
    /// A verified node of the hash tree of attributes.
    AttrNodeBlock { kind: node_kind, size: attr_block, check: check_node }
);

macro_rules! node_access {
    ($name:ident, $size:ident) => {
        impl $name {
            /// The level, from 1: that of the blocks whose children are leaves.
            pub fn level(&self) -> u8 {
                let (_, level) = count_and_level(&self.bytes, self.is_v5).unwrap_or_default();
                u8::try_from(level).unwrap_or(u8::MAX)
            }
            /// The children, by hash.
            pub fn entries(&self) -> &[DaNodeEntry] {
                let (count, _) = count_and_level(&self.bytes, self.is_v5).unwrap_or_default();
                view::slice(&self.bytes, node_header_bytes(self.is_v5), count.into()).unwrap_or_default()
            }
            /// The blocks before and behind on the same level; 0 is none.
            pub fn siblings(&self) -> (DaBlock, DaBlock) {
                siblings(&self.bytes)
            }
            /// The slot of the first child that can have this hash; `None` where it is above all.
            pub fn child_slot(&self, hash: u32) -> Option<usize> {
                let entries = self.entries();
                let slot = entries.partition_point(|entry| entry.hashval.get() < hash);
                (slot < entries.len()).then_some(slot)
            }
            /// Lays a node out, ready to be sealed. `None` where the entries do not fit.
            pub fn build(
                level: u8,
                entries: &[DaNodeEntry],
                (back, forw): (DaBlock, DaBlock),
                expect: &Expect<'_>,
            ) -> Option<Vec<u8>> {
                let geometry = expect.geometry;
                let mut bytes = vec![0; to_len($size(geometry).into())];
                let count = U16::new(u16::try_from(entries.len()).ok()?);
                let header_bytes = node_header_bytes(geometry.is_v5());
                // Both headers have the count behind the block info.
                let at = if geometry.is_v5() {
                    offset_of!(DaNodeHeaderV5, count)
                } else {
                    offset_of!(DaNodeHeader, count)
                };
                let fits = view::put(&mut bytes, header_bytes, entries.as_bytes())
                    && view::put(&mut bytes, at, [count, U16::new(level.into())].as_bytes())
                    && put_siblings(&mut bytes, back, forw);
                stamp(&node_kind(geometry.is_v5()), &mut bytes, expect);
                fits.then_some(bytes)
            }
        }
    };
}
node_access!(DirNodeBlock, dir_block);
node_access!(AttrNodeBlock, attr_block);

/// The hash of a name: each byte is mixed in after a rotation by seven bits. Attributes use it
/// always, directories where names are not compared without regard to case.
pub fn name_hash(name: &[u8]) -> u32 {
    name.iter()
        .fold(0_u32, |hash, byte| u32::from(*byte) ^ hash.rotate_left(7))
}

/// The hash of a name in lower case.
pub fn name_hash_ascii_ci(name: &[u8]) -> u32 {
    name.iter()
        .fold(0_u32, |hash, byte| u32::from(to_lower(*byte)) ^ hash.rotate_left(7))
}

/// Lower case as volumes with ASCII_CI mean it: the letters of ISO 8859-1, not those of ASCII
/// alone.
pub fn to_lower(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' | 0xc0..=0xd6 | 0xd8..=0xde => byte | 0x20,
        _ => byte,
    }
}

impl Geometry {
    /// The hash of an entry's name in a directory of this volume.
    pub fn dir_name_hash(&self, name: &[u8]) -> u32 {
        if self.is_ascii_ci() {
            name_hash_ascii_ci(name)
        } else {
            name_hash(name)
        }
    }
    /// True where two names are the same in a directory of this volume.
    pub fn is_same_dir_name(&self, one: &[u8], other: &[u8]) -> bool {
        if !self.is_ascii_ci() {
            return one == other;
        }
        let lower = |name: &[u8]| name.iter().map(|byte| to_lower(*byte)).collect::<Vec<_>>();
        one.len() == other.len() && lower(one) == lower(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_format() {
        // As `xfs_db -c "hash NAME"` says.
        assert_eq!(name_hash(b"."), 0x2e);
        assert_eq!(name_hash(b".."), 0x172e);
        assert_eq!(name_hash(b"lost+found"), 0x021a_a60c);
        assert_eq!(name_hash(b"abcdefghijklmnopqrstuvwxyz"), 0x5500_4ae3);
        assert_eq!(name_hash_ascii_ci(b"NaMe\xc4"), name_hash(b"name\xe4"));
        assert_eq!([0xd7, 0xdf, b'@', b'['].map(to_lower), [0xd7, 0xdf, b'@', b'[']);
    }
}
