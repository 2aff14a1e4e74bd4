//! Writing into memory: a write makes blocks dirty, changes size and times, and is done.

use std::sync::Arc;

use cowshed_vfs::perm::Strips;
use cowshed_vfs::{Error as Outcome, FileKind, PERM_MASK, Timestamp};

use super::items::{self, Change, NOW};
use super::replace::{self, Replacement};
use super::{place, read, truncate, writeback};
use crate::block::{BLOCK, FILE_BYTES_MAX, round_down, round_up};
use crate::error::{Error, Result, StoreError};
use crate::extent::{Extent, Kind, Walk};
use crate::files::Files;
use crate::object::{Inode, InodeState};
use crate::pagecache::DataState;
use btrfs_store::space::{Budget, DataReservation};

/// How late the kernel sends a page that a mapping made dirty, at most: it looks every 5 seconds
/// for what is dirty for 30.
const PAGES_LATE_SECONDS: i64 = 40;

/// Bytes of one write that are copied under the locks at once.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// How a write is meant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteCtx {
    /// To the end as it is when the write happens, whatever the offset says.
    pub(crate) append: bool,
    /// Set-id bits that go.
    pub(crate) strips: Strips,
    /// Pages that changed through a mapping. FUSE does not report when a mapped page was dirtied,
    /// so the times are those of the page's arrival, unless a caller has set them since.
    pub(crate) from_cache: bool,
}

/// What is to be done before contents change: called once, with the operation locks held, when the
/// call has been judged and has the space that it needs. Where it fails itself, contents are as
/// they were.
pub(crate) type First<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

impl WriteCtx {
    /// A change without the right to keep set-id bits.
    pub(crate) const STRIPPING: Self = Self::stripping(Strips::SetIds);

    /// A change that takes set-id bits away, and nothing else to say about it.
    pub(crate) const fn stripping(strips: Strips) -> Self {
        Self {
            append: false,
            strips,
            from_cache: false,
        }
    }
}

/// Writes; returns how much: less than all where an error struck after the first byte, or the
/// largest file ends behind what is appended.
///
/// `FileTooBig`: nothing fits. At an offset that is given, nothing but all of it does: Linux
/// refuses such writes before they come here.
///
/// Where much is dirty already, the writer writes back before it returns.
pub(crate) fn write(files: &Files, inode: &Arc<Inode>, offset: u64, data: &[u8], ctx: WriteCtx) -> Result<usize> {
    files.store().txn().check_writable()?;
    if files.store().volume().is_read_only() {
        return Err(Error::Store(StoreError::ReadOnly));
    }
    let mut written = 0;
    while written < data.len() {
        // The first piece ends where later ones are aligned.
        let skew = offset.wrapping_add(written as u64) % BLOCK;
        let len = (data.len() - written).min(PIECE_BYTES_MAX - skew as usize);
        let at = offset.saturating_add(written as u64);
        let piece = &data[written..written + len];
        let result = match write_piece(files, inode, at, piece, ctx) {
            Err(Error::Store(StoreError::NoSpace)) => write_on_full(files, inode, at, piece, ctx),
            other => other,
        };
        match result {
            Ok(taken) => written += taken,
            Err(error) if written == 0 => return Err(error),
            Err(_) => break,
        }
        writeback::throttle(files, inode);
    }
    Ok(written)
}

/// What of a write the largest file has room for: all of it, or as on Linux the beginning of what
/// is appended.
fn fitting(at: u64, data: &[u8], ctx: WriteCtx) -> Result<&[u8]> {
    let room = FILE_BYTES_MAX.saturating_sub(at);
    let fits = if ctx.append {
        room > 0
    } else {
        room >= data.len() as u64
    };
    if !fits {
        return Err(Outcome::FileTooBig.into());
    }
    Ok(&data[..room.min(data.len() as u64) as usize])
}

fn write_piece(files: &Files, inode: &Arc<Inode>, offset: u64, data: &[u8], ctx: WriteCtx) -> Result<usize> {
    // Wherever it falls, it touches no more blocks than these, and zeroing behind the old end
    // touches one more.
    let mut reservation = files
        .store()
        .space()
        .reserve_data(round_up(data.len() as u64) + 2 * BLOCK)?;
    let _op = inode.lock.write();
    let size = inode.attr.lock().attr.size;
    let at = if ctx.append { size } else { offset };
    let data = fitting(at, data, ctx)?;
    let end = at + data.len() as u64;
    if at > size {
        grow(files, inode, size, round_down(at), reservation.split(BLOCK))?;
    }
    loop {
        let edges = load_edges(files, inode, at, end, size)?;
        let mut attr = inode.attr.lock();
        let mut state = inode.data.state.lock();
        // Write-back may have taken a dirty block since we looked: then it is to be loaded after
        // all.
        let is_held =
            |block: u64| edges.iter().any(|(known, _)| *known == block) || state.dirty.next_dirty(block) == Some(block);
        if !edge_blocks(at, end, size).all(is_held) {
            continue;
        }
        let mut dirtied = 0;
        for (block, content) in &edges {
            dirtied += state.dirty.write(*block, content);
        }
        dirtied += state.dirty.write(at, data);
        state.append(size, at, end);
        note_dirty(files, inode, &mut state, Some(reservation), dirtied);
        attr.attr.size = size.max(end);
        items::noting_mode(inode, &mut attr, |attr| touch(files, attr, ctx));
        return Ok(data.len());
    }
}

