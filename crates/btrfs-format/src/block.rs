//! Tree blocks: raw structures, and [`TreeBlock`], a block whose bytes have been verified once.

use std::fmt;
use std::sync::Arc;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, Unaligned};

use crate::Uuid;
use crate::csum::ChecksumType;
use crate::ids::{Generation, LogicalAddr, TreeId};
use crate::items::on_disk;
use crate::key::{DiskKey, Key, KeyType};
use crate::rule::Rule;
use crate::superblock::CSUM_FIELD_BYTES;

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
    /// `btrfs_item`: the header of an item in a leaf. `offset` counts from the end of the block's header.
    /// docs/format/tree-blocks.md
    ItemHeader(25) { key: DiskKey, offset: U32, size: U32 }
);
on_disk!(
    /// `btrfs_key_ptr`.
    /// docs/format/tree-blocks.md
    KeyPtr(33) { key: DiskKey, blockptr: U64, generation: U64 }
);

pub const HEADER_BYTES: usize = size_of::<Header>();
pub const ITEM_HEADER_BYTES: usize = size_of::<ItemHeader>();
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

/// What the reader of a block already knows about it. `None` where it does not.
#[derive(Clone, Debug)]
pub struct BlockExpect {
    pub addr: LogicalAddr,
    pub fsid: Uuid,
    pub csum_type: ChecksumType,
    pub sectorsize_bytes: u32,
    pub level: Option<u8>,
    pub generation: Option<Generation>,
    /// The first key, as the parent states it.
    pub first_key: Option<Key>,
    /// The tree that is being walked; shared blocks may be owned by another subvolume.
    pub tree: Option<TreeId>,
}

/// A block that is not what it should be: where, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("corrupt block: {site}: {kind}")]
pub struct Corrupt {
    pub site: Site,
    pub kind: CorruptKind,
}

/// Where a fault was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Site {
    pub tree: Option<TreeId>,
    pub addr: LogicalAddr,
    pub level: Option<u8>,
    pub slot: Option<u32>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tree) = self.tree {
            write!(f, "tree {tree}, ")?;
        }
        write!(f, "block {}", self.addr)?;
        if let Some(level) = self.level {
            write!(f, ", level {level}")?;
        }
        if let Some(slot) = self.slot {
            write!(f, ", slot {slot}")?;
        }
        Ok(())
    }
}

/// What is wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptKind {
    #[error("block of {found} bytes is too short")]
    Short { found: usize },
    #[error("bad checksum: stored {stored}, computed {computed}")]
    Csum { stored: String, computed: String },
    #[error("{field} is {found}, expected {expected}")]
    Mismatch {
        field: &'static str,
        found: String,
        expected: String,
    },
    #[error("{field} is {found}, limit {limit}")]
    Limit {
        field: &'static str,
        found: u64,
        limit: u64,
    },
    #[error("keys out of order: {prev} before {key}")]
    KeyOrder { prev: Key, key: Key },
    #[error("item out of place: data {offset}+{size}, expected end {expected_end}")]
    ItemBounds { offset: u32, size: u32, expected_end: u32 },
    #[error("{key}: {what}")]
    Item { key: Key, what: String },
    #[error("{field} is {found}, {rule}")]
    Field {
        field: &'static str,
        found: u64,
        rule: Rule,
    },
    #[error("tree {owner} has an empty leaf")]
    EmptyLeaf { owner: TreeId },
    #[error("a block of tree {owner} in tree {tree}")]
    Owner { owner: TreeId, tree: TreeId },
    #[error("{key}: item of {found} bytes, {rule}")]
    ItemSize { key: Key, found: u64, rule: Rule },
    #[error("{key}: {field} is {found}, {rule}")]
    ItemField {
        key: Key,
        field: &'static str,
        found: u64,
        rule: Rule,
    },
    /// A part of an item (an entry, a name, a reference) reaches over the item's end.
    #[error("{key}: {part} of {needs} bytes in the {left} bytes left")]
    ItemTruncated {
        key: Key,
        part: &'static str,
        needs: u64,
        left: u64,
    },
    #[error("{key}: overlaps {prev}, which ends at {prev_end}")]
    Overlap { key: Key, prev: Key, prev_end: u64 },
    #[error("{key}: follows {prev}, an item of another object")]
    OtherObject { key: Key, prev: Key },
    /// A name that no directory can hold: empty, too long, a dot name, or with a slash or NUL in it.
    #[error("{key}: {name:?} is no valid name")]
    Name { key: Key, name: String },
    #[error("{key}: entry points to {location}")]
    Location { key: Key, location: Key },
    /// Inline references are ordered by type, then downwards by offset or hash.
    #[error("{key}: inline reference {ty} {seq:#x} follows {prev_ty} {prev_seq:#x}")]
    InlineRefOrder {
        key: Key,
        prev_ty: KeyType,
        prev_seq: u64,
        ty: KeyType,
        seq: u64,
    },
    #[error("{key}: inline reference of type {ty}")]
    InlineRefType { key: Key, ty: KeyType },
}

/// A verified tree block. Accessors cannot fail: the verifier checked counts, bounds and order.
///
/// Cheap to clone. Bytes are immutable.
#[derive(Clone)]
pub struct TreeBlock {
    bytes: Arc<[u8]>,
}

