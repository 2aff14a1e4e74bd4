//! The blocks of the log, addressed modulo its length.

use std::fmt;

use cowshed_device::BlockDevice;
use xfs_format::log::{LOG_BLOCK_BYTES, LOG_MAGIC};
use xfs_format::{Corrupt, Uuid};

use crate::error::{Error, LogFault, Result};

/// Where the log lies, and which volumes it may belong to.
pub(crate) struct Ring<'a> {
    device: &'a dyn BlockDevice,
    start_bytes: u64,
    blocks: u32,
    uuids: [Uuid; 2],
}

impl<'a> Ring<'a> {
    /// `blocks` are units of 512 bytes; `uuids` are those that a record may state.
    pub(crate) fn new(device: &'a dyn BlockDevice, start_bytes: u64, blocks: u32, uuids: [Uuid; 2]) -> Self {
        Self {
            device,
            start_bytes,
            blocks: blocks.max(1),
            uuids,
        }
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    pub(crate) fn uuids(&self) -> &[Uuid; 2] {
        &self.uuids
    }

    /// Reads blocks; behind the last one comes the first one.
    pub(crate) fn read(&self, block: u32, count: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count.min(self.blocks) as usize * LOG_BLOCK_BYTES];
        let first = block % self.blocks;
        let straight = (self.blocks - first) as usize * LOG_BLOCK_BYTES;
        let len = bytes.len();
        let (head, tail) = bytes.split_at_mut(straight.min(len));
        self.device
            .read_at(self.start_bytes + u64::from(first) * LOG_BLOCK_BYTES as u64, head)?;
        if !tail.is_empty() {
            self.device.read_at(self.start_bytes, tail)?;
        }
        Ok(bytes)
    }

    /// The cycle that a block was written in.
    pub(crate) fn cycle(&self, block: u32) -> Result<u32> {
        Ok(cycle_of(&self.read(block, 1)?))
    }

    /// Blocks from one place to another, forwards. The same place is 0.
    pub(crate) fn distance(&self, from: u32, to: u32) -> u32 {
        let (from, to) = (from % self.blocks, to % self.blocks);
        if to >= from { to - from } else { self.blocks - from + to }
    }

    /// The place so many blocks before or behind another one.
    pub(crate) fn before(&self, block: u32, count: u32) -> u32 {
        let back = count % self.blocks;
        ((u64::from(block) + u64::from(self.blocks - back)) % u64::from(self.blocks)) as u32
    }
    pub(crate) fn behind(&self, block: u32, count: u32) -> u32 {
        ((u64::from(block) + u64::from(count)) % u64::from(self.blocks)) as u32
    }

    pub(crate) fn corrupt(&self, block: u32, fault: Corrupt) -> Error {
        Error::Log {
            block,
            fault: LogFault::Corrupt(fault),
        }
    }

    pub(crate) fn mismatch(
        &self,
        block: u32,
        field: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Error {
        Error::Log {
            block,
            fault: LogFault::Mismatch {
                field,
                found: found.to_string(),
                expected: expected.to_string(),
            },
        }
    }
}

/// The first word of a block.
pub(super) fn word(block: &[u8], at: usize) -> u32 {
    let word = block.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_be_bytes)
}

/// The cycle of a block: its first word, but for the first block of a record.
pub(super) fn cycle_of(block: &[u8]) -> u32 {
    match word(block, 0) {
        LOG_MAGIC => word(block, 4),
        cycle => cycle,
    }
}
