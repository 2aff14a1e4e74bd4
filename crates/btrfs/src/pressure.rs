//! What happens when memory or space is short.
//!
//! Memory. Pending items beyond half of their bound wake the commit thread, beyond all of it the
//! operation commits itself ([`Files::reserve`]). Dirty data beyond half of its bound wakes
//! write-back, beyond all of it the writer writes back (`file::writeback::throttle`).
//!
//! Space. A reservation that does not fit ([`Space::reserve_meta`], [`Space::reserve_data`]) tries,
//! in this order, and again after each step:
//!
//! 1. Write back dirty data: reservations for data become extents, which are smaller. Nothing is
//!    held for the items that it needs, so it must not pile up where room is short.
//! 2. Count the leaves that pending items lie in: until then each item holds a leaf of its own, and
//!    the path to it. Left out where it cannot bring enough.
//! 3. Commit: pinned space becomes free, pending items become blocks.
//! 4. Retire empty block groups of other kinds, and commit.
//! 5. While deleted subvolumes are dropped: wait for a step, and commit.
//!
//! Those that find too little space wait in a line, so that the first one gets what it makes.
//! Deletions, whose space lies in the global reserve, do not wait. Before it comes to that, when
//! pending items hold half of what there is, the commit thread does steps 1 to 3 by itself.
//!
//! Then it fails with `NoSpace`. Write-back itself reserves metadata, and cannot wait for
//! write-back: [`Files::reserve_for_write_back`] leaves step 1 out.
//!
//! [`Space::reserve_meta`]: btrfs_store::space::Space::reserve_meta
//! [`Space::reserve_data`]: btrfs_store::space::Space::reserve_data

use std::sync::{Arc, Weak};
use std::time::Duration;

use btrfs_store::space::{Drops, Flusher};

use crate::file;
use crate::files::{Commits, Files};

/// Interval at which a reservation polls for the next step of a drop.
const DROP_POLL: Duration = Duration::from_millis(1);
/// Upper bound on polls: a subvolume that a process uses is not dropped.
const DROP_POLLS_MAX: u32 = 500;
/// Polls between two calls of the background thread.
const DROP_POLLS_BETWEEN: u32 = 20;

/// Reservations that find too little space call the files from now on.
pub(crate) fn attach(files: &Arc<Files>) {
    let flusher: Weak<Files> = Arc::downgrade(files);
    files.store().space().set_flusher(flusher);
}

/// Pending items hold half of the metadata that there is. Writes dirty data back, and counts their
/// leaves, if that can make room; true where it takes a commit.
pub(crate) fn needs_commit(files: &Files) -> bool {
    if files.options().commits == Commits::WhenAsked {
        return false;
    }
    if let Err(error) = file::write_back_all(files) {
        tracing::debug!(%error, "write-back for space");
    }
    let store = files.store();
    if store.space().is_count_worth_it() {
        store.count_leaves();
    }
    store.space().is_half_pending_now()
}

impl Flusher for Files {
    fn count_leaves(&self) {
        self.store().count_leaves();
    }
    fn write_back_data(&self) -> btrfs_store::Result<()> {
        // Failures are kept for the fsync of their files.
        if let Err(error) = file::write_back_all(self) {
            tracing::debug!(%error, "write-back for space");
        }
        Ok(())
    }
    fn commit(&self) -> btrfs_store::Result<()> {
        if self.options().commits == Commits::WhenAsked {
            return Ok(());
        }
        self.store().commit()
    }
    fn go_on_dropping(&self) -> Drops {
        if self.options().commits == Commits::WhenAsked || !self.background().is_running() {
            return Drops::None;
        }
        let generation = || self.store().txn().committed();
        let before = generation();
        // In this order: a subvolume is queued before it stops being dying, and leaves the queue
        // before the commit that frees its space is over.
        let has_drops = || self.objects().has_dying() || self.store().queued_drops() > 0;
        let is_committing = || self.store().txn().running().get() > generation().get() + 1;
        let may_go_on = has_drops();
        if !may_go_on && !is_committing() {
            return Drops::None;
        }
        for poll in 0..DROP_POLLS_MAX {
            // What is in use at one moment may not be a moment later.
            if poll % DROP_POLLS_BETWEEN == 0 {
                self.background().drop_at_once();
            }
            self.store().env().sleep(DROP_POLL);
            if !self.background().is_running() {
                break;
            }
            // A step ends with a commit.
            let is_done = generation() != before || !has_drops() && !is_committing();
            if is_done && may_go_on {
                return Drops::Step;
            }
            if is_done {
                break;
            }
        }
        Drops::Over
    }
    fn pause(&self, time: Duration) {
        self.store().env().sleep(time);
    }
}
