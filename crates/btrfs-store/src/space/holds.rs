//! Holds on tree blocks: blocks that commits replace are not used again while a walk over a past
//! commit may still read them.
//!
//! A hold is a request. The space of held blocks stays pinned beyond the commit that freed it. All
//! holds are revoked where an operation finds too little space (the next commit frees it), and by a
//! commit that would leave too little for the next one (it frees it itself).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The holds of a volume.
///
/// One word: how often all were revoked in the upper half, [`REFUSED`], and how many there are
/// since in the rest.
#[derive(Debug, Default)]
pub(super) struct Holds(AtomicU64);

/// What a commit decided by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen(u64);

impl Seen {
    pub(super) fn are_there(self) -> bool {
        !self.0.is_multiple_of(REFUSED)
    }
}

const REVOKED_ONCE: u64 = 1 << 32;
/// All were revoked for the next commit: there are no new ones before it.
const REFUSED: u64 = 1 << 31;

impl Holds {
    pub(super) fn look(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }
    pub(super) fn are_there(&self) -> bool {
        self.look().are_there()
    }

    /// The next commit that looks is to free all that is pinned: there are no new holds before it.
    pub(super) fn revoke(&self) {
        let revoked = |word: u64| (word / REVOKED_ONCE).wrapping_add(1).wrapping_mul(REVOKED_ONCE) | REFUSED;
        self.update(|word| Some(revoked(word)));
    }

    /// After a commit that decided by this. Where all were revoked since, the next commit has to
    /// free what this one did not.
    pub(super) fn allow(&self, seen: Seen) {
        let is_last = |word: u64| word / REVOKED_ONCE == seen.0 / REVOKED_ONCE && word & REFUSED != 0;
        self.update(|word| is_last(word).then_some(word & !REFUSED));
    }

    /// Gives what was there before; `None` where nothing was changed.
    fn update(&self, change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).ok()
    }
}

/// A hold on the tree blocks of a past commit.
#[derive(Debug)]
pub struct BlockHold {
    holds: Arc<Holds>,
    /// How often all had been revoked; `None` where there was none to be had.
    revoked: Option<u64>,
}

impl BlockHold {
    pub(super) fn new(holds: &Arc<Holds>) -> Self {
        let before = holds.update(|word| (word & REFUSED == 0).then_some(word + 1));
        Self {
            holds: holds.clone(),
            revoked: before.map(|word| word / REVOKED_ONCE),
        }
    }

    /// What was read so far was what the commit wrote.
    pub fn is_kept(&self) -> bool {
        self.revoked == Some(self.holds.0.load(Ordering::Acquire) / REVOKED_ONCE)
    }
}

impl Drop for BlockHold {
    fn drop(&mut self) {
        // Revoked ones are not counted any more.
        self.holds
            .update(|word| (self.revoked == Some(word / REVOKED_ONCE)).then(|| word - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_count_until_they_are_dropped_or_revoked() {
        let holds = Arc::new(Holds::default());
        let (a, b) = (BlockHold::new(&holds), BlockHold::new(&holds));
        drop(a);
        assert!(holds.are_there() && b.is_kept());
        holds.revoke();
        assert!(!holds.are_there() && !b.is_kept());
        let refused = BlockHold::new(&holds);
        assert!(!holds.are_there() && !refused.is_kept());
        holds.allow(holds.look());
        assert!(!refused.is_kept());
        let c = BlockHold::new(&holds);
        drop((b, refused));
        assert!(holds.are_there() && c.is_kept());
        drop(c);
        assert!(!holds.are_there());
    }

    #[test]
    fn hold_after_a_revocation_waits_for_a_commit_that_saw_it() {
        let holds = Arc::new(Holds::default());
        // The one that revokes has not got to its commit, and there was no hold.
        holds.revoke();
        assert!(!BlockHold::new(&holds).is_kept() && !holds.are_there());
        // A commit decides, and before it ends another operation revokes.
        let seen = holds.look();
        holds.revoke();
        holds.allow(seen);
        assert!(!BlockHold::new(&holds).is_kept(), "the other one's commit is to come");
        holds.allow(holds.look());
        assert!(BlockHold::new(&holds).is_kept());
        let seen = holds.look();
        holds.revoke();
        holds.allow(seen);
        assert!(!BlockHold::new(&holds).is_kept(), "nothing was refused when it decided");
    }
}
