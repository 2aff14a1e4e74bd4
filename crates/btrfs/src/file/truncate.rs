//! Truncation, and dropping extents in bounded steps: each step has its own reservation and its own
//! batch.

use std::ops::Range;
use std::sync::Arc;

use btrfs_format::items::compression;
use cowshed_vfs::Error as Outcome;

use super::clone::too_long_inline;
use super::items::{self, Change, NOW};
use super::read;
use super::replace::{self, Replacement};
use super::write::{WriteCtx, grow, note_dirty, touch};
use super::writeback::{self, inline_extent};
use crate::block::{BLOCK, FILE_BYTES_MAX, round_down, round_up};
use crate::error::{Error, Result, StoreError};
use crate::extent::{Extent, Kind, Walk, last_below};
use crate::files::Files;
use crate::object::INLINE_BYTES_MAX;
use crate::object::Inode;
use crate::pagecache::DataState;
use btrfs_store::space::{Budget, DataReservation, MetaReservation};

/// Extents dropped in one step: their items lie in few leaves, but each may free another extent
/// item.
const STEP_EXTENTS_MAX: usize = 128;

/// Sets the size. Takes the operation lock itself.
pub(crate) fn truncate(files: &Files, inode: &Arc<Inode>, new_size: u64) -> Result<()> {
    if new_size > FILE_BYTES_MAX {
        return Err(Outcome::FileTooBig.into());
    }
    // Only a block that becomes partly zero needs space for data: emptying a file on a full volume
    // must not.
    let tail_bytes = |size: u64| {
        if new_size.min(size).is_multiple_of(BLOCK) {
            0
        } else {
            BLOCK
        }
    };
    let (tail, reservation, _op, size) = loop {
        // In a statement of its own: the reservation may write data back, which takes the lock,
        // too.
        let size = inode.attr.lock().attr.size;
        let tail = match files.store().space().reserve_data(tail_bytes(size)) {
            // A file can be cut all the same.
            Err(StoreError::NoSpace) if new_size < size => files.store().space().reserve_data(0)?,
            tail => tail?,
        };
        let reservation = files.reserve(Budget::TRUNCATE)?;
        let op = inode.lock.write();
        let size = inode.attr.lock().attr.size;
        // Another size by now, whose last block was not reckoned with.
        if new_size < size || tail_bytes(size) <= tail.bytes() {
            break (tail, reservation, op, size);
        }
    };
    if new_size < size {
        return shrink(files, inode, new_size, tail, reservation);
    }
    grow(files, inode, size, new_size, tail)?;
    let _flush = inode.data.flush.lock();
    items::apply(files, inode, Change::default(), reservation, |attr, state| {
        attr.attr.size = new_size;
        touch(files, attr, WriteCtx::default());
        attr.update_disk_size(state, false);
    });
    Ok(())
}

/// Cuts the file. The caller holds the operation lock for writing.
///
/// The size in the item follows the extents down, and the zeros behind the new end come with the
/// last step: a sync beside us finds a shorter file, or the old one, but no zeros in the midst of
/// it.
fn shrink(
    files: &Files,
    inode: &Arc<Inode>,
    new_size: u64,
    reserved: DataReservation,
    reservation: MetaReservation,
) -> Result<()> {
    let mut tail = Tail::load(files, inode, new_size, reserved)?;
    {
        let _flush = inode.data.flush.lock();
        items::apply(files, inode, Change::default(), reservation, |attr, state| {
            attr.attr.size = new_size;
            touch(files, attr, WriteCtx::default());
            forget_dirty(files, inode, state, round_up(new_size)..u64::MAX);
            state.cut = Some(attr.disk_size).filter(|on_disk| *on_disk > new_size);
            if state.cut.is_none()
                && let Some(tail) = tail.take_if(|tail| tail.reserved.is_some())
            {
                tail.put(files, inode, state);
            }
            attr.update_disk_size(state, false);
        });
    }
    let dropped = drop_behind(files, inode, round_up(new_size), tail);
    if dropped.is_err() {
        // What is left lies behind the end, and goes when the file grows over it.
        give_up_cut(files, inode);
    }
    dropped
}

/// The item gets the size that memory has. Where there is no room for it, it gets it with the next
/// change of the inode, which stays in memory.
fn give_up_cut(files: &Files, inode: &Arc<Inode>) {
    let reservation = files.reserve(Budget::TRUNCATE);
    let _flush = inode.data.flush.lock();
    let Ok(reservation) = reservation else {
        let mut attr = inode.attr.lock();
        inode.data.state.lock().cut = None;
        attr.disk_size = attr.disk_size.min(attr.attr.size);
        attr.is_unsaved = true;
        return;
    };
    items::apply(files, inode, Change::default(), reservation, |attr, state| {
        state.cut = None;
        attr.update_disk_size(state, false);
    });
}

