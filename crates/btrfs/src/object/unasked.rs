//! Attributes that a call changes although the call did not name them: a write strips set-id bits.
//! A front end that caches attributes has to be told before the call returns.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts such changes of one inode, and how many of them the front end has been told of.
///
/// A change counts as told only after the notification has been sent. Of calls that end at the same
/// time each one sends it, so that none returns before the front end has dropped the old value.
#[derive(Debug, Default)]
pub struct Unasked {
    made: AtomicU64,
    told: AtomicU64,
}

impl Unasked {
    /// Notes a change. Called with [`super::Inode::attr`] held.
    pub(crate) fn note(&self) {
        self.made.fetch_add(1, Ordering::Release);
    }

    /// There are changes that the front end may not know.
    pub(crate) fn is_due(&self) -> bool {
        self.told.load(Ordering::Acquire) < self.made.load(Ordering::Acquire)
    }

    /// Runs `tell` if there are changes that the front end may not know. No lock may be held.
    pub(crate) fn settle(&self, tell: impl FnOnce()) {
        let made = self.made.load(Ordering::Acquire);
        if self.told.load(Ordering::Acquire) < made {
            tell();
            self.told.fetch_max(made, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_and_by_each_call_that_ends_meanwhile() {
        let unasked = Unasked::default();
        unasked.settle(|| panic!("nothing has changed"));
        unasked.note();
        let mut told = 0;
        unasked.settle(|| {
            told += 1;
            unasked.settle(|| told += 1);
            // Later than what is being told: stays to be told.
            unasked.note();
        });
        assert_eq!(told, 2);
        unasked.settle(|| told += 1);
        unasked.settle(|| panic!("all is told"));
        assert_eq!(told, 3);
    }
}
