//! Checksums of data: where they are, where they must be, and whether the data agrees.
//!
//! The ranges with checksums are kept as sorted, merged runs: 16 bytes per run.

use std::collections::{BTreeMap, BTreeSet};

use btrfs_format::{Key, KeyType, ObjectId, TreeId};

use crate::finding::{FindingId as Id, Site};
use crate::options::Phase;
use crate::util::{count, index, is_aligned};
use crate::volume::{ReadFault, Volume};
use crate::walk::{Cx, Root, Shared, item_site, len_bytes};

/// Bytes read at once.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Ranges that have checksums.
#[derive(Debug, Default)]
pub(crate) struct CsumMap {
    /// Start and end, sorted, not touching.
    runs: Vec<(u64, u64)>,
    /// The tree was read whole: what is not here is missing.
    pub(crate) whole: bool,
}

impl CsumMap {
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = &(u64, u64)> {
        let from = self.runs.partition_point(|run| run.1 <= start);
        let runs = self.runs.get(from..).unwrap_or_default().iter();
        runs.take_while(move |run| run.0 < end)
    }

    /// Bytes of the range that have checksums.
    pub(crate) fn covered_bytes(&self, start: u64, end: u64) -> u64 {
        self.overlapping(start, end).fold(0u64, |sum, run| {
            sum.saturating_add(run.1.min(end).saturating_sub(run.0.max(start)))
        })
    }

    /// The parts of a range that have none.
    pub(crate) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let from = self.runs.partition_point(|run| run.1 <= start);
        let mut gaps = Vec::new();
        let mut at = start;
        for run in self.runs.get(from..).unwrap_or_default() {
            if run.0 >= end {
                break;
            }
            if run.0 > at {
                gaps.push((at, run.0));
            }
            at = at.max(run.1);
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }
}

/// Ranges, overlapping or not, as such a map.
pub(crate) fn ranges_of(ranges: &BTreeSet<(u64, u64)>) -> CsumMap {
    let mut map = CsumMap::default();
    for &(start, end) in ranges {
        match map.runs.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => map.runs.push((start, end)),
        }
    }
    map
}

/// The ranges that have checksums, in any of these.
pub(crate) fn runs_of(all: &[Sums], csum_bytes: usize, sectorsize: u64) -> CsumMap {
    let range = |(&start, sums): (&u64, &Vec<u8>)| {
        let sectors = count(sums.len().checked_div(csum_bytes).unwrap_or(0));
        (start, start.saturating_add(sectors.saturating_mul(sectorsize)))
    };
    ranges_of(&all.iter().flatten().map(range).collect())
}

/// Reads the tree: which ranges have checksums.
pub(crate) fn read(cx: &mut Cx<'_>, root: &Root) -> CsumMap {
    let mut map = CsumMap::default();
    let whole = cx.walk(root, Shared::Skip, &mut |cx, leaf, _| {
        for (key, data) in leaf.items() {
            let site = item_site(TreeId::CSUM, leaf, key);
            if key.ty != KeyType::EXTENT_CSUM || key.objectid != ObjectId::EXTENT_CSUM {
                cx.sink
                    .add(Id::ItemForeign, site, "does not belong in the checksum tree");
                continue;
            }
            cx.stats.csum_bytes = cx.stats.csum_bytes.saturating_add(len_bytes(data));
            let size = cx.vol.csum.size_bytes();
            let whole = data.len().is_multiple_of(size) && !data.is_empty();
            if !whole || !is_aligned(key.offset, cx.vol.sectorsize) {
                cx.sink.add(
                    Id::CsumItemInvalid,
                    site,
                    format!("{} bytes at {}", data.len(), key.offset),
                );
                continue;
            }
            let sectors = count(data.len().checked_div(size).unwrap_or(0));
            let end = key.offset.saturating_add(sectors.saturating_mul(cx.vol.sectorsize));
            match map.runs.last_mut() {
                Some(last) if last.1 > key.offset => {
                    cx.sink.add(Id::CsumItemInvalid, site, "overlaps the item before it");
                    last.1 = last.1.max(end);
                }
                Some(last) if last.1 == key.offset => last.1 = end,
                _ => map.runs.push((key.offset, end)),
            }
        }
    });
    map.whole = whole;
    map
}

/// Checksums must lie on data extents, or on data that the log leads to.
pub(crate) fn check_orphans(cx: &mut Cx<'_>, map: &CsumMap, logged: &CsumMap) {
    for &(start, end) in &map.runs {
        let mut at = start;
        let mut orphan = 0u64;
        let mut first = None;
        let mut gap = |from: u64, to: u64| {
            let len = to.saturating_sub(from).saturating_sub(logged.covered_bytes(from, to));
            if len > 0 {
                orphan = orphan.saturating_add(len);
                first = first.or(Some(from));
            }
        };
        for extent in cx.extents.overlapping(start, end).filter(|e| e.is_data()) {
            if extent.addr > at {
                gap(at, extent.addr);
            }
            at = at.max(extent.end());
        }
        if at < end {
            gap(at, end);
        }
        if let Some(first) = first {
            let what = format!("{orphan} bytes of {start} to {end} have checksums but are no data");
            cx.sink.add(Id::CsumOrphan, Site::addr(first), what);
        }
    }
}

/// A run of sectors to compare, of one copy.
struct Job<'l> {
    start: u64,
    end: u64,
    copy: u64,
    sums: &'l [u8],
}

type Fault = (Id, Site, String);

