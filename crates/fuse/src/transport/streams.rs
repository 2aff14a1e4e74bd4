//! Large reads, and how many workers serve them at the same time.
//!
//! The kernel asks for what a sequential reader will want next, several requests of 1 MiB at a
//! time, while the reader is at work on what came before: getting pages and copying them takes as
//! long as it takes us to fill them. Another worker, called to the next of these requests, would
//! take the processor from the reader: two of us would do everything that is queued, then wait
//! together for the reader, for which the kernel asks for more only when it gets there. Half of the
//! time one processor would have nothing to do. So one processor is left to the reader. (Helpers of
//! the file system may use it while the reader waits.)
//!
//! The worker that serves them alone takes them all from the queue and holds them ([`HeldReads`]),
//! so that a request of another caller waits for at most one of them.
//!
//! That is so while a read is work. Where it waits for a device, more of them are to wait at the
//! same time, and every read calls another worker.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use zerocopy::FromBytes;

use super::history::History;
use crate::proto::wire::{Opcode, ReadIn};
use crate::sys;

/// Reads of this size and more are those of a sequential reader: the kernel's usual readahead.
const STREAM_READ_BYTES: u32 = 128 << 10;

/// A reader that stops for so long does not count.
const LATELY: Duration = Duration::from_millis(50);

const O_DIRECT: u32 = libc::O_DIRECT as u32;

/// Is this a large read, into the page cache? A program that reads past it (`O_DIRECT`) asks for
/// all it wants, and waits. `fixed`: the structure of the operation, or more.
pub fn is_stream(opcode: u32, fixed: &[u8]) -> bool {
    opcode == Opcode::Read as u32
        && ReadIn::read_from_prefix(fixed)
            .is_ok_and(|(read, _)| read.size >= STREAM_READ_BYTES && read.flags & O_DIRECT == 0)
}

/// May such a request be served before a large read that came earlier? What only looks may. Of the
/// others some wait: for the device, or even for these reads (dropping pages from the cache waits
/// for the reads of these pages).
pub fn may_overtake(opcode: u32) -> bool {
    use Opcode::{Getattr, Getxattr, Listxattr, Lookup, Readdir, Readdirplus, Readlink, Statx};
    let looking = [
        Lookup,
        Getattr,
        Statx,
        Readlink,
        Getxattr,
        Listxattr,
        Readdir,
        Readdirplus,
    ];
    Opcode::is_forget(opcode) || looking.iter().any(|&one| one as u32 == opcode)
}

/// The large reads of a mount.
#[derive(Debug)]
pub struct Streams {
    /// As many are being served.
    serving: AtomicUsize,
    /// As many may be, if they are work and do not wait.
    workers_max: usize,
    /// Which of the last ones waited.
    waited: History,
}

impl Default for Streams {
    /// For this machine.
    fn default() -> Streams {
        Streams::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Streams {
    /// For a machine with so many processors.
    pub fn new(processors: usize) -> Streams {
        Streams {
            serving: AtomicUsize::new(0),
            workers_max: processors.saturating_sub(1).max(1),
            waited: History::default(),
        }
    }

    /// Would the next one be served without calling another worker?
    pub fn are_for_one(&self) -> bool {
        self.serving.load(Acquire) + 1 >= self.workers_max && !self.waited.is_usual()
    }

    /// May one more be served now?
    fn has_room(&self) -> bool {
        self.serving.load(Acquire) < self.workers_max || self.waited.is_usual()
    }

    /// A large read begins; it ends when what this returns is dropped.
    pub fn begin(&self) -> StreamRead<'_> {
        let serving = self.serving.fetch_add(1, Acquire) + 1;
        StreamRead {
            streams: self,
            wants_another: serving < self.workers_max || self.waited.is_usual(),
            started: Started::now(),
        }
    }
}

/// Turns at large reads, for threads that have one each.
#[derive(Debug, Default)]
pub struct Turns {
    streams: Streams,
    last: Mutex<Last>,
    ended: Condvar,
}

/// The queue of the last large read, and when one came to another queue.
#[derive(Debug, Default)]
struct Last {
    queue: u16,
    changed: Option<Instant>,
}

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub struct Turn<'t> {
    turns: &'t Turns,
    read: Option<StreamRead<'t>>,
}

