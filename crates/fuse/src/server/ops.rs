//! One operation after the other: protocol arguments in, call, reply out.

use std::ops::ControlFlow;
use std::time::Duration;

use cowshed_vfs::fs::NewNode;
use cowshed_vfs::xattr::CAPABILITY_NAME;
use cowshed_vfs::*;

use super::direct::range_of;
use super::reply::{self, DirWriter, Reply};
use super::{Agreed, Begun, Server};
use crate::proto::flags::*;
use crate::proto::wire::*;
use crate::proto::{Operation, Request};

/// The largest copy whose size fits in the reply to COPY_FILE_RANGE, in whole pages.
const COPY_BYTES_MAX: u64 = u32::MAX as u64 & !0xfff;

/// Linux looks the name up anew, and then does what is right.
const LOOK_AGAIN: Error = Error::Stale;

fn time(secs: u64, nanos: u32) -> Timestamp {
    Timestamp::new(secs as i64, nanos.min(999_999_999))
}

fn open_request(flags: u32, open_flags: u32) -> OpenRequest {
    let kill_suidgid = open_flags & OPEN_KILL_SUIDGID != 0;
    OpenRequest {
        flags: OpenFlags::from_raw(flags as i32),
        kill_suidgid,
    }
}

/// Does a change of contents by this caller strip set-id bits although the kernel does not ask for
/// it?
fn strips_unasked(agreed: &Agreed, ctx: &Context) -> bool {
    agreed.judges_set_ids() && !ctx.creds.is_privileged()
}

/// "Not implemented" would tell the kernel that this succeeds from now on without asking: wrong
/// where data is at stake.
pub(super) fn never_skipped(error: Error) -> Error {
    if error == Error::NotImplemented {
        Error::NotSupported
    } else {
        error
    }
}

