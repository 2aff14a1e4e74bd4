//! What happens when memory or space is short.
//!
//! Memory. Pending items beyond half of their bound wake the commit thread, beyond all of it the
//! operation commits itself ([`Files::reserve`]). Dirty data beyond half of its bound wakes
//! write-back, beyond all of it the writer writes back (`file::writeback::throttle`).
//!
//! Space. A reservation that does not fit ([`Space::reserve_meta`], [`Space::reserve_data`]) tries,
//! in this order, and again after each step:
//!
//! 1. Write back dirty data: reservations for data become extents, which are smaller.
//! 2. Commit: pinned space becomes free, pending items become blocks.
//! 3. Retire empty block groups of other kinds, and commit.
//!
//! Then it fails with `NoSpace`. Write-back itself reserves metadata, and cannot wait for
//! write-back: [`Files::reserve_for_write_back`] leaves step 1 out.
//!
//! [`Space::reserve_meta`]: btrfs_store::space::Space::reserve_meta
//! [`Space::reserve_data`]: btrfs_store::space::Space::reserve_data

use std::sync::{Arc, Weak};

use btrfs_store::space::Flusher;

use crate::file;
use crate::files::Files;

/// Reservations that find too little space call the files from now on.
pub(crate) fn attach(files: &Arc<Files>) {
    let flusher: Weak<Files> = Arc::downgrade(files);
    files.store().space().set_flusher(flusher);
}

impl Flusher for Files {
    fn write_back_data(&self) -> btrfs_store::Result<()> {
        // Failures are kept for the fsync of their files.
        if let Err(error) = file::write_back_all(self) {
            tracing::debug!(%error, "write-back for space");
        }
        Ok(())
    }
    fn commit(&self) -> btrfs_store::Result<()> {
        self.store().commit()
    }
}
