//! Joins neighbours of a batch into vectored I/O, and announces reads before they are done one after the other.
//! Why not io_uring: docs/decisions/004-batches-through-the-page-cache.md.

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

/// How many runs are announced before the first of them is read: what a disk can sort and do at once, and little enough
/// that nothing is thrown out of memory again before its turn.
pub(crate) const ANNOUNCED_RUNS_MAX: usize = 64;

/// `announce(offset_bytes, len_bytes)` may begin to fetch a range that is going to be read soon. It is called where there
/// is more than one place to go to.
pub(crate) fn read<D: BlockDevice + ?Sized>(
    device: &D,
    reads: &mut [ReadOp<'_>],
    announce: impl Fn(u64, u64),
) -> Result<()> {
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
    let mut to_announce = places.iter().filter(|_| places.len() > 1);
    let mut announce_some = |count| {
        for (offset_bytes, len_bytes) in to_announce.by_ref().take(count) {
            announce(*offset_bytes, *len_bytes);
        }
    };
    announce_some(ANNOUNCED_RUNS_MAX);
    for run in &mut runs {
        announce_some(1);
        for part in run.chunks_mut(VECTOR_BUFS_MAX) {
            if let [single] = part {
                device.read_at(single.offset_bytes, single.buf)?;
            } else {
                let offset_bytes = part[0].offset_bytes;
                let mut bufs: Vec<IoSliceMut<'_>> = part.iter_mut().map(|r| IoSliceMut::new(r.buf)).collect();
                device.read_vectored_at(offset_bytes, &mut bufs)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::MemDevice;

    #[test]
    fn places_are_announced_once_and_in_order_unless_there_is_but_one() {
        const READS: usize = 3 * ANNOUNCED_RUNS_MAX;
        let device = MemDevice::new("memory", 1 << 20);
        for (gap_bytes, expected) in [(512, READS), (0, 0)] {
            let mut bufs = vec![[0u8; 1024]; READS];
            let mut reads: Vec<_> = bufs
                .iter_mut()
                .enumerate()
                .map(|(index, buf)| ReadOp {
                    offset_bytes: index as u64 * (1024 + gap_bytes),
                    buf,
                })
                .collect();
            reads.reverse();
            let announced = RefCell::new(vec![]);
            read(&device, &mut reads, |offset_bytes, len_bytes| {
                announced.borrow_mut().push((offset_bytes, len_bytes));
            })
            .unwrap();
            let all: Vec<_> = (0..expected as u64).map(|index| (index * 1536, 1024)).collect();
            assert_eq!(announced.into_inner(), all);
        }
    }
}
