//! Walks that are under way, each under a token: clones of trees, counts of what subvolumes use.
//!
//! One that is not gone on with is forgotten after [`WALK_TIME`], whether calls come or not: it
//! keeps inodes or space in use. What it has cloned stays. The number of walks is bounded for each
//! user, so that a user loses walks to its own new ones; the bound over all users takes from the
//! user with the most.
//!
//! Locks: the table, held for moments; a walk, for the length of a call. Walks are dropped outside
//! of the table's lock: they let go of inodes.

use std::collections::HashMap;
use std::sync::{Arc, Once};
use std::time::Duration;

use cowshed_runtime::{Env, Inbox, Service, Wake};
use cowshed_vfs::{Error, Result};
use parking_lot::Mutex;

use crate::wire::Token;

/// Walks of all users at a time.
const WALKS_MAX: usize = 256;
/// How long a walk waits for its next call.
const WALK_TIME: Duration = Duration::from_secs(60);

/// A walk.
pub(crate) struct Entry<W> {
    pub(crate) walk: Arc<Mutex<W>>,
    /// The user that began it.
    pub(crate) uid: u32,
    /// The last call, by [`Env::monotonic`].
    pub(crate) used: Duration,
}

impl<W> Entry<W> {
    fn expires(&self) -> Duration {
        self.used.saturating_add(WALK_TIME)
    }

    /// A call is under way.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.walk) > 1
    }
}

struct Table<W> {
    walks: HashMap<[u8; 16], Entry<W>>,
    /// Walks of one user at a time: the one that was not used for the longest time goes first.
    user_max: usize,
}

impl<W> Table<W> {
    fn next_expiry(&self) -> Option<Duration> {
        self.walks.values().map(Entry::expires).min()
    }

    fn take_expired(&mut self, now: Duration) -> Vec<Entry<W>> {
        let expired = self.walks.extract_if(|_, walk| {
            if walk.is_in_use() {
                walk.used = now;
            }
            walk.expires() <= now
        });
        expired.map(|(_, entry)| entry).collect()
    }

    /// Takes the walk of a user that was not used for the longest time.
    fn take_oldest(&mut self, uid: u32) -> Option<Entry<W>> {
        let own = self.walks.iter().filter(|(_, walk)| walk.uid == uid);
        let oldest = own.min_by_key(|(_, walk)| walk.used).map(|(key, _)| *key)?;
        self.walks.remove(&oldest)
    }

    /// Makes room for another walk of a user.
    fn take_for(&mut self, uid: u32) -> Option<Entry<W>> {
        let mut counts = HashMap::<u32, usize>::new();
        for walk in self.walks.values() {
            *counts.entry(walk.uid).or_default() += 1;
        }
        if counts.get(&uid).is_some_and(|count| *count >= self.user_max) {
            return self.take_oldest(uid);
        }
        if self.walks.len() < WALKS_MAX {
            return None;
        }
        // The smaller number where several have as many, so that the choice repeats.
        let most = counts.into_iter().max_by_key(|(uid, count)| (*count, u32::MAX - uid));
        self.take_oldest(most?.0)
    }
}

/// The walks of a front.
pub(crate) struct Walks<W> {
    table: Service<Table<W>>,
    started: Once,
}

impl<W: Send + 'static> Walks<W> {
    /// The name is that of the thread that forgets walks.
    pub(crate) fn new(name: &'static str, user_max: usize, env: Arc<dyn Env>) -> Self {
        let walks = HashMap::new();
        Self {
            table: Service::new(name, env, Table { walks, user_max }),
            started: Once::new(),
        }
    }

    pub(crate) fn add(&self, token: Token, entry: Entry<W>) {
        self.started.call_once(|| {
            // Calls forget what has expired, too.
            if let Err(error) = self.table.start(forget_expired) {
                tracing::warn!(%error, "no thread for walks that are not gone on with");
            }
        });
        let gone = self.table.change(|table| {
            let mut gone = table.take_expired(entry.used);
            gone.extend(table.take_for(entry.uid));
            table.walks.insert(token.0, entry);
            gone
        });
        drop(gone);
    }

    /// Errors: `BadHandle` (there is no such walk, or it is another user's).
    pub(crate) fn find(&self, token: Token, uid: u32, now: Duration) -> Result<Arc<Mutex<W>>> {
        let mut gone = Vec::new();
        let mut found = Err(Error::BadHandle);
        // The thread finds by itself that a walk has more time.
        self.table.change_if(|table| {
            gone = table.take_expired(now);
            if let Some(entry) = table.walks.get_mut(&token.0).filter(|entry| entry.uid == uid) {
                entry.used = now;
                found = Ok(entry.walk.clone());
            }
            false
        });
        drop(gone);
        found
    }

    pub(crate) fn remove(&self, token: Token) {
        let mut gone = None;
        self.table.change_if(|table| {
            gone = table.walks.remove(&token.0);
            false
        });
        drop(gone);
    }

    /// The mount ends.
    pub(crate) fn clear(&self) {
        drop(self.table.change(|table| std::mem::take(&mut table.walks)));
        self.table.stop();
    }
}

