//! Who writes a log for whom.
//!
//! ```text
//!   come --nobody leads--> lead --round by round--> nobody waits: go
//!    |                      ^ |
//!    |                      | +--leaves with its own done, others wait: calls the first of them to lead, and goes
//!    |                      |
//!    +--somebody leads--> wait --done--> go
//!    +--somebody stays, and the caller has no thread to spare--> go; told later
//! ```
//!
//! One thread leads, and serves all who came before its round began. Whoever is done is told at once, and need not get
//! a lock first that the next round is holding already. A caller that can be told later ([`Queue::later`]) keeps no
//! thread; where it leads, it stays until nobody waits, since it keeps no one waiting by that. A caller that waits in
//! person leaves the lead as soon as its own request is done.
//!
//! Invariant: while a leader will leave, all who wait do so in person: there is somebody to call.
//!
//! Locks: the queue's and the seats' are held for moments, no other lock within.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Nobody waits longer than this for others to come.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// After so many vain waits in a row a wait is tried once in `1 << SKIPS_LOG_MAX` rounds: callers who have other things to do between
/// two syncs (dbench's) do not come back at once, and waiting for them cost a seventh of the speed.
const SKIPS_LOG_MAX: u32 = 6;

/// Told the outcome, once, by whatever thread has it.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Requests that wait, and whether somebody sees to them.
pub(super) struct Queue<R> {
    state: Mutex<State<R>>,
    /// All who were expected have come.
    complete: Condvar,
}

struct State<R> {
    waiting: Vec<(R, Caller)>,
    leader: Option<Leader>,
    /// The leader waits until so many wait.
    expects: Option<usize>,
    pace: Pace,
}

/// What the next round may expect of those before it.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// How many sync over and over, at the same time.
    callers: usize,
    /// What a round takes.
    round: Duration,
    /// Waits in a row in which not all came who were expected.
    vain: u32,
    /// As many rounds do not wait.
    skips: u32,
}

impl Pace {
    /// A wait for others is over.
    fn waited(&mut self, in_vain: bool) {
        self.vain = if in_vain { (self.vain + 1).min(SKIPS_LOG_MAX) } else { 0 };
        self.skips = (1 << self.vain) - 1;
    }

    /// Is this a round to wait for others?
    fn may_wait(&mut self) -> bool {
        let may = self.skips == 0;
        self.skips = self.skips.saturating_sub(1);
        may
    }

    /// A round served so many, and found so many others at its end.
    fn note(&mut self, served: usize, waiting: usize, took: Duration) {
        let callers = served + waiting;
        self.callers = match callers >= self.callers {
            true => callers,
            false => usize::midpoint(self.callers, callers),
        };
        self.round = (self.round * 7 + took) / 8;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    /// Goes when its own request is done.
    Leaves,
    /// Goes when nobody waits.
    Stays,
}

/// Who waits for a request. Dropped without having been told, as in a panic of the leader, it is told of an error.
struct Caller {
    done: Option<Done>,
    /// Of who waits in person.
    seat: Option<Arc<Seat>>,
}

#[derive(Debug, Default)]
struct Seat {
    turn: Mutex<Turn>,
    called: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    Waits,
    Leads,
    Goes,
}

impl Seat {
    fn call(&self, turn: Turn) {
        *self.turn.lock() = turn;
        self.called.notify_one();
    }

    fn wait(&self) -> Turn {
        let mut turn = self.turn.lock();
        self.called.wait_while(&mut turn, |turn| *turn == Turn::Waits);
        std::mem::take(&mut turn)
    }
}

impl Caller {
    fn tell(mut self, result: Result<()>) {
        if let Some(done) = self.done.take() {
            done(result);
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(Error::Outcome(cowshed_vfs::Error::Io)));
        }
        if let Some(seat) = &self.seat {
            seat.call(Turn::Goes);
        }
    }
}

impl<R> Default for Queue<R> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                waiting: Vec::new(),
                leader: None,
                expects: None,
                pace: Pace {
                    callers: 1,
                    round: Duration::ZERO,
                    vain: 0,
                    skips: 0,
                },
            }),
            complete: Condvar::new(),
        }
    }
}

