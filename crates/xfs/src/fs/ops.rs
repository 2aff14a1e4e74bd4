//! The contract, method by method.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use cowshed_vfs::fs::{DirPlusSink, DirSink, NewNode, WantsNode};
use cowshed_vfs::xattr::{self as rules, Namespace, Use};
use cowshed_vfs::{
    Access, Attr, Capabilities, Context, DirEntry, Entry, Error as Errno, FallocateFlags, FileKind, FileSystem, Handle,
    InitInfo, Lookup, NodeId, OpenFlags, OpenHints, OpenRequest, Opened, PermissionChecks, RenameFlags, Result,
    SeekKind, SetAttr, SetXattrFlags, StatFs, WriteFlags,
};
use xfs_format::Ino;

use super::{Fs, VALID, errno, space};
use crate::error;
use crate::inode::Object;
use crate::volume::Window;
use crate::{ag, attr, dir, file, symlink};

/// Cookies of the two names that every directory has. A name at position p has p + 3.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;
const COOKIE_FIRST: u64 = 3;

impl Fs {
    fn list(
        &self,
        node: NodeId,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>, Option<Ino>) -> ControlFlow<()>,
    ) -> error::Result<()> {
        let object = self.dir(node)?;
        for (own, name) in [(COOKIE_SELF, &b"."[..]), (COOKIE_PARENT, b"..")] {
            if cookie >= own {
                continue;
            }
            let is_parent = own == COOKIE_PARENT;
            let ino = if is_parent {
                dir::parent(&self.volume, &object)?
            } else {
                object.ino
            };
            let entry = DirEntry {
                name,
                ino: ino.get(),
                kind: FileKind::Directory,
                cookie: own,
            };
            if sink(entry, None).is_break() {
                return Ok(());
            }
        }
        // A cookie is the one to go on behind.
        let from = (cookie + 1).saturating_sub(COOKIE_FIRST);
        let mut failed = Ok(());
        dir::list(
            &self.volume,
            &object,
            from,
            &mut |entry, position| match dir::kind_of(&self.volume, &entry) {
                Ok(kind) => {
                    let shown = DirEntry {
                        name: entry.name,
                        ino: entry.ino.get(),
                        kind,
                        cookie: position + COOKIE_FIRST,
                    };
                    sink(shown, Some(entry.ino))
                }
                Err(error) => {
                    failed = Err(error);
                    ControlFlow::Break(())
                }
            },
        )?;
        failed
    }

    fn regular(&self, node: NodeId) -> error::Result<Object> {
        let object = self.object(node)?;
        match object.kind {
            FileKind::Regular => Ok(object),
            FileKind::Directory => Err(Errno::IsDirectory.into()),
            _ => Err(Errno::Invalid.into()),
        }
    }

    fn xattr(&self, ctx: &Context, node: NodeId, name: &[u8]) -> error::Result<Vec<u8>> {
        let object = self.object(node)?;
        let space = Namespace::of(name)?;
        rules::check(&ctx.creds, &object.attr(&self.volume), space, Use::Get)?;
        if space == Namespace::User {
            self.need(ctx, &object, Access::READ)?;
        }
        Ok(attr::get(&self.volume, &object, name)?.ok_or(Errno::NoData)?)
    }
}

