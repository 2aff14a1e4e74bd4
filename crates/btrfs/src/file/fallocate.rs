//! Preallocation, punching holes, zeroing ranges.

use std::ops::Range;
use std::sync::Arc;

use cowshed_vfs::{Error as Outcome, FallocateFlags};

use super::items::{self, Change, NOW};
use super::place::new_extent;
use super::read;
use super::replace::{self, Replacement};
use super::truncate::{drop_left_behind, drop_range, forget_dirty};
use super::write::{First, WriteCtx, grow, load_clean_block, note_dirty, old_end_bytes, touch};
use crate::block::{BLOCK, FILE_BYTES_MAX, round_down, round_up};
use crate::error::Result;
use crate::extent::{Extent, Kind, Walk};
use crate::files::Files;
use crate::object::{Inode, flags};
use btrfs_store::space::{Budget, DataReservation, MetaReservation};

/// Holes filled in one step.
const STEP_HOLES_MAX: usize = 64;
/// Extents made in one step, which is what it has reserved for: of a hole there are many where free
/// space lies in small pieces.
const STEP_EXTENTS_MAX: usize = 64;
/// The largest extent that is preallocated at once.
const PREALLOC_BYTES_MAX: u64 = 256 << 20;

/// Allocates, punches or zeroes a range. Takes the operation lock itself.
#[cfg(test)]
pub(crate) fn fallocate(
    files: &Files,
    inode: &Arc<Inode>,
    mode: FallocateFlags,
    offset: u64,
    len_bytes: u64,
) -> Result<()> {
    fallocate_as(
        files,
        inode,
        mode,
        offset..offset.saturating_add(len_bytes),
        (WriteCtx::default(), Box::new(|| Ok(()))),
    )
}

/// As [`fallocate`]; it is said which set-id bits go, and what is done before contents change.
pub(crate) fn fallocate_as(
    files: &Files,
    inode: &Arc<Inode>,
    mode: FallocateFlags,
    range: Range<u64>,
    how: (WriteCtx, First<'_>),
) -> Result<()> {
    use FallocateFlags as F;
    let is_punch = mode.contains(F::PUNCH_HOLE);
    let is_zero = mode.contains(F::ZERO_RANGE);
    if !(F::KEEP_SIZE | F::PUNCH_HOLE | F::ZERO_RANGE).contains(mode)
        || (is_punch && (is_zero || !mode.contains(F::KEEP_SIZE)))
    {
        return Err(Outcome::NotSupported.into());
    }
    // A range that was cut off at the end of all numbers is no empty one.
    if range.is_empty() && range.end < u64::MAX {
        return Err(Outcome::Invalid.into());
    }
    if range.end > FILE_BYTES_MAX {
        return Err(Outcome::FileTooBig.into());
    }
    files.store().txn().check_writable()?;
    // All that can fail for want of space comes before anything changes.
    let (edges, last, _op) = loop {
        let edges = files.store().space().reserve_data(edge_bytes(inode, &range, mode))?;
        let last = files.reserve(if is_punch { Budget::TRUNCATE } else { Budget::SETATTR })?;
        let op = inode.lock.write();
        // Another size by now, whose last block was not reckoned with.
        if edge_bytes(inode, &range, mode) <= edges.bytes() {
            break (edges, last, op);
        }
    };
    if is_punch {
        return punch(files, inode, range, edges, last, how);
    }
    allocate(files, inode, range, mode, edges, last, how)
}

/// Data that is written, beside what is allocated: a hole and a range of zeros take blocks that
/// they cover in part, and a file that grows takes the zeros behind its end. What is allocated
/// already needs nothing.
fn edge_bytes(inode: &Inode, range: &Range<u64>, mode: FallocateFlags) -> u64 {
    let is_partial = |at: &&u64| !at.is_multiple_of(BLOCK);
    let partial = if mode.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE) {
        [range.start, range.end].iter().filter(is_partial).count() as u64
    } else {
        0
    };
    let size = inode.attr.lock().attr.size;
    let new_size = if mode.contains(FallocateFlags::KEEP_SIZE) {
        size
    } else {
        range.end
    };
    partial * BLOCK + old_end_bytes(size, new_size)
}

