//! The structures of the headers.

use std::mem::offset_of;

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use cowshed_layout::on_disk;

use crate::geometry::Geometry;
use crate::ids::Uuid;

on_disk!(
    /// `xfs_agf`: free space.
    /// docs/format/xfs/allocation-groups.md
    Agf(224) {
        magicnum: U32,
        versionnum: U32,
        seqno: U32,
        length: U32,
        bnoroot: U32,
        cntroot: U32,
        rmaproot: U32,
        bnolevel: U32,
        cntlevel: U32,
        rmaplevel: U32,
        flfirst: U32,
        fllast: U32,
        flcount: U32,
        freeblks: U32,
        longest: U32,
        btreeblks: U32,
        uuid: Uuid,
        rmapblocks: U32,
        refcntblocks: U32,
        refcntroot: U32,
        refcntlevel: U32,
        spare64: [U64; 14],
        lsn: U64,
        crc: [u8; 4],
        spare2: U32,
    }
);
/// Lists of unlinked inodes in an AGI.
pub const UNLINKED_BUCKETS: usize = 64;
on_disk!(
    /// `xfs_agi`: inodes.
    /// docs/format/xfs/allocation-groups.md
    Agi(344) {
        magicnum: U32,
        versionnum: U32,
        seqno: U32,
        length: U32,
        count: U32,
        root: U32,
        level: U32,
        freecount: U32,
        newino: U32,
        dirino: U32,
        unlinked: [U32; UNLINKED_BUCKETS],
        uuid: Uuid,
        crc: [u8; 4],
        pad32: U32,
        lsn: U64,
        free_root: U32,
        free_level: U32,
        ino_blocks: U32,
        fino_blocks: U32,
    }
);
on_disk!(
    /// `xfs_agfl`: the header of the list of spare blocks, on V5. On V4 the list begins at once.
    /// docs/format/xfs/allocation-groups.md
    AgflHeader(36) {
        magicnum: U32,
        seqno: U32,
        uuid: Uuid,
        lsn: U64,
        crc: [u8; 4],
    }
);
const _: () = assert!(offset_of!(Agf, lsn) == 208 && offset_of!(Agi, uuid) == 296 && offset_of!(Agi, lsn) == 320);

/// `XAGF`.
pub const AGF_MAGIC: u32 = 0x5841_4746;
/// `XAGI`.
pub const AGI_MAGIC: u32 = 0x5841_4749;
/// `XAFL`.
pub const AGFL_MAGIC: u32 = 0x5841_464c;
/// Bytes before the block numbers of an AGFL, on V5.
pub const AGFL_HEADER_BYTES: usize = size_of::<AgflHeader>();
/// `versionnum` of AGF and AGI.
pub(super) const AG_VERSION: u64 = 1;

/// How many levels the B-trees of an allocation group may have; no volume comes near it.
pub const AG_BTREE_LEVELS_MAX: u64 = 9;

impl Geometry {
    /// Block numbers of the AGFL.
    pub fn agfl_slots(&self) -> u32 {
        let header = if self.is_v5() { AGFL_HEADER_BYTES } else { 0 };
        let header = u32::try_from(header).unwrap_or_default();
        self.sector_bytes.saturating_sub(header) >> 2
    }
}
