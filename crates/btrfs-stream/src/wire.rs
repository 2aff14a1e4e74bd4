//! Structures of a stream; docs/format/send-stream.md.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{I64, U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a stream begins with.
pub(crate) const MAGIC: [u8; 13] = *b"btrfs-stream\0";

/// `btrfs_stream_header`
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct StreamHeader {
    pub(crate) magic: [u8; 13],
    pub(crate) version: U32,
}
const _: () = assert!(size_of::<StreamHeader>() == 17 && offset_of!(StreamHeader, version) == 13);

/// `btrfs_cmd_header`
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CommandHeader {
    /// Bytes behind the header.
    pub(crate) len: U32,
    pub(crate) number: U16,
    /// Of header and payload, itself counted as zero.
    pub(crate) crc: U32,
}
const _: () = assert!(size_of::<CommandHeader>() == 10 && offset_of!(CommandHeader, crc) == 6);

/// Size of [`CommandHeader`] in a stream.
pub(crate) const COMMAND_HEADER_BYTES: u64 = 10;

/// `btrfs_timespec`
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Timespec {
    pub(crate) secs: I64,
    pub(crate) nanos: U32,
}
const _: () = assert!(size_of::<Timespec>() == 12 && offset_of!(Timespec, nanos) == 8);

impl CommandHeader {
    /// The checksum of a command with this header: crc32c with the seed 0, not inverted.
    pub(crate) fn checksum(&self, payload: &[u8]) -> u32 {
        let mut head = *self;
        head.crc = U32::ZERO;
        !crc32c::crc32c_append(crc32c::crc32c_append(!0, head.as_bytes()), payload)
    }
}
