//! What the background thread of a mount is asked to do. The thread itself is in `background`.

use std::sync::Arc;

use btrfs_store::overlay::Overlay;
use cowshed_runtime::{Env, Service};

/// Overlays of fewer items are freed at once: waking a thread would cost more.
pub(crate) const GARBAGE_ITEMS_MIN: usize = 1 << 14;

/// What the thread is asked to do.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    pub commit: bool,
    /// Pending items hold much of the metadata that there is.
    pub room: bool,
    /// Much file data is dirty.
    pub write_back: bool,
    /// A dead subvolume is dropped in part.
    pub drop: bool,
    /// Overlays that a commit has merged: millions of small allocations.
    pub garbage: Vec<Arc<Overlay>>,
}

impl Wants {
    pub fn take(&mut self) -> Option<Self> {
        let is_idle = !self.commit && !self.room && !self.write_back && !self.drop && self.garbage.is_empty();
        (!is_idle).then(|| std::mem::take(self))
    }
}

/// The thread and what it is asked to do.
#[derive(Debug)]
pub struct Background(pub(crate) Service<Wants>);

impl Background {
    /// A thread that is not started yet.
    pub(crate) fn new(env: Arc<dyn Env>) -> Self {
        Self(Service::new("cowshed-commit", env, Wants::default()))
    }

    /// Asks for a commit soon.
    pub(crate) fn wake(&self) {
        self.0.change_if(|wants| !std::mem::replace(&mut wants.commit, true));
    }

    /// Asks for room for metadata, before an operation has to wait for it.
    pub(crate) fn wake_for_room(&self) {
        self.0.change_if(|wants| !std::mem::replace(&mut wants.room, true));
    }

    /// Asks for dirty file data to be written soon.
    pub(crate) fn wake_write_back(&self) {
        self.0
            .change_if(|wants| !std::mem::replace(&mut wants.write_back, true));
    }

    /// Asks for the next step of dropping a subvolume, a moment later.
    pub(crate) fn go_on_dropping(&self) {
        self.0.change_if(|wants| !std::mem::replace(&mut wants.drop, true));
    }

    /// Frees the overlays of a commit. Large ones are freed by the thread, and this returns before.
    ///
    /// At most one commit's overlays are queued: the caller frees those that are still there.
    pub(crate) fn free(&self, overlays: Vec<Arc<Overlay>>) {
        let items: usize = overlays.iter().map(|overlay| overlay.len()).sum();
        if items < GARBAGE_ITEMS_MIN || !self.0.is_running() {
            return;
        }
        let late = self.0.change(|wants| std::mem::replace(&mut wants.garbage, overlays));
        drop(late);
    }

    /// Ends the thread and waits for it.
    pub fn stop(&self) {
        self.0.stop();
    }
}
