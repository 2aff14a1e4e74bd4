//! Contents of files: reading, data and holes, extents.

use std::ops::{ControlFlow, Range};

use cowshed_device::ReadOp;
use cowshed_vfs::{Error as Errno, ExtentSink, MapExtent, MapKind, SeekKind};
use xfs_format::inode::ForkKind;
use xfs_format::{Extent, FsBlock};

use crate::ag;
use crate::error::Result;
use crate::inode::Object;
use crate::volume::Volume;

/// Address in bytes of a block of an extent. Errors: an extent that leaves the volume.
fn address(volume: &Volume, file: &Object, extent: &Extent, block: u64) -> Result<u64> {
    let start = FsBlock(extent.start.get() + (block - extent.offset.get()));
    let daddr = volume.geometry().daddr(start).and_then(|daddr| daddr.checked_bytes());
    daddr.ok_or_else(|| file.damaged("extent"))
}

fn check_realtime(file: &Object) -> Result<()> {
    if file.core.is_realtime() {
        tracing::error!(
            inode = file.ino.get(),
            "the file lies on the realtime device, which is not read"
        );
        return Err(Errno::Io.into());
    }
    Ok(())
}

/// Reads; fewer bytes only at the end of the file. Holes and unwritten extents are zeros.
pub(crate) fn read(volume: &Volume, file: &Object, offset: u64, buf: &mut [u8]) -> Result<usize> {
    check_realtime(file)?;
    let left = file.size().saturating_sub(offset);
    let count = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
    let (mut rest, _) = buf.split_at_mut(count);
    let block_bytes = u64::from(volume.geometry().block_bytes);
    let end = offset + count as u64;
    let mut extents = Vec::new();
    file.extents(volume, ForkKind::Data, offset / block_bytes, &mut |extent| {
        if extent.offset.get().saturating_mul(block_bytes) >= end {
            return ControlFlow::Break(());
        }
        extents.push(extent);
        ControlFlow::Continue(())
    })?;
    let mut ops = Vec::new();
    let mut at = offset;
    for extent in &extents {
        let start = extent.offset.get() * block_bytes;
        let hole = start.saturating_sub(at).min(rest.len() as u64);
        let (zeros, behind) = rest.split_at_mut(hole as usize);
        zeros.fill(0);
        at += hole;
        let len = (extent.end().get() * block_bytes)
            .saturating_sub(at)
            .min(behind.len() as u64);
        let (part, behind) = behind.split_at_mut(len as usize);
        rest = behind;
        if extent.is_unwritten {
            part.fill(0);
        } else if !part.is_empty() {
            let block = at / block_bytes;
            ops.push(ReadOp {
                offset_bytes: address(volume, file, extent, block)? + at % block_bytes,
                buf: part,
            });
        }
        at += len;
    }
    rest.fill(0);
    match &mut ops[..] {
        [one] => volume.device().read_at(one.offset_bytes, one.buf)?,
        many => volume.device().read_batch(many)?,
    }
    Ok(count)
}

/// The first data or hole at or after an offset. What is unwritten is a hole.
pub(crate) fn seek(volume: &Volume, file: &Object, offset: u64, what: SeekKind) -> Result<u64> {
    let size = file.size();
    if offset >= size {
        return Err(Errno::NoSuchDevice.into());
    }
    let block_bytes = u64::from(volume.geometry().block_bytes);
    let mut at = offset;
    let mut found = None;
    file.extents(volume, ForkKind::Data, offset / block_bytes, &mut |extent| {
        let (start, end) = (extent.offset.get() * block_bytes, extent.end().get() * block_bytes);
        if what == SeekKind::Hole && (start > at || extent.is_unwritten) {
            return ControlFlow::Break(());
        }
        if what == SeekKind::Data && !extent.is_unwritten {
            found = Some(at.max(start));
            return ControlFlow::Break(());
        }
        at = end;
        if at >= size {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    match what {
        SeekKind::Hole => Ok(at.min(size)),
        SeekKind::Data => Ok(found.filter(|found| *found < size).ok_or(Errno::NoSuchDevice)?),
    }
}

/// Shows extents that overlap a range, cut where they begin or end to be shared.
pub(crate) fn map(
    volume: &Volume,
    file: &Object,
    range: Range<u64>,
    wants_shared: bool,
    take: ExtentSink<'_>,
) -> Result<()> {
    check_realtime(file)?;
    let block_bytes = u64::from(volume.geometry().block_bytes);
    let mut failed = Ok(());
    file.extents(volume, ForkKind::Data, range.start / block_bytes, &mut |extent| {
        if extent.offset.get().saturating_mul(block_bytes) >= range.end {
            return ControlFlow::Break(());
        }
        match map_one(volume, file, &extent, wants_shared, take) {
            Ok(flow) => flow,
            Err(error) => {
                failed = Err(error);
                ControlFlow::Break(())
            }
        }
    })?;
    failed
}

fn map_one(
    volume: &Volume,
    file: &Object,
    extent: &Extent,
    wants_shared: bool,
    take: ExtentSink<'_>,
) -> Result<ControlFlow<()>> {
    let block_bytes = u64::from(volume.geometry().block_bytes);
    let disk = address(volume, file, extent, extent.offset.get())?;
    let (mut at, mut flow) = (0, ControlFlow::Continue(()));
    let mut run = |blocks: u64, is_shared: bool| {
        let len_bytes = blocks * block_bytes;
        flow = take(&MapExtent {
            kind: if extent.is_unwritten {
                MapKind::Unwritten
            } else {
                MapKind::Data
            },
            start: extent.offset.get() * block_bytes + at,
            len_bytes,
            disk_addr: disk + at,
            disk_bytes: len_bytes,
            offset_bytes: 0,
            ram_bytes: len_bytes,
            compression: 0,
            is_shared,
        });
        at += len_bytes;
        flow
    };
    if wants_shared {
        ag::shared_runs(volume, extent.start, extent.blocks.into(), &mut run)?;
    } else {
        let _ = run(extent.blocks.into(), false);
    }
    Ok(flow)
}
