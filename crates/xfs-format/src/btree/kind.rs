//! The trees as types: which records, keys and pointers each one has.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::record;
use super::record::{
    AllocRecord, BmapKey, BmapRecord, InobtKey, InobtRecord, RefcountKey, RefcountRecord, RmapKey, RmapNodeKey,
    RmapRecord,
};
use super::shape::Tree;
use crate::corrupt::Checked;
use crate::geometry::Geometry;
use crate::header::Expect;
use crate::ids::{AgBlock, AgNumber, FsBlock};
use crate::num::to_len;

/// A structure that lies on disk as it is in memory.
pub trait OnDisk:
    FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + PartialEq + std::fmt::Debug
{
}
impl<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + PartialEq + std::fmt::Debug> OnDisk for T {}

/// A pointer to a block: within the allocation group, or within the volume.
pub trait BlockPtr: OnDisk {
    /// "None".
    const NULL: Self;
    /// The plain number.
    fn number(self) -> u64;
    /// True for a block that a tree may use; `group` is that of a short pointer.
    fn is_block(self, geometry: &Geometry, group: Option<AgNumber>) -> bool;
}

impl BlockPtr for U32 {
    const NULL: Self = Self::new(AgBlock::NULL);
    fn number(self) -> u64 {
        self.get().into()
    }
    fn is_block(self, geometry: &Geometry, group: Option<AgNumber>) -> bool {
        group.is_some_and(|group| geometry.is_ag_block(group, AgBlock(self.get())))
    }
}

impl BlockPtr for U64 {
    const NULL: Self = Self::new(FsBlock::NULL);
    fn number(self) -> u64 {
        self.get()
    }
    fn is_block(self, geometry: &Geometry, _group: Option<AgNumber>) -> bool {
        geometry.is_block(FsBlock(self.get()))
    }
}

