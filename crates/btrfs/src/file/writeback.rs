//! Write-back: dirty ranges become extents on disk, and then items, in groups.
//!
//! ```text
//!   dirty --take_group--> in flight --write data--> on disk --one batch--> items, flight dropped
//!                             |  error
//!                             +-----> dropped, space given back, the next fsync fails,
//!                                     front ends are told
//! ```
//!
//! Readers see data in flight until its items can be read. A write to a block in flight makes it
//! dirty again, above.

use std::sync::Arc;

use btrfs_format::items::compression;
use cowshed_runtime::lock::MutexGuard;

use super::items::{self, Change, NOW};
use super::pack::{self, Choice, Packed};
use super::place::{self, Placed, Run};
use super::replace::{self, Replacement};
use super::write::hole_replacements;
use crate::block::{BLOCK, EXTENT_BYTES_MAX, round_down};
use crate::compression::compress;
use crate::error::Result;
use crate::extent::{Extent, Kind, encode_inline, last_below};
use crate::files::{Commits, Files};
use crate::object::INLINE_BYTES_MAX;
use crate::object::{Inode, InodeState, flags};
use crate::pagecache::DataState;
use crate::pagecache::Opened;
use crate::pagecache::recycle;
use btrfs_store::space::{Budget, DataReservation, MetaReservation};
use btrfs_store::tree::Item;

/// Bytes and runs written in one group: one batch of items each.
const GROUP_BYTES_MAX: u64 = EXTENT_BYTES_MAX;
pub(super) const GROUP_RUNS_MAX: usize = 256;
/// A group has at least so much room, however little was dirty when metadata was reserved for it.
const GROUP_BYTES_MIN: u64 = 4 << 20;
/// So often one pass goes back for what was written behind it: a continuous writer must not keep it
/// for ever.
const RETURNS_MAX: u32 = 16;

struct Group {
    runs: Vec<Run>,
    bytes: u64,
    reservation: Option<DataReservation>,
}

/// Writes all dirty data of the inode; its items are in the overlay afterwards. Also reports a
/// write-back that failed since the last call, or while this one waited: of several callers each
/// one is told.
#[cfg(test)]
pub(crate) fn write_back(files: &Files, inode: &Arc<Inode>) -> Result<()> {
    write_back_as(files, inode, None)
}

/// [`write_back`] for an open file: reports what failed since it was opened, once for each opening.
pub(crate) fn write_back_as(files: &Files, inode: &Arc<Inode>, opened: Option<Opened>) -> Result<()> {
    let failures = &inode.data.failures;
    let seen = failures.count();
    let result = flush(files, inode);
    let earlier = failures.take(seen, opened);
    result.and(earlier)
}

/// Everything written before the call is on disk after it.
pub(crate) fn sync(files: &Files) -> Result<()> {
    if files.store().volume().is_read_only() {
        return Ok(());
    }
    // One file that cannot be written (a full volume, a failing place) must not keep the rest from
    // being durable.
    let written = write_back_all(files);
    if files.options().commits == Commits::WhenAsked {
        // All of the changes, or none.
        written?;
        return files.commit();
    }
    files.commit()?;
    written
}

/// [`sync`] that also reports a write-back of any file that failed since the last call: one in the
/// background reports to no caller.
pub(crate) fn sync_all(files: &Files) -> Result<()> {
    let failures = &files.data().failures;
    let seen = failures.count();
    let result = sync(files);
    let earlier = failures.take(seen, None);
    result.and(earlier)
}

/// Writes all dirty data of the volume. What fails is kept for the fsync of its file; the first
/// failure is returned.
pub(crate) fn write_back_all(files: &Files) -> Result<()> {
    let mut result = Ok(());
    for inode in files.data().listed() {
        let flushed = flush(files, &inode);
        if result.is_ok() {
            result = flushed;
        }
    }
    result
}

