//! The seven trees: names, magics and block headers.

use std::mem::offset_of;

use cowshed_layout::on_disk;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::header::{Identity, Kind, Magic, OwnerField};
use crate::ids::Uuid;

on_disk!(
    /// The header of a block in the short form, on V4.
    /// docs/format/xfs/btrees.md
    ShortHeader(16) {
        magic: U32,
        level: U16,
        numrecs: U16,
        leftsib: U32,
        rightsib: U32,
    }
);
on_disk!(
    /// The header of a block in the short form, on V5.
    /// docs/format/xfs/btrees.md
    ShortHeaderV5(56) {
        magic: U32,
        level: U16,
        numrecs: U16,
        leftsib: U32,
        rightsib: U32,
        bno: U64,
        lsn: U64,
        uuid: Uuid,
        owner: U32,
        crc: [u8; 4],
    }
);
on_disk!(
    /// The header of a block in the long form, on V4.
    /// docs/format/xfs/btrees.md
    LongHeader(24) {
        magic: U32,
        level: U16,
        numrecs: U16,
        leftsib: U64,
        rightsib: U64,
    }
);
on_disk!(
    /// The header of a block in the long form, on V5.
    /// docs/format/xfs/btrees.md
    LongHeaderV5(72) {
        magic: U32,
        level: U16,
        numrecs: U16,
        leftsib: U64,
        rightsib: U64,
        bno: U64,
        lsn: U64,
        uuid: Uuid,
        owner: U64,
        crc: [u8; 4],
        pad: U32,
    }
);

/// One of the seven trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tree {
    /// Free extents of an allocation group by their start.
    Bno,
    /// Free extents of an allocation group by their length.
    Cnt,
    /// Inode chunks of an allocation group.
    Inobt,
    /// Inode chunks with free inodes.
    Finobt,
    /// Owners of the blocks of an allocation group.
    Rmap,
    /// Blocks of an allocation group that files share, or that are staged for copy on write.
    Refcount,
    /// Extents of a file.
    Bmap,
}

/// Levels of a file's tree, the root in the inode included.
pub const BMAP_LEVELS_MAX: u8 = 9;

impl Tree {
    /// All trees.
    pub const ALL: [Self; 7] = [
        Self::Bno,
        Self::Cnt,
        Self::Inobt,
        Self::Finobt,
        Self::Rmap,
        Self::Refcount,
        Self::Bmap,
    ];

    /// The tree's name in the format's documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bno => "bnobt",
            Self::Cnt => "cntbt",
            Self::Inobt => "inobt",
            Self::Finobt => "finobt",
            Self::Rmap => "rmapbt",
            Self::Refcount => "refcountbt",
            Self::Bmap => "bmbt",
        }
    }

    const fn block_name(self) -> &'static str {
        match self {
            Self::Bno => "bnobt block",
            Self::Cnt => "cntbt block",
            Self::Inobt => "inobt block",
            Self::Finobt => "finobt block",
            Self::Rmap => "rmapbt block",
            Self::Refcount => "refcountbt block",
            Self::Bmap => "bmbt block",
        }
    }

    /// `magic` of the tree's blocks. The trees that V4 does not have, have one magic.
    pub const fn magic(self, is_v5: bool) -> u32 {
        let text = match (self, is_v5) {
            (Self::Bno, false) => b"ABTB",
            (Self::Bno, true) => b"AB3B",
            (Self::Cnt, false) => b"ABTC",
            (Self::Cnt, true) => b"AB3C",
            (Self::Inobt, false) => b"IABT",
            (Self::Inobt, true) => b"IAB3",
            (Self::Finobt, false) => b"FIBT",
            (Self::Finobt, true) => b"FIB3",
            (Self::Rmap, _) => b"RMB3",
            (Self::Refcount, _) => b"R3FC",
            (Self::Bmap, false) => b"BMAP",
            (Self::Bmap, true) => b"BMA3",
        };
        u32::from_be_bytes(*text)
    }

    /// The tree of blocks with this magic.
    pub fn from_magic(magic: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|tree| tree.magic(true) == magic || tree.magic(false) == magic)
    }

    /// True for the tree with pointers of 64 bits.
    pub const fn is_long(self) -> bool {
        matches!(self, Self::Bmap)
    }

    /// Bytes of a block's header.
    pub const fn header_bytes(self, is_v5: bool) -> usize {
        match (self.is_long(), is_v5) {
            (false, false) => size_of::<ShortHeader>(),
            (false, true) => size_of::<ShortHeaderV5>(),
            (true, false) => size_of::<LongHeader>(),
            (true, true) => size_of::<LongHeaderV5>(),
        }
    }

    pub(crate) fn kind(self, is_v5: bool) -> Kind {
        let identity = if self.is_long() {
            Identity {
                crc: offset_of!(LongHeaderV5, crc),
                uuid: offset_of!(LongHeaderV5, uuid),
                lsn: Some(offset_of!(LongHeaderV5, lsn)),
                daddr: Some(offset_of!(LongHeaderV5, bno)),
                owner: Some(OwnerField::Inode(offset_of!(LongHeaderV5, owner))),
            }
        } else {
            Identity {
                crc: offset_of!(ShortHeaderV5, crc),
                uuid: offset_of!(ShortHeaderV5, uuid),
                lsn: Some(offset_of!(ShortHeaderV5, lsn)),
                daddr: Some(offset_of!(ShortHeaderV5, bno)),
                owner: Some(OwnerField::Ag(offset_of!(ShortHeaderV5, owner))),
            }
        };
        Kind {
            name: self.block_name(),
            magic: Some(Magic::Wide(offset_of!(ShortHeader, magic), self.magic(is_v5))),
            identity: is_v5.then_some(identity),
        }
    }
}
