//! Clones: ranges of one file that share their extents with another, or with another range of the
//! same.

use std::ops::Range;
use std::sync::Arc;

use cowshed_runtime::lock::RwLockReadGuard;
use cowshed_vfs::{Dedupe, Error as Outcome};

use super::items::{self, Change, NOW};
use super::replace::{self, Replacement};
use super::truncate::forget_dirty;
use super::write::{WriteCtx, grow, note_dirty, old_end_bytes, touch, write};
use super::{read, sharing, writeback};
use crate::block::{BLOCK, FILE_BYTES_MAX, round_down, round_up};
use crate::error::{Error, Result, StoreError};
use crate::extent::{Extent, Kind, Walk};
use crate::files::Files;
use crate::object::lock::OpWriteGuard;
use crate::object::{Inode, flags};
use btrfs_format::ObjectId;
use btrfs_store::space::{Budget, DataReservation};
use btrfs_store::tree::Tree;

/// Extents shared in one step, and extents that they take the place of.
const STEP_EXTENTS_MAX: usize = 128;
/// Bytes copied at once where sharing is impossible.
const COPY_BYTES: u64 = 1 << 20;

/// Operation locks of source and target.
pub(super) struct Locks<'a> {
    _src: Option<RwLockReadGuard<'a, ()>>,
    _dst: OpWriteGuard<'a>,
}

pub(super) fn lock_both<'a>(src: &'a Arc<Inode>, dst: &'a Arc<Inode>) -> Locks<'a> {
    if Arc::ptr_eq(src, dst) {
        return Locks {
            _src: None,
            _dst: dst.lock.write(),
        };
    }
    let (src_key, dst_key) = (src.lock_key(), dst.lock_key());
    if src_key < dst_key {
        let src = src.lock.read_ordered(src_key);
        Locks {
            _src: Some(src),
            _dst: dst.lock.write_ordered(dst_key),
        }
    } else {
        let dst = dst.lock.write_ordered(dst_key);
        Locks {
            _src: Some(src.lock.read_ordered(src_key)),
            _dst: dst,
        }
    }
}

/// Two ranges of the same length, `src` and `dst` in bytes of their files, that shall share
/// extents.
pub(super) struct Ranges {
    pub src: Range<u64>,
    pub dst: Range<u64>,
}

impl Ranges {
    /// `Invalid`: they do not begin at blocks, wrap around, or the first goes beyond the end of its
    /// file.
    fn new(src_offset: u64, src_size: u64, dst_offset: u64, len_bytes: u64) -> Result<Self> {
        if !(src_offset | dst_offset).is_multiple_of(BLOCK) {
            return Err(Outcome::Invalid.into());
        }
        let end = |from: u64| from.checked_add(len_bytes).ok_or(Outcome::Invalid);
        let ranges = Self {
            src: src_offset..end(src_offset)?,
            dst: dst_offset..end(dst_offset)?,
        };
        if ranges.src.end > src_size {
            return Err(Outcome::Invalid.into());
        }
        Ok(ranges)
    }

    /// Of one file, do they meet? What is shared is whole blocks.
    fn overlap(&self) -> bool {
        self.src.start < round_up(self.dst.end) && self.dst.start < round_up(self.src.end)
    }
}

/// Shares `len_bytes` of `src` with `dst` (FICLONERANGE): offsets aligned to blocks, and the end
/// too, unless it is the end of the source and not before that of the target. Zero bytes mean all
/// to the end of the source. What is preallocated in the source is so in the target.
///
/// Set-id bits of the target go, as after a write without the right to keep them.
///
/// `Invalid`: misaligned, beyond the end of the source or of the largest file, overlapping in one
/// file, or only one of both has checksums.
#[cfg(test)]
pub(crate) fn clone_range(
    files: &Files,
    src: &Arc<Inode>,
    src_offset: u64,
    dst: &Arc<Inode>,
    dst_offset: u64,
    len_bytes: u64,
) -> Result<()> {
    clone_as(
        files,
        (src, src_offset),
        (dst, dst_offset),
        len_bytes,
        WriteCtx::STRIPPING,
    )
}

/// As [`clone_range`]; `ctx` says which set-id bits go.
pub(crate) fn clone_as(
    files: &Files,
    src: (&Arc<Inode>, u64),
    dst: (&Arc<Inode>, u64),
    len_bytes: u64,
    ctx: WriteCtx,
) -> Result<()> {
    clone_counted(files, src, dst, len_bytes, ctx, &mut 0)
}

