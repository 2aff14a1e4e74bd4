//! Records and keys of the trees.

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::corrupt::{Checked, CorruptKind, agree, field, mismatch};
use crate::geometry::{CHUNK_INODES, Geometry};
use crate::ids::{AgBlock, AgIno, AgNumber, FileBlock, FsBlock, Ino};
use crate::num::{low_bits, shl};

on_disk!(
    /// `xfs_alloc_rec`, and the key of it: a free extent.
    /// docs/format/xfs/btrees.md
    AllocRecord(8) { startblock: U32, blockcount: U32 }
);
on_disk!(
    /// `xfs_inobt_rec`: a chunk of 64 inodes. `counts` depends on sparse chunks.
    /// docs/format/xfs/btrees.md
    InobtRecord(16) { startino: U32, counts: U32, free: U64 }
);
on_disk!(
    /// `xfs_inobt_key`.
    /// docs/format/xfs/btrees.md
    InobtKey(4) { startino: U32 }
);
on_disk!(
    /// `xfs_rmap_rec`: blocks and what they belong to.
    /// docs/format/xfs/btrees.md
    RmapRecord(24) { startblock: U32, blockcount: U32, owner: U64, offset: U64 }
);
on_disk!(
    /// `xfs_rmap_key`.
    /// docs/format/xfs/btrees.md
    RmapKey(20) { startblock: U32, owner: U64, offset: U64 }
);
on_disk!(
    /// What a node of the rmapbt holds for a child: its least key and the greatest key of all in it.
    /// docs/format/xfs/btrees.md
    RmapNodeKey(40) { low: RmapKey, high: RmapKey }
);
on_disk!(
    /// `xfs_refcount_rec`: shared blocks, or blocks staged for copy on write.
    /// docs/format/xfs/btrees.md
    RefcountRecord(12) { startblock: U32, blockcount: U32, refcount: U32 }
);
on_disk!(
    /// `xfs_refcount_key`.
    /// docs/format/xfs/btrees.md
    RefcountKey(4) { startblock: U32 }
);
on_disk!(
    /// `xfs_bmbt_rec`: an extent of a file, packed into two numbers.
    /// docs/format/xfs/btrees.md
    BmapRecord(16) { l0: U64, l1: U64 }
);
on_disk!(
    /// `xfs_bmbt_key`.
    /// docs/format/xfs/btrees.md
    BmapKey(8) { startoff: U64 }
);

/// Set in `startblock` of blocks that are staged for copy on write.
pub const REFCOUNT_COW_FLAG: u32 = 1 << 31;
/// A count that is reached is never changed again.
pub const REFCOUNT_MAX: u32 = u32::MAX;

/// Flags of `offset` in the rmapbt, and what is left of it.
pub mod rmap_offset {
    /// The blocks belong to the attribute fork.
    pub const ATTR_FORK: u64 = 1 << 63;
    /// The blocks hold the tree of the fork, not its contents.
    pub const BMBT_BLOCK: u64 = 1 << 62;
    /// The extent is unwritten.
    pub const UNWRITTEN: u64 = 1 << 61;
    /// Block of the file.
    pub const OFFSET_MASK: u64 = (1 << 54) - 1;
}

/// What blocks belong to, by the rmapbt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmapOwner {
    /// A file, directory or symlink.
    Inode(Ino),
    /// Headers of the allocation group.
    FsHeaders,
    /// The log.
    Log,
    /// bnobt, cntbt, rmapbt and AGFL.
    AgBtrees,
    /// inobt and finobt.
    InodeBtrees,
    /// Inode chunks.
    Inodes,
    /// refcountbt.
    RefcountBtree,
    /// Blocks staged for copy on write.
    CowStaging,
}

