//! Sharing, exchanging and showing extents: for who links us, and as ioctls ([`super::wire`]).
//!
//! Who may: what the kernel asks of a descriptor is asked of the handle. A handle that does not say how it was opened is
//! judged by the caller's permissions instead.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use btrfs_format::{Generation, ObjectId, TreeId};
use cowshed_vfs::{Access, Context, Error as Errno, Handle, IoctlReply, NodeId, OpenFlags, Timestamp};
use parking_lot::Mutex;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::setattr::{Capability, strip_capability, strips_of};
use super::wire::{self, DefragRange, MapEntry, MapPage, Remap, Token, flag, op};
use super::{Fs, errno, flags_of, ioctl};
use crate::error::Result;
use crate::file::compress::{Algorithm, Compression};
use crate::file::map::{self, MapExtent, MapKind};
use crate::file::{self, Dedupe, Defrag, Exchange, Freshness, WriteCtx};
use crate::inode::access::Caller;
use crate::inode::{Inode, flags};

type VfsResult<T> = cowshed_vfs::Result<T>;

/// Files lent at a time, of all callers: the oldest go first.
const GRANTS_MAX: usize = 1024;
/// How long a file is lent.
const GRANT_SECONDS: i64 = 60;
/// What the kernel takes for a target size that is not given.
const DEFRAG_BYTES: u64 = 256 << 10;

struct Grant {
    token: Token,
    inode: (TreeId, ObjectId, Generation),
    node: NodeId,
    access: Access,
    until_s: i64,
}

/// Open files that were lent. Lock: innermost.
#[derive(Default)]
pub(super) struct Grants(Mutex<VecDeque<Grant>>);

impl std::fmt::Debug for Grants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Grants({})", self.0.lock().len())
    }
}

/// A file and an offset in it, in bytes.
pub type At = (NodeId, u64);

/// For who links us: the handles were checked, or there is nobody to check.
impl Fs {
    /// FICLONERANGE. Errors: [`file::clone_range`], and those of writing to the target.
    pub fn clone_range(&self, src: At, dst: At, len_bytes: u64) -> VfsResult<()> {
        self.clone_by(None, src, dst, len_bytes).map_err(|e| errno("clone", e))
    }

    /// Whoever calls without saying who he is keeps no set-id bits.
    fn clone_by(&self, ctx: Option<&Context>, src: At, dst: At, len_bytes: u64) -> Result<()> {
        let (from, to) = (self.file(src.0)?, self.target(dst.0)?);
        if file::clones_anything(&from, src.1, &to, dst.1, len_bytes)? {
            strip_capability(&self.engine, &to)?;
        }
        let how = stripping(ctx, &to);
        file::clone_as(&self.engine, (&from, src.1), (&to, dst.1), len_bytes, how)
    }

    /// FIDEDUPERANGE with one target. Errors: as [`Fs::clone_range`].
    pub fn dedupe_range(&self, src: At, dst: At, len_bytes: u64) -> VfsResult<Dedupe> {
        let run = || {
            let (from, to) = (self.file(src.0)?, self.target(dst.0)?);
            file::dedupe_range(&self.engine, &from, src.1, &to, dst.1, len_bytes)
        };
        run().map_err(|e| errno("dedupe", e))
    }

    /// Exchanges ranges of two files. Errors: [`file::exchange_range`], and those of writing to both.
    pub fn exchange_range(&self, a: NodeId, b: NodeId, what: &Exchange) -> VfsResult<()> {
        self.exchange_by(None, a, b, what).map_err(|e| errno("exchange", e))
    }

    fn exchange_by(&self, ctx: Option<&Context>, a: NodeId, b: NodeId, what: &Exchange) -> Result<()> {
        let (first, second) = (self.target(a)?, self.target(b)?);
        let how = [&first, &second].map(|inode| stripping(ctx, inode));
        let of = |inode, may_change: bool| {
            let capability = may_change.then(|| Capability::of(&self.engine, inode));
            capability.transpose()
        };
        let one = of(&first, !what.dry_run)?;
        let other = of(&second, !what.dry_run && !Arc::ptr_eq(&first, &second))?;
        let strip = Box::new(|| [one, other].into_iter().flatten().try_for_each(Capability::strip));
        file::exchange_as(&self.engine, [&first, &second], what, (how, strip))
    }

    /// What [`Exchange::fresh_b`] compares.
    pub fn freshness(&self, node: NodeId) -> VfsResult<Freshness> {
        let inode = self.file(node).map_err(|e| errno("freshness", e))?;
        Ok(Freshness::of(&inode))
    }

