//! Subvolumes: trees of files inside a volume, each of which can be copied as a whole.

use std::ops::ControlFlow;

use crate::{Context, NodeId, Result, Timestamp};

/// A subvolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// Its number in the format.
    pub id: u64,
    /// The subvolume that its name is in; 0 for the top level.
    pub parent_id: u64,
    /// The inode number of the directory that its name is in; 0 for the top level.
    pub parent_dir: u64,
    /// Its name there; empty for the top level.
    pub name: Vec<u8>,
    /// Nothing in it can be changed.
    pub is_read_only: bool,
    /// The transaction in which its tree was written last.
    pub generation: u64,
    /// The transaction in which its content changed last.
    pub changed_generation: u64,
    /// The transaction in which it was made.
    pub created_generation: u64,
    /// The transaction of the subvolume that it was received from, on the volume where that was.
    pub sent_generation: u64,
    /// The transaction in which it was received.
    pub received_generation: u64,
    /// Its id; zeros where it has none.
    pub uuid: [u8; 16],
    /// Of the subvolume that it is a snapshot of; zeros where it is none.
    pub parent_uuid: [u8; 16],
    /// Of the subvolume that it was received from; zeros where it was not received.
    pub received_uuid: [u8; 16],
    /// When its content changed last.
    pub changed: Timestamp,
    /// When it was made.
    pub created: Timestamp,
    /// When the subvolume that it was received from was sent.
    pub sent: Timestamp,
    /// When it was received.
    pub received: Timestamp,
}

/// What [`Subvolumes::set_received`] notes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The id of what was sent; zeros: it was not received.
    pub uuid: [u8; 16],
    /// The transaction of what was sent, on its own volume.
    pub sent_generation: u64,
    /// When it was sent.
    pub sent: Timestamp,
}

/// What a subvolume refers to, in bytes as they are on the volume: whole extents, compressed ones
/// as they lie, each once; without further copies that redundancy makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubvolumeUsage {
    /// The number of the subvolume.
    pub id: u64,
    /// Extents of data.
    pub data_bytes: u64,
    /// Of these, what no other subvolume refers to.
    pub data_exclusive_bytes: u64,
    /// Metadata, with the contents of small files that lie in it.
    pub metadata_bytes: u64,
    /// Of these, what no other subvolume refers to.
    pub metadata_exclusive_bytes: u64,
}

/// A count of what subvolumes refer to: [`Subvolumes::usage`].
pub trait UsageCount: Send {
    /// Goes on for some milliseconds. Gives all subvolumes by number when it is done. Errors: `Io`,
    /// `Busy` (the volume has no room to keep its state meanwhile).
    fn step(&mut self) -> Result<Option<Vec<SubvolumeUsage>>>;

    /// Blocks of metadata that were read, and those that are known so far.
    fn progress(&self) -> (u64, u64);
}

/// The key of an item: object, type, offset.
pub type ItemKey = (u64, u8, u64);

/// What [`Subvolumes::search`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// The tree; 0 for that of the node.
    pub tree: u64,
    /// The first key.
    pub from: ItemKey,
    /// The last key.
    pub to: ItemKey,
    /// Items of blocks that were written in this transaction or later.
    pub since: u64,
    /// Items of blocks that were written in this transaction or earlier.
    pub until: u64,
}

/// Takes an item: its key, its bytes, and the transaction of its block.
pub type ItemSink<'a> = &'a mut dyn FnMut(ItemKey, &[u8], u64) -> ControlFlow<()>;

/// The calls of a format that has subvolumes. The caller's permissions are checked by each.
pub trait Subvolumes: Send + Sync {
    /// Has front ends write back what programs stored into mapped files of the subvolume with this
    /// root directory, so that a snapshot has it. Waits for a bounded time. The caller holds no lock.
    fn collect_stores(&self, root: NodeId) -> Result<()> {
        let _ = root;
        Ok(())
    }

