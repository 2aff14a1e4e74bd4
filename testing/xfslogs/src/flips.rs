//! Logs with flipped bits: opening them ends, in an error or not, and never in a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cowshed_device::{BlockDevice, Op, check_access};
use cowshed_device_sim::Rng;
use cowshed_xfs::{Fs, OpenOptions, Volume};
use xfs_format::log::{LOG_MAGIC, RecordHeader};
use xfs_format::{Geometry, Superblock};

/// An open takes less than a second.
const OPEN_MAX: Duration = Duration::from_secs(60);
const BLOCK: usize = 512;

/// An image with other bytes at some places.
#[derive(Debug)]
struct Patched {
    image: Arc<Vec<u8>>,
    patches: Vec<(usize, u8)>,
}

impl BlockDevice for Patched {
    fn size_bytes(&self) -> u64 {
        self.image.len() as u64
    }
    fn sector_size_bytes(&self) -> u32 {
        512
    }
    fn name(&self) -> &str {
        "image with flipped bits"
    }
    fn is_read_only(&self) -> bool {
        true
    }
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> cowshed_device::Result<()> {
        check_access(self, Op::Read, offset_bytes, buf.len() as u64)?;
        let at = offset_bytes as usize;
        buf.copy_from_slice(&self.image[at..at + buf.len()]);
        for (place, byte) in &self.patches {
            if let Some(found) = place.checked_sub(at).and_then(|within| buf.get_mut(within)) {
                *found = *byte;
            }
        }
        Ok(())
    }
    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> cowshed_device::Result<()> {
        check_access(self, Op::Write, offset_bytes, buf.len() as u64)
    }
    fn flush(&self) -> cowshed_device::Result<()> {
        Ok(())
    }
}

/// Opens an image with so many damaged logs. Errors: a panic, or an open without an end.
pub fn flips(image: &Arc<Vec<u8>>, rng: &mut Rng, count: u64) -> Result<()> {
    let sb = Superblock::verify(image)?;
    let geometry = Geometry::new(&sb)?;
    let start = geometry.log_start.and_then(|start| geometry.daddr(start));
    let start = start.and_then(|daddr| daddr.checked_bytes()).unwrap_or(0) as usize;
    let end = start + geometry.log_blocks as usize * geometry.block_bytes as usize;
    let is_header = |at: &usize| image[*at..].starts_with(&LOG_MAGIC.to_be_bytes());
    let records: Vec<usize> = (start..end).step_by(BLOCK).filter(is_header).collect();
    if records.is_empty() {
        return Ok(());
    }
    for _ in 0..count {
        let device = Patched {
            image: Arc::clone(image),
            patches: patches(image, &records, end, rng),
        };
        let what = format!("{:?}", device.patches);
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let volume = Volume::open(Arc::new(device), &OpenOptions::default());
            volume.and_then(|volume| Fs::new(Arc::new(volume))).map(drop)
        }));
        ensure!(outcome.is_ok(), "a panic with the bytes {what}");
        ensure!(
            begun.elapsed() < OPEN_MAX,
            "{:?} with the bytes {what}",
            begun.elapsed()
        );
    }
    Ok(())
}

/// Flips in one record. Most records state no checksum then, so that what they hold is read.
fn patches(image: &[u8], records: &[usize], end: usize, rng: &mut Rng) -> Vec<(usize, u8)> {
    let at = records[rng.index(records.len())];
    let len = u32::from_be_bytes(image[at + 12..at + 16].try_into().unwrap_or_default()) as usize;
    let len = (BLOCK + len.min(256 << 10)).min(end - at);
    let mut patches = Vec::new();
    if !rng.one_in(8) {
        let crc = at + std::mem::offset_of!(RecordHeader, crc);
        patches.extend((crc..crc + 4).map(|place| (place, 0)));
    }
    for _ in 0..=rng.below(4) {
        // Heads of operations and items lie at the start of a record more often than data.
        let reach = if rng.one_in(2) { len.min(2048) } else { len };
        let place = at + rng.index(reach);
        let byte = match rng.below(3) {
            0 => image[place] ^ (1 << rng.below(8)),
            1 => [0, 0xff, 0x7f, 0x80][rng.index(4)],
            _ => rng.next_u64() as u8,
        };
        patches.push((place, byte));
    }
    patches
}
