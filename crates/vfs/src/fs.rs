//! The trait that a file system implements.
//!
//! # Rules for all methods
//!
//! * **Threads.** Any method may run at the same time as any other, on the same node too. Methods
//!   may block.
//! * **Atomicity.** A call that returns an error has changed nothing (writes may be short instead).
//! * **Names** are bytes without NUL and `/`, at most 255; longer: [`Error::NameTooLong`]. `.` and
//!   `..` never come. A front end that got them from a stranger checks them first.
//! * **Nodes** exist for a caller from the [`Entry`] that named them until as many
//!   [`FileSystem::forget`]s. A node which is unlinked stays usable as long as it is remembered or
//!   open. An unknown node: [`Error::Stale`].
//! * **Permissions** are checked here only if `init` said so ([`crate::PermissionChecks`]);
//!   immutability and read-only volumes always are.
//! * **Read-only** mounts and volumes answer [`Error::ReadOnly`] to every change.
//! * **Attributes** that change although the call does not name them are told to [`crate::Caches`]
//!   before the call returns. What FUSE expects to change with a call (sizes, blocks and times with
//!   a change of contents) is not among them.
//! * **Times.** The file system sets mtime and ctime as POSIX says, and atime according to its own
//!   options.
//! * **Locks** (`flock`, `fcntl`) are left to the kernel that the front end talks to: a mount is
//!   the only user of its volume, so local locks are enough, and there are no methods for them.
//! * [`Error::Io`] and [`Error::Corrupt`] are possible everywhere, [`Error::NoSpace`] and
//!   [`Error::Quota`] in everything that writes; they are not listed again.

use std::ops::ControlFlow;

use crate::{
    Access, Attr, Capabilities, Context, DirEntry, Entry, Error, FallocateFlags, Handle, InitInfo, Ioctl, IoctlReply,
    Lookup, NodeId, OpenHints, OpenRequest, Opened, RenameFlags, Result, SeekKind, SetAttr, SetXattrFlags, StatFs,
    WriteFlags,
};

/// Takes directory entries. `Continue`: taken. `Break`: **not** taken, there is no more room; the
/// listing ends and this entry is the first of the next call.
pub type DirSink<'a> = &'a mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>;

/// Takes directory entries with the nodes they lead to. An `Entry` that is taken counts as one
/// lookup; one that was not taken does not. `.` and `..` come without one, and so may any entry
/// whose node cannot be read.
pub type DirPlusSink<'a> = &'a mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>;

/// Is asked once for each name of a listing, in order, whether it is to come with its node. False
/// where that is of no use: to find it takes longer than to list the name.
pub type WantsNode<'a> = &'a mut dyn FnMut(&DirEntry<'_>) -> bool;

/// What a new node shall be, for [`FileSystem::mknod`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Anything but a directory or a symbolic link.
    pub kind: crate::FileKind,
    /// Permission bits before umask and default ACL.
    pub perm: u32,
    /// For device nodes.
    pub rdev: u32,
}

/// Told the outcome of a call that may end after it has returned.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// What a call waits for, asked again and again: `None` while that has not come.
pub type Wait = Box<dyn FnMut() -> Option<Result<()>> + Send>;

/// A file system. See the module for what holds for all methods.
pub trait FileSystem: Send + Sync {
    /// Called once, before everything else.
    fn init(&self, info: &InitInfo) -> Result<Capabilities>;

    /// Called once, after every other call has returned. Makes everything durable and lets go of
    /// the volume. Whatever is still remembered or open is forgotten. Failures are the file
    /// system's to log.
    fn destroy(&self);

    /// Another front end shows some of the same files, and may change them: names and attributes
    /// may not be remembered, and the end of a file may be elsewhere than this one believes. May
    /// change at any time; where it becomes true, [`crate::Caches::expire_names`] is called then.
    fn is_shared(&self) -> bool {
        false
    }

