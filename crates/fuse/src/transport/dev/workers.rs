//! The threads that serve requests, and which of them waits for the next one.
//!
//! ```text
//!            something is queued                      a request comes
//!    serving --------------------> serving     waiting ---------------> serving
//!    serving --nothing is queued and none waits--> waiting (looking first, then asleep in `read`)
//!    serving --nothing is queued and another waits--> resting --called--> serving
//! ```
//!
//! Guarantee: at most one worker waits. The kernel wakes a thread that sleeps in `read` for every
//! request, also where another one is looking for it or would be back at once; these wake-ups, for
//! nothing, used to cost more than serving the requests. The kernel does not see resting workers.
//!
//! No worker waits while a request of a lone caller is served, nor while the log is written for its
//! fsync: that caller has nothing else to ask. The serving worker calls another one where this
//! could be wrong: before it serves a request of a kind that lately took long (much longer, where
//! one thread alone calls), before it writes the log for requests of others, and when it finds one
//! request after the other queued already, as Linux sends the dirty pages of a mapping. Large reads
//! have a rule of their own ([`crate::transport::streams`]). A guard thread calls a worker where
//! none has come back to the queue for a while (a request that unexpectedly waits for a device), so
//! that a stuck worker holds up the others for [`GUARD_TICK`] twice at most.
//!
//! The reply to an fsync may be sent by another worker: the leader, which writes the log for all
//! waiting requests ([`Post`]).
//!
//! Locks: [`Crew::resting`], held for a few instructions, no other lock within.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::proto::wire::{ForgetOne, InHeader, IoctlIn, Opcode};
use crate::server::{After, Post, Reply, SendLate, Server};
use crate::sys;
use crate::transport::habit::Habit;
use crate::transport::history::History;
use crate::transport::keeper::Keepers;
use crate::transport::streams::{self, Streams};

use super::device::{DataBuffer, Device, Received, RequestBuffer, Sender};
use super::held::HeldReads;
use super::pair::{NO_CALLER, Pair, RUN};

/// Waking a thread on another processor costs the waker 8 us in a virtual machine (the interrupt
/// leaves the machine), and as much again passes before the thread runs; that is more than most
/// requests take to serve. A worker that looks for the next request for this long need not be
/// woken. Where it finds nothing (no processor to spare), it looks ever less often.
pub const LOOK: Duration = Duration::from_micros(20);
/// A worker that sleeps instead checks every so many requests that it is on the processor of its
/// caller, where waking it is a mere switch of threads.
const MOVE_EVERY: u32 = 32;
/// A request that takes longer counts as slow: calling another worker costs about a tenth of it.
const SLOW: Duration = Duration::from_micros(60);
/// The same while one thread alone calls, which has nothing else to ask until it has the reply.
/// A request of another thread that comes meanwhile may wait as long.
const SLOW_ALONE: Duration = Duration::from_millis(1);
/// A FORGET of so many bytes is slow, whatever others of its kind were: some dozen nodes.
const FORGET_BYTES_SLOW: usize = 16 * size_of::<ForgetOne>();
/// Calls another worker after so many requests that were queued already. A lone caller does not get
/// there: what it leaves behind without waiting (RELEASE, FORGET) is one request, at most two, for
/// each that it waits for.
const BACKLOG: u32 = 8;
/// How often the guard looks at a mount that is in use.
const GUARD_TICK: Duration = Duration::from_millis(4);
/// The guard sleeps when the mount was not used for so many ticks.
const GUARD_IDLE_TICKS: u32 = 25;

/// Which workers rest, and whether one waits.
#[derive(Debug, Default)]
pub struct Crew {
    /// Last come, first called: its caches are the warmest.
    resting: Mutex<Resting>,
    /// A worker looks for requests, or sleeps in `read`.
    is_waiting: AtomicBool,
    /// How often workers have come back to the queue.
    rounds: AtomicU64,
    guard_sleeps: AtomicBool,
    guard: Mutex<Option<Thread>>,
    slowness: Slowness,
    lone: LoneCaller,
    streams: Streams,
}

#[derive(Debug, Default)]
struct Resting {
    workers: Vec<(usize, Thread)>,
    /// The mount is gone: workers do not rest any more.
    has_ended: bool,
}