impl Server {
    /// Does what is asked. On error, what was put into the reply is dropped by the caller.
    pub(super) fn dispatch(&self, request: &Request<'_>, out: &mut Reply<'_>) -> Result<()> {
        let agreed = match (&request.op, self.agreed()) {
            (Operation::Init { args, flags2 }, _) => return self.init(args, *flags2, out),
            (_, Some(agreed)) => agreed,
            (_, None) => return Err(Error::Io),
        };
        let node = NodeId(request.header.nodeid);
        let ctx = || self.context(request, 0);
        let fs = &*self.fs;
        let begun = self.told.begin();
        match request.op {
            Operation::Init { .. } | Operation::Destroy | Operation::NotifyReply => {}
            Operation::Forget { nlookup } => self.forget(node.0, nlookup),
            Operation::BatchForget { nodes } => self.forget_batch(nodes),
            // Of any call; most are answered before they would be found.
            Operation::Interrupt { unique } => self.waits.interrupt(unique),
            Operation::Unsupported { .. } => return Err(Error::NotImplemented),

            // The kernel resolves both names itself, but for file handles: by number, and from a
            // directory upwards.
            Operation::Lookup {
                name: name @ (b"." | b".."),
            } => {
                let entry = match name {
                    b"." => fs.lookup_node(&ctx(), node)?,
                    _ => fs.lookup_parent(&ctx(), node)?,
                };
                self.tell(request, entry.node, begun);
                out.put(&reply::entry_out(&entry));
            }
            Operation::Lookup { name } => match fs.lookup(&ctx(), node, name)? {
                Lookup::Found(entry) => {
                    self.note_lookup(request.header.pid, node, name, entry.attr.kind);
                    self.tell(request, entry.node, begun);
                    out.put(&reply::entry_out(&self.with_validity(&entry)));
                }
                Lookup::Absent { valid } if valid.is_zero() => return Err(Error::NotFound),
                Lookup::Absent { valid } => out.put(&reply::absent_out(valid)),
            },
            Operation::Getattr(args) => {
                let handle = (args.getattr_flags & GETATTR_FH != 0).then_some(Handle(args.fh));
                self.direct.pages.tell_attributes(node);
                let attr = fs.getattr(&ctx(), node, handle)?;
                self.tell(request, node, begun);
                out.put(&reply::attr_out(&attr, self.usual_validity(agreed)));
            }
            Operation::Statx(args) => {
                let handle = (args.getattr_flags & GETATTR_FH != 0).then_some(Handle(args.fh));
                self.direct.pages.tell_attributes(node);
                let attr = fs.getattr(&ctx(), node, handle)?;
                self.tell(request, node, begun);
                out.put(&reply::statx_out(&attr, self.usual_validity(agreed)));
            }
            Operation::Setattr(args) => {
                let (handle, mut set) = set_attr(&args);
                let ctx = ctx();
                set.kill_suidgid |= set.size_bytes.is_some() && strips_unasked(agreed, &ctx);
                if agreed.skips_xattrs && set.size_bytes.is_some() {
                    self.remove_capability(&ctx, node)?;
                }
                let attr = fs.setattr(&ctx, node, handle, &set)?;
                let valid = self.validity(node, self.usual_validity(agreed));
                out.put(&reply::attr_out(&attr, valid));
            }
            Operation::Readlink => {
                let target = fs.readlink(&ctx(), node)?;
                out.room(u32::MAX)
                    .get_mut(..target.len())
                    .ok_or(Error::NameTooLong)?
                    .copy_from_slice(&target);
                out.filled(target.len());
            }
            Operation::Symlink { name, target } => {
                out.put(&reply::entry_out(&fs.symlink(&ctx(), node, name, target)?));
                self.changed(request, node);
            }
            Operation::Mknod { args, name } => {
                let kind = FileKind::from_mode(args.mode).ok_or(Error::Invalid)?;
                let new = NewNode {
                    kind,
                    perm: args.mode & PERM_MASK,
                    rdev: args.rdev,
                };
                let ctx = self.context(request, args.umask);
                let made = fs.mknod(&ctx, node, name, new).map_err(|error| match error {
                    // It may be an open of a new file (below), which has been made since Linux
                    // looked. To mknod(2) Linux says that it exists.
                    Error::Exists if agreed.skips_open() && kind == FileKind::Regular => LOOK_AGAIN,
                    error => error,
                });
                out.put(&reply::entry_out(&made?));
                self.changed(request, node);
            }
            Operation::Mkdir { args, name } => {
                let ctx = self.context(request, args.umask);
                out.put(&reply::entry_out(&fs.mkdir(&ctx, node, name, args.mode & PERM_MASK)?));
                self.changed(request, node);
            }
            Operation::Unlink { name } => {
                fs.unlink(&ctx(), node, name)?;
                self.changed(request, node);
            }
            Operation::Rmdir { name } => {
                fs.rmdir(&ctx(), node, name)?;
                self.changed(request, node);
            }
            Operation::Rename {
                newdir,
                flags,
                name,
                newname,
            } => {
                let flags = RenameFlags::from_bits(flags).ok_or(Error::Invalid)?;
                let (from, to) = ((node, name), (NodeId(newdir), newname));
                fs.rename(&ctx(), from.0, from.1, to.0, to.1, flags)?;
                self.changed(request, node);
                self.changed(request, to.0);
                if self.told.change_one(request.header.pid) {
                    let other = flags.contains(RenameFlags::EXCHANGE).then_some(from);
                    for (dir, name) in [to].into_iter().chain(other) {
                        self.moved(request, dir, name);
                    }
                }
            }
            Operation::Link { oldnodeid, newname } => {
                let entry = fs.link(&ctx(), NodeId(oldnodeid), node, newname)?;
                out.put(&reply::entry_out(&self.with_validity(&entry)));
                self.changed(request, node);
            }
            Operation::Access { mask } => match agreed.checks {
                PermissionChecks::FrontEnd => return Err(Error::NotImplemented),
                PermissionChecks::FileSystem => {
                    fs.access(&ctx(), node, Access::from_bits(mask).ok_or(Error::Invalid)?)?;
                }
            },
            Operation::Statfs => out.put(&reply::statfs_out(&fs.statfs(&ctx(), node)?)),
            Operation::Syncfs => fs.syncfs(&ctx(), node).map_err(never_skipped)?,
            Operation::Setxattr { .. }
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Removexattr { .. }
                if agreed.skips_xattrs =>
            {
                return Err(Error::NotImplemented);
            }
            Operation::Setxattr { args, name, value } => {
                let mut flags = SetXattrFlags::from_bits_truncate(args.flags & 3);
                let ctx = ctx();
                let kills_sgid = match name == acl::ACCESS_NAME && agreed.judges_access_lists() {
                    true => {
                        let attr = fs.getattr(&ctx, node, None)?;
                        perm::perm_for_chmod(&ctx.creds, attr.perm, attr.gid) != attr.perm
                    }
                    false => args.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0,
                };
                flags.set(SetXattrFlags::KILL_SGID, kills_sgid);
                fs.setxattr(&ctx, node, name, value, flags)?;
                self.changed(request, node);
            }
            Operation::Getxattr { size, name } => {
                let bytes = fs.getxattr(&ctx(), node, name, out.room(size))?;
                put_sized(out, size, bytes);
            }
            Operation::Listxattr { size } => {
                let bytes = fs.listxattr(&ctx(), node, out.room(size))?;
                put_sized(out, size, bytes);
            }
            Operation::Removexattr { name } => {
                fs.removexattr(&ctx(), node, name)?;
                self.changed(request, node);
            }
            _ => return self.dispatch_open(request, agreed, out),
        }
        Ok(())
    }

