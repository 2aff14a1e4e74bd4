//! What the threads of all queues know of each other.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::AcqRel;

use parking_lot::{Condvar, Mutex};

use super::leftovers::Leftovers;
use crate::transport::keeper::Keepers;
use crate::transport::streams::Turns;

/// Threads of a queue, at least: one that waits, and one for what it may wait for.
pub const THREADS_MIN: usize = 2;

/// A queue, as its threads see it.
#[derive(Debug)]
pub struct Queue {
    threads: usize,
    /// Threads that keep a reply back.
    withholding: AtomicUsize,
}

impl Queue {
    pub fn new(threads: usize) -> Queue {
        Queue {
            threads,
            withholding: AtomicUsize::new(0),
        }
    }

    /// May one more thread keep its reply back? Half of them are left to what the reply may wait
    /// for.
    pub fn withhold(&self) -> bool {
        let may = self.withholding.fetch_add(1, AcqRel) < self.threads / 2;
        if !may {
            self.replied();
        }
        may
    }

    pub fn replied(&self) {
        self.withholding.fetch_sub(1, AcqRel);
    }
}

/// Counts entries that are not registered with the kernel yet.
///
/// Linux sends requests as soon as each queue has one entry. A request that finds all of these busy
/// waits for one that replies, and is never given to an entry that is registered later (6.18). If
/// the request that is being served depends on it, both wait for ever. So no thread serves a
/// request before all entries are registered.
#[derive(Debug, Default)]
pub struct Unregistered {
    count: Mutex<usize>,
    is_zero: Condvar,
}

/// An entry that is not registered yet. It is dropped when it is, or when its thread failed.
#[derive(Debug)]
pub struct UnregisteredEntry<'u>(&'u Unregistered);

impl Unregistered {
    /// Counts one more.
    pub fn entry(&self) -> UnregisteredEntry<'_> {
        *self.count.lock() += 1;
        UnregisteredEntry(self)
    }

    /// Waits until there is none.
    pub fn wait_for_none(&self) {
        self.is_zero.wait_while(&mut self.count.lock(), |count| *count > 0);
    }
}

impl Drop for UnregisteredEntry<'_> {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.is_zero.notify_all();
        }
    }
}

/// What all threads know.
#[derive(Debug)]
pub struct Shared {
    pub unregistered: Unregistered,
    pub queues: Vec<Queue>,
    pub large_reads: Turns,
    pub keepers: Keepers,
    pub leftovers: Leftovers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_until_every_entry_is_registered_or_gone() {
        let unregistered = Unregistered::default();
        unregistered.wait_for_none();
        let [first, second] = [unregistered.entry(), unregistered.entry()];
        drop(first);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| unregistered.wait_for_none());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiting.is_finished());
            drop(second);
        });
    }

    #[test]
    fn half_of_the_threads_keep_no_reply_back() {
        let queue = Queue::new(16);
        assert_eq!((0..16).filter(|_| queue.withhold()).count(), 8);
        queue.replied();
        assert!(queue.withhold() && !queue.withhold());
        let least = Queue::new(THREADS_MIN);
        assert!(least.withhold() && !least.withhold());
    }
}
