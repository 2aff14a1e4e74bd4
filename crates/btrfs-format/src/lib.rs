//! The btrfs disk format: structures, keys, checksums, verification and rendering.
//!
//! Pure: no I/O, no threads, no unsafe, no panic on any input. Raw structures are declared as they
//! lie on disk ([`zerocopy`] little-endian, unaligned); [`TreeBlock`] is a block that was verified
//! once and is trusted afterwards.
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

pub mod block;
pub mod builder;
mod corrupt;
pub mod csum;
pub mod features;
pub mod hash;
mod header;
pub mod ids;
pub mod items;
pub mod key;
pub mod profile;
pub mod render;
pub mod salvage;
pub mod superblock;
mod verify;
pub mod view;

pub use block::{BlockExpect, Corrupt, CorruptKind, Site, TreeBlock};
pub use builder::{HeaderFields, LeafBuilder, NodeBuilder};
pub use cowshed_layout::Rule;
pub use csum::ChecksumType;
pub use ids::{DevId, Generation, LogicalAddr, ObjectId, TreeId, Uuid};
pub use key::{DiskKey, Key, KeyType};
pub use profile::{Profile, UnknownProfile};
pub use superblock::{Access, Superblock, SuperblockError, UnsupportedFeature};
pub use zerocopy::little_endian::{U16, U32, U64};
