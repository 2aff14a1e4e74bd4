//! The volume: superblocks, the chunk map, and I/O by logical address over all profiles.
//!
//! What it guarantees:
//! - A tree block that it returns was verified; file data that comes with checksums matches them.
//! - A bad copy is rewritten from a good one (when writable), see module `read` for why that cannot
//!   hurt a newer write.
//! - A write that returned without error is on at least one copy of every byte, and after a
//!   [`Volume::flush`] that returned without error on at least one copy that is durable; see
//!   [`write`] for failing devices.
//!
//! Locks: [`crate::rank`]. `chunks` and `superblock` are held for a copy only, so readers never
//! wait for I/O of others.

mod ahead;
mod chunk;
mod lost_chunks;
mod member;
mod open;
mod options;
mod read;
mod roots;
mod salvage;
mod superblocks;
mod write;

#[cfg(test)]
mod superblock_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use btrfs_format::items::DevItem;
use btrfs_format::{ChecksumType, DevId, Generation, Key, LogicalAddr, Superblock, Uuid};
use cowshed_device::BlockDevice;
use cowshed_runtime::lock::RwLock;

pub use btrfs_format::profile::{COPIES_MAX, Profile};
pub use chunk::{Chunk, ChunkMap, ChunkStripe, Copies, PhysAddr, Piece};
pub use member::{DeviceFault, DeviceInfo, FaultCounts};
pub use options::{OpenOptions, Rescue};
pub use read::BadSector;
pub use roots::{FoundRoot, RootSearch};
pub use write::SuperblockCopies;

use crate::error::{Error, Result};
use member::Member;

/// What a parent, or a root item, says of a tree block: reading it checks that.
#[derive(Clone, Copy, Debug)]
pub struct BlockPtr {
    /// Where the block lies.
    pub addr: LogicalAddr,
    /// Its generation.
    pub generation: Generation,
    /// Its level.
    pub level: u8,
    /// The key of its first item, where a parent says it.
    pub first_key: Option<Key>,
}

/// What never changes while a volume is open.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    nodesize_bytes: u32,
    sectorsize_bytes: u32,
    csum_type: ChecksumType,
    metadata_fsid: Uuid,
}

/// An open volume: its devices, its chunk map and the superblock of the last commit.
#[derive(Debug)]
pub struct Volume {
    geometry: Geometry,
    /// By device id.
    members: Vec<Arc<Member>>,
    chunks: RwLock<Arc<ChunkMap>>,
    superblock: RwLock<Superblock>,
    chunk_tree_uuid: Uuid,
    read_only: bool,
    options: OpenOptions,
    /// Opened by a root that is not the newest: what was written since may lie where its blocks
    /// were.
    is_of_the_past: bool,
    /// Shared by writes, exclusive while a repair looks again and writes.
    repairs: RwLock<()>,
    /// Incompatible features that came into use since the superblock was read.
    new_features: AtomicU64,
    /// A barrier failed beyond what copies make good: no later barrier may succeed.
    failed: AtomicBool,
}

impl Volume {
    /// Reads superblocks and the chunk tree. Devices may come in any order.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>, options: &OpenOptions) -> Result<Arc<Self>> {
        open::open(devices, options).map(Arc::new)
    }
    /// Size of a tree block.
    pub fn nodesize_bytes(&self) -> u32 {
        self.geometry.nodesize_bytes
    }
    /// Unit of data I/O and of checksums of data.
    pub fn sectorsize_bytes(&self) -> u32 {
        self.geometry.sectorsize_bytes
    }
    /// Algorithm of the volume's checksums.
    pub fn csum_type(&self) -> ChecksumType {
        self.geometry.csum_type
    }
    /// The uuid in tree block headers.
    pub fn metadata_fsid(&self) -> Uuid {
        self.geometry.metadata_fsid
    }
    /// Uuid of the chunk tree, which headers of tree blocks carry.
    pub fn chunk_tree_uuid(&self) -> Uuid {
        self.chunk_tree_uuid
    }
    /// Whether nothing may be written: opened so, or the format does not allow it.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }
    /// How the volume was opened.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }
    /// The superblock as last read or written. Its device item is that of any device.
    pub fn superblock(&self) -> Superblock {
        *self.superblock.read()
    }
    /// All superblocks written from now on have these incompatible features. Called before anything
    /// on disk that has them can be reached.
    pub fn need_features(&self, incompat: u64) {
        self.new_features.fetch_or(incompat, Ordering::AcqRel);
    }
    /// Opened by an older root. Its trees may lead to blocks that were overwritten since, and its
    /// accounts of space are not those of the chunks.
    pub fn is_of_the_past(&self) -> bool {
        self.is_of_the_past
    }
    /// Whether a log tree waits to be replayed.
    pub fn has_log(&self) -> bool {
        self.superblock.read().log_root.get() != 0
    }

    /// The chunk map as it is now.
    pub fn chunks(&self) -> Arc<ChunkMap> {
        self.chunks.read().clone()
    }
    /// Makes a new chunk usable. Its devices must be of the volume.
    pub(crate) fn add_chunk(&self, chunk: Chunk) -> Result<()> {
        for stripe in chunk.stripes() {
            let member = self.member(stripe.at.dev);
            assert!(
                member.is_some_and(|m| m.uuid == stripe.dev_uuid),
                "a new chunk lies on devices of the volume"
            );
        }
        let mut chunks = self.chunks.write();
        let mut map = ChunkMap::clone(&chunks);
        map.insert(chunk)?;
        *chunks = Arc::new(map);
        Ok(())
    }
    /// Forgets the chunk that begins at `logical`; nothing may use it any more.
    pub(crate) fn remove_chunk(&self, logical: LogicalAddr) -> Option<Arc<Chunk>> {
        let mut chunks = self.chunks.write();
        let mut map = ChunkMap::clone(&chunks);
        let chunk = map.remove(logical);
        *chunks = Arc::new(map);
        chunk
    }
    /// Where a range of logical bytes lies, in order.
    pub fn map(&self, addr: LogicalAddr, len_bytes: u64) -> Result<Vec<Piece>> {
        self.chunks().pieces(addr, len_bytes)
    }

    /// The devices, by id.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.members.iter().map(|m| m.info()).collect()
    }
    /// Replaces a device's item (its `bytes_used`, say), as superblocks will carry it. Identity
    /// must stay.
    pub(crate) fn set_device_item(&self, item: DevItem) -> Result<()> {
        let devid = DevId::from(item.devid);
        let member = self.member(devid).ok_or(Error::MissingDevice { devid })?;
        assert_eq!(item.uuid, member.uuid, "a device keeps its uuid");
        *member.item.lock() = item;
        Ok(())
    }

    fn member(&self, devid: DevId) -> Option<&Arc<Member>> {
        let index = self.members.binary_search_by_key(&devid, |m| m.devid).ok()?;
        self.members.get(index)
    }
    fn require_member(&self, devid: DevId) -> Result<&Arc<Member>> {
        self.member(devid).ok_or(Error::MissingDevice { devid })
    }
    fn sort_members(&mut self) {
        self.members.sort_by_key(|m| m.devid);
    }
}