impl<R> std::fmt::Debug for Queue<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Queue")
            .field("waiting", &state.waiting.len())
            .field("leader", &state.leader)
            .finish()
    }
}

/// One round: takes the requests that wait by calling its argument, once, and serves them.
pub(super) type Round<'a, R> = &'a dyn Fn(&dyn Fn() -> Vec<R>) -> Result<()>;

impl<R> Queue<R> {
    /// Has a request served, and waits for it.
    pub fn wait(&self, request: R, round: Round<'_, R>) -> Result<()> {
        let outcome = Arc::new(Mutex::new(None));
        let told = outcome.clone();
        let done: Done = Box::new(move |result| *told.lock() = Some(result));
        let seat = Arc::new(Seat::default());
        let leads = {
            let mut state = self.state.lock();
            let seat = Some(seat.clone());
            self.push(&mut state, request, Caller { done: Some(done), seat });
            state.may_lead(Leader::Leaves)
        };
        let mut turn = if leads { Turn::Leads } else { seat.wait() };
        loop {
            if turn == Turn::Leads {
                self.lead(round);
            }
            if let Some(result) = outcome.lock().take() {
                return result;
            }
            turn = seat.wait();
        }
    }

    /// Has a request served; `done` is told. That may be after this has returned, or long before, because this thread
    /// serves others then. `will_wait` is called where the thread is about to be kept.
    pub fn later(&self, request: R, done: Done, will_wait: &dyn Fn(), round: Round<'_, R>) {
        let seat = Arc::new(Seat::default());
        let (leads, leader) = {
            let mut state = self.state.lock();
            let leader = state.leader;
            let seat = (leader == Some(Leader::Leaves)).then(|| seat.clone());
            self.push(&mut state, request, Caller { done: Some(done), seat });
            (state.may_lead(Leader::Stays), leader)
        };
        if leads {
            will_wait();
            self.lead(round);
        } else if leader == Some(Leader::Leaves) {
            will_wait();
            if seat.wait() == Turn::Leads {
                // Its outcome is told like anyone's.
                self.state.lock().leader = Some(Leader::Stays);
                self.lead(round);
            }
        }
    }

    fn push(&self, state: &mut State<R>, request: R, caller: Caller) {
        state.waiting.push((request, caller));
        if state.expects.is_some_and(|callers| state.waiting.len() >= callers) {
            state.expects = None;
            self.complete.notify_one();
        }
    }

    /// Waits until as many wait as lately synced at the same time, but no longer than a round takes: two rounds cost
    /// twice as much as one for all, and who comes just after a round began waits for all of it.
    fn gather(&self) {
        let mut state = self.state.lock();
        let Pace { callers, round, .. } = state.pace;
        if state.waiting.len() >= callers || !state.pace.may_wait() {
            return;
        }
        let until = Instant::now() + round.min(GATHER_MAX);
        state.expects = Some(callers);
        while state.expects.is_some() && !self.complete.wait_until(&mut state, until).timed_out() {}
        let in_vain = state.expects.take().is_some();
        state.pace.waited(in_vain);
    }

    /// Serves round after round until nobody waits, or somebody is called to go on.
    fn lead(&self, round: Round<'_, R>) {
        let leading = Leading(self);
        loop {
            self.gather();
            let began = Instant::now();
            let callers = RefCell::new(Vec::new());
            let take = || {
                let taken = self.take();
                let (requests, of): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
                *callers.borrow_mut() = of;
                requests
            };
            let result = round(&take);
            let callers = callers.into_inner();
            {
                let mut state = self.state.lock();
                let waiting = state.waiting.len();
                state.pace.note(callers.len(), waiting, began.elapsed());
            }
            for caller in callers {
                caller.tell(result.clone());
            }
            if leading.is_over() {
                return;
            }
        }
    }

    fn take(&self) -> Vec<(R, Caller)> {
        let waiting = &mut self.state.lock().waiting;
        std::mem::take(waiting)
    }
}

impl<R> State<R> {
    /// Takes the lead if nobody has it.
    fn may_lead(&mut self, how: Leader) -> bool {
        let may = self.leader.is_none();
        if may {
            self.leader = Some(how);
        }
        may
    }
}