/// Forgets each walk when its time is over.
fn forget_expired<W>(inbox: &Inbox<Table<W>>) {
    let mut due = None;
    loop {
        let mut next = None;
        let wake = inbox.wait(due, |table| {
            next = table.next_expiry();
            (next != due).then_some(())
        });
        match wake {
            Wake::Stop => return,
            Wake::Ready(()) => due = next,
            Wake::Due => {
                let now = inbox.monotonic();
                drop(inbox.with(|table| table.take_expired(now)));
                due = inbox.with(|table| table.next_expiry());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cowshed_runtime::ManualEnv;

    use super::*;

    /// Tells when it is dropped.
    struct Nothing(std::sync::mpsc::Sender<u8>, u8);

    impl Drop for Nothing {
        fn drop(&mut self) {
            // The test may be over.
            let _ = self.0.send(self.1);
        }
    }

    const USER_MAX: u8 = 16;

    struct Rig {
        env: Arc<ManualEnv>,
        walks: Walks<Nothing>,
        sender: std::sync::mpsc::Sender<u8>,
        dropped: std::sync::mpsc::Receiver<u8>,
    }

    impl Rig {
        fn new() -> Self {
            let env = Arc::new(ManualEnv::new(1));
            let (sender, dropped) = std::sync::mpsc::channel();
            Self {
                walks: Walks::new("walks", USER_MAX.into(), env.clone()),
                env,
                sender,
                dropped,
            }
        }

        /// Begins the walk of a number for a user. Their tokens follow from both.
        fn add(&self, uid: u32, n: u8) {
            let entry = Entry {
                walk: Arc::new(Mutex::new(Nothing(self.sender.clone(), n))),
                uid,
                used: self.env.monotonic(),
            };
            self.walks.add(token(uid, n), entry);
        }

        fn find(&self, uid: u32, n: u8) -> Result<Arc<Mutex<Nothing>>> {
            self.walks.find(token(uid, n), uid, self.env.monotonic())
        }

        fn next_dropped(&self) -> u8 {
            self.dropped.recv_timeout(Duration::from_secs(60)).unwrap()
        }
    }

    fn token(uid: u32, n: u8) -> Token {
        let mut bytes = [n; 16];
        bytes[..4].copy_from_slice(&uid.to_le_bytes());
        Token(bytes)
    }

    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn walk_is_found_by_its_user_alone() {
        let rig = Rig::new();
        rig.add(1000, 1);
        assert!(rig.find(1000, 1).is_ok());
        let foreign = rig.walks.find(token(1000, 1), 0, MOMENT);
        assert_eq!(foreign.err(), Some(Error::BadHandle));
        assert_eq!(rig.find(1000, 2).err(), Some(Error::BadHandle));
        rig.walks.remove(token(1000, 1));
        assert_eq!(rig.next_dropped(), 1);
    }

    #[test]
    fn idle_walk_expires_by_the_clock_without_a_call() {
        let rig = Rig::new();
        rig.add(1000, 1);
        rig.env.until_sleepers(1);
        rig.env.advance(WALK_TIME / 2);
        rig.add(1000, 2);
        // A call gives it more time.
        drop(rig.find(1000, 1).unwrap());
        rig.env.advance(WALK_TIME / 2);
        rig.env.until_sleepers(1);
        assert!(rig.dropped.try_recv().is_err(), "both have half of their time left");
        drop(rig.find(1000, 1).unwrap());
        rig.env.until_sleepers(1);
        rig.env.advance(WALK_TIME / 2);
        assert_eq!(rig.next_dropped(), 2);
        rig.env.until_sleepers(1);
        rig.env.advance(WALK_TIME / 2);
        assert_eq!(rig.next_dropped(), 1);
    }

    #[test]
    fn walk_in_use_does_not_expire() {
        let rig = Rig::new();
        rig.add(1000, 1);
        let call = rig.find(1000, 1).unwrap();
        rig.env.until_sleepers(1);
        rig.env.advance(WALK_TIME * 2);
        assert!(rig.find(1000, 1).is_ok());
        drop(call);
        rig.env.until_sleepers(1);
        rig.env.advance(WALK_TIME);
        assert_eq!(rig.next_dropped(), 1);
    }

    #[test]
    fn user_with_too_many_walks_loses_its_own_oldest() {
        let rig = Rig::new();
        rig.add(1001, 200);
        for n in 0..=USER_MAX {
            rig.env.advance(MOMENT);
            rig.add(1000, n);
        }
        assert_eq!(rig.next_dropped(), 0);
        assert!(rig.dropped.try_recv().is_err());
        assert!(rig.find(1001, 200).is_ok() && rig.find(1000, 1).is_ok());
    }

    #[test]
    fn bound_over_all_users_takes_from_the_user_with_the_most() {
        let rig = Rig::new();
        rig.add(2000, 200);
        rig.env.advance(MOMENT);
        rig.add(2000, 201);
        for uid in 0..WALKS_MAX as u32 - 2 {
            rig.env.advance(MOMENT);
            rig.add(uid, 1);
        }
        assert!(rig.dropped.try_recv().is_err());
        rig.add(3000, 1);
        assert_eq!(rig.next_dropped(), 200);
        assert!(rig.find(2000, 201).is_ok() && rig.find(3000, 1).is_ok());
    }

    #[test]
    fn end_of_the_mount_drops_all_walks() {
        let rig = Rig::new();
        rig.add(1000, 1);
        rig.walks.clear();
        assert_eq!(rig.next_dropped(), 1);
        assert_eq!(rig.find(1000, 1).err(), Some(Error::BadHandle));
    }
}
