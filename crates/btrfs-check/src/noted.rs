//! What a walk notes for the judgements that follow it.

use std::collections::BTreeMap;

use btrfs_format::TreeId;

use crate::finding::Site;
use crate::references::Extents;

/// A compressed extent that a file leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Packed {
    pub(crate) addr: u64,
    pub(crate) len_bytes: u64,
    pub(crate) ram_bytes: u64,
    pub(crate) compression: u8,
}

/// Preallocated ranges, some of whose bytes have checksums, with the site of the first extent item
/// found for each: snapshots share them.
pub(crate) type Suspects = BTreeMap<(u64, u64), Site>;

/// The subvolumes that use an extent: the last one found (0 for none), and whether there is
/// another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Users {
    pub(crate) last: u64,
    pub(crate) several: bool,
}

/// Counts while the file trees are walked.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    pub(crate) users: Vec<Users>,
    pub(crate) referenced: BTreeMap<u64, u64>,
    /// From the quota tree: referenced and exclusive bytes by subvolume.
    pub(crate) stated: BTreeMap<u64, (u64, u64)>,
}

impl Quota {
    /// `tree` leads to the extent at `addr`.
    pub(crate) fn note(&mut self, extents: &Extents, tree: TreeId, addr: u64) {
        let Some((slot, len)) = extents.slot(addr) else { return };
        let Some(users) = self.users.get_mut(slot) else { return };
        if users.last == tree.get() {
            return;
        }
        users.several |= users.last != 0;
        users.last = tree.get();
        let sum = self.referenced.entry(tree.get()).or_default();
        *sum = sum.saturating_add(len);
    }
}
