//! Where the data of a group goes: in place, compressed into an extent of its own, or as it is into
//! new extents. Compression, checksums and writing are shared among workers; what comes out does
//! not depend on how many there are.
//!
//! Space is taken out of the reservation in the order of the file, when all sizes are known: a
//! compressed extent takes less than was reserved for it, and the rest is given back with the
//! reservation.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use btrfs_format::LogicalAddr;
use btrfs_format::items::compression;
use cowshed_vfs::Algorithm;

use super::items::{Change, NOW};
use super::pack::{self, Choice, Packed};
use super::replace::{self, Replacement};
use super::{csum, sharing};
use crate::block::EXTENT_BYTES_MAX;
use crate::compression::compress;
use crate::error::{Error, Result, StoreError};
use crate::extent::{Extent, Kind, OnDisk, Walk};
use crate::files::Files;
use crate::object::{Inode, flags};
use crate::pagecache::Flight;
use btrfs_store::space::DataReservation;

/// Bytes that a worker checksums and writes at once, at most and at least.
const JOB_BYTES: RangeInclusive<usize> = 128 << 10..=1 << 20;
/// Every worker has so many jobs, if they are not too small for that: all are done at about the
/// same time.
const JOBS_EACH: usize = 4;

/// Adjacent dirty buffers.
#[derive(Debug)]
pub(super) struct Run {
    pub range: Range<u64>,
    pub parts: Vec<(u64, Flight)>,
}

/// The parts of a run's buffers in a range.
pub(super) fn slices<'r>(run: &'r Run, range: &Range<u64>) -> impl Iterator<Item = &'r [u8]> + use<'r> {
    let range = range.clone();
    let first = run
        .parts
        .partition_point(|(start, part)| start + part.len() as u64 <= range.start);
    run.parts[first..].iter().map_while(move |(start, part)| {
        let (from, to) = (range.start.max(*start), range.end.min(start + part.len() as u64));
        (from < to).then(|| &part[(from - start) as usize..(to - start) as usize])
    })
}

/// What is to become of a part of a run.
#[derive(Debug)]
enum Spot {
    /// Written where it was preallocated, or over the old data.
    InPlace {
        range: Range<u64>,
        disk: OnDisk,
        /// Data takes the place of data: no item says anything else afterwards.
        keeps_item: bool,
    },
    /// Gets new extents.
    Fresh(Range<u64>, Packed),
}

/// A part of a run that has its place.
#[derive(Debug)]
struct Target {
    range: Range<u64>,
    disk: OnDisk,
    /// What is written, where that is not the data itself.
    packed: Option<Vec<u8>>,
    keeps_item: bool,
}

/// What a group became.
#[derive(Debug)]
pub(super) struct Placed {
    pub change: Change,
    /// Something did not become smaller: the file is left alone from now on.
    pub is_incompressible: bool,
    /// Whether compressing went well, where it was tried ([`pack::went_well`]).
    pub packs_well: Option<bool>,
}

/// Finds places for all runs, writes their data and prepares the items. What was allocated is in
/// `allocated`, also when an error is returned.
pub(super) fn place(
    files: &Files,
    inode: &Arc<Inode>,
    runs: &[Run],
    choice: Option<Choice>,
    mut reservation: Option<DataReservation>,
    allocated: &mut Vec<(LogicalAddr, u64)>,
) -> Result<Placed> {
    // Without space for new extents data is written in place in any case.
    let moves_data = reservation.is_some() && inode.data.state.lock().defrag.is_some();
    let mut spots = Vec::with_capacity(runs.len());
    let mut existing = Vec::new();
    for run in runs {
        let found = gather(inode, &run.range, &mut existing)?;
        spots.push(lay_out(files, inode, run, found, choice.is_some(), moves_data)?);
    }
    let (is_incompressible, packs_well) = match choice {
        Some(choice) => pack_all(files, choice, runs, &mut spots),
        None => (false, None),
    };
    let mut targets = Vec::with_capacity(runs.len());
    for spots in spots {
        targets.push(find_places(files, spots, reservation.as_mut(), allocated)?);
    }
    let sums = write(files, inode, runs, &targets)?;
    let streams = targets.iter_mut().flatten().filter_map(|target| target.packed.take());
    streams.for_each(compress::recycle);
    let replacements: Vec<_> = targets.into_iter().flat_map(replacements_of).collect();
    Ok(Placed {
        change: Change {
            plan: replace::plan_checked(&inode.tree, inode.ino, &existing, &replacements)?,
            fresh: allocated.iter().map(|(addr, _)| *addr).collect(),
            sums,
        },
        is_incompressible,
        packs_well,
    })
}

