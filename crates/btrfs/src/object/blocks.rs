//! `st_blocks`: what a file takes, with what is dirty and has no extent yet.
//!
//! Extents may have to be read from the device for that, so no lock is held meanwhile: attributes
//! and extents change together, under the lock of the attributes, and a look that was overtaken by
//! such a change begins anew.

use super::flags;
use super::inode::{Inode, InodeAttr};
use crate::block::round_up;
use crate::extent::Walk;

/// So many dirty ranges, and extents below them, are looked at to tell what a file takes.
const DELALLOC_LOOKS_MAX: usize = 1024;
/// So often a look begins anew. A file that changes so fast has no number that is right when it is
/// told.
const TRIES_MAX: usize = 8;

/// Bytes of dirty ranges that no extent holds yet: they count as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delalloc {
    pub(crate) bytes: u64,
    /// Otherwise an upper bound, until the ranges are written back.
    pub(crate) is_exact: bool,
}

impl Delalloc {
    const fn exactly(bytes: u64) -> Self {
        Self { bytes, is_exact: true }
    }
    const fn at_most(bytes: u64) -> Self {
        Self { bytes, is_exact: false }
    }
}

/// Attributes, and what is to be added to the bytes that extents take.
pub(crate) fn with_delalloc(inode: &Inode) -> (InodeAttr, Delalloc) {
    let mut attr = inode.attr_now();
    if !inode.is_regular() {
        return (attr, Delalloc::exactly(0));
    }
    for _ in 0..TRIES_MAX {
        let found = delalloc(inode, &attr);
        let now = inode.attr_now();
        let is_same = (now.nbytes, now.size) == (attr.nbytes, attr.size);
        attr = now;
        if is_same {
            return (attr, found);
        }
    }
    let found = delalloc(inode, &attr);
    (attr, Delalloc::at_most(found.bytes))
}

fn delalloc(inode: &Inode, attr: &InodeAttr) -> Delalloc {
    let pending = inode.pending_bytes();
    let at_most = pending.min(round_up(attr.size).saturating_sub(attr.nbytes));
    // What is preallocated may lie behind the end, where nothing is dirty.
    let is_known = at_most == 0 && attr.flags & flags::PREALLOC == 0;
    if pending == 0 || attr.nbytes == 0 || is_known {
        return Delalloc::exactly(at_most);
    }
    // A file with holes: only its extents tell what is dirty in them.
    new_bytes(inode).map_or(Delalloc::at_most(at_most), Delalloc::exactly)
}

/// `None` where that would take too long, or cannot be read.
fn new_bytes(inode: &Inode) -> Option<u64> {
    let mut ranges = Vec::new();
    {
        let state = inode.data.state.lock();
        let mut pos = 0;
        while let Some(start) = state.next_pending(pos) {
            pos = state.next_settled(start);
            ranges.push(start..pos);
            if ranges.len() > DELALLOC_LOOKS_MAX {
                return None;
            }
        }
    }
    let (mut bytes, mut looks) = (0, 0);
    for range in ranges {
        bytes += range.end - range.start;
        let mut walk = Walk::new(&inode.tree, inode.ino, range.clone()).ok()?;
        while let Some(extent) = walk.next().ok()? {
            looks += 1;
            if looks > DELALLOC_LOOKS_MAX {
                return None;
            }
            if extent.nbytes() > 0 {
                let covered = extent.end().min(range.end) - extent.start.max(range.start);
                // Of two items that were found before and after a change, both may hold a byte.
                bytes = u64::saturating_sub(bytes, covered);
            }
        }
    }
    Some(bytes)
}
