//! [`TreeBlock`]: a block whose bytes have been verified once, and are trusted afterwards.

use std::fmt;
use std::sync::Arc;

use zerocopy::{FromBytes, Ref};

pub use crate::corrupt::{Corrupt, CorruptKind, Site};
use crate::csum::CSUM_FIELD_BYTES;
pub use crate::header::{
    HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, KeyPtr, LEVEL_MAX, item_bytes_max,
    leaf_capacity_bytes, node_capacity_ptrs,
};
use crate::ids::{Generation, LogicalAddr, TreeId};
use crate::key::Key;
pub use crate::verify::BlockExpect;

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
    /// Verifies `bytes` from a device: checksum, identity, order, bounds and every known item.
    /// Errors: the first fault found.
    pub fn verify(bytes: impl Into<Arc<[u8]>>, expect: &BlockExpect) -> Result<Self, Corrupt> {
        let bytes = bytes.into();
        crate::verify::check_csum(&bytes, expect)?;
        crate::verify::check_block(&bytes, expect)?;
        Ok(Self { bytes })
    }

    /// Whether the stored checksum is that of the bytes.
    pub fn has_checksum(bytes: &[u8], expect: &BlockExpect) -> bool {
        crate::verify::check_csum(bytes, expect).is_ok()
    }

    /// Verifies a block that was built here as if it came from a device, and stores its checksum.
    /// Only the result may be written. Errors: what the verifier refuses.
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

    /// Takes over a block that a builder of ours laid out. It has no checksum:
    /// [`TreeBlock::sealed`] makes the block that may be written.
    pub fn from_builder(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into() }
    }

    /// The same block, verified as if it came from a device and with its checksum stored. Errors:
    /// what the verifier refuses.
    pub fn sealed(&self, expect: &BlockExpect) -> Result<Self, Corrupt> {
        let mut bytes: Arc<[u8]> = Arc::from(&self.bytes[..]);
        if let Some(bytes) = Arc::get_mut(&mut bytes) {
            Self::seal_in_place(bytes, expect)?;
        }
        Ok(Self { bytes })
    }

    /// The whole block, as it is written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// The header.
    pub fn header(&self) -> &Header {
        header_of(&self.bytes)
    }
    /// The logical address that the block states.
    pub fn addr(&self) -> LogicalAddr {
        self.header().bytenr.into()
    }
    /// The level: 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.header().level
    }
    /// True for a block of items, false for a node of child pointers.
    pub fn is_leaf(&self) -> bool {
        self.level() == 0
    }
    /// The transaction that wrote the block.
    pub fn generation(&self) -> Generation {
        self.header().generation.into()
    }
    /// The tree that first owned the block; snapshots share it.
    pub fn owner(&self) -> TreeId {
        self.header().owner.into()
    }
    /// Number of items or child pointers.
    pub fn len(&self) -> usize {
        self.header().nritems.get() as usize
    }
    /// True without items; the root of an empty tree is such a leaf.
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