impl FileSystem for Fs {
    fn init(&self, info: &InitInfo) -> Result<Capabilities> {
        let checks = info.checks == PermissionChecks::FileSystem;
        self.checks.store(checks, Ordering::Relaxed);
        Ok(Capabilities {
            stateless_open: true,
            stateless_opendir: true,
            wants_flush: false,
            posix_acl: true,
            cache_dirs: true,
            file_handles: true,
            attr_valid: VALID,
            time_granularity_nanos: 1,
        })
    }
    fn destroy(&self) {}
    fn lookup(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<Lookup> {
        let run = || {
            let object = self.dir(parent)?;
            self.need(ctx, &object, Access::EXEC)?;
            match dir::lookup(&self.volume, &object, name)? {
                None => Ok(Lookup::Absent { valid: VALID }),
                Some(ino) => {
                    let found = Object::load(&self.volume, ino)?;
                    Ok(Lookup::Found(self.entry(&found)))
                }
            }
        };
        run().map_err(|e| errno("lookup", e))
    }
    fn lookup_node(&self, _ctx: &Context, node: NodeId) -> Result<Entry> {
        let run = || {
            // Where no inode was ever made, anything may lie.
            if node != NodeId::ROOT && !ag::is_allocated(&self.volume, Ino(node.0))? {
                return Err(Errno::Stale.into());
            }
            let object = self.object(node)?;
            if object.core.link_count() == 0 || self.node(object.ino) != node {
                return Err(Errno::Stale.into());
            }
            Ok(self.entry(&object))
        };
        run().map_err(|e| errno("lookup by node", e))
    }
    fn lookup_parent(&self, _ctx: &Context, node: NodeId) -> Result<Entry> {
        let run = || {
            let parent = dir::parent(&self.volume, &self.dir(node)?)?;
            Ok(self.entry(&Object::load(&self.volume, parent)?))
        };
        run().map_err(|e| errno("lookup of a parent", e))
    }
    fn forget(&self, _node: NodeId, _lookups: u64) {}
    fn getattr(&self, _ctx: &Context, node: NodeId, _handle: Option<Handle>) -> Result<Attr> {
        let object = self.object(node).map_err(|e| errno("getattr", e))?;
        Ok(object.attr(&self.volume))
    }
    fn readlink(&self, _ctx: &Context, node: NodeId) -> Result<Vec<u8>> {
        let run = || {
            let object = self.object(node)?;
            if object.kind != FileKind::Symlink {
                return Err(Errno::Invalid.into());
            }
            symlink::target(&self.volume, &object)
        };
        run().map_err(|e| errno("readlink", e))
    }
    fn open(&self, ctx: &Context, node: NodeId, open: &OpenRequest) -> Result<Opened> {
        let run = || {
            if open.flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
                return Err(Errno::ReadOnly.into());
            }
            let executes = open.flags.contains(OpenFlags::EXEC);
            let want = if executes { Access::EXEC } else { Access::READ };
            self.need(ctx, &self.object(node)?, want)
        };
        run().map_err(|e: error::Error| errno("open", e))?;
        Ok(Opened {
            handle: Handle::NONE,
            hints: OpenHints::KEEP_CACHE | OpenHints::NO_FLUSH,
        })
    }
    fn readdir(&self, ctx: &Context, node: NodeId, _handle: Handle, cookie: u64, sink: DirSink<'_>) -> Result<()> {
        let mut run = || {
            self.need(ctx, &self.dir(node)?, Access::READ)?;
            self.list(node, cookie, &mut |entry, _| sink(entry))
        };
        run().map_err(|e| errno("readdir", e))
    }
    fn readdirplus(
        &self,
        ctx: &Context,
        node: NodeId,
        _handle: Handle,
        cookie: u64,
        wants: WantsNode<'_>,
        sink: DirPlusSink<'_>,
    ) -> Result<()> {
        let mut run = || {
            self.need(ctx, &self.dir(node)?, Access::READ)?;
            let mut window = Window::default();
            self.list(node, cookie, &mut |entry, ino| {
                // What cannot be read, lookup will say in full.
                let wanted = ino.filter(|_| wants(&entry));
                let found = wanted.and_then(|ino| Object::load_near(&self.volume, &mut window, ino).ok());
                sink(entry, found.map(|object| self.entry(&object)).as_ref())
            })
        };
        run().map_err(|e| errno("readdirplus", e))
    }
    fn read(&self, _ctx: &Context, node: NodeId, _handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut run = || file::read(&self.volume, &self.regular(node)?, offset, buf);
        run().map_err(|e| errno("read", e))
    }
    fn lseek(&self, _ctx: &Context, node: NodeId, _handle: Handle, offset: u64, what: SeekKind) -> Result<u64> {
        let run = || file::seek(&self.volume, &self.regular(node)?, offset, what);
        run().map_err(|e| errno("lseek", e))
    }
    fn statfs(&self, _ctx: &Context, _node: NodeId) -> Result<StatFs> {
        let counters = self.counters.get_or_init(|| space::counters(&self.volume));
        Ok(space::stat(&self.volume, counters))
    }
    fn getxattr(&self, ctx: &Context, node: NodeId, name: &[u8], buf: &mut [u8]) -> Result<usize> {
        let value = self.xattr(ctx, node, name).map_err(|e| errno("getxattr", e))?;
        rules::answer(&value, buf)
    }
    fn listxattr(&self, ctx: &Context, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        let mut out = Vec::new();
        let mut run = || {
            attr::names(&self.volume, &self.object(node)?, &mut |name| {
                if rules::is_listed(&ctx.creds, Namespace::of(name)) {
                    out.extend_from_slice(name);
                    out.push(0);
                }
            })
        };
        run().map_err(|e| errno("listxattr", e))?;
        rules::answer(&out, buf)
    }
    fn access(&self, ctx: &Context, node: NodeId, access: Access) -> Result<()> {
        let run = || {
            let object = self.object(node)?;
            if access.contains(Access::WRITE) && matches!(object.kind, FileKind::Regular | FileKind::Directory) {
                return Err(Errno::ReadOnly.into());
            }
            self.need(ctx, &object, access)
        };
        run().map_err(|e| errno("access", e))
    }