impl Crew {
    /// Becomes the waiting worker, or rests until called. True: waits, and has to call
    /// [`Crew::got_one`]. `before_rest` is called before it rests.
    fn wait_or_rest(&self, worker: usize, before_rest: impl FnOnce()) -> bool {
        if !self.is_waiting.swap(true, SeqCst) {
            return true;
        }
        before_rest();
        {
            let mut resting = self.resting.lock();
            // Once more: a worker that got a request meanwhile and called another one has not seen
            // this one.
            if resting.has_ended || !self.is_waiting.swap(true, SeqCst) {
                return true;
            }
            resting.workers.push((worker, thread::current()));
        }
        let still_rests = || self.resting.lock().workers.iter().any(|(index, _)| *index == worker);
        while {
            thread::park();
            still_rests()
        } {}
        false
    }

    /// The waiting worker has a request.
    fn got_one(&self) {
        self.is_waiting.store(false, SeqCst);
        if self.guard_sleeps.load(SeqCst) && self.guard_sleeps.swap(false, SeqCst) {
            self.wake_guard();
        }
    }

    /// Makes a resting worker wait if none does. Without a resting one, all are busy.
    fn call_one(&self) {
        if self.is_waiting.load(SeqCst) {
            return;
        }
        let called = self.resting.lock().workers.pop();
        if let Some((_, thread)) = called {
            thread.unpark();
        }
    }

    /// The mount is gone, or going: all workers find out by reading.
    pub fn end(&self) {
        let all = {
            let mut resting = self.resting.lock();
            resting.has_ended = true;
            std::mem::take(&mut resting.workers)
        };
        all.into_iter().for_each(|(_, thread)| thread.unpark());
        self.wake_guard();
    }

    fn wake_guard(&self) {
        if let Some(guard) = &*self.guard.lock() {
            guard.unpark();
        }
    }

    /// Calls a worker whenever none waits and none has come back to the queue for a tick. Returns
    /// when the mount is gone.
    pub fn guard(&self) {
        *self.guard.lock() = Some(thread::current());
        let (mut seen, mut idle_ticks) = (0, 0);
        while !self.resting.lock().has_ended {
            if idle_ticks < GUARD_IDLE_TICKS {
                thread::park_timeout(GUARD_TICK);
            } else {
                self.guard_sleeps.store(true, SeqCst);
                if self.is_waiting.load(SeqCst) && self.rounds.load(SeqCst) == seen {
                    thread::park();
                }
                self.guard_sleeps.store(false, SeqCst);
                idle_ticks = 0;
            }
            let rounds = self.rounds.load(SeqCst);
            match (rounds == seen, self.is_waiting.load(SeqCst)) {
                (true, true) => idle_ticks += 1,
                (true, false) => self.call_one(),
                (false, _) => idle_ticks = 0,
            }
            seen = rounds;
        }
    }
}

/// Whether one thread alone calls, whichever workers serve it.
#[derive(Debug, Default)]
struct LoneCaller {
    /// The caller, and below it how many requests in a row it has made.
    run: AtomicU64,
}

impl LoneCaller {
    /// A request came; is it one of a lone caller? Workers that note at once may lose a note.
    fn note(&self, caller: u32) -> bool {
        if caller == NO_CALLER {
            return false;
        }
        let before = self.run.load(Relaxed);
        let run = match (before >> 32) as u32 == caller {
            true => (before as u32).saturating_add(1),
            false => 1,
        };
        if run <= RUN {
            self.run.store(u64::from(caller) << 32 | u64::from(run), Relaxed);
        }
        run >= RUN
    }
}

/// What requests have in common that take about as long: the operation, and of an ioctl its
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind(usize);

impl Kind {
    /// Operations; unknown ones share a place.
    const OPCODES: usize = 64;
    /// Of ioctls the number and the letter above it count, not the size.
    const COUNT: usize = Kind::OPCODES + 256;

    /// `fixed`: the structure of the operation, or more.
    fn of(opcode: u32, fixed: &[u8]) -> Kind {
        if opcode == Opcode::Ioctl as u32
            && let Ok((ioctl, _)) = IoctlIn::read_from_prefix(fixed)
        {
            // Most numbers have six bits; the letters of btrfs, of ours and of flags differ above.
            return Kind(Kind::OPCODES + ((ioctl.cmd ^ ioctl.cmd >> 8) & 0xff) as usize);
        }
        Kind(opcode as usize % Kind::OPCODES)
    }
}

/// What the workers remember of the kinds of requests: whether they were slow.
#[derive(Debug)]
struct Slowness([Pace; Kind::COUNT]);

/// How long the file system took for a request.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    /// Until it was going to keep the worker, as for writing the log: where several threads call,
    /// another worker is called then.
    until_kept: Duration,
    /// Until the worker was free. A lone caller has no use for another one, so that other threads
    /// wait for all of it.
    in_all: Duration,
}

