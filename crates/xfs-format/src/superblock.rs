//! The superblock: the first sector of every allocation group. That of group 0 counts.

mod access;
#[cfg(test)]
pub(crate) mod tests;
mod verify;

pub use crate::sb::{MAGIC, SUPERBLOCK_BYTES, Superblock};
pub use access::{
    Access, ReadLimit, SUPPORTED_INCOMPAT, SUPPORTED_LOG_INCOMPAT, SUPPORTED_RO_COMPAT, UnsupportedFeature,
};
pub use verify::{INODE_BYTES, LOG_STRIPE_BYTES_MAX, SECTOR_BYTES, SuperblockError};
