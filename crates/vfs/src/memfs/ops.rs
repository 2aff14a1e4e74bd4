//! The contract, kept in memory.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use cowshed_runtime::{Env as _, SystemEnv};

use super::node::{BLOCK_BYTES, Body, Dir, File, Node};
use super::{CALL_BYTES_MAX, FILE_BYTES_MAX, MemFs, State, WAIT, check_name, now};
use crate::acl::{self, Acl};
use crate::fs::{DirPlusSink, DirSink, NewNode, WantsNode};
use crate::perm::Strips;
use crate::xattr::{self, Namespace, Use};
use crate::*;

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS` of 64-bit Linux (`<linux/fs.h>`).
const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`: a structure of 28 bytes, which begins with flags of its own. The kernel
/// asks for it before it sets flags.
const FSGETXATTR: u32 = 0x801c_581f;
const FSXATTR_BYTES: usize = 28;

impl MemFs {
    fn opened(&self, state: &mut State, id: NodeId, hints: OpenHints) -> Result<Opened> {
        state.next_handle += 1;
        let handle = Handle(state.next_handle);
        state.get_mut(id)?.opens += 1;
        let noted = OpenHints::KEEP_CACHE | OpenHints::PARALLEL_DIRECT_WRITES | hints;
        Ok(Opened { handle, hints: noted })
    }

    fn close(&self, id: NodeId) {
        let mut state = self.lock();
        if let Ok(node) = state.get_mut(id) {
            node.opens = node.opens.saturating_sub(1);
            state.reap(id);
        }
    }

    fn open_existing(&self, state: &mut State, ctx: &Context, id: NodeId, open: &OpenRequest) -> Result<Opened> {
        let node = state.get_mut(id)?;
        let mut want = Access::empty();
        want.set(
            Access::READ,
            open.flags.contains(OpenFlags::READ) && !open.flags.contains(OpenFlags::EXEC),
        );
        want.set(
            Access::WRITE,
            open.flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE),
        );
        want.set(Access::EXEC, open.flags.contains(OpenFlags::EXEC));
        self.check(ctx, id, node, want)?;
        if open.flags.contains(OpenFlags::TRUNCATE) {
            let time = now();
            node.content()?.truncate(0);
            (node.mtime, node.ctime) = (time, time);
            if open.kill_suidgid {
                node.perm = Strips::demanded(&ctx.creds, node.perm, node.gid).apply(node.perm);
            }
        }
        self.opened(state, id, OpenHints::empty())
    }

    fn list(
        &self,
        id: NodeId,
        cookie: u64,
        sink: &mut dyn FnMut(&mut State, DirEntry<'_>, NodeId) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut state = self.lock();
        let parent = state.get(id)?.dir()?.parent;
        for (own, name, node) in [(1, &b"."[..], id), (2, b"..", parent)] {
            let entry = DirEntry {
                name,
                ino: node.0,
                kind: FileKind::Directory,
                cookie: own,
            };
            if cookie < own && sink(&mut state, entry, NodeId(0)).is_break() {
                return Ok(());
            }
        }
        let mut at = cookie.max(Dir::FIRST_COOKIE - 1);
        // The state is handed out between entries, so every step searches anew; a step is a descent
        // in a map.
        while let Some((own, name, node, kind)) = state
            .get(id)?
            .dir()?
            .by_cookie
            .range(at + 1..)
            .next()
            .map(|(c, e)| (*c, e.0.clone(), e.1, e.2))
        {
            let entry = DirEntry {
                name: &name,
                ino: node.0,
                kind,
                cookie: own,
            };
            if sink(&mut state, entry, node).is_break() {
                return Ok(());
            }
            at = own;
        }
        Ok(())
    }

    fn replace_target(&self, state: &mut State, ctx: &Context, target: NodeId, moving_dir: bool) -> Result<()> {
        let _ = ctx;
        let node = state.get(target)?;
        match (&node.body, moving_dir) {
            (Body::Dir(d), true) if d.names.is_empty() => Ok(()),
            (Body::Dir(_), true) => Err(Error::NotEmpty),
            (Body::Dir(_), false) => Err(Error::IsDirectory),
            (_, true) => Err(Error::NotDirectory),
            (_, false) => Ok(()),
        }
    }

    fn check_removal(&self, state: &State, ctx: &Context, parent: NodeId, child: NodeId) -> Result<()> {
        let dir = state.get(parent)?;
        self.check(ctx, parent, dir, Access::WRITE | Access::EXEC)?;
        if self.checks.load(Ordering::Relaxed) {
            perm::check_sticky(&ctx.creds, &dir.attr(parent), state.get(child)?.uid)?;
        }
        Ok(())
    }

    fn set_acl(&self, ctx: &Context, node: &mut Node, name: &[u8], value: &[u8], kill_sgid: bool) -> Result<()> {
        let list = Acl::parse(value)?;
        let stored = match (&list, name == acl::ACCESS_NAME) {
            (Some(list), true) => {
                node.perm = (node.perm & !0o777) | list.mode_bits();
                if kill_sgid || (self.checks.load(Ordering::Relaxed) && !ctx.creds.is_privileged()) {
                    let creds = &ctx.creds;
                    node.perm = if kill_sgid {
                        node.perm & !perm::SET_GID
                    } else {
                        perm::perm_for_chmod(creds, node.perm, node.gid)
                    };
                }
                !list.is_mode()
            }
            (Some(_), false) => true,
            (None, _) => false,
        };
        if let (true, Some(list)) = (stored, list) {
            node.xattrs.insert(name.to_vec(), list.to_bytes());
        } else {
            node.xattrs.remove(name);
        }
        Ok(())
    }

    fn check_xattr(&self, ctx: &Context, id: NodeId, node: &Node, name: &[u8], what: Use) -> Result<Namespace> {
        let space = Namespace::of(name)?;
        let creds = &ctx.creds;
        xattr::check(creds, &node.attr(id), space, what)?;
        if space == Namespace::User {
            self.check(
                ctx,
                id,
                node,
                if what == Use::Get { Access::READ } else { Access::WRITE },
            )?;
        }
        Ok(space)
    }
}

