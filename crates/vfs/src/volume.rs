//! What a volume can do beyond the names and bytes of single files: durability of all of it, flags,
//! extents that are shared, exchanged and shown, groups of writes that happen as a whole.
//!
//! Front ends, the ioctl decoder and the library work over `dyn` [`Volume`]; no format is named
//! here. A method that a format does not have answers [`Error::NotSupported`], the default of most.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::{
    Access, Caches, Compression, Context, Error, FileSystem, Handle, NodeId, Result, SpaceAccount, Subvolumes,
    Timestamp, TreeClone, WriteFlags,
};

/// A failure of the volume as a whole: it could not be opened, committed or closed.
///
/// It prints as the format's own error, which names the place; [`Failure::error`] has its `errno`.
#[derive(Debug)]
pub struct Failure {
    error: Error,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Failure {
    /// A failure with its outcome for callers and the format's own error.
    pub fn new(error: Error, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
        Failure {
            error,
            source: source.into(),
        }
    }

    /// What a call that met it answers.
    pub fn error(&self) -> Error {
        self.error
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // It prints as its source does: only what lies behind that is news.
        self.source.source()
    }
}

/// Facts of an open volume that do not change while it is open, but for the label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The format, as mount(8) names it.
    pub format: &'static str,
    /// The volume's id.
    pub uuid: [u8; 16],
    /// Without trailing NULs.
    pub label: Vec<u8>,
    /// Unit of allocation for file data, in bytes.
    pub block_bytes: u32,
    /// Size of a metadata block, in bytes.
    pub metadata_block_bytes: u32,
    /// Number of devices that the volume consists of.
    pub devices: u64,
    /// The largest number that a device has.
    pub device_id_max: u64,
    /// The last transaction that is on disk.
    pub generation: u64,
    /// What the format uses.
    pub features: Features,
    /// What can be used of the format.
    pub known_features: Features,
    /// Nothing can be changed: the volume was opened so, or its format cannot be written.
    pub is_read_only: bool,
    /// A log was left unreplayed because the options said so: what was synced last before a crash
    /// does not show.
    pub has_unreplayed_log: bool,
}

/// A file and an offset in it, in bytes.
pub type At = (NodeId, u64);

/// Flags of an inode in the two encodings of Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags {
    /// `FS_*_FL` bits of `FS_IOC_GETFLAGS`, as lsattr(1) shows them.
    pub attributes: u32,
    /// What `FS_IOC_FSGETXATTR` shows.
    pub extended: ExtendedFlags,
}

/// The fields of `struct fsxattr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedFlags {
    /// `FS_XFLAG_*` bits.
    pub xflags: u32,
    /// Extent size hint, in bytes.
    pub extent_size_bytes: u32,
    /// Number of data extents; ignored when flags are set.
    pub extents: u32,
    /// Project id.
    pub project_id: u32,
    /// Extent size hint for copy-on-write, in bytes.
    pub cow_extent_size_bytes: u32,
}

/// A change of inode flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagChange {
    /// `FS_IOC_SETFLAGS`: all `FS_*_FL` bits as they shall be.
    Attributes(u32),
    /// `FS_IOC_FSSETXATTR`: all fields as they shall be.
    Extended(ExtendedFlags),
}

/// The subvolume that a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubvolumeOf {
    /// The subvolume's number in the format.
    pub id: u64,
    /// The node is the subvolume's root directory.
    pub is_root: bool,
    /// Nothing in it can be changed.
    pub is_read_only: bool,
}

/// A device of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in the volume.
    pub id: u64,
    /// Its id.
    pub uuid: [u8; 16],
    /// Size of the part that the volume uses.
    pub total_bytes: u64,
    /// Bytes that are given to data and metadata.
    pub used_bytes: u64,
    /// What it is called here; `None` where it is missing.
    pub name: Option<String>,
    /// Failed writes, reads and barriers, wrong content, and blocks of a wrong generation, since
    /// the volume was opened.
    pub faults: [u64; 5],
}

/// Features of a format, as bits of its superblock: compatible, compatible with reading, and
/// incompatible ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Those that any program may ignore.
    pub compat: u64,
    /// Those that a program must know to write.
    pub compat_ro: u64,
    /// Those that a program must know to read.
    pub incompat: u64,
}

/// What [`Volume::trim`] discards: `struct fstrim_range`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimRange {
    /// In the format's own addresses, in bytes.
    pub start: u64,
    /// Bytes.
    pub len_bytes: u64,
    /// Shorter pieces of free space are left alone.
    pub bytes_min: u64,
}

/// What [`Volume::dedupe_range`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedupe {
    /// This many bytes are the same, and share extents now: all that were asked for, or fewer by
    /// less than a block where the range ends within a block that is not the last of both files.
    Same(u64),
    /// The contents differ; nothing has changed.
    Differs,
}

/// What a file was like when a caller read it, for an [`Exchange`] that shall fail if it has
/// changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Inode number in its subvolume.
    pub ino: u64,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Time of the last change.
    pub ctime: Timestamp,
}

