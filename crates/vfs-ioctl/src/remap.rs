//! Ioctls that name a second file, and those on extents: clone, dedupe, exchange, map, defragment.
//!
//! A second file is named by a token that it was lent under. What the kernel asks of a descriptor
//! is asked of the handle; a handle that does not say how it was opened is judged by the caller's
//! permissions instead.

use std::ops::ControlFlow;

use cowshed_vfs::{
    Access, Algorithm, Compression, Context, Dedupe, Defrag, Error, Exchange, FileKind, Freshness, Handle, IoctlReply,
    NodeId, OpenFlags, Result, Timestamp, Volume,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::front::Front;
use crate::grants::Grant;
use crate::reply::reply;
use crate::wire::{self, DefragRange, MapEntry, MapPage, Remap, Token, flag, op};

/// The kernel's target size where none is given, in bytes.
const DEFRAG_BYTES: u64 = 256 << 10;

type OpenFile = (NodeId, Handle);

impl<V: Volume + ?Sized + 'static> Front<V> {
    /// Errors: `NotIoctl` for commands that are not of this module, and those of the calls.
    pub(crate) fn ioctl_remap(
        &self,
        ctx: &Context,
        file: OpenFile,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        match cmd {
            wire::LEND => self.lend(ctx, file, output),
            wire::REMAP => self.remap(ctx, file, input, output),
            wire::MAP => self.map_page(ctx, file, input, output),
            wire::DEFRAG_RANGE => self.defrag_range(ctx, file, input),
            _ => Err(Error::NotIoctl),
        }
    }

    /// What the handle was opened for, or the caller might open the file for.
    fn access_of(&self, ctx: &Context, (node, handle): OpenFile) -> Access {
        let mut access = Access::empty();
        if let Some(opened) = handle.flags() {
            access.set(Access::READ, opened.contains(OpenFlags::READ));
            access.set(Access::WRITE, opened.contains(OpenFlags::WRITE));
            return access;
        }
        for want in [Access::READ, Access::WRITE] {
            access.set(want, self.volume().check_access(ctx, node, want).is_ok());
        }
        access
    }

    fn need(&self, ctx: &Context, file: OpenFile, want: Access) -> Result<()> {
        match self.volume().getattr(ctx, file.0, None)?.kind {
            FileKind::Directory => return Err(Error::IsDirectory),
            FileKind::Regular => {}
            _ => return Err(Error::Invalid),
        }
        if !self.access_of(ctx, file).contains(want) {
            return Err(Error::BadHandle);
        }
        Ok(())
    }

    fn lend(&self, ctx: &Context, file: OpenFile, output: &mut [u8]) -> Result<IoctlReply> {
        let is_dir = self.volume().getattr(ctx, file.0, None)?.kind == FileKind::Directory;
        if !is_dir {
            self.need(ctx, file, Access::empty())?;
        }
        let mut token = Token([0; 16]);
        self.env.random(&mut token.0);
        self.grants.add(Grant {
            token,
            node: file.0,
            generation: self.volume().generation(file.0)?,
            access: match is_dir {
                true => Access::READ,
                false => self.access_of(ctx, file),
            },
            since: self.env.monotonic(),
        });
        reply(output, token.as_bytes())
    }

    /// The file behind a token, if it still exists.
    pub(crate) fn lent(&self, token: Token, want: Access) -> Result<NodeId> {
        let (node, generation) = self.grants.find(token, want, self.env.monotonic())?;
        match self.volume().generation(node) {
            Ok(now) if now == generation => Ok(node),
            _ => Err(Error::BadHandle),
        }
    }

    fn remap(&self, ctx: &Context, file: OpenFile, input: &[u8], output: &mut [u8]) -> Result<IoctlReply> {
        let mut call = *Remap::ref_from_prefix(input).map_err(|_| Error::Invalid)?.0;
        let (node, handle) = file;
        let dst = (node, call.dst_offset.get());
        let (src_offset, len_bytes) = (call.src_offset.get(), call.len_bytes.get());
        match call.op.get() {
            op::CLONE => {
                self.need(ctx, file, Access::WRITE)?;
                if handle.flags().is_some_and(|f| f.contains(OpenFlags::APPEND)) {
                    return Err(Error::BadHandle);
                }
                let src = self.lent(call.token, Access::READ)?;
                self.volume()
                    .clone_range(Some(ctx), (src, src_offset), dst, len_bytes)?;
            }
            op::DEDUPE => {
                self.need(ctx, file, Access::empty())?;
                self.may_dedupe(ctx, file)?;
                let src = self.lent(call.token, Access::READ)?;
                match self.volume().dedupe_range((src, src_offset), dst, len_bytes)? {
                    Dedupe::Same(bytes) => call.done_bytes = bytes.into(),
                    Dedupe::Differs => call.status = 1.into(),
                }
            }
            op::EXCHANGE => {
                let both = Access::READ | Access::WRITE;
                self.need(ctx, file, both)?;
                let src = self.lent(call.token, both)?;
                self.volume()
                    .exchange_range(Some(ctx), src, node, &exchange_of(&call)?)?;
            }
            _ => return Err(Error::Invalid),
        }
        if call.flags.get() & flag::SYNC != 0 {
            self.volume().syncfs(ctx, node)?;
        }
        reply(output, call.as_bytes())
    }

    /// Another file's extents may take the place of this content for a caller that may write it,
    /// and for the owner.
    fn may_dedupe(&self, ctx: &Context, file: OpenFile) -> Result<()> {
        let may = self.access_of(ctx, file).contains(Access::WRITE)
            || ctx.creds.is_privileged()
            || ctx.creds.uid == self.volume().getattr(ctx, file.0, None)?.uid
            || self.volume().check_access(ctx, file.0, Access::WRITE).is_ok();
        if may { Ok(()) } else { Err(Error::NotPermitted) }
    }

    fn map_page(&self, ctx: &Context, file: OpenFile, input: &[u8], output: &mut [u8]) -> Result<IoctlReply> {
        self.need(ctx, file, Access::empty())?;
        let mut page = MapPage::read_from_bytes(input).map_err(|_| Error::Invalid)?;
        let range = page.start.get()..page.end.get();
        let wants_shared = page.wants_shared.get() != 0;
        page.entries = FromZeros::new_zeroed();
        let mut count = 0;
        let mut next = range.end;
        self.volume().map_extents(file.0, range, wants_shared, &mut |extent| {
            let Some(entry) = page.entries.get_mut(count) else {
                next = extent.start;
                return ControlFlow::Break(());
            };
            *entry = MapEntry::from(extent);
            count += 1;
            ControlFlow::Continue(())
        })?;
        page.is_last = u32::from(next == page.end.get()).into();
        page.start = next.into();
        page.count = (count as u32).into();
        reply(output, page.as_bytes())
    }

    fn defrag_range(&self, ctx: &Context, file: OpenFile, input: &[u8]) -> Result<IoctlReply> {
        let call = DefragRange::read_from_bytes(input).map_err(|_| Error::Invalid)?;
        let compress = compression_of(&call)?;
        // The content stays: the right to write is enough, however the file was opened.
        if !self.access_of(ctx, file).contains(Access::WRITE) {
            self.volume().check_access(ctx, file.0, Access::WRITE)?;
        }
        let start = call.start.get();
        let range = start..start.saturating_add(call.len_bytes.get());
        let target_bytes = match call.extent_bytes_max.get() {
            0 => DEFRAG_BYTES,
            bytes => bytes.into(),
        };
        let what = Defrag { target_bytes, compress };
        self.volume().defragment(file.0, range, &what)?;
        Ok(IoctlReply::default())
    }
}

/// The compression that a call wants: the type by its number, with a level in the next byte where a
/// flag says so.
fn compression_of(call: &DefragRange) -> Result<Option<Compression>> {
    let flags = call.flags.get();
    if flags & !(wire::defrag::COMPRESS | wire::defrag::START_IO | wire::defrag::LEVEL) != 0 {
        return Err(Error::NotSupported);
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
        // 0: not given.
        0 | 1 => Algorithm::Zlib,
        2 => Algorithm::Lzo,
        3 => Algorithm::Zstd,
        _ => return Err(Error::Invalid),
    };
    Ok(Some(Compression::new(algorithm, level)))
}

fn exchange_of(call: &Remap) -> Result<Exchange> {
    let flags = call.flags.get();
    if flags & !(flag::TO_EOF | flag::IF_FRESH | flag::DRY_RUN | flag::SYNC | flag::ONLY_WRITTEN) != 0 {
        return Err(Error::Invalid);
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
