//! The structures of XFS volumes.

pub mod attr;
pub mod btree;
pub mod dir;
pub mod groups;
pub mod inode;
pub mod log;
mod printer;
mod reader;
pub mod superblock;
