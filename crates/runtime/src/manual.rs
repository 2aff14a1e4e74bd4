//! An [`Env`] whose clock stands still until a test moves it, so that a test decides which timer
//! ends, and when, and repeats from a seed.
//!
//! Threads are the machine's: between two moves of the clock a test waits until the threads it
//! started are where it expects them, with [`ManualEnv::until_sleepers`] for those at a timer.
//!
//! Locks: the state's, held for moments; the count of an event within.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::env::{Env, after_start, fill};
use crate::event::{Event, Seen};
use crate::time::Timestamp;

/// Upper bound on the wait for a thread, in real time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A clock that is moved by hand, and random numbers from a seed. One processor works.
#[derive(Debug)]
pub struct ManualEnv {
    state: Mutex<State>,
    /// A thread has come to wait.
    came: Condvar,
}

#[derive(Debug)]
struct State {
    elapsed: Duration,
    /// What the next random bytes follow from.
    seed: u64,
    sleepers: Vec<Sleeper>,
    next_id: u64,
}

/// A thread that waits for a deadline.
#[derive(Debug)]
struct Sleeper {
    id: u64,
    until: Duration,
    event: Arc<Event>,
    seen: Seen,
}

impl Sleeper {
    /// False where the event has been signalled and the thread is about to find that out.
    fn is_asleep(&self) -> bool {
        self.event.seen() == self.seen
    }
}

impl ManualEnv {
    /// A clock at zero, and random numbers that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State {
            elapsed: Duration::ZERO,
            seed,
            sleepers: Vec::new(),
            next_id: 0,
        };
        Self {
            state: Mutex::new(state),
            came: Condvar::new(),
        }
    }

    /// Moves the clock, and ends the waits whose deadline is reached by that.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state.lock();
        state.elapsed += by;
        let elapsed = state.elapsed;
        let due = state.sleepers.extract_if(.., |sleeper| sleeper.until <= elapsed);
        for sleeper in due {
            sleeper.event.signal();
        }
    }

    /// The deadlines that threads wait for, in their order.
    pub fn deadlines(&self) -> Vec<Duration> {
        let state = self.state.lock();
        let asleep = state.sleepers.iter().filter(|sleeper| sleeper.is_asleep());
        let mut all: Vec<_> = asleep.map(|sleeper| sleeper.until).collect();
        all.sort_unstable();
        all
    }

    /// Waits, in real time, until so many threads wait for a deadline.
    ///
    /// # Panics
    /// After a minute, so that a test fails instead of hanging.
    #[allow(clippy::disallowed_methods, reason = "a limit on tests, in real time by intention")]
    pub fn until_sleepers(&self, count: usize) {
        let mut state = self.state.lock();
        let are_missing = |state: &mut State| {
            let asleep = state.sleepers.iter().filter(|sleeper| sleeper.is_asleep());
            asleep.count() < count
        };
        let outcome = self.came.wait_while_for(&mut state, are_missing, PATIENCE);
        assert!(!outcome.timed_out(), "{count} threads do not come to wait");
    }
}

impl Env for ManualEnv {
    fn now(&self) -> Timestamp {
        after_start(self.monotonic())
    }

    fn random(&self, bytes: &mut [u8]) {
        let mut state = self.state.lock();
        let seed = state.seed;
        state.seed = seed.wrapping_add(1);
        fill(seed, bytes);
    }

    fn monotonic(&self) -> Duration {
        self.state.lock().elapsed
    }

    fn wait(&self, event: &Arc<Event>, seen: Seen, until: Duration) {
        let id = {
            let mut state = self.state.lock();
            if until <= state.elapsed {
                return;
            }
            let id = state.next_id;
            state.next_id += 1;
            let event = event.clone();
            state.sleepers.push(Sleeper { id, until, event, seen });
            id
        };
        self.came.notify_all();
        event.wait(seen);
        self.state.lock().sleepers.retain(|sleeper| sleeper.id != id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn sleep_ends_when_the_clock_reaches_its_deadline_and_not_before() {
        let env = ManualEnv::new(1);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                env.sleep(Duration::from_secs(10));
                is_over.store(true, Ordering::SeqCst);
            });
            env.until_sleepers(1);
            env.advance(Duration::from_secs(9));
            assert_eq!(env.deadlines(), [Duration::from_secs(10)]);
            assert!(!is_over.load(Ordering::SeqCst));
            env.advance(Duration::from_secs(1));
            assert!(env.deadlines().is_empty());
            sleeper.join().unwrap();
        });
        assert_eq!(env.now(), Timestamp::new(1_700_000_010, 0));
    }

    #[test]
    fn signal_ends_a_wait_while_the_clock_stands() {
        let (env, event) = (ManualEnv::new(1), Arc::new(Event::default()));
        let seen = event.seen();
        std::thread::scope(|scope| {
            scope.spawn(|| env.wait(&event, seen, Duration::from_secs(1)));
            env.until_sleepers(1);
            event.signal();
            assert!(
                env.deadlines().is_empty(),
                "a signalled thread does not count as asleep"
            );
        });
    }

    #[test]
    fn random_numbers_repeat_from_their_seed_and_differ_between_seeds() {
        let draw = |seed| {
            let env = ManualEnv::new(seed);
            let mut drawn = [[0; 16]; 2];
            drawn.iter_mut().for_each(|bytes| env.random(bytes));
            drawn
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_ne!(draw(1)[0], draw(1)[1]);
    }
}