impl RmapOwner {
    /// Owners that are no inode, with the numbers that stand for them and their names.
    pub const SPECIAL: [(Self, i64, &'static str); 7] = [
        (Self::FsHeaders, -3, "fs"),
        (Self::Log, -4, "log"),
        (Self::AgBtrees, -5, "ag"),
        (Self::InodeBtrees, -6, "inobt"),
        (Self::Inodes, -7, "inodes"),
        (Self::RefcountBtree, -8, "refcount"),
        (Self::CowStaging, -9, "cow"),
    ];

    /// From the number. `None` for one that the format does not define.
    pub fn from_raw(raw: u64) -> Option<Self> {
        if raw >> 63 == 0 {
            return Some(Self::Inode(Ino(raw)));
        }
        let number = raw.cast_signed();
        Self::SPECIAL
            .iter()
            .find(|(_, special, _)| *special == number)
            .map(|(owner, ..)| *owner)
    }

    /// The number.
    pub fn to_raw(self) -> u64 {
        if let Self::Inode(ino) = self {
            return ino.get();
        }
        let special = Self::SPECIAL.iter().find(|(owner, ..)| *owner == self);
        special.map_or(0, |(_, number, _)| number.cast_unsigned())
    }
}

impl RmapRecord {
    /// The key of the record's first block.
    pub fn low_key(&self) -> RmapKey {
        RmapKey {
            startblock: self.startblock,
            owner: self.owner,
            offset: U64::new(self.offset.get() & !rmap_offset::UNWRITTEN),
        }
    }
    /// The key of the record's last block.
    pub fn high_key(&self) -> RmapKey {
        let more = self.blockcount.get().saturating_sub(1);
        let moves = RmapOwner::from_raw(self.owner.get()).is_some_and(|owner| matches!(owner, RmapOwner::Inode(_)))
            && self.offset.get() & rmap_offset::BMBT_BLOCK == 0;
        let offset = self.offset.get() & !rmap_offset::UNWRITTEN;
        RmapKey {
            startblock: U32::new(self.startblock.get().saturating_add(more)),
            owner: self.owner,
            offset: U64::new(if moves {
                offset.saturating_add(more.into())
            } else {
                offset
            }),
        }
    }
}

impl RmapKey {
    /// Start, owner, then offset with the flags of fork and tree. Whether the extent is unwritten
    /// does not count: old kernels left that flag in keys.
    pub fn order(&self) -> (u32, u64, u64) {
        (
            self.startblock.get(),
            self.owner.get(),
            self.offset.get() & !rmap_offset::UNWRITTEN,
        )
    }
}

impl RefcountRecord {
    /// True for blocks that are staged for copy on write.
    pub fn is_cow_staging(&self) -> bool {
        self.startblock.get() & REFCOUNT_COW_FLAG != 0
    }
    /// The first block.
    pub fn start(&self) -> AgBlock {
        AgBlock(self.startblock.get() & !REFCOUNT_COW_FLAG)
    }
}

/// Inodes for which a bit of `holemask` stands.
const INODES_PER_HOLEMASK_BIT: u32 = 4;

impl InobtRecord {
    /// Groups of four inodes that are not there, on volumes with sparse chunks.
    pub fn holemask(&self, geometry: &Geometry) -> u16 {
        let [high, low, ..] = self.counts.to_bytes();
        if geometry.has_sparse_chunks() {
            u16::from_be_bytes([high, low])
        } else {
            0
        }
    }
    /// Inodes that are there.
    pub fn count(&self, geometry: &Geometry) -> u32 {
        let [_, _, count, _] = self.counts.to_bytes();
        if geometry.has_sparse_chunks() {
            count.into()
        } else {
            CHUNK_INODES
        }
    }
    /// Inodes that are there and free.
    pub fn freecount(&self, geometry: &Geometry) -> u32 {
        let [.., freecount] = self.counts.to_bytes();
        if geometry.has_sparse_chunks() {
            freecount.into()
        } else {
            self.counts.get()
        }
    }
    /// A bit for each inode that is there.
    pub fn allocated_mask(&self, geometry: &Geometry) -> u64 {
        let holes = self.holemask(geometry);
        (0..16_u8)
            .filter(|bit| holes & 1_u16.wrapping_shl((*bit).into()) == 0)
            .fold(0, |mask, bit| mask | shl(0xf, bit.saturating_mul(4)))
    }
    /// A record from its parts.
    pub fn new(geometry: &Geometry, start: AgIno, holemask: u16, free: u64) -> Self {
        let mut record = Self {
            startino: U32::new(start.get()),
            counts: U32::new(0),
            free: U64::new(free),
        };
        let [high, low] = holemask.to_be_bytes();
        if geometry.has_sparse_chunks() {
            record.counts = U32::from_bytes([high, low, 0, 0]);
        }
        let mask = record.allocated_mask(geometry);
        let (count, freecount) = (mask.count_ones(), (free & mask).count_ones());
        let byte = |n| u8::try_from(n).unwrap_or(u8::MAX);
        record.counts = if geometry.has_sparse_chunks() {
            U32::from_bytes([high, low, byte(count), byte(freecount)])
        } else {
            U32::new(freecount)
        };
        record
    }
}

/// An extent of a file, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The first block of the file that it maps; 54 bits.
    pub offset: FileBlock,
    /// The first block of the volume; 52 bits.
    pub start: FsBlock,
    /// Blocks; 21 bits.
    pub blocks: u32,
    /// Allocated, but reads as zeros.
    pub is_unwritten: bool,
}

