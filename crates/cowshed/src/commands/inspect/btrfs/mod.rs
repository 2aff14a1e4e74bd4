//! The structures of btrfs volumes.

pub mod chunk;
pub mod extent;
pub mod find_root;
pub mod reader;
pub mod space;
pub mod superblock;
pub mod tree;
