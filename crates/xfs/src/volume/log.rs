//! Whether the log is clean: its newest record says that the volume was unmounted.

use cowshed_device::BlockDevice;
use xfs_format::Superblock;
use xfs_format::log::{LOG_BLOCK_BYTES, LOG_MAGIC, Record, RecordHeader, op_flags, operations};

use crate::error::Result;

/// Blocks of the longest record: 256 KiB and the header blocks for as much.
const RECORD_BLOCKS_MAX: u64 = 512 + 8;

/// The log's place on its device.
pub(super) struct LogPlace<'a> {
    pub device: &'a dyn BlockDevice,
    pub start_bytes: u64,
    pub blocks: u64,
}

impl LogPlace<'_> {
    fn read(&self, block: u64, count: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(count).unwrap_or(0) * LOG_BLOCK_BYTES];
        self.device
            .read_at(self.start_bytes + block * LOG_BLOCK_BYTES as u64, &mut bytes)?;
        Ok(bytes)
    }

    fn cycle(&self, block: u64) -> Result<u32> {
        let bytes = self.read(block, 1)?;
        let word = |at: usize| {
            bytes
                .get(at..at + 4)
                .and_then(|w| w.try_into().ok())
                .map_or(0, u32::from_be_bytes)
        };
        Ok(if word(0) == LOG_MAGIC { word(4) } else { word(0) })
    }

    /// The first block behind the newest record: where the cycle changes.
    fn head(&self) -> Result<u64> {
        let first = self.cycle(0)?;
        if self.cycle(self.blocks - 1)? == first {
            return Ok(self.blocks);
        }
        let (mut low, mut high) = (0, self.blocks - 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.cycle(middle)? == first {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(high)
    }

    /// True where the newest record is whole and says that the volume was unmounted. All doubts
    /// count as dirty.
    pub(super) fn is_clean(&self, sb: &Superblock) -> Result<bool> {
        if self.blocks < 2 {
            return Ok(false);
        }
        let head = self.head()?;
        let from = head.saturating_sub(RECORD_BLOCKS_MAX);
        let bytes = self.read(from, head - from)?;
        let mut blocks: Vec<&[u8]> = bytes.chunks_exact(LOG_BLOCK_BYTES).collect();
        while let Some(block) = blocks.pop() {
            if block.first_chunk::<4>() != Some(&LOG_MAGIC.to_be_bytes()) {
                continue;
            }
            let record = &bytes[blocks.len() * LOG_BLOCK_BYTES..];
            return Ok(says_unmounted(
                record,
                sb,
                u32::try_from(self.blocks).unwrap_or(u32::MAX),
            ));
        }
        Ok(false)
    }
}

fn says_unmounted(blocks: &[u8], sb: &Superblock, log_blocks: u32) -> bool {
    let Ok(record) = Record::unpack(blocks) else {
        return false;
    };
    let header: &RecordHeader = &record.header;
    // The uuid of the log is the one that mkfs gave the volume, whatever it is called now.
    let is_ours = [sb.uuid, sb.metadata_uuid()]
        .iter()
        .any(|uuid| header.verify(Some(uuid), log_blocks).is_ok());
    // Nothing follows it: the record ends at the head.
    let total = (header.header_blocks() + header.body_blocks()) as usize * LOG_BLOCK_BYTES;
    let mut found = operations(&record.body, header.num_logops.get());
    let is_unmount = found
        .next()
        .is_some_and(|op| op.is_ok_and(|op| op.header.flags & op_flags::UNMOUNT != 0));
    is_ours && header.num_logops.get() == 1 && is_unmount && total <= blocks.len()
}
