//! A stretch of a device as a device: a partition.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use crate::{BlockDevice, Op, Result, check_access};

/// The bytes `[offset, offset + size)` of another device. A flush flushes the whole device below.
#[derive(Debug)]
pub struct SliceDevice {
    below: Arc<dyn BlockDevice>,
    offset_bytes: u64,
    size_bytes: u64,
    name: String,
}

impl SliceDevice {
    /// `Error::OutOfRange` if the stretch is not within the device.
    pub fn new(below: Arc<dyn BlockDevice>, offset_bytes: u64, size_bytes: u64) -> Result<SliceDevice> {
        check_access(&*below, Op::Open, offset_bytes, size_bytes)?;
        let name = format!("{}[{offset_bytes}+{size_bytes}]", below.name());
        Ok(SliceDevice {
            below,
            offset_bytes,
            size_bytes,
            name,
        })
    }

    /// Where a range of the slice lies on the device below, if it is within the slice.
    fn place(&self, op: Op, offset_bytes: u64, len_bytes: u64) -> Result<u64> {
        check_access(self, op, offset_bytes, len_bytes)?;
        Ok(self.offset_bytes + offset_bytes)
    }
}

impl BlockDevice for SliceDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn sector_size_bytes(&self) -> u32 {
        self.below.sector_size_bytes()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()> {
        self.below
            .read_at(self.place(Op::Read, offset_bytes, buf.len() as u64)?, buf)
    }

    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        self.below
            .write_at(self.place(Op::Write, offset_bytes, buf.len() as u64)?, buf)
    }

    fn read_vectored_at(&self, offset_bytes: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len_bytes: usize = bufs.iter().map(|b| b.len()).sum();
        self.below
            .read_vectored_at(self.place(Op::Read, offset_bytes, len_bytes as u64)?, bufs)
    }

    fn write_vectored_at(&self, offset_bytes: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let len_bytes: usize = bufs.iter().map(|b| b.len()).sum();
        self.below
            .write_vectored_at(self.place(Op::Write, offset_bytes, len_bytes as u64)?, bufs)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn discard_granularity_bytes(&self) -> Option<u64> {
        self.below.discard_granularity_bytes()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        self.below
            .discard(self.place(Op::Discard, offset_bytes, len_bytes)?, len_bytes)
    }
}