    /// Finds a name in a directory. Errors: `NotDirectory`, `AccessDenied` (search).
    fn lookup(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<Lookup>;

    /// Finds a node by its number, which may be of a node that was forgotten, of an earlier mount,
    /// or made up. Counts one lookup. The entry's generation tells whether it is the node that the
    /// caller means; a node that does not outlive its mount needs another number or generation in
    /// each. Permissions are not checked: front ends ask for callers that may search everywhere.
    /// Errors: `Stale` (there is no such node, or it has no name any more). Front ends ask only
    /// with [`Capabilities::file_handles`].
    fn lookup_node(&self, ctx: &Context, node: NodeId) -> Result<Entry> {
        let _ = (ctx, node);
        Err(Error::Stale)
    }

    /// Finds the directory above a directory; above the root, the root, with generation zero in all
    /// mounts. Counts one lookup. Permissions as in [`FileSystem::lookup_node`]. Errors:
    /// `NotDirectory`, `Stale` (it was removed).
    fn lookup_parent(&self, ctx: &Context, node: NodeId) -> Result<Entry> {
        let _ = (ctx, node);
        Err(Error::Stale)
    }

    /// Gives back `lookups` lookups of a node. At zero the node number is free for reuse (with
    /// another generation), and an unlinked node may be deleted when it is closed too. Forgetting
    /// the root or an unknown node does nothing.
    fn forget(&self, node: NodeId, lookups: u64);

    /// Attributes. `handle`, if given, is an open handle of the node.
    fn getattr(&self, ctx: &Context, node: NodeId, handle: Option<Handle>) -> Result<Attr>;

    /// Changes attributes, all of them or none, and returns the new ones. Setting the mode also
    /// changes the access ACL ([`crate::acl::Acl::set_mode`]); changing owner or size strips set-id
    /// bits ([`crate::perm`]). Errors: `NotPermitted`, `AccessDenied`, `FileTooBig`, `IsDirectory`
    /// and `Invalid` (size of what has none).
    fn setattr(&self, ctx: &Context, node: NodeId, handle: Option<Handle>, set: &SetAttr) -> Result<Attr>;

    /// The target of a symbolic link, as it was given. Errors: `Invalid` (not a link).
    fn readlink(&self, ctx: &Context, node: NodeId) -> Result<Vec<u8>>;

    /// Creates a file, device, fifo or socket. Owner, group and mode come from
    /// [`crate::perm::new_node`] and [`crate::acl::inherit`]. Errors: `Exists`, `NotDirectory`,
    /// `NotFound` (the parent is unlinked), `AccessDenied`, `NotPermitted` (a device, which user 0
    /// alone makes).
    fn mknod(&self, ctx: &Context, parent: NodeId, name: &[u8], new: NewNode) -> Result<Entry>;

    /// Creates a directory. Errors: as `mknod`, `TooManyLinks`.
    fn mkdir(&self, ctx: &Context, parent: NodeId, name: &[u8], perm: u32) -> Result<Entry>;

    /// Removes a name that is not a directory. Errors: `NotFound`, `IsDirectory`, `NotPermitted`
    /// (sticky directory, immutable).
    fn unlink(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()>;

    /// Removes an empty directory. Errors: `NotFound`, `NotDirectory`, `NotEmpty`, `Busy` (a root).
    fn rmdir(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()>;

    /// Creates a symbolic link. The target is 1 to 4095 bytes, without NUL. Errors: as `mknod`.
    fn symlink(&self, ctx: &Context, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry>;

    /// Renames; replaces what the new name leads to, in one step, unless the flags say otherwise.
    /// Two names of one node: nothing happens. Errors: `NotFound`, `Exists`, `NotEmpty`,
    /// `NotDirectory` / `IsDirectory` (replacing one by the other), `Invalid` (a directory into
    /// itself, impossible flags), `CrossDevice`, `NotPermitted`.
    fn rename(
        &self,
        ctx: &Context,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()>;

    /// Gives a node one more name. A `tmpfile` without names gets its first. Errors: `Exists`,
    /// `NotPermitted` (directory), `TooManyLinks`, `CrossDevice`, `NotFound` (the node is unlinked
    /// for good).
    fn link(&self, ctx: &Context, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Entry>;

    /// Creates a regular file and opens it. If the name exists: with EXCLUSIVE `Exists`; else it is
    /// opened, and truncated with TRUNCATE. Errors: as `mknod` and `open`.
    fn create(
        &self,
        ctx: &Context,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        open: &OpenRequest,
    ) -> Result<(Entry, Opened)>;

    /// Creates a regular file without a name and opens it. It vanishes at the last close unless
    /// `link` names it. Errors: as `create`, `NotSupported`.
    fn tmpfile(&self, ctx: &Context, parent: NodeId, perm: u32, open: &OpenRequest) -> Result<(Entry, Opened)> {
        let _ = (ctx, parent, perm, open);
        Err(Error::NotSupported)
    }

    /// Opens a file. Errors: `IsDirectory`, `AccessDenied`, `NotPermitted` (immutable,
    /// append-only).
    fn open(&self, ctx: &Context, node: NodeId, open: &OpenRequest) -> Result<Opened> {
        let _ = (ctx, node, open);
        Ok(Opened {
            handle: Handle::NONE,
            hints: OpenHints::KEEP_CACHE | OpenHints::PARALLEL_DIRECT_WRITES,
        })
    }

    /// Closes a handle for good. Cannot fail.
    fn release(&self, node: NodeId, handle: Handle) {
        let _ = (node, handle);
    }

    /// Called at each `close` of a descriptor if [`Capabilities::wants_flush`]; the last chance to
    /// report write errors to the closer. Not a promise of durability.
    fn flush(&self, ctx: &Context, node: NodeId, handle: Handle) -> Result<()> {
        let _ = (ctx, node, handle);
        Err(Error::NotImplemented)
    }

    /// Makes the file durable: its content, and its metadata (with `data_only`: as much of it as is
    /// needed to read the content back). A new or renamed file is findable after it, as on Linux'
    /// own file systems.
    fn fsync(&self, ctx: &Context, node: NodeId, handle: Handle, data_only: bool) -> Result<()>;

    /// As [`FileSystem::fsync`], for a front end whose threads should not block: `done` is called
    /// once with the outcome, from any thread, before this returns or after. The thread may become
    /// the leader of a group commit, which serves other callers, too; `will_wait` is called in this
    /// thread before it leads or blocks, and again before each round of that commit that serves
    /// others alone.
    fn fsync_later(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        data_only: bool,
        will_wait: &dyn Fn(),
        done: Done,
    ) {
        let _ = will_wait;
        done(self.fsync(ctx, node, handle, data_only));
    }

    /// Opens a directory. Errors: `NotDirectory`, `AccessDenied`.
    fn opendir(&self, ctx: &Context, node: NodeId) -> Result<Opened> {
        let _ = (ctx, node);
        Ok(Opened {
            handle: Handle::NONE,
            hints: OpenHints::KEEP_CACHE,
        })
    }

    /// Lists names from a cookie (0: the start), `.` and `..` first. A cookie stays good while the
    /// directory changes: names that exist throughout come exactly once, names created or removed
    /// meanwhile come once or not at all. Cookies grow within a listing and do not depend on a
    /// handle.
    fn readdir(&self, ctx: &Context, node: NodeId, handle: Handle, cookie: u64, sink: DirSink<'_>) -> Result<()>;

    /// As `readdir`, with those entries looked up that `wants` names. The default answers
    /// `NotImplemented`: front ends fall back to `readdir`.
    fn readdirplus(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        cookie: u64,
        wants: WantsNode<'_>,
        sink: DirPlusSink<'_>,
    ) -> Result<()> {
        let _ = (ctx, node, handle, cookie, wants, sink);
        Err(Error::NotImplemented)
    }

    /// Closes a directory handle.
    fn releasedir(&self, node: NodeId, handle: Handle) {
        let _ = (node, handle);
    }

    /// Makes the names in a directory durable.
    fn fsyncdir(&self, ctx: &Context, node: NodeId, handle: Handle, data_only: bool) -> Result<()>;

    /// As [`FileSystem::fsyncdir`], ended as [`FileSystem::fsync_later`] is.
    fn fsyncdir_later(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        data_only: bool,
        will_wait: &dyn Fn(),
        done: Done,
    ) {
        let _ = will_wait;
        done(self.fsyncdir(ctx, node, handle, data_only));
    }

    /// Reads into `buf`; fewer bytes only at the end of the file, 0 at or after it. Holes read as
    /// zeros. Errors: `IsDirectory`.
    fn read(&self, ctx: &Context, node: NodeId, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes; what lies between the old end and the offset becomes a hole. Returns how much was
    /// written: all, or less if an error struck after the first byte. Errors: `FileTooBig`,
    /// `NotPermitted` (append-only).
    fn write(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize>;

    /// The state of the file system that `node` lies in.
    fn statfs(&self, ctx: &Context, node: NodeId) -> Result<StatFs>;

    /// The value of an extended attribute. With an empty `buf` only its length; else the value, or
    /// `Range` if it does not fit ([`crate::xattr::answer`] does that). Errors: `NoData`,
    /// `NotSupported` (name space unknown).
    fn getxattr(&self, ctx: &Context, node: NodeId, name: &[u8], buf: &mut [u8]) -> Result<usize>;

    /// The names of all attributes the caller may see, each with a NUL after it; lengths as in
    /// `getxattr`.
    fn listxattr(&self, ctx: &Context, node: NodeId, buf: &mut [u8]) -> Result<usize>;

    /// Sets an attribute. Setting `system.posix_acl_access` changes the mode too ([`crate::acl`]);
    /// an ACL that says no more than the mode is not stored. Errors: `Exists`, `NoData`, `Range`
    /// (name), `TooBig` (value), `NotPermitted`, `NotSupported`, `Invalid` (ACL).
    fn setxattr(&self, ctx: &Context, node: NodeId, name: &[u8], value: &[u8], flags: SetXattrFlags) -> Result<()>;

    /// Removes an attribute. Errors: `NoData`, `NotPermitted`.
    fn removexattr(&self, ctx: &Context, node: NodeId, name: &[u8]) -> Result<()>;

    /// May the caller do all this? An empty `access` asks whether the node exists. Only asked if
    /// the file system checks permissions.
    fn access(&self, ctx: &Context, node: NodeId, access: Access) -> Result<()> {
        let _ = (ctx, node, access);
        Err(Error::NotImplemented)
    }

    /// Allocates, punches or zeroes a range of a file. Errors: `NotSupported` (mode), `Invalid`
    /// (range), `FileTooBig`.
    fn fallocate(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateFlags,
    ) -> Result<()> {
        let _ = (ctx, node, handle, offset, len, mode);
        Err(Error::NotSupported)
    }

    /// The first data or hole at or after an offset; the end of the file is a hole. Errors:
    /// `NoSuchDevice` (at or after the end, or no more data).
    fn lseek(&self, ctx: &Context, node: NodeId, handle: Handle, offset: u64, what: SeekKind) -> Result<u64>;

    /// Copies within the file system, sharing extents where it can. Returns the bytes copied; 0
    /// only at the end of the source. Overlapping ranges in one file: `Invalid`. Others:
    /// `NotSupported`, `CrossDevice`: the caller copies by hand.
    fn copy_file_range(
        &self,
        ctx: &Context,
        src: (NodeId, Handle, u64),
        dst: (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let _ = (ctx, src, dst, len);
        Err(Error::NotSupported)
    }

    /// What an ioctl waits for, if it is one that may wait for long and gives back nothing. The
    /// front end ends the wait when the caller is interrupted; it asks for none after
    /// [`FileSystem::destroy`]. `None`: it is to be answered by [`FileSystem::ioctl`].
    fn ioctl_wait(&self, ctx: &Context, node: NodeId, call: &Ioctl, input: &[u8]) -> Result<Option<Wait>> {
        let _ = (ctx, node, call, input);
        Ok(None)
    }

    /// An ioctl with a plain structure (FS_IOC_GETFLAGS, FS_IOC_FSSETXATTR, those of the format).
    /// `input` is what the caller passed in, `output` as much room as the command's size says. The
    /// handle may be that of a directory. Linux reads FS_IOC_FSGETXATTR before it sets anything
    /// with FS_IOC_SETFLAGS, so a file system that offers the one must answer the other. Errors:
    /// `NotIoctl` (unknown command).
    fn ioctl(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        call: &Ioctl,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let _ = (ctx, node, handle, call, input, output);
        Err(Error::NotIoctl)
    }

    /// Makes the whole file system durable.
    fn syncfs(&self, ctx: &Context, node: NodeId) -> Result<()>;
}
