//! SEEK_HOLE and SEEK_DATA: a walk over the extent items in place, each leaf once and nothing kept;
//! only where they show no data are the dirty ranges asked. What is dirty is data; what was
//! preallocated and never written is a hole, as the kernel's btrfs says.

use std::ops::ControlFlow;
use std::sync::Arc;

use cowshed_vfs::{Error as Outcome, SeekKind};

use crate::error::Result;
use crate::extent::scan;
use crate::object::Inode;

/// The first data or hole at or after an offset; the end of the file is a hole. `NoSuchDevice` at
/// or after the end, or where no data follows.
pub(crate) fn seek(inode: &Arc<Inode>, offset: u64, what: SeekKind) -> Result<u64> {
    let _op = inode.lock.read();
    let size = inode.attr.lock().attr.size;
    if offset >= size {
        return Err(Outcome::NoSuchDevice.into());
    }
    let landings = inode.data.state.lock().landings;
    let mut found = look(inode, offset, size, what)?;
    if inode.data.state.lock().landings != landings {
        // What we saw as a hole on disk may have been in memory until just before we looked there:
        // once more, with write-back held off.
        let _flush = inode.data.flush.lock();
        found = look(inode, offset, size, what)?;
    }
    found
        .filter(|at| *at < size || what == SeekKind::Hole)
        .ok_or_else(|| Outcome::NoSuchDevice.into())
}

fn look(inode: &Arc<Inode>, offset: u64, size: u64, what: SeekKind) -> Result<Option<u64>> {
    match what {
        SeekKind::Data => next_data(inode, offset, size),
        SeekKind::Hole => next_hole(inode, offset, size).map(Some),
    }
}

fn next_data(inode: &Arc<Inode>, offset: u64, size: u64) -> Result<Option<u64>> {
    let pending = inode.data.state.lock().next_pending(offset);
    let mut found = None;
    scan(
        &inode.tree,
        inode.ino,
        offset..size.min(pending.unwrap_or(size)),
        |range, is_data| {
            if is_data {
                found = Some(range.start.max(offset));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        },
    )?;
    Ok(found.or(pending))
}

fn next_hole(inode: &Arc<Inode>, offset: u64, size: u64) -> Result<u64> {
    let mut pos = offset;
    while pos < size {
        scan(&inode.tree, inode.ino, pos..size, |range, is_data| {
            if range.start > pos || !is_data {
                return ControlFlow::Break(());
            }
            pos = range.end;
            ControlFlow::Continue(())
        })?;
        if pos >= size {
            break;
        }
        let settled = inode.data.state.lock().next_settled(pos);
        if settled == pos {
            return Ok(pos);
        }
        pos = settled;
    }
    Ok(size)
}