impl Turns {
    /// Waits until a large read would not take a processor that its reader needs.
    pub fn take(&self) -> Turn<'_> {
        let mut last = self.last.lock();
        while !self.streams.has_room() {
            self.ended.wait(&mut last);
        }
        let read = Some(self.streams.begin());
        Turn { turns: self, read }
    }

    /// Have all large reads lately come to this queue: is there one reader?
    pub fn are_of(&self, queue: u16) -> bool {
        let mut last = self.last.lock();
        if last.queue != queue {
            *last = Last {
                queue,
                changed: Some(Instant::now()),
            };
        }
        last.changed.is_none_or(|changed| changed.elapsed() > LATELY)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _last = self.turns.last.lock();
        self.read.take();
        self.turns.ended.notify_one();
    }
}

/// A large read under way.
#[derive(Debug)]
pub struct StreamRead<'s> {
    streams: &'s Streams,
    wants_another: bool,
    started: Started,
}

impl StreamRead<'_> {
    /// Should another worker look for the next request meanwhile?
    pub fn wants_another(&self) -> bool {
        self.wants_another
    }
}

impl Drop for StreamRead<'_> {
    fn drop(&mut self) {
        self.streams.waited.note(self.started.has_waited());
        self.streams.serving.fetch_sub(1, Release);
    }
}

/// What the thread had done when a read began.
#[derive(Debug)]
struct Started {
    at: Instant,
    worked: Duration,
    sleeps: u64,
}

impl Started {
    fn now() -> Started {
        Started {
            at: Instant::now(),
            worked: sys::thread_time(),
            sleeps: sys::thread_sleeps(),
        }
    }

    /// Has the thread slept most of the time since? A thread that merely was given no processor, or
    /// that waited an instant for another to finish its part, has not.
    fn has_waited(&self) -> bool {
        let (passed, worked) = (self.at.elapsed(), sys::thread_time().saturating_sub(self.worked));
        worked < passed / 2 && sys::thread_sleeps() > self.sleeps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::wire::InHeader;

    fn ends(streams: &Streams, has_waited: bool) {
        let read = streams.begin();
        if has_waited {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(read);
    }

    #[test]
    fn one_processor_is_left_to_the_reader() {
        let streams = Streams::new(3);
        (0..8).for_each(|_| ends(&streams, false));
        let first = streams.begin();
        let second = streams.begin();
        assert!(first.wants_another() && !second.wants_another());
        drop(first);
        drop(second);
        assert!(streams.begin().wants_another(), "those have ended");
        for processors in [0, 1, 2] {
            let streams = Streams::new(processors);
            (0..8).for_each(|_| ends(&streams, false));
            assert!(!streams.begin().wants_another());
        }
    }

    #[test]
    fn reads_that_wait_call_others() {
        let streams = Streams::new(2);
        assert!(streams.begin().wants_another(), "nothing is known yet");
        (0..8).for_each(|_| ends(&streams, false));
        assert!(!streams.begin().wants_another());
        (0..4).for_each(|_| ends(&streams, true));
        assert!(streams.begin().wants_another());
    }

    #[test]
    fn a_worker_alone_with_reads_holds_them() {
        let streams = Streams::new(2);
        assert!(!streams.are_for_one(), "nothing is known yet");
        (0..8).for_each(|_| ends(&streams, false));
        assert!(streams.are_for_one());
        (0..4).for_each(|_| ends(&streams, true));
        assert!(!streams.are_for_one(), "they wait");
        let streams = Streams::new(3);
        (0..8).for_each(|_| ends(&streams, false));
        assert!(!streams.are_for_one());
        let _one = streams.begin();
        assert!(streams.are_for_one());
    }

    #[test]
    fn what_may_wait_does_not_overtake() {
        assert!(may_overtake(Opcode::Lookup as u32) && may_overtake(Opcode::BatchForget as u32));
        for opcode in [
            Opcode::Fsync,
            Opcode::Ioctl,
            Opcode::Setattr,
            Opcode::Write,
            Opcode::Destroy,
        ] {
            assert!(!may_overtake(opcode as u32), "{opcode:?}");
        }
        assert!(!may_overtake(u32::MAX));
    }

    #[test]
    fn large_reads_are_streams() {
        use zerocopy::{FromZeros, IntoBytes};
        let mut header = InHeader::new_zeroed();
        let mut read = ReadIn::new_zeroed();
        let mut is = |opcode: Opcode, size| {
            header.opcode = opcode as u32;
            read.size = size;
            is_stream(header.opcode, read.as_bytes())
        };
        assert!(is(Opcode::Read, 1 << 20) && is(Opcode::Read, 128 << 10));
        assert!(!is(Opcode::Read, 4096) && !is(Opcode::Readdir, 1 << 20));
        header.opcode = Opcode::Read as u32;
        assert!(!is_stream(header.opcode, &[]), "malformed");
        read.size = 1 << 20;
        read.flags = O_DIRECT;
        assert!(!is_stream(header.opcode, read.as_bytes()));
    }
}