/// The lead, while a thread has it.
struct Leading<'q, R>(&'q Queue<R>);

impl<R> Leading<'_, R> {
    /// Gives the lead away where the next round is not this thread's.
    fn is_over(&self) -> bool {
        let mut state = self.0.state.lock();
        let Some((_, first)) = state.waiting.first() else {
            state.leader = None;
            return true;
        };
        match (state.leader, &first.seat) {
            (Some(Leader::Leaves), Some(seat)) => {
                seat.call(Turn::Leads);
                true
            }
            _ => false,
        }
    }
}

impl<R> Drop for Leading<'_, R> {
    /// In a panic nobody is left waiting: all are told of an error.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let waiting = {
                let mut state = self.0.state.lock();
                state.leader = None;
                std::mem::take(&mut state.waiting)
            };
            drop(waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::thread;

    /// Waits until so many requests wait.
    fn until_waiting(queue: &Queue<u32>, count: usize) {
        while queue.state.lock().waiting.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn who_comes_during_a_round_shares_the_next_one() {
        let (queue, rounds) = (Queue::default(), Mutex::new(Vec::new()));
        let (first_began, began) = mpsc::channel();
        let round = |take: &dyn Fn() -> Vec<u32>| {
            let mut taken = take();
            taken.sort();
            if taken == [0] {
                first_began.send(()).unwrap();
                until_waiting(&queue, 3);
            }
            rounds.lock().push(taken);
            Ok(())
        };
        // The channel's sender is not shared among threads; the first round is the first thread's.
        let round = Mutex::new(round);
        let round = |take: &dyn Fn() -> Vec<u32>| (round.lock())(take);
        thread::scope(|scope| {
            scope.spawn(|| queue.wait(0, &round).unwrap());
            began.recv().unwrap();
            for n in 1..4 {
                let (queue, round) = (&queue, &round);
                scope.spawn(move || queue.wait(n, round).unwrap());
            }
        });
        assert_eq!(*rounds.lock(), [vec![0], vec![1, 2, 3]]);
        assert_eq!(queue.state.lock().leader, None);
    }

    #[test]
    fn who_can_be_told_later_keeps_no_thread_while_somebody_stays() {
        let queue = Queue::default();
        let told = Arc::new(AtomicU32::new(0));
        let tell = |n: u32| -> Done {
            let told = told.clone();
            Box::new(move |result| {
                result.unwrap();
                told.fetch_add(n, Ordering::SeqCst);
            })
        };
        let waits = AtomicU32::new(0);
        let will_wait = || {
            waits.fetch_add(1, Ordering::SeqCst);
        };
        let round = |take: &dyn Fn() -> Vec<u32>| {
            if take() == [0] {
                // The same thread, and would be stuck if it waited.
                queue.later(1, tell(10), &will_wait, &|_: &dyn Fn() -> Vec<u32>| unreachable!());
            }
            Ok(())
        };
        queue.later(0, tell(1), &will_wait, &round);
        assert_eq!(told.load(Ordering::SeqCst), 11);
        assert_eq!(waits.load(Ordering::SeqCst), 1, "only the leader is kept");
    }

    #[test]
    fn who_waits_in_person_leads_one_round() {
        let queue = Queue::default();
        let leaders = Mutex::new(Vec::new());
        let round = |take: &dyn Fn() -> Vec<u32>| {
            let taken = take();
            leaders.lock().push((taken.clone(), thread::current().id()));
            if taken.contains(&0) {
                until_waiting(&queue, 1);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                queue.wait(0, &round).unwrap();
                thread::current().id()
            });
            while queue.state.lock().leader.is_none() {
                thread::yield_now();
            }
            let (told, outcome) = mpsc::channel();
            // In person, because the leader leaves; and leads then.
            queue.later(7, Box::new(move |r| told.send(r).unwrap()), &|| {}, &round);
            outcome.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
            let first = first.join().unwrap();
            assert_eq!(*leaders.lock(), [(vec![0], first), (vec![7], thread::current().id())]);
        });
    }

    /// One waits in person and leads, two wait in person for him, and one is told later: the round is everybody's.
    #[test]
    fn a_round_that_fails_fails_for_all_and_the_next_one_does_not() {
        const FAILS: Error = Error::Outcome(cowshed_vfs::Error::NoSpace);
        let (queue, rounds) = (Queue::default(), AtomicU32::new(0));
        let round = |take: &dyn Fn() -> Vec<u32>| {
            // All come before anybody is served.
            if rounds.fetch_add(1, Ordering::SeqCst) == 0 {
                until_waiting(&queue, 4);
                assert_eq!(take().len(), 4);
                return Err(FAILS);
            }
            take();
            Ok(())
        };
        let fails = |result: Result<()>| matches!(result, Err(Error::Outcome(cowshed_vfs::Error::NoSpace)));
        let (told, later) = mpsc::channel();
        thread::scope(|scope| {
            let waits: Vec<_> = (0..3)
                .map(|n| {
                    let (queue, round) = (&queue, &round);
                    scope.spawn(move || queue.wait(n, round))
                })
                .collect();
            until_waiting(&queue, 3);
            queue.later(3, Box::new(move |result| told.send(result).unwrap()), &|| {}, &round);
            for wait in waits {
                assert!(fails(wait.join().unwrap()), "who waits in person");
            }
        });
        assert!(fails(later.recv().unwrap()), "who is told later");
        assert!(later.recv().is_err(), "told once");
        assert_eq!(rounds.load(Ordering::SeqCst), 1);
        queue.wait(4, &round).unwrap();
        assert_eq!(queue.state.lock().leader, None);
    }

    #[test]
    fn a_round_waits_for_those_who_came_to_the_last_ones() {
        const LONG: Duration = Duration::from_millis(1);
        let mut pace = Pace {
            callers: 1,
            round: Duration::ZERO,
            vain: 0,
            skips: 0,
        };
        pace.note(3, 5, LONG);
        assert_eq!(pace.callers, 8);
        for callers in [4, 2, 1, 1] {
            pace.note(1, 0, LONG);
            assert_eq!(pace.callers, callers, "who does not come is soon forgotten");
        }
        let queue = Queue::default();
        queue.state.lock().pace = Pace {
            callers: 2,
            round: LONG,
            ..pace
        };
        let rounds = Mutex::new(Vec::new());
        let round = |take: &dyn Fn() -> Vec<u32>| {
            rounds.lock().push(take().len());
            Ok(())
        };
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                while queue.state.lock().expects.is_none() && rounds.lock().is_empty() {
                    thread::yield_now();
                }
                queue.wait(1, &round)
            });
            queue.wait(0, &round).unwrap();
            // It may come too late on a busy machine, when nobody expects it any more, and is served all the same.
            second.join().unwrap().unwrap();
        });
        assert_eq!(rounds.lock().iter().sum::<usize>(), 2);
    }

    #[test]
    fn waits_in_vain_become_rare_and_one_success_brings_them_back() {
        let mut pace = Queue::<u32>::default().state.lock().pace;
        let mut waits = 0;
        for _ in 0..1 << 10 {
            if pace.may_wait() {
                waits += 1;
                pace.waited(true);
            }
        }
        assert!((16..32).contains(&waits), "{waits} waits in 1024 rounds");
        while !pace.may_wait() {}
        pace.waited(false);
        assert!(pace.may_wait() && pace.may_wait());
    }

    #[test]
    fn nobody_is_left_waiting_by_a_panic() {
        let queue = Queue::default();
        let (told, outcomes) = mpsc::channel();
        let tell = || -> Done {
            let told = told.clone();
            Box::new(move |result| told.send(result).unwrap())
        };
        let round = |take: &dyn Fn() -> Vec<u32>| -> Result<()> {
            take();
            queue.later(1, tell(), &|| {}, &|_: &dyn Fn() -> Vec<u32>| unreachable!());
            panic!("on purpose");
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| queue.later(0, tell(), &|| {}, &round)));
        assert!(outcome.is_err());
        for _ in 0..2 {
            outcomes.try_recv().unwrap().unwrap_err();
        }
        assert!(
            queue
                .wait(2, &|take| {
                    take();
                    Ok(())
                })
                .is_ok()
        );
    }
}
