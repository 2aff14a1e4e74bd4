//! The raw structures of tree blocks: header, item headers and key pointers, and how many fit.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::Uuid;
use crate::key::DiskKey;
use cowshed_layout::on_disk;

on_disk!(
    /// `btrfs_header`.
    /// docs/format/tree-blocks.md
    Header(101) {
        csum: [u8; 32],
        fsid: Uuid,
        bytenr: U64,
        flags: U64,
        chunk_tree_uuid: Uuid,
        generation: U64,
        owner: U64,
        nritems: U32,
        level: u8,
    }
);
on_disk!(
    /// `btrfs_item`: the header of an item in a leaf. `offset` counts from the end of the block's
    /// header. docs/format/tree-blocks.md
    ItemHeader(25) { key: DiskKey, offset: U32, size: U32 }
);
on_disk!(
    /// `btrfs_key_ptr`.
    /// docs/format/tree-blocks.md
    KeyPtr(33) { key: DiskKey, blockptr: U64, generation: U64 }
);

/// Bytes of the header of every tree block.
pub const HEADER_BYTES: usize = size_of::<Header>();
/// Bytes of the header of an item.
pub const ITEM_HEADER_BYTES: usize = size_of::<ItemHeader>();
/// Bytes of a child pointer.
pub const KEY_PTR_BYTES: usize = size_of::<KeyPtr>();
/// Levels of a tree: 0 (leaves) to 7.
pub const LEVEL_MAX: u8 = 7;

/// Bytes for item headers and data in a leaf.
#[allow(clippy::arithmetic_side_effects, reason = "node sizes are above 4 KiB")]
pub const fn leaf_capacity_bytes(nodesize_bytes: usize) -> usize {
    nodesize_bytes - HEADER_BYTES
}
/// Children of a full node.
#[allow(clippy::arithmetic_side_effects, reason = "node sizes are above 4 KiB")]
pub const fn node_capacity_ptrs(nodesize_bytes: usize) -> usize {
    (nodesize_bytes - HEADER_BYTES) / KEY_PTR_BYTES
}
/// The largest item data that fits a leaf.
#[allow(clippy::arithmetic_side_effects, reason = "node sizes are above 4 KiB")]
pub const fn item_bytes_max(nodesize_bytes: usize) -> usize {
    leaf_capacity_bytes(nodesize_bytes) - ITEM_HEADER_BYTES
}
