//! An event count: what threads wait for that may also wait for a deadline of [`Env`](crate::Env).
//!
//! A condition variable is tied to the lock of its condition, and a trait object cannot be generic
//! over what that lock protects. An event count needs no lock of the caller: the caller notes the
//! count while it looks at its condition, lets go of its own lock, and waits until the count is
//! another one. A signal between the two is not lost, since it changes the count.
//!
//! ```text
//!   waiter:    lock; condition does not hold; seen = event.seen(); unlock; wait(event, seen)
//!   signaller: lock; makes the condition hold; unlock; event.signal()
//! ```
//!
//! Locks: the count's, held for a few instructions, no other lock within.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// What is signalled each time a condition may hold that others wait for.
#[derive(Debug, Default)]
pub struct Event {
    count: Mutex<u64>,
    signalled: Condvar,
}

/// The state of an [`Event`] before a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl Event {
    /// The count as it is. To be taken before the look at the condition, or under the same lock.
    pub fn seen(&self) -> Seen {
        Seen(*self.count.lock())
    }

    /// Ends every wait that began with an earlier count.
    pub fn signal(&self) {
        *self.count.lock() += 1;
        self.signalled.notify_all();
    }

    /// Waits until the event is signalled after `seen` was taken.
    pub fn wait(&self, seen: Seen) {
        let mut count = self.count.lock();
        self.signalled.wait_while(&mut count, |count| Seen(*count) == seen);
    }

    /// As [`Event::wait`], but no longer than until `deadline` by the machine's clock.
    #[allow(
        clippy::disallowed_methods,
        reason = "the wait of the system's clock, behind Env::wait"
    )]
    pub(crate) fn wait_until(&self, seen: Seen, deadline: Instant) {
        let mut count = self.count.lock();
        self.signalled
            .wait_while_until(&mut count, |count| Seen(*count) == seen, deadline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_between_look_and_wait_ends_the_wait() {
        let event = Event::default();
        let seen = event.seen();
        event.signal();
        event.wait(seen);
        assert_ne!(event.seen(), seen);
    }

    #[test]
    fn signal_wakes_all_waiters() {
        let event = Event::default();
        let seen = event.seen();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| event.wait(seen));
            }
            event.signal();
        });
    }
}
