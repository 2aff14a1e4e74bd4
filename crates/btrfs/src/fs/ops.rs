//! The contract, method by method.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::{Key, KeyType, view};
use cowshed_vfs::fs::{DirPlusSink, DirSink, NewNode, WantsNode};
use cowshed_vfs::perm::Strips;
use cowshed_vfs::{
    Access, Attr, Capabilities, Context, Done, Entry, Error as Errno, FallocateFlags, FileKind, FileSystem, Handle,
    InitInfo, Lookup, NodeId, OpenFlags, OpenHints, OpenRequest, Opened, PERM_MASK, PermissionChecks, RenameFlags,
    SeekKind, SetAttr, SetXattrFlags, StatFs, WriteFlags, xattr as rules,
};

use super::setattr::{Asked, Capability, setattr, strip_capability, strip_privileges, strips_of};
use super::{Fs, VALID, errno, opened_as};
use crate::access::check_writable;
use crate::dir::{self, NewInode};
use crate::error::{Error, Result, StoreError};
use crate::file::{self, WriteCtx};
use crate::log::write::Scope;
use crate::object::{Inode, flags};
use crate::reclaim;
use crate::xattr_ops;

type VfsResult<T> = cowshed_vfs::Result<T>;

impl Fs {
    fn make(&self, ctx: &Context, parent: NodeId, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Inode>> {
        self.check_view_writable()?;
        let dir = self.inode(parent)?;
        dir::create(&self.mount, &self.caller(ctx), &dir, name, new)
    }

    fn make_entry(&self, ctx: &Context, parent: NodeId, name: &[u8], new: &NewInode<'_>) -> Result<Entry> {
        Ok(self.entry(&self.make(ctx, parent, name, new)?))
    }

    fn opened(&self, inode: &Arc<Inode>, open: OpenFlags) -> Opened {
        if open.contains(OpenFlags::WRITE) {
            inode.refs.note_writer();
        }
        self.mount.objects().views.add_open(self.member.id, inode);
        let is_shared = self.is_shared_view();
        let mut hints = OpenHints::PARALLEL_DIRECT_WRITES | OpenHints::NO_FLUSH;
        hints.set(OpenHints::KEEP_CACHE, !is_shared);
        hints.set(OpenHints::DIRECT_IO, is_shared || open.contains(OpenFlags::DIRECT));
        let number = self.handles.fetch_add(1, Ordering::Relaxed) % Handle::NUMBERS;
        let handle = Handle::with_flags(open, number);
        if let Some(data) = inode.data.get() {
            data.note_open(handle.0);
        }
        Opened { handle, hints }
    }

    fn open_inode(&self, ctx: &Context, inode: &Arc<Inode>, open: &OpenRequest) -> Result<Opened> {
        let wanted = open.flags;
        let writes = wanted.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        if inode.is_dir() && writes {
            return Err(Errno::IsDirectory.into());
        }
        let caller = self.caller(ctx);
        if writes && inode.is_regular() {
            self.check_view_writable()?;
            check_writable(&self.mount, inode)?;
            let bits = inode.flags();
            let appends = wanted.contains(OpenFlags::APPEND) && !wanted.contains(OpenFlags::TRUNCATE);
            if bits & flags::IMMUTABLE != 0 || (bits & flags::APPEND != 0 && !appends) {
                return Err(Errno::NotPermitted.into());
            }
        }
        let executes = wanted.contains(OpenFlags::EXEC);
        let mut access = Access::empty();
        access.set(Access::READ, wanted.contains(OpenFlags::READ) && !executes);
        access.set(Access::WRITE, writes);
        access.set(Access::EXEC, executes);
        caller.need(inode, access)?;
        if wanted.contains(OpenFlags::TRUNCATE) && inode.is_regular() {
            let set = SetAttr {
                size_bytes: Some(0),
                kill_suidgid: open.kill_suidgid,
                ..SetAttr::default()
            };
            let _dropping = self.dropping_elsewhere(inode, 0..u64::MAX);
            let asked = Asked {
                is_by_path: false,
                may_be_mapped: false,
            };
            setattr(&self.mount, &caller, inode, &set, asked)?;
        }
        Ok(self.opened(inode, wanted))
    }

    fn create_or_open(
        &self,
        ctx: &Context,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        open: &OpenRequest,
    ) -> Result<(Entry, Opened)> {
        let new = NewInode {
            kind: FileKind::Regular,
            perm,
            rdev: 0,
            target: &[],
        };
        loop {
            match self.make(ctx, parent, name, &new) {
                Ok(inode) => return Ok((self.entry(&inode), self.opened(&inode, open.flags))),
                Err(Error::Outcome(Errno::Exists)) if !open.flags.contains(OpenFlags::EXCLUSIVE) => {}
                Err(other) => return Err(other),
            }
            // Once more where it has vanished since.
            let dir = self.inode(parent)?;
            if let Some(inode) = dir::lookup(&self.mount, &dir, name)? {
                let entry = self.entry(&inode);
                return match self.open_inode(ctx, &inode, open) {
                    // As they are after a truncation.
                    Ok(opened) => Ok((
                        Entry {
                            attr: self.attr(&inode),
                            ..entry
                        },
                        opened,
                    )),
                    Err(error) => {
                        self.give_back(&inode, 1);
                        Err(error)
                    }
                };
            }
        }
    }

    pub(super) fn file(&self, node: NodeId) -> Result<Arc<Inode>> {
        let inode = self.inode(node)?;
        match inode.kind() {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(Errno::IsDirectory.into()),
            _ => Err(Errno::Invalid.into()),
        }
    }

    /// A file that may be written, set-id bits off where the caller may not keep them.
    pub(super) fn file_to_write(&self, node: NodeId) -> Result<Arc<Inode>> {
        self.check_view_writable()?;
        let inode = self.file(node)?;
        check_writable(&self.mount, &inode)?;
        if inode.flags() & flags::IMMUTABLE != 0 {
            return Err(Errno::NotPermitted.into());
        }
        Ok(inode)
    }

    /// By a handle, or by [`Handle::NONE`].
    pub(super) fn sync_inode(&self, (inode, handle): (&Arc<Inode>, Handle), scope: Scope) -> Result<()> {
        if self.mount.objects().is_read_only() {
            return Ok(());
        }
        inode.note_mapped_pages_came();
        self.settle_elsewhere(inode);
        self.settled(file::write_back_as(&self.mount, inode, opened_as(handle)))?;
        self.mount.log().sync_inode(self.mount.files(), inode, scope)
    }

    fn write_to(
        &self,
        caller: &Context,
        (node, handle): (NodeId, Handle),
        offset: u64,
        data: &[u8],
        how: WriteFlags,
    ) -> Result<usize> {
        let inode = self.file_to_write(node)?;
        // Pages of a mapping come without a caller, and strip nothing.
        let _telling = (!how.contains(WriteFlags::FROM_CACHE)).then(|| self.telling(&inode));
        let opened = handle.flags().unwrap_or(OpenFlags::empty());
        let append = how.contains(WriteFlags::APPEND);
        let attr = inode.attr_now();
        if attr.flags & flags::APPEND != 0 && !append {
            // Without a handle, no question came when the file was opened.
            let allowed = WriteFlags::OPENED_TO_APPEND | WriteFlags::FROM_CACHE;
            let was_asked = handle != Handle::NONE || how.intersects(allowed);
            if offset < attr.size || !was_asked {
                return Err(Errno::NotPermitted.into());
            }
        }
        let strips = if how.contains(WriteFlags::KILL_SUIDGID) {
            Strips::demanded(&caller.creds, attr.mode & PERM_MASK, attr.gid)
        } else {
            Strips::Nothing
        };
        let ctx = WriteCtx {
            append,
            strips: Strips::Nothing,
            from_cache: how.contains(WriteFlags::FROM_CACHE),
        };
        // Capabilities go with any write. Before a cached write Linux removes them itself, before a
        // direct one it does not.
        if how.intersects(WriteFlags::KILL_SUIDGID | WriteFlags::DIRECT) {
            strip_privileges(&self.mount, &inode, strips)?;
        }
        let end = offset.saturating_add(data.len() as u64);
        let written = if ctx.from_cache {
            let written = file::write(&self.mount, &inode, offset, data, ctx);
            self.order_drop_elsewhere(&inode, offset..end);
            written?
        } else {
            // The end of the file may be elsewhere than the front end believes.
            let range = if append {
                offset.min(attr.size)..u64::MAX
            } else {
                offset..end
            };
            let _dropping = self.dropping_elsewhere(&inode, range.clone());
            let written = file::write(&self.mount, &inode, offset, data, ctx)?;
            if append
                && self.is_shared_view()
                && let Some(caches) = self.caches()
            {
                // What it remembers of this write stands at the wrong place.
                caches.content_lost(node, vec![range]);
            }
            written
        };
        let is_sync =
            how.contains(WriteFlags::SYNC) || opened.contains(OpenFlags::SYNC) || attr.flags & flags::SYNC != 0;
        if is_sync {
            self.sync_inode((&inode, handle), Scope::All)?;
        } else if opened.contains(OpenFlags::DATA_SYNC) {
            self.sync_inode((&inode, handle), Scope::Data)?;
        }
        Ok(written)
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        let inode = self.inode(node)?;
        if inode.kind() != FileKind::Symlink {
            return Err(Errno::Invalid.into());
        }
        let corrupt = || {
            Error::Store(StoreError::CorruptTree {
                tree: inode.tree.id(),
                what: format!("symbolic link {} has no inline target", inode.ino),
            })
        };
        let key = Key::new(inode.ino, KeyType::EXTENT_DATA, 0);
        let item = inode.tree.get(&key)?.ok_or_else(corrupt)?;
        match view::file_extent(&item) {
            Some(view::FileExtentView::Inline { data, .. }) => {
                self.note_access(&inode);
                // The item may be longer: btrfs-convert writes a zero byte behind the target.
                let size = inode.attr.lock().attr.size;
                let len = usize::try_from(size).map_or(data.len(), |size| size.min(data.len()));
                Ok(data[..len].to_vec())
            }
            _ => Err(corrupt()),
        }
    }
}

impl FileSystem for Fs {
    fn init(&self, info: &InitInfo) -> VfsResult<Capabilities> {
        let checks = match info.checks {
            PermissionChecks::FrontEnd => false,
            PermissionChecks::FileSystem => true,
        };
        self.checks.store(checks, Ordering::Relaxed);
        Ok(Capabilities {
            stateless_open: self.options.stateless_open,
            stateless_opendir: true,
            wants_flush: false,
            posix_acl: true,
            cache_dirs: true,
            file_handles: true,
            attr_valid: VALID,
            time_granularity_nanos: 1,
        })
    }

