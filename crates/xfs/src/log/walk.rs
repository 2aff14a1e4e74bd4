//! Records: one at a place, and all from the tail to the head.

use xfs_format::log::{LOG_BLOCK_BYTES, Record, RecordHeader};
use xfs_format::{Lsn, uuid_text};
use zerocopy::FromBytes as _;

use super::ring::Ring;
use crate::error::Result;

/// Bytes of the longest body.
const BODY_BYTES_MAX: u32 = 256 << 10;
/// Blocks of the longest record: body, and a header block for each 32 KiB of it.
pub(super) const RECORD_BLOCKS_MAX: u32 = BODY_BYTES_MAX / LOG_BLOCK_BYTES as u32 + 8;

/// The header of the record at a place. Errors: no header, one of another volume, and fields that
/// cannot be.
pub(super) fn header_at(ring: &Ring<'_>, block: u32) -> Result<RecordHeader> {
    let bytes = ring.read(block, 1)?;
    let mut header = RecordHeader::read_from_prefix(&bytes)
        .map(|(header, _)| header)
        .map_err(|_| ring.mismatch(block, "log", "shorter than a record", "a record"))?;
    // mkfs writes a record of one operation that is longer than the size that it states.
    if header.num_logops.get() == 1 && header.size.get() < header.len.get() && header.len.get() <= BODY_BYTES_MAX {
        header.size = header.len;
    }
    header
        .verify(None, ring.blocks())
        .map_err(|fault| ring.corrupt(block, fault))?;
    let uuid = header.fs_uuid;
    if uuid != [0; 16] && !ring.uuids().contains(&uuid) {
        let expected = uuid_text(&ring.uuids()[0]);
        return Err(ring.mismatch(block, "h_fs_uuid", uuid_text(&uuid), expected));
    }
    if header.lsn().block() != block {
        return Err(ring.mismatch(block, "h_lsn", header.lsn(), format_args!("block {block}")));
    }
    Ok(header)
}

/// Blocks of a record, its header included.
pub(super) fn len_blocks(header: &RecordHeader) -> u32 {
    header.header_blocks().saturating_add(header.body_blocks())
}

/// The record at a place, with its checksum and all cycles verified.
pub(super) fn record_at(ring: &Ring<'_>, block: u32, header: &RecordHeader) -> Result<Record> {
    let count = len_blocks(header);
    if count > ring.blocks() {
        return Err(ring.mismatch(block, "h_len", header.len, "a record within the log"));
    }
    let bytes = ring.read(block, count)?;
    let first_wrapped = (ring.blocks() - block % ring.blocks()) as usize;
    Record::unpack_wrapped(&bytes, first_wrapped).map_err(|fault| ring.corrupt(block, fault))
}

/// Visits records from the tail up to the head. Errors: a record that is not whole, or reaches
/// behind the head.
pub(super) fn records(
    ring: &Ring<'_>,
    tail: Lsn,
    head: Lsn,
    take: &mut dyn FnMut(u32, Record) -> Result<()>,
) -> Result<()> {
    let mut at = tail.block() % ring.blocks();
    let mut left = ring.distance(at, head.block());
    while left > 0 {
        let header = header_at(ring, at)?;
        let count = len_blocks(&header);
        if count > left {
            return Err(ring.mismatch(at, "h_len", header.len, format_args!("at most {left} blocks")));
        }
        take(at, record_at(ring, at, &header)?)?;
        at = ring.behind(at, count);
        left -= count;
    }
    Ok(())
}
