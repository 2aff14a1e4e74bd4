//! Holds on tree blocks: blocks that commits replace are not used again while a walk over a past
//! commit may still read them.
//!
//! A hold is a request. The space of held blocks stays pinned beyond the commit that freed it;
//! where an operation finds too little space, all holds are revoked and the next commit frees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The holds of a volume.
///
/// One word: how often all were revoked in the upper half, [`REFUSED`], and how many there are
/// since in the rest.
#[derive(Debug, Default)]
pub(super) struct Holds(AtomicU64);

const REVOKED_ONCE: u64 = 1 << 32;
/// All were revoked for the next commit: there are no new ones before it.
const REFUSED: u64 = 1 << 31;

impl Holds {
    pub(super) fn are_there(&self) -> bool {
        !self.0.load(Ordering::Acquire).is_multiple_of(REFUSED)
    }

    /// The next commit is to free all that is pinned.
    pub(super) fn revoke(&self) {
        let revoked = |word: u64| (word / REVOKED_ONCE).wrapping_add(1).wrapping_mul(REVOKED_ONCE) | REFUSED;
        self.update(|word| (word % REFUSED > 0).then(|| revoked(word)));
    }

    /// After that commit.
    pub(super) fn allow(&self) {
        self.0.fetch_and(!REFUSED, Ordering::AcqRel);
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
        holds.allow();
        assert!(!refused.is_kept());
        let c = BlockHold::new(&holds);
        drop((b, refused));
        assert!(holds.are_there() && c.is_kept());
        drop(c);
        assert!(!holds.are_there());
    }
}
