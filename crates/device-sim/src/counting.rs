//! A device that counts what is read from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cowshed_device::{BlockDevice, Result};

/// What was read: a cost that is the same on a busy machine and an idle one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Reads; each of a batch counts.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
}

/// Passes everything on, and counts reads.
#[derive(Debug)]
pub struct CountingDevice {
    below: Arc<dyn BlockDevice>,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl CountingDevice {
    /// Counts the reads of a device from now on.
    pub fn new(below: Arc<dyn BlockDevice>) -> CountingDevice {
        CountingDevice {
            below,
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// What was read since the last call, or since the device was made.
    pub fn take(&self) -> ReadCounts {
        ReadCounts {
            reads: self.reads.swap(0, Ordering::Relaxed),
            bytes: self.bytes.swap(0, Ordering::Relaxed),
        }
    }
}

// Batches come to `read_at` one by one.
impl BlockDevice for CountingDevice {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn sector_size_bytes(&self) -> u32 {
        self.below.sector_size_bytes()
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.below.read_at(offset_bytes, buf)
    }

    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        self.below.write_at(offset_bytes, buf)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }
}
