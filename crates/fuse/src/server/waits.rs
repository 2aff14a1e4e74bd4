//! Calls that wait for something that takes long: their replies are sent by a thread that looks
//! whether it has come. A caller that is interrupted is answered at once.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cowshed_vfs::{Error, Wait};
use parking_lot::{Condvar, Mutex};

use super::late::Owed;
use crate::proto::wire::IoctlOut;

/// Between two looks: the time waited so far divided by this, within these bounds.
const WAITED_BY_PAUSE: u32 = 16;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The thread stays for so long after the last wait.
const STAYS: Duration = Duration::from_secs(10);

/// An interruption may be read before the request that it is of. Others are of calls that do not
/// wait here.
const EARLY_MAX: usize = 64;

struct Waiting {
    owed: Owed,
    wait: Wait,
    since: Instant,
    due: Instant,
}

#[derive(Default)]
struct State {
    /// By the request's number.
    waiting: HashMap<u64, Waiting>,
    early: VecDeque<u64>,
    has_thread: bool,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module.
#[derive(Default)]
pub(super) struct Waits(Arc<Shared>);

impl Waits {
    /// Answers the request once what it waits for has come.
    pub fn add(&self, unique: u64, owed: Owed, mut wait: Wait) {
        let mut state = self.0.state.lock();
        let early = state.early.iter().position(|early| *early == unique);
        if let Some(at) = early {
            state.early.remove(at);
            return owed.answer::<()>(Err(Error::Interrupted));
        }
        if state.is_over {
            return;
        }
        if let Some(outcome) = ask(&mut wait) {
            return answer(owed, outcome);
        }
        if !state.has_thread {
            let shared = self.0.clone();
            let thread = std::thread::Builder::new().name("fuse-waits".into());
            if let Err(error) = thread.spawn(move || run(&shared)) {
                tracing::warn!(%error, "a call cannot wait");
                return owed.answer::<()>(Err(Error::Again));
            }
            state.has_thread = true;
        }
        let since = Instant::now();
        let due = since + PAUSE_MIN;
        state.waiting.insert(unique, Waiting { owed, wait, since, due });
        self.0.changed.notify_one();
    }

    /// The caller of a request was interrupted, which need not be one that waits here.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.0.state.lock();
        if let Some(waiting) = state.waiting.remove(&unique) {
            return waiting.owed.answer::<()>(Err(Error::Interrupted));
        }
        if state.early.len() == EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }

    /// No wait is asked any more when this returns.
    pub fn end(&self) {
        let mut state = self.0.state.lock();
        state.is_over = true;
        state.waiting.clear();
        self.0.changed.notify_one();
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.end();
    }
}

fn ask(wait: &mut Wait) -> Option<Result<(), Error>> {
    catch_unwind(AssertUnwindSafe(wait)).unwrap_or(Some(Err(Error::Io)))
}

fn answer(owed: Owed, outcome: Result<(), Error>) {
    owed.answer(outcome.map(|()| IoctlOut::default()));
}

fn run(shared: &Shared) {
    let mut state = shared.state.lock();
    let mut stays_until = Instant::now() + STAYS;
    while !state.is_over {
        let now = Instant::now();
        let due = state.waiting.iter().filter(|(_, waiting)| waiting.due <= now);
        let due: Vec<_> = due.map(|(unique, _)| *unique).collect();
        for unique in due {
            let Some(waiting) = state.waiting.get_mut(&unique) else {
                continue;
            };
            let outcome = ask(&mut waiting.wait);
            let pause = (now - waiting.since) / WAITED_BY_PAUSE;
            waiting.due = now + pause.clamp(PAUSE_MIN, PAUSE_MAX);
            if let Some(outcome) = outcome
                && let Some(waiting) = state.waiting.remove(&unique)
            {
                answer(waiting.owed, outcome);
            }
        }
        if !state.waiting.is_empty() {
            stays_until = now + STAYS;
        } else if now >= stays_until {
            break;
        }
        let next = state.waiting.values().map(|waiting| waiting.due).min();
        shared.changed.wait_until(&mut state, next.unwrap_or(stays_until));
    }
    state.has_thread = false;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use super::super::late::tests::owed;
    use super::*;

    /// A call with this number that waits for so many looks; its errno comes when it is answered.
    fn call(waits: &Waits, unique: u64, looks: u32) -> mpsc::Receiver<i32> {
        let (errno, answered) = mpsc::channel();
        let left = AtomicU32::new(looks);
        let is_there = move || left.fetch_sub(1, Ordering::Relaxed) == 0;
        waits.add(
            unique,
            owed(unique, move |reply| errno.send(reply.errno()).unwrap()),
            Box::new(move || is_there().then_some(Ok(()))),
        );
        answered
    }

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn calls_are_answered_when_what_they_wait_for_has_come() {
        let waits = Waits::default();
        for looks in [0, 1, 5] {
            assert_eq!(call(&waits, 1, looks).recv_timeout(SOON), Ok(0));
        }
        let (errno, answered) = mpsc::channel();
        let failing = owed(2, move |reply| errno.send(reply.errno()).unwrap());
        waits.add(2, failing, Box::new(|| panic!("on purpose")));
        assert_eq!(answered.recv_timeout(SOON), Ok(libc::EIO));
    }

    #[test]
    fn interrupted_calls_are_answered_at_once_whichever_comes_first() {
        let waits = Waits::default();
        let answered = call(&waits, 7, u32::MAX);
        let other = call(&waits, 8, u32::MAX);
        waits.interrupt(6);
        assert!(answered.try_recv().is_err());
        waits.interrupt(7);
        assert_eq!(answered.recv_timeout(SOON), Ok(libc::EINTR));
        assert!(other.try_recv().is_err());
        waits.interrupt(9);
        assert_eq!(call(&waits, 9, u32::MAX).recv_timeout(SOON), Ok(libc::EINTR));
        for unrelated in 100..200 {
            waits.interrupt(unrelated);
        }
        assert_eq!(waits.0.state.lock().early.len(), EARLY_MAX);
        waits.end();
        assert_eq!(other.recv_timeout(SOON), Ok(libc::EIO), "the session has ended");
    }
}