/// Writes on a volume that has no space for it: where nothing has to be allocated, which is what
/// preallocation is for, and what files without copy on write can rely on.
fn write_on_full(files: &Files, inode: &Arc<Inode>, offset: u64, data: &[u8], ctx: WriteCtx) -> Result<usize> {
    let _op = inode.lock.write();
    let size = inode.attr.lock().attr.size;
    let at = if ctx.append { size } else { offset };
    let data = fitting(at, data, ctx)?;
    let end = at + data.len() as u64;
    let start = round_down(at);
    if !place::has_place(files, inode, &(start..round_up(end)))? {
        return Err(Error::Store(StoreError::NoSpace));
    }
    writeback::flush(files, inode)?;
    if start > size {
        // Zeros behind the old end would need a block.
        if !size.is_multiple_of(BLOCK) && old_end_must_be_rewritten(files, inode, size)? {
            return Err(Error::Store(StoreError::NoSpace));
        }
        clear_gap(files, inode, size, start)?;
    }
    let mut blocks = vec![0; (round_up(end) - start) as usize];
    for block in edge_blocks(at, end, size) {
        let content = load_clean_block(files, inode, block, size)?.ok_or(Error::Store(StoreError::NoSpace))?;
        blocks[(block - start) as usize..][..BLOCK as usize].copy_from_slice(&content);
    }
    blocks[(at - start) as usize..][..data.len()].copy_from_slice(data);
    writeback::write_in_place(files, inode, start, blocks, |attr, _| {
        attr.attr.size = attr.attr.size.max(end);
        touch(files, attr, ctx);
    })?;
    Ok(data.len())
}

/// Dirty data was added to the state, `dirtied` bytes of it new.
pub(super) fn note_dirty(
    files: &Files,
    inode: &Arc<Inode>,
    state: &mut DataState,
    reservation: Option<DataReservation>,
    dirtied: u64,
) {
    if let Some(reservation) = reservation {
        assert!(reservation.bytes() >= dirtied, "dirty data has its space reserved");
        state.keep(reservation, dirtied);
    }
    files.data().add_dirty(dirtied);
    files.data().list(inode, state);
}

/// Times and set-id bits after a change of content.
pub(super) fn touch(files: &Files, attr: &mut InodeState, ctx: WriteCtx) {
    let now = files.store().env().now();
    let is_old = |set_at: Timestamp| (set_at.secs..set_at.secs + PAGES_LATE_SECONDS).contains(&now.secs);
    if !(ctx.from_cache && attr.times_set.as_deref().copied().is_some_and(is_old)) {
        (attr.attr.mtime, attr.attr.ctime) = (now, now);
        attr.times_set = None;
    }
    attr.attr.sequence = attr.attr.sequence.wrapping_add(1);
    if ctx.strips != Strips::Nothing && attr.attr.kind() == Some(FileKind::Regular) {
        let perm = ctx.strips.apply(attr.attr.mode & PERM_MASK);
        attr.attr.mode = (attr.attr.mode & !PERM_MASK) | perm;
    }
}

/// The blocks that a write covers in part and whose other content matters.
pub(super) fn edge_blocks(at: u64, end: u64, size: u64) -> impl Iterator<Item = u64> {
    let first = (!at.is_multiple_of(BLOCK) && round_down(at) < size).then(|| round_down(at));
    let last = (!end.is_multiple_of(BLOCK) && end < size).then(|| round_down(end));
    first.into_iter().chain(last.filter(move |last| Some(*last) != first))
}

/// What the blocks at both ends of a write hold now, as far as they are not dirty.
fn load_edges(files: &Files, inode: &Arc<Inode>, at: u64, end: u64, size: u64) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut edges = Vec::new();
    for block in edge_blocks(at, end, size) {
        if let Some(content) = load_clean_block(files, inode, block, size)? {
            edges.push((block, content));
        }
    }
    Ok(edges)
}

/// A block as it is, zero behind `size`; `None` where it is dirty.
pub(super) fn load_clean_block(files: &Files, inode: &Arc<Inode>, block: u64, size: u64) -> Result<Option<Vec<u8>>> {
    if inode.data.state.lock().dirty.next_dirty(block) == Some(block) {
        return Ok(None);
    }
    let mut content = vec![0; BLOCK as usize];
    read::read_range(files, inode, block, &mut content)?;
    let valid = size.saturating_sub(block).min(BLOCK) as usize;
    content[valid..].fill(0);
    Ok(Some(content))
}

