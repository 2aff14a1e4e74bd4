//! What the threads of all queues know of each other.

use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::keeper::Keepers;
use super::leftovers::Leftovers;
use crate::transport::streams::Turns;

/// Threads that a queue begins with.
pub const THREADS_MIN: usize = 2;

/// A queue, as its threads see it.
#[derive(Debug, Default)]
pub struct Queue {
    pub threads: AtomicUsize,
    busy: AtomicUsize,
    /// Threads that keep a reply back.
    withholding: AtomicUsize,
    pub is_growing: AtomicBool,
}

/// What all threads know.
#[derive(Debug)]
pub struct Shared {
    pub queues: Vec<Queue>,
    pub threads_max: usize,
    pub large_reads: Turns,
    pub keepers: Keepers,
    pub leftovers: Leftovers,
}

impl Shared {
    /// A thread begins with a request. True: the last one, another thread is to be started.
    pub fn begin(&self, queue: u16) -> bool {
        let queue = &self.queues[usize::from(queue)];
        let busy = queue.busy.fetch_add(1, AcqRel) + 1;
        let threads = queue.threads.load(Acquire);
        busy >= threads && threads < self.threads_max && !queue.is_growing.swap(true, AcqRel)
    }

    pub fn end(&self, queue: u16) {
        self.queues[usize::from(queue)].busy.fetch_sub(1, AcqRel);
    }

    /// May one more thread of the queue keep its reply back? Some are left to what the reply may
    /// wait for.
    pub fn withhold(&self, queue: u16) -> bool {
        let queue = &self.queues[usize::from(queue)];
        let before = queue.withholding.fetch_add(1, AcqRel);
        let may = before + THREADS_MIN <= self.threads_max / 2;
        if !may {
            queue.withholding.fetch_sub(1, AcqRel);
        }
        may
    }

    pub fn replied(&self, queue: u16) {
        self.queues[usize::from(queue)].withholding.fetch_sub(1, AcqRel);
    }
}

/// What threads tell the one that starts them.
#[derive(Debug)]
pub enum Event {
    /// All threads of a queue are busy.
    Grow(u16),
    Ended(io::Result<()>),
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Release;

    use super::*;

    fn shared(threads_max: usize) -> Shared {
        Shared {
            queues: vec![Queue::default(), Queue::default()],
            threads_max,
            large_reads: Turns::default(),
            keepers: Keepers::new(2),
            leftovers: Leftovers::none(),
        }
    }

    #[test]
    fn a_queue_grows_where_all_its_threads_are_busy() {
        let shared = shared(3);
        shared.queues[0].threads.store(2, Release);
        assert!(!shared.begin(0));
        assert!(shared.begin(0), "both are busy");
        assert!(!shared.begin(0), "a third is being started");
        shared.queues[0].threads.store(3, Release);
        shared.queues[0].is_growing.store(false, Release);
        assert!(!shared.begin(0), "there are no more than three");
        (0..4).for_each(|_| shared.end(0));
        assert_eq!(shared.queues[0].busy.load(Acquire), 0);
        assert_eq!(shared.queues[1].busy.load(Acquire), 0);
    }

    #[test]
    fn some_threads_of_a_queue_keep_no_reply_back() {
        let shared = shared(16);
        let granted = (0..16).filter(|_| shared.withhold(0)).count();
        assert_eq!(granted, 7);
        shared.replied(0);
        assert!(shared.withhold(0) && !shared.withhold(0));
        assert!(shared.withhold(1), "each queue has its own");
        let none = self::shared(2);
        assert!(!none.withhold(0));
    }
}
