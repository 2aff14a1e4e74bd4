//! How a caller opens a call to helpers, and when it may take back what it shared with them.
//!
//! ```text
//!   caller:  open --- works itself --------------- close: none enters; waits for those inside
//!   helper:  asleep -- enters -- works -- leaves -- asleep
//! ```
//!
//! Guarantee, which the unsafe code of the pool relies on: a helper uses the work of a call only
//! while it is counted as inside, and [`Calls::close`] returns when none is inside and none can
//! enter. The mutex orders all that a helper did before all that the caller does after the close.
//!
//! Locks: the state, held for a few instructions, no other lock within. They come from
//! `crate::sync`: this file is compiled once with the locks of the standard library and once with
//! those of loom, by `tests/protocol.rs`.

use std::any::Any;
use std::sync::PoisonError;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// What work panicked with.
pub(crate) type Panic = Box<dyn Any + Send>;

/// The calls that helpers may enter.
pub(crate) struct Calls<W> {
    state: Mutex<State<W>>,
    /// There may be a place in a call, or the pool ends.
    wanted: Condvar,
    /// The last helper inside a call has left it.
    left: Condvar,
}

struct State<W> {
    calls: Vec<Call<W>>,
    next_id: u64,
    asleep: usize,
    is_over: bool,
}

struct Call<W> {
    id: u64,
    work: W,
    /// How many helpers may still enter.
    places: usize,
    /// How many helpers are at work.
    inside: usize,
    panic: Option<Panic>,
}

impl<W> State<W> {
    fn call(&mut self, id: u64) -> &mut Call<W> {
        let call = self.calls.iter_mut().find(|call| call.id == id);
        call.expect("a call stays until its caller closes it, when all helpers have left")
    }
}

impl<W: Clone> Calls<W> {
    pub(crate) fn new() -> Self {
        let state = State {
            calls: Vec::new(),
            next_id: 0,
            asleep: 0,
            is_over: false,
        };
        Self {
            state: Mutex::new(state),
            wanted: Condvar::new(),
            left: Condvar::new(),
        }
    }

    /// The state is consistent whenever the lock is free: no work runs under it.
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many helpers wait for a call.
    pub(crate) fn asleep(&self) -> usize {
        self.lock().asleep
    }

    /// How many calls are open.
    #[cfg(test)]
    pub(crate) fn open_calls(&self) -> usize {
        self.lock().calls.len()
    }

    /// Lets so many helpers enter a call, once they are woken. To be closed in any case.
    pub(crate) fn open(&self, places: usize, work: W) -> u64 {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.calls.push(Call {
            id,
            work,
            places,
            inside: 0,
            panic: None,
        });
        id
    }

    /// Wakes so many helpers.
    pub(crate) fn wake(&self, helpers: usize) {
        for _ in 0..helpers {
            self.wanted.notify_one();
        }
    }

    /// Lets no helper enter a call any more, and waits for those inside. No helper uses its work
    /// afterwards. Returns what a helper panicked with.
    pub(crate) fn close(&self, id: u64) -> Option<Panic> {
        let mut state = self.lock();
        state.call(id).places = 0;
        while state.call(id).inside > 0 {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let panic = state.call(id).panic.take();
        state.calls.retain(|call| call.id != id);
        panic
    }

    /// What a helper does until the pool ends: enters calls, and runs their work. `run` must not
    /// panic.
    pub(crate) fn help(&self, run: impl Fn(W) -> Result<(), Panic>) {
        let mut state = self.lock();
        while !state.is_over {
            let Some(call) = state.calls.iter_mut().find(|call| call.places > 0) else {
                state.asleep += 1;
                state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.asleep -= 1;
                continue;
            };
            call.places -= 1;
            call.inside += 1;
            let (id, work) = (call.id, call.work.clone());
            drop(state);
            let result = run(work);
            state = self.lock();
            let call = state.call(id);
            call.inside -= 1;
            call.panic = call.panic.take().or(result.err());
            if call.inside == 0 {
                self.left.notify_all();
            }
        }
    }

    /// Has all helpers return.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.wanted.notify_all();
    }
}