    /// Shows the extents of a file; see [`map::map`].
    pub fn map_file(
        &self,
        node: NodeId,
        range: Range<u64>,
        wants_shared: bool,
        take: &mut dyn FnMut(&MapExtent) -> ControlFlow<()>,
    ) -> VfsResult<()> {
        let mut run = || map::map(&self.engine, &self.file(node)?, range.clone(), wants_shared, take);
        run().map_err(|e| errno("map", e))
    }

    /// See [`file::defragment`].
    pub fn defragment(&self, node: NodeId, range: Range<u64>, what: &Defrag) -> VfsResult<u64> {
        let run = || file::defragment(&self.engine, &self.file_to_write(node)?, range, what);
        run().map_err(|e| errno("defragment", e))
    }

    /// A file whose content may be replaced.
    fn target(&self, node: NodeId) -> Result<Arc<Inode>> {
        let inode = self.file_to_write(node)?;
        if inode.flags() & flags::APPEND != 0 {
            return Err(Errno::NotPermitted.into());
        }
        Ok(inode)
    }
}

/// The set-id bits that go, where somebody with less than all rights may be behind a call.
fn stripping(ctx: Option<&Context>, inode: &Inode) -> WriteCtx {
    ctx.map_or(WriteCtx::STRIPPING, |ctx| WriteCtx::stripping(strips_of(ctx, inode)))
}

/// The ioctls.
impl Fs {
    /// A front end that remembers hears of it, attributes included.
    fn content_changed(&self, node: NodeId, range: Range<u64>) {
        if let Some(caches) = self.caches() {
            caches.content_changed(node, vec![range]);
        }
    }

    /// What changes a range in steps and fails leaves those before the one that failed. Linux takes a call that failed for one that
    /// changed nothing.
    pub(super) fn tell_of_steps<T>(&self, done: &Result<T>, node: NodeId, range: Range<u64>) {
        // A call that is refused has not begun.
        if done.as_ref().is_err_and(|e| !matches!(e, crate::Error::Outcome(_))) {
            self.content_changed(node, range);
        }
    }