/// A tree: its records, keys, pointers and their order.
pub trait TreeKind: Sized + 'static {
    /// Which one.
    const TREE: Tree;
    /// What a leaf holds.
    type Record: OnDisk;
    /// The key of a record.
    type Key: OnDisk;
    /// What a node holds for each child: the least key, and in the rmapbt the greatest, too.
    type NodeKey: OnDisk;
    /// A pointer to a child or sibling.
    type Ptr: BlockPtr;
    /// A key in a form that compares as the tree orders it.
    type Order: Ord + Copy + std::fmt::Debug;

    /// The key of a record: its least one, where ranges have two.
    fn key(record: &Self::Record) -> Self::Key;
    /// What a node says about a leaf that holds these records; they are not empty.
    fn node_key(records: &[Self::Record]) -> Option<Self::NodeKey>;
    /// What a node says about a node that holds these keys; they are not empty.
    fn join_keys(keys: &[Self::NodeKey]) -> Option<Self::NodeKey>;
    /// The least key of a child.
    fn low(key: &Self::NodeKey) -> Self::Key;
    /// The greatest key of a child, where nodes hold it.
    fn high(_key: &Self::NodeKey) -> Option<Self::Key> {
        None
    }
    /// The order of a key.
    fn order(key: &Self::Key) -> Self::Order;
    /// Checks the fields of a record.
    #[doc(hidden)]
    fn check(record: &Self::Record, expect: &Expect<'_>, group: Option<AgNumber>) -> CheckResult;
    /// Checks a record against the one before it.
    #[doc(hidden)]
    fn check_pair(prev: &Self::Record, record: &Self::Record, expect: &Expect<'_>) -> CheckResult;
}

/// What a check found. Opaque outside of this crate.
#[derive(Debug)]
pub struct CheckResult(pub(crate) Checked);

/// A tree's record.
pub type RecordOf<K> = <K as TreeKind>::Record;
/// A tree's key.
pub type KeyOf<K> = <K as TreeKind>::Key;

/// [`Tree::Bno`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bno {}
/// [`Tree::Cnt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cnt {}
/// [`Tree::Inobt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inobt {}
/// [`Tree::Finobt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finobt {}
/// [`Tree::Rmap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rmap {}
/// [`Tree::Refcount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refcount {}
/// [`Tree::Bmap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bmap {}

/// The parts of a tree whose nodes hold the least key of each child.
macro_rules! plain_keys {
    () => {
        fn node_key(records: &[Self::Record]) -> Option<Self::NodeKey> {
            records.first().map(Self::key)
        }
        fn join_keys(keys: &[Self::NodeKey]) -> Option<Self::NodeKey> {
            keys.first().copied()
        }
        fn low(key: &Self::NodeKey) -> Self::Key {
            *key
        }
    };
}

macro_rules! checks {
    ($check:path, $pair:path) => {
        fn check(record: &Self::Record, expect: &Expect<'_>, group: Option<AgNumber>) -> CheckResult {
            CheckResult($check(record, expect.geometry, group))
        }
        fn check_pair(prev: &Self::Record, record: &Self::Record, expect: &Expect<'_>) -> CheckResult {
            let _ = expect;
            CheckResult($pair(prev, record, expect.geometry))
        }
    };
}

impl TreeKind for Bno {
    const TREE: Tree = Tree::Bno;
    type Record = AllocRecord;
    type Key = AllocRecord;
    type NodeKey = AllocRecord;
    type Ptr = U32;
    type Order = u32;
    fn key(record: &AllocRecord) -> AllocRecord {
        *record
    }
    fn order(key: &AllocRecord) -> u32 {
        key.startblock.get()
    }
    plain_keys!();
    checks!(record::check_alloc, record::check_alloc_pair);
}

impl TreeKind for Cnt {
    const TREE: Tree = Tree::Cnt;
    type Record = AllocRecord;
    type Key = AllocRecord;
    type NodeKey = AllocRecord;
    type Ptr = U32;
    type Order = (u32, u32);
    fn key(record: &AllocRecord) -> AllocRecord {
        *record
    }
    fn order(key: &AllocRecord) -> (u32, u32) {
        (key.blockcount.get(), key.startblock.get())
    }
    plain_keys!();
    checks!(record::check_alloc, record::no_pair);
}

macro_rules! inode_tree {
    ($name:ident, $tree:expr) => {
        impl TreeKind for $name {
            const TREE: Tree = $tree;
            type Record = InobtRecord;
            type Key = InobtKey;
            type NodeKey = InobtKey;
            type Ptr = U32;
            type Order = u32;
            fn key(record: &InobtRecord) -> InobtKey {
                InobtKey {
                    startino: record.startino,
                }
            }
            fn order(key: &InobtKey) -> u32 {
                key.startino.get()
            }
            plain_keys!();
            checks!(record::check_inobt, record::check_inobt_pair);
        }
    };
}
inode_tree!(Inobt, Tree::Inobt);
inode_tree!(Finobt, Tree::Finobt);

impl TreeKind for Rmap {
    const TREE: Tree = Tree::Rmap;
    type Record = RmapRecord;
    type Key = RmapKey;
    type NodeKey = RmapNodeKey;
    type Ptr = U32;
    type Order = (u32, u64, u64);
    fn key(record: &RmapRecord) -> RmapKey {
        record.low_key()
    }
    fn node_key(records: &[RmapRecord]) -> Option<RmapNodeKey> {
        let low = records.first()?.low_key();
        let high = records.iter().map(RmapRecord::high_key).max_by_key(Self::order)?;
        Some(RmapNodeKey { low, high })
    }
    fn join_keys(keys: &[RmapNodeKey]) -> Option<RmapNodeKey> {
        let low = keys.first()?.low;
        let high = keys.iter().map(|key| key.high).max_by_key(Self::order)?;
        Some(RmapNodeKey { low, high })
    }
    fn low(key: &RmapNodeKey) -> RmapKey {
        key.low
    }
    fn high(key: &RmapNodeKey) -> Option<RmapKey> {
        Some(key.high)
    }
    fn order(key: &RmapKey) -> (u32, u64, u64) {
        key.order()
    }
    checks!(record::check_rmap, record::no_pair);
}

impl TreeKind for Refcount {
    const TREE: Tree = Tree::Refcount;
    type Record = RefcountRecord;
    type Key = RefcountKey;
    type NodeKey = RefcountKey;
    type Ptr = U32;
    type Order = u32;
    fn key(record: &RefcountRecord) -> RefcountKey {
        RefcountKey {
            startblock: record.startblock,
        }
    }
    fn order(key: &RefcountKey) -> u32 {
        key.startblock.get()
    }
    plain_keys!();
    checks!(record::check_refcount, record::check_refcount_pair);
}

impl TreeKind for Bmap {
    const TREE: Tree = Tree::Bmap;
    type Record = BmapRecord;
    type Key = BmapKey;
    type NodeKey = BmapKey;
    type Ptr = U64;
    type Order = u64;
    fn key(record: &BmapRecord) -> BmapKey {
        BmapKey {
            startoff: U64::new(record.extent().offset.get()),
        }
    }
    fn order(key: &BmapKey) -> u64 {
        key.startoff.get()
    }
    plain_keys!();
    checks!(record::check_bmap, record::check_bmap_pair);
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
pub(super) fn children_in<K: TreeKind>(bytes: usize) -> usize {
    let child = size_of::<K::NodeKey>().saturating_add(size_of::<K::Ptr>());
    bytes.checked_div(child).unwrap_or_default()
}
