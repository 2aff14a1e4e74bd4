//! Several inodes locked at once, always in the order of (tree, number), each once.

use std::sync::Arc;

use cowshed_runtime::lock::MutexGuard;

use super::inode::{Inode, InodeState};
pub(crate) use super::op_lock::OpWriteGuard;

/// The most inodes that one operation changes: rename has two directories and two entries, and a
/// whiteout is new.
const INODES_MAX: usize = 4;

fn ordered<'a>(inodes: &[&'a Arc<Inode>]) -> ([Option<&'a Arc<Inode>>; INODES_MAX], usize) {
    assert!(inodes.len() <= INODES_MAX, "an operation changes at most four inodes");
    let mut sorted: [Option<&'a Arc<Inode>>; INODES_MAX] = [None; INODES_MAX];
    let mut len = 0;
    for &inode in inodes {
        if sorted[..len].iter().flatten().any(|other| Arc::ptr_eq(inode, other)) {
            continue;
        }
        sorted[len] = Some(inode);
        len += 1;
    }
    sorted[..len].sort_by_key(|inode| inode.map(|i| i.lock_key()));
    (sorted, len)
}

/// Operation locks of several inodes, for writing.
pub(crate) struct Locked<'a> {
    _guards: [Option<OpWriteGuard<'a>>; INODES_MAX],
}

/// Locks all of them for writing. The caller holds no inode lock.
pub(crate) fn write_all<'a>(inodes: &[&'a Arc<Inode>]) -> Locked<'a> {
    let (sorted, _) = ordered(inodes);
    Locked {
        _guards: sorted.map(|inode| inode.map(|i| i.lock.write_ordered(i.lock_key()))),
    }
}

/// Attributes of several inodes, held at once.
pub(crate) struct Attrs<'a> {
    guards: [Option<(*const Inode, MutexGuard<'a, InodeState>)>; INODES_MAX],
}

/// Takes the attributes of all of them. The caller holds a join and none of these.
pub(crate) fn attrs_all<'a>(inodes: &[&'a Arc<Inode>]) -> Attrs<'a> {
    let (sorted, _) = ordered(inodes);
    Attrs {
        guards: sorted.map(|inode| inode.map(|i| (Arc::as_ptr(i), i.attr.lock_ordered(i.lock_key())))),
    }
}

impl Attrs<'_> {
    /// The attributes of one of the inodes that were asked for.
    pub(crate) fn of(&mut self, inode: &Arc<Inode>) -> &mut InodeState {
        let found = self
            .guards
            .iter_mut()
            .flatten()
            .find(|(at, _)| *at == Arc::as_ptr(inode));
        let (_, guard) = found.expect("only inodes that were locked are asked for");
        guard
    }
}
