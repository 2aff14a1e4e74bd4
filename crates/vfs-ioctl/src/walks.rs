//! Clones of trees that are under way, each under a token.
//!
//! One that is not gone on with is forgotten; what it has cloned stays.
//!
//! Locks: the table, held for moments; a walk, for the length of a call.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cowshed_vfs::{Error, Result, TreeClone};
use parking_lot::Mutex;

use crate::wire::Token;

/// Walks at a time, of all callers: the one that was not used for the longest time goes first.
const WALKS_MAX: usize = 64;
/// How long a walk waits for its next call.
const WALK_TIME: Duration = Duration::from_secs(60);
pub(crate) type SharedWalk = Arc<Mutex<Box<dyn TreeClone>>>;

/// A walk.
pub(crate) struct Entry {
    pub(crate) walk: SharedWalk,
    /// The user that began it.
    pub(crate) uid: u32,
    /// The last call, by [`Env::monotonic`](cowshed_runtime::Env::monotonic).
    pub(crate) used: Duration,
}

/// The walks of a front.
#[derive(Default)]
pub(crate) struct Walks(Mutex<HashMap<[u8; 16], Entry>>);

impl Walks {
    pub(crate) fn add(&self, token: Token, entry: Entry) {
        let mut walks = self.0.lock();
        walks.retain(|_, walk| entry.used.saturating_sub(walk.used) <= WALK_TIME);
        if walks.len() >= WALKS_MAX
            && let Some(oldest) = walks.iter().min_by_key(|(_, walk)| walk.used).map(|(key, _)| *key)
        {
            walks.remove(&oldest);
        }
        walks.insert(token.0, entry);
    }

    /// Errors: `BadHandle` (there is no such walk, or it is another user's).
    pub(crate) fn find(&self, token: Token, uid: u32, now: Duration) -> Result<SharedWalk> {
        let mut walks = self.0.lock();
        let entry = walks.get_mut(&token.0).filter(|entry| entry.uid == uid);
        let entry = entry.ok_or(Error::BadHandle)?;
        entry.used = now;
        Ok(entry.walk.clone())
    }

    pub(crate) fn remove(&self, token: Token) {
        self.0.lock().remove(&token.0);
    }

    /// The mount ends.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use cowshed_vfs::{Context, TreeCloneProgress, TreeCloneStep};

    use super::*;

    struct Nothing;

    impl TreeClone for Nothing {
        fn step(&mut self, _: &Context) -> Result<TreeCloneStep> {
            Ok(TreeCloneStep::Done)
        }
        fn progress(&self) -> TreeCloneProgress {
            TreeCloneProgress::default()
        }
        fn path(&self) -> Vec<u8> {
            Vec::new()
        }
    }

    fn add(walks: &Walks, n: u8, used: Duration) {
        let entry = Entry {
            walk: Arc::new(Mutex::new(Box::new(Nothing))),
            uid: 1000,
            used,
        };
        walks.add(Token([n; 16]), entry);
    }

    #[test]
    fn walk_is_its_users_and_goes_when_it_is_not_used() {
        let (walks, now) = (Walks::default(), Duration::from_secs(100));
        let is_there = |n, uid, now| walks.find(Token([n; 16]), uid, now).is_ok();
        add(&walks, 1, now);
        assert!(is_there(1, 1000, now) && !is_there(1, 0, now) && !is_there(2, 1000, now));
        // A call keeps it.
        assert!(is_there(1, 1000, now + WALK_TIME));
        add(&walks, 2, now + 2 * WALK_TIME);
        assert!(is_there(1, 1000, now + WALK_TIME));
        add(&walks, 3, now + 2 * WALK_TIME + Duration::from_nanos(1));
        assert!(!is_there(1, 1000, now) && is_there(2, 1000, now + 2 * WALK_TIME));
    }

    #[test]
    fn oldest_walk_goes_when_there_are_too_many() {
        let walks = Walks::default();
        for n in 0..=WALKS_MAX as u8 {
            add(&walks, n, Duration::from_millis(n.into()));
        }
        let find = |n| walks.find(Token([n; 16]), 1000, Duration::ZERO).is_ok();
        assert!(!find(0) && find(1) && find(WALKS_MAX as u8));
    }
}
