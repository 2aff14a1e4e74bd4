//! Write-back: dirty ranges become extents on disk, and then items, in groups.
//!
//! ```text
//!   dirty --take_group--> in flight --write data--> on disk --one batch--> items; the flight is dropped
//!                             |  error
//!                             +-----> dropped, space given back, the next fsync fails
//! ```
//!
//! Readers see data in flight until its items can be read. A write to a block in flight makes it dirty again, above.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use btrfs_format::LogicalAddr;
use btrfs_format::items::compression;

use super::data::{DataState, Flight, update_disk_size};
use super::dirty::recycle;
use super::extent::{Extent, Kind, OnDisk, Walk, encode_inline, last_below};
use super::items::{self, Change, NOW};
use super::replace::{self, Replacement};
use super::shared::{INLINE_BYTES_MAX, has_no_holes};
use super::{BLOCK, EXTENT_BYTES_MAX, csum, sharing};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::inode::{Inode, flags};
use crate::space::{Budget, DataReservation, MetaReservation};
use crate::tree::Item;

/// Bytes and runs written in one group: one batch of items each.
const GROUP_BYTES_MAX: u64 = EXTENT_BYTES_MAX;
const GROUP_RUNS_MAX: usize = 256;

/// Runs of a group may each touch a leaf of their own, but neighbours share them: an extent item has 78 bytes with its
/// header, so that even 4 KiB leaves hold 50, and checksums and references are denser. Data that was accepted must find
/// its way to the disk, therefore the global reserve may be used.
const GROUP_BUDGET: Budget = Budget {
    blocks: Budget::WRITE_EXTENT.blocks * 4,
    is_release: true,
};

/// Adjacent dirty buffers.
struct Run {
    range: Range<u64>,
    parts: Vec<(u64, Flight)>,
}

struct Group {
    runs: Vec<Run>,
    bytes: u64,
    reservation: Option<DataReservation>,
}

/// Writes all dirty data of the inode; its items are in the overlay afterwards. Also reports a write-back that failed
/// since the last call, or while this one waited: of several callers each one is told.
pub fn write_back(engine: &Engine, inode: &Arc<Inode>) -> Result<()> {
    let seen = inode.data.failures();
    let result = flush(engine, inode);
    let earlier = inode.data.take_error(seen);
    result.and(earlier)
}

/// Writes all dirty data of the volume. What fails is kept for the fsync of its file; the first failure is returned.
pub fn write_back_all(engine: &Engine) -> Result<()> {
    let mut result = Ok(());
    for inode in engine.file.listed() {
        let flushed = flush(engine, &inode);
        if result.is_ok() {
            result = flushed;
        }
    }
    result
}

thread_local! {
    /// This thread reserves metadata for a write-back: being asked to write back in order to find some, it cannot help.
    static IS_RESERVING: Cell<bool> = const { Cell::new(false) };
}

/// Writes all dirty data in order to turn reservations into facts. Failures are kept for the fsync of their files.
pub fn write_back_for_space(engine: &Engine) {
    if IS_RESERVING.get() {
        return;
    }
    if let Err(error) = write_back_all(engine) {
        tracing::debug!(%error, "write-back for space");
    }
}

fn reserve_for_group(engine: &Engine) -> Result<MetaReservation> {
    IS_RESERVING.set(true);
    let reserved = engine.reserve(GROUP_BUDGET);
    IS_RESERVING.set(false);
    reserved
}

/// Writes back in the writer's stead where much is dirty: the writer waits instead of memory growing.
pub(super) fn throttle(engine: &Engine, inode: &Arc<Inode>) {
    if !engine.file.is_over_limit() {
        if engine.file.wants_write_back() {
            engine.background.wake_write_back();
        }
        return;
    }
    if flush(engine, inode).is_err() {
        return;
    }
    while engine.file.is_over_limit() {
        let Some(other) = engine.file.first_listed() else {
            return;
        };
        if flush(engine, &other).is_err() {
            return;
        }
    }
}

/// Writes what was dirty when it was called, or became dirty behind where it works. A failure of the device is noted
/// for the next fsync, too.
pub(super) fn flush(engine: &Engine, inode: &Arc<Inode>) -> Result<()> {
    let mut from = 0;
    loop {
        if !has_work(engine, inode, from) {
            return Ok(());
        }
        let reservation = reserve_for_group(engine)?;
        let _flush = inode.data.flush.lock();
        let Some(group) = take_group(&mut inode.data.state.lock(), &mut from) else {
            continue;
        };
        write_group(engine, inode, group, reservation)?;
    }
}

/// The flush locks of several inodes, in the order in which they are taken.
pub(super) fn hold<'a>(inodes: &[&'a Arc<Inode>]) -> Vec<parking_lot::MutexGuard<'a, ()>> {
    let mut sorted = inodes.to_vec();
    sorted.sort_by_key(|inode| (inode.tree.id(), inode.ino));
    sorted.into_iter().map(|inode| inode.data.flush.lock()).collect()
}

