//! What a directory keeps in memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use btrfs_format::ObjectId;

use super::filter::NameFilter;

/// What a directory keeps in memory.
#[derive(Debug, Default)]
pub struct DirData {
    /// The index of the next name; 0 while it is not known. Changes under the directory's operation
    /// lock.
    pub(crate) next_index: AtomicU64,
    /// Listings end before this index; 0: no listing has begun.
    pub(crate) listing_end: AtomicU64,
    pub(crate) placeholder_parent: OnceLock<ObjectId>,
    pub(crate) filter: NameFilter,
    /// A front end was told that a name is not here, and may have cached that.
    absence: AtomicBool,
}

impl DirData {
    /// A front end will be told that a name is not here, and may cache that for as long as it refers
    /// to the directory.
    pub(crate) fn note_absence(&self) {
        self.absence.store(true, Ordering::SeqCst);
    }
    pub(crate) fn may_remember_absence(&self) -> bool {
        self.absence.load(Ordering::SeqCst)
    }

    pub(crate) fn set_placeholder_parent(&self, parent: ObjectId) {
        let _ = self.placeholder_parent.set(parent);
    }
}