/// Adds the extents in a range and next to it to those of ranges before it; returns all of the
/// range.
pub(super) fn gather<'e>(inode: &Inode, range: &Range<u64>, existing: &'e mut Vec<Extent>) -> Result<&'e [Extent]> {
    let around = range.start.saturating_sub(1)..range.end + 1;
    let found = Walk::new(&inode.tree, inode.ino, around)?.collect()?;
    // What reaches from the range before to this one is known.
    let first = found.first().map_or(u64::MAX, |e| e.start);
    existing.truncate(existing.partition_point(|e| e.start < first));
    let from = existing.len();
    existing.extend(found);
    Ok(&existing[from..])
}

/// What may be written in place is; the rest gets new extents. `moves_data`: data takes the place
/// of no data.
fn lay_out(
    files: &Files,
    inode: &Arc<Inode>,
    run: &Run,
    existing: &[Extent],
    in_chunks: bool,
    moves_data: bool,
) -> Result<Vec<Spot>> {
    let mut spots = Vec::new();
    let fresh = |spots: &mut Vec<Spot>, range: Range<u64>| {
        let spot = |range| Spot::Fresh(range, Packed::Raw { marks: false });
        if range.is_empty() {
        } else if in_chunks {
            spots.extend(pack::chunks(range).map(spot));
        } else {
            spots.push(spot(range));
        }
    };
    let mut pos = run.range.start;
    for extent in existing {
        let Kind::Disk(disk) = &extent.kind else { continue };
        let (from, to) = (extent.start.max(pos), extent.end().min(run.range.end));
        if from >= to || (moves_data && !disk.is_prealloc) || !sharing::may_write_in_place(files, inode, extent, disk)?
        {
            continue;
        }
        fresh(&mut spots, pos..from);
        let place = OnDisk {
            offset_bytes: disk.offset_bytes + (from - extent.start),
            is_prealloc: false,
            ..*disk
        };
        spots.push(Spot::InPlace {
            range: from..to,
            disk: place,
            keeps_item: !disk.is_prealloc,
        });
        pos = to;
    }
    fresh(&mut spots, pos..run.range.end);
    Ok(spots)
}

/// Could all of a range be written in place?
pub(super) fn has_place(files: &Files, inode: &Arc<Inode>, range: &Range<u64>) -> Result<bool> {
    let mut walk = Walk::new(&inode.tree, inode.ino, range.clone())?;
    let mut pos = range.start;
    while pos < range.end {
        let Some(extent) = walk.next()?.filter(|e| e.start <= pos) else {
            return Ok(false);
        };
        let Kind::Disk(disk) = &extent.kind else {
            return Ok(false);
        };
        if !sharing::may_write_in_place(files, inode, &extent, disk)? {
            return Ok(false);
        }
        pos = extent.end();
    }
    Ok(true)
}

/// Compresses what gets new extents: did something fail to become smaller that should have, and did
/// it go well ([`Placed::packs_well`])?
fn pack_all(files: &Files, choice: Choice, runs: &[Run], spots: &mut [Vec<Spot>]) -> (bool, Option<bool>) {
    let mut jobs = Vec::new();
    for (run, spots) in runs.iter().zip(spots) {
        for spot in spots {
            if let Spot::Fresh(range, packed) = spot {
                jobs.push((run, &*range, packed));
            }
        }
    }
    let packed = files.store().workers().run(jobs, |(run, range, packed)| {
        *packed = pack::pack_chunk(files, choice, run, range);
        (packed.marks(), packed.is_smaller())
    });
    let marks = packed.iter().any(|(marks, _)| *marks);
    let smaller = packed.iter().filter(|(_, is_smaller)| *is_smaller).count();
    let packs_well = (!packed.is_empty()).then(|| pack::went_well(packed.len(), smaller));
    (marks, packs_well)
}

/// Allocates in order. Adjacent parts that are not compressed share extents.
fn find_places(
    files: &Files,
    spots: Vec<Spot>,
    mut reservation: Option<&mut DataReservation>,
    allocated: &mut Vec<(LogicalAddr, u64)>,
) -> Result<Vec<Target>> {
    let mut targets = Vec::with_capacity(spots.len());
    let mut raw = 0..0;
    for spot in spots {
        let (range, packed) = match spot {
            Spot::Fresh(range, Packed::Smaller { algorithm, bytes }) => {
                let held = reservation.as_deref_mut().ok_or(Error::Store(StoreError::NoSpace))?;
                match place_packed(files, &range, algorithm, bytes, held, allocated)? {
                    Some(target) => (range, Some(target)),
                    None => (range, None),
                }
            }
            Spot::Fresh(range, Packed::Raw { .. }) => (range, None),
            Spot::InPlace {
                range,
                disk,
                keeps_item,
            } => {
                let target = Target {
                    range: range.clone(),
                    disk,
                    packed: None,
                    keeps_item,
                };
                (range, Some(target))
            }
        };
        match packed {
            None if raw.end == range.start && !raw.is_empty() => raw.end = range.end,
            None => {
                allocate(files, raw, reservation.as_deref_mut(), allocated, &mut targets)?;
                raw = range;
            }
            Some(target) => {
                allocate(
                    files,
                    std::mem::take(&mut raw),
                    reservation.as_deref_mut(),
                    allocated,
                    &mut targets,
                )?;
                targets.push(target);
            }
        }
    }
    allocate(files, raw, reservation, allocated, &mut targets)?;
    Ok(targets)
}

