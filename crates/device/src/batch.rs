//! Joins neighbours of a batch into vectored I/O.

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

pub(crate) fn read<D: BlockDevice + ?Sized>(device: &D, reads: &mut [ReadOp<'_>]) -> Result<()> {
    let mut sorted: Vec<&mut ReadOp<'_>> = reads.iter_mut().filter(|r| !r.buf.is_empty()).collect();
    if !sorted.is_sorted_by_key(|r| r.offset_bytes) {
        sorted.sort_by_key(|r| r.offset_bytes);
    }
    for run in sorted.chunk_by_mut(|a, b| a.offset_bytes.checked_add(a.buf.len() as u64) == Some(b.offset_bytes)) {
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
