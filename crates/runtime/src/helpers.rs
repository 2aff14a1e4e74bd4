//! Threads that join in what a caller does, and sleep in between.
//!
//! ```text
//!   caller:  open -- works itself --------------------- close: nobody enters any more; waits for who is inside
//!   helper:  asleep -- enters -- works -- leaves -- asleep
//! ```
//!
//! Why there is unsafe code here: what a caller shares with its helpers lives on its stack, and the compiler cannot see that
//! threads that outlive the call are done with it. Scoped threads of the standard library would have to be started for each
//! call, and waited for even where they begin when all is done: on a busy machine that took longer than the work.
//!
//! Locks: the state, held for a few instructions, no other lock within.
#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use parking_lot::{Condvar, Mutex, MutexGuard};

type Work<'w> = dyn Fn() + Sync + 'w;
type Panic = Box<dyn Any + Send>;

/// What a caller does, without its lifetime.
#[derive(Clone, Copy)]
struct Shared(*const Work<'static>);

// SAFETY: it points to something that is `Sync`, and is only used as a shared reference.
unsafe impl Send for Shared {}

struct Call {
    id: u64,
    work: Shared,
    /// As many may still enter.
    places: usize,
    /// As many are at work.
    inside: usize,
    panic: Option<Panic>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    next_id: u64,
    threads: Vec<JoinHandle<()>>,
    asleep: usize,
    is_over: bool,
}

impl State {
    fn call(&mut self, id: u64) -> &mut Call {
        let call = self.calls.iter_mut().find(|call| call.id == id);
        call.expect("a call stays until its caller closes it, when everybody has left")
    }
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    /// There may be a place in a call, or all is over.
    wanted: Condvar,
    /// Somebody was the last to leave a call.
    left: Condvar,
}

/// Threads that are started when they are first wanted, and end with this.
#[derive(Default)]
pub struct Helpers(Arc<Pool>);

impl std::fmt::Debug for Helpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Helpers({})", self.0.state.lock().threads.len())
    }
}

impl Helpers {
    /// Runs `work` here, and at the same time in up to `helpers` other threads, as far as these come before it is done
    /// here.
    ///
    /// # Panics
    /// Where `work` does, here or there.
    pub fn call(&self, helpers: usize, work: &Work<'_>) {
        let open = self.open(helpers, work);
        work();
        if let Some(panic) = open.close() {
            resume_unwind(panic);
        }
    }

    fn open<'c>(&'c self, helpers: usize, work: &'c Work<'c>) -> Open<'c> {
        let work: *const Work<'c> = work;
        // SAFETY: only the lifetime changes. `Open` has the old one, and nobody uses the pointer when it is gone.
        let work: *const Work<'static> = unsafe { std::mem::transmute(work) };
        let mut state = self.0.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.calls.push(Call {
            id,
            work: Shared(work),
            places: helpers,
            inside: 0,
            panic: None,
        });
        drop(state);
        // From here on a panic closes the call: nobody shall find it who comes when it is over.
        let open = Open { pool: &self.0, id };
        self.wake(helpers);
        open
    }

    /// Starts threads where too few are asleep, and wakes the others.
    fn wake(&self, helpers: usize) {
        let mut state = self.0.state.lock();
        for _ in state.asleep..helpers {
            self.start(&mut state, helpers);
        }
        drop(state);
        for _ in 0..helpers {
            self.0.wanted.notify_one();
        }
    }

    /// Starts a thread, unless there are enough for any one caller. Without it there is less help.
    fn start(&self, state: &mut MutexGuard<'_, State>, threads_max: usize) {
        if state.threads.len() >= threads_max {
            return;
        }
        let pool = self.0.clone();
        match Builder::new().name("helper".into()).spawn(move || pool.help()) {
            Ok(thread) => state.threads.push(thread),
            Err(error) => tracing::warn!(%error, "no thread to help"),
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.0.state.lock();
            state.is_over = true;
            std::mem::take(&mut state.threads)
        };
        self.0.wanted.notify_all();
        for thread in threads {
            // Panics of the work were caught.
            let _ = thread.join();
        }
    }
}

/// A call that helpers may enter; closed when this goes, by a panic of the caller, too.
struct Open<'c> {
    pool: &'c Pool,
    id: u64,
}

