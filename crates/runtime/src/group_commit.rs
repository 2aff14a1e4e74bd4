//! Group commit: one leader serves all requests that are queued when its round begins.
//!
//! ```text
//!   queue --no leader--> lead --round after round--> queue is empty: return
//!    |                    ^ |
//!    |                    | +--a leader that leaves is served, others wait: hands over
//!    |                    |
//!    +--a leader leads--> wait --served--> return
//!    +--a leader stays, and the caller can be told later--> return
//! ```
//!
//! A served follower is told at once, and needs no lock that the next round holds. A caller that
//! can be told later ([`Queue::later`]) blocks no thread unless it leads; it then leads until the
//! queue is empty, since nothing waits for that thread. A caller that waits ([`Queue::wait`])
//! hands the lead over as soon as its own request is served.
//!
//! Before a round the leader waits for as many requests as lately came at the same time, but no
//! longer than one round takes: two rounds cost twice as much as one, and a request that comes just
//! after a round began waits for all of it. A leader that waits in vain several times in a row does
//! so rarely from then on. Times are those of [`Env`].
//!
//! Invariant: while the leader is one that leaves, all followers wait, so it can hand over to any.
//!
//! Locks: the queue's and the seats', held for moments; the count of an event within the queue's.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::env::Env;
use crate::event::Event;

/// Upper bound on how long a leader waits for followers.
pub const GATHER_MAX: Duration = Duration::from_millis(1);
/// After this many vain waits in a row a wait is tried once in `1 << SKIPS_LOG_MAX` rounds: callers
/// with other work between two requests (dbench's) do not come back at once, and waiting for them
/// cost a seventh of the speed.
const SKIPS_LOG_MAX: u32 = 6;

/// The outcome of a request whose leader panicked before it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned;

/// Receives the outcome, once, in the thread that has it.
pub type Done<E> = Box<dyn FnOnce(Result<(), E>) + Send>;

/// One round: takes the queued requests by calling its argument, once, and serves them.
pub type Round<'a, R, E> = &'a dyn Fn(&dyn Fn() -> Vec<R>) -> Result<(), E>;

/// Queued requests, and which kind of leader serves them.
pub struct Queue<R, E: From<Abandoned>> {
    env: Arc<dyn Env>,
    /// A round serves all requests, not just the first.
    is_shared: bool,
    state: Mutex<State<R, E>>,
    /// As many requests are queued as the leader waits for.
    complete: Arc<Event>,
}

struct State<R, E: From<Abandoned>> {
    waiting: Vec<(R, Caller<E>)>,
    leader: Option<Leader>,
    /// The leader waits until so many requests are queued.
    expects: Option<usize>,
    pace: Pace,
}

/// What earlier rounds let the next one expect.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Callers that come over and over, at the same time.
    callers: usize,
    /// Mean duration of a round.
    round: Duration,
    /// Waits in a row to whose end fewer came than expected.
    vain: u32,
    /// Rounds that do not wait before the next one that does.
    skips: u32,
}

impl Pace {
    /// A wait for followers is over.
    fn waited(&mut self, in_vain: bool) {
        self.vain = if in_vain { (self.vain + 1).min(SKIPS_LOG_MAX) } else { 0 };
        self.skips = (1 << self.vain) - 1;
    }

    /// Whether this round waits for followers.
    fn may_wait(&mut self) -> bool {
        let may = self.skips == 0;
        self.skips = self.skips.saturating_sub(1);
        may
    }

    /// A round served so many, and found so many others queued at its end.
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
    /// Hands over when its own request is served.
    Leaves,
    /// Leads until the queue is empty.
    Stays,
}

/// The caller of a request. Dropped without an outcome, as in a panic of the leader, it is told
/// [`Abandoned`].
struct Caller<E: From<Abandoned>> {
    done: Option<Done<E>>,
    /// Where the caller's thread waits.
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
    Returns,
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

impl<E: From<Abandoned>> Caller<E> {
    fn tell(mut self, result: Result<(), E>) {
        if let Some(done) = self.done.take() {
            done(result);
        }
    }
}

impl<E: From<Abandoned>> Drop for Caller<E> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(Abandoned.into()));
        }
        if let Some(seat) = &self.seat {
            seat.call(Turn::Returns);
        }
    }
}