    fn destroy(&self) {
        if let Err(error) = self.end_view() {
            tracing::error!(%error, "the last commit of the mount failed");
        }
    }

    fn is_shared(&self) -> bool {
        self.is_shared_view()
    }

    fn lookup(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> VfsResult<Lookup> {
        self.look_up(ctx, parent, name).map_err(|e| errno("lookup", e))
    }

    fn lookup_node(&self, _ctx: &Context, node: NodeId) -> VfsResult<Entry> {
        self.entry_of_node(node).map_err(|e| errno("lookup by node", e))
    }

    fn lookup_parent(&self, _ctx: &Context, node: NodeId) -> VfsResult<Entry> {
        self.entry_of_parent(node).map_err(|e| errno("lookup of a parent", e))
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.mount.background().note_forgotten();
        if node != NodeId::ROOT
            && !self.forget_parked(node, lookups)
            && let Ok(inode) = self.inode(node)
        {
            self.give_back(&inode, lookups);
        }
    }

    fn getattr(&self, _ctx: &Context, node: NodeId, _handle: Option<Handle>) -> VfsResult<Attr> {
        let inode = self.inode(node).map_err(|e| errno("getattr", e))?;
        Ok(self.attr(&inode))
    }

    fn setattr(&self, ctx: &Context, node: NodeId, handle: Option<Handle>, set: &SetAttr) -> VfsResult<Attr> {
        let run = || {
            self.check_view_writable()?;
            let inode = self.inode(node)?;
            let _dropping = set
                .size_bytes
                .map(|size| self.dropping_elsewhere(&inode, size..u64::MAX));
            // Without reports of opens every file counts as open.
            let asked = Asked {
                is_by_path: handle.is_none(),
                may_be_mapped: inode.is_regular() && (inode.refs.is_open() || self.options.stateless_open),
            };
            setattr(&self.mount, &self.caller(ctx), &inode, set, asked)?;
            Ok(self.attr(&inode))
        };
        let done = run();
        if let Some(size) = set.size_bytes {
            self.tell_of_steps(&done, node, size..u64::MAX);
        }
        done.map_err(|e| errno("setattr", e))
    }

    fn readlink(&self, _ctx: &Context, node: NodeId) -> VfsResult<Vec<u8>> {
        self.read_link(node).map_err(|e| errno("readlink", e))
    }

    fn mknod(&self, ctx: &Context, parent: NodeId, name: &[u8], new: NewNode) -> VfsResult<Entry> {
        if matches!(new.kind, FileKind::Directory | FileKind::Symlink) {
            return Err(Errno::Invalid);
        }
        let new = NewInode {
            kind: new.kind,
            perm: new.perm,
            rdev: new.rdev,
            target: &[],
        };
        let made = self.make_entry(ctx, parent, name, &new);
        self.tell_of_names(made, &[parent]).map_err(|e| errno("mknod", e))
    }

    fn mkdir(&self, ctx: &Context, parent: NodeId, name: &[u8], perm: u32) -> VfsResult<Entry> {
        let new = NewInode {
            kind: FileKind::Directory,
            perm,
            rdev: 0,
            target: &[],
        };
        let made = self.make_entry(ctx, parent, name, &new);
        self.tell_of_names(made, &[parent]).map_err(|e| errno("mkdir", e))
    }

    fn unlink(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            dir::unlink(&self.mount, &self.caller(ctx), &self.inode(parent)?, name)
        };
        self.tell_of_names(run(), &[parent]).map_err(|e| errno("unlink", e))
    }