/// Metadata for so many bytes in so many runs.
pub(super) fn budget(files: &Files, runs: usize, bytes: u64) -> Budget {
    let csum_bytes = files.store().volume().csum_type().size_bytes() as u64 * bytes.div_ceil(BLOCK);
    let nodesize_bytes = files.store().nodes().nodesize_bytes() as u64;
    Budget::written(runs.div_ceil(GROUP_RUNS_MAX), bytes, csum_bytes, nodesize_bytes)
}

fn reserve_for_group(files: &Files, bytes: u64) -> Result<MetaReservation> {
    let budget = budget(files, GROUP_RUNS_MAX, bytes);
    files.reserve_for_write_back(budget)
}

/// Writes back in the writer's stead where much is dirty: the writer waits instead of memory
/// growing.
pub(super) fn throttle(files: &Files, inode: &Arc<Inode>) {
    if !files.data().is_over_limit() {
        if files.data().wants_write_back() {
            files.background().wake_write_back();
        }
        return;
    }
    if flush(files, inode).is_err() {
        return;
    }
    while files.data().is_over_limit() {
        let Some(other) = files.data().first_listed() else {
            return;
        };
        if flush(files, &other).is_err() {
            return;
        }
    }
}

/// Writes what was dirty when it was called, or became dirty behind where it works. A failure of
/// the device is noted for the next fsync, too.
pub(crate) fn flush(files: &Files, inode: &Arc<Inode>) -> Result<()> {
    let mut from = 0;
    let mut returns = RETURNS_MAX;
    loop {
        if !has_work(files, inode, from) {
            return Ok(());
        }
        let dirty_bytes = inode.data.state.lock().dirty.bytes();
        let bytes_max = group_bytes_max(files, dirty_bytes);
        let reservation = reserve_for_group(files, bytes_max)?;
        let _flush = inode.data.flush.lock();
        let choice = pack::choose(files, inode).unwrap_or_else(|error| {
            tracing::warn!(%error, "how to compress cannot be read: nothing is compressed");
            None
        });
        let group = {
            let mut state = inode.data.state.lock();
            go_back(&state, &mut from, &mut returns);
            let bytes_max = match choice {
                Some(_) => bytes_max.min(files.data().compressed_group_bytes_max()),
                None => bytes_max,
            };
            take_group(&mut state, &mut from, bytes_max)
        };
        let Some(group) = group else { continue };
        write_group(files, inode, group, choice, reservation)?;
    }
}

/// The flush locks of several inodes, each named once, in the order in which they are taken.
pub(super) fn hold<'a>(inodes: &[&'a Arc<Inode>]) -> Vec<MutexGuard<'a, ()>> {
    let mut sorted = inodes.to_vec();
    sorted.sort_by_key(|inode| inode.lock_key());
    let lock = |inode: &'a Arc<Inode>| inode.data.flush.lock_ordered(inode.lock_key());
    sorted.into_iter().map(lock).collect()
}

/// Is there something to write, or to wait for? Leaves the list of dirty inodes if not.
fn has_work(files: &Files, inode: &Arc<Inode>, from: u64) -> bool {
    let in_flight = {
        let mut state = inode.data.state.lock();
        files.data().unlist(inode, &mut state);
        if state.dirty.next_dirty(from).is_some() {
            return true;
        }
        !state.in_flight.is_empty()
    };
    if in_flight {
        drop(inode.data.flush.lock());
        files.data().unlist(inode, &mut inode.data.state.lock());
    }
    false
}

/// What was written since the last group may lie on both sides of `from`. The far side alone, and
/// then a commit: a crash would find a part of one small write. So the pass goes back, and takes
/// both.
fn go_back(state: &DataState, from: &mut u64, returns: &mut u32) {
    let is_behind = state.dirty.next_dirty(0).is_some_and(|first| first < *from);
    if is_behind && *returns > 0 {
        *returns -= 1;
        *from = 0;
    }
}

