//! Preallocation, punching holes, zeroing ranges.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use cowshed_vfs::{Error as Outcome, FallocateFlags};

use super::data::update_disk_size;
use super::extent::{Extent, Kind, Walk};
use super::items::{self, Change, NOW};
use super::place::new_extent;
use super::replace::{self, Replacement};
use super::truncate::drop_range;
use super::write::{WriteCtx, grow, load_clean_block, note_dirty, touch};
use super::{BLOCK, FILE_BYTES_MAX, round_down, round_up};
use crate::engine::Engine;
use crate::error::Result;
use crate::inode::{Inode, flags};
use crate::space::{Budget, DataReservation};

/// Holes filled in one step.
const STEP_HOLES_MAX: usize = 64;
/// The largest extent that is preallocated at once.
const PREALLOC_BYTES_MAX: u64 = 256 << 20;

/// Allocates, punches or zeroes a range. Takes the operation lock itself.
pub fn fallocate(engine: &Engine, inode: &Arc<Inode>, mode: FallocateFlags, offset: u64, len_bytes: u64) -> Result<()> {
    use FallocateFlags as F;
    let is_punch = mode.contains(F::PUNCH_HOLE);
    let is_zero = mode.contains(F::ZERO_RANGE);
    if !(F::KEEP_SIZE | F::PUNCH_HOLE | F::ZERO_RANGE).contains(mode)
        || (is_punch && (is_zero || !mode.contains(F::KEEP_SIZE)))
    {
        return Err(Outcome::NotSupported.into());
    }
    if len_bytes == 0 {
        return Err(Outcome::Invalid.into());
    }
    let end = offset
        .checked_add(len_bytes)
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or(Outcome::FileTooBig)?;
    engine.txn.check_writable()?;
    let edges = engine.space.reserve_data(3 * BLOCK)?;
    let _op = inode.lock.write();
    if is_punch {
        return punch(engine, inode, offset..end, edges);
    }
    allocate(engine, inode, offset..end, mode, edges)
}

/// Adds zeros where blocks are covered in part, drops what is covered as a whole.
fn punch(engine: &Engine, inode: &Arc<Inode>, range: Range<u64>, mut edges: DataReservation) -> Result<()> {
    zero_edges(engine, inode, &range, &mut edges)?;
    let inner = round_up(range.start)..round_down(range.end);
    // A last block that ends with the file is covered as a whole.
    let size = inode.attr.lock().attr.size;
    let inner_end = if range.end >= size {
        round_up(range.end)
    } else {
        inner.end
    };
    if inner.start < inner_end {
        drop_range(engine, inode, inner.start..inner_end)?;
    }
    finish(engine, inode, None)
}

/// Zeroes the parts of blocks that the range covers in part, where they hold data.
fn zero_edges(engine: &Engine, inode: &Arc<Inode>, range: &Range<u64>, edges: &mut DataReservation) -> Result<()> {
    let size = inode.attr.lock().attr.size;
    let first = round_down(range.start);
    let last = round_down(range.end);
    let mut blocks = Vec::new();
    if !range.start.is_multiple_of(BLOCK) {
        blocks.push(first);
    }
    if !range.end.is_multiple_of(BLOCK) && range.end < size && !blocks.contains(&last) {
        blocks.push(last);
    }
    for block in blocks.into_iter().filter(|block| *block < size) {
        let part = range.start.max(block)..range.end.min(block + BLOCK);
        zero_part(engine, inode, block, &part, size, edges)?;
    }
    Ok(())
}

fn zero_part(
    engine: &Engine,
    inode: &Arc<Inode>,
    block: u64,
    part: &Range<u64>,
    size: u64,
    edges: &mut DataReservation,
) -> Result<()> {
    let zeros = [0; BLOCK as usize];
    let zeros = &zeros[..(part.end - part.start) as usize];
    loop {
        let content = load_clean_block(engine, inode, block, size)?;
        if content.as_ref().is_some_and(|c| c.iter().all(|b| *b == 0)) {
            return Ok(());
        }
        let mut state = inode.data.state.lock();
        let dirtied = match &content {
            Some(content) => state.dirty.write(block, content),
            None if state.dirty.next_dirty(block) == Some(block) => 0,
            // Taken by write-back since we looked.
            None => continue,
        };
        state.dirty.write(part.start, zeros);
        note_dirty(engine, inode, &mut state, Some(edges.split(BLOCK)), dirtied);
        return Ok(());
    }
}

