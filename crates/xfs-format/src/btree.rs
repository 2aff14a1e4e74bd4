//! B-tree blocks: seven trees of one shape. A leaf holds records in the order of their keys, a node
//! holds a key and a pointer for each child; siblings are linked.
//!
//! Trees of an allocation group have pointers of 32 bits (short form), the tree of a file's extents
//! has pointers of 64 bits (long form) and its root in the inode.

mod build;
mod kind;
mod record;
mod root;
mod verify;

use std::fmt;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::sync::Arc;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use cowshed_layout::on_disk;

use crate::corrupt::Corrupt;
use crate::geometry::Geometry;
use crate::header::{Expect, Identity, Kind, Magic, OwnerField};
use crate::ids::{Lsn, Uuid};
use crate::num::to_len;
use crate::view;

pub use build::{BlockFields, Siblings};
pub use kind::{BlockPtr, Bmap, Bno, Cnt, Finobt, Inobt, KeyOf, OnDisk, RecordOf, Refcount, Rmap, TreeKind};
pub(crate) use record::check_extent;
pub use record::{
    AllocRecord, BmapKey, BmapRecord, EXTENT_BLOCKS_MAX, Extent, InobtKey, InobtRecord, REFCOUNT_COW_FLAG,
    REFCOUNT_MAX, RefcountKey, RefcountRecord, RmapKey, RmapNodeKey, RmapOwner, RmapRecord, rmap_offset,
};
pub use root::{BMDR_HEADER_BYTES, BmdrHeader, BmdrRoot, build_bmdr_root};

on_disk!(
    /// The header of a block in the short form, on V4.
    /// docs/format/xfs/btrees.md
    ShortHeader(16) {
        magic: U32,
        level: U16,
        numrecs: U16,
        leftsib: U32,
        rightsib: U32,
    }
);
on_disk!(
    /// The header of a block in the short form, on V5.
    /// docs/format/xfs/btrees.md
    ShortHeaderV5(56) {
        magic: U32,
        level: U16,
        numrecs: U16,
        leftsib: U32,
        rightsib: U32,
        bno: U64,
        lsn: U64,
        uuid: Uuid,
        owner: U32,
        crc: [u8; 4],
    }
);
on_disk!(
    /// The header of a block in the long form, on V4.
    /// docs/format/xfs/btrees.md
    LongHeader(24) {
        magic: U32,
        level: U16,
        numrecs: U16,
        leftsib: U64,
        rightsib: U64,
    }
);
on_disk!(
    /// The header of a block in the long form, on V5.
    /// docs/format/xfs/btrees.md
    LongHeaderV5(72) {
        magic: U32,
        level: U16,
        numrecs: U16,
        leftsib: U64,
        rightsib: U64,
        bno: U64,
        lsn: U64,
        uuid: Uuid,
        owner: U64,
        crc: [u8; 4],
        pad: U32,
    }
);

/// One of the seven trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tree {
    /// Free extents of an allocation group by their start.
    Bno,
    /// Free extents of an allocation group by their length.
    Cnt,
    /// Inode chunks of an allocation group.
    Inobt,
    /// Inode chunks with free inodes.
    Finobt,
    /// Owners of the blocks of an allocation group.
    Rmap,
    /// Blocks of an allocation group that files share, or that are staged for copy on write.
    Refcount,
    /// Extents of a file.
    Bmap,
}

/// Levels of a file's tree, the root in the inode included.
pub const BMAP_LEVELS_MAX: u8 = 9;

impl Tree {
    /// All trees.
    pub const ALL: [Self; 7] = [
        Self::Bno,
        Self::Cnt,
        Self::Inobt,
        Self::Finobt,
        Self::Rmap,
        Self::Refcount,
        Self::Bmap,
    ];

