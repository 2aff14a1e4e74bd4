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
