//! Clones: ranges of one file that share their extents with another, or with another range of the same.

use std::ops::Range;
use std::sync::Arc;

use cowshed_vfs::Error as Outcome;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use super::data::update_disk_size;
use super::extent::{Extent, Kind, Walk};
use super::items::{self, Change, NOW};
use super::replace::{self, Replacement};
use super::shared::has_no_holes;
use super::truncate::forget_dirty;
use super::write::{WriteCtx, grow, note_dirty, touch, write};
use super::{BLOCK, FILE_BYTES_MAX, read, round_down, round_up, writeback};
use crate::engine::Engine;
use crate::error::Result;
use crate::inode::{Inode, flags};
use crate::space::Budget;

/// Extents shared in one step.
const STEP_EXTENTS_MAX: usize = 128;
/// Bytes copied at once where sharing is impossible.
const COPY_BYTES: u64 = 1 << 20;

/// Operation locks of source and target.
struct Locks<'a> {
    _src: Option<RwLockReadGuard<'a, ()>>,
    _dst: RwLockWriteGuard<'a, ()>,
}

fn lock_both<'a>(src: &'a Arc<Inode>, dst: &'a Arc<Inode>) -> Locks<'a> {
    if Arc::ptr_eq(src, dst) {
        return Locks {
            _src: None,
            _dst: dst.lock.write(),
        };
    }
    if (src.tree.id(), src.ino) < (dst.tree.id(), dst.ino) {
        let src = src.lock.read();
        Locks {
            _src: Some(src),
            _dst: dst.lock.write(),
        }
    } else {
        let dst = dst.lock.write();
        Locks {
            _src: Some(src.lock.read()),
            _dst: dst,
        }
    }
}

/// Shares `len_bytes` of `src` with `dst` (FICLONERANGE): offsets aligned to blocks, and the end too, unless it is the
/// end of the source and not before that of the target. Zero bytes mean all to the end of the source.
///
/// `Invalid`: misaligned, beyond the end of the source, overlapping in one file, or only one of both has checksums.
pub fn clone_range(
    engine: &Engine,
    src: &Arc<Inode>,
    src_offset: u64,
    dst: &Arc<Inode>,
    dst_offset: u64,
    len_bytes: u64,
) -> Result<()> {
    engine.txn.check_writable()?;
    let mut reservation = engine.space.reserve_data(2 * BLOCK)?;
    let _locks = lock_both(src, dst);
    let src_size = src.attr.lock().attr.size;
    let dst_size = dst.attr.lock().attr.size;
    let len_bytes = if len_bytes == 0 {
        src_size.saturating_sub(src_offset)
    } else {
        len_bytes
    };
    if len_bytes == 0 {
        return Ok(());
    }
    let src_end = src_offset
        .checked_add(len_bytes)
        .filter(|end| *end <= src_size)
        .ok_or(Outcome::Invalid)?;
    let dst_end = dst_offset
        .checked_add(len_bytes)
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or(Outcome::FileTooBig)?;
    let ends_with_source = src_end == src_size && dst_end >= dst_size;
    let is_aligned =
        (src_offset | dst_offset).is_multiple_of(BLOCK) && (len_bytes.is_multiple_of(BLOCK) || ends_with_source);
    let overlaps = Arc::ptr_eq(src, dst) && src_offset < dst_end && dst_offset < src_end;
    if !is_aligned || overlaps || !may_share(src, dst) {
        return Err(Outcome::Invalid.into());
    }
    // Nobody writes to the source while we hold its lock, so that it stays clean.
    writeback::flush(engine, src)?;
    if dst_offset > dst_size {
        grow(engine, dst, dst_size, dst_offset, reservation.split(BLOCK))?;
    }
    let blocks = src_offset..round_up(src_end);
    share(engine, src, &blocks, dst, dst_offset, dst_end, &mut Some(reservation))
}

/// Both or none of the files have checksums.
fn may_share(src: &Arc<Inode>, dst: &Arc<Inode>) -> bool {
    src.flags() & flags::NODATASUM == dst.flags() & flags::NODATASUM
}

