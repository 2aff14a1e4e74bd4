//! Ioctls of our own, for what Linux does not pass on to a file system in user space: those that name a second file by a
//! descriptor, and those whose size is not in their number. docs/design/ioctls.md.
//!
//! A second file is named by a [`Token`] that was got through it: who holds one had the file open.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{I32, I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The letter of our ioctls.
const LETTER: u32 = 0xc5;
const READ: u32 = 2 << 30;
const WRITE: u32 = 1 << 30;

const fn number(direction: u32, number: u32, size: usize) -> u32 {
    assert!(size < 1 << 14, "the number has 14 bits for the size");
    direction | (size as u32) << 16 | LETTER << 8 | number
}

/// Lends the open file: fills a [`Token`].
pub const LEND: u32 = number(READ, 1, size_of::<Token>());
/// Clones, dedupes or exchanges a range of the lent file with this one: [`Remap`].
pub const REMAP: u32 = number(READ | WRITE, 2, size_of::<Remap>());
/// Extents of the file: [`MapPage`].
pub const MAP: u32 = number(READ | WRITE, 3, size_of::<MapPage>());
/// `BTRFS_IOC_DEFRAG_RANGE` of `<linux/btrfs.h>`: [`DefragRange`].
pub const DEFRAG_RANGE: u32 = WRITE | (size_of::<DefragRange>() as u32) << 16 | 0x9410;

/// `BTRFS_IOC_SYNC` of `<linux/btrfs.h>`, without an argument.
pub const SYNC: u32 = 0x9408;

/// Names an open file to one who has another open. Random; good for a minute while the file is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Token(pub [u8; 16]);

/// What [`Remap`] does.
pub mod op {
    /// FICLONERANGE: from the lent file into this one.
    pub const CLONE: u32 = 0;
    /// FIDEDUPERANGE: the lent file is the source.
    pub const DEDUPE: u32 = 1;
    /// XFS_IOC_EXCHANGE_RANGE: this is the second file.
    pub const EXCHANGE: u32 = 2;
}

/// Flags of [`Remap`].
pub mod flag {
    /// Exchange to the end of both files.
    pub const TO_EOF: u32 = 1;
    /// Exchange only if this file has the identity and the times given.
    pub const IF_FRESH: u32 = 2;
    /// Exchange: only look whether it could be done.
    pub const DRY_RUN: u32 = 4;
    /// On disk when the call returns.
    pub const SYNC: u32 = 8;
    /// Exchange only what is written in the other file.
    pub const ONLY_WRITTEN: u32 = 16;
}

/// A time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Time {
    pub secs: I64,
    pub nanos: U32,
    pub pad: U32,
}

/// Argument of [`REMAP`]; offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Remap {
    pub token: Token,
    pub op: U32,
    pub flags: U32,
    /// In the lent file.
    pub src_offset: U64,
    /// In this one.
    pub dst_offset: U64,
    /// 0: to the end of the source (clone).
    pub len_bytes: U64,
    /// With [`flag::IF_FRESH`], as `stat` shows them.
    pub ino: U64,
    pub mtime: Time,
    pub ctime: Time,
    /// Out, dedupe: bytes that are the same and shared now.
    pub done_bytes: U64,
    /// Out, dedupe: 0 the same, 1 they differ.
    pub status: I32,
    pub pad: U32,
}
const _: () = assert!(size_of::<Remap>() == 104 && offset_of!(Remap, done_bytes) == 88);

/// Kinds of a [`MapEntry`].
pub mod kind {
    pub const DATA: u8 = 0;
    pub const UNWRITTEN: u8 = 1;
    pub const INLINE: u8 = 2;
    pub const DELALLOC: u8 = 3;
}

/// One extent; see [`crate::file::map::MapExtent`] for the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MapEntry {
    pub start: U64,
    pub len_bytes: U64,
    pub disk_addr: U64,
    pub disk_bytes: U64,
    pub offset_bytes: U64,
    pub ram_bytes: U64,
    pub kind: u8,
    pub compression: u8,
    pub is_shared: u8,
    pub pad: [u8; 5],
}

/// Entries in one [`MapPage`]: what fits into the size that a number can say.
pub const MAP_ENTRIES: usize = 288;

/// Argument of [`MAP`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MapPage {
    /// In: extents that overlap `start..end`. Out: where the next page starts.
    pub start: U64,
    pub end: U64,
    /// In, 1: find out what is shared.
    pub wants_shared: U32,
    /// Out.
    pub count: U32,
    /// Out, 1: there are no more.
    pub is_last: U32,
    pub pad: U32,
    pub entries: [MapEntry; MAP_ENTRIES],
}
const _: () = assert!(size_of::<MapPage>() == 32 + MAP_ENTRIES * 56);

/// Flags of [`DefragRange`].
pub mod defrag {
    pub const COMPRESS: u64 = 1;
    pub const START_IO: u64 = 2;
    /// The byte behind the type is a signed level.
    pub const LEVEL: u64 = 4;
}

/// `struct btrfs_ioctl_defrag_range_args`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DefragRange {
    pub start: U64,
    pub len_bytes: U64,
    /// [`defrag`].
    pub flags: U64,
    /// Extents from this size on stay as they are; 0: 256 KiB.
    pub extent_bytes_max: U32,
    pub compress: U32,
    pub unused: [U32; 4],
}
const _: () = assert!(size_of::<DefragRange>() == 48);