    /// Makes an empty subvolume under a name; on disk with the next commit. Errors: those of making a
    /// directory.
    fn create(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()>;

    /// Makes a snapshot of the subvolume whose root directory is `source`: what was written to any
    /// of its files before the call is in it. On disk when this returns. Errors: those of making a
    /// directory, `Invalid` (`source` is no root), `NotPermitted` (it belongs to another user).
    fn snapshot(&self, ctx: &Context, source: NodeId, parent: NodeId, name: &[u8], is_read_only: bool) -> Result<()>;

    /// Deletes the subvolume under a name with all that is in it; its space comes back in the
    /// background. Errors: those of removing a directory, `Invalid` (no subvolume), `NotEmpty`
    /// (others are nested in it), `NotPermitted` (it is mounted by default), `Busy` (it is
    /// mounted).
    fn delete(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()>;

    /// As [`Subvolumes::delete`], by number. Errors: in addition `NotFound`.
    fn delete_by_id(&self, ctx: &Context, id: u64) -> Result<()>;

    /// Was the subvolume of this number deleted, and is not gone yet? `None`: there is none. Every
    /// caller may ask.
    fn is_deleted(&self, id: u64) -> Result<Option<bool>>;

    /// The numbers of all that were deleted and are not gone yet. Every caller may ask.
    fn all_deleted(&self) -> Result<Vec<u64>>;

    /// Has deleted ones dropped without a pause for further deletions: a call waits for that.
    fn drop_at_once(&self);

    /// Makes the subvolume whose root directory is `root` read-only, or writable. On disk when this
    /// returns. Errors: `Invalid` (`root` is none), `NotPermitted`, `ReadOnly`.
    fn set_read_only(&self, ctx: &Context, root: NodeId, is_read_only: bool) -> Result<()>;

    /// Notes where the subvolume whose root directory is `root` was received from. On disk when
    /// this returns. Gives the transaction and time at which it counts as received. Errors:
    /// `Invalid` (`root` is none), `NotPermitted`, `ReadOnly`.
    fn set_received(&self, ctx: &Context, root: NodeId, received: &Received) -> Result<(u64, Timestamp)>;

    /// The root directory of a subvolume, by the inode number that callers see. It is in use.
    /// Errors: `NotFound`.
    fn root_of_number(&self, number: u64) -> Result<NodeId>;

    /// The subvolume of a node.
    fn info(&self, node: NodeId) -> Result<SubvolumeInfo>;

    /// The subvolume with the least number from `id` on, with its path from the top level; `None`
    /// where there is none. Errors: `NotPermitted` (the caller neither is user 0 nor serves the
    /// volume).
    fn next(&self, ctx: &Context, id: u64) -> Result<Option<(SubvolumeInfo, Vec<u8>)>>;

    /// The subvolume with the least number from `id` on whose name is in the subvolume of `node`,
    /// with the directory's inode number.
    fn next_child(&self, node: NodeId, id: u64) -> Result<Option<(u64, u64)>>;

    /// The subvolume that is mounted where no other is asked for. Errors: as for
    /// [`Subvolumes::next`].
    fn default_id(&self, ctx: &Context) -> Result<u64>;

    /// Changes [`Subvolumes::default_id`]. On disk when this returns. Errors: `NotFound`, and those
    /// of asking.
    fn set_default(&self, ctx: &Context, id: u64) -> Result<()>;

    /// The path of an inode from the root of a subvolume; 0 for that of `node`. Errors: `NotFound`,
    /// `NotPermitted` (as for [`Subvolumes::next`], but for the root itself).
    fn path_of(&self, ctx: &Context, node: NodeId, id: u64, inode: u64) -> Result<(u64, Vec<u8>)>;

    /// The path of the directory that the name of a subvolume is in, from the directory `node` of
    /// the same subvolume, and the name. Errors: `NotFound`, `AccessDenied` (the caller may not
    /// search a directory in between, or the name is not below `node`).
    fn path_below(&self, ctx: &Context, node: NodeId, id: u64) -> Result<(Vec<u8>, Vec<u8>)>;

    /// Begins to count what each subvolume refers to, and what of it no other does, as of now.
    /// Deleted subvolumes do not count. Errors: as for [`Subvolumes::next`]; those of a commit.
    fn usage(&self, ctx: &Context) -> Result<Box<dyn UsageCount>>;

    /// Shows items in the form that they have on disk, in key order, those of the running
    /// transaction included: no commit is needed, and none is made. What a commit computes (roots
    /// and sizes of subvolumes, extents, use of block groups) is as of the last one. Errors: as for
    /// [`Subvolumes::next`]; `NotFound` (no such tree).
    fn search(&self, ctx: &Context, node: NodeId, what: &Search, take: ItemSink<'_>) -> Result<()>;
}