/// Shares whole blocks, step by step; the size of the target follows.
fn share(
    engine: &Engine,
    src: &Arc<Inode>,
    blocks: &Range<u64>,
    dst: &Arc<Inode>,
    dst_offset: u64,
    dst_end: u64,
    spare: &mut Option<crate::space::DataReservation>,
) -> Result<()> {
    let to_dst = |at: u64| at - blocks.start + dst_offset;
    let mut pos = blocks.start;
    while pos < blocks.end {
        let meta = engine.reserve(Budget::WRITE_EXTENT)?;
        let _flush = dst.data.flush.lock();
        let (extents, to) = some_extents(src, pos..blocks.end)?;
        let target = to_dst(pos)..to_dst(to);
        let shared = extents.iter().filter(|e| e.is_data() && !e.is_inline()).map(|extent| {
            let part = extent.part(&(pos..to));
            Extent {
                start: to_dst(part.start),
                generation: NOW,
                ..part
            }
        });
        let mut shared: Vec<Extent> = shared.collect();
        if !has_no_holes(engine) {
            shared = with_holes(shared, &target);
        }
        let inline = extents
            .iter()
            .any(Extent::is_inline)
            .then(|| inline_block(engine, src))
            .transpose()?;
        let around = target.start.saturating_sub(1)..target.end + 1;
        let existing = Walk::new(&dst.tree, dst.ino, around)?.collect()?;
        let plan = replace::plan(
            &existing,
            &[Replacement {
                range: target.clone(),
                extents: shared,
            }],
        );
        items::apply(
            engine,
            dst,
            Change {
                plan,
                ..Change::default()
            },
            meta,
            |attr, state| {
                forget_dirty(engine, dst, state, target.clone());
                if let Some(content) = inline {
                    let dirtied = state.dirty.write(target.start, &content);
                    note_dirty(engine, dst, state, spare.take(), dirtied);
                }
                attr.attr.size = attr.attr.size.max(target.end.min(dst_end));
                touch(engine, attr, WriteCtx::default());
                update_disk_size(state, attr, false);
            },
        );
        pos = to;
    }
    Ok(())
}

/// Inline data is copied, not shared.
fn inline_block(engine: &Engine, src: &Arc<Inode>) -> Result<Vec<u8>> {
    let mut content = vec![0; BLOCK as usize];
    read::read_range(engine, src, 0, &mut content)?;
    let size = src.attr.lock().attr.size.min(BLOCK) as usize;
    content[size..].fill(0);
    Ok(content)
}

fn some_extents(src: &Arc<Inode>, range: Range<u64>) -> Result<(Vec<Extent>, u64)> {
    let mut walk = Walk::new(&src.tree, src.ino, range.clone())?;
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

/// Copies within the volume: whole blocks are shared where the offsets allow it, the rest is copied. Returns the bytes
/// copied, fewer only at the end of the source. `Invalid` for overlapping ranges of one file.
pub fn copy_range(
    engine: &Engine,
    src: &Arc<Inode>,
    src_offset: u64,
    dst: &Arc<Inode>,
    dst_offset: u64,
    len_bytes: u64,
) -> Result<u64> {
    let src_size = src.attr.lock().attr.size;
    let len_bytes = len_bytes.min(src_size.saturating_sub(src_offset));
    let dst_end = dst_offset
        .checked_add(len_bytes)
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or(Outcome::FileTooBig)?;
    if len_bytes == 0 {
        return Ok(0);
    }
    let src_end = src_offset + len_bytes;
    if Arc::ptr_eq(src, dst) && src_offset < dst_end && dst_offset < src_end {
        return Err(Outcome::Invalid.into());
    }
    let from = round_up(src_offset);
    let dst_size = dst.attr.lock().attr.size;
    let to = if src_end == src_size && dst_end >= dst_size {
        src_end
    } else {
        round_down(src_end)
    };
    let is_congruent = (src_offset % BLOCK) == (dst_offset % BLOCK);
    if !is_congruent || from >= to || !may_share(src, dst) {
        return copy(engine, src, src_offset, dst, dst_offset, len_bytes);
    }
    let head = from - src_offset;
    if head > 0 && copy(engine, src, src_offset, dst, dst_offset, head)? < head {
        return Ok(0);
    }
    match clone_range(engine, src, from, dst, dst_offset + head, to - from) {
        Ok(()) => {}
        // Somebody changed a size in between.
        Err(crate::Error::Outcome(Outcome::Invalid)) => {
            return Ok(head + copy(engine, src, from, dst, dst_offset + head, src_end - from)?);
        }
        Err(error) if head == 0 => return Err(error),
        Err(_) => return Ok(head),
    }
    let shared = to - src_offset;
    Ok(shared + copy(engine, src, to, dst, dst_offset + shared, src_end - to).unwrap_or(0))
}

fn copy(
    engine: &Engine,
    src: &Arc<Inode>,
    src_offset: u64,
    dst: &Arc<Inode>,
    dst_offset: u64,
    len_bytes: u64,
) -> Result<u64> {
    let mut buf = vec![0; len_bytes.min(COPY_BYTES) as usize];
    let mut done = 0;
    while done < len_bytes {
        let want = (len_bytes - done).min(COPY_BYTES) as usize;
        let result = read::read(engine, src, src_offset + done, &mut buf[..want]).and_then(|got| {
            if got == 0 {
                Ok(0)
            } else {
                write(engine, dst, dst_offset + done, &buf[..got], WriteCtx::default())
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
