//! Large reads, and how many workers serve them at the same time.
//!
//! The kernel asks for what a reader in order will want next, several requests of 1 MiB at a time, while the reader is at
//! work on what came before: getting pages and copying them takes as long as it takes us to fill them. Another worker,
//! called to the next of these requests, would take the processor from the reader: two of us would do everything that is
//! queued, then wait together for the reader, who asks for more only on coming to it. Half of the time one processor would
//! have nothing to do. So one processor is left to the reader. (Helpers of the file system may use it while the reader waits.)
//!
//! That is so while a read is work. Where it waits for a device, more of them are to wait at the same time, and every
//! read calls another worker.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use crate::history::History;
use crate::proto::wire::{InHeader, Opcode, ReadIn};
use crate::sys;

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