/// Most blocks of an extent.
pub const EXTENT_BLOCKS_MAX: u32 = (1 << 21) - 1;
const OFFSET_BITS: u8 = 54;
const START_BITS: u8 = 52;
const COUNT_BITS: u8 = 21;
/// Bits of the start that lie in the first number.
const START_HIGH_BITS: u8 = 9;

impl Extent {
    /// One behind the last block of the file that it maps.
    pub fn end(&self) -> FileBlock {
        FileBlock(self.offset.get().saturating_add(self.blocks.into()))
    }
    /// True where each part fits its bits.
    pub fn fits(&self) -> bool {
        low_bits(self.offset.get(), OFFSET_BITS) == self.offset.get()
            && low_bits(self.start.get(), START_BITS) == self.start.get()
            && self.blocks <= EXTENT_BLOCKS_MAX
    }
}

impl BmapRecord {
    /// Unpacks the record.
    pub fn extent(&self) -> Extent {
        let (l0, l1) = (self.l0.get(), self.l1.get());
        let start_low_bits = START_BITS.saturating_sub(START_HIGH_BITS);
        Extent {
            offset: FileBlock(low_bits(l0 >> START_HIGH_BITS, OFFSET_BITS)),
            start: FsBlock(shl(low_bits(l0, START_HIGH_BITS), start_low_bits) | l1 >> COUNT_BITS),
            blocks: u32::try_from(low_bits(l1, COUNT_BITS)).unwrap_or_default(),
            is_unwritten: l0 >> 63 != 0,
        }
    }
    /// Packs an extent; what does not fit is cut off, see [`Extent::fits`].
    pub fn new(extent: &Extent) -> Self {
        let start_low_bits = START_BITS.saturating_sub(START_HIGH_BITS);
        let start = low_bits(extent.start.get(), START_BITS);
        let l0 = u64::from(extent.is_unwritten) << 63
            | low_bits(extent.offset.get(), OFFSET_BITS) << START_HIGH_BITS
            | crate::num::shr(start, start_low_bits);
        let l1 = low_bits(start, start_low_bits) << COUNT_BITS | low_bits(extent.blocks.into(), COUNT_BITS);
        Self {
            l0: U64::new(l0),
            l1: U64::new(l1),
        }
    }
}

fn ag_extent(geometry: &Geometry, group: Option<AgNumber>, start: u32, blocks: u32) -> Checked {
    field("blockcount", blocks, Rule::NonZero)?;
    let Some(group) = group else { return Ok(()) };
    if geometry.is_ag_extent(group, AgBlock(start), blocks) {
        return Ok(());
    }
    let expected = format_args!("{blocks} blocks of the group").to_string();
    Err(mismatch("startblock", start, expected))
}

fn overlap(field: &'static str, start: u64, prev_end: u64) -> Checked {
    if start < prev_end {
        return Err(CorruptKind::Overlap { field, start, prev_end }.into());
    }
    Ok(())
}

pub(super) fn no_pair<T>(_prev: &T, _record: &T, _geometry: &Geometry) -> Checked {
    Ok(())
}

pub(super) fn check_alloc(record: &AllocRecord, geometry: &Geometry, group: Option<AgNumber>) -> Checked {
    ag_extent(geometry, group, record.startblock.get(), record.blockcount.get())
}
pub(super) fn check_alloc_pair(prev: &AllocRecord, record: &AllocRecord, _geometry: &Geometry) -> Checked {
    let end = u64::from(prev.startblock.get()).saturating_add(prev.blockcount.get().into());
    overlap("startblock", record.startblock.get().into(), end)
}