/// Reads all data that has checksums, every copy, and compares.
pub(crate) fn verify_data(cx: &mut Cx<'_>, root: &Root, map: &CsumMap) {
    let total = map
        .runs
        .iter()
        .fold(0u64, |sum, run| sum.saturating_add(run.1.saturating_sub(run.0)));
    let mut done = 0u64;
    cx.seen.clear();
    let muted = std::mem::replace(&mut cx.sink.muted, true);
    cx.walk(root, Shared::Skip, &mut |cx, leaf, _| {
        let mut jobs = Vec::new();
        for (key, data) in leaf.items() {
            if key.ty == KeyType::EXTENT_CSUM {
                done = done.saturating_add(plan_item(cx, key, data, &mut jobs));
            }
        }
        cx.sink.muted = false;
        for (verified_bytes, faults) in run_jobs(cx, &jobs) {
            cx.stats.data_verified_bytes = cx.stats.data_verified_bytes.saturating_add(verified_bytes);
            for (id, site, what) in faults {
                cx.sink.add(id, site, what);
            }
        }
        cx.sink.muted = true;
        cx.progress(Phase::Data, done, total);
    });
    cx.sink.muted = muted;
}

/// Checksums of data by the address of the first sector of each run.
pub(crate) type Sums = BTreeMap<u64, Vec<u8>>;

/// Compares data of these ranges with checksums, where there are some; every copy.
pub(crate) fn verify_ranges(cx: &mut Cx<'_>, ranges: &CsumMap, sums: &Sums) {
    let (size, sector) = (cx.vol.csum.size_bytes(), cx.vol.sectorsize);
    for (&at, sums) in sums {
        let sums_end = at.saturating_add(count(sums.len().checked_div(size).unwrap_or(0)).saturating_mul(sector));
        let mut jobs = Vec::new();
        for &(start, end) in ranges.overlapping(at, sums_end) {
            let (mut from, to) = (at.max(start), sums_end.min(end));
            while from < to {
                let upto = to.min(from.saturating_add(READ_BYTES_MAX));
                let first = index(from.saturating_sub(at).checked_div(sector).unwrap_or(0));
                for copy in 0..cx.vol.chunks.copies(from).max(1) {
                    jobs.push(Job {
                        start: from,
                        end: upto,
                        copy,
                        sums: sums.get(first.saturating_mul(size)..).unwrap_or_default(),
                    });
                }
                from = upto;
            }
        }
        for (verified_bytes, faults) in run_jobs(cx, &jobs) {
            cx.stats.data_verified_bytes = cx.stats.data_verified_bytes.saturating_add(verified_bytes);
            for (id, site, what) in faults {
                cx.sink.add(id, site, what);
            }
        }
    }
}

/// Cuts an item's range into jobs; the bytes that it covers.
fn plan_item<'l>(cx: &Cx<'_>, key: Key, data: &'l [u8], jobs: &mut Vec<Job<'l>>) -> u64 {
    let size = cx.vol.csum.size_bytes();
    let sectors = count(data.len().checked_div(size).unwrap_or(0));
    let len = sectors.saturating_mul(cx.vol.sectorsize);
    let end = key.offset.saturating_add(len);
    for extent in cx.extents.overlapping(key.offset, end).filter(|e| e.is_data()) {
        let (mut at, to) = (extent.addr.max(key.offset), extent.end().min(end));
        while at < to {
            let upto = to.min(at.saturating_add(READ_BYTES_MAX));
            let first = index(
                at.saturating_sub(key.offset)
                    .checked_div(cx.vol.sectorsize)
                    .unwrap_or(0),
            );
            let sums = data.get(first.saturating_mul(size)..).unwrap_or_default();
            for copy in 0..cx.vol.chunks.copies(at).max(1) {
                jobs.push(Job {
                    start: at,
                    end: upto,
                    copy,
                    sums,
                });
            }
            at = upto;
        }
    }
    len
}

/// Does the jobs on as many threads as the options allow; the results are in the order of the jobs.
fn run_jobs(cx: &Cx<'_>, jobs: &[Job<'_>]) -> Vec<(u64, Vec<Fault>)> {
    let vol = &cx.vol;
    let all = |jobs: &[Job<'_>]| jobs.iter().map(|job| verify_run(vol, job)).collect::<Vec<_>>();
    let share = jobs.len().div_ceil(cx.opts.threads.max(1)).max(1);
    if share >= jobs.len() {
        return all(jobs);
    }
    let mut done = Vec::new();
    std::thread::scope(|scope| {
        let parts: Vec<_> = jobs.chunks(share).map(|part| scope.spawn(move || all(part))).collect();
        for part in parts {
            done.extend(part.join().unwrap_or_default());
        }
    });
    done
}

/// Compares one copy of a run of sectors with its checksums.
fn verify_run(vol: &Volume, job: &Job<'_>) -> (u64, Vec<Fault>) {
    let mut bytes = vec![0; index(job.end.saturating_sub(job.start))];
    let fault = |at: u64, id: Id, what: &str| {
        let name = vol.copy_name(at, job.copy);
        (id, Site::addr(at), format!("{name}: {what}"))
    };
    match vol.read_copy(job.start, job.copy, &mut bytes) {
        Ok(()) => {}
        Err(ReadFault::Missing) => return (0, Vec::new()),
        Err(ReadFault::Unmapped) => return (0, vec![fault(job.start, Id::DataUnreadable, "in no chunk")]),
        Err(ReadFault::Failed { message }) => {
            return (0, vec![fault(job.start, Id::DataUnreadable, &message)]);
        }
    }
    let size = vol.csum.size_bytes();
    let mut at = job.start;
    let mut faults = Vec::new();
    for (data, sum) in bytes.chunks(index(vol.sectorsize)).zip(job.sums.chunks(size)) {
        let computed = vol.csum.compute(data);
        if computed.get(..size) != Some(sum) {
            faults.push(fault(at, Id::DataCsum, "data does not match its checksum"));
        }
        at = at.saturating_add(vol.sectorsize);
    }
    (count(bytes.len()), faults)
}