fn allocate(
    engine: &Engine,
    inode: &Arc<Inode>,
    range: Range<u64>,
    mode: FallocateFlags,
    mut edges: DataReservation,
) -> Result<()> {
    let size = inode.attr.lock().attr.size;
    let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
    let new_size = (!keeps_size && range.end > size).then_some(range.end);
    let blocks = round_down(range.start)..round_up(range.end);
    // What is zeroed gets new space: the old is free only after the next commit. All that can fail comes before that.
    let is_zero = mode.contains(FallocateFlags::ZERO_RANGE);
    let wanted_bytes = if is_zero {
        blocks.end - blocks.start
    } else {
        hole_bytes(inode, &blocks)?
    };
    let mut reservation = engine.space.reserve_data(wanted_bytes)?;
    if new_size.is_some() {
        grow(
            engine,
            inode,
            size,
            round_down(range.start).max(size),
            edges.split(BLOCK),
        )?;
    }
    if is_zero {
        zero_edges(engine, inode, &range, &mut edges)?;
        let inner_end = if range.end >= size {
            blocks.end
        } else {
            round_down(range.end)
        };
        let inner = round_up(range.start)..inner_end;
        if inner.start < inner.end {
            drop_range(engine, inode, inner)?;
        }
    }
    fill_holes(engine, inode, blocks, &mut reservation)?;
    finish(engine, inode, new_size)
}

/// The parts of a range that have no extent, at most `max` of them, and how far they were looked for.
fn holes(inode: &Arc<Inode>, range: &Range<u64>, max: usize) -> Result<(Vec<Range<u64>>, u64)> {
    let mut walk = Walk::new(&inode.tree, inode.ino, range.clone())?;
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut pos = range.start;
    while let Some(extent) = walk.next()? {
        if matches!(extent.kind, Kind::Hole) {
            continue;
        }
        if extent.start > pos {
            found.push(pos..extent.start);
        }
        pos = pos.max(extent.end());
        if found.len() >= max {
            return Ok((found, pos.min(range.end)));
        }
    }
    if pos < range.end {
        found.push(pos..range.end);
    }
    Ok((found, range.end))
}

fn hole_bytes(inode: &Arc<Inode>, range: &Range<u64>) -> Result<u64> {
    let (found, _) = holes(inode, range, usize::MAX)?;
    Ok(found.iter().map(|hole| hole.end - hole.start).sum())
}

/// Preallocated extents for all holes of a range. Write-back may fill some meanwhile: that is as good.
fn fill_holes(engine: &Engine, inode: &Arc<Inode>, range: Range<u64>, reservation: &mut DataReservation) -> Result<()> {
    let mut pos = range.start;
    while pos < range.end {
        let meta = engine.reserve(Budget::WRITE_EXTENT)?;
        let _flush = inode.data.flush.lock();
        let (found, to) = holes(inode, &(pos..range.end), STEP_HOLES_MAX)?;
        let mut fresh = HashSet::new();
        let mut replacements = Vec::new();
        let result = found.iter().try_for_each(|hole| -> Result<()> {
            let mut at = hole.start;
            while at < hole.end {
                let want = (hole.end - at).min(PREALLOC_BYTES_MAX);
                let (addr, len_bytes) = engine.space.alloc_data(reservation, want)?;
                fresh.insert(addr);
                let kind = Kind::Disk(new_extent(addr, len_bytes, true));
                let extent = Extent {
                    start: at,
                    len_bytes,
                    generation: NOW,
                    kind,
                };
                replacements.push(Replacement {
                    range: extent.range(),
                    extents: vec![extent],
                });
                at += len_bytes;
            }
            Ok(())
        });
        let around = pos.saturating_sub(1)..to.saturating_add(1);
        let existing = Walk::new(&inode.tree, inode.ino, around)?.collect()?;
        let plan = replace::plan(&existing, &replacements);
        // What was allocated before a failure stays, as a shorter fallocate would have left it.
        items::apply(
            engine,
            inode,
            Change {
                plan,
                fresh,
                ..Change::default()
            },
            meta,
            |attr, state| {
                attr.attr.flags |= flags::PREALLOC;
                update_disk_size(state, attr, false);
            },
        );
        result?;
        pos = to;
    }
    Ok(())
}

/// Times, and the size where it changes.
fn finish(engine: &Engine, inode: &Arc<Inode>, new_size: Option<u64>) -> Result<()> {
    let meta = engine.reserve(Budget::SETATTR)?;
    let _flush = inode.data.flush.lock();
    items::apply(engine, inode, Change::default(), meta, |attr, state| {
        if let Some(size) = new_size {
            attr.attr.size = size.max(attr.attr.size);
        }
        touch(engine, attr, WriteCtx::default());
        update_disk_size(state, attr, false);
    });
    Ok(())
}
