//! Threads for work that splits into independent pieces: checksums, compression, decompression.
//!
//! A caller works itself, and up to as many threads as are free at that moment help it: callers and
//! helpers together are no more than [`Env::processors`], unless there are more callers. A caller
//! does not wait for a helper to become free, or to begin: a helper that begins when all is done
//! finds the call closed. So no order of calls can deadlock, and a busy machine does not delay a
//! caller. Results come in the order of the pieces. With one processor (as simulators have it) all
//! work is done by the caller, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cowshed_pool::{Join, Pool};
use parking_lot::Mutex;

use crate::env::Env;

/// The helpers of an engine.
#[derive(Debug)]
pub struct Workers {
    pool: Pool,
    /// Callers and helpers at work now.
    busy: AtomicUsize,
    /// As many may be, helpers included.
    threads: usize,
}

impl Workers {
    /// Helpers for callers on this machine. Threads are started when they are first wanted.
    pub fn new(env: Arc<dyn Env>) -> Self {
        let threads = env.processors().max(1);
        let spawn = move |body| -> std::io::Result<Join> {
            let thread = env.spawn("helper", body)?;
            // Panics of the work were caught and went to its caller.
            Ok(Box::new(move || drop(thread.join())))
        };
        Self {
            pool: Pool::new(Box::new(spawn)),
            busy: AtomicUsize::new(0),
            threads,
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
        let team = self.take(jobs.len().saturating_sub(1));
        if team.helpers == 0 {
            return jobs.into_iter().map(work).collect();
        }
        let count = jobs.len();
        let queue = Mutex::new(jobs.into_iter().enumerate());
        let done = Mutex::new(Vec::with_capacity(count));
        self.pool.call(team.helpers, &|| {
            loop {
                // The locks are not held while the work is done.
                let next = queue.lock().next();
                let Some((index, job)) = next else { return };
                let result = work(job);
                done.lock().push((index, result));
            }
        });
        let mut done = done.into_inner();
        assert_eq!(done.len(), count, "every job is done once");
        done.sort_unstable_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// Counts the caller as busy, with up to `wanted` helpers that are free.
    fn take(&self, wanted: usize) -> Team<'_> {
        let mut helpers = 0;
        // The closure never fails: fewer are taken where fewer are free.
        let _ = self.busy.fetch_update(Ordering::AcqRel, Ordering::Acquire, |busy| {
            helpers = wanted.min(self.threads.saturating_sub(busy + 1));
            Some(busy + 1 + helpers)
        });
        Team {
            busy: &self.busy,
            helpers,
        }
    }
}

/// A caller with its helpers. They are free again when this is dropped, also by a panic.
struct Team<'a> {
    busy: &'a AtomicUsize,
    helpers: usize,
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        self.busy.fetch_sub(1 + self.helpers, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::time::Timestamp;

    /// A machine with so many processors.
    struct Processors(usize);

    impl Env for Processors {
        fn now(&self) -> Timestamp {
            Timestamp::default()
        }
        fn random(&self, _: &mut [u8]) {}
        fn processors(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn results_are_in_the_order_of_the_jobs_for_any_number_of_threads() {
        for threads in [0, 1, 2, 5] {
            let workers = Workers::new(Arc::new(Processors(threads)));
            for jobs in [0, 1, 2, 100] {
                let squares = workers.run((0..jobs).collect(), |n: u64| n * n);
                assert_eq!(squares, (0..jobs).map(|n| n * n).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn run_with_one_processor_starts_no_thread() {
        struct NoThreads;
        impl Env for NoThreads {
            fn now(&self) -> Timestamp {
                Timestamp::default()
            }
            fn random(&self, _: &mut [u8]) {}
            fn spawn(&self, name: &str, _: crate::Body) -> std::io::Result<crate::Thread> {
                panic!("{name} is started");
            }
        }
        let workers = Workers::new(Arc::new(NoThreads));
        assert_eq!(workers.run(vec![1, 2, 3], |n: u32| n + 1), [2, 3, 4]);
    }

    #[test]
    fn run_takes_no_more_helpers_than_processors_and_frees_them_after_a_panic() {
        let workers = Workers::new(Arc::new(Processors(3)));
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
        assert_eq!(workers.busy.load(Ordering::SeqCst), 0, "all are free after a panic");
    }
}