/// Makes a file ready for `new_size`, beyond its `size`: what lies behind the old end in its block
/// is zero and not in inline data any more, no data is left in the gap, and it has hole items where
/// the volume wants them. The caller holds the operation lock for writing and sets the size.
pub(super) fn grow(
    files: &Files,
    inode: &Arc<Inode>,
    size: u64,
    new_size: u64,
    reservation: DataReservation,
) -> Result<()> {
    if !size.is_multiple_of(BLOCK) {
        settle_old_end(files, inode, size, reservation)?;
    }
    clear_gap(files, inode, size, new_size)
}

/// Data that [`grow`] writes: zeros behind an end in the midst of a block.
pub(super) fn old_end_bytes(size: u64, new_size: u64) -> u64 {
    if new_size > size && !size.is_multiple_of(BLOCK) {
        BLOCK
    } else {
        0
    }
}

/// The part of [`grow`] behind the block of the old end.
fn clear_gap(files: &Files, inode: &Arc<Inode>, size: u64, new_size: u64) -> Result<()> {
    truncate::drop_left_behind(files, inode, round_up(size)..round_up(new_size))?;
    if !files.has_no_holes() && round_up(new_size) > round_up(size) {
        put_holes(files, inode, round_up(size), round_up(new_size))?;
    }
    Ok(())
}

/// The zeros behind an end in the midst of a block come into the file: they are on disk, or dirty
/// and *appended*. The item's size must not go beyond inline data that is still there, nor show
/// what a truncation cut off.
fn settle_old_end(files: &Files, inode: &Arc<Inode>, size: u64, reservation: DataReservation) -> Result<()> {
    let block = round_down(size);
    {
        let mut state = inode.data.state.lock();
        if state.dirty.next_dirty(block) == Some(block) {
            state.append(size, block, round_up(size));
            return Ok(());
        }
    }
    // It is not made dirty meanwhile: that takes the operation lock.
    if old_end_must_be_rewritten(files, inode, size)?
        && let Some(content) = load_clean_block(files, inode, block, size)?
    {
        let mut state = inode.data.state.lock();
        let dirtied = state.dirty.write(block, &content);
        state.append(size, block, round_up(size));
        note_dirty(files, inode, &mut state, Some(reservation), dirtied);
    }
    Ok(())
}

/// The block at the end of the file is inline data, or has something behind the end (as mmap may
/// leave it).
pub(super) fn old_end_must_be_rewritten(files: &Files, inode: &Arc<Inode>, size: u64) -> Result<bool> {
    let block = round_down(size);
    {
        let state = inode.data.state.lock();
        if state.dirty.next_dirty(block) == Some(block) {
            return Ok(false);
        }
        // In flight: it may become inline data.
        if state.next_pending(block) == Some(block) {
            return Ok(true);
        }
    }
    let mut walk = Walk::new(&inode.tree, inode.ino, block..block + BLOCK)?;
    let Some(extent) = walk.next()? else { return Ok(false) };
    if extent.is_inline() {
        return Ok(true);
    }
    let mut content = vec![0; BLOCK as usize];
    read::read_range(files, inode, block, &mut content)?;
    Ok(content[(size - block) as usize..].iter().any(|b| *b != 0))
}

/// Hole items for what has no items in a range, on volumes without NO_HOLES.
pub(super) fn put_holes(files: &Files, inode: &Arc<Inode>, from: u64, to: u64) -> Result<()> {
    let reservation = files.reserve(Budget::WRITE_EXTENT)?;
    let _flush = inode.data.flush.lock();
    // One block more on each side: holes are joined with holes.
    let around = from.saturating_sub(1)..to.saturating_add(1);
    let existing = Walk::new(&inode.tree, inode.ino, around)?.collect()?;
    let replacements = hole_replacements(&existing, from, to);
    if replacements.is_empty() {
        return Ok(());
    }
    let plan = replace::plan(&existing, &replacements);
    let change = Change {
        plan,
        ..Change::default()
    };
    items::apply(files, inode, change, reservation, |attr, state| {
        attr.update_disk_size(state, false)
    });
    Ok(())
}

/// Explicit holes for the gaps between `existing` in `from..to`.
pub(super) fn hole_replacements(existing: &[Extent], from: u64, to: u64) -> Vec<Replacement> {
    let mut out = Vec::new();
    let mut pos = from;
    let end = std::iter::once(to..to);
    for range in existing.iter().map(Extent::range).chain(end) {
        let stop = range.start.min(to);
        if stop > pos {
            let hole = Extent {
                start: pos,
                len_bytes: stop - pos,
                generation: NOW,
                kind: Kind::Hole,
            };
            out.push(Replacement {
                range: pos..stop,
                extents: vec![hole],
            });
        }
        pos = pos.max(range.end);
    }
    out
}
