//! Helping hands for work that splits into many independent pieces: checksums, compression, decompression.
//!
//! A caller works itself, and is joined by as many threads as are free at that moment: so many in all as the
//! environment has processors, whoever asks. Nobody waits for a helper to become free, so that no order of calls can
//! lock up, and results come in the order of the pieces, whoever made them. With one processor (as simulators have it)
//! everything happens in the caller, in order.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// The helpers of an engine. Threads live for one call: starting one costs less than a tenth of what a piece takes.
#[derive(Debug)]
pub struct Workers {
    /// Helpers that nobody uses now.
    free: AtomicUsize,
    /// Callers and helpers together.
    threads: usize,
}

impl Workers {
    /// Helpers for callers on a machine with so many processors.
    pub fn new(threads: usize) -> Self {
        Self {
            free: AtomicUsize::new(threads.saturating_sub(1)),
            threads: threads.max(1),
        }
    }

    /// How many pieces may be worked on at the same time, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` for each job and returns what it returns, in the order of the jobs.
    ///
    /// # Panics
    /// Where `work` does.
    pub fn run<J: Send, R: Send>(&self, jobs: Vec<J>, work: impl Fn(J) -> R + Sync) -> Vec<R> {
        let helpers = self.take(jobs.len().saturating_sub(1));
        if helpers.count == 0 {
            return jobs.into_iter().map(work).collect();
        }
        let count = jobs.len();
        let queue = Mutex::new(jobs.into_iter().enumerate());
        let work_on = || {
            let mut done = Vec::new();
            loop {
                // The lock is not held while the work is done.
                let next = queue.lock().next();
                let Some((index, job)) = next else { return done };
                done.push((index, work(job)));
            }
        };
        let mut done = std::thread::scope(|scope| {
            let others: Vec<_> = (0..helpers.count).map(|_| scope.spawn(work_on)).collect();
            let mut done = work_on();
            for thread in others {
                match thread.join() {
                    Ok(theirs) => done.extend(theirs),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            done
        });
        assert_eq!(done.len(), count, "every job is done once");
        done.sort_unstable_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// Takes up to `wanted` helpers that are free.
    fn take(&self, wanted: usize) -> Taken<'_> {
        let mut count = 0;
        // The closure never fails: fewer are taken where fewer are free.
        let _ = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            count = wanted.min(free);
            Some(free - count)
        });
        Taken {
            free: &self.free,
            count,
        }
    }
}

/// Helpers that go back when this is dropped, by a panic, too.
struct Taken<'a> {
    free: &'a AtomicUsize,
    count: usize,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.free.fetch_add(self.count, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn results_come_in_order_from_any_number_of_threads() {
        for threads in [0, 1, 2, 5] {
            let workers = Workers::new(threads);
            for jobs in [0, 1, 2, 100] {
                let squares = workers.run((0..jobs).collect(), |n: u64| n * n);
                assert_eq!(squares, (0..jobs).map(|n| n * n).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn there_are_never_more_helpers_than_promised_and_they_come_back() {
        let workers = Workers::new(3);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let at_once = |_: u32| {
            let running = now.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(running, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..20).for_each(|_| drop(workers.run((0..50).collect(), at_once))));
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 4, "two callers and two helpers");
        let broken = catch_unwind(AssertUnwindSafe(|| {
            workers.run(vec![0, 1, 2, 3], |n: u32| assert_ne!(n, 2));
        }));
        assert!(broken.is_err());
        assert_eq!(
            workers.free.load(Ordering::SeqCst),
            2,
            "helpers come back after a panic"
        );
    }
}
