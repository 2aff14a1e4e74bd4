//! Extents of file data, and the files that refer to them.

use btrfs_format::{LogicalAddr, ObjectId, TreeId};

/// A file's references to a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRef {
    /// The subvolume.
    pub root: TreeId,
    /// The inode's number.
    pub objectid: ObjectId,
    /// The file offset, less the offset into the extent.
    pub offset_bytes: u64,
    /// How many file extent items of the inode have this offset.
    pub count: u32,
}

/// An extent of file data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataExtent {
    /// Logical address.
    pub addr: LogicalAddr,
    /// Bytes on disk.
    pub len_bytes: u64,
    /// The files that refer to it.
    pub refs: Vec<DataRef>,
}
