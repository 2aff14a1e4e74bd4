//! Space: block groups, free space, reservations, chunk allocation, pinned extents.

use btrfs_format::LogicalAddr;

use crate::error::Result;

/// Metadata that an operation may need before the next commit, in tree blocks. Gives itself back when dropped.
#[derive(Debug)]
pub struct MetaReservation {}

/// Data bytes set aside for dirty ranges. Gives the rest back when dropped.
#[derive(Debug)]
pub struct DataReservation {}

impl DataReservation {
    pub fn bytes(&self) -> u64 {
        todo!()
    }
    /// Takes `bytes` of it away into a reservation of its own.
    pub fn split(&mut self, _bytes: u64) -> DataReservation {
        todo!()
    }
    /// Adds another one to this.
    pub fn merge(&mut self, _other: DataReservation) {
        todo!()
    }
}

/// Metadata budgets of operations, in leaves that they may touch; the arithmetic is in each comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub blocks: u32,
    /// May dip into the global reserve: deletion must always be possible.
    pub is_release: bool,
}

impl Budget {
    /// Two directory items in the parent, inode and reference of the child, inode of the parent, xattrs and ACL.
    pub const CREATE: Self = Self {
        blocks: 6,
        is_release: false,
    };
    /// As CREATE, without new items to speak of.
    pub const UNLINK: Self = Self {
        blocks: 6,
        is_release: true,
    };
    /// Two unlinks and two creates.
    pub const RENAME: Self = Self {
        blocks: 14,
        is_release: false,
    };
    /// One inode item.
    pub const SETATTR: Self = Self {
        blocks: 2,
        is_release: false,
    };
    pub const XATTR: Self = Self {
        blocks: 3,
        is_release: false,
    };
    /// File extent items, checksums and the inode for one extent.
    pub const WRITE_EXTENT: Self = Self {
        blocks: 4,
        is_release: false,
    };
    /// Removing file extents: items, checksums, extent items.
    pub const TRUNCATE: Self = Self {
        blocks: 6,
        is_release: true,
    };
}

/// The space of a volume.
#[derive(Debug)]
pub struct Space {}

impl Space {
    /// Sets metadata aside; waits for flushing where space is short; ENOSPC when nothing helps. No lock may be held.
    pub fn reserve_meta(&self, _budget: Budget) -> Result<MetaReservation> {
        todo!()
    }
    /// Sets data bytes aside (rounded up to sectors by the caller).
    pub fn reserve_data(&self, _bytes: u64) -> Result<DataReservation> {
        todo!()
    }
    /// Allocates one extent of at most `want_bytes` (and at least one sector) out of the reservation.
    pub fn alloc_data(&self, _from: &mut DataReservation, _want_bytes: u64) -> Result<(LogicalAddr, u64)> {
        todo!()
    }
    /// Takes an allocation back that no item ever pointed to (its write failed).
    pub fn unalloc_data(&self, _addr: LogicalAddr, _len_bytes: u64) {
        todo!()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    Metadata,
    System,
}
impl Space {
    pub fn load(
        _v: &std::sync::Arc<crate::volume::Volume>,
        _f: &crate::engine::Forest,
    ) -> Result<std::sync::Arc<Self>> {
        todo!()
    }
    pub fn alloc_block(&self, _k: BlockKind) -> Result<LogicalAddr> {
        todo!()
    }
    pub fn free_block(&self, _a: LogicalAddr) {
        todo!()
    }
    pub fn extent_inserted(&self, _a: LogicalAddr, _l: u64) {
        todo!()
    }
    pub fn extent_removed(&self, _a: LogicalAddr, _l: u64) {
        todo!()
    }
    pub fn pin(&self, _a: LogicalAddr, _l: u64) {
        todo!()
    }
    pub fn take_edits(
        &self,
        _t: btrfs_format::Generation,
    ) -> Result<Vec<(btrfs_format::TreeId, btrfs_format::Key, crate::overlay::Edit)>> {
        todo!()
    }
    pub fn fill_superblock(&self, _s: &mut btrfs_format::Superblock) {
        todo!()
    }
    pub fn commit_done(&self) {
        todo!()
    }
    pub fn commit_failed(&self) {
        todo!()
    }
    pub fn note_pending(&self, _i: usize, _b: usize, _r: usize) {
        todo!()
    }
    pub fn pending_frozen(&self) {
        todo!()
    }
    pub fn pending_merged(&self) {
        todo!()
    }
    pub fn has_changes(&self) -> bool {
        todo!()
    }
}