/// Everything is slow until it was fast a few times.
#[derive(Debug, Default)]
struct Pace {
    /// [`SLOW`] or longer.
    is_slow: History,
    /// [`SLOW_ALONE`] or longer.
    is_slow_alone: History,
}

impl Default for Slowness {
    fn default() -> Slowness {
        Slowness(std::array::from_fn(|_| Pace::default()))
    }
}

impl Slowness {
    fn is_slow(&self, kind: Kind) -> bool {
        self.0[kind.0].is_slow.is_usual()
    }

    fn is_slow_alone(&self, kind: Kind) -> bool {
        self.0[kind.0].is_slow_alone.is_usual()
    }

    fn note(&self, kind: Kind, took: &Took) {
        let pace = &self.0[kind.0];
        pace.is_slow.note(took.until_kept >= SLOW);
        pace.is_slow_alone.note(took.in_all >= SLOW_ALONE);
    }
}

/// What a worker has learnt about its callers and the machine.
#[derive(Debug, Default)]
struct Habits {
    /// Pays where there is a processor to spare.
    looking: Habit,
    /// Moving to the caller's processor. Pays where the scheduler leaves the worker there.
    moving: Habit,
    waits: u32,
}

/// One worker: a request, a reply, until the end.
pub struct Worker<'a> {
    pub server: &'a Server,
    pub crew: &'a Crew,
    pub keepers: &'a Keepers,
    pub index: usize,
    pub device: Device,
    pub look: Duration,
    pub io_bytes_max: usize,
}

impl Worker<'_> {
    /// Serves until the mount is gone.
    pub fn run(mut self) -> std::io::Result<()> {
        let result = self.serve();
        self.crew.end();
        result
    }

    fn serve(&mut self) -> std::io::Result<()> {
        let mut requests = RequestBuffer::new(self.io_bytes_max);
        let mut data = DataBuffer::new(self.io_bytes_max);
        let mut queued_in_a_row = 0;
        let mut habits = Habits::default();
        let mut caller = NO_CALLER;
        let mut held = HeldReads::default();
        let mut pair = Pair::new(self.keepers);
        if let Err(error) = self.device.enable_looking() {
            tracing::debug!(%error, "workers will sleep between requests");
        }
        loop {
            self.crew.rounds.fetch_add(1, SeqCst);
            // A caller on this processor has asked nothing yet.
            let looked = match pair.is_together() && !held.has_any() {
                true => None,
                false => self.device.look(&mut requests)?,
            };
            let received = match looked {
                Some(received) => {
                    queued_in_a_row += 1;
                    received
                }
                None if held.has_any() => {
                    self.serve_read(&mut held, &mut data);
                    continue;
                }
                None => {
                    queued_in_a_row = 0;
                    if !self.crew.wait_or_rest(self.index, || pair.part()) {
                        continue;
                    }
                    let received = match pair.is_together() {
                        true => self.device.receive(&mut requests),
                        false => self.wait(&mut requests, &mut habits, caller),
                    };
                    self.crew.got_one();
                    received?
                }
            };
            let bytes = match received {
                Received::Request(bytes) => bytes,
                Received::Unmounted => return Ok(()),
                Received::Aborted => return Err(std::io::ErrorKind::ConnectionAborted.into()),
            };
            let request = requests.request(bytes);
            let header = header_of(request);
            let fixed = request.get(size_of::<InHeader>()..).unwrap_or_default();
            if streams::is_stream(header.opcode, fixed) {
                // Its caller works, too: on another processor, if there is one.
                pair.part();
                (caller, queued_in_a_row) = (NO_CALLER, 0);
                held.push(request, self.device.road());
                if held.is_full() || !self.crew.streams.are_for_one() {
                    self.serve_read(&mut held, &mut data);
                }
                continue;
            }
            let kind = Kind::of(header.opcode, fixed);
            let may_overtake = streams::may_overtake(header.opcode) && !self.crew.slowness.is_slow(kind);
            while held.has_any() && (held.is_due() || !may_overtake) {
                let road = self.device.road();
                self.serve_read(&mut held, &mut data);
                self.device.take(road);
            }
            caller = header.pid;
            pair.note(caller);
            let forgets_many = Opcode::is_forget(header.opcode) && bytes >= FORGET_BYTES_SLOW;
            let is_lone = self.crew.lone.note(caller);
            let is_slow = match is_lone {
                true => self.crew.slowness.is_slow_alone(kind),
                false => self.crew.slowness.is_slow(kind),
            };
            if queued_in_a_row >= BACKLOG || is_slow || forgets_many {
                queued_in_a_row = 0;
                self.crew.call_one();
            }
            let took = self.answer(request, &mut data, is_lone && !is_slow);
            self.crew.slowness.note(kind, &took);
        }
    }

    /// Serves the first of the large reads that are held.
    fn serve_read(&mut self, held: &mut HeldReads, data: &mut DataBuffer) {
        let Some((request, road)) = held.pop() else { return };
        let read = self.crew.streams.begin();
        if read.wants_another() {
            self.crew.call_one();
        }
        self.device.take(road);
        self.answer(&request, data, false);
    }

    /// Serves a request, and whatever the file system keeps this worker for meanwhile.
    /// `is_for_one`: the request is of a lone caller, and of a kind that is fast enough for that
    /// one. No other worker is called, unless this one is kept for others' requests.
    fn answer(&self, request: &[u8], data: &mut DataBuffer, is_for_one: bool) -> Took {
        let started = Instant::now();
        let desk = Desk {
            worker: self,
            kept: Kept::new(is_for_one),
        };
        let is_awaited = !Opcode::is_forget(header_of(request).opcode);
        let _turn = self.server.in_flight().take(self.index, is_awaited);
        let (after, reply) = self
            .server
            .handle(self.index, request, data.as_mut_slice(), Some(&desk));
        let took = started.elapsed();
        if after == After::Send {
            send(&self.device.sender(), &reply);
        }
        Took {
            until_kept: desk.kept.since.get().map_or(took, |since| since - started),
            in_all: took,
        }
    }

    /// Waits for a request: looks for a while if that has been worth it, then sleeps. `caller`: the
    /// thread that made the last request.
    fn wait(&mut self, requests: &mut RequestBuffer, habits: &mut Habits, caller: u32) -> std::io::Result<Received> {
        if !self.look.is_zero() && habits.looking.is_due() {
            let started = Instant::now();
            while started.elapsed() < self.look {
                if let Some(received) = self.device.look(requests)? {
                    habits.looking.pays();
                    return Ok(received);
                }
                std::hint::spin_loop();
            }
            habits.looking.does_not_pay();
        }
        habits.waits = habits.waits.wrapping_add(1);
        if caller != NO_CALLER && habits.waits.is_multiple_of(MOVE_EVERY) && habits.moving.is_due() {
            match move_to_caller(caller) {
                true => habits.moving.does_not_pay(),
                false => habits.moving.pays(),
            }
        }
        self.device.receive(requests)
    }
}