/// As [`clone_as`]; `done_bytes` are shared in the end, all or those of the steps before the one
/// that failed.
fn clone_counted(
    files: &Files,
    (src, src_offset): (&Arc<Inode>, u64),
    (dst, dst_offset): (&Arc<Inode>, u64),
    len_bytes: u64,
    ctx: WriteCtx,
    done_bytes: &mut u64,
) -> Result<()> {
    files.store().txn().check_writable()?;
    let (mut reservation, _locks) = lock_with_space(files, src, dst, || {
        let dst_size = dst.attr.lock().attr.size;
        Ok(old_end_bytes(dst_size, dst_offset) + inline_bytes(src, src_offset)?)
    })?;
    let dst_size = dst.attr.lock().attr.size;
    let Some(ranges) = check(src, src_offset, dst, dst_offset, len_bytes)? else {
        return Ok(());
    };
    // The lock keeps writers of the source out, so that it stays clean.
    writeback::flush(files, src)?;
    if dst_offset > dst_size {
        let old_end = reservation.split(old_end_bytes(dst_size, dst_offset));
        grow(files, dst, dst_size, dst_offset, old_end)?;
    }
    share(files, src, dst, &ranges, Some(reservation), Some(ctx), done_bytes)
}

/// Both files locked, and the space for what cannot be shared: none, as a rule, so that a full
/// volume can share.
fn lock_with_space<'a>(
    files: &Files,
    src: &'a Arc<Inode>,
    dst: &'a Arc<Inode>,
    bytes: impl Fn() -> Result<u64>,
) -> Result<(DataReservation, Locks<'a>)> {
    loop {
        let reservation = files.store().space().reserve_data(bytes()?)?;
        let locks = lock_both(src, dst);
        // The files may be others by now.
        if bytes()? <= reservation.bytes() {
            return Ok((reservation, locks));
        }
    }
}

/// What the content of inline data takes, which is copied: also that of data that may become so
/// yet.
fn inline_bytes(src: &Inode, offset: u64) -> Result<u64> {
    if offset > 0 {
        return Ok(0);
    }
    // In this order: what lands in between is seen by the first look.
    let is_pending = src.data.state.lock().next_pending(0) == Some(0);
    let is_small = src.attr.lock().attr.size <= BLOCK;
    let first = Walk::new(&src.tree, src.ino, 0..BLOCK)?.next()?;
    let is_inline = first.is_some_and(|e| e.is_inline()) || (is_pending && is_small);
    Ok(if is_inline { BLOCK } else { 0 })
}

/// The ranges of a clone; `None` where there is nothing to clone.
fn check(
    src: &Arc<Inode>,
    src_offset: u64,
    dst: &Arc<Inode>,
    dst_offset: u64,
    len_bytes: u64,
) -> Result<Option<Ranges>> {
    let src_size = src.attr.lock().attr.size;
    let dst_size = dst.attr.lock().attr.size;
    if src_offset > src_size || dst_offset > FILE_BYTES_MAX || !may_share(src, dst) {
        return Err(Outcome::Invalid.into());
    }
    let len_bytes = if len_bytes == 0 {
        src_size - src_offset
    } else {
        len_bytes
    };
    if len_bytes == 0 {
        return Ok(None);
    }
    let ranges = Ranges::new(src_offset, src_size, dst_offset, len_bytes)?;
    let ends_with_source = ranges.src.end == src_size && ranges.dst.end >= dst_size;
    let overlaps = Arc::ptr_eq(src, dst) && ranges.overlap();
    // A clone has no part of it that would fit: Linux, too, calls one that goes beyond the largest
    // file invalid and not too big.
    let fits = ranges.dst.end <= FILE_BYTES_MAX;
    if !fits || overlaps || !(len_bytes.is_multiple_of(BLOCK) || ends_with_source) {
        return Err(Outcome::Invalid.into());
    }
    Ok(Some(ranges))
}

/// Would [`clone_range`] change anything, with the files as they are? Errors: its own, as far as
/// they are plain by now.
pub(crate) fn clones_anything(
    src: &Arc<Inode>,
    src_offset: u64,
    dst: &Arc<Inode>,
    dst_offset: u64,
    len_bytes: u64,
) -> Result<bool> {
    Ok(check(src, src_offset, dst, dst_offset, len_bytes)?.is_some())
}