/// Bytes of the next group, where so many are dirty. Where free space lies in small pieces, a group
/// becomes hardly more extents than it has reserved for: it has what as many pieces hold as a group
/// may have runs.
fn group_bytes_max(files: &Files, dirty_bytes: u64) -> u64 {
    const FRAGMENTED_BYTES_MAX: u64 = GROUP_RUNS_MAX as u64 * BLOCK;
    let most = dirty_bytes.clamp(GROUP_BYTES_MIN, GROUP_BYTES_MAX);
    if dirty_bytes <= FRAGMENTED_BYTES_MAX {
        return most;
    }
    let in_pieces = files.store().space().data_bytes_in(GROUP_RUNS_MAX, most);
    round_down(in_pieces).clamp(FRAGMENTED_BYTES_MAX, most)
}

/// Moves dirty buffers from `from` on in flight, in order.
fn take_group(state: &mut DataState, from: &mut u64, bytes_max: u64) -> Option<Group> {
    let mut group = Group {
        runs: Vec::new(),
        bytes: 0,
        reservation: None,
    };
    while group.bytes < bytes_max {
        let room = bytes_max - group.bytes;
        let Some(next) = state.dirty.next_dirty(*from) else {
            break;
        };
        let is_adjacent = group.runs.last().is_some_and(|run| run.range.end == next);
        if !is_adjacent && group.runs.len() == GROUP_RUNS_MAX {
            break;
        }
        let Some((start, flight)) = state.take_off(*from, room as usize) else {
            break;
        };
        let end = start + flight.len() as u64;
        match group.runs.last_mut() {
            Some(run) if run.range.end == start => {
                run.range.end = end;
                run.parts.push((start, flight));
            }
            _ => group.runs.push(Run {
                range: start..end,
                parts: vec![(start, flight)],
            }),
        }
        group.bytes += end - start;
        *from = end;
    }
    if group.runs.is_empty() {
        return None;
    }
    group.reservation = state.release(group.bytes);
    Some(group)
}

/// Writes a group and applies its items. The caller holds the flush lock.
fn write_group(
    files: &Files,
    inode: &Arc<Inode>,
    mut group: Group,
    choice: Option<Choice>,
    reservation: MetaReservation,
) -> Result<()> {
    let mut allocated = Vec::new();
    let prepared = match prepare_inline(files, inode, &group, choice) {
        Ok(Inline::Not { marks }) => {
            let space = group.reservation.take();
            let placed = place::place(files, inode, &group.runs, choice, space, &mut allocated);
            placed.map(|placed| Placed {
                is_incompressible: placed.is_incompressible || marks,
                ..placed
            })
        }
        Ok(Inline::Fits(placed)) => Ok(placed),
        Err(error) => Err(error),
    };
    let (result, telling) = match prepared {
        Ok(placed) => {
            if let Some(packs_well) = placed.packs_well {
                inode.data.state.lock().packs_well = packs_well;
            }
            items::apply(files, inode, placed.change, reservation, |attr, state| {
                if placed.is_incompressible {
                    attr.attr.flags |= flags::NOCOMPRESS;
                }
                attr.update_disk_size(state, true)
            });
            (Ok(()), None)
        }
        Err(error) => {
            for (addr, len_bytes) in allocated {
                files.store().space().unalloc_data(addr, len_bytes);
            }
            tracing::error!(tree = %inode.tree.id(), ino = %inode.ino, %error, "dirty data could not be written and is lost");
            let telling = [&inode.data.failures, &files.data().failures].map(|failures| failures.note(error.clone()));
            // What is lost reads as before it was written. The item must say so too, or a later
            // sync that succeeds would leave another size on disk than the mount shows.
            match holes_of_lost(files, inode, &group.runs) {
                Ok(change) => items::apply(files, inode, change, reservation, |attr, state| {
                    attr.update_disk_size(state, true)
                }),
                Err(error) => tracing::warn!(%error, "where data was lost there are no holes"),
            }
            (Err(error), Some(telling))
        }
    };
    let mut state = inode.data.state.lock();
    state.land(group.runs.iter().flat_map(|run| &run.parts).map(|(start, _)| *start));
    files.data().sub_dirty(group.bytes);
    drop(state);
    drop(group.reservation);
    if result.is_err() {
        let lost = group.runs.iter().map(|run| run.range.clone()).collect();
        files.data().listener.tell(inode, lost);
    }
    drop(telling);
    for (_, flight) in group.runs.into_iter().flat_map(|run| run.parts) {
        if let Ok(buffer) = Arc::try_unwrap(flight) {
            recycle(buffer);
        }
    }
    result
}

