//! Keeps the other processors of a small machine busy while one program is served.
//!
//! When a worker replies, the scheduler looks for a place for the program that waits. If another
//! processor is idle, it moves the program there, though it would run sooner where it was: the
//! worker is about to sleep. The idle processor has to be woken, which in a virtual machine costs
//! more than the request, and the next request comes from there. With one program, each reply
//! would cost that.
//!
//! So a thread of the lowest priority runs on each other processor while requests come from one
//! processor in quick succession, and ends as soon as they do not. Whatever
//! else can run on that processor goes first.
//!
//! On machines with more than [`PROCESSORS_MAX`] processors there are none: too many would have to
//! run.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::{self, Scope, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::processors::{self, Mover, Place};
use crate::sys;

/// As many processors can be kept busy.
pub const PROCESSORS_MAX: usize = 2;
/// Without a request for so long, a keeper sleeps. More than a program takes between two, and than
/// most requests take.
const LULL: Duration = Duration::from_micros(300);
/// A keeper is waited for so long at most: an idle processor takes 20 us until one runs there.
const SETTLES_MAX: Duration = Duration::from_micros(60);
/// So many requests in succession begin a run.
const RUN: u64 = 16;

/// The keepers of a mount.
#[derive(Debug, Default)]
pub struct Keepers {
    /// Requests that came from each processor: the one with that number, or that queue.
    counts: Vec<AtomicU64>,
    keepers: Vec<Keeper>,
    has_ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Keeper {
    runs: AtomicBool,
    /// Its thread runs on the processor.
    is_there: AtomicBool,
    /// It is to end: the program runs on its processor.
    is_over: AtomicBool,
    /// Requests that its queue had had when it was last thought of.
    seen: AtomicU64,
    thread: Mutex<Option<Thread>>,
}

impl Keepers {
    pub fn new(queues: usize) -> Keepers {
        let runs_on_all = processors::allowed().is_some_and(|set| set.count() as usize >= queues);
        let may = (2..=PROCESSORS_MAX).contains(&queues) && runs_on_all;
        Keepers {
            counts: (0..queues).map(|_| AtomicU64::new(0)).collect(),
            keepers: (0..if may { queues } else { 0 }).map(|_| Keeper::default()).collect(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Whether there are any.
    pub fn are_of_use(&self) -> bool {
        !self.keepers.is_empty()
    }

    /// Starts their threads, which run until [`Keepers::end`].
    pub fn start<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        for queue in 0..self.keepers.len() {
            let name = thread::Builder::new().name(format!("fuse-keep-{queue}"));
            if let Err(error) = name.spawn_scoped(scope, move || self.run(queue)) {
                tracing::debug!(%error, "a processor is not kept busy");
            }
        }
    }

    /// A request came to a queue. In a run of requests the other processors are kept busy from now
    /// on.
    pub fn note(&self, queue: u16) {
        if self.count(queue).is_multiple_of(RUN) {
            self.keep_beside(queue);
        }
    }

    /// A request came to a queue: those that are kept busy go on. Returns how many came before.
    pub fn count(&self, queue: u16) -> u64 {
        match self.counts.get(usize::from(queue)) {
            Some(count) => count.fetch_add(1, Relaxed),
            None => 0,
        }
    }

    /// Keeps the processors beside that of a queue busy from now on, those left out from whose own
    /// queues requests came lately.
    pub fn keep_beside(&self, queue: u16) {
        let queue = usize::from(queue);
        for (of, keeper) in self.keepers.iter().enumerate().filter(|(of, _)| *of != queue) {
            // A queue with requests of its own keeps its processor busy.
            let own = self.counts[of].load(Relaxed);
            if keeper.seen.swap(own, Relaxed) == own
                && !keeper.runs.swap(true, Acquire)
                && let Some(thread) = &*keeper.thread.lock()
            {
                thread.unpark();
            }
        }
    }

    /// Whether the processors beside that of a queue are all kept busy.
    pub fn are_running_beside(&self, queue: u16) -> bool {
        let mut others = (0..).zip(&self.keepers).filter(|(of, _)| *of != queue);
        others.all(|(_, keeper)| keeper.runs.load(Relaxed))
    }

    /// The requests that came to a queue will come to another one.
    pub fn leave(&self, queue: u16) {
        let queue = usize::from(queue);
        if let (Some(keeper), Some(count)) = (self.keepers.get(queue), self.counts.get(queue)) {
            keeper.seen.store(count.load(Relaxed), Relaxed);
        }
    }

    /// The program runs on the processor of a queue from now on, beside a worker. It stays there if
    /// nothing else waits to run there, and the other processors are busy when it is woken: ends
    /// the keeper of that one, and waits for those of the others for a moment. Called on that
    /// processor, after [`Keepers::keep_beside`]. False where they do not come in time, as when the
    /// other processor is busy with something else.
    pub fn settle(&self, queue: u16) -> bool {
        let own = self.keepers.get(usize::from(queue));
        let runs_on = || own.is_some_and(|own| own.runs.load(Acquire));
        let are_there = || {
            let mut others = (0..).zip(&self.keepers).filter(|(of, _)| *of != queue);
            others.all(|(_, other)| !other.runs.load(Acquire) || other.is_there.load(Acquire))
        };
        if let Some(own) = own {
            own.is_over.store(true, Release);
        }
        let until = Instant::now() + SETTLES_MAX;
        loop {
            match runs_on() {
                // It needs this processor to end.
                true => thread::yield_now(),
                false if are_there() => return true,
                false => std::hint::spin_loop(),
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    /// The mount is gone.
    pub fn end(&self) {
        self.has_ended.store(true, Release);
        for keeper in &self.keepers {
            if let Some(thread) = &*keeper.thread.lock() {
                thread.unpark();
            }
        }
    }

    /// Keeps the processor of a queue busy, whenever that is of use, until the mount is gone.
    fn run(&self, queue: usize) {
        let keeper = &self.keepers[queue];
        *keeper.thread.lock() = Some(thread::current());
        Mover::new(queue).go(Place::Home);
        sys::lower_priority();
        while !self.has_ended.load(Acquire) {
            if keeper.runs.load(Acquire) {
                keeper.is_over.store(false, Release);
                keeper.is_there.store(true, Release);
                while self.is_of_use(queue) {}
                keeper.is_there.store(false, Release);
                keeper.runs.store(false, Release);
            }
            if !self.has_ended.load(Acquire) {
                thread::park();
            }
        }
    }

    /// Watches for a while whether requests come to other queues alone.
    fn is_of_use(&self, queue: usize) -> bool {
        let count = |of: usize| self.counts[of].load(Relaxed);
        let others = || (0..self.counts.len()).filter(|&of| of != queue).map(count).sum::<u64>();
        let (own, other) = (count(queue), others());
        let until = Instant::now() + LULL;
        while Instant::now() < until {
            if self.keepers[queue].is_over.swap(false, Acquire) {
                return false;
            }
            // Anything else that could run here does.
            thread::yield_now();
        }
        others() != other && count(queue) == own && !self.has_ended.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_with_requests_of_its_own_is_left_out_until_they_leave() {
        let keepers = Keepers::new(2);
        if !keepers.are_of_use() {
            println!("skipped: only machines with two processors have keepers");
            return;
        }
        keepers.count(1);
        keepers.keep_beside(0);
        assert!(!keepers.are_running_beside(0), "its requests keep it busy");
        keepers.count(1);
        keepers.leave(1);
        keepers.keep_beside(0);
        assert!(keepers.are_running_beside(0));
        assert!(!keepers.are_running_beside(1), "the other one serves");
    }

    #[test]
    fn settling_ends_the_keeper_of_the_callers_processor_and_waits_for_the_others() {
        let keepers = Keepers::new(2);
        if !keepers.are_of_use() {
            println!("skipped: only machines with two processors have keepers");
            return;
        }
        const TIMES: usize = 20;
        let is_there = |queue: usize| keepers.keepers[queue].is_there.load(Acquire);
        let (mut settled, mut own, mut others) = (0, 0, 0);
        thread::scope(|scope| {
            keepers.start(scope);
            // Tests beside this one may need the processors.
            let until = Instant::now() + Duration::from_secs(60);
            while settled < TIMES && Instant::now() < until {
                let (home, other) = (settled % 2, 1 - settled % 2);
                [home, other].iter().for_each(|queue| keepers.leave(*queue as u16));
                keepers.keep_beside(home as u16);
                if keepers.settle(home as u16) {
                    settled += 1;
                    own += usize::from(is_there(home));
                    others += usize::from(is_there(other));
                }
            }
            // Before the assertions: the scope waits for the threads.
            keepers.end();
        });
        assert_eq!((settled, own), (TIMES, 0), "in a minute");
        assert!(others > TIMES / 2, "{others}: they end at once");
    }

    #[test]
    fn a_keeper_ends_when_no_more_requests_come() {
        let keepers = Keepers::new(2);
        if !keepers.are_of_use() {
            println!("skipped: only machines with two processors have keepers");
            return;
        }
        thread::scope(|scope| {
            keepers.start(scope);
            keepers.keep_beside(0);
            let until = Instant::now() + Duration::from_secs(60);
            while keepers.are_running_beside(0) && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            let runs_on = keepers.are_running_beside(0);
            // Before the assertion: the scope waits for the threads.
            keepers.end();
            assert!(!runs_on, "it runs on without requests");
        });
    }
}