/// Shares `len_bytes` of `src` with `dst` if all of them are the same (FIDEDUPERANGE): like the
/// kernel's btrfs, with both files locked meanwhile, however many they are. Times stay as they are.
///
/// `Invalid`: as [`clone_range`], and ranges beyond the end of either file.
pub(crate) fn dedupe_range(
    files: &Files,
    src: &Arc<Inode>,
    src_offset: u64,
    dst: &Arc<Inode>,
    dst_offset: u64,
    len_bytes: u64,
) -> Result<Dedupe> {
    files.store().txn().check_writable()?;
    let (reservation, _locks) = lock_with_space(files, src, dst, || inline_bytes(src, src_offset))?;
    let src_size = src.attr.lock().attr.size;
    let dst_size = dst.attr.lock().attr.size;
    let asked = Ranges::new(src_offset, src_size, dst_offset, len_bytes)?;
    if asked.dst.end > dst_size || !may_share(src, dst) {
        return Err(Outcome::Invalid.into());
    }
    let ends_with_both = asked.src.end == src_size && asked.dst.end == dst_size;
    let asked_bytes = asked.src.end - asked.src.start;
    let len_bytes = if ends_with_both {
        asked_bytes
    } else {
        round_down(asked_bytes)
    };
    if len_bytes == 0 {
        return Ok(Dedupe::Same(0));
    }
    let ranges = Ranges::new(src_offset, src_size, dst_offset, len_bytes)?;
    if Arc::ptr_eq(src, dst) && ranges.overlap() {
        return Err(Outcome::Invalid.into());
    }
    // What is compared is what will be shared: data in flight may be lost yet, and the target would
    // get what was there before.
    writeback::flush(files, src)?;
    if !is_same(files, src, dst, &ranges)? {
        return Ok(Dedupe::Differs);
    }
    share(files, src, dst, &ranges, Some(reservation), None, &mut 0)?;
    Ok(Dedupe::Same(len_bytes))
}

/// The caller holds both operation locks.
fn is_same(files: &Files, src: &Arc<Inode>, dst: &Arc<Inode>, ranges: &Ranges) -> Result<bool> {
    let len = (ranges.src.end - ranges.src.start).min(COPY_BYTES) as usize;
    let (mut left, mut right) = (vec![0; len], vec![0; len]);
    let mut done = 0;
    while ranges.src.start + done < ranges.src.end {
        let len = (ranges.src.end - ranges.src.start - done).min(COPY_BYTES) as usize;
        read::read_range(files, src, ranges.src.start + done, &mut left[..len])?;
        read::read_range(files, dst, ranges.dst.start + done, &mut right[..len])?;
        if left[..len] != right[..len] {
            return Ok(false);
        }
        done += len as u64;
    }
    Ok(true)
}

/// Both or none of the files have checksums.
fn may_share(src: &Arc<Inode>, dst: &Arc<Inode>) -> bool {
    src.flags() & flags::NODATASUM == dst.flags() & flags::NODATASUM
}