fn header_of(request: &[u8]) -> InHeader {
    InHeader::read_from_prefix(request).map_or_else(|_| InHeader::default(), |(header, _)| header)
}

/// A worker with a request at hand.
struct Desk<'a> {
    worker: &'a Worker<'a>,
    kept: Kept,
}

/// Whether the file system keeps a worker, as for writing the log.
#[derive(Debug)]
struct Kept {
    /// As for [`Worker::answer`].
    is_for_one: bool,
    since: Cell<Option<Instant>>,
}

impl Kept {
    fn new(is_for_one: bool) -> Kept {
        Kept {
            is_for_one,
            since: Cell::new(None),
        }
    }

    /// The worker is kept. True: another one is to wait for requests. For a lone caller none is,
    /// but from the second time on it is for requests of others.
    fn note(&self) -> bool {
        let is_again = self.since.get().is_some();
        if !is_again {
            self.since.set(Some(Instant::now()));
        }
        is_again || !self.is_for_one
    }
}

impl Post for Desk<'_> {
    fn sender(&self) -> SendLate {
        let sender = self.worker.device.sender();
        Box::new(move |reply| send(&sender, reply))
    }

    fn will_wait(&self) {
        if self.kept.note() {
            self.worker.crew.call_one();
        }
    }
}

/// The kernel takes a reply or says what is wrong with it; the request is over either way.
fn send(sender: &Sender, reply: &Reply<'_>) {
    if let Err(error) = sender.send(reply) {
        tracing::error!(%error, header = ?reply.header(), "the kernel refused a reply");
    }
}