impl FileSystem for MemFs {
    fn init(&self, info: &InitInfo) -> Result<Capabilities> {
        if let Some(error) = self.init_error {
            return Err(error);
        }
        self.set_checks(info.checks);
        Ok(self.options.capabilities)
    }

    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }

    fn lookup(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<Lookup> {
        if self.panic_name == Some(name) {
            panic!("asked to panic");
        }
        check_name(name)?;
        let mut state = self.lock();
        let dir = state.get(parent)?;
        self.check(ctx, parent, dir, Access::EXEC)?;
        match dir.dir()?.find(name) {
            Some(id) => Ok(Lookup::Found(self.entry(id, state.get_mut(id)?))),
            None => Ok(Lookup::Absent {
                valid: self.options.valid,
            }),
        }
    }

    // Numbers are never used twice, and the file system ends with its mount.
    fn lookup_node(&self, _ctx: &Context, node: NodeId) -> Result<Entry> {
        let mut state = self.lock();
        let found = state.get_mut(node)?;
        if found.nlink == 0 {
            return Err(Error::Stale);
        }
        Ok(self.entry(node, found))
    }

    fn lookup_parent(&self, ctx: &Context, node: NodeId) -> Result<Entry> {
        let state = self.lock();
        let dir = state.get(node)?;
        let parent = dir.dir()?.parent;
        if dir.nlink == 0 {
            return Err(Error::Stale);
        }
        drop(state);
        self.lookup_node(ctx, parent)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if node == NodeId::ROOT {
            return;
        }
        let mut state = self.lock();
        if let Ok(n) = state.get_mut(node) {
            n.lookups = n
                .lookups
                .checked_sub(lookups)
                .expect("never forgotten more often than looked up");
            state.reap(node);
        }
    }

    fn getattr(&self, _ctx: &Context, node: NodeId, _handle: Option<Handle>) -> Result<Attr> {
        let found = self.lock().attr(node);
        self.wait_for_xattr();
        found
    }

    fn setattr(&self, ctx: &Context, node: NodeId, handle: Option<Handle>, set: &SetAttr) -> Result<Attr> {
        let mut state = self.lock();
        let time = now();
        let n = state.get_mut(node)?;
        if self.checks.load(Ordering::Relaxed) {
            perm::check_setattr(&ctx.creds, &n.attr(node), n.access_acl().as_ref(), set)?;
        }
        let now = n.attr(node);
        let size_alone = SetAttr {
            size_bytes: Some(now.size_bytes),
            ..SetAttr::default()
        };
        if handle.is_none() && now.size_bytes > 0 && *set == size_alone {
            return Ok(now);
        }
        if let Some(size) = set.size_bytes {
            if size > FILE_BYTES_MAX {
                return Err(Error::FileTooBig);
            }
            n.content()?.truncate(size);
            n.mtime = time;
            if set.kill_suidgid {
                n.perm = Strips::demanded(&ctx.creds, n.perm, n.gid).apply(n.perm);
            }
        }
        if set.uid.is_some() || set.gid.is_some() {
            n.uid = set.uid.unwrap_or(n.uid);
            n.gid = set.gid.unwrap_or(n.gid);
            n.perm = perm::perm_after_chown(n.kind, n.perm);
        }
        if let Some(perm) = set.perm {
            n.perm = perm::perm_for_chmod(&ctx.creds, perm, n.gid) & PERM_MASK;
            if let Some(mut list) = n.access_acl() {
                list.set_mode(n.perm);
                n.xattrs.insert(acl::ACCESS_NAME.to_vec(), list.to_bytes());
            }
        }
        for (what, field) in [(set.atime, &mut n.atime), (set.mtime, &mut n.mtime)] {
            match what {
                Some(SetTime::Now) => *field = time,
                Some(SetTime::At(t)) => *field = t,
                None => {}
            }
        }
        n.ctime = set.ctime.unwrap_or(time);
        Ok(n.attr(node))
    }

    fn readlink(&self, _ctx: &Context, node: NodeId) -> Result<Vec<u8>> {
        match &self.lock().get(node)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            Body::File(_) | Body::Dir(_) | Body::Special => Err(Error::Invalid),
        }
    }

    fn mknod(&self, ctx: &Context, parent: NodeId, name: &[u8], new: NewNode) -> Result<Entry> {
        let body = match new.kind {
            FileKind::Regular => Body::File(File::default()),
            FileKind::Directory | FileKind::Symlink => return Err(Error::Invalid),
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => Body::Special,
        };
        let mut state = self.lock();
        let mut entry = self.make(&mut state, ctx, (parent, name), new.kind, body, new.perm)?;
        state.get_mut(entry.node)?.rdev = new.rdev;
        entry.attr.rdev = new.rdev;
        Ok(entry)
    }

    fn mkdir(&self, ctx: &Context, parent: NodeId, name: &[u8], perm: u32) -> Result<Entry> {
        let body = Body::Dir(Dir::new(parent));
        self.make(&mut self.lock(), ctx, (parent, name), FileKind::Directory, body, perm)
    }

    fn unlink(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let child = state.child(parent, name)?;
        self.check_removal(&state, ctx, parent, child)?;
        if state.get(child)?.kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        state.detach(parent, name)?;
        state.drop_link(child)
    }

    fn rmdir(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let child = state.child(parent, name)?;
        self.check_removal(&state, ctx, parent, child)?;
        if !state.get(child)?.dir()?.names.is_empty() {
            return Err(Error::NotEmpty);
        }
        state.detach(parent, name)?;
        state.drop_link(child)
    }

    fn symlink(&self, ctx: &Context, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry> {
        let body = Body::Symlink(target.to_vec());
        self.make(&mut self.lock(), ctx, (parent, name), FileKind::Symlink, body, 0o777)
    }

    fn rename(
        &self,
        ctx: &Context,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if flags.contains(RenameFlags::EXCHANGE) && flags != RenameFlags::EXCHANGE {
            return Err(Error::Invalid);
        }
        let mut state = self.lock();
        let moving = state.child(parent, name)?;
        check_name(new_name)?;
        self.check_removal(&state, ctx, parent, moving)?;
        let target = state.get(new_parent)?.dir()?.find(new_name);
        match target {
            Some(t) => self.check_removal(&state, ctx, new_parent, t)?,
            None => self.check(ctx, new_parent, state.get(new_parent)?, Access::WRITE | Access::EXEC)?,
        }
        let is_dir = state.get(moving)?.kind == FileKind::Directory;
        if is_dir && state.is_above(moving, new_parent)? {
            return Err(Error::Invalid);
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            let target = target.ok_or(Error::NotFound)?;
            if state.get(target)?.kind == FileKind::Directory && state.is_above(target, parent)? {
                return Err(Error::Invalid);
            }
            state.detach(parent, name)?;
            state.detach(new_parent, new_name)?;
            state.attach(new_parent, new_name, moving)?;
            return state.attach(parent, name, target);
        }
        if let Some(target) = target {
            if flags.contains(RenameFlags::NO_REPLACE) {
                return Err(Error::Exists);
            }
            if target == moving {
                return Ok(());
            }
            self.replace_target(&mut state, ctx, target, is_dir)?;
            state.detach(new_parent, new_name)?;
            state.drop_link(target)?;
        } else if state.get(new_parent)?.nlink == 0 {
            return Err(Error::NotFound);
        }
        state.detach(parent, name)?;
        state.attach(new_parent, new_name, moving)?;
        state.get_mut(moving)?.ctime = now();
        if flags.contains(RenameFlags::WHITEOUT) {
            let id = self.make_unnamed(&mut state, ctx, parent, FileKind::CharDevice, Body::Special, 0)?;
            state.attach(parent, name, id)?;
            state.get_mut(id)?.nlink = 1;
        }
        Ok(())
    }

    fn link(&self, ctx: &Context, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Entry> {
        check_name(new_name)?;
        let mut state = self.lock();
        let dir = state.get(new_parent)?;
        self.check(ctx, new_parent, dir, Access::WRITE | Access::EXEC)?;
        if dir.dir()?.find(new_name).is_some() {
            return Err(Error::Exists);
        }
        if dir.nlink == 0 {
            return Err(Error::NotFound);
        }
        if state.get(node)?.kind == FileKind::Directory {
            return Err(Error::NotPermitted);
        }
        state.attach(new_parent, new_name, node)?;
        let n = state.get_mut(node)?;
        n.nlink += 1;
        n.ctime = now();
        Ok(self.entry(node, n))
    }

    fn create(
        &self,
        ctx: &Context,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        open: &OpenRequest,
    ) -> Result<(Entry, Opened)> {
        check_name(name)?;
        let mut state = self.lock();
        if let Some(id) = state.get(parent)?.dir()?.find(name) {
            if open.flags.contains(OpenFlags::EXCLUSIVE) {
                return Err(Error::Exists);
            }
            let opened = self.open_existing(&mut state, ctx, id, open)?;
            return Ok((self.entry(id, state.get_mut(id)?), opened));
        }
        let body = Body::File(File::default());
        let entry = self.make(&mut state, ctx, (parent, name), FileKind::Regular, body, perm)?;
        let opened = self.opened(&mut state, entry.node, OpenHints::empty())?;
        Ok((entry, opened))
    }

    fn tmpfile(&self, ctx: &Context, parent: NodeId, perm: u32, _open: &OpenRequest) -> Result<(Entry, Opened)> {
        let mut state = self.lock();
        self.check(ctx, parent, state.get(parent)?, Access::WRITE | Access::EXEC)?;
        let body = Body::File(File::default());
        let id = self.make_unnamed(&mut state, ctx, parent, FileKind::Regular, body, perm)?;
        let opened = self.opened(&mut state, id, OpenHints::empty())?;
        Ok((self.entry(id, state.get_mut(id)?), opened))
    }

    fn open(&self, ctx: &Context, node: NodeId, open: &OpenRequest) -> Result<Opened> {
        self.open_existing(&mut self.lock(), ctx, node, open)
    }

    fn release(&self, node: NodeId, handle: Handle) {
        if handle != Handle::NONE {
            self.close(node);
        }
    }

    fn fsync(&self, _ctx: &Context, node: NodeId, _handle: Handle, _data_only: bool) -> Result<()> {
        self.synced.fetch_add(1, Ordering::Relaxed);
        let millis = self.sync_takes_millis.load(Ordering::Relaxed);
        if millis > 0 {
            SystemEnv.sleep(std::time::Duration::from_millis(millis));
        }
        self.lock().get(node).map(drop)
    }

    fn opendir(&self, ctx: &Context, node: NodeId) -> Result<Opened> {
        let mut state = self.lock();
        let dir = state.get(node)?;
        dir.dir()?;
        self.check(ctx, node, dir, Access::READ)?;
        self.opened(&mut state, node, OpenHints::CACHE_DIR)
    }

    fn readdir(&self, _ctx: &Context, node: NodeId, _handle: Handle, cookie: u64, sink: DirSink<'_>) -> Result<()> {
        self.list(node, cookie, &mut |_, entry, _| sink(entry))
    }

    fn readdirplus(
        &self,
        _ctx: &Context,
        node: NodeId,
        _handle: Handle,
        cookie: u64,
        wants: WantsNode<'_>,
        sink: DirPlusSink<'_>,
    ) -> Result<()> {
        self.list(node, cookie, &mut |state, dirent, id| {
            let wanted = wants(&dirent).then(|| state.get_mut(id).ok()).flatten();
            let Some(child) = wanted else {
                return sink(dirent, None);
            };
            let entry = self.entry(id, child);
            let flow = sink(dirent, Some(&entry));
            if flow.is_break() {
                child.lookups -= 1;
            }
            flow
        })
    }

    fn releasedir(&self, node: NodeId, handle: Handle) {
        self.release(node, handle);
    }

    fn fsyncdir(&self, ctx: &Context, node: NodeId, handle: Handle, data_only: bool) -> Result<()> {
        self.fsync(ctx, node, handle, data_only)
    }

    fn read(&self, _ctx: &Context, node: NodeId, _handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.lock().file(node)?.read(offset, buf);
        self.reads.fetch_add(1, Ordering::SeqCst);
        Ok(read)
    }

    fn write(
        &self,
        ctx: &Context,
        node: NodeId,
        _handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.wait_for_read();
        let mut state = self.lock();
        let (n, time) = state.file_mut(node)?;
        let file = n.content()?;
        let offset = if flags.contains(WriteFlags::APPEND) {
            file.size
        } else {
            offset
        };
        if offset
            .checked_add(data.len() as u64)
            .is_none_or(|end| end > FILE_BYTES_MAX)
        {
            return Err(Error::FileTooBig);
        }
        file.write(offset, data);
        if flags.contains(WriteFlags::SYNC) {
            self.synced.fetch_add(1, Ordering::Relaxed);
        }
        (n.mtime, n.ctime) = (time, time);
        if flags.contains(WriteFlags::KILL_SUIDGID) {
            let strips = Strips::demanded(&ctx.creds, n.perm, n.gid);
            self.strip(state, node, strips)?;
        }
        Ok(data.len())
    }

    fn statfs(&self, _ctx: &Context, _node: NodeId) -> Result<StatFs> {
        let files = self.node_count() as u64;
        let (blocks, free) = (1 << 30, 1 << 29);
        let (bsize, frsize) = (BLOCK_BYTES as u32, BLOCK_BYTES as u32);
        let name_bytes_max = super::NAME_BYTES_MAX as u32;
        Ok(StatFs {
            blocks,
            blocks_free: free,
            blocks_available: free,
            files,
            files_free: free,
            bsize,
            frsize,
            name_bytes_max,
        })
    }

    fn getxattr(&self, ctx: &Context, node: NodeId, name: &[u8], buf: &mut [u8]) -> Result<usize> {
        let state = self.lock();
        let n = state.get(node)?;
        self.check_xattr(ctx, node, n, name, Use::Get)?;
        xattr::answer(n.xattrs.get(name).ok_or(Error::NoData)?, buf)
    }

    fn listxattr(&self, ctx: &Context, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        let state = self.lock();
        let shown = state
            .get(node)?
            .xattrs
            .keys()
            .filter(|name| xattr::is_listed(&ctx.creds, Namespace::of(name)));
        let list: Vec<u8> = shown.flat_map(|name| name.iter().copied().chain([0])).collect();
        xattr::answer(&list, buf)
    }

    fn setxattr(&self, ctx: &Context, node: NodeId, name: &[u8], value: &[u8], flags: SetXattrFlags) -> Result<()> {
        if value.len() > xattr::VALUE_BYTES_MAX {
            return Err(Error::TooBig);
        }
        let mut state = self.lock();
        let n = state.get_mut(node)?;
        let space = self.check_xattr(ctx, node, n, name, Use::Set)?;
        match n.xattrs.contains_key(name) {
            true if flags.contains(SetXattrFlags::CREATE) => return Err(Error::Exists),
            false if flags.contains(SetXattrFlags::REPLACE) => return Err(Error::NoData),
            _ => {}
        }
        if matches!(space, Namespace::AccessAcl | Namespace::DefaultAcl) {
            let before = n.perm;
            self.set_acl(ctx, n, name, value, flags.contains(SetXattrFlags::KILL_SGID))?;
            n.ctime = now();
            let has_changed = n.perm != before;
            drop(state);
            if has_changed {
                self.tell(node);
            }
            return Ok(());
        }
        n.xattrs.insert(name.to_vec(), value.to_vec());
        n.ctime = now();
        self.xattrs_set.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn removexattr(&self, ctx: &Context, node: NodeId, name: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let n = state.get_mut(node)?;
        self.check_xattr(ctx, node, n, name, Use::Set)?;
        n.xattrs.remove(name).ok_or(Error::NoData)?;
        n.ctime = now();
        Ok(())
    }

    fn access(&self, ctx: &Context, node: NodeId, access: Access) -> Result<()> {
        let state = self.lock();
        self.check(ctx, node, state.get(node)?, access)
    }

    fn fallocate(
        &self,
        ctx: &Context,
        node: NodeId,
        _handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateFlags,
    ) -> Result<()> {
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(Error::FileTooBig)?;
        if len > CALL_BYTES_MAX && !mode.contains(FallocateFlags::PUNCH_HOLE) {
            return Err(Error::NoSpace);
        }
        let mut state = self.lock();
        let (n, time) = state.file_mut(node)?;
        let file = n.content()?;
        let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
        match mode.difference(FallocateFlags::KEEP_SIZE) {
            m if m.is_empty() => file.allocate(offset, len),
            FallocateFlags::PUNCH_HOLE if keep_size => file.punch(offset, len),
            FallocateFlags::ZERO_RANGE => {
                file.punch(offset, len);
                file.allocate(offset, len);
            }
            _ => return Err(Error::NotSupported),
        }
        if !keep_size {
            file.size = file.size.max(end);
        }
        (n.mtime, n.ctime) = (time, time);
        let strips = Strips::by(&ctx.creds, n.perm, n.gid);
        self.strip(state, node, strips)
    }

    fn lseek(&self, _ctx: &Context, node: NodeId, _handle: Handle, offset: u64, what: SeekKind) -> Result<u64> {
        self.lock().file(node)?.seek(offset, what)
    }

    fn copy_file_range(
        &self,
        ctx: &Context,
        src: (NodeId, Handle, u64),
        dst: (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let mut state = self.lock();
        let from = state.file(src.0)?;
        let len = len.min(from.size.saturating_sub(src.2)).min(CALL_BYTES_MAX);
        let overlaps = src.0 == dst.0 && src.2 < dst.2.saturating_add(len) && dst.2 < src.2.saturating_add(len);
        if overlaps && len > 0 {
            return Err(Error::Invalid);
        }
        if dst.2.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Error::FileTooBig);
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| Error::NoMemory)?];
        from.read(src.2, &mut bytes);
        let (n, time) = state.file_mut(dst.0)?;
        n.content()?.write(dst.2, &bytes);
        (n.mtime, n.ctime) = (time, time);
        if len > 0 {
            let strips = Strips::by(&ctx.creds, n.perm, n.gid);
            self.strip(state, dst.0, strips)?;
        }
        Ok(len)
    }

    fn ioctl_wait(&self, _ctx: &Context, _node: NodeId, call: &Ioctl, _input: &[u8]) -> Result<Option<Wait>> {
        if call.cmd != WAIT {
            return Ok(None);
        }
        let holds = self.holds_waits.clone();
        Ok(Some(Box::new(move || {
            (!holds.load(Ordering::SeqCst)).then_some(Ok(()))
        })))
    }

    fn ioctl(
        &self,
        _ctx: &Context,
        node: NodeId,
        _handle: Handle,
        call: &Ioctl,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let mut state = self.lock();
        let n = state.get_mut(node)?;
        match call.cmd {
            GETFLAGS => {
                output
                    .get_mut(..4)
                    .ok_or(Error::Invalid)?
                    .copy_from_slice(&n.flags.to_le_bytes());
                Ok(IoctlReply {
                    result: 0,
                    out_bytes: 4,
                })
            }
            SETFLAGS => {
                n.flags = u32::from_le_bytes(*input.first_chunk().ok_or(Error::Invalid)?);
                n.ctime = now();
                drop(state);
                self.tell(node);
                Ok(IoctlReply::default())
            }
            FSGETXATTR => {
                output.get_mut(..FSXATTR_BYTES).ok_or(Error::Invalid)?.fill(0);
                Ok(IoctlReply {
                    result: 0,
                    out_bytes: FSXATTR_BYTES,
                })
            }
            _ => Err(Error::NotIoctl),
        }
    }

    fn syncfs(&self, _ctx: &Context, _node: NodeId) -> Result<()> {
        self.synced.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