/// Shares whole blocks, step by step, and counts the bytes; the size of the target follows, and its
/// times where it is meant as a write.
fn share(
    files: &Files,
    src: &Arc<Inode>,
    dst: &Arc<Inode>,
    ranges: &Ranges,
    mut spare: Option<DataReservation>,
    change: Option<WriteCtx>,
    done_bytes: &mut u64,
) -> Result<()> {
    let blocks = ranges.src.start..round_up(ranges.src.end);
    let to_dst = |at: u64| at - blocks.start + ranges.dst.start;
    let mut pos = blocks.start;
    while pos < blocks.end {
        let meta = files.reserve(Budget::WRITE_EXTENT)?;
        let _flush = dst.data.flush.lock();
        let (mut extents, to) = some_extents(src, pos..blocks.end)?;
        // A hole or one large extent may take the place of very many: what goes has its bound, too.
        let (_, target_end) = some_extents(dst, to_dst(pos)..to_dst(to))?;
        let to = pos + (target_end - to_dst(pos));
        extents.retain(|e| e.start < to);
        if extents.iter().any(|e| e.is_inline() && e.end() > BLOCK) {
            return Err(too_long_inline(src));
        }
        let target = to_dst(pos)..to_dst(to);
        let shared = extents.iter().filter(|e| e.on_disk().is_some()).map(|extent| {
            let part = extent.part(&(pos..to));
            Extent {
                start: to_dst(part.start),
                generation: NOW,
                ..part
            }
        });
        let mut shared: Vec<Extent> = shared.collect();
        let unwritten = sharing::unwritten(&shared);
        let noted = sharing::in_place_candidates(&shared, [src, dst]);
        let inline = extents
            .iter()
            .any(Extent::is_inline)
            .then(|| inline_block(files, src))
            .transpose()?;
        // Inline content becomes dirty data. What it covers stays on disk until that is written: a
        // crash shows the one or the other.
        let replaced = match inline {
            Some(_) => (target.start + BLOCK).min(target.end)..target.end,
            None => target.clone(),
        };
        if !files.has_no_holes() {
            shared = with_holes(shared, &replaced);
        }
        let around = replaced.start.saturating_sub(1)..replaced.end + 1;
        let existing = Walk::new(&dst.tree, dst.ino, around)?.collect()?;
        let replacement = (!replaced.is_empty()).then_some(Replacement {
            range: replaced.clone(),
            extents: shared,
        });
        let changed = Change {
            plan: replace::plan_checked(&dst.tree, dst.ino, &existing, replacement.as_slice())?,
            ..Change::default()
        };
        let changes_blocks = changed.plan.nbytes != 0;
        items::apply(files, dst, changed, meta, |attr, state| {
            sharing::note_shared(files, &noted);
            // A block that gets inline content stays as dirty, and as appended, as it is.
            forget_dirty(files, dst, state, replaced);
            if let Some(content) = inline {
                let dirtied = state.dirty.write(target.start, &content);
                let end = (target.start + BLOCK).min(ranges.dst.end);
                state.append(attr.attr.size, target.start, end);
                note_dirty(files, dst, state, spare.take(), dirtied);
            }
            attr.attr.size = attr.attr.size.max(target.end.min(ranges.dst.end));
            if !unwritten.is_empty() {
                attr.attr.flags |= flags::PREALLOC;
            }
            match change {
                Some(ctx) => touch(files, attr, ctx),
                // A dedupe leaves the contents, and may put blocks in place of a hole.
                None if changes_blocks => dst.unasked.note(),
                None => {}
            }
            attr.update_disk_size(state, false);
        });
        pos = to;
        *done_bytes = pos.min(ranges.src.end) - blocks.start;
    }
    Ok(())
}

/// Inline data of more than a block is a stranger's: it can be read and dropped, but not moved.
pub(super) fn too_long_inline(inode: &Inode) -> Error {
    inline_beyond_block(&inode.tree, inode.ino)
}

pub(super) fn inline_beyond_block(tree: &Tree, ino: ObjectId) -> Error {
    Error::Store(StoreError::CorruptTree {
        tree: tree.id(),
        what: format!("inode {ino}: more than a block of inline data"),
    })
}

/// Inline data is copied, not shared.
fn inline_block(files: &Files, src: &Arc<Inode>) -> Result<Vec<u8>> {
    let mut content = vec![0; BLOCK as usize];
    read::read_range(files, src, 0, &mut content)?;
    let size = src.attr.lock().attr.size.min(BLOCK) as usize;
    content[size..].fill(0);
    Ok(content)
}

/// As many extents of a range as one step moves, and how far they reach.
fn some_extents(inode: &Arc<Inode>, range: Range<u64>) -> Result<(Vec<Extent>, u64)> {
    let mut walk = Walk::new(&inode.tree, inode.ino, range.clone())?;
    let mut found: Vec<Extent> = Vec::new();
    while let Some(extent) = walk.next()? {
        if found.len() == STEP_EXTENTS_MAX {
            return Ok((found, extent.start));
        }
        found.push(extent);
    }
    Ok((found, range.end))
}

/// Explicit holes between extents, for volumes that want them.
fn with_holes(extents: Vec<Extent>, range: &Range<u64>) -> Vec<Extent> {
    let mut all = Vec::with_capacity(extents.len() * 2);
    let mut pos = range.start;
    let hole = |from: u64, to: u64| Extent {
        start: from,
        len_bytes: to - from,
        generation: NOW,
        kind: Kind::Hole,
    };
    for extent in extents {
        if extent.start > pos {
            all.push(hole(pos, extent.start));
        }
        pos = extent.end();
        all.push(extent);
    }
    if pos < range.end {
        all.push(hole(pos, range.end));
    }
    all
}

/// [`copy_as`] with the right to keep set-id bits.
#[cfg(test)]
pub(crate) fn copy_range(
    files: &Files,
    src: &Arc<Inode>,
    src_offset: u64,
    dst: &Arc<Inode>,
    dst_offset: u64,
    len_bytes: u64,
) -> Result<u64> {
    copy_as(
        files,
        (src, src_offset),
        (dst, dst_offset),
        len_bytes,
        WriteCtx::default(),
    )
}