/// Does a hole already lie where one is to be punched? Then nothing changes, times neither: as the
/// kernel has it.
fn is_hole(inode: &Arc<Inode>, range: &Range<u64>) -> Result<bool> {
    let blocks = round_down(range.start)..round_up(range.end);
    // What lands between the two looks shows in the count of landings.
    loop {
        let landings = {
            let state = inode.data.state.lock();
            if state.next_pending(blocks.start).is_some_and(|at| at < blocks.end) {
                return Ok(false);
            }
            state.landings
        };
        let mut walk = Walk::new(&inode.tree, inode.ino, blocks.clone())?;
        while let Some(extent) = walk.next()? {
            if !matches!(extent.kind, Kind::Hole) {
                return Ok(false);
            }
        }
        if inode.data.state.lock().landings == landings {
            return Ok(true);
        }
    }
}

/// Adds zeros where blocks are covered in part, drops what is covered as a whole.
fn punch(
    files: &Files,
    inode: &Arc<Inode>,
    range: Range<u64>,
    mut edges: DataReservation,
    last: MetaReservation,
    (ctx, first): (WriteCtx, First<'_>),
) -> Result<()> {
    if is_hole(inode, &range)? {
        return Ok(());
    }
    first()?;
    zero_edges(files, inode, &range, &mut edges, false)?;
    let inner = round_up(range.start)..round_down(range.end);
    // The block of the file's end is covered as a whole up to there. One behind it is not: it stays
    // allocated.
    let size = inode.attr.lock().attr.size;
    let inner_end = if range.end >= size && inner.end < size {
        round_up(range.end)
    } else {
        inner.end
    };
    if inner.start < inner_end {
        drop_range(files, inode, inner.start..inner_end)?;
    }
    finish(files, inode, None, last, ctx);
    Ok(())
}

/// The parts of blocks inside the file that the range covers in part: the first, the last, or the
/// one that is both.
fn partial_blocks(size: u64, range: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let first = (!range.start.is_multiple_of(BLOCK)).then(|| round_down(range.start));
    let last = (!range.end.is_multiple_of(BLOCK) && range.end < size).then(|| round_down(range.end));
    let range = range.clone();
    first
        .into_iter()
        .chain(last.filter(move |last| Some(*last) != first))
        .filter(move |block| *block < size)
        .map(move |block| (block, range.start.max(block)..range.end.min(block + BLOCK)))
}

/// Zeroes the parts of blocks that the range covers in part, where they hold data. Where the file
/// grows, the rest of its old end's block is appended: its size on disk waits for it.
fn zero_edges(
    files: &Files,
    inode: &Arc<Inode>,
    range: &Range<u64>,
    edges: &mut DataReservation,
    grows: bool,
) -> Result<()> {
    let size = inode.attr.lock().attr.size;
    partial_blocks(size, range).try_for_each(|(block, part)| {
        let is_old_end = grows && block == round_down(size);
        zero_part(files, inode, block, &part, (size, is_old_end), edges)
    })
}

fn zero_part(
    files: &Files,
    inode: &Arc<Inode>,
    block: u64,
    part: &Range<u64>,
    (size, is_old_end): (u64, bool),
    edges: &mut DataReservation,
) -> Result<()> {
    let zeros = [0; BLOCK as usize];
    let zeros = &zeros[..(part.end - part.start) as usize];
    loop {
        let content = load_clean_block(files, inode, block, size)?;
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
        if is_old_end {
            state.append(size, block, round_up(size));
        }
        note_dirty(files, inode, &mut state, Some(edges.split(BLOCK)), dirtied);
        return Ok(());
    }
}

fn allocate(
    files: &Files,
    inode: &Arc<Inode>,
    range: Range<u64>,
    mode: FallocateFlags,
    mut edges: DataReservation,
    last: MetaReservation,
    (ctx, first): (WriteCtx, First<'_>),
) -> Result<()> {
    let size = inode.attr.lock().attr.size;
    let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
    let new_size = (!keeps_size && range.end > size).then_some(range.end);
    let blocks = round_down(range.start)..round_up(range.end);
    // Or it would be taken for what is allocated already.
    drop_left_behind(files, inode, round_up(size)..blocks.end)?;
    let zeroed = if mode.contains(FallocateFlags::ZERO_RANGE) {
        Some(zeroed_blocks(files, inode, &range, size)?)
    } else {
        None
    };
    // What is zeroed gets new space: the old is free only after the next commit.
    let wanted_bytes = match &zeroed {
        Some(zeroed) => zeroed.end.saturating_sub(zeroed.start),
        None => hole_bytes(inode, &blocks)?,
    };
    let mut reservation = files.store().space().reserve_data(wanted_bytes)?;
    first()?;
    if new_size.is_some() {
        let to = round_down(range.start).max(size);
        grow(files, inode, size, to, edges.split(old_end_bytes(size, range.end)))?;
    }
    match zeroed {
        Some(zeroed) => {
            replace_by_zeros(files, inode, zeroed, &mut reservation)?;
            zero_edges(files, inode, &range, &mut edges, new_size.is_some())?;
        }
        None => fill_holes(files, inode, blocks, &mut reservation)?,
    }
    finish(files, inode, new_size, last, ctx);
    Ok(())
}

/// The blocks of a range that is to be zeroed which get new space: all but those at its ends that
/// hold something outside of the range.
fn zeroed_blocks(files: &Files, inode: &Arc<Inode>, range: &Range<u64>, size: u64) -> Result<Range<u64>> {
    let mut zeroed = round_down(range.start)..round_up(range.end);
    let mut content = vec![0; BLOCK as usize];
    for (block, _) in partial_blocks(size, range) {
        read::read_range(files, inode, block, &mut content)?;
        // Where nothing but zeros is, nothing has to stay; what lies behind the end does not count.
        let valid = (size - block).min(BLOCK) as usize;
        if content[..valid].iter().all(|b| *b == 0) {
            continue;
        }
        if block < range.start {
            zeroed.start = block + BLOCK;
        } else {
            zeroed.end = block;
        }
    }
    Ok(zeroed)
}

/// Extents replaced by zeros in one batch: a file with more of them is zeroed in steps, of which
/// only the first is sure to find space or leave everything as it was.
const STEP_REPLACED_MAX: usize = 1 << 16;

/// Preallocated extents in place of whatever a range of blocks holds, dirty or on disk. The caller
/// holds the operation lock for writing.
fn replace_by_zeros(
    files: &Files,
    inode: &Arc<Inode>,
    range: Range<u64>,
    reservation: &mut DataReservation,
) -> Result<()> {
    let mut pos = range.start;
    while pos < range.end {
        let (mut count, to) = count_extents(inode, pos..range.end)?;
        let mut fresh = Vec::new();
        let mut result = new_extents(files, pos..to, reservation, usize::MAX, &mut fresh);
        while let Ok(()) = result {
            result = match replace_now(files, inode, pos..to, &mut fresh, &mut count) {
                Ok(true) => break,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
        }
        if let Err(error) = result {
            for disk in fresh.iter().filter_map(Extent::on_disk) {
                files.store().space().unalloc_data(disk.addr, disk.len_bytes);
            }
            return Err(error);
        }
        pos = to;
    }
    Ok(())
}

/// Puts new extents in place of what a range holds; `false` where that is more than `count`
/// extents, which is then their number: write-back has made some meanwhile.
fn replace_now(
    files: &Files,
    inode: &Arc<Inode>,
    range: Range<u64>,
    fresh: &mut Vec<Extent>,
    count: &mut usize,
) -> Result<bool> {
    let moved = (*count + fresh.len()) as u64;
    let meta = files.reserve(Budget::moved_extents(
        moved,
        files.store().nodes().nodesize_bytes() as u64,
    ))?;
    let _flush = inode.data.flush.lock();
    let around = range.start.saturating_sub(1)..range.end.saturating_add(1);
    let existing = Walk::new(&inode.tree, inode.ino, around)?.collect()?;
    if existing.len() > *count {
        *count = existing.len();
        return Ok(false);
    }
    let replacement = Replacement {
        range: range.clone(),
        extents: fresh.clone(),
    };
    let change = Change {
        fresh: fresh.iter().filter_map(|e| Some(e.on_disk()?.addr)).collect(),
        plan: replace::plan_checked(&inode.tree, inode.ino, &existing, &[replacement])?,
        ..Change::default()
    };
    fresh.clear();
    items::apply(files, inode, change, meta, |attr, state| {
        forget_dirty(files, inode, state, range);
        attr.attr.flags |= flags::PREALLOC;
        attr.update_disk_size(state, false);
    });
    Ok(true)
}

/// How many extents a range holds, with its neighbours, up to [`STEP_REPLACED_MAX`], and how far
/// these reach.
fn count_extents(inode: &Arc<Inode>, range: Range<u64>) -> Result<(usize, u64)> {
    const NEIGHBOURS: usize = 2;
    let mut walk = Walk::new(&inode.tree, inode.ino, range.clone())?;
    let mut count = 0;
    while let Some(extent) = walk.next()? {
        if count == STEP_REPLACED_MAX {
            return Ok((count + NEIGHBOURS, extent.start));
        }
        count += 1;
    }
    Ok((count + NEIGHBOURS, range.end))
}

/// Preallocated extents for a range, in `fresh` even if not all could be had; no more than `max` of
/// them there.
fn new_extents(
    files: &Files,
    range: Range<u64>,
    reservation: &mut DataReservation,
    max: usize,
    fresh: &mut Vec<Extent>,
) -> Result<()> {
    let mut at = range.start;
    while at < range.end && fresh.len() < max {
        let want = (range.end - at).min(PREALLOC_BYTES_MAX);
        let (addr, len_bytes) = files.store().space().alloc_data(reservation, want)?;
        fresh.push(Extent {
            start: at,
            len_bytes,
            generation: NOW,
            kind: Kind::Disk(new_extent(addr, len_bytes, true)),
        });
        at += len_bytes;
    }
    Ok(())
}

/// The parts of a range that have no extent, at most `max` of them, and how far they were looked
/// for.
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

/// Preallocated extents for all holes of a range. Write-back may fill some meanwhile: that is as
/// good.
fn fill_holes(files: &Files, inode: &Arc<Inode>, range: Range<u64>, reservation: &mut DataReservation) -> Result<()> {
    let mut pos = range.start;
    while pos < range.end {
        let meta = files.reserve(Budget::WRITE_EXTENT)?;
        let _flush = inode.data.flush.lock();
        let (found, mut to) = holes(inode, &(pos..range.end), STEP_HOLES_MAX)?;
        let mut extents = Vec::new();
        let result = found
            .iter()
            .try_for_each(|hole| new_extents(files, hole.clone(), reservation, STEP_EXTENTS_MAX, &mut extents));
        if let Some(last) = extents.last().filter(|_| extents.len() == STEP_EXTENTS_MAX) {
            to = last.end();
        }
        let fresh = extents.iter().filter_map(|e| Some(e.on_disk()?.addr)).collect();
        let replacements: Vec<Replacement> = extents
            .into_iter()
            .map(|extent| Replacement {
                range: extent.range(),
                extents: vec![extent],
            })
            .collect();
        let around = pos.saturating_sub(1)..to.saturating_add(1);
        let existing = Walk::new(&inode.tree, inode.ino, around)?.collect()?;
        let plan = replace::plan(&existing, &replacements);
        // What was allocated before a failure stays, as a shorter fallocate would have left it.
        items::apply(
            files,
            inode,
            Change {
                plan,
                fresh,
                ..Change::default()
            },
            meta,
            |attr, state| {
                attr.attr.flags |= flags::PREALLOC;
                attr.update_disk_size(state, false);
            },
        );
        result?;
        pos = to;
    }
    Ok(())
}

/// Times, and the size where it changes.
fn finish(files: &Files, inode: &Arc<Inode>, new_size: Option<u64>, meta: MetaReservation, ctx: WriteCtx) {
    let _flush = inode.data.flush.lock();
    items::apply(files, inode, Change::default(), meta, |attr, state| {
        if let Some(size) = new_size {
            attr.attr.size = size.max(attr.attr.size);
        }
        touch(files, attr, ctx);
        attr.update_disk_size(state, false);
    });
}