impl<R, E: From<Abandoned>> std::fmt::Debug for Queue<R, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Queue")
            .field("waiting", &state.waiting.len())
            .field("leader", &state.leader)
            .finish_non_exhaustive()
    }
}

impl<R, E: Clone + From<Abandoned> + Send + 'static> Queue<R, E> {
    /// An empty queue. Where it is not shared, each round serves one request, without waiting for
    /// others: for measurements of what sharing is worth.
    pub fn new(env: Arc<dyn Env>, is_shared: bool) -> Self {
        let pace = Pace {
            callers: 1,
            round: Duration::ZERO,
            vain: 0,
            skips: 0,
        };
        let state = State {
            waiting: Vec::new(),
            leader: None,
            expects: None,
            pace,
        };
        Self {
            env,
            is_shared,
            state: Mutex::new(state),
            complete: Arc::default(),
        }
    }

    /// Has a request served, and waits for it.
    ///
    /// # Errors
    /// What the round that served it returned; [`Abandoned`] where the leader panicked.
    pub fn wait(&self, request: R, round: Round<'_, R, E>) -> Result<(), E> {
        let outcome = Arc::new(Mutex::new(None));
        let told = outcome.clone();
        let done: Done<E> = Box::new(move |result| *told.lock() = Some(result));
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
                self.lead(round, &|| ());
            }
            if let Some(result) = outcome.lock().take() {
                return result;
            }
            turn = seat.wait();
        }
    }

    /// Has a request served, and `done` told its outcome. That may be after this has returned, or
    /// long before, where the thread leads and serves others. `will_wait` is called before the
    /// thread blocks or leads, and again before each further round, which is for others.
    pub fn later(&self, request: R, done: Done<E>, will_wait: &dyn Fn(), round: Round<'_, R, E>) {
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
            self.lead(round, will_wait);
        } else if leader == Some(Leader::Leaves) {
            will_wait();
            if seat.wait() == Turn::Leads {
                // The thread's own outcome goes to its `done`, as any other's.
                self.state.lock().leader = Some(Leader::Stays);
                self.lead(round, will_wait);
            }
        }
    }

    fn push(&self, state: &mut State<R, E>, request: R, caller: Caller<E>) {
        state.waiting.push((request, caller));
        if state.expects.is_some_and(|callers| state.waiting.len() >= callers) {
            state.expects = None;
            self.complete.signal();
        }
    }

    /// Waits until as many requests are queued as lately came at the same time, but no longer than
    /// a round takes. See the module's documentation.
    fn gather(&self) {
        let until = {
            let mut state = self.state.lock();
            let Pace { callers, round, .. } = state.pace;
            if !self.is_shared || state.waiting.len() >= callers || !state.pace.may_wait() {
                return;
            }
            state.expects = Some(callers);
            self.env.monotonic() + round.min(GATHER_MAX)
        };
        loop {
            let seen = self.complete.seen();
            let mut state = self.state.lock();
            if state.expects.is_none() || self.env.monotonic() >= until {
                let in_vain = state.expects.take().is_some();
                state.pace.waited(in_vain);
                return;
            }
            drop(state);
            self.env.wait(&self.complete, seen, until);
        }
    }

    /// Serves round after round until the queue is empty or the lead is handed over. `for_others`
    /// is called before each round but the first.
    fn lead(&self, round: Round<'_, R, E>, for_others: &dyn Fn()) {
        let leading = Leading(self);
        loop {
            self.gather();
            let began = self.env.monotonic();
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
                let took = self.env.monotonic().saturating_sub(began);
                let mut state = self.state.lock();
                let waiting = state.waiting.len();
                state.pace.note(callers.len(), waiting, took);
            }
            for caller in callers {
                caller.tell(result.clone());
            }
            if leading.is_over() {
                return;
            }
            for_others();
        }
    }

    fn take(&self) -> Vec<(R, Caller<E>)> {
        let waiting = &mut self.state.lock().waiting;
        match self.is_shared {
            true => std::mem::take(waiting),
            false => waiting.drain(..waiting.len().min(1)).collect(),
        }
    }
}