/// Drops dirty data in a block-aligned range, and the space reserved for it.
pub(super) fn forget_dirty(files: &Files, inode: &Arc<Inode>, state: &mut DataState, range: Range<u64>) {
    let bytes = state.forget(range);
    if bytes > 0 {
        files.data().sub_dirty(bytes);
        drop(state.release(bytes));
        files.data().unlist(inode, state);
    }
}

/// The block at the new end of a file that is cut, where it holds data: zero behind the end.
///
/// Where there is no space for it, it stays on disk as it is, but for inline data: Linux leaves it
/// so always. What lies behind an end cannot be read, and moving the end clears it first
/// ([`grow`]).
struct Tail {
    block: u64,
    content: Vec<u8>,
    /// Bytes of the block that stay.
    len: usize,
    /// `None`: there is no space.
    reserved: Option<DataReservation>,
}

impl Tail {
    /// What it will be. No write comes before it is: the caller holds the operation lock for
    /// writing.
    fn load(files: &Files, inode: &Arc<Inode>, new_size: u64, reserved: DataReservation) -> Result<Option<Self>> {
        let block = round_down(new_size);
        if block == new_size {
            return Ok(None);
        }
        let reserved = Some(reserved).filter(|reserved| reserved.bytes() >= BLOCK);
        if reserved.is_none() {
            // Then it is as it lies on disk.
            writeback::flush(files, inode)?;
        }
        // In this order: what lands in between is seen by the first look.
        let is_pending = inode.data.state.lock().next_pending(block) == Some(block);
        let extent = Walk::new(&inode.tree, inode.ino, block..block + BLOCK)?.next()?;
        if extent.as_ref().is_some_and(|e| e.is_inline() && e.end() > BLOCK) {
            return Err(too_long_inline(inode));
        }
        let len = (new_size - block) as usize;
        if reserved.is_none() && len as u64 > INLINE_BYTES_MAX && extent.as_ref().is_some_and(Extent::is_inline) {
            // Compressed as a rule: it is no inline data any more when it is shorter.
            return Err(Error::Store(StoreError::NoSpace));
        }
        if !is_pending && !extent.is_some_and(|e| e.is_data()) {
            return Ok(None);
        }
        let mut content = vec![0; BLOCK as usize];
        read::read_range(files, inode, block, &mut content)?;
        content[len..].fill(0);
        Ok(Some(Self {
            block,
            content,
            len,
            reserved,
        }))
    }

    /// Makes the block dirty.
    fn put(self, files: &Files, inode: &Arc<Inode>, state: &mut DataState) {
        let Some(reserved) = self.reserved else { return };
        let dirtied = state.dirty.write(self.block, &self.content);
        note_dirty(files, inode, state, Some(reserved), dirtied);
    }

    /// Inline data is cut in its item at once: gives what is there, where nothing newer is in
    /// memory. The caller holds the flush lock.
    fn inline_now(&self, inode: &Arc<Inode>) -> Result<Option<Extent>> {
        let is_pending = inode.data.state.lock().next_pending(self.block) == Some(self.block);
        if is_pending || self.block > 0 || self.len as u64 > INLINE_BYTES_MAX {
            return Ok(None);
        }
        let first = Walk::new(&inode.tree, inode.ino, 0..BLOCK)?.next()?;
        Ok(first.filter(Extent::is_inline))
    }
}

/// Drops all extents behind `target`, from the end down: at any moment the item's size covers what
/// is left. The new last block comes with the last of them.
fn drop_behind(files: &Files, inode: &Arc<Inode>, target: u64, mut tail: Option<Tail>) -> Result<()> {
    loop {
        let reservation = files.reserve(Budget::TRUNCATE)?;
        let _flush = inode.data.flush.lock();
        let (mut existing, is_last) = last_extents(inode, target)?;
        let from = if is_last {
            target
        } else {
            existing.first().map_or(target, |e| e.start)
        };
        let mut replacements = vec![Replacement {
            range: from..u64::MAX,
            extents: Vec::new(),
        }];
        let mut tail = if is_last { tail.take() } else { None };
        if let Some(cut) = &tail
            && let Some(inline) = cut.inline_now(inode)?
        {
            let data = &cut.content[..cut.len];
            let extents = vec![inline_extent(data, data.len() as u64, compression::NONE)];
            replacements.insert(
                0,
                Replacement {
                    range: 0..BLOCK,
                    extents,
                },
            );
            existing.insert(0, inline);
            tail = None;
        }
        let plan = replace::plan_checked(&inode.tree, inode.ino, &existing, &replacements)?;
        if is_last && plan.edits.is_empty() && inode.data.state.lock().cut.is_none() {
            return Ok(());
        }
        items::apply(
            files,
            inode,
            Change {
                plan,
                ..Change::default()
            },
            reservation,
            |attr, state| {
                if let Some(tail) = tail {
                    tail.put(files, inode, state);
                }
                state.cut = state.cut.filter(|_| !is_last).map(|_| from.max(attr.attr.size));
                attr.disk_size = attr.disk_size.min(from.max(attr.attr.size));
                attr.update_disk_size(state, false);
            },
        );
        if is_last {
            return Ok(());
        }
    }
}

