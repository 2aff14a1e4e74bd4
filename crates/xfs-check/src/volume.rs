//! The volume as the checker reads it: geometry, bytes, and what a block is expected to say.

use std::sync::Arc;

use cowshed_device::BlockDevice;
use xfs_format::{AgBlock, AgNumber, Daddr, Expect, FsBlock, Geometry, Ino, Lsn, Owner, Superblock};

use crate::finding::{FindingId, Sink, Site};

/// An open volume.
pub(crate) struct Volume {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    /// The head of the log, where it was found.
    pub(crate) head: Option<Lsn>,
}

impl Volume {
    /// Bytes from the device. A failure is a finding.
    pub(crate) fn read(&self, sink: &mut Sink, site: Site, daddr: Daddr, len_bytes: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len_bytes).ok()?];
        let at = daddr.checked_bytes()?;
        match self.device.read_at(at, &mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) => {
                let site = Site {
                    daddr: Some(daddr.get()),
                    ..site
                };
                sink.broken(FindingId::BlockUnreadable, site, error.to_string());
                None
            }
        }
    }

    /// A block of a group.
    pub(crate) fn read_block(&self, sink: &mut Sink, group: AgNumber, block: AgBlock) -> Option<Vec<u8>> {
        let daddr = self.geometry.ag_daddr(group, block);
        self.read(sink, Site::block(group, block), daddr, self.geometry.block_bytes.into())
    }

    pub(crate) fn expect(&self, daddr: Daddr, owner: Owner) -> Expect<'_> {
        Expect {
            geometry: &self.geometry,
            daddr,
            owner: Some(owner),
            head: self.head,
        }
    }
    pub(crate) fn expect_inode(&self, block: FsBlock, ino: Ino) -> Expect<'_> {
        let daddr = self.geometry.daddr(block).unwrap_or_default();
        self.expect(daddr, Owner::Inode(ino))
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = AgNumber> + use<> {
        (0..self.geometry.ag_count).map(AgNumber)
    }
}

/// A length in memory as a number of the format.
pub(crate) fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// A number of the format as an index in memory.
pub(crate) fn index(number: impl Into<u64>) -> usize {
    usize::try_from(number.into()).unwrap_or(usize::MAX)
}
