//! B-tree blocks: seven trees of one shape. A leaf holds records in the order of their keys, a node
//! holds a key and a pointer for each child; siblings are linked.
//!
//! Trees of an allocation group have pointers of 32 bits (short form), the tree of a file's extents
//! has pointers of 64 bits (long form) and its root in the inode.

mod block;
mod build;
mod kind;
mod record;
mod root;
mod shape;
mod verify;

pub use block::{BtreeBlock, Siblings};
pub use build::BlockFields;
pub use kind::{
    BlockPtr, Bmap, Bno, Cnt, Finobt, Inobt, KeyOf, OnDisk, RecordOf, Refcount, Rmap, TreeKind, leaf_records_max,
    node_children_max,
};
pub(crate) use record::check_extent;
pub use record::{
    AllocRecord, BmapKey, BmapRecord, EXTENT_BLOCKS_MAX, Extent, InobtKey, InobtRecord, REFCOUNT_COW_FLAG,
    REFCOUNT_MAX, RefcountKey, RefcountRecord, RmapKey, RmapNodeKey, RmapOwner, RmapRecord, rmap_offset,
};
pub use root::{BMDR_HEADER_BYTES, BmdrHeader, BmdrRoot, build_bmdr_root};
pub use shape::{BMAP_LEVELS_MAX, LongHeader, LongHeaderV5, ShortHeader, ShortHeaderV5, Tree};