    /// Operations on open files and directories.
    fn dispatch_open(&self, request: &Request<'_>, agreed: &Agreed, out: &mut Reply<'_>) -> Result<()> {
        let node = NodeId(request.header.nodeid);
        let ctx = || self.context(request, 0);
        let fs = &*self.fs;
        match request.op {
            Operation::Open(_) if agreed.skips_open() => return Err(Error::NotImplemented),
            Operation::Open(args) => {
                out.put(&reply::open_out(&fs.open(
                    &ctx(),
                    node,
                    &open_request(args.flags, args.open_flags),
                )?));
            }
            // The kernel makes the file with MKNOD then, and opens it without asking: a request
            // less than CREATE, after which it sends RELEASE.
            Operation::Create { .. } if agreed.skips_open() => return Err(Error::NotImplemented),
            Operation::Create { args, name } => {
                let ctx = self.context(request, args.umask);
                let open = open_request(args.flags, args.open_flags);
                let (entry, opened) = fs.create(&ctx, node, name, args.mode & PERM_MASK, &open)?;
                if entry.attr.kind != FileKind::Regular {
                    // Made since Linux looked, by an ioctl or through another mount. Linux takes
                    // such a reply for damage.
                    fs.release(entry.node, opened.handle);
                    fs.forget(entry.node, 1);
                    return Err(LOOK_AGAIN);
                }
                self.changed(request, node);
                self.put_created(agreed, &entry, opened, out);
            }
            Operation::Tmpfile { args } => {
                let ctx = self.context(request, args.umask);
                let open = open_request(args.flags, args.open_flags);
                let (entry, opened) = fs.tmpfile(&ctx, node, args.mode & PERM_MASK, &open)?;
                self.put_created(agreed, &entry, opened, out);
            }
            Operation::Release(args) if args.fh == Handle::NONE.0 => {}
            Operation::Release(args) => fs.release(node, Handle(args.fh)),
            Operation::Flush(_) if !agreed.capabilities.wants_flush => return Err(Error::NotImplemented),
            Operation::Flush(args) => fs.flush(&ctx(), node, Handle(args.fh))?,
            Operation::Fsync(args) => {
                let data_only = args.fsync_flags & FSYNC_FDATASYNC != 0;
                fs.fsync(&ctx(), node, Handle(args.fh), data_only)
                    .map_err(never_skipped)?;
            }
            Operation::Opendir(_) if agreed.skips_opendir() => return Err(Error::NotImplemented),
            Operation::Opendir(_) => {
                out.put(&reply::open_out(&fs.opendir(&ctx(), node)?));
            }
            Operation::Releasedir(args) if args.fh == Handle::NONE.0 => {}
            Operation::Releasedir(args) => fs.releasedir(node, Handle(args.fh)),
            Operation::Fsyncdir(args) => {
                let data_only = args.fsync_flags & FSYNC_FDATASYNC != 0;
                fs.fsyncdir(&ctx(), node, Handle(args.fh), data_only)
                    .map_err(never_skipped)?;
            }
            Operation::Readdir(args) => {
                let mut list = DirWriter::new(out.room(args.size));
                fs.readdir(&ctx(), node, Handle(args.fh), args.offset, &mut |entry| {
                    taken(list.push(&entry, None))
                })?;
                let used = list.used();
                out.filled(used);
            }
            Operation::Readdirplus(args) => {
                let mut list = DirWriter::new(out.room(args.size));
                // Names that are shared are asked for at each use, whatever was listed with them.
                let listings = (!fs.is_shared()).then_some(&self.listings);
                let mut choice = listings.map(|all| all.choose(request.header.pid, node, args.offset == 0));
                let wants = &mut |dirent: &DirEntry<'_>| choice.as_mut().is_some_and(|choice| choice.wants(dirent));
                let (begun, mut told) = (self.told.begin(), Vec::new());
                let sink = &mut |dirent: DirEntry<'_>, entry: Option<&Entry>| {
                    let entry = entry.map(|entry| self.with_validity(entry));
                    told.extend(entry.map(|entry| entry.node));
                    taken(list.push(&dirent, Some(entry.as_ref())))
                };
                match fs.readdirplus(&ctx(), node, Handle(args.fh), args.offset, wants, sink) {
                    // Linux asks for no other kind of listing.
                    Err(Error::NotImplemented) => {
                        fs.readdir(&ctx(), node, Handle(args.fh), args.offset, &mut |dirent| {
                            taken(list.push(&dirent, Some(None)))
                        })?
                    }
                    listed => listed?,
                }
                if let Some((listings, choice)) = listings.zip(choice) {
                    self.drop_listings(listings.made(choice));
                }
                told.into_iter().for_each(|node| self.tell(request, node, begun));
                let used = list.used();
                out.filled(used);
            }
            Operation::Read(args) => {
                if args.read_flags & READ_LOCKOWNER == 0 {
                    self.direct.pages.fill(node, range_of(args.offset, args.size));
                }
                let bytes = fs.read(&ctx(), node, Handle(args.fh), args.offset, out.room(args.size))?;
                out.filled(bytes);
            }
            Operation::Write { args, data } => {
                self.direct.pages.fill(node, range_of(args.offset, args.size));
                let size = self.write(&ctx(), node, &args, data)? as u32;
                // Stores through a mapping move the times.
                if WireWriteFlags::from_bits_retain(args.write_flags).contains(WireWriteFlags::CACHE) {
                    self.changed(request, node);
                }
                out.put(&WriteOut { size, padding: 0 });
            }
            Operation::Fallocate(args) => {
                let mode = FallocateFlags::from_bits(args.mode).ok_or(Error::NotSupported)?;
                fs.fallocate(&ctx(), node, Handle(args.fh), args.offset, args.length, mode)?;
                self.changed(request, node);
            }
            Operation::Lseek(args) => {
                let what = match args.whence as i32 {
                    libc::SEEK_DATA => SeekKind::Data,
                    libc::SEEK_HOLE => SeekKind::Hole,
                    _ => return Err(Error::Invalid),
                };
                out.put(&LseekOut {
                    offset: fs.lseek(&ctx(), node, Handle(args.fh), args.offset, what)?,
                });
            }
            Operation::CopyFileRange { args, wide } => {
                let len = if wide { args.len } else { args.len.min(COPY_BYTES_MAX) };
                let src = (node, Handle(args.fh_in), args.off_in);
                let dst = (NodeId(args.nodeid_out), Handle(args.fh_out), args.off_out);
                let bytes_copied = fs.copy_file_range(&ctx(), src, dst, len)?;
                match wide {
                    true => out.put(&CopyFileRangeOut { bytes_copied }),
                    false => out.put(&WriteOut {
                        size: bytes_copied as u32,
                        padding: 0,
                    }),
                }
            }
            Operation::Ioctl { args, input } => self.ioctl(&ctx(), node, &args, input, out)?,
            _ => return Err(Error::NotImplemented),
        }
        Ok(())
    }

    /// Attributes of a node that were taken since `begun` are in the reply.
    fn tell(&self, request: &Request<'_>, node: NodeId, begun: Begun) {
        if self.told.tell(node, request.header.pid, begun) {
            self.drop_attributes(node);
        }
    }

    /// The kernel marks attributes of this node as stale, but takes older ones from replies.
    fn changed(&self, request: &Request<'_>, node: NodeId) {
        if self.told.change(node, request.header.pid) {
            self.drop_attributes(node);
        }
    }

    /// [`Server::changed`] of what has a new name.
    fn moved(&self, request: &Request<'_>, dir: NodeId, name: &[u8]) {
        if let Ok(Lookup::Found(entry)) = self.fs.lookup(&self.context(request, 0), dir, name) {
            self.changed(request, entry.node);
            self.fs.forget(entry.node, 1);
        }
    }

    fn drop_attributes(&self, node: NodeId) {
        if let Some(caches) = self.caches() {
            caches.attributes_changed(node);
        }
    }

    /// The reply to CREATE and TMPFILE. Where the kernel skips OPEN, some versions never close what
    /// CREATE opened; so it gets no handle.
    fn put_created(&self, agreed: &Agreed, entry: &Entry, mut opened: Opened, out: &mut Reply<'_>) {
        if agreed.skips_open() && opened.handle != Handle::NONE {
            self.fs.release(entry.node, opened.handle);
            opened.handle = Handle::NONE;
        }
        out.put(&reply::entry_out(entry));
        out.put(&reply::open_out(&opened));
    }

    /// How long the kernel may remember attributes of which nothing else is known.
    fn usual_validity(&self, agreed: &Agreed) -> Duration {
        match self.fs.is_shared() {
            true => Duration::ZERO,
            false => agreed.capabilities.attr_valid,
        }
    }

    /// How long the kernel may remember attributes that were looked up before this is asked. A
    /// direct write that is applied in between changes them, and the kernel has forgotten its old
    /// ones when it sent the write.
    fn validity(&self, node: NodeId, usual: Duration) -> Duration {
        if self.direct.pages.is_tracked(node) {
            Duration::ZERO
        } else {
            usual
        }
    }

    fn with_validity(&self, entry: &Entry) -> Entry {
        Entry {
            attr_valid: self.validity(entry.node, entry.attr_valid),
            ..*entry
        }
    }

    pub(super) fn write(&self, ctx: &Context, node: NodeId, args: &WriteIn, data: &[u8]) -> Result<usize> {
        let wire = WireWriteFlags::from_bits_retain(args.write_flags);
        let open = OpenFlags::from_raw(args.flags as i32);
        // O_APPEND needs nothing where the kernel knows the end of the file: it has put it into the
        // offset, under its own lock.
        let mut flags = WriteFlags::empty();
        let strips = wire.contains(WireWriteFlags::KILL_SUIDGID)
            || !wire.contains(WireWriteFlags::CACHE) && self.agreed().is_some_and(|agreed| strips_unasked(agreed, ctx));
        flags.set(WriteFlags::KILL_SUIDGID, strips);
        flags.set(WriteFlags::FROM_CACHE, wire.contains(WireWriteFlags::CACHE));
        flags.set(WriteFlags::DIRECT, open.contains(OpenFlags::DIRECT));
        flags.set(WriteFlags::OPENED_TO_APPEND, open.contains(OpenFlags::APPEND));
        let may_append = open.contains(OpenFlags::APPEND) && !wire.contains(WireWriteFlags::CACHE);
        flags.set(WriteFlags::APPEND, may_append && self.fs.is_shared());
        // Nor does O_SYNC: the kernel sends FSYNC after such a write, buffered or direct (tested on
        // a mount).
        let skips_xattrs = self.agreed().is_some_and(|agreed| agreed.skips_xattrs);
        // Before a direct write the file system does that, and stores through a mapping leave it.
        if skips_xattrs && !flags.intersects(WriteFlags::FROM_CACHE | WriteFlags::DIRECT) {
            self.remove_capability(ctx, node)?;
        }
        self.fs.write(ctx, node, Handle(args.fh), args.offset, data, flags)
    }

    /// Before a change of contents of which Linux would remove the capability by itself, if it knew
    /// that there are extended attributes.
    fn remove_capability(&self, ctx: &Context, node: NodeId) -> Result<()> {
        if self.fs.getxattr(ctx, node, CAPABILITY_NAME, &mut []).is_err() {
            return Ok(());
        }
        match self.fs.removexattr(ctx, node, CAPABILITY_NAME) {
            Err(Error::NoData) => Ok(()),
            removed => removed,
        }
    }

    /// A name was looked up, which listings learn from.
    fn note_lookup(&self, by: u32, dir: NodeId, name: &[u8], kind: FileKind) {
        if kind != FileKind::Directory {
            self.drop_listings(self.listings.looked_up(by, dir, name));
        }
    }

    fn drop_listings(&self, dirs: Vec<NodeId>) {
        if let Some(caches) = self.caches().filter(|_| !dirs.is_empty()) {
            caches.drop_listings(dirs);
        }
    }

    /// What an ioctl waits for, if it is one that may wait for long.
    pub(super) fn ioctl_wait(&self, request: &Request<'_>, args: &IoctlIn, input: &[u8]) -> Result<Option<Wait>> {
        let Some(call) = ioctl_call(args).filter(|_| self.agreed().is_some()) else {
            return Ok(None);
        };
        let node = NodeId(request.header.nodeid);
        self.fs.ioctl_wait(&self.context(request, 0), node, &call, input)
    }

    fn ioctl(&self, ctx: &Context, node: NodeId, args: &IoctlIn, input: &[u8], out: &mut Reply<'_>) -> Result<()> {
        let call = ioctl_call(args).ok_or(Error::NotIoctl)?;
        let done = self
            .fs
            .ioctl(ctx, node, Handle(args.fh), &call, input, out.room(args.out_size));
        // "Not implemented" would be remembered for the whole mount; the caller expects ENOTTY.
        let done = done.map_err(|e| if e == Error::NotImplemented { Error::NotIoctl } else { e })?;
        out.put(&IoctlOut {
            result: done.result,
            ..Default::default()
        });
        out.filled(done.out_bytes);
        Ok(())
    }
}

