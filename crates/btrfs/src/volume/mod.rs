//! The volume: superblocks, the chunk map, and I/O by logical address over all profiles.

mod options;

use std::sync::Arc;

use btrfs_format::{ChecksumType, LogicalAddr, Superblock, TreeBlock, TreeId, Uuid};
use cowshed_device::BlockDevice;

pub use options::{OpenOptions, Rescue};

use crate::error::Result;
use crate::tree::BlockPtr;

/// An open volume: its devices, its chunk map and the superblock of the last commit.
#[derive(Debug)]
pub struct Volume {}

impl Volume {
    /// Reads superblocks and the chunk tree. Devices may come in any order.
    pub fn open(_devices: Vec<Arc<dyn BlockDevice>>, _options: &OpenOptions) -> Result<Arc<Self>> {
        todo!()
    }
    pub fn nodesize_bytes(&self) -> u32 {
        todo!()
    }
    pub fn sectorsize_bytes(&self) -> u32 {
        todo!()
    }
    pub fn csum_type(&self) -> ChecksumType {
        todo!()
    }
    /// The uuid in tree block headers.
    pub fn metadata_fsid(&self) -> Uuid {
        todo!()
    }
    pub fn chunk_tree_uuid(&self) -> Uuid {
        todo!()
    }
    pub fn is_read_only(&self) -> bool {
        todo!()
    }
    /// The superblock as last read or written.
    pub fn superblock(&self) -> Superblock {
        todo!()
    }
    /// Reads and verifies a tree block: tries every copy, repairs bad ones from a good one.
    pub fn read_block(&self, _ptr: &BlockPtr, _tree: TreeId) -> Result<TreeBlock> {
        todo!()
    }
    /// Reads file data. `csums` are the expected checksums, one per sector, concatenated; sectors that do not match are
    /// taken from another copy and the bad copy is repaired. `None`: no checksums exist.
    pub fn read_data(&self, _addr: LogicalAddr, _buf: &mut [u8], _csums: Option<&[u8]>) -> Result<()> {
        todo!()
    }
    /// Writes to all copies, batched over the devices. Not durable before [`Volume::flush`].
    pub fn write(&self, _writes: &[(LogicalAddr, &[u8])]) -> Result<()> {
        todo!()
    }
    pub fn discard(&self, _addr: LogicalAddr, _len_bytes: u64) -> Result<()> {
        todo!()
    }
    /// Barrier on all devices.
    pub fn flush(&self) -> Result<()> {
        todo!()
    }
    /// Writes all copies of the superblock on all devices (each with its own device item), without a barrier.
    pub fn write_superblocks(&self, _superblock: &Superblock) -> Result<()> {
        todo!()
    }
}
