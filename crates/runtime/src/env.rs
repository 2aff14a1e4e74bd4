//! What an engine takes from the machine: time, randomness, processors and threads.
//!
//! An engine gets an [`Env`] and asks it alone, so that a test can replace each of them:
//! [`SystemEnv`] is the machine; [`FixedEnv`] repeats times and random numbers, with the machine's
//! timers and threads; [`ManualEnv`](crate::ManualEnv) has a clock that the test moves by hand.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::event::{Event, Seen};
use crate::system::{self, Body, Thread};
use crate::time::Timestamp;

/// The machine as an engine sees it.
///
/// What has a default is the machine's own, except the number of processors.
pub trait Env: Send + Sync {
    /// Wall-clock time, for file times.
    fn now(&self) -> Timestamp;

    /// Fills `bytes` with randomness, for uuids.
    fn random(&self, bytes: &mut [u8]);

    /// How many processors may work for one caller. With one, the order of work repeats.
    fn processors(&self) -> usize {
        1
    }

    /// Time since some start that stays the same. Never goes back; deadlines are in terms of it.
    fn monotonic(&self) -> Duration {
        system::monotonic()
    }

    /// Waits until `event` is signalled after `seen` was taken, or [`Env::monotonic`] is `until` or
    /// later. May return early: callers look at their condition and at the clock again.
    fn wait(&self, event: &Arc<Event>, seen: Seen, until: Duration) {
        system::wait(event, seen, until);
    }

    /// Starts a thread.
    ///
    /// # Errors
    /// When the machine has no thread to give.
    fn spawn(&self, name: &str, body: Body) -> io::Result<Thread> {
        system::spawn(name, body)
    }

    /// Waits until so much time has passed.
    fn sleep(&self, time: Duration) {
        let until = self.monotonic().saturating_add(time);
        let event = Arc::new(Event::default());
        while self.monotonic() < until {
            self.wait(&event, event.seen(), until);
        }
    }
}

/// The machine itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnv;

impl Env for SystemEnv {
    fn now(&self) -> Timestamp {
        system::now()
    }

    fn random(&self, bytes: &mut [u8]) {
        system::random(bytes);
    }

    fn processors(&self) -> usize {
        system::processors()
    }
}

/// A wall clock that advances one microsecond per look, and a counter as randomness: for tests
/// whose images must repeat. Timers and threads are the machine's, one processor works.
#[derive(Debug, Default)]
pub struct FixedEnv {
    ticks: AtomicU64,
}

impl Env for FixedEnv {
    fn now(&self) -> Timestamp {
        after_start(Duration::from_micros(self.ticks.fetch_add(1, Ordering::Relaxed)))
    }

    fn random(&self, bytes: &mut [u8]) {
        fill(self.ticks.fetch_add(1, Ordering::Relaxed), bytes);
    }
}

/// A wall-clock time in 2023, and `elapsed` later.
pub(crate) fn after_start(elapsed: Duration) -> Timestamp {
    let secs = 1_700_000_000 + i64::try_from(elapsed.as_secs()).unwrap_or(0);
    Timestamp::new(secs, elapsed.subsec_nanos())
}

/// Fills `bytes` with what follows from `seed` (xorshift).
pub(crate) fn fill(seed: u64, bytes: &mut [u8]) {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    for b in bytes {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *b = (x >> 32) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_without_signal_ends_at_the_deadline() {
        let event = Arc::new(Event::default());
        let until = SystemEnv.monotonic() + Duration::from_millis(5);
        while SystemEnv.monotonic() < until {
            SystemEnv.wait(&event, event.seen(), until);
        }
        SystemEnv.sleep(Duration::from_millis(5));
        assert!(SystemEnv.monotonic() >= until + Duration::from_millis(5));
    }

    #[test]
    fn wait_for_a_deadline_beyond_the_clock_ends_by_a_signal() {
        let event = Arc::new(Event::default());
        let seen = event.seen();
        let thread = {
            let event = event.clone();
            SystemEnv.spawn("waits", Box::new(move || SystemEnv.wait(&event, seen, Duration::MAX)))
        };
        event.signal();
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn join_of_a_panicked_thread_returns_the_panic() {
        let thread = SystemEnv.spawn("panics", Box::new(|| panic!("on purpose"))).unwrap();
        assert!(!thread.is_current());
        assert!(thread.join().is_err());
    }
}