/// Hole items where data was lost and nothing was before, on volumes without NO_HOLES: the size
/// will cover it.
fn holes_of_lost(files: &Files, inode: &Arc<Inode>, runs: &[Run]) -> Result<Change> {
    if files.has_no_holes() {
        return Ok(Change::default());
    }
    let (mut existing, mut holes) = (Vec::new(), Vec::new());
    for Run { range, .. } in runs {
        let found = place::gather(inode, range, &mut existing)?;
        holes.extend(hole_replacements(found, range.start, range.end));
    }
    Ok(Change {
        plan: replace::plan(&existing, &holes),
        ..Change::default()
    })
}

/// Writes whole blocks at once where nothing has to be allocated for them; `update` sets what else
/// the attributes become. `NoSpace` where something would have to be: nothing has happened then.
/// The caller holds the operation lock for writing.
pub(super) fn write_in_place(
    files: &Files,
    inode: &Arc<Inode>,
    start: u64,
    blocks: Vec<u8>,
    update: impl FnOnce(&mut InodeState, &mut DataState),
) -> Result<()> {
    let reservation = reserve_for_group(files, blocks.len() as u64)?;
    let _flush = inode.data.flush.lock();
    let run = Run {
        range: start..start + blocks.len() as u64,
        parts: vec![(start, Arc::new(blocks))],
    };
    let placed = place::place(files, inode, &[run], None, None, &mut Vec::new())?;
    items::apply(files, inode, placed.change, reservation, |attr, state| {
        update(attr, state);
        attr.update_disk_size(state, true);
    });
    Ok(())
}

/// What becomes of a group that might be all of a small file.
enum Inline {
    Fits(Placed),
    /// It goes to extents; `marks`: it was tried, and did not become smaller.
    Not {
        marks: bool,
    },
}

/// A small file whose only data is its first block goes into its item, as on the kernel's side:
/// compressed if that is shorter, or the only way to be short enough.
fn prepare_inline(files: &Files, inode: &Arc<Inode>, group: &Group, choice: Option<Choice>) -> Result<Inline> {
    const NOT: Inline = Inline::Not { marks: false };
    let [Run { range, parts }] = &group.runs[..] else {
        return Ok(NOT);
    };
    let (size, is_being_cut) = {
        let attr = inode.attr.lock();
        (attr.attr.size, inode.data.state.lock().cut.is_some())
    };
    // The size in the item is not down yet: it would cover more than the inline data has.
    if is_being_cut {
        return Ok(NOT);
    }
    let size_max = if choice.is_some() { BLOCK } else { INLINE_BYTES_MAX };
    if *range != (0..BLOCK) || size > size_max || size == 0 {
        return Ok(NOT);
    }
    let existing = last_below(&inode.tree, inode.ino, u64::MAX)?;
    // A single extent longer than a block stays where it is not covered.
    let is_in_the_way = |e: &Extent| e.start > 0 || e.end() > BLOCK || e.on_disk().is_some_and(|d| d.is_prealloc);
    if existing.as_ref().is_some_and(is_in_the_way) {
        return Ok(NOT);
    }
    let Some((_, flight)) = parts.first() else {
        return Ok(NOT);
    };
    let data = &flight[..size as usize];
    let packed = choice.map(|choice| pack::pack_inline(files, choice, &flight[..BLOCK as usize], data.len()));
    let extent = match &packed {
        Some(Packed::Smaller { algorithm, bytes }) => {
            files.store().volume().need_features(compress::feature(*algorithm));
            inline_extent(bytes, size, compress::on_disk(*algorithm))
        }
        Some(packed) if size > INLINE_BYTES_MAX => return Ok(Inline::Not { marks: packed.marks() }),
        Some(Packed::Raw { .. }) | None => inline_extent(data, size, compression::NONE),
    };
    let replacement = Replacement {
        range: 0..BLOCK,
        extents: vec![extent],
    };
    Ok(Inline::Fits(Placed {
        change: Change {
            plan: replace::plan(existing.as_slice(), &[replacement]),
            ..Change::default()
        },
        is_incompressible: packed.is_some_and(|packed| packed.marks()),
        packs_well: None,
    }))
}