/// Copies within the volume: whole blocks are shared where the offsets allow it, the rest is
/// copied. Returns the bytes copied, fewer only at the end of the source or of the largest file, or
/// before an error. `ctx` says which set-id bits of the target go.
///
/// `Invalid`: overlapping ranges of one file, and offsets behind those of every file; `Overflow`:
/// an end behind all numbers; `FileTooBig`: no byte fits. As copy_file_range(2) has them.
pub(crate) fn copy_as(
    files: &Files,
    (src, src_offset): (&Arc<Inode>, u64),
    (dst, dst_offset): (&Arc<Inode>, u64),
    len_bytes: u64,
    ctx: WriteCtx,
) -> Result<u64> {
    let copy = |from: u64, to: u64, len: u64| copy(files, (src, from), (dst, to), len, ctx);
    let len_bytes = copied_bytes((src, src_offset), (dst, dst_offset), len_bytes)?;
    if len_bytes == 0 {
        return Ok(0);
    }
    let src_size = src.attr.lock().attr.size;
    let (src_end, dst_end) = (src_offset + len_bytes, dst_offset + len_bytes);
    let from = round_up(src_offset);
    let dst_size = dst.attr.lock().attr.size;
    let to = if src_end == src_size && dst_end >= dst_size {
        src_end
    } else {
        round_down(src_end)
    };
    let is_congruent = (src_offset % BLOCK) == (dst_offset % BLOCK);
    if !is_congruent || from >= to || !may_share(src, dst) {
        return copy(src_offset, dst_offset, len_bytes);
    }
    let head = from - src_offset;
    if head > 0 {
        let copied = copy(src_offset, dst_offset, head)?;
        if copied < head {
            return Ok(copied);
        }
    }
    let mut shared_bytes = 0;
    let (src_at, dst_at) = ((src, from), (dst, dst_offset + head));
    match clone_counted(files, src_at, dst_at, to - from, ctx, &mut shared_bytes) {
        Ok(()) => {}
        // A size changed in between.
        Err(crate::Error::Outcome(Outcome::Invalid)) => {
            return Ok(head + copy(from, dst_offset + head, src_end - from)?);
        }
        Err(error) if head + shared_bytes == 0 => return Err(error),
        // What is there is reported, or a front end that caches the target goes on showing the old
        // contents.
        Err(_) => return Ok(head + shared_bytes),
    }
    let shared = to - src_offset;
    match copy(to, dst_offset + shared, src_end - to) {
        Ok(tail) => Ok(shared + tail),
        Err(error) => {
            // A short copy, as after an error in the middle of a write: the next call reports the
            // error.
            tracing::debug!(%error, "the tail of a copy");
            Ok(shared)
        }
    }
}

/// What [`copy_as`] would copy, with the files as they are, if nothing fails. Errors: its own, as
/// far as they are plain by now.
pub(crate) fn copied_bytes(
    (src, src_offset): (&Arc<Inode>, u64),
    (dst, dst_offset): (&Arc<Inode>, u64),
    len_bytes: u64,
) -> Result<u64> {
    let offset_max = src_offset.max(dst_offset);
    if offset_max.checked_add(len_bytes).is_none() {
        return Err(Outcome::Overflow.into());
    }
    if offset_max > FILE_BYTES_MAX {
        return Err(Outcome::Invalid.into());
    }
    if dst_offset == FILE_BYTES_MAX {
        return Err(Outcome::FileTooBig.into());
    }
    let left_bytes = src.attr.lock().attr.size.saturating_sub(src_offset);
    let len_bytes = len_bytes.min(left_bytes).min(FILE_BYTES_MAX - dst_offset);
    let overlaps = src_offset < dst_offset + len_bytes && dst_offset < src_offset + len_bytes;
    if Arc::ptr_eq(src, dst) && len_bytes > 0 && overlaps {
        return Err(Outcome::Invalid.into());
    }
    Ok(len_bytes)
}

fn copy(
    files: &Files,
    (src, src_offset): (&Arc<Inode>, u64),
    (dst, dst_offset): (&Arc<Inode>, u64),
    len_bytes: u64,
    ctx: WriteCtx,
) -> Result<u64> {
    let mut buf = vec![0; len_bytes.min(COPY_BYTES) as usize];
    let mut done = 0;
    while done < len_bytes {
        let want = (len_bytes - done).min(COPY_BYTES) as usize;
        let result = read::read(files, src, src_offset + done, &mut buf[..want]).and_then(|got| {
            if got == 0 {
                Ok(0)
            } else {
                write(files, dst, dst_offset + done, &buf[..got], ctx)
            }
        });
        match result {
            Ok(0) => break,
            Ok(written) => done += written as u64,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}