/// What is exchanged between two files, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Start in the first file.
    pub a_offset: u64,
    /// Start in the second file.
    pub b_offset: u64,
    /// Bytes of either range.
    pub len_bytes: u64,
    /// To the end of each file, whatever the length says; the sizes follow.
    pub to_eof: bool,
    /// Only what is written in the first file, in whole blocks. Its holes and what is preallocated
    /// there stay, and so does what the second file has in their place.
    pub only_written: bool,
    /// [`Error::Busy`] if the second file is not as it was then.
    pub fresh_b: Option<Freshness>,
    /// Only look whether it could be done.
    pub dry_run: bool,
}

/// What stands in a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Data on disk.
    Data,
    /// Allocated, never written: reads as zeros.
    Unwritten,
    /// Data in the file's own metadata.
    Inline,
    /// Dirty data that has no place on disk yet.
    Delalloc,
}

/// A part of a file that is no hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapExtent {
    /// What it is.
    pub kind: MapKind,
    /// Where in the file, in bytes.
    pub start: u64,
    /// Bytes of the file.
    pub len_bytes: u64,
    /// Address of the whole extent on the volume; 0 where it has none.
    pub disk_addr: u64,
    /// Bytes of the whole extent on the volume; 0 where it has none.
    pub disk_bytes: u64,
    /// Where in the (uncompressed) extent this part begins, in bytes.
    pub offset_bytes: u64,
    /// Length of the whole extent, uncompressed, in bytes.
    pub ram_bytes: u64,
    /// As the format numbers it; 0: not compressed. For btrfs 1 is zlib, 2 LZO, 3 zstd.
    pub compression: u8,
    /// The extent has other references, too. Only where it was asked for.
    pub is_shared: bool,
}

/// Takes extents in order until it breaks off.
pub type ExtentSink<'a> = &'a mut dyn FnMut(&MapExtent) -> ControlFlow<()>;

/// What [`Volume::defragment`] shall do.
#[derive(Clone, Copy, Debug)]
pub struct Defrag {
    /// Extents from this size on are left as they are, in bytes.
    pub target_bytes: u64,
    /// Compress like this, also what is in large extents and compressed otherwise.
    pub compress: Option<Compression>,
}

/// Writes that are staged in memory until they happen as a whole: to other readers, and after a
/// crash at any moment. Dropping the group drops them.
pub trait Group: Send + Sync {
    /// Adds a write of all of `data`. On error the group is as before. Errors: those of
    /// [`FileSystem::write`], and `FileTooBig` beyond the format's bound on what all open groups
    /// may hold.
    fn write(&mut self, ctx: &Context, node: NodeId, offset: u64, data: &[u8], flags: WriteFlags) -> Result<()>;

    /// Reads a file as it will be after the group; fewer bytes only at its end.
    fn read(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// The size of a file after the group, where it is `size_bytes` without.
    fn size_after(&self, node: NodeId, size_bytes: u64) -> u64;

    /// The ranges of a file that the group replaces, in whole blocks.
    fn ranges(&self, node: NodeId) -> Vec<Range<u64>>;

    /// The group replaces something of these bytes of a file.
    fn overlaps(&self, node: NodeId, range: &Range<u64>) -> bool;

    /// Makes the group happen, durably. Errors before it has happened leave nothing of it; an error
    /// of the device afterwards makes the volume read-only. `handle` is the one whose errors of
    /// write-back are reported, if any. A group without writes does nothing.
    fn commit(self: Box<Self>, handle: Handle) -> std::result::Result<(), Failure>;
}

/// An open volume, shown as a tree of files.
pub trait Volume: FileSystem + fmt::Debug {
    /// Facts of the volume.
    fn info(&self) -> VolumeInfo;

    /// Names the front end that caches attributes and contents. Called at most once.
    fn set_caches(&self, caches: Arc<dyn Caches>);

    /// Makes everything durable that was done before the call.
    fn sync(&self) -> std::result::Result<(), Failure>;

    /// Makes everything durable and ends the use of the volume: what comes later can only read. A
    /// second call does nothing.
    fn close(&self) -> std::result::Result<(), Failure>;

    /// Makes the volume read-only at once: nothing is made durable any more. `reason` goes to the
    /// log.
    fn abort(&self, reason: &str);

    /// The volume became read-only after an error.
    fn is_aborted(&self) -> bool;

    /// The content of the file can be changed at all. Errors: `ReadOnly`, `NotPermitted`
    /// (immutable), `IsDirectory`, `Invalid` (neither file nor directory).
    fn check_target(&self, node: NodeId) -> Result<()>;

    /// The caller's permissions allow this, whether or not the file system checks them otherwise.
    fn check_access(&self, ctx: &Context, node: NodeId, want: Access) -> Result<()>;

    /// The inode's generation: with the node it names one inode for the life of the volume.
    fn generation(&self, node: NodeId) -> Result<u64>;

    /// Flags of an inode.
    fn flags(&self, node: NodeId) -> Result<InodeFlags>;