impl fmt::Debug for TreeBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let h = self.header();
        write!(f, "TreeBlock({} level {} items {})", h.bytenr, h.level, h.nritems)
    }
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a TreeBlock exists where the verifier has checked counts, offsets and sizes; slots are the caller's"
)]
impl TreeBlock {
    /// Checks `bytes` completely; the only way to a `TreeBlock`.
    pub fn verify(bytes: impl Into<Arc<[u8]>>, expect: &BlockExpect) -> Result<Self, Corrupt> {
        let bytes = bytes.into();
        crate::verify::check_csum(&bytes, expect)?;
        crate::verify::check_block(&bytes, expect)?;
        Ok(Self { bytes })
    }

    /// Stores the checksum into a block of ours and verifies it like a stranger's: what comes out may be written.
    pub fn seal(mut bytes: Vec<u8>, expect: &BlockExpect) -> Result<Self, Corrupt> {
        Self::seal_in_place(&mut bytes, expect)?;
        Ok(Self { bytes: bytes.into() })
    }

    /// As [`TreeBlock::seal`], for bytes that are written and not kept.
    pub fn seal_in_place(bytes: &mut [u8], expect: &BlockExpect) -> Result<(), Corrupt> {
        crate::verify::check_block(bytes, expect)?;
        if let Some((sum, body)) = bytes.split_at_mut_checked(CSUM_FIELD_BYTES) {
            sum.copy_from_slice(&expect.csum_type.compute(body));
        }
        Ok(())
    }

    /// Takes over a block that a builder of ours laid out. It has no checksum: [`TreeBlock::sealed`] makes the block
    /// that may be written.
    pub fn from_builder(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into() }
    }

    /// The same block, verified like a stranger's and with its checksum stored.
    pub fn sealed(&self, expect: &BlockExpect) -> Result<Self, Corrupt> {
        let mut bytes: Arc<[u8]> = Arc::from(&self.bytes[..]);
        if let Some(bytes) = Arc::get_mut(&mut bytes) {
            Self::seal_in_place(bytes, expect)?;
        }
        Ok(Self { bytes })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    pub fn header(&self) -> &Header {
        header_of(&self.bytes)
    }
    pub fn addr(&self) -> LogicalAddr {
        self.header().bytenr.into()
    }
    pub fn level(&self) -> u8 {
        self.header().level
    }
    pub fn is_leaf(&self) -> bool {
        self.level() == 0
    }
    pub fn generation(&self) -> Generation {
        self.header().generation.into()
    }
    pub fn owner(&self) -> TreeId {
        self.header().owner.into()
    }
    pub fn len(&self) -> usize {
        self.header().nritems.get() as usize
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Item headers of a leaf. Empty for a node.
    pub fn item_headers(&self) -> &[ItemHeader] {
        if self.is_leaf() {
            item_headers_of(&self.bytes, self.len())
        } else {
            &[]
        }
    }
    /// Child pointers of a node. Empty for a leaf.
    pub fn key_ptrs(&self) -> &[KeyPtr] {
        if self.is_leaf() {
            &[]
        } else {
            key_ptrs_of(&self.bytes, self.len())
        }
    }

    /// Key at `slot`, of a leaf or a node.
    pub fn key(&self, slot: usize) -> Key {
        if self.is_leaf() {
            self.item_headers()[slot].key.into()
        } else {
            self.key_ptrs()[slot].key.into()
        }
    }
    /// Data of the item at `slot` of a leaf.
    pub fn data(&self, slot: usize) -> &[u8] {
        let head = &self.item_headers()[slot];
        let start = HEADER_BYTES + head.offset.get() as usize;
        &self.bytes[start..start + head.size.get() as usize]
    }
    /// Key and data of the item at `slot` of a leaf.
    pub fn item(&self, slot: usize) -> (Key, &[u8]) {
        (self.key(slot), self.data(slot))
    }
    /// Address and generation of the child at `slot` of a node.
    pub fn child(&self, slot: usize) -> (LogicalAddr, Generation) {
        let ptr = &self.key_ptrs()[slot];
        (ptr.blockptr.into(), ptr.generation.into())
    }

    /// Slot of `key`, or where it would be inserted.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        if self.is_leaf() {
            self.item_headers()
                .binary_search_by(|head| Key::from(head.key).cmp(key))
        } else {
            self.key_ptrs().binary_search_by(|ptr| Key::from(ptr.key).cmp(key))
        }
    }
    /// Slot of the child whose range holds `key`; the first one where `key` is below all.
    pub fn child_slot(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(slot) => slot,
            Err(slot) => slot.saturating_sub(1),
        }
    }
    /// Bytes of a leaf's items with their headers.
    pub fn used_bytes(&self) -> usize {
        if self.is_leaf() {
            self.item_headers()
                .iter()
                .map(|h| ITEM_HEADER_BYTES + h.size.get() as usize)
                .sum()
        } else {
            self.len() * KEY_PTR_BYTES
        }
    }
}

/// The header of a block that has at least a header's bytes.
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "called for verified blocks alone"
)]
fn header_of(bytes: &[u8]) -> &Header {
    let (header, _) = Ref::<_, Header>::from_prefix(bytes).expect("a verified block holds a header");
    Ref::into_ref(header)
}
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "called for verified blocks alone"
)]
fn item_headers_of(bytes: &[u8], count: usize) -> &[ItemHeader] {
    let (heads, _) = <[ItemHeader]>::ref_from_prefix_with_elems(&bytes[HEADER_BYTES..], count)
        .expect("a verified leaf holds its item headers");
    heads
}
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "called for verified blocks alone"
)]
fn key_ptrs_of(bytes: &[u8], count: usize) -> &[KeyPtr] {
    let (ptrs, _) = <[KeyPtr]>::ref_from_prefix_with_elems(&bytes[HEADER_BYTES..], count)
        .expect("a verified node holds its pointers");
    ptrs
}
