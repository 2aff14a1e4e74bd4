//! Operations: the body of a record is a chain of them.

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{N16, N32};
use crate::corrupt::{Corrupt, Fault, Site, field, truncated};
use crate::num::to_len;
use crate::view;

on_disk!(
    /// `xlog_op_header`.
    /// docs/format/xfs/log.md
    OpHeader(12) { tid: U32, len: U32, clientid: u8, flags: u8, res2: U16 }
);
on_disk!(
    /// What the last operation of a clean log holds.
    /// docs/format/xfs/log.md
    UnmountRecord(8) { magic: N16, pad1: N16, pad2: N32 }
);

/// `magic` of [`UnmountRecord`]: `Un`.
pub const UNMOUNT_MAGIC: u16 = 0x556e;

/// `clientid`: the source of an operation.
pub mod client {
    /// A transaction.
    pub const TRANSACTION: u8 = 0x69;
    /// Not in use.
    pub const VOLUME: u8 = 2;
    /// The log itself: the end of a clean one.
    pub const LOG: u8 = 0xaa;
    /// All of them.
    pub(super) const ALL: &[u64] = &[0x69, 2, 0xaa];
}

/// `flags` of an operation.
pub mod op_flags {
    /// Begins a transaction.
    pub const START: u8 = 1 << 0;
    /// Ends a transaction: it counts.
    pub const COMMIT: u8 = 1 << 1;
    /// Its data goes on in the next record.
    pub const CONTINUE: u8 = 1 << 2;
    /// Its data began in a record before.
    pub const WAS_CONT: u8 = 1 << 3;
    /// Its data ends here.
    pub const END: u8 = 1 << 4;
    /// The log is clean.
    pub const UNMOUNT: u8 = 1 << 5;
    /// Each bit with the format's name for it.
    pub const NAMES: &[(u64, &str)] = &[
        (0x01, "START"),
        (0x02, "COMMIT"),
        (0x04, "CONTINUE"),
        (0x08, "WAS_CONT"),
        (0x10, "END"),
        (0x20, "UNMOUNT"),
    ];
    /// All bits.
    pub(super) const KNOWN: u64 = 0x3f;
}

/// An operation of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'a> {
    /// The header.
    pub header: OpHeader,
    /// Its data, in part where the header says so.
    pub data: &'a [u8],
}

impl Operation<'_> {
    /// A bit of [`op_flags`].
    pub fn has_flag(&self, bit: u8) -> bool {
        self.header.flags & bit != 0
    }
    /// Header and data, as a body holds them.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.header.as_bytes(), self.data].concat()
    }
}

/// The operations of a body, as many as the record's header states. Ends with the first fault.
pub fn operations(body: &[u8], count: u32) -> impl Iterator<Item = Result<Operation<'_>, Corrupt>> {
    let mut rest = body;
    let mut is_over = false;
    (0..count).map_while(move |slot| {
        if is_over {
            return None;
        }
        let next = split(rest);
        is_over = next.is_err();
        let site = Site {
            slot: Some(slot),
            ..Site::of("log operation")
        };
        Some(next.map_err(|fault| fault.at(site)).map(|(operation, behind)| {
            rest = behind;
            operation
        }))
    })
}

fn split(bytes: &[u8]) -> Result<(Operation<'_>, &[u8]), Fault> {
    let header_bytes = size_of::<OpHeader>();
    let header = *view::at::<OpHeader>(bytes, 0).ok_or_else(|| truncated("header", header_bytes, bytes.len()))?;
    field("oh_clientid", header.clientid, Rule::OneOf(client::ALL))?;
    field("oh_flags", header.flags, Rule::KnownBits(op_flags::KNOWN))?;
    let rest = bytes.get(header_bytes..).unwrap_or_default();
    let len = to_len(header.len.get().into());
    let (data, behind) = rest
        .split_at_checked(len)
        .ok_or_else(|| truncated("data", len, rest.len()))?;
    Ok((Operation { header, data }, behind))
}