    /// Changes flags of an inode. Errors: `NotSupported` (a flag that the format does not have),
    /// `Invalid` (impossible together), `NotPermitted`.
    fn set_flags(&self, ctx: &Context, node: NodeId, change: &FlagChange) -> Result<()> {
        let _ = (ctx, node, change);
        Err(Error::NotSupported)
    }

    /// The subvolume of a node. Errors: `NotSupported` where the format has none.
    fn subvolume_of(&self, node: NodeId) -> Result<SubvolumeOf> {
        let _ = node;
        Err(Error::NotSupported)
    }

    /// The calls of subvolumes. Errors: `NotSupported` where the format has none.
    fn subvolumes(&self) -> Result<&dyn Subvolumes> {
        Err(Error::NotSupported)
    }

    /// Changes the label. On disk when this returns. Errors: `NotPermitted` (the caller may not),
    /// `Invalid` (longer than the format allows, or with a NUL in it), `ReadOnly`, `NotSupported`.
    fn set_label(&self, ctx: &Context, label: &[u8]) -> Result<()> {
        let _ = (ctx, label);
        Err(Error::NotSupported)
    }

    /// The device of this number; `None` where there is none. Errors: `NotSupported`.
    fn device(&self, id: u64) -> Result<Option<DeviceInfo>> {
        let _ = id;
        Err(Error::NotSupported)
    }

    /// Makes a range of `dst` share the extents of a range of `src` (FICLONERANGE); a length of 0:
    /// to the end of the source. `by` is the caller whose right to keep set-id bits counts; without
    /// one they go. Errors: `Invalid` (misaligned, overlapping, beyond an end), and those of
    /// writing to the target.
    fn clone_range(&self, by: Option<&Context>, src: At, dst: At, len_bytes: u64) -> Result<()> {
        let _ = (by, src, dst, len_bytes);
        Err(Error::NotSupported)
    }

    /// Makes a range of `dst` share the extents of a range of `src` if both hold the same
    /// (FIDEDUPERANGE).
    fn dedupe_range(&self, src: At, dst: At, len_bytes: u64) -> Result<Dedupe> {
        let _ = (src, dst, len_bytes);
        Err(Error::NotSupported)
    }

    /// Begins to clone the tree at the directory `src` to a new name: content is shared
    /// ([`Volume::clone_range`]); names, links among them, attributes and extended attributes are
    /// as `cp -a` keeps them ([`perm::of_copy`](crate::perm::of_copy)). Nothing has happened when
    /// this returns. Errors: `NotDirectory`, `Invalid` (`parent` is `src` or below it), and those
    /// of making a directory.
    fn clone_tree(
        self: Arc<Self>,
        ctx: &Context,
        src: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Box<dyn TreeClone>> {
        let _ = (ctx, src, parent, name);
        Err(Error::NotSupported)
    }

    /// Exchanges ranges of two files in one step (XFS_IOC_EXCHANGE_RANGE). Errors: `Invalid`,
    /// `TooBig` (too many extents), `Busy` ([`Exchange::fresh_b`]), and those of writing to both.
    fn exchange_range(&self, by: Option<&Context>, a: NodeId, b: NodeId, what: &Exchange) -> Result<()> {
        let _ = (by, a, b, what);
        Err(Error::NotSupported)
    }

    /// What [`Exchange::fresh_b`] is compared with.
    fn freshness(&self, node: NodeId) -> Result<Freshness> {
        let _ = node;
        Err(Error::NotSupported)
    }

    /// Shows the extents of a file that overlap a range, in order, neither cut nor merged.
    /// `wants_shared`: find out which are shared, at the price of lookups for each.
    fn map_extents(&self, node: NodeId, range: Range<u64>, wants_shared: bool, take: ExtentSink<'_>) -> Result<()> {
        let _ = (node, range, wants_shared, take);
        Err(Error::NotSupported)
    }

    /// Rewrites runs of small extents as large ones; returns the bytes rewritten. Content and times
    /// stay.
    fn defragment(&self, node: NodeId, range: Range<u64>, what: &Defrag) -> Result<u64> {
        let _ = (node, range, what);
        Err(Error::NotSupported)
    }

    /// Tells the devices that free space is not in use (FITRIM); returns the bytes that they were
    /// told of. Errors: `NotPermitted` (the caller may not), `Invalid` (a range shorter than a
    /// block), `NotSupported` (no device takes it), `ReadOnly`.
    fn trim(&self, ctx: &Context, range: TrimRange) -> Result<u64> {
        let _ = (ctx, range);
        Err(Error::NotSupported)
    }

    /// What space there is, what is promised, and to whom. Errors: `NotSupported` where the format
    /// keeps no such account.
    fn space_account(&self) -> Result<SpaceAccount> {
        Err(Error::NotSupported)
    }

    /// Begins a group of writes that happen as a whole. Errors: `NotSupported`.
    fn begin_group(self: Arc<Self>) -> Result<Box<dyn Group>> {
        Err(Error::NotSupported)
    }
}
