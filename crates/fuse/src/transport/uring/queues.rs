//! What the threads of all queues know of each other.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::AcqRel;

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

/// What all threads know.
#[derive(Debug)]
pub struct Shared {
    pub queues: Vec<Queue>,
    pub large_reads: Turns,
    pub keepers: Keepers,
    pub leftovers: Leftovers,
}

#[cfg(test)]
mod tests {
    use super::*;

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