/// Moves this thread to the processor of its caller. False: it was there.
fn move_to_caller(caller: u32) -> bool {
    let Some(there) = sys::processor_of(caller) else {
        return false;
    };
    let must_move = sys::processor() != Some(there);
    if must_move && let Err(error) = sys::move_to(there) {
        tracing::debug!(%error, "a worker stays on its processor");
    }
    must_move
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros as _, IntoBytes as _};

    use super::*;

    #[test]
    fn one_waits_the_others_rest_until_called() {
        let crew = Crew::default();
        assert!(crew.wait_or_rest(0, || ()));
        thread::scope(|scope| {
            let rests = scope.spawn(|| crew.wait_or_rest(1, || ()));
            while crew.resting.lock().workers.is_empty() {
                thread::yield_now();
            }
            crew.call_one();
            assert_eq!(crew.resting.lock().workers.len(), 1, "somebody waits: nobody is called");
            crew.got_one();
            crew.call_one();
            assert!(!rests.join().expect("no panic"), "called, to look at the queue");
        });
        assert!(crew.wait_or_rest(1, || ()), "nobody waits now");
        crew.end();
        assert!(crew.wait_or_rest(0, || ()), "nobody rests at the end");
    }

    #[test]
    fn the_guard_calls_a_worker_when_none_comes_back() {
        let crew = Crew::default();
        assert!(crew.wait_or_rest(0, || ()));
        thread::scope(|scope| {
            scope.spawn(|| crew.guard());
            let rests = scope.spawn(|| crew.wait_or_rest(1, || ()));
            // Long enough for the guard to go to sleep.
            thread::sleep(GUARD_TICK * 2 * GUARD_IDLE_TICKS);
            assert!(!rests.is_finished());
            crew.got_one();
            assert!(!rests.join().expect("no panic"));
            crew.end();
        });
    }

    #[test]
    fn a_lone_caller_is_one_thread_whichever_worker_serves_it() {
        let lone = LoneCaller::default();
        let run = |caller| (0..RUN).map(|_| lone.note(caller)).collect::<Vec<_>>();
        let first = run(7);
        assert!(
            first[..15].iter().all(|is_lone| !is_lone),
            "a few requests may be of anyone"
        );
        assert!(first[15], "as many in a row are not");
        assert!(
            !lone.note(NO_CALLER),
            "a request without a caller is not one of thread 7"
        );
        assert!(lone.note(7), "and does not end its run");
        assert!(!lone.note(8), "two threads call");
        assert!(!lone.note(7));
    }

    #[test]
    fn the_log_is_written_without_another_worker_for_a_lone_caller_alone() {
        let (lone, one_of_many) = (Kept::new(true), Kept::new(false));
        assert!(lone.since.get().is_none());
        assert!(!lone.note(), "its own request");
        let since = lone.since.get();
        assert!(since.is_some() && lone.note(), "requests of others");
        assert_eq!(lone.since.get(), since, "the first time counts");
        assert!(one_of_many.note());
    }

    fn took(until_kept: Duration, in_all: Duration) -> Took {
        Took { until_kept, in_all }
    }

    #[test]
    fn a_kind_that_takes_long_is_slow_for_a_lone_caller_where_it_takes_much_longer() {
        let slowness = Slowness::default();
        let kind = Kind::of(1, &[]);
        for _ in 0..8 {
            slowness.note(kind, &took(SLOW, SLOW));
        }
        assert!(slowness.is_slow(kind));
        assert!(!slowness.is_slow_alone(kind));
        for _ in 0..8 {
            slowness.note(kind, &took(Duration::ZERO, SLOW_ALONE));
        }
        assert!(slowness.is_slow_alone(kind), "others wait for the log, too");
        assert!(!slowness.is_slow(kind), "but another worker is called before that");
    }

    #[test]
    fn a_kind_is_slow_until_it_was_fast_a_few_times() {
        let slowness = Slowness::default();
        let [one, two] = [1, 2].map(|opcode| Kind::of(opcode, &[]));
        assert!(slowness.is_slow(one));
        for _ in 0..5 {
            slowness.note(one, &Took::default());
        }
        assert!(!slowness.is_slow(one) && slowness.is_slow(two));
        for _ in 0..4 {
            slowness.note(one, &took(SLOW, SLOW));
        }
        assert!(slowness.is_slow(one));
        assert!(slowness.is_slow(Kind::of(u32::MAX, &[])), "unknown kinds share a place");
    }

    #[test]
    fn each_ioctl_is_a_kind() {
        let of = |cmd| {
            let ioctl = IoctlIn {
                cmd,
                ..IoctlIn::new_zeroed()
            };
            Kind::of(Opcode::Ioctl as u32, ioctl.as_bytes())
        };
        let kinds = [of(0x5000_940e), of(0x5000_940f), of(u32::MAX)];
        assert_eq!(kinds[0], of(0xd000_940e));
        // FS_IOC_GETFLAGS, at once, and BTRFS_IOC_SNAP_CREATE, which commits.
        assert_ne!(of(0x8008_6601), of(0x5000_9401));
        let all = [&kinds[..], &[Kind::of(Opcode::Ioctl as u32, &[]), Kind::of(1, &[])]].concat();
        for (n, kind) in all.iter().enumerate() {
            assert!(kind.0 < Kind::COUNT && !all[..n].contains(kind), "{all:?}");
        }
    }
}
