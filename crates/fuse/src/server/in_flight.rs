//! The requests that are being served, until their replies are sent: a grace period for what
//! replies let the kernel remember. And how many there were.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// Over io_uring a reply goes with the next system call of its thread, a moment after its turn.
const SUBMITTED_AFTER: Duration = Duration::from_millis(50);

/// One per worker, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Turn {
    lock: Mutex<()>,
    /// Requests that a program waits for. Written in turns alone.
    awaited: AtomicU64,
}

/// The turns of all workers. A worker takes its own only, so it never waits but for
/// [`InFlight::wait_for_all`], which holds each for a moment.
#[derive(Debug)]
pub(crate) struct InFlight {
    turns: Box<[Turn]>,
    are_sent_late: AtomicBool,
}

impl InFlight {
    pub fn new(workers: usize) -> InFlight {
        InFlight {
            turns: (0..workers).map(|_| Turn::default()).collect(),
            are_sent_late: AtomicBool::new(false),
        }
    }

    /// Replies are sent a moment after the turns that made them.
    pub fn send_late(&self) {
        self.are_sent_late.store(true, Ordering::Relaxed);
    }

    /// The turn of a worker. Dropped when the reply was sent. `is_awaited`: a program waits for it.
    pub fn take(&self, worker: usize, is_awaited: bool) -> MutexGuard<'_, ()> {
        let Turn { lock, awaited } = &self.turns[worker];
        let turn = lock.lock();
        awaited.store(
            awaited.load(Ordering::Relaxed) + u64::from(is_awaited),
            Ordering::Relaxed,
        );
        turn
    }

    /// How many requests programs have waited for until now.
    pub fn awaited(&self) -> u64 {
        let awaited = self.turns.iter().map(|turn| turn.awaited.load(Ordering::Relaxed));
        awaited.sum()
    }

    /// Returns when the replies are sent that were being made at the time of the call, but for
    /// those that are sent by other threads (to writes and fsyncs). Not to be called in a turn.
    pub fn wait_for_all(&self) {
        for turn in &self.turns {
            drop(turn.lock.lock());
        }
        if self.are_sent_late.load(Ordering::Relaxed) {
            std::thread::sleep(SUBMITTED_AFTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn waits_for_turns_that_have_begun() {
        let in_flight = InFlight::new(3);
        in_flight.wait_for_all();
        let (done, is_done) = mpsc::channel();
        let turn = in_flight.take(1, true);
        drop(in_flight.take(2, false));
        assert_eq!(in_flight.awaited(), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                in_flight.wait_for_all();
                done.send(()).unwrap();
            });
            assert!(is_done.recv_timeout(Duration::from_millis(50)).is_err());
            drop(turn);
            is_done.recv_timeout(Duration::from_secs(60)).unwrap();
        });
    }
}
