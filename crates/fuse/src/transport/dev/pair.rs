//! A lone caller and its worker, on one processor.
//!
//! Where caller and worker run on the same processor, a request costs two switches between threads.
//! Elsewhere it costs two wake-ups that cross processors, each more than most requests take to
//! serve. The caller stays where it is while the other processor is kept busy ([`Keepers`]): else
//! the scheduler moves it there with each reply.

use crate::sys;
use crate::transport::habit::Habit;
use crate::transport::keeper::Keepers;
use crate::transport::processors::{Mover, Place};

/// What the kernel gives for callers that it does not name, and for itself.
pub const NO_CALLER: u32 = 0;
/// So many requests of one thread in a row make it a lone caller.
pub const RUN: u32 = 16;
/// Every so many requests, the worker checks that it is on the processor of its caller, while the
/// other one is kept busy.
const CHECK_EVERY: u32 = 64;

/// A worker and the thread that it has last served.
#[derive(Debug)]
pub struct Pair<'a> {
    keepers: &'a Keepers,
    mover: Mover,
    caller: u32,
    /// Requests of the caller in a row.
    run: u32,
    /// The processor of both.
    home: Option<u16>,
    /// Waiting until the caller can stay.
    settling: Habit,
}

impl<'a> Pair<'a> {
    /// For this thread.
    pub fn new(keepers: &'a Keepers) -> Pair<'a> {
        Pair {
            keepers,
            mover: Mover::new(0),
            caller: NO_CALLER,
            run: 0,
            home: None,
            settling: Habit::default(),
        }
    }

    /// Whether this worker runs on the processor of a lone caller.
    pub fn is_together(&self) -> bool {
        self.home.is_some()
    }

    /// A request came from this thread, which waits for the reply.
    pub fn note(&mut self, caller: u32) {
        if caller == NO_CALLER || !self.keepers.are_of_use() {
            return;
        }
        if caller != self.caller {
            self.part();
            self.caller = caller;
        }
        self.run = self.run.wrapping_add(1);
        // Where the other processor is not kept busy, the last reply may have moved the caller.
        let is_kept = self.home.is_some_and(|home| self.keepers.are_running_beside(home));
        if self.run.is_multiple_of(if is_kept { CHECK_EVERY } else { RUN }) {
            self.follow();
        }
        if let Some(home) = self.home {
            self.keepers.count(home);
        }
    }

    /// Moves to the processor of the caller, and keeps it there.
    fn follow(&mut self) {
        let there = sys::processor_of(self.caller).and_then(|there| u16::try_from(there).ok());
        let before = std::mem::replace(&mut self.home, there);
        if let Some(before) = before.filter(|_| before != there) {
            self.keepers.leave(before);
        }
        if let Some(home) = there {
            // Before the reply, which would move the caller to an idle processor.
            self.keepers.keep_beside(home);
            self.mover.go_home(home.into());
            if before != there && self.settling.is_due() {
                match self.keepers.settle(home) {
                    true => self.settling.pays(),
                    false => self.settling.does_not_pay(),
                }
            }
        }
    }

    /// Others call, or the worker rests: it may run anywhere.
    pub fn part(&mut self) {
        if let Some(home) = self.home {
            self.keepers.leave(home);
        }
        (self.caller, self.run, self.home) = (NO_CALLER, 0, None);
        self.mover.go(Place::Anywhere);
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{Pid, gettid};

    use super::*;
    use crate::transport::processors::{allowed, possible};

    #[test]
    fn a_pair_lasts_while_one_thread_alone_calls() {
        let keepers = Keepers::new(possible());
        if !keepers.are_of_use() {
            println!("skipped: only machines with two processors have keepers");
            return;
        }
        let before = allowed().expect("the processors of this thread");
        let caller = Pid::as_raw(Some(gettid())) as u32;
        let mut pair = Pair::new(&keepers);
        for _ in 1..RUN {
            pair.note(caller);
            pair.note(NO_CALLER);
        }
        assert!(!pair.is_together(), "a few requests may be of anyone");
        pair.note(caller);
        assert!(pair.is_together());
        assert_eq!(
            allowed().map(|set| set.count()),
            Some(1),
            "bound to the caller's processor"
        );
        pair.note(caller + 1);
        assert!(!pair.is_together());
        assert_eq!(allowed(), Some(before), "free again");
    }
}
