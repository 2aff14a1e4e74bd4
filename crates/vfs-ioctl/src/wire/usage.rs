//! The ioctl that counts what subvolumes use.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{READ, Token, WRITE, number};

/// Counts what each subvolume of the volume refers to, call by call: [`UsagePage`].
pub const USAGE: u32 = number(READ | WRITE, 8, size_of::<UsagePage>());

/// What a [`UsagePage`] call does.
pub mod op {
    /// Begins. The answer's token names the count.
    pub const BEGIN: u32 = 0;
    /// Goes on for some milliseconds; gives a page of the results where it is done.
    pub const GO_ON: u32 = 1;
    /// Ends. To be called when all results were read, too.
    pub const END: u32 = 2;
}

/// Entries in one [`UsagePage`].
pub const USAGE_ENTRIES: usize = 256;

/// What a subvolume refers to; see [`cowshed_vfs::SubvolumeUsage`] for the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UsageEntry {
    /// The number of the subvolume.
    pub id: U64,
    /// Extents of data.
    pub data_bytes: U64,
    /// Of these, what no other subvolume refers to.
    pub data_exclusive_bytes: U64,
    /// Metadata.
    pub metadata_bytes: U64,
    /// Of these, what no other subvolume refers to.
    pub metadata_exclusive_bytes: U64,
}

/// Argument of [`USAGE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UsagePage {
    /// Out, and in later calls: the count.
    pub token: Token,
    /// In: one of [`op`].
    pub op: U32,
    /// Out, 1: the count is done.
    pub is_done: U32,
    /// In: the index of the first result that is wanted.
    pub start: U64,
    /// Out: blocks of metadata that were read.
    pub blocks_done: U64,
    /// Out: blocks of metadata that are known so far.
    pub blocks_known: U64,
    /// Out: results in this page. None: there are no more.
    pub count: U32,
    /// Zero.
    pub pad: U32,
    /// Out.
    pub entries: [UsageEntry; USAGE_ENTRIES],
}
const _: () = assert!(size_of::<UsagePage>() == 56 + USAGE_ENTRIES * 40);
