//! Directories: entries in the inode (shortform), in one block, or in data blocks with an index by
//! hash (leaf, nodes) and one of free space.
//!
//! The three address spaces of a directory's file hold data, leaves and free index. An entry's
//! place in the data space, in units of 8 bytes, is its position for readdir.

mod data;
mod entry;
mod free;
mod index;
mod leaf;
mod shortform;

pub use data::{
    BEST_FREE_SPANS, DataItem, DataItems, DirBestFree, DirBlock, DirBlockTail, DirDataBlock, DirDataEntryHead,
    DirDataHeader, DirDataHeaderV5, DirUnusedHead, data_header_bytes, entry_bytes, leaf_entries,
};
pub use entry::{DirEntry, FileType};
pub use free::{DirFreeBlock, DirFreeHeader, DirFreeHeaderV5, NULL_BEST};
pub use index::{DirLeafEntry, STALE_ADDRESS};
pub use leaf::{DirLeaf1Block, DirLeafHeader, DirLeafHeaderV5, DirLeafNBlock, DirLeafTail};
pub use shortform::{ShortformDir, ShortformEntry, ShortformHead, build_shortform, first_entry_offset};

/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;
/// Positions count units of this many bytes.
pub const POSITION_BYTES: u32 = 8;
