//! Large reads, and how many workers serve them at the same time.
//!
//! The kernel asks for what a reader in order will want next, several requests of 1 MiB at a time, while the reader is at
//! work on what came before: getting pages and copying them takes as long as it takes us to fill them. Another worker,
//! called to the next of these requests, would take the processor from the reader: two of us would do everything that is
//! queued, then wait together for the reader, who asks for more only on coming to it. Half of the time one processor would
//! have nothing to do. So one processor is left to the reader. (Helpers of the file system may use it while the reader waits.)
//!
//! Who serves them alone takes them all from the queue and holds them ([`HeldReads`]), so that what others ask does not have to
//! wait for more than one of them.
//!
//! That is so while a read is work. Where it waits for a device, more of them are to wait at the same time, and every
//! read calls another worker.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use crate::history::History;
use crate::proto::wire::{InHeader, Opcode, ReadIn};
use crate::sys;
use crate::transport::dev::Road;

/// Reads of this size and more are those of somebody who reads in order: the kernel's usual readahead.
const STREAM_READ_BYTES: u32 = 128 << 10;

const O_DIRECT: u32 = libc::O_DIRECT as u32;

/// Is this a large read, into the page cache? Who reads past it (`O_DIRECT`) asks for all he wants, and waits.
pub fn is_stream(header: &InHeader, request: &[u8]) -> bool {
    header.opcode == Opcode::Read as u32
        && request
            .get(size_of::<InHeader>()..)
            .and_then(|body| ReadIn::read_from_prefix(body).ok())
            .is_some_and(|(read, _)| read.size >= STREAM_READ_BYTES && read.flags & O_DIRECT == 0)
}

/// May such a request be served before a large read that came earlier? What only looks may. Of the others some wait: for
/// the device, or even for these reads (who drops pages from the cache waits for the reads of these pages).
pub fn may_overtake(opcode: u32) -> bool {
    use Opcode::{Forget, Getattr, Getxattr, Listxattr, Lookup, Readdir, Readdirplus, Readlink, Statx};
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
    let leaving = [Forget, Opcode::BatchForget];
    looking.iter().chain(&leaving).any(|&one| one as u32 == opcode)
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

    /// Would the next one be served without calling anybody?
    pub fn are_for_one(&self) -> bool {
        self.serving.load(Acquire) + 1 >= self.workers_max && !self.waited.is_usual()
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

/// Large reads that one worker took from the queue and has not begun, in the order in which they came.
#[derive(Debug, Default)]
pub struct HeldReads {
    requests: VecDeque<(Vec<u8>, Road)>,
    /// As many other requests were served since the last read.
    overtaken: u32,
}

impl HeldReads {
    /// More than the kernel has under way for one reader.
    const READS_MAX: usize = 16;
    /// So many others may be served before a read: some hundred microseconds.
    const OVERTAKEN_MAX: u32 = 16;

    pub fn has_any(&self) -> bool {
        !self.requests.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.requests.len() >= Self::READS_MAX
    }

    pub fn push(&mut self, request: &[u8], road: Road) {
        self.requests.push_back((request.to_vec(), road));
    }

    pub fn pop(&mut self) -> Option<(Vec<u8>, Road)> {
        self.overtaken = 0;
        self.requests.pop_front()
    }

    /// Another request is there: is it time for a read nevertheless?
    pub fn is_due(&mut self) -> bool {
        self.overtaken += 1;
        self.has_any() && self.overtaken > Self::OVERTAKEN_MAX
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

    /// Has the thread slept most of the time since? A thread that merely was given no processor, or that waited an instant for
    /// another to finish its part, has not.
    fn has_waited(&self) -> bool {
        let (passed, worked) = (self.at.elapsed(), sys::thread_time().saturating_sub(self.worked));
        worked < passed / 2 && sys::thread_sleeps() > self.sleeps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn who_is_alone_with_reads_holds_them() {
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
    fn held_reads_keep_their_order_and_are_overtaken_a_few_times() {
        let road = Road::default();
        let mut held = HeldReads::default();
        assert!(!held.has_any() && held.pop().is_none());
        (0..100).for_each(|_| assert!(!held.is_due(), "there is none"));
        for n in 0..HeldReads::READS_MAX {
            assert!(!held.is_full());
            held.push(&[n as u8], road);
        }
        assert!(held.is_full());
        assert_eq!(held.pop(), Some((vec![0], road)));
        (0..HeldReads::OVERTAKEN_MAX).for_each(|_| assert!(!held.is_due()));
        assert!(held.is_due());
        assert_eq!(held.pop(), Some((vec![1], road)));
        assert!(!held.is_due());
    }

    #[test]
    fn large_reads_are_streams() {
        use zerocopy::{FromZeros, IntoBytes};
        let mut header = InHeader::new_zeroed();
        let mut read = ReadIn::new_zeroed();
        let mut is = |opcode: Opcode, size| {
            header.opcode = opcode as u32;
            read.size = size;
            is_stream(&header, &[header.as_bytes(), read.as_bytes()].concat())
        };
        assert!(is(Opcode::Read, 1 << 20) && is(Opcode::Read, 128 << 10));
        assert!(!is(Opcode::Read, 4096) && !is(Opcode::Readdir, 1 << 20));
        header.opcode = Opcode::Read as u32;
        assert!(!is_stream(&header, header.as_bytes()), "malformed");
        read.size = 1 << 20;
        read.flags = O_DIRECT;
        assert!(!is_stream(&header, &[header.as_bytes(), read.as_bytes()].concat()));
    }
}