impl Open<'_> {
    /// Returns what a helper panicked with.
    fn close(self) -> Option<Panic> {
        let panic = self.pool.close(self.id);
        std::mem::forget(self);
        panic
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // The caller panics already.
        drop(self.pool.close(self.id));
    }
}

impl Pool {
    /// Lets nobody enter any more, and waits for who is inside. Nobody has the call's pointer afterwards.
    fn close(&self, id: u64) -> Option<Panic> {
        let mut state = self.state.lock();
        state.call(id).places = 0;
        while state.call(id).inside > 0 {
            self.left.wait(&mut state);
        }
        let panic = state.call(id).panic.take();
        state.calls.retain(|call| call.id != id);
        panic
    }

    /// What a thread does all its life.
    fn help(&self) {
        if let Err(error) = yield_to_others() {
            tracing::debug!(%error, "helpers take turns with everybody");
        }
        let mut state = self.state.lock();
        while !state.is_over {
            let Some(call) = state.calls.iter_mut().find(|call| call.places > 0) else {
                state.asleep += 1;
                self.wanted.wait(&mut state);
                state.asleep -= 1;
                continue;
            };
            call.places -= 1;
            call.inside += 1;
            let (id, work) = (call.id, call.work);
            let result = MutexGuard::unlocked(&mut state, || {
                // SAFETY: this thread counts as inside, therefore the caller has not returned from `close`, and what it
                // shares is alive.
                catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)() }))
            });
            let call = state.call(id);
            call.inside -= 1;
            call.panic = call.panic.take().or(result.err());
            if call.inside == 0 {
                self.left.notify_all();
            }
        }
    }
}

/// From now on this thread takes a processor that is free, or waits its turn, but does not interrupt anybody when it wakes.
///
/// Whom a helper would interrupt is often the one who waits for what it does: a program that reads what was read ahead, and asks for
/// more only when it comes to it. Callers are not delayed: what no helper has begun, they do themselves.
fn yield_to_others() -> std::io::Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the structure it is given; 0 is this thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const priority) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn helpers_come_and_the_caller_leaves_after_them() {
        let helpers = Helpers::default();
        for _ in 0..200 {
            let (together, left) = (Barrier::new(3), AtomicUsize::new(0));
            helpers.call(2, &|| {
                together.wait();
                left.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(left.into_inner(), 3);
        }
        assert_eq!(helpers.0.state.lock().threads.len(), 2, "they are used again");
    }

    #[test]
    fn helpers_interrupt_nobody() {
        let helpers = Helpers::default();
        let together = Barrier::new(2);
        let caller = std::thread::current().id();
        helpers.call(1, &|| {
            together.wait();
            // SAFETY: no memory is touched.
            let policy = unsafe { libc::sched_getscheduler(0) };
            assert_eq!(policy == libc::SCHED_BATCH, std::thread::current().id() != caller);
        });
    }

    #[test]
    fn nobody_waits_for_a_helper_that_does_not_begin() {
        let helpers = Helpers::default();
        let (inside, go_on) = (Barrier::new(3), Barrier::new(3));
        std::thread::scope(|scope| {
            // Keeps its caller and the one helper busy.
            scope.spawn(|| {
                helpers.call(1, &|| {
                    inside.wait();
                    go_on.wait();
                });
            });
            inside.wait();
            let runs = AtomicUsize::new(0);
            helpers.call(1, &|| {
                runs.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(runs.into_inner(), 1, "alone");
            go_on.wait();
        });
    }

    #[test]
    fn a_panic_here_or_there_reaches_the_caller_and_harms_nobody_else() {
        let helpers = Helpers::default();
        let caller = std::thread::current().id();
        for here in [true, false] {
            let together = Barrier::new(2);
            let result = catch_unwind(AssertUnwindSafe(|| {
                helpers.call(1, &|| {
                    together.wait();
                    assert!((std::thread::current().id() == caller) != here, "as intended");
                });
            }));
            assert!(result.is_err());
            assert!(helpers.0.state.lock().calls.is_empty());
        }
        let together = Barrier::new(2);
        helpers.call(1, &|| {
            together.wait();
        });
    }

    #[test]
    fn many_callers_share_helpers() {
        let helpers = Helpers::default();
        let runs = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..500).for_each(|_| helpers.call(2, &|| _ = runs.fetch_add(1, Ordering::Relaxed)));
                });
            }
        });
        assert!((2000..=6000).contains(&runs.into_inner()));
    }
}