/// An inline extent that is about to be made.
pub(super) fn inline_extent(data: &[u8], ram_bytes: u64, compression: u8) -> Extent {
    let item = Item::Pending(encode_inline(data, ram_bytes, compression, NOW).into());
    Extent {
        start: 0,
        len_bytes: BLOCK,
        generation: NOW,
        kind: Kind::Inline {
            item,
            ram_bytes,
            compression,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was written before a sync is on disk after it, however much was written over it
    /// meanwhile.
    #[test]
    fn overwriting_data_in_flight_does_not_hold_the_size_back() {
        const SIZE: u64 = 3 * BLOCK + 100;
        let mut state = DataState::default();
        state.dirty.write(0, &[1; SIZE as usize]);
        state.append(0, 0, SIZE);
        let group = take_group(&mut state, &mut 0, GROUP_BYTES_MAX).unwrap();
        assert_eq!(state.disk_size(SIZE, 0, false), 0);
        assert_eq!(state.disk_size(SIZE, 0, true), SIZE);
        // Over it, and on from its end.
        state.dirty.write(0, &[2; 10]);
        state.append(SIZE, 0, 10);
        state.dirty.write(SIZE, &[2; 50]);
        state.append(SIZE, SIZE, SIZE + 50);
        assert_eq!(state.disk_size(SIZE + 50, 0, false), 0);
        assert_eq!(state.disk_size(SIZE + 50, 0, true), SIZE);
        state.land(group.runs[0].parts.iter().map(|(start, _)| *start));
        assert_eq!(state.disk_size(SIZE + 50, SIZE, false), SIZE);
        // In a hole, too, there is something on disk: zeros.
        state.forget(0..u64::MAX);
        state.dirty.write(10 * BLOCK, &[3; 10]);
        assert_eq!(state.disk_size(20 * BLOCK, SIZE, false), 20 * BLOCK);
    }

    #[test]
    fn a_write_on_both_sides_of_a_pass_goes_in_one_group() {
        let mut state = DataState::default();
        let (mut from, mut returns) = (0, 1);
        let mut next = |state: &mut DataState| {
            go_back(state, &mut from, &mut returns);
            let group = take_group(state, &mut from, GROUP_BYTES_MAX)?;
            assert_eq!(group.runs.len(), 1);
            Some(group.runs[0].range.clone())
        };
        state.dirty.write(0, &[1; 100]);
        assert_eq!(next(&mut state).unwrap(), 0..BLOCK);
        state.dirty.write(0, &[2; 3 * BLOCK as usize]);
        assert_eq!(next(&mut state).unwrap(), 0..3 * BLOCK);
        // The pass comes to an end all the same.
        state.dirty.write(0, &[3; 4 * BLOCK as usize]);
        assert_eq!(next(&mut state).unwrap(), 3 * BLOCK..4 * BLOCK);
        assert!(next(&mut state).is_none());
    }
}