impl<R, E: From<Abandoned>> State<R, E> {
    /// Takes the lead if there is no leader.
    fn may_lead(&mut self, how: Leader) -> bool {
        let may = self.leader.is_none();
        if may {
            self.leader = Some(how);
        }
        may
    }
}

/// The lead, while a thread has it.
struct Leading<'q, R, E: From<Abandoned>>(&'q Queue<R, E>);

impl<R, E: From<Abandoned>> Leading<'_, R, E> {
    /// Hands the lead over where the next round is not this thread's.
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

impl<R, E: From<Abandoned>> Drop for Leading<'_, R, E> {
    /// In a panic all queued requests are abandoned: without a leader they would wait for ever.
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

    use crate::env::SystemEnv;
    use crate::manual::ManualEnv;

    type Result = std::result::Result<(), TestError>;
    type Queue = super::Queue<u32, TestError>;
    type Done = super::Done<TestError>;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum TestError {
        NoSpace,
        Abandoned,
    }

    impl From<Abandoned> for TestError {
        fn from(_: Abandoned) -> Self {
            Self::Abandoned
        }
    }

    fn queue() -> Queue {
        Queue::new(Arc::new(SystemEnv), true)
    }

    /// Waits until so many requests are queued.
    fn until_waiting(queue: &Queue, count: usize) {
        while queue.state.lock().waiting.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn requests_during_a_round_share_the_next_one() {
        let (queue, rounds) = (queue(), Mutex::new(Vec::new()));
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
    fn later_returns_at_once_while_the_leader_stays() {
        let queue = queue();
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
        let waits_at_rounds = Mutex::new(Vec::new());
        let round = |take: &dyn Fn() -> Vec<u32>| {
            waits_at_rounds.lock().push(waits.load(Ordering::SeqCst));
            if take() == [0] {
                // From the leader's own thread, which would wait for itself.
                let never = || unreachable!("only the leader's thread is kept");
                queue.later(1, tell(10), &never, &|_: &dyn Fn() -> Vec<u32>| unreachable!());
            }
            Ok(())
        };
        queue.later(0, tell(1), &will_wait, &round);
        assert_eq!(told.load(Ordering::SeqCst), 11);
        assert_eq!(*waits_at_rounds.lock(), [1, 2], "told again before a round for others");
    }

    #[test]
    fn waiting_leader_hands_over_after_its_own_round() {
        let queue = queue();
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
            // Blocks, because the leader leaves, and leads then.
            queue.later(7, Box::new(move |r| told.send(r).unwrap()), &|| {}, &round);
            outcome.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
            let first = first.join().unwrap();
            assert_eq!(*leaders.lock(), [(vec![0], first), (vec![7], thread::current().id())]);
        });
    }

    /// One caller waits and leads, two wait as followers, and one is told later, in one round.
    #[test]
    fn failed_round_fails_for_all_its_callers_and_not_for_the_next() {
        let (queue, rounds) = (queue(), AtomicU32::new(0));
        let round = |take: &dyn Fn() -> Vec<u32>| {
            // All are queued before any is served.
            if rounds.fetch_add(1, Ordering::SeqCst) == 0 {
                until_waiting(&queue, 4);
                assert_eq!(take().len(), 4);
                return Err(TestError::NoSpace);
            }
            take();
            Ok(())
        };
        let fails = |result: Result| result == Err(TestError::NoSpace);
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
                assert!(fails(wait.join().unwrap()), "a caller that waits");
            }
        });
        assert!(fails(later.recv().unwrap()), "a caller that is told later");
        assert!(later.recv().is_err(), "told once");
        assert_eq!(rounds.load(Ordering::SeqCst), 1);
        queue.wait(4, &round).unwrap();
        assert_eq!(queue.state.lock().leader, None);
    }

    #[test]
    fn expected_callers_rise_at_once_and_decay_by_halves() {
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
            assert_eq!(pace.callers, callers, "callers that stay away");
        }
    }

    const STEP: Duration = Duration::from_micros(100);

    /// A queue that expects so many callers and rounds of this duration, on a clock of its own.
    fn expecting(callers: usize, round: Duration) -> (Arc<ManualEnv>, Queue) {
        let env = Arc::new(ManualEnv::new(1));
        let queue = Queue::new(env.clone(), true);
        queue.state.lock().pace = Pace {
            callers,
            round,
            vain: 0,
            skips: 0,
        };
        (env, queue)
    }

    /// Lets one caller lead, as many as `others` follow while it gathers, moves the clock by
    /// `moves`, and returns how many requests each round had.
    fn rounds_of(env: &ManualEnv, queue: &Queue, others: usize, moves: &[Duration]) -> Vec<usize> {
        let rounds = Mutex::new(Vec::new());
        let round = |take: &dyn Fn() -> Vec<u32>| -> Result {
            rounds.lock().push(take().len());
            Ok(())
        };
        let mut faults = Vec::new();
        // A panic in here would wait for the leader, which waits for the clock.
        thread::scope(|scope| {
            let until = |is_so: &dyn Fn() -> bool| {
                while !is_so() && rounds.lock().is_empty() {
                    thread::yield_now();
                }
            };
            scope.spawn(|| queue.wait(0, &round).unwrap());
            until(&|| !env.deadlines().is_empty());
            for n in 0..others {
                scope.spawn(|| queue.wait(1, &round).unwrap());
                until(&|| queue.state.lock().waiting.len() == n + 2);
            }
            for by in moves {
                if env.deadlines().is_empty() {
                    faults.push("the leader has begun before its deadline");
                }
                env.advance(*by);
            }
            if !env.deadlines().is_empty() {
                faults.push("the leader gathers beyond its deadline");
                env.advance(Duration::from_secs(1 << 20));
            }
        });
        assert!(faults.is_empty(), "{faults:?}");
        rounds.into_inner()
    }

    #[test]
    fn leader_begins_when_all_expected_followers_have_come_though_the_clock_stands() {
        let (env, queue) = expecting(3, STEP);
        assert_eq!(rounds_of(&env, &queue, 2, &[]), [3]);
        assert_eq!(env.monotonic(), Duration::ZERO);
        assert_eq!(queue.state.lock().pace.vain, 0);
    }

    #[test]
    fn leader_gathers_followers_until_the_deadline_and_no_longer() {
        let (env, queue) = expecting(3, STEP);
        let moves = [STEP - Duration::from_nanos(1), Duration::from_nanos(1)];
        assert_eq!(rounds_of(&env, &queue, 1, &moves), [2]);
        assert_eq!(queue.state.lock().pace.vain, 1, "one of three did not come");
    }

    #[test]
    fn leader_of_long_rounds_gathers_for_the_upper_bound() {
        let (env, queue) = expecting(2, Duration::from_secs(1));
        assert_eq!(rounds_of(&env, &queue, 0, &[GATHER_MAX]), [1]);
    }

    #[test]
    fn leader_skips_the_wait_after_vain_ones() {
        let (env, queue) = expecting(2, STEP);
        let round = |take: &dyn Fn() -> Vec<u32>| {
            take();
            Ok(())
        };
        let mut waits = 0;
        thread::scope(|scope| {
            for n in 0..64 {
                // So that every round expects a caller that does not come.
                queue.state.lock().pace.callers = 2;
                queue.state.lock().pace.round = STEP;
                let (queue, round) = (&queue, &round);
                let caller = scope.spawn(move || queue.wait(n, round));
                while env.deadlines().is_empty() && !caller.is_finished() {
                    thread::yield_now();
                }
                if !env.deadlines().is_empty() {
                    waits += 1;
                    env.advance(STEP);
                }
                caller.join().unwrap().unwrap();
            }
        });
        assert_eq!(waits, 6, "rounds 0, 2, 6, 14, 30 and 62");
    }

    #[test]
    fn queue_that_is_not_shared_serves_one_request_a_round_and_does_not_wait() {
        let env = Arc::new(ManualEnv::new(1));
        let queue = Queue::new(env.clone(), false);
        queue.state.lock().pace.callers = 3;
        queue.state.lock().pace.round = STEP;
        let rounds = Mutex::new(Vec::new());
        let round = |take: &dyn Fn() -> Vec<u32>| -> Result {
            let taken = take();
            if taken == [0] {
                queue.later(1, Box::new(|_| {}), &|| {}, &|_| unreachable!());
                queue.later(2, Box::new(|_| {}), &|| {}, &|_| unreachable!());
            }
            rounds.lock().push(taken);
            Ok(())
        };
        let mut waits = 0;
        thread::scope(|scope| {
            let leader = scope.spawn(|| queue.later(0, Box::new(|_| {}), &|| {}, &round));
            while !leader.is_finished() {
                if !env.deadlines().is_empty() {
                    waits += 1;
                    env.advance(STEP);
                }
                thread::yield_now();
            }
        });
        assert_eq!(*rounds.lock(), [[0], [1], [2]]);
        assert_eq!(waits, 0);
    }

    /// Sends requests during rounds and while the leader gathers, and moves the clock, as `seed`
    /// has it. Returns the rounds: when each began, and its requests.
    fn play(seed: u64) -> Vec<(Duration, Vec<u32>)> {
        let env = Arc::new(ManualEnv::new(seed << 32));
        // Either a round draws, or this thread while the leader sleeps: the order repeats.
        let dice = |sides: u8| {
            let mut byte = [0];
            env.random(&mut byte);
            u32::from(byte[0] % sides)
        };
        let queue = Queue::new(env.clone(), true);
        let (sent, rounds) = (AtomicU32::new(0), Mutex::new(Vec::new()));
        let next = || sent.fetch_add(1, Ordering::SeqCst);
        let follow = || queue.later(next(), Box::new(|_| {}), &|| {}, &|_| unreachable!("a leader stays"));
        let round = |take: &dyn Fn() -> Vec<u32>| -> Result {
            rounds.lock().push((env.monotonic(), take()));
            env.advance(STEP * dice(8));
            if sent.load(Ordering::SeqCst) < 300 {
                (0..dice(4)).for_each(|_| follow());
            }
            Ok(())
        };
        while sent.load(Ordering::SeqCst) < 300 {
            thread::scope(|scope| {
                let leader = scope.spawn(|| queue.later(next(), Box::new(|_| {}), &|| {}, &round));
                while !leader.is_finished() {
                    match env.deadlines().is_empty() {
                        true => thread::yield_now(),
                        false if dice(4) == 0 => follow(),
                        false => env.advance(STEP / 4),
                    }
                }
            });
        }
        rounds.into_inner()
    }

    #[test]
    fn rounds_repeat_from_their_seed() {
        for seed in 0..20 {
            let first = play(seed);
            assert_eq!(first, play(seed), "seed {seed}");
            assert_ne!(first, play(seed + 1), "seed {seed} and the next");
            let mut served: Vec<u32> = first.iter().flat_map(|(_, requests)| requests.clone()).collect();
            served.sort();
            assert!(served.iter().copied().eq(0..served.len() as u32), "each once");
            assert!(
                first.iter().any(|(_, requests)| requests.len() > 2),
                "seed {seed} shares rounds"
            );
        }
    }

    #[test]
    fn vain_waits_become_rare_and_one_success_brings_them_back() {
        let mut pace = queue().state.lock().pace;
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
    fn panic_of_a_round_abandons_all_requests_and_frees_the_lead() {
        let queue = queue();
        let (told, outcomes) = mpsc::channel();
        let tell = || -> Done {
            let told = told.clone();
            Box::new(move |result| told.send(result).unwrap())
        };
        let round = |take: &dyn Fn() -> Vec<u32>| -> Result {
            take();
            queue.later(1, tell(), &|| {}, &|_: &dyn Fn() -> Vec<u32>| unreachable!());
            panic!("on purpose");
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| queue.later(0, tell(), &|| {}, &round)));
        assert!(outcome.is_err());
        for _ in 0..2 {
            assert_eq!(outcomes.try_recv().unwrap(), Err(TestError::Abandoned));
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