pub(super) fn check_inobt(record: &InobtRecord, geometry: &Geometry, group: Option<AgNumber>) -> Checked {
    let start = record.startino.get();
    // Chunks begin on a block; small blocks hold a part of one.
    let unit = u64::from(CHUNK_INODES).min(shl(1, geometry.inodes_per_block_log));
    field("startino", start, Rule::AlignedTo(unit))?;
    let mask = record.allocated_mask(geometry);
    field("count", record.count(geometry), Rule::Equal(mask.count_ones().into()))?;
    field(
        "count",
        record.count(geometry),
        Rule::AtLeast(INODES_PER_HOLEMASK_BIT.into()),
    )?;
    let free = (record.free.get() & mask).count_ones();
    field("freecount", record.freecount(geometry), Rule::Equal(free.into()))?;
    let Some(group) = group else { return Ok(()) };
    let first = mask.trailing_zeros();
    let last = u64::BITS.saturating_sub(1).saturating_sub(mask.leading_zeros());
    for ino in [start.saturating_add(first), start.saturating_add(last)] {
        if !geometry.is_ag_ino(group, AgIno(ino)) {
            return Err(mismatch("startino", start, "a chunk of the group"));
        }
    }
    Ok(())
}
pub(super) fn check_inobt_pair(prev: &InobtRecord, record: &InobtRecord, _geometry: &Geometry) -> Checked {
    let end = u64::from(prev.startino.get()).saturating_add(CHUNK_INODES.into());
    overlap("startino", record.startino.get().into(), end)
}

pub(super) fn check_rmap(record: &RmapRecord, geometry: &Geometry, group: Option<AgNumber>) -> Checked {
    let (start, blocks) = (record.startblock.get(), record.blockcount.get());
    let Some(owner) = RmapOwner::from_raw(record.owner.get()) else {
        return Err(mismatch(
            "owner",
            record.owner.get().cast_signed(),
            "an inode or -9 to -3",
        ));
    };
    let offset = record.offset.get();
    if owner == RmapOwner::FsHeaders {
        // The only record about blocks that trees and files cannot have.
        let length = group.map_or(u32::MAX, |group| geometry.ag_len(group));
        field("blockcount", blocks, Rule::NonZero)?;
        field(
            "blockcount",
            u64::from(start).saturating_add(blocks.into()),
            Rule::AtMost(length.into()),
        )?;
    } else {
        ag_extent(geometry, group, start, blocks)?;
    }
    let flags = rmap_offset::ATTR_FORK | rmap_offset::BMBT_BLOCK | rmap_offset::UNWRITTEN;
    field("offset", offset, Rule::KnownBits(flags | rmap_offset::OFFSET_MASK))?;
    let RmapOwner::Inode(ino) = owner else {
        return field("offset", offset, Rule::Equal(0));
    };
    if !geometry.is_inode(ino) {
        return Err(mismatch("owner", ino, "an inode of the volume"));
    }
    agree(
        offset & rmap_offset::BMBT_BLOCK == 0 || offset & (rmap_offset::UNWRITTEN | rmap_offset::OFFSET_MASK) == 0,
        "offset of a block of the bmbt, or unwritten",
    )?;
    agree(
        offset & rmap_offset::ATTR_FORK == 0 || offset & rmap_offset::UNWRITTEN == 0,
        "unwritten extent in the attribute fork",
    )
}

pub(super) fn check_refcount(record: &RefcountRecord, geometry: &Geometry, group: Option<AgNumber>) -> Checked {
    ag_extent(geometry, group, record.start().get(), record.blockcount.get())?;
    if record.is_cow_staging() {
        field("refcount", record.refcount.get(), Rule::Equal(1))
    } else {
        field("refcount", record.refcount.get(), Rule::AtLeast(2))
    }
}
pub(super) fn check_refcount_pair(prev: &RefcountRecord, record: &RefcountRecord, _geometry: &Geometry) -> Checked {
    let end = u64::from(prev.startblock.get()).saturating_add(prev.blockcount.get().into());
    overlap("startblock", record.startblock.get().into(), end)
}

pub(super) fn check_bmap(record: &BmapRecord, geometry: &Geometry, _group: Option<AgNumber>) -> Checked {
    check_extent(&record.extent(), geometry)
}
pub(super) fn check_bmap_pair(prev: &BmapRecord, record: &BmapRecord, _geometry: &Geometry) -> Checked {
    overlap("startoff", record.extent().offset.get(), prev.extent().end().get())
}

/// Checks an extent of a file. Those of realtime files lie on a device that is not read here.
pub(crate) fn check_extent(extent: &Extent, geometry: &Geometry) -> Checked {
    field("blockcount", extent.blocks, Rule::NonZero)?;
    let end = geometry.file_end_block().get();
    field("startoff", extent.end().get(), Rule::AtMost(end))?;
    let realtime_end = geometry.realtime_blocks;
    let is_realtime = extent.start.get().saturating_add(extent.blocks.into()) <= realtime_end;
    if is_realtime || geometry.is_extent(extent.start, extent.blocks.into()) {
        return Ok(());
    }
    let expected = format!("{} blocks of the volume", extent.blocks);
    Err(mismatch("startblock", extent.start, expected))
}
