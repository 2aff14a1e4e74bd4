//! Extents of file data, and the files that refer to them.

use btrfs_format::{LogicalAddr, ObjectId, TreeId};

/// A file's references to a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRef {
    pub root: TreeId,
    pub objectid: ObjectId,
    /// The file offset, less the offset into the extent.
    pub offset_bytes: u64,
    pub count: u32,
}

/// An extent of file data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataExtent {
    pub addr: LogicalAddr,
    pub len_bytes: u64,
    pub refs: Vec<DataRef>,
}