    fn rmdir(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            dir::rmdir(&self.mount, &self.caller(ctx), &self.inode(parent)?, name)
        };
        self.tell_of_names(run(), &[parent]).map_err(|e| errno("rmdir", e))
    }

    fn symlink(&self, ctx: &Context, parent: NodeId, name: &[u8], target: &[u8]) -> VfsResult<Entry> {
        let new = NewInode {
            kind: FileKind::Symlink,
            perm: 0o777,
            rdev: 0,
            target,
        };
        let made = self.make_entry(ctx, parent, name, &new);
        self.tell_of_names(made, &[parent]).map_err(|e| errno("symlink", e))
    }

    fn rename(
        &self,
        ctx: &Context,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            let (from, to) = (self.inode(parent)?, self.inode(new_parent)?);
            dir::rename(&self.mount, &self.caller(ctx), (&from, name), (&to, new_name), flags)
        };
        self.tell_of_names(run(), &[parent, new_parent])
            .map_err(|e| errno("rename", e))
    }

    fn link(&self, ctx: &Context, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> VfsResult<Entry> {
        let run = || {
            self.check_view_writable()?;
            let (inode, dir) = (self.inode(node)?, self.inode(new_parent)?);
            dir::link(&self.mount, &self.caller(ctx), &inode, &dir, new_name)?;
            Ok(self.entry(&inode))
        };
        self.tell_of_names(run(), &[new_parent]).map_err(|e| errno("link", e))
    }

    fn create(
        &self,
        ctx: &Context,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        open: &OpenRequest,
    ) -> VfsResult<(Entry, Opened)> {
        let created = self.create_or_open(ctx, parent, name, perm, open);
        self.tell_of_names(created, &[parent]).map_err(|e| errno("create", e))
    }

    fn tmpfile(&self, ctx: &Context, parent: NodeId, perm: u32, open: &OpenRequest) -> VfsResult<(Entry, Opened)> {
        let run = || {
            self.check_view_writable()?;
            let dir = self.inode(parent)?;
            let inode = dir::tmpfile(&self.mount, &self.caller(ctx), &dir, perm)?;
            inode.refs.set_linkable(!open.flags.contains(OpenFlags::EXCLUSIVE));
            Ok((self.entry(&inode), self.opened(&inode, open.flags)))
        };
        run().map_err(|e| errno("tmpfile", e))
    }

    fn open(&self, ctx: &Context, node: NodeId, open: &OpenRequest) -> VfsResult<Opened> {
        let run = || self.open_inode(ctx, &self.inode(node)?, open);
        run().map_err(|e| errno("open", e))
    }

    fn release(&self, node: NodeId, handle: Handle) {
        if handle.flags().is_some()
            && let Ok(inode) = self.inode(node)
        {
            if let Some(data) = inode.data.get() {
                data.note_close(handle.0);
            }
            self.mount.objects().views.note_close(self.member.id, &inode);
            reclaim::close(&self.mount, &inode);
        }
    }

    fn flush(&self, _ctx: &Context, _node: NodeId, _handle: Handle) -> VfsResult<()> {
        Err(Errno::NotImplemented)
    }

    fn fsync(&self, _ctx: &Context, node: NodeId, handle: Handle, data_only: bool) -> VfsResult<()> {
        let scope = if data_only { Scope::Data } else { Scope::All };
        let run = || self.sync_inode((&self.inode(node)?, handle), scope);
        run().map_err(|e| errno("fsync", e))
    }

    fn fsync_later(
        &self,
        _ctx: &Context,
        node: NodeId,
        handle: Handle,
        data_only: bool,
        will_wait: &dyn Fn(),
        done: Done,
    ) {
        let scope = if data_only { Scope::Data } else { Scope::All };
        let is_read_only = self.mount.objects().is_read_only();
        let prepare = || {
            let inode = self.inode(node)?;
            if !is_read_only {
                inode.note_mapped_pages_came();
                self.settle_elsewhere(&inode);
                self.settled(file::write_back_as(&self.mount, &inode, opened_as(handle)))?;
            }
            Ok(inode)
        };
        let tell = |result: Result<()>| done(result.map_err(|e| errno("fsync", e)));
        match prepare() {
            Ok(inode) if !is_read_only => {
                self.mount
                    .log()
                    .sync_inode_later(self.mount.files(), &inode, scope, Box::new(tell), will_wait)
            }
            other => tell(other.map(drop)),
        }
    }

    fn opendir(&self, ctx: &Context, node: NodeId) -> VfsResult<Opened> {
        let run = || {
            let dir = self.inode(node)?;
            crate::access::check_dir(&dir)?;
            self.caller(ctx).need(&dir, Access::READ)?;
            // Nothing is kept per listing: the node is remembered by its lookups.
            Ok(Opened {
                handle: Handle::NONE,
                hints: OpenHints::KEEP_CACHE | OpenHints::CACHE_DIR,
            })
        };
        run().map_err(|e| errno("opendir", e))
    }

    fn readdir(&self, _ctx: &Context, node: NodeId, _handle: Handle, cookie: u64, sink: DirSink<'_>) -> VfsResult<()> {
        let mut run = || {
            let dir = self.inode(node)?;
            self.begin_listing(&dir, cookie)?;
            self.list(&dir, cookie, &mut |entry, _| sink(entry))
        };
        run().map_err(|e| errno("readdir", e))
    }

    fn readdirplus(
        &self,
        _ctx: &Context,
        node: NodeId,
        _handle: Handle,
        cookie: u64,
        wants: WantsNode<'_>,
        sink: DirPlusSink<'_>,
    ) -> VfsResult<()> {
        self.list_with_entries(node, cookie, wants, sink)
            .map_err(|e| errno("readdirplus", e))
    }

    fn fsyncdir(&self, ctx: &Context, node: NodeId, handle: Handle, _data_only: bool) -> VfsResult<()> {
        // The names of a directory are its data.
        self.fsync(ctx, node, handle, false)
    }

    fn fsyncdir_later(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        _data_only: bool,
        will_wait: &dyn Fn(),
        done: Done,
    ) {
        self.fsync_later(ctx, node, handle, false, will_wait, done);
    }

    fn read(&self, _ctx: &Context, node: NodeId, handle: Handle, offset: u64, buf: &mut [u8]) -> VfsResult<usize> {
        let mut run = || {
            let inode = self.file(node)?;
            let count = file::read(&self.mount, &inode, offset, buf)?;
            if !handle.flags().is_some_and(|f| f.contains(OpenFlags::NO_ATIME)) {
                self.note_access(&inode);
            }
            Ok(count)
        };
        run().map_err(|e| errno("read", e))
    }

    fn write(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> VfsResult<usize> {
        let written = self.write_to(ctx, (node, handle), offset, data, flags);
        // It is not sent again: lost, as by a write-back that failed, and still remembered.
        if written.is_err()
            && flags.contains(WriteFlags::FROM_CACHE)
            && let Some(caches) = self.caches()
        {
            let range = offset..offset.saturating_add(data.len() as u64);
            caches.content_lost(node, vec![range]);
        }
        written.map_err(|e| errno("write", e))
    }

    fn statfs(&self, _ctx: &Context, _node: NodeId) -> VfsResult<StatFs> {
        Ok(self.stat_volume())
    }

    fn getxattr(&self, ctx: &Context, node: NodeId, name: &[u8], buf: &mut [u8]) -> VfsResult<usize> {
        let run = || xattr_ops::get(&self.caller(ctx), &*self.inode(node)?, name);
        rules::answer(&run().map_err(|e| errno("getxattr", e))?, buf)
    }

    fn listxattr(&self, ctx: &Context, node: NodeId, buf: &mut [u8]) -> VfsResult<usize> {
        let run = || xattr_ops::list(&self.caller(ctx), &*self.inode(node)?);
        rules::answer(&run().map_err(|e| errno("listxattr", e))?, buf)
    }

    fn setxattr(&self, ctx: &Context, node: NodeId, name: &[u8], value: &[u8], flags: SetXattrFlags) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            let inode = self.inode(node)?;
            let _telling = self.telling(&inode);
            xattr_ops::set(&self.mount, &self.caller(ctx), &inode, name, value, flags)
        };
        run().map_err(|e| errno("setxattr", e))
    }

    fn removexattr(&self, ctx: &Context, node: NodeId, name: &[u8]) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            xattr_ops::remove(&self.mount, &self.caller(ctx), &self.inode(node)?, name)
        };
        run().map_err(|e| errno("removexattr", e))
    }

    fn access(&self, ctx: &Context, node: NodeId, access: Access) -> VfsResult<()> {
        let run = || {
            let inode = self.inode(node)?;
            if access.contains(Access::WRITE) {
                self.check_view_writable()?;
                check_writable(&self.mount, &inode)?;
            }
            self.caller(ctx).need(&inode, access)
        };
        run().map_err(|e| errno("access", e))
    }

    fn fallocate(
        &self,
        ctx: &Context,
        node: NodeId,
        _handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateFlags,
    ) -> VfsResult<()> {
        let run = || {
            let inode = self.file_to_write(node)?;
            let _telling = self.telling(&inode);
            // Append-only files may grow, but what they hold stays.
            if inode.flags() & flags::APPEND != 0 && !mode.difference(FallocateFlags::KEEP_SIZE).is_empty() {
                return Err(Errno::NotPermitted.into());
            }
            let range = offset..offset.saturating_add(len);
            let _dropping = self.dropping_elsewhere(&inode, range.clone());
            let capability = Capability::of(&self.mount, &inode)?;
            let how = WriteCtx::stripping(strips_of(ctx, &inode));
            let first = Box::new(|| capability.strip());
            file::fallocate_as(&self.mount, &inode, mode, range, (how, first))
        };
        let done = run();
        self.tell_of_steps(&done, node, offset..offset.saturating_add(len));
        done.map_err(|e| errno("fallocate", e))
    }

    fn lseek(&self, _ctx: &Context, node: NodeId, _handle: Handle, offset: u64, what: SeekKind) -> VfsResult<u64> {
        let run = || file::seek(&self.file(node)?, offset, what);
        run().map_err(|e| errno("lseek", e))
    }

    fn copy_file_range(
        &self,
        ctx: &Context,
        src: (NodeId, Handle, u64),
        dst: (NodeId, Handle, u64),
        len: u64,
    ) -> VfsResult<u64> {
        let run = || {
            let (from, to) = (self.file(src.0)?, self.file_to_write(dst.0)?);
            let _telling = self.telling(&to);
            // Linux refuses to copy where the target was opened with O_APPEND.
            let was_asked = dst.1 != Handle::NONE;
            if to.flags() & flags::APPEND != 0 && (dst.2 < to.attr_now().size || !was_asked) {
                return Err(Errno::NotPermitted.into());
            }
            if file::copied_bytes((&from, src.2), (&to, dst.2), len)? > 0 {
                strip_capability(&self.mount, &to)?;
            }
            let _dropping = self.dropping_elsewhere(&to, dst.2..dst.2.saturating_add(len));
            let how = WriteCtx::stripping(strips_of(ctx, &to));
            file::copy_as(&self.mount, (&from, src.2), (&to, dst.2), len, how)
        };
        run().map_err(|e| errno("copy_file_range", e))
    }

    fn syncfs(&self, _ctx: &Context, _node: NodeId) -> VfsResult<()> {
        self.settled(file::sync_all(&self.mount))
            .map_err(|e| errno("syncfs", e))
    }
}