    fn fsync(&self, _: &Context, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }
    fn fsyncdir(&self, _: &Context, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }
    fn syncfs(&self, _: &Context, _: NodeId) -> Result<()> {
        Ok(())
    }
    fn setattr(&self, _: &Context, _: NodeId, _: Option<Handle>, _: &SetAttr) -> Result<Attr> {
        Err(Errno::ReadOnly)
    }
    fn mknod(&self, _: &Context, _: NodeId, _: &[u8], _: NewNode) -> Result<Entry> {
        Err(Errno::ReadOnly)
    }
    fn mkdir(&self, _: &Context, _: NodeId, _: &[u8], _: u32) -> Result<Entry> {
        Err(Errno::ReadOnly)
    }
    fn unlink(&self, _: &Context, _: NodeId, _: &[u8]) -> Result<()> {
        Err(Errno::ReadOnly)
    }
    fn rmdir(&self, _: &Context, _: NodeId, _: &[u8]) -> Result<()> {
        Err(Errno::ReadOnly)
    }
    fn symlink(&self, _: &Context, _: NodeId, _: &[u8], _: &[u8]) -> Result<Entry> {
        Err(Errno::ReadOnly)
    }
    fn rename(&self, _: &Context, _: NodeId, _: &[u8], _: NodeId, _: &[u8], _: RenameFlags) -> Result<()> {
        Err(Errno::ReadOnly)
    }
    fn link(&self, _: &Context, _: NodeId, _: NodeId, _: &[u8]) -> Result<Entry> {
        Err(Errno::ReadOnly)
    }
    fn create(&self, _: &Context, _: NodeId, _: &[u8], _: u32, _: &OpenRequest) -> Result<(Entry, Opened)> {
        Err(Errno::ReadOnly)
    }
    fn tmpfile(&self, _: &Context, _: NodeId, _: u32, _: &OpenRequest) -> Result<(Entry, Opened)> {
        Err(Errno::ReadOnly)
    }
    fn write(&self, _: &Context, _: NodeId, _: Handle, _: u64, _: &[u8], _: WriteFlags) -> Result<usize> {
        Err(Errno::ReadOnly)
    }
    fn setxattr(&self, _: &Context, _: NodeId, _: &[u8], _: &[u8], _: SetXattrFlags) -> Result<()> {
        Err(Errno::ReadOnly)
    }
    fn removexattr(&self, _: &Context, _: NodeId, _: &[u8]) -> Result<()> {
        Err(Errno::ReadOnly)
    }
    fn fallocate(&self, _: &Context, _: NodeId, _: Handle, _: u64, _: u64, _: FallocateFlags) -> Result<()> {
        Err(Errno::ReadOnly)
    }
}
