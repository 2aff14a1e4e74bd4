//! A verified block.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::kind::TreeKind;
use super::shape::ShortHeader;
use super::verify;
use crate::corrupt::Corrupt;
use crate::geometry::Geometry;
use crate::header::Expect;
use crate::ids::Lsn;
use crate::view;

/// The blocks beside a block, on the same level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Siblings<K: TreeKind> {
    /// The one with lower keys, or "none".
    pub left: K::Ptr,
    /// The one with higher keys, or "none".
    pub right: K::Ptr,
}

/// A verified block of `K`'s tree. Accessors cannot fail: the verifier checked counts, bounds and
/// order.
///
/// Cheap to clone. Bytes are immutable.
pub struct BtreeBlock<K: TreeKind> {
    bytes: Arc<[u8]>,
    is_v5: bool,
    kind: PhantomData<K>,
}

impl<K: TreeKind> Clone for BtreeBlock<K> {
    fn clone(&self) -> Self {
        Self {
            bytes: Arc::clone(&self.bytes),
            is_v5: self.is_v5,
            kind: PhantomData,
        }
    }
}

impl<K: TreeKind> fmt::Debug for BtreeBlock<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} block(level {} records {})",
            K::TREE.name(),
            self.level(),
            self.len()
        )
    }
}

impl<K: TreeKind> BtreeBlock<K> {
    /// Verifies bytes from a device: magic, checksum, identity, then level, siblings, and every
    /// record, key and pointer. `level` is what the parent says. Errors: the first fault found.
    pub fn verify(bytes: impl Into<Arc<[u8]>>, expect: &Expect<'_>, level: Option<u8>) -> Result<Self, Corrupt> {
        let bytes = bytes.into();
        let geometry = expect.geometry;
        let kind = K::TREE.kind(geometry.is_v5());
        crate::header::verify(&kind, &bytes, geometry.block_bytes, expect, |bytes| {
            verify::block::<K>(bytes, expect, level)
        })?;
        Ok(Self::of(bytes, geometry))
    }

    /// Verifies a block that was built here as if it came from a device, stamps `lsn`, and stores
    /// its checksum. Only the result may be written. Errors: what [`Self::verify`] refuses.
    pub fn seal(mut bytes: Vec<u8>, expect: &Expect<'_>, lsn: Lsn) -> Result<Self, Corrupt> {
        let geometry = expect.geometry;
        let kind = K::TREE.kind(geometry.is_v5());
        crate::header::seal(&kind, &mut bytes, geometry.block_bytes, expect, lsn, |bytes| {
            verify::block::<K>(bytes, expect, None)
        })?;
        Ok(Self::of(bytes.into(), geometry))
    }

    fn of(bytes: Arc<[u8]>, geometry: &Geometry) -> Self {
        Self {
            bytes,
            is_v5: geometry.is_v5(),
            kind: PhantomData,
        }
    }

    /// The whole block, as it is written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// True on a volume of V5, where the block has a long header.
    pub fn is_v5(&self) -> bool {
        self.is_v5
    }
    #[allow(clippy::expect_used, reason = "a verified block holds a header")]
    fn short(&self) -> &ShortHeader {
        view::at(&self.bytes, 0).expect("a verified block holds a header")
    }
    /// The level: 0 for a leaf.
    pub fn level(&self) -> u8 {
        u8::try_from(self.short().level.get()).unwrap_or(u8::MAX)
    }
    /// True for a block of records, false for a node of children.
    pub fn is_leaf(&self) -> bool {
        self.level() == 0
    }
    /// Number of records or children.
    pub fn len(&self) -> usize {
        self.short().numrecs.get().into()
    }
    /// True without records: the root of an empty tree alone.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The blocks to the left and to the right on the same level.
    #[allow(clippy::expect_used, reason = "a verified block holds a header")]
    pub fn siblings(&self) -> Siblings<K> {
        let [left, right] = verify::siblings::<K>(&self.bytes).expect("a verified block holds a header");
        Siblings { left, right }
    }

    /// Records of a leaf. Empty for a node.
    #[allow(clippy::expect_used, reason = "a verified leaf holds its records")]
    pub fn records(&self) -> &[K::Record] {
        if !self.is_leaf() {
            return &[];
        }
        view::slice(&self.bytes, K::TREE.header_bytes(self.is_v5), self.len())
            .expect("a verified leaf holds its records")
    }
    /// Keys of a node: those of the rmapbt are pairs. Empty for a leaf.
    #[allow(clippy::expect_used, reason = "a verified node holds its keys")]
    pub fn keys(&self) -> &[K::NodeKey] {
        if self.is_leaf() {
            return &[];
        }
        view::slice(&self.bytes, K::TREE.header_bytes(self.is_v5), self.len()).expect("a verified node holds its keys")
    }
    /// Children of a node. Empty for a leaf.
    #[allow(clippy::expect_used, reason = "a verified node holds its pointers")]
    pub fn pointers(&self) -> &[K::Ptr] {
        if self.is_leaf() {
            return &[];
        }
        verify::pointers::<K>(&self.bytes, self.is_v5, self.len()).expect("a verified node holds its pointers")
    }
}
