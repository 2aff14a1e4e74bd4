//! A device that takes its time.

use std::sync::Arc;
use std::time::Duration;

use cowshed_device::{BlockDevice, Result};

/// Passes everything on, each write and each barrier after a pause.
#[derive(Debug)]
pub struct SlowDevice {
    below: Arc<dyn BlockDevice>,
    pause: Duration,
}

impl SlowDevice {
    pub fn new(below: Arc<dyn BlockDevice>, pause: Duration) -> SlowDevice {
        SlowDevice { below, pause }
    }
}

impl BlockDevice for SlowDevice {
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
        self.below.read_at(offset_bytes, buf)
    }

    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        std::thread::sleep(self.pause);
        self.below.write_at(offset_bytes, buf)
    }

    fn flush(&self) -> Result<()> {
        std::thread::sleep(self.pause);
        self.below.flush()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        self.below.discard(offset_bytes, len_bytes)
    }
}