/// `None`: the memory that it uses is not said, which character devices alone may do.
fn ioctl_call(args: &IoctlIn) -> Option<Ioctl> {
    let flags = IoctlFlags::from_bits_retain(args.flags);
    (!flags.contains(IoctlFlags::UNRESTRICTED)).then(|| Ioctl {
        cmd: args.cmd,
        arg: args.arg,
        compat: flags.contains(IoctlFlags::COMPAT),
    })
}

fn taken(taken: bool) -> ControlFlow<()> {
    if taken {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

/// The reply to GETXATTR and LISTXATTR: the length alone if that was the question, else the bytes.
fn put_sized(out: &mut Reply<'_>, asked: u32, bytes: usize) {
    if asked == 0 {
        out.put(&GetxattrOut {
            size: bytes as u32,
            padding: 0,
        });
    } else {
        out.filled(bytes);
    }
}

fn set_attr(args: &SetattrIn) -> (Option<Handle>, SetAttr) {
    use SetattrValid as V;
    let valid = V::from_bits_retain(args.valid);
    let set_time = |which, now, secs, nanos| {
        valid.contains(which).then(|| {
            if valid.contains(now) {
                SetTime::Now
            } else {
                SetTime::At(time(secs, nanos))
            }
        })
    };
    let set = SetAttr {
        perm: valid.contains(V::MODE).then_some(args.mode & PERM_MASK),
        uid: valid.contains(V::UID).then_some(args.uid),
        gid: valid.contains(V::GID).then_some(args.gid),
        size_bytes: valid.contains(V::SIZE).then_some(args.size),
        atime: set_time(V::ATIME, V::ATIME_NOW, args.atime, args.atimensec),
        mtime: set_time(V::MTIME, V::MTIME_NOW, args.mtime, args.mtimensec),
        ctime: valid.contains(V::CTIME).then(|| time(args.ctime, args.ctimensec)),
        kill_suidgid: valid.contains(V::KILL_SUIDGID),
    };
    (valid.contains(V::FH).then_some(Handle(args.fh)), set)
}
