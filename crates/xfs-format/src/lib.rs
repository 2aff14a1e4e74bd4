//! The XFS disk format: structures, addresses, checksums, verification and rendering.
//!
//! Pure: no I/O, no threads, no unsafe, no panic on any input. Raw structures are declared as they
//! lie on disk ([`zerocopy`] big-endian, unaligned). A verified block is a type of its own
//! ([`BtreeBlock`], [`Inode`], [`ag::AgfSector`], ...): it was checked once and is trusted
//! afterwards. What is written has passed the same checks: `seal` makes the same types.
//!
//! [`Geometry`] is the shape of a volume, from its superblock: all verifiers need it, and all
//! addresses go through it.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects,
        clippy::as_conversions
    )
)]

pub mod ag;
pub mod attr;
pub mod btree;
mod corrupt;
pub mod crc;
pub mod da;
pub mod dir;
pub mod dquot;
pub mod features;
mod geometry;
mod header;
pub mod ids;
pub mod inode;
pub mod log;
mod num;
pub mod render;
mod sb;
pub mod superblock;
pub mod symlink;
mod view;

pub use btree::{BtreeBlock, Extent, Tree};
pub use corrupt::{Corrupt, CorruptKind, Site};
pub use cowshed_layout::{FieldLayout, Layout, Rule, uuid_text};
pub use geometry::{
    AG_BLOCKS_MIN, AG_HEADER_SECTORS, CHUNK_INODES, DIR_FREE_OFFSET_BYTES, DIR_LEAF_OFFSET_BYTES, Geometry,
};
pub use header::{Expect, Owner};
pub use ids::{AgBlock, AgIno, AgNumber, DaBlock, Daddr, FileBlock, FsBlock, Ino, Lsn, Uuid};
pub use inode::Inode;
pub use superblock::{Access, ReadLimit, Superblock, SuperblockError, UnsupportedFeature};
pub use zerocopy::big_endian::{U16, U32, U64};