/// An extent for compressed data; `None` where free space has no piece that is large enough.
fn place_packed(
    files: &Files,
    range: &Range<u64>,
    algorithm: Algorithm,
    bytes: Vec<u8>,
    reservation: &mut DataReservation,
    allocated: &mut Vec<(LogicalAddr, u64)>,
) -> Result<Option<Target>> {
    let len_bytes = bytes.len() as u64;
    let Some(addr) = files.store().space().alloc_data_whole(reservation, len_bytes)? else {
        return Ok(None);
    };
    allocated.push((addr, len_bytes));
    files.store().volume().need_features(compress::feature(algorithm));
    let disk = OnDisk {
        ram_bytes: range.end - range.start,
        compression: compress::on_disk(algorithm),
        ..new_extent(addr, len_bytes, false)
    };
    Ok(Some(Target {
        range: range.clone(),
        disk,
        packed: Some(bytes),
        keeps_item: false,
    }))
}

/// New extents for a range of the file.
fn allocate(
    files: &Files,
    range: Range<u64>,
    reservation: Option<&mut DataReservation>,
    allocated: &mut Vec<(LogicalAddr, u64)>,
    targets: &mut Vec<Target>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let reservation = reservation.ok_or(Error::Store(StoreError::NoSpace))?;
    let mut pos = range.start;
    while pos < range.end {
        let want = (range.end - pos).min(EXTENT_BYTES_MAX);
        let (addr, len_bytes) = files.store().space().alloc_data(reservation, want)?;
        allocated.push((addr, len_bytes));
        targets.push(Target {
            range: pos..pos + len_bytes,
            disk: new_extent(addr, len_bytes, false),
            packed: None,
            keeps_item: false,
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

/// What is overwritten in place keeps its items.
fn replacements_of(targets: Vec<Target>) -> Vec<Replacement> {
    let mut all: Vec<Replacement> = Vec::new();
    for Target { range, disk, .. } in targets.into_iter().filter(|target| !target.keeps_item) {
        let extent = Extent {
            start: range.start,
            len_bytes: range.end - range.start,
            generation: NOW,
            kind: Kind::Disk(disk),
        };
        match all.last_mut() {
            Some(last) if last.range.end == range.start => {
                last.range.end = range.end;
                last.extents.push(extent);
            }
            _ => all.push(Replacement {
                range,
                extents: vec![extent],
            }),
        }
    }
    all
}

/// Writes data to its places; returns its checksums by address.
fn write(
    files: &Files,
    inode: &Arc<Inode>,
    runs: &[Run],
    targets: &[Vec<Target>],
) -> Result<Vec<(LogicalAddr, Vec<u8>)>> {
    let jobs = write_jobs(runs, targets, files.store().workers().threads());
    let wants_sums = inode.flags() & flags::NODATASUM == 0;
    let done = files.store().workers().run(jobs, |writes| -> Result<Vec<_>> {
        let mut sums = Vec::new();
        if wants_sums {
            let sum =
                |&(addr, data): &(LogicalAddr, &[u8])| (addr, csum::compute(files.store().volume().csum_type(), data));
            sums.extend(writes.iter().map(sum));
        }
        files.store().volume().write(&writes)?;
        Ok(sums)
    });
    let mut all = Vec::new();
    for sums in done {
        all.extend(sums?);
    }
    Ok(all)
}

/// All writes, in portions for so many workers.
fn write_jobs<'r>(runs: &'r [Run], targets: &'r [Vec<Target>], workers: usize) -> Vec<Vec<(LogicalAddr, &'r [u8])>> {
    let len = |target: &Target| match &target.packed {
        Some(packed) => packed.len(),
        None => (target.range.end - target.range.start) as usize,
    };
    let total: usize = targets.iter().flatten().map(len).sum();
    let portion = (total / (workers * JOBS_EACH)).clamp(*JOB_BYTES.start(), *JOB_BYTES.end());
    let mut jobs: Vec<Vec<(LogicalAddr, &[u8])>> = Vec::new();
    let mut job_bytes = 0;
    let mut add = |addr: u64, data: &'r [u8]| {
        if jobs.is_empty() || job_bytes >= portion {
            jobs.push(Vec::new());
            job_bytes = 0;
        }
        job_bytes += data.len();
        if let Some(job) = jobs.last_mut() {
            job.push((LogicalAddr(addr), data));
        }
    };
    for (run, targets) in runs.iter().zip(targets) {
        for target in targets {
            let mut at = target.disk.addr.get() + target.disk.offset_bytes;
            if let Some(packed) = &target.packed {
                add(at, packed);
                continue;
            }
            for slice in slices(run, &target.range) {
                add(at, slice);
                at += slice.len() as u64;
            }
        }
    }
    jobs
}