    /// `None` for commands that are not of this module.
    pub(super) fn ioctl_remap(
        &self,
        ctx: &Context,
        (node, handle): (NodeId, Handle),
        inode: &Arc<Inode>,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Option<Result<IoctlReply>> {
        Some(match cmd {
            wire::LEND => self.lend(ctx, node, handle, inode, output),
            wire::REMAP => self.remap(ctx, (node, handle), inode, input, output),
            wire::MAP => self.map_page(ctx, node, handle, inode, input, output),
            wire::DEFRAG_RANGE => self.defrag_range(ctx, (node, handle), inode, input),
            _ => return None,
        })
    }

    /// What the handle was opened for, or the caller might open it for.
    fn access_of(&self, ctx: &Context, handle: Handle, inode: &Inode) -> Access {
        let mut access = Access::empty();
        if let Some(opened) = flags_of(handle) {
            access.set(Access::READ, opened.contains(OpenFlags::READ));
            access.set(Access::WRITE, opened.contains(OpenFlags::WRITE));
            return access;
        }
        let caller = Caller { ctx, checks: true };
        for want in [Access::READ, Access::WRITE] {
            access.set(want, caller.need(inode, want).is_ok());
        }
        access
    }

    fn need(&self, ctx: &Context, handle: Handle, inode: &Inode, want: Access) -> Result<()> {
        if inode.is_dir() {
            return Err(Errno::IsDirectory.into());
        }
        if !inode.is_regular() {
            return Err(Errno::Invalid.into());
        }
        if !self.access_of(ctx, handle, inode).contains(want) {
            return Err(Errno::BadHandle.into());
        }
        Ok(())
    }

    fn lend(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        inode: &Arc<Inode>,
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        self.need(ctx, handle, inode, Access::empty())?;
        let mut token = Token([0; 16]);
        self.engine.env.random(&mut token.0);
        let mut grants = self.grants.0.lock();
        if grants.len() >= GRANTS_MAX {
            grants.pop_front();
        }
        grants.push_back(Grant {
            token,
            inode: (inode.tree.id(), inode.ino, inode.attr_now().generation),
            node,
            access: self.access_of(ctx, handle, inode),
            until_s: self.engine.env.now().secs + GRANT_SECONDS,
        });
        ioctl::reply(output, token.as_bytes())
    }

    /// The file behind a token, if it is still in use.
    fn lent(&self, token: Token, want: Access) -> Result<(NodeId, Arc<Inode>)> {
        let now_s = self.engine.env.now().secs;
        let mut grants = self.grants.0.lock();
        // A clock that was set back ends them, too.
        grants.retain(|g| (now_s..=now_s + GRANT_SECONDS).contains(&g.until_s));
        // Lent by another mount, or long ago.
        let grant = grants.iter().find(|g| g.token == token).ok_or(Errno::CrossDevice)?;
        if !grant.access.contains(want) {
            return Err(Errno::BadHandle.into());
        }
        let (tree, ino, generation) = grant.inode;
        let inode = self.engine.objects.inodes.get(tree, ino).ok_or(Errno::BadHandle)?;
        if inode.refs.is_idle() || inode.attr_now().generation != generation {
            return Err(Errno::BadHandle.into());
        }
        Ok((grant.node, inode))
    }

    fn remap(
        &self,
        ctx: &Context,
        (node, handle): (NodeId, Handle),
        inode: &Arc<Inode>,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let mut call = *Remap::ref_from_prefix(input).map_err(|_| Errno::Invalid)?.0;
        let (src_offset, dst_offset, len_bytes) = (call.src_offset.get(), call.dst_offset.get(), call.len_bytes.get());
        let changed = match call.op.get() {
            op::CLONE => {
                self.need(ctx, handle, inode, Access::WRITE)?;
                if flags_of(handle).is_some_and(|f| f.contains(OpenFlags::APPEND)) {
                    return Err(Errno::BadHandle.into());
                }
                let (src, lent) = self.lent(call.token, Access::READ)?;
                let all = lent.attr_now().size.saturating_sub(src_offset);
                let cloned = self.clone_by(Some(ctx), (src, src_offset), (node, dst_offset), len_bytes);
                let len_bytes = if len_bytes == 0 { all } else { len_bytes };
                let range = dst_offset..dst_offset.saturating_add(len_bytes);
                self.tell_of_steps(&cloned, node, range.clone());
                cloned?;
                vec![(node, range)]
            }
            op::DEDUPE => {
                self.need(ctx, handle, inode, Access::empty())?;
                self.may_dedupe(ctx, handle, inode)?;
                let (src, _) = self.lent(call.token, Access::READ)?;
                match self.dedupe_range((src, src_offset), (node, dst_offset), len_bytes)? {
                    Dedupe::Same(bytes) => call.done_bytes = bytes.into(),
                    Dedupe::Differs => call.status = 1.into(),
                }
                Vec::new()
            }
            op::EXCHANGE => {
                let both = Access::READ | Access::WRITE;
                self.need(ctx, handle, inode, both)?;
                let (src, _) = self.lent(call.token, both)?;
                let what = exchange_of(&call)?;
                self.exchange_by(Some(ctx), src, node, &what)?;
                let whole = |from: u64| {
                    let len = if what.to_eof { u64::MAX } else { len_bytes };
                    from..from.saturating_add(len)
                };
                vec![(src, whole(src_offset)), (node, whole(dst_offset))]
            }
            _ => return Err(Errno::Invalid.into()),
        };
        for (node, range) in changed {
            self.content_changed(node, range);
        }
        if call.flags.get() & flag::SYNC != 0 {
            self.settled(self.engine.sync())?;
        }
        ioctl::reply(output, call.as_bytes())
    }

    /// Whose content another's extents may take the place of: who may write, and the owner.
    fn may_dedupe(&self, ctx: &Context, handle: Handle, inode: &Arc<Inode>) -> Result<()> {
        let caller = Caller { ctx, checks: true };
        let may = self.access_of(ctx, handle, inode).contains(Access::WRITE)
            || ctx.creds.is_privileged()
            || ctx.creds.uid == inode.attr_now().uid
            || caller.need(inode, Access::WRITE).is_ok();
        if may { Ok(()) } else { Err(Errno::NotPermitted.into()) }
    }

    fn map_page(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        inode: &Arc<Inode>,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        self.need(ctx, handle, inode, Access::empty())?;
        let mut page = MapPage::read_from_bytes(input).map_err(|_| Errno::Invalid)?;
        let range = page.start.get()..page.end.get();
        let wants_shared = page.wants_shared.get() != 0;
        page.entries = FromZeros::new_zeroed();
        let mut count = 0;
        let mut next = range.end;
        self.map_file(node, range, wants_shared, &mut |extent| {
            let Some(entry) = page.entries.get_mut(count) else {
                next = extent.start;
                return ControlFlow::Break(());
            };
            *entry = entry_of(extent);
            count += 1;
            ControlFlow::Continue(())
        })?;
        page.is_last = u32::from(next == page.end.get()).into();
        page.start = next.into();
        page.count = (count as u32).into();
        ioctl::reply(output, page.as_bytes())
    }

    fn defrag_range(
        &self,
        ctx: &Context,
        (node, handle): (NodeId, Handle),
        inode: &Arc<Inode>,
        input: &[u8],
    ) -> Result<IoctlReply> {
        let call = DefragRange::read_from_bytes(input).map_err(|_| Errno::Invalid)?;
        let compress = compression_of(&call)?;
        // The content stays: who may write may do it, however the file was opened.
        let caller = Caller { ctx, checks: true };
        if !self.access_of(ctx, handle, inode).contains(Access::WRITE) {
            caller.need(inode, Access::WRITE)?;
        }
        let start = call.start.get();
        let range = start..start.saturating_add(call.len_bytes.get());
        let target_bytes = match call.extent_bytes_max.get() {
            0 => DEFRAG_BYTES,
            bytes => bytes.into(),
        };
        let what = Defrag { target_bytes, compress };
        self.defragment(node, range, &what)?;
        Ok(IoctlReply::default())
    }
}

/// The compression that a call wants: the type by its number, with a level in the next byte where a flag says so.
fn compression_of(call: &DefragRange) -> Result<Option<Compression>> {
    let flags = call.flags.get();
    if flags & !(wire::defrag::COMPRESS | wire::defrag::START_IO | wire::defrag::LEVEL) != 0 {
        return Err(Errno::NotSupported.into());
    }
    if flags & wire::defrag::COMPRESS == 0 {
        return Ok(None);
    }
    let [ty, level, ..] = call.compress.get().to_le_bytes();
    let level = if flags & wire::defrag::LEVEL != 0 {
        i32::from(level.cast_signed())
    } else {
        0
    };
    let algorithm = match ty {
        // Not given.
        0 | 1 => Algorithm::Zlib,
        2 => Algorithm::Lzo,
        3 => Algorithm::Zstd,
        _ => return Err(Errno::Invalid.into()),
    };
    Ok(Some(Compression::new(algorithm, level)))
}

fn exchange_of(call: &Remap) -> Result<Exchange> {
    let flags = call.flags.get();
    if flags & !(flag::TO_EOF | flag::IF_FRESH | flag::DRY_RUN | flag::SYNC | flag::ONLY_WRITTEN) != 0 {
        return Err(Errno::Invalid.into());
    }
    let time = |t: wire::Time| Timestamp::new(t.secs.get(), t.nanos.get());
    let fresh = Freshness {
        ino: call.ino.get(),
        mtime: time(call.mtime),
        ctime: time(call.ctime),
    };
    Ok(Exchange {
        a_offset: call.src_offset.get(),
        b_offset: call.dst_offset.get(),
        len_bytes: call.len_bytes.get(),
        to_eof: flags & flag::TO_EOF != 0,
        only_written: flags & flag::ONLY_WRITTEN != 0,
        fresh_b: (flags & flag::IF_FRESH != 0).then_some(fresh),
        dry_run: flags & flag::DRY_RUN != 0,
    })
}

fn entry_of(extent: &MapExtent) -> MapEntry {
    MapEntry {
        start: extent.start.into(),
        len_bytes: extent.len_bytes.into(),
        disk_addr: extent.disk_addr.into(),
        disk_bytes: extent.disk_bytes.into(),
        offset_bytes: extent.offset_bytes.into(),
        ram_bytes: extent.ram_bytes.into(),
        kind: match extent.kind {
            MapKind::Data => wire::kind::DATA,
            MapKind::Unwritten => wire::kind::UNWRITTEN,
            MapKind::Inline => wire::kind::INLINE,
            MapKind::Delalloc => wire::kind::DELALLOC,
        },
        compression: extent.compression,
        is_shared: extent.is_shared.into(),
        pad: [0; 5],
    }
}

impl From<&MapEntry> for MapExtent {
    fn from(entry: &MapEntry) -> Self {
        Self {
            kind: match entry.kind {
                wire::kind::UNWRITTEN => MapKind::Unwritten,
                wire::kind::INLINE => MapKind::Inline,
                wire::kind::DELALLOC => MapKind::Delalloc,
                _ => MapKind::Data,
            },
            start: entry.start.get(),
            len_bytes: entry.len_bytes.get(),
            disk_addr: entry.disk_addr.get(),
            disk_bytes: entry.disk_bytes.get(),
            offset_bytes: entry.offset_bytes.get(),
            ram_bytes: entry.ram_bytes.get(),
            compression: entry.compression,
            is_shared: entry.is_shared != 0,
        }
    }
}
