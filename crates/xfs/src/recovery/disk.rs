//! Blocks of the volume as recovery reads and changes them.

use std::sync::Arc;

use cowshed_device::BlockDevice;
use xfs_format::{Daddr, Expect, Geometry, Lsn};

use super::overlay::Overlay;
use crate::error::{Error, LogFault, Result};

/// The volume under recovery.
pub(crate) struct Disk {
    pub geometry: Geometry,
    /// What changed blocks are stamped with.
    pub lsn: Lsn,
    overlay: Overlay,
    changed_bytes_max: u64,
}

impl Disk {
    /// `log_bytes` bounds what may change: each 128 bytes of a log stand for a page at most, but
    /// for new inodes, of which 128 bytes may stand for 128 KiB.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, geometry: Geometry, log_bytes: u64) -> Self {
        const PAGES_PER_LOG_BYTES: u64 = 4096 / 128;
        const NEW_INODES_BYTES: u64 = 256 << 20;
        Self {
            geometry,
            lsn: Lsn::NULL,
            overlay: Overlay::new(device),
            changed_bytes_max: log_bytes.saturating_mul(PAGES_PER_LOG_BYTES) + NEW_INODES_BYTES,
        }
    }

    pub(crate) fn into_overlay(self) -> Overlay {
        self.overlay
    }

    /// What is wrong with the transaction that is being replayed.
    pub(crate) fn broken(&self, field: &'static str, found: impl ToString, expected: impl ToString) -> Error {
        Error::Log {
            block: self.lsn.block(),
            fault: LogFault::Mismatch {
                field,
                found: found.to_string(),
                expected: expected.to_string(),
            },
        }
    }

    pub(crate) fn read(&self, daddr: Daddr, len_bytes: u32) -> Result<Vec<u8>> {
        let at = daddr.checked_bytes().unwrap_or(u64::MAX / 2);
        cowshed_device::check_access(&self.overlay, cowshed_device::Op::Read, at, len_bytes.into())?;
        let mut bytes = vec![0; len_bytes as usize];
        self.overlay.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn write(&mut self, daddr: Daddr, bytes: &[u8]) -> Result<()> {
        self.write_within(daddr, 0, bytes)
    }

    /// Writes at an offset in bytes behind an address.
    pub(crate) fn write_within(&mut self, daddr: Daddr, offset_bytes: u32, bytes: &[u8]) -> Result<()> {
        let at = daddr.checked_bytes().unwrap_or(u64::MAX / 2);
        self.overlay.put(at.saturating_add(offset_bytes.into()), bytes)?;
        if self.overlay.bytes() > self.changed_bytes_max {
            return Err(Error::Log {
                block: self.lsn.block(),
                fault: LogFault::TooMuch {
                    limit: self.changed_bytes_max,
                },
            });
        }
        Ok(())
    }

    /// What a verifier needs of a block whose owner is not known.
    pub(crate) fn expect(&self, daddr: Daddr) -> Expect<'_> {
        Expect {
            geometry: &self.geometry,
            daddr,
            owner: None,
            head: None,
        }
    }
}