/// Is there something to write, or to wait for? Leaves the list of dirty inodes if not.
fn has_work(engine: &Engine, inode: &Arc<Inode>, from: u64) -> bool {
    let in_flight = {
        let mut state = inode.data.state.lock();
        engine.file.unlist(inode, &mut state);
        if state.dirty.next_dirty(from).is_some() {
            return true;
        }
        !state.in_flight.is_empty()
    };
    if in_flight {
        drop(inode.data.flush.lock());
        engine.file.unlist(inode, &mut inode.data.state.lock());
    }
    false
}

/// Moves dirty buffers from `from` on in flight, in order.
fn take_group(state: &mut DataState, from: &mut u64) -> Option<Group> {
    let mut group = Group {
        runs: Vec::new(),
        bytes: 0,
        reservation: None,
    };
    while group.bytes < GROUP_BYTES_MAX {
        let room = GROUP_BYTES_MAX - group.bytes;
        let Some(next) = state.dirty.next_dirty(*from) else {
            break;
        };
        let is_adjacent = group.runs.last().is_some_and(|run| run.range.end == next);
        if !is_adjacent && group.runs.len() == GROUP_RUNS_MAX {
            break;
        }
        let Some((start, buffer)) = state.dirty.take(*from, room as usize) else {
            break;
        };
        let end = start + buffer.len() as u64;
        let flight: Flight = Arc::new(buffer);
        state.in_flight.insert(start, flight.clone());
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
fn write_group(engine: &Engine, inode: &Arc<Inode>, mut group: Group, reservation: MetaReservation) -> Result<()> {
    let mut allocated = Vec::new();
    let prepared = match prepare_inline(inode, &group) {
        Ok(None) => prepare_extents(engine, inode, &mut group, &mut allocated),
        Ok(Some(change)) => Ok(change),
        Err(error) => Err(error),
    };
    let result = match prepared {
        Ok(change) => {
            items::apply(engine, inode, change, reservation, |attr, state| {
                update_disk_size(state, attr, true)
            });
            Ok(())
        }
        Err(error) => {
            for (addr, len_bytes) in allocated {
                engine.space.unalloc_data(addr, len_bytes);
            }
            tracing::error!(tree = %inode.tree.id(), ino = %inode.ino, %error, "dirty data could not be written and is lost");
            inode.data.note_error(error.clone());
            // What is lost reads as before it was written. The item must say so too, or a later sync that succeeds
            // would leave another size on disk than the mount shows. (Without NO_HOLES the size would need hole items.)
            if has_no_holes(engine) {
                items::apply(engine, inode, Change::default(), reservation, |attr, state| {
                    update_disk_size(state, attr, true)
                });
            }
            Err(error)
        }
    };
    let mut state = inode.data.state.lock();
    for (start, _) in group.runs.iter().flat_map(|run| &run.parts) {
        state.in_flight.remove(start);
    }
    state.landings += 1;
    engine.file.sub_dirty(group.bytes);
    drop(state);
    drop(group.reservation);
    for (_, flight) in group.runs.into_iter().flat_map(|run| run.parts) {
        if let Ok(buffer) = Arc::try_unwrap(flight) {
            recycle(buffer);
        }
    }
    result
}

/// A small file whose only data is its first block goes into its item, as on the kernel's side.
fn prepare_inline(inode: &Arc<Inode>, group: &Group) -> Result<Option<Change>> {
    let [Run { range, parts }] = &group.runs[..] else {
        return Ok(None);
    };
    let size = inode.attr.lock().attr.size;
    if *range != (0..BLOCK) || size > INLINE_BYTES_MAX || size == 0 {
        return Ok(None);
    }
    let existing = last_below(&inode.tree, inode.ino, u64::MAX)?;
    let is_in_the_way = |e: &Extent| e.start > 0 || e.on_disk().is_some_and(|d| d.is_prealloc);
    if existing.as_ref().is_some_and(is_in_the_way) {
        return Ok(None);
    }
    let Some((_, flight)) = parts.first() else {
        return Ok(None);
    };
    let extent = inline_extent(&flight[..size as usize]);
    let replacement = Replacement {
        range: 0..BLOCK,
        extents: vec![extent],
    };
    // A single extent longer than a block stays where it is not covered.
    let is_longer = existing.as_ref().is_some_and(|e| e.end() > BLOCK);
    if is_longer {
        return Ok(None);
    }
    let plan = replace::plan(existing.as_slice(), &[replacement]);
    Ok(Some(Change {
        plan,
        ..Change::default()
    }))
}

/// An inline extent that is about to be made.
pub(super) fn inline_extent(data: &[u8]) -> Extent {
    let (ram_bytes, compression) = (data.len() as u64, compression::NONE);
    let item = Item::Pending(encode_inline(data, NOW).into());
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

/// Where a part of a run goes.
struct Target {
    range: Range<u64>,
    disk: OnDisk,
}

fn prepare_extents(
    engine: &Engine,
    inode: &Arc<Inode>,
    group: &mut Group,
    allocated: &mut Vec<(LogicalAddr, u64)>,
) -> Result<Change> {
    let mut reservation = group.reservation.take();
    let mut existing: Vec<Extent> = Vec::new();
    let mut replacements = Vec::with_capacity(group.runs.len());
    let mut change = Change::default();
    let mut writes: Vec<(LogicalAddr, &[u8])> = Vec::new();
    let wants_sums = inode.flags() & flags::NODATASUM == 0;
    for run in &group.runs {
        let around = run.range.start.saturating_sub(1)..run.range.end + 1;
        let found = Walk::new(&inode.tree, inode.ino, around)?.collect()?;
        let targets = choose_targets(engine, inode, run, &found, reservation.as_mut(), allocated)?;
        let last = existing.last().map(|e| e.start);
        existing.extend(found.into_iter().filter(|e| last.is_none_or(|last| e.start > last)));
        for target in &targets {
            let addr = LogicalAddr(target.disk.addr.get() + target.disk.offset_bytes);
            let mut sums = Vec::new();
            let mut at = addr.get();
            for slice in slices(run, &target.range) {
                writes.push((LogicalAddr(at), slice));
                at += slice.len() as u64;
                if wants_sums {
                    csum::compute(engine.volume.csum_type(), slice, &mut sums);
                }
            }
            if wants_sums {
                change.sums.push((addr, sums));
            }
        }
        let extents = targets.into_iter().map(|target| Extent {
            start: target.range.start,
            len_bytes: target.range.end - target.range.start,
            generation: NOW,
            kind: Kind::Disk(target.disk),
        });
        replacements.push(Replacement {
            range: run.range.clone(),
            extents: extents.collect(),
        });
    }
    engine.volume.write(&writes)?;
    change.fresh = allocated.iter().map(|(addr, _)| *addr).collect();
    change.plan = replace::plan(&existing, &replacements);
    Ok(change)
}

/// The parts of a run's buffers in a range.
fn slices<'r>(run: &'r Run, range: &Range<u64>) -> impl Iterator<Item = &'r [u8]> {
    let range = range.clone();
    let first = run
        .parts
        .partition_point(|(start, part)| start + part.len() as u64 <= range.start);
    run.parts[first..].iter().map_while(move |(start, part)| {
        let (from, to) = (range.start.max(*start), range.end.min(start + part.len() as u64));
        (from < to).then(|| &part[(from - start) as usize..(to - start) as usize])
    })
}

/// Preallocated parts are written where they are if nobody else sees them; the rest gets new extents.
fn choose_targets(
    engine: &Engine,
    inode: &Arc<Inode>,
    run: &Run,
    existing: &[Extent],
    mut reservation: Option<&mut DataReservation>,
    allocated: &mut Vec<(LogicalAddr, u64)>,
) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    let mut pos = run.range.start;
    for extent in existing {
        let Kind::Disk(disk) = &extent.kind else { continue };
        let (from, to) = (extent.start.max(pos), extent.end().min(run.range.end));
        if from >= to || !disk.is_prealloc || !sharing::is_exclusive(engine, inode, extent, disk)? {
            continue;
        }
        allocate(engine, pos..from, reservation.as_deref_mut(), allocated, &mut targets)?;
        let offset_bytes = disk.offset_bytes + (from - extent.start);
        targets.push(Target {
            range: from..to,
            disk: OnDisk {
                offset_bytes,
                is_prealloc: false,
                ..*disk
            },
        });
        pos = to;
    }
    allocate(engine, pos..run.range.end, reservation, allocated, &mut targets)?;
    Ok(targets)
}

/// New extents for a range of the file.
fn allocate(
    engine: &Engine,
    range: Range<u64>,
    reservation: Option<&mut DataReservation>,
    allocated: &mut Vec<(LogicalAddr, u64)>,
    targets: &mut Vec<Target>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let reservation = reservation.ok_or(Error::NoSpace)?;
    let mut pos = range.start;
    while pos < range.end {
        let want = (range.end - pos).min(EXTENT_BYTES_MAX);
        let (addr, len_bytes) = engine.space.alloc_data(reservation, want)?;
        allocated.push((addr, len_bytes));
        let disk = new_extent(addr, len_bytes, false);
        targets.push(Target {
            range: pos..pos + len_bytes,
            disk,
        });
        pos += len_bytes;
    }
    Ok(())
}

/// All of an extent that was just allocated.
pub(super) fn new_extent(addr: LogicalAddr, len_bytes: u64, is_prealloc: bool) -> OnDisk {
    OnDisk {
        addr,
        len_bytes,
        offset_bytes: 0,
        ram_bytes: len_bytes,
        compression: compression::NONE,
        is_prealloc,
    }
}
