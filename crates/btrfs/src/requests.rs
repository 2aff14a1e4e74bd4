//! What the background thread of a mount is asked to do. The thread itself is in `background`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use btrfs_store::overlay::stripes::FrozenEdits;
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
    /// A call waits until deleted subvolumes are gone.
    pub drop_at_once: bool,
    /// A subvolume was deleted.
    pub deletions: Option<Deletions>,
    /// Overlays that a commit has merged: millions of small allocations.
    pub garbage: Vec<Arc<FrozenEdits>>,
    /// Much memory was freed.
    pub return_memory: bool,
}

/// Deletions of subvolumes that followed each other, in terms of [`Env::monotonic`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deletions {
    first: Duration,
    last: Duration,
    /// The thread was told of the first.
    is_known: bool,
}

/// Deleted subvolumes are dropped when none was deleted for so long: the steps would slow down a
/// program that deletes very many.
const DELETIONS_PAUSE: Duration = Duration::from_millis(50);

/// Deletions without a pause hold steps up for so long.
const DELETIONS_MAX: Duration = Duration::from_secs(1);

impl Deletions {
    /// When the first step may come.
    pub(crate) fn due(&self) -> Duration {
        (self.last + DELETIONS_PAUSE).min(self.first + DELETIONS_MAX)
    }
}

impl Wants {
    /// Work that must not wait for a pause of the thread.
    pub fn is_urgent(&self) -> bool {
        self.commit || self.room || self.write_back || !self.garbage.is_empty()
    }

    /// All but the deletions, which stay until their first step comes.
    pub fn take(&mut self) -> Option<Self> {
        let has_new = self.deletions.as_ref().is_some_and(|deletions| !deletions.is_known);
        let is_wanted = self.commit || self.room || self.write_back || self.drop || self.return_memory;
        if !is_wanted && self.garbage.is_empty() && !has_new {
            return None;
        }
        if let Some(deletions) = &mut self.deletions {
            deletions.is_known = true;
        }
        let deletions = self.deletions;
        let taken = std::mem::take(self);
        self.deletions = deletions;
        Some(taken)
    }
}

/// The thread and what it is asked to do.
#[derive(Debug)]
pub struct Background(pub(crate) Service<Wants>, Forgotten);

/// Inodes that front ends forgot since memory was returned.
#[derive(Debug, Default)]
struct Forgotten(AtomicUsize);

/// So many of them are some MiB.
const FORGOTTEN_MANY: usize = 1 << 14;

impl Background {
    /// A thread that is not started yet.
    pub(crate) fn new(env: Arc<dyn Env>) -> Self {
        Self(
            Service::new("cowshed-commit", env, Wants::default()),
            Forgotten::default(),
        )
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

    /// An inode was forgotten: memory is returned after many.
    pub(crate) fn note_forgotten(&self) {
        if self.1.0.fetch_add(1, Ordering::Relaxed) + 1 == FORGOTTEN_MANY {
            self.0
                .change_if(|wants| !std::mem::replace(&mut wants.return_memory, true));
        }
    }

    /// Memory is returned: counts anew.
    pub(crate) fn begin_returning(&self) {
        self.1.0.store(0, Ordering::Relaxed);
    }

    /// Asks for the next step of dropping a subvolume, a moment later.
    pub(crate) fn go_on_dropping(&self) {
        self.0.change_if(|wants| !std::mem::replace(&mut wants.drop, true));
    }

    /// Asks for the first step of dropping a subvolume that was deleted now.
    pub(crate) fn note_deletion(&self) {
        let now = self.0.env().monotonic();
        self.0.change_if(|wants| {
            let before = wants.deletions;
            wants.deletions = Some(Deletions {
                first: before.map_or(now, |deletions| deletions.first),
                last: now,
                is_known: before.is_some_and(|deletions| deletions.is_known),
            });
            before.is_none()
        });
    }

    /// Does the thread run? A library's caller may do without.
    pub(crate) fn is_running(&self) -> bool {
        self.0.is_running()
    }

    /// Has deleted subvolumes dropped without a wait for a pause of deletions.
    pub(crate) fn drop_at_once(&self) {
        let now = self.0.env().monotonic();
        self.0.change_if(|wants| {
            if let Some(deletions) = &mut wants.deletions {
                deletions.first = now.saturating_sub(DELETIONS_MAX);
                deletions.is_known = false;
            }
            (wants.drop, wants.drop_at_once) = (true, true);
            true
        });
    }

    /// Frees the overlays of a commit. Large ones are freed by the thread, and this returns before.
    ///
    /// At most one commit's overlays are queued: the caller frees those that are still there.
    pub(crate) fn free(&self, overlays: Vec<Arc<FrozenEdits>>) {
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
