//! Joins neighbours of a batch into vectored I/O, and announces reads for which a disk must be
//! asked before they are done one after the other. Why not io_uring:
//! docs/decisions/004-batches-through-the-page-cache.md.

use std::io::{IoSlice, IoSliceMut};

use crate::{BlockDevice, ReadOp, Result, WriteOp};

/// The most buffers of one vectored call: what Linux takes at once (`UIO_MAXIOV`).
pub(crate) const VECTOR_BUFS_MAX: usize = 1024;

pub(crate) fn write<D: BlockDevice + ?Sized>(device: &D, writes: &[WriteOp<'_>]) -> Result<()> {
    let mut sorted: Vec<WriteOp<'_>> = writes.iter().filter(|w| !w.data.is_empty()).copied().collect();
    if !sorted.is_sorted_by_key(|w| w.offset_bytes) {
        sorted.sort_by_key(|w| w.offset_bytes);
    }
    debug_assert!(
        sorted
            .windows(2)
            .all(|pair| pair[0].offset_bytes + pair[0].data.len() as u64 <= pair[1].offset_bytes),
        "the writes of a batch must not overlap, their order is free"
    );
    let mut bufs: Vec<IoSlice<'_>> = Vec::new();
    for run in sorted.chunk_by(|a, b| a.offset_bytes.checked_add(a.data.len() as u64) == Some(b.offset_bytes)) {
        for part in run.chunks(VECTOR_BUFS_MAX) {
            if let [single] = part {
                device.write_at(single.offset_bytes, single.data)?;
            } else {
                bufs.clear();
                bufs.extend(part.iter().map(|w| IoSlice::new(w.data)));
                device.write_vectored_at(part[0].offset_bytes, &bufs)?;
            }
        }
    }
    Ok(())
}

/// How many runs are announced before the first of them is read: what a disk can sort and do at
/// once, and little enough that nothing is thrown out of memory again before its turn.
pub(crate) const ANNOUNCED_RUNS_MAX: usize = 64;

/// What lies below a device and may hold some of its bytes in memory.
pub(crate) trait Cache {
    /// Fills the buffers, one after the other from consecutive bytes, if that takes no waiting.
    /// Otherwise their contents are unspecified. Never an error: what is wrong with a range, the
    /// read itself will tell.
    fn read_if_there(&self, offset_bytes: u64, bufs: &mut [IoSliceMut<'_>]) -> bool;

    /// May begin to fetch a range that is going to be read soon.
    fn announce(&self, offset_bytes: u64, len_bytes: u64);
}

/// Holds nothing, or gives it no faster than a read does.
pub(crate) struct NoCache;

impl Cache for NoCache {
    fn read_if_there(&self, _offset_bytes: u64, _bufs: &mut [IoSliceMut<'_>]) -> bool {
        false
    }

    fn announce(&self, _offset_bytes: u64, _len_bytes: u64) {}
}

/// As long as all is in memory nothing is announced: that would be a tenth of the whole work.
/// Announcing begins with the first run that is not there. Neither is of use where there is but one
/// place to go to.
pub(crate) fn read<D: BlockDevice + ?Sized>(device: &D, reads: &mut [ReadOp<'_>], cache: &impl Cache) -> Result<()> {
    let mut sorted: Vec<&mut ReadOp<'_>> = reads.iter_mut().filter(|r| !r.buf.is_empty()).collect();
    if !sorted.is_sorted_by_key(|r| r.offset_bytes) {
        sorted.sort_by_key(|r| r.offset_bytes);
    }
    let mut runs: Vec<_> = sorted
        .chunk_by_mut(|a, b| a.offset_bytes.checked_add(a.buf.len() as u64) == Some(b.offset_bytes))
        .collect();
    let places: Vec<(u64, u64)> = runs
        .iter()
        .map(|run| (run[0].offset_bytes, run.iter().map(|r| r.buf.len() as u64).sum()))
        .collect();
    let is_last = |index| index + 1 == places.len();
    let mut all_there = places.len() > 1;
    let mut to_announce = places.len();
    for (index, run) in runs.iter_mut().enumerate() {
        for part in run.chunks_mut(VECTOR_BUFS_MAX) {
            if all_there {
                if part_if_there(part, cache) {
                    continue;
                }
                all_there = false;
                to_announce = if is_last(index) { places.len() } else { index };
            }
            while to_announce < places.len().min(index + ANNOUNCED_RUNS_MAX) {
                let (offset_bytes, len_bytes) = places[to_announce];
                cache.announce(offset_bytes, len_bytes);
                to_announce += 1;
            }
            if let [single] = part {
                device.read_at(single.offset_bytes, single.buf)?;
            } else {
                device.read_vectored_at(part[0].offset_bytes, &mut vector(part))?;
            }
        }
    }
    Ok(())
}

fn part_if_there(part: &mut [&mut ReadOp<'_>], cache: &impl Cache) -> bool {
    if let [single] = part {
        cache.read_if_there(single.offset_bytes, &mut [IoSliceMut::new(single.buf)])
    } else {
        cache.read_if_there(part[0].offset_bytes, &mut vector(part))
    }
}

fn vector<'v>(part: &'v mut [&mut ReadOp<'_>]) -> Vec<IoSliceMut<'v>> {
    part.iter_mut().map(|read| IoSliceMut::new(read.buf)).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::MemDevice;

    const READ_BYTES: usize = 1024;

    /// Has what lies below an offset, and takes down what it is asked and told.
    #[derive(Default)]
    struct UpTo {
        end_bytes: u64,
        asked: RefCell<Vec<u64>>,
        announced: RefCell<Vec<(u64, u64)>>,
    }

    /// The byte that it fills with, so that its part of a read can be told from the device's.
    const CACHED: u8 = 0xca;

    impl Cache for UpTo {
        fn read_if_there(&self, offset_bytes: u64, bufs: &mut [IoSliceMut<'_>]) -> bool {
            self.asked.borrow_mut().push(offset_bytes);
            let len_bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
            bufs.iter_mut().for_each(|buf| buf.fill(CACHED));
            offset_bytes + len_bytes as u64 <= self.end_bytes
        }

        fn announce(&self, offset_bytes: u64, len_bytes: u64) {
            self.announced.borrow_mut().push((offset_bytes, len_bytes));
        }
    }

    /// Reads that many places of a device of zeros, the last one first; `gap_bytes` apart.
    fn read_places(count: usize, gap_bytes: u64, cache: &UpTo) -> Vec<[u8; READ_BYTES]> {
        let device = MemDevice::new("memory", 1 << 20);
        let mut bufs = vec![[0xee; READ_BYTES]; count];
        let mut reads: Vec<_> = bufs
            .iter_mut()
            .enumerate()
            .map(|(index, buf)| ReadOp {
                offset_bytes: index as u64 * (READ_BYTES as u64 + gap_bytes),
                buf,
            })
            .collect();
        reads.reverse();
        read(&device, &mut reads, cache).unwrap();
        bufs
    }

    #[test]
    fn places_are_announced_once_and_in_order_unless_there_is_but_one() {
        const READS: usize = 3 * ANNOUNCED_RUNS_MAX;
        for (gap_bytes, expected) in [(512, READS), (0, 0)] {
            let cache = UpTo::default();
            let bufs = read_places(READS, gap_bytes, &cache);
            assert!(bufs.as_flattened().iter().all(|byte| *byte == 0));
            let all: Vec<_> = (0..expected as u64).map(|index| (index * 1536, 1024)).collect();
            assert_eq!(cache.announced.into_inner(), all);
            // The first one is not cached, and no further one is asked for.
            assert_eq!(cache.asked.into_inner().len(), expected.min(1));
        }
    }

    #[test]
    fn what_is_in_memory_is_neither_announced_nor_read_from_the_device() {
        const READS: u64 = 100;
        for there in [0, 1, 70, READS - 2, READS - 1, READS] {
            let cache = UpTo {
                end_bytes: there * 1536,
                ..UpTo::default()
            };
            let bufs = read_places(READS as usize, 512, &cache);
            for (index, buf) in bufs.iter().enumerate() {
                let expected = if (index as u64) < there { CACHED } else { 0 };
                assert_eq!(buf, &[expected; READ_BYTES], "{index} of {there}");
            }
            let asked: Vec<_> = (0..READS.min(there + 1)).map(|index| index * 1536).collect();
            assert_eq!(cache.asked.into_inner(), asked);
            // One place that is left over need not be announced.
            let missing = if READS - there > 1 { there..READS } else { 0..0 };
            let announced: Vec<_> = missing.map(|index| (index * 1536, 1024)).collect();
            assert_eq!(cache.announced.into_inner(), announced);
        }
    }
}