    /// The tree's name in the format's documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bno => "bnobt",
            Self::Cnt => "cntbt",
            Self::Inobt => "inobt",
            Self::Finobt => "finobt",
            Self::Rmap => "rmapbt",
            Self::Refcount => "refcountbt",
            Self::Bmap => "bmbt",
        }
    }

    const fn block_name(self) -> &'static str {
        match self {
            Self::Bno => "bnobt block",
            Self::Cnt => "cntbt block",
            Self::Inobt => "inobt block",
            Self::Finobt => "finobt block",
            Self::Rmap => "rmapbt block",
            Self::Refcount => "refcountbt block",
            Self::Bmap => "bmbt block",
        }
    }

    /// `magic` of the tree's blocks. The trees that V4 does not have, have one magic.
    pub const fn magic(self, is_v5: bool) -> u32 {
        let text = match (self, is_v5) {
            (Self::Bno, false) => b"ABTB",
            (Self::Bno, true) => b"AB3B",
            (Self::Cnt, false) => b"ABTC",
            (Self::Cnt, true) => b"AB3C",
            (Self::Inobt, false) => b"IABT",
            (Self::Inobt, true) => b"IAB3",
            (Self::Finobt, false) => b"FIBT",
            (Self::Finobt, true) => b"FIB3",
            (Self::Rmap, _) => b"RMB3",
            (Self::Refcount, _) => b"R3FC",
            (Self::Bmap, false) => b"BMAP",
            (Self::Bmap, true) => b"BMA3",
        };
        u32::from_be_bytes(*text)
    }

    /// The tree of blocks with this magic.
    pub fn from_magic(magic: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|tree| tree.magic(true) == magic || tree.magic(false) == magic)
    }

    /// True for the tree with pointers of 64 bits.
    pub const fn is_long(self) -> bool {
        matches!(self, Self::Bmap)
    }

    /// Bytes of a block's header.
    pub const fn header_bytes(self, is_v5: bool) -> usize {
        match (self.is_long(), is_v5) {
            (false, false) => size_of::<ShortHeader>(),
            (false, true) => size_of::<ShortHeaderV5>(),
            (true, false) => size_of::<LongHeader>(),
            (true, true) => size_of::<LongHeaderV5>(),
        }
    }

    pub(crate) fn kind(self, is_v5: bool) -> Kind {
        let identity = if self.is_long() {
            Identity {
                crc: offset_of!(LongHeaderV5, crc),
                uuid: offset_of!(LongHeaderV5, uuid),
                lsn: Some(offset_of!(LongHeaderV5, lsn)),
                daddr: Some(offset_of!(LongHeaderV5, bno)),
                owner: Some(OwnerField::Inode(offset_of!(LongHeaderV5, owner))),
            }
        } else {
            Identity {
                crc: offset_of!(ShortHeaderV5, crc),
                uuid: offset_of!(ShortHeaderV5, uuid),
                lsn: Some(offset_of!(ShortHeaderV5, lsn)),
                daddr: Some(offset_of!(ShortHeaderV5, bno)),
                owner: Some(OwnerField::Ag(offset_of!(ShortHeaderV5, owner))),
            }
        };
        Kind {
            name: self.block_name(),
            magic: Some(Magic::Wide(offset_of!(ShortHeader, magic), self.magic(is_v5))),
            identity: is_v5.then_some(identity),
        }
    }
}

/// Most records of a leaf in a block of `K`'s tree.
pub fn leaf_records_max<K: TreeKind>(geometry: &Geometry) -> usize {
    room::<K>(geometry)
        .checked_div(size_of::<K::Record>())
        .unwrap_or_default()
}

/// Most children of a node in a block of `K`'s tree.
pub fn node_children_max<K: TreeKind>(geometry: &Geometry) -> usize {
    children_in::<K>(room::<K>(geometry))
}

fn room<K: TreeKind>(geometry: &Geometry) -> usize {
    to_len(geometry.block_bytes.into()).saturating_sub(K::TREE.header_bytes(geometry.is_v5()))
}
fn children_in<K: TreeKind>(bytes: usize) -> usize {
    let child = size_of::<K::NodeKey>().saturating_add(size_of::<K::Ptr>());
    bytes.checked_div(child).unwrap_or_default()
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
