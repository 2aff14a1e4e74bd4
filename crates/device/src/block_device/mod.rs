//! The contract of a block device. A batch is joined into vectored I/O by `batch`, which calls back
//! into the device.

pub(crate) mod batch;

use std::fmt;
use std::io::{IoSlice, IoSliceMut};

use crate::error::{Error, Op, Result};

/// One write of a batch.
#[derive(Clone, Copy)]
pub struct WriteOp<'a> {
    pub offset_bytes: u64,
    pub data: &'a [u8],
}

/// One read of a batch.
pub struct ReadOp<'a> {
    pub offset_bytes: u64,
    pub buf: &'a mut [u8],
}

/// A device of a fixed size that reads and writes byte ranges. See the crate's page for what holds
/// of all of them.
///
/// Only `read_at`, `write_at`, `flush` and the descriptions must be given; the rest is derived from
/// them.
pub trait BlockDevice: Send + Sync + fmt::Debug {
    fn size_bytes(&self) -> u64;

    /// The logical sector: the unit in which the device reads and writes, and the largest that it
    /// promises not to tear.
    fn sector_size_bytes(&self) -> u32;

    /// For messages: a path, or what else tells a person which device is meant.
    fn name(&self) -> &str;

    fn is_read_only(&self) -> bool;

    /// Fills `buf` or fails; on failure the contents of `buf` are unspecified.
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes all of `buf` or fails; on failure any part of it may have been written. Not durable
    /// before a flush.
    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()>;

    /// Fills the buffers one after the other from consecutive bytes.
    fn read_vectored_at(&self, offset_bytes: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let mut at = offset_bytes;
        for buf in bufs {
            self.read_at(at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    /// Writes the buffers one after the other to consecutive bytes.
    fn write_vectored_at(&self, offset_bytes: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let mut at = offset_bytes;
        for buf in bufs {
            self.write_at(at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    /// Does many writes, in any order the device likes: sorted, and neighbours joined into vectored
    /// writes. The ranges must not overlap. On failure any part of any of them may have been
    /// written.
    fn write_batch(&self, writes: &[WriteOp<'_>]) -> Result<()> {
        batch::write(self, writes)
    }

    /// Does many reads; neighbours are joined into vectored reads. The ranges may overlap. On
    /// failure the contents of all buffers are unspecified; to learn which of them failed, read
    /// them again singly.
    fn read_batch(&self, reads: &mut [ReadOp<'_>]) -> Result<()> {
        batch::read(self, reads, &batch::NoCache)
    }

    /// The barrier: what was written before the call is on stable storage when it returns.
    fn flush(&self) -> Result<()>;

    /// The unit in which the device discards; `None` where it cannot, as far as that is known
    /// beforehand.
    fn discard_granularity_bytes(&self) -> Option<u64> {
        None
    }

    /// Tells the device that the range is not needed any more. What it reads as afterwards is
    /// unspecified until it is written again. A device that cannot discard does nothing.
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        let _ = (offset_bytes, len_bytes);
        Ok(())
    }
}

/// Refuses a range that leaves the device, and a change of a device that is read-only: what every
/// implementation of [`BlockDevice`] checks first.
pub fn check_access(device: &dyn BlockDevice, op: Op, offset_bytes: u64, len_bytes: u64) -> Result<()> {
    if op.changes() && device.is_read_only() {
        return Err(Error::ReadOnly {
            device: device.name().into(),
            op,
        });
    }
    let size_bytes = device.size_bytes();
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(Error::OutOfRange {
            device: device.name().into(),
            op,
            offset_bytes,
            len_bytes,
            size_bytes,
        }),
    }
}
