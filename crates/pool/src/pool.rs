//! The pool: threads, and the lifetime of what a caller shares with them.
//!
//! Why there is unsafe code: what a caller shares with its helpers lives on its stack, and the
//! compiler cannot see that threads that outlive the call are done with it. Scoped threads of the
//! standard library would have to be started for each call, and waited for even where they begin
//! when all is done: on a busy machine that took longer than the work.
//!
//! Locks: the list of threads, with the lock of `spawn` within, if it has one. It is not held while
//! work runs.
#![allow(unsafe_code)]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::protocol::{Calls, Panic};
use crate::sched;

type Work<'w> = dyn Fn() + Sync + 'w;

/// What a thread of the pool runs.
pub type Body = Box<dyn FnOnce() + Send>;
/// Waits for the end of a thread of the pool.
pub type Join = Box<dyn FnOnce() + Send>;
/// Starts a thread.
pub type Spawn = Box<dyn Fn(Body) -> io::Result<Join> + Send + Sync>;

/// What a caller does, without its lifetime.
#[derive(Clone, Copy)]
struct Shared(*const Work<'static>);

// SAFETY: it points to something that is `Sync`, and is only used as a shared reference.
unsafe impl Send for Shared {}

/// Threads that are started when they are first wanted, and end with the pool.
pub struct Pool {
    calls: Arc<Calls<Shared>>,
    threads: Mutex<Vec<Join>>,
    spawn: Spawn,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads().len())
    }
}

impl Pool {
    /// A pool without threads. `spawn` starts them.
    pub fn new(spawn: Spawn) -> Self {
        Self {
            calls: Arc::new(Calls::new()),
            threads: Mutex::default(),
            spawn,
        }
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<Join>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` in this thread, and at the same time in up to `helpers` threads of the pool:
    /// those that begin before this thread is done with it. Returns when none runs it any more.
    ///
    /// # Panics
    /// Where `work` does, here or in a helper.
    pub fn call(&self, helpers: usize, work: &Work<'_>) {
        let open = self.open(helpers, work);
        work();
        if let Some(panic) = open.close() {
            resume_unwind(panic);
        }
    }

    fn open<'c>(&'c self, helpers: usize, work: &'c Work<'c>) -> Open<'c> {
        let work: *const Work<'c> = work;
        // SAFETY: only the lifetime changes. `Open` has the old one and closes the call when it is
        // dropped; no helper uses the pointer after that.
        let work: *const Work<'static> = unsafe { std::mem::transmute(work) };
        let id = self.calls.open(helpers, Shared(work));
        // From here on a panic closes the call.
        let open = Open { calls: &self.calls, id };
        self.start_missing(helpers);
        self.calls.wake(helpers);
        open
    }

    /// Starts threads where too few are asleep, as long as there are fewer than `helpers` in all.
    /// Where none can be started there is less help.
    fn start_missing(&self, helpers: usize) {
        for _ in self.calls.asleep()..helpers {
            let mut threads = self.threads();
            if threads.len() >= helpers {
                return;
            }
            let calls = self.calls.clone();
            match (self.spawn)(Box::new(move || help(&calls))) {
                Ok(thread) => threads.push(thread),
                Err(error) => tracing::warn!(%error, "cannot start a helper thread"),
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.calls.end();
        let threads = std::mem::take(&mut *self.threads());
        for join in threads {
            join();
        }
    }
}

/// A call that helpers may enter; closed when this is dropped, also by a panic of the caller.
struct Open<'c> {
    calls: &'c Calls<Shared>,
    id: u64,
}

impl Open<'_> {
    /// Returns what a helper panicked with.
    fn close(self) -> Option<Panic> {
        let panic = self.calls.close(self.id);
        std::mem::forget(self);
        panic
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // The caller panics already.
        drop(self.calls.close(self.id));
    }
}

/// What a thread of the pool does.
fn help(calls: &Calls<Shared>) {
    if let Err(error) = sched::do_not_preempt() {
        tracing::debug!(%error, "helper threads are scheduled as all others");
    }
    calls.help(|work| {
        // SAFETY: the protocol counts this thread as inside the call. Therefore the caller has not
        // returned from `close`, and what it shares is alive.
        catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)() }))
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn pool() -> Pool {
        Pool::new(Box::new(|body| {
            let thread = std::thread::Builder::new().spawn(body)?;
            Ok(Box::new(move || thread.join().expect("a helper does not panic")))
        }))
    }

    #[test]
    fn call_runs_in_all_helpers_and_returns_after_them() {
        let pool = pool();
        for _ in 0..200 {
            let (together, left) = (Barrier::new(3), AtomicUsize::new(0));
            pool.call(2, &|| {
                together.wait();
                left.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(left.into_inner(), 3);
        }
        assert_eq!(pool.threads().len(), 2, "they are used again");
    }

    #[test]
    fn helpers_do_not_preempt_and_the_caller_may() {
        let pool = pool();
        let together = Barrier::new(2);
        let caller = std::thread::current().id();
        pool.call(1, &|| {
            together.wait();
            assert_eq!(sched::may_preempt(), std::thread::current().id() == caller);
        });
    }

    #[test]
    fn call_does_not_wait_for_a_helper_that_has_not_begun() {
        let pool = pool();
        let (inside, go_on) = (Barrier::new(3), Barrier::new(3));
        std::thread::scope(|scope| {
            // Keeps its caller and the one helper busy.
            scope.spawn(|| {
                pool.call(1, &|| {
                    inside.wait();
                    go_on.wait();
                });
            });
            inside.wait();
            let runs = AtomicUsize::new(0);
            pool.call(1, &|| {
                runs.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(runs.into_inner(), 1, "alone");
            go_on.wait();
        });
    }

    #[test]
    fn panic_of_caller_or_helper_reaches_the_caller_and_the_pool_goes_on() {
        let pool = pool();
        let caller = std::thread::current().id();
        for here in [true, false] {
            let together = Barrier::new(2);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.call(1, &|| {
                    together.wait();
                    assert!((std::thread::current().id() == caller) != here, "as intended");
                });
            }));
            assert!(result.is_err());
            assert_eq!(pool.calls.open_calls(), 0);
        }
        let together = Barrier::new(2);
        pool.call(1, &|| {
            together.wait();
        });
    }

    #[test]
    fn callers_at_the_same_time_share_helpers() {
        let pool = pool();
        let runs = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..500).for_each(|_| pool.call(2, &|| _ = runs.fetch_add(1, Ordering::Relaxed)));
                });
            }
        });
        assert!((2000..=6000).contains(&runs.into_inner()));
    }

    #[test]
    fn call_without_threads_to_start_runs_in_the_caller_alone() {
        let pool = Pool::new(Box::new(|_| Err(io::Error::from(io::ErrorKind::WouldBlock))));
        let runs = AtomicUsize::new(0);
        pool.call(3, &|| _ = runs.fetch_add(1, Ordering::SeqCst));
        assert_eq!(runs.into_inner(), 1);
    }
}