/// The last extents that reach behind `target`, in order, and whether there are no more.
fn last_extents(inode: &Arc<Inode>, target: u64) -> Result<(Vec<Extent>, bool)> {
    let mut found = Vec::new();
    let mut below = u64::MAX;
    let mut is_last = true;
    while let Some(extent) = last_below(&inode.tree, inode.ino, below)? {
        if extent.end() <= target {
            break;
        }
        if found.len() == STEP_EXTENTS_MAX {
            is_last = false;
            break;
        }
        below = extent.start;
        found.push(extent);
    }
    found.reverse();
    Ok((found, is_last))
}

/// Drops dirty data and extents of a block-aligned range of a file; it reads as zeros afterwards.
/// The caller holds the operation lock for writing.
pub(super) fn drop_range(files: &Files, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    let mut pos = range.start;
    while pos < range.end {
        let reservation = files.reserve(Budget::TRUNCATE)?;
        let _flush = inode.data.flush.lock();
        let (existing, to) = first_extents(inode, pos..range.end)?;
        let extents = if files.has_no_holes() {
            Vec::new()
        } else {
            vec![hole(pos..to)]
        };
        let plan = replace::plan_checked(
            &inode.tree,
            inode.ino,
            &existing,
            &[Replacement {
                range: pos..to,
                extents,
            }],
        )?;
        items::apply(
            files,
            inode,
            Change {
                plan,
                ..Change::default()
            },
            reservation,
            |attr, state| {
                forget_dirty(files, inode, state, pos..to);
                attr.update_disk_size(state, false);
            },
        );
        pos = to;
    }
    Ok(())
}

/// Drops data in a block-aligned range behind the end of a file, before the file grows over it. A
/// crash leaves such data: blocks reach the disk in any order, and the item's size stops at the
/// first one that did not. So does a truncation that failed on its way. Preallocated extents stay.
/// The caller holds the operation lock for writing.
pub(super) fn drop_left_behind(files: &Files, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    let mut from = range.start;
    while from < range.end {
        let mut walk = Walk::new(&inode.tree, inode.ino, from..range.end)?;
        let left = loop {
            match walk.next()? {
                Some(extent) if extent.is_data() => break extent,
                Some(_) => {}
                None => return Ok(()),
            }
        };
        let end = left.end().min(range.end);
        drop_range(files, inode, left.start.max(from)..end)?;
        from = end;
    }
    Ok(())
}

fn hole(range: Range<u64>) -> Extent {
    Extent {
        start: range.start,
        len_bytes: range.end - range.start,
        generation: NOW,
        kind: Kind::Hole,
    }
}

/// As many extents of a range as one step drops, and how far they reach.
fn first_extents(inode: &Arc<Inode>, range: Range<u64>) -> Result<(Vec<Extent>, u64)> {
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

/// Drops dirty data of a file that nothing reads any more.
pub(crate) fn discard_dirty(files: &Files, inode: &Arc<Inode>) {
    if let Some(data) = inode.data.get() {
        let _flush = data.flush.lock();
        let mut state = data.state.lock();
        forget_dirty(files, inode, &mut state, 0..u64::MAX);
        files.data().unlist(inode, &mut state);
    }
}

/// Drops dirty data and all extents of a file without names, step by step. No other thread can
/// reach the inode.
pub(crate) fn drop_extents_of_deleted(files: &Files, inode: &Arc<Inode>) -> Result<()> {
    discard_dirty(files, inode);
    if inode.data.get().is_none() && inode.began_without_extents {
        debug_assert!(last_below(&inode.tree, inode.ino, u64::MAX).map_or(true, |last| last.is_none()));
        return Ok(());
    }
    if last_below(&inode.tree, inode.ino, u64::MAX)?.is_none() {
        return Ok(());
    }
    {
        let mut attr = inode.attr.lock();
        attr.attr.size = 0;
        inode.data.state.lock().cut = Some(attr.disk_size).filter(|on_disk| *on_disk > 0);
    }
    drop_behind(files, inode, 0, None)
}