#[cfg(test)]
mod tests {
    use cowshed_runtime::FixedEnv;
    use cowshed_vfs::{FlagChange, SetTime, Timestamp, Volume as _};

    use super::*;
    use crate::files::EngineOptions;
    use crate::fs::MountOptions;
    use crate::mount::Mount;
    use crate::testing::memory_volume;

    /// Where files are opened without a request, the write says whether it may be.
    #[test]
    fn append_only_file_without_a_handle_takes_what_comes_from_appenders_alone() {
        let env = Arc::new(FixedEnv::default());
        let engine = Mount::open(memory_volume(16384), env, EngineOptions::default()).unwrap();
        let (fs, ctx) = (Fs::new(engine, MountOptions::default()).unwrap(), Context::root());
        let new = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let [node, other] = [&b"f"[..], b"other"].map(|name| fs.mknod(&ctx, NodeId::ROOT, name, new).unwrap().node);
        let write = |node, at, how| fs.write(&ctx, node, Handle::NONE, at, b"line\n", how);
        write(node, 0, WriteFlags::empty()).unwrap();
        write(other, 0, WriteFlags::empty()).unwrap();
        let append_only = FlagChange::Attributes(0x20);
        fs.set_flags(&ctx, node, &append_only).unwrap();
        for at in [0, 5, 4096] {
            assert_eq!(
                write(node, at, WriteFlags::empty()),
                Err(Errno::NotPermitted),
                "at {at}"
            );
        }
        let (to_append, cached) = (WriteFlags::OPENED_TO_APPEND, WriteFlags::FROM_CACHE);
        for how in [to_append, cached] {
            assert_eq!(write(node, 0, how), Err(Errno::NotPermitted), "{how:?}");
        }
        let copied = |dst| fs.copy_file_range(&ctx, (other, Handle::NONE, 0), (node, dst, 5), 5);
        assert_eq!(copied(Handle::NONE), Err(Errno::NotPermitted));
        write(node, 5, to_append).unwrap();
        write(node, 0, WriteFlags::APPEND).unwrap();
        let mut content = [0; 100];
        let len = fs.read(&ctx, node, Handle::NONE, 0, &mut content).unwrap();
        assert_eq!(&content[..len], b"line\nline\nline\n");
        fs.mount().close().unwrap();
    }

