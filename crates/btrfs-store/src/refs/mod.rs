//! References to extents: what operations add and drop, queued until the commit runs them.
//!
//! An operation names each change as a [`RefChange`] in its batch. The running transaction collects
//! them in a [`RefQueue`], where an addition and a drop of the same reference cancel; the commit
//! takes the queue, adds what its merges do to tree blocks, and [`run`] turns the rest into edits
//! of the extent tree, round by round until nothing is left. See docs/design/references.md.

mod deltas;
mod name;
mod queue;
mod record;
pub mod run;

use btrfs_format::{LogicalAddr, ObjectId, TreeId};

pub use name::RefName;
pub use queue::{Head, RefQueue};
pub use record::ExtentRecord;

/// A reference of a file to a data extent, as keyed back references name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataRef {
    /// Subvolume of the file extent item.
    pub root: TreeId,
    /// Inode of the file extent item.
    pub ino: ObjectId,
    /// File offset minus offset into the extent: `btrfs_extent_data_ref.offset` (wrapping, as the
    /// format has it).
    pub offset: u64,
}

/// A change to the references of a data extent, part of a [`crate::txn::Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefChange {
    /// Where the extent begins.
    pub addr: LogicalAddr,
    /// Bytes of the extent on disk (`disk_num_bytes`).
    pub len_bytes: u64,
    /// The reference that comes or goes.
    pub data_ref: DataRef,
    /// What happens to it.
    pub kind: RefKind,
}

/// What a [`RefChange`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefKind {
    /// The first reference to an extent that was just allocated: makes its extent item.
    New,
    /// One more file extent item points to the extent (clone, split).
    Add,
    /// One file extent item less points to it.
    Drop,
}