    #[test]
    fn truncation_to_the_size_that_a_file_has_leaves_it_as_it_is_where_no_handle_is_given() {
        let env = Arc::new(FixedEnv::default());
        let engine = Mount::open(memory_volume(16384), env, EngineOptions::default()).unwrap();
        let (fs, ctx) = (Fs::new(engine, MountOptions::default()).unwrap(), Context::root());
        let new = NewNode {
            kind: FileKind::Regular,
            perm: 0o6755,
            rdev: 0,
        };
        let node = fs.mknod(&ctx, NodeId::ROOT, b"f", new).unwrap().node;
        let old = Timestamp { secs: 7, nanos: 9 };
        let set_old = SetAttr {
            mtime: Some(SetTime::At(old)),
            ctime: Some(old),
            ..SetAttr::default()
        };
        let resize = |size, kill_suidgid, handle| {
            let set = SetAttr {
                size_bytes: Some(size),
                kill_suidgid,
                ..SetAttr::default()
            };
            fs.setattr(&ctx, node, None, &set_old).unwrap();
            let attr = fs.setattr(&ctx, node, handle, &set).unwrap();
            assert_eq!(attr.size_bytes, size);
            (attr.mtime == old && attr.ctime == old, attr.perm)
        };
        assert_eq!(resize(0, false, None), (false, 0o6755), "an empty file");
        assert_eq!(resize(5, false, None), (false, 0o6755), "it grows");
        assert_eq!(resize(5, false, None), (true, 0o6755));
        assert_eq!(resize(5, false, Some(Handle::NONE)), (false, 0o6755), "by a handle");
        assert_eq!(resize(5, true, None), (false, 0o755), "set-id bits go");
        fs.setattr(
            &ctx,
            node,
            None,
            &SetAttr {
                perm: Some(0o644),
                ..SetAttr::default()
            },
        )
        .unwrap();
        assert_eq!(resize(5, true, None), (true, 0o644), "there are none");
        assert_eq!(resize(4, false, None), (false, 0o644), "it shrinks");
        fs.mount().close().unwrap();
    }
}
