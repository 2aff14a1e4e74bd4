//! One thread of a queue: a request, a reply, until the end.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use super::entry::{Arrived, Entry, Parts};
use super::leftovers::Leftovers;

use super::queues::{Queue, Shared, UnregisteredEntry};
use crate::proto::wire::OutHeader;
use crate::server::{After, HEAD_BYTES_MAX, Post, Reply, SendLate, Server};
use crate::transport::dev::DataBuffer;
use crate::transport::processors::{Mover, Place};
use crate::transport::streams;

/// Room for replies that cannot be made in place, because the request lies there: values of
/// extended attributes and what ioctls return.
const SCRATCH_BYTES: usize = 64 << 10;

/// A thread of a queue.
pub(super) struct Worker<'a> {
    pub server: &'a Server,
    pub shared: &'a Shared,
    pub entry: Entry,
    pub gate: usize,
    pub session: Arc<File>,
    /// Until the entry is registered.
    pub unregistered: Option<UnregisteredEntry<'a>>,
}

impl Worker<'_> {
    pub fn run(mut self) -> io::Result<()> {
        let queue = self.entry.queue();
        let mut mover = Mover::new(queue.into());
        let mut scratch = DataBuffer::new(SCRATCH_BYTES);
        mover.go(Place::Home);
        self.entry.register(self.session.clone())?;
        self.unregistered = None;
        let mut are_all_registered = false;
        while self.entry.wait()? == Arrived::Request {
            if !std::mem::replace(&mut are_all_registered, true) {
                self.shared.unregistered.wait_for_none();
            }
            self.shared.keepers.note(queue);
            self.serve(&mut mover, &mut scratch)?;
        }
        Ok(())
    }

    fn serve(&mut self, mover: &mut Mover, scratch: &mut DataBuffer) -> io::Result<()> {
        let queue = self.entry.queue();
        let server = self.server;
        let mut until_replied = Some(server.in_flight().take(self.gate, true));
        let Parts {
            header,
            fixed,
            payload_bytes,
            payload,
        } = self.entry.request();
        if Leftovers::matter_to(header.opcode) {
            self.shared.leftovers.drain(self.server)?;
        }
        let is_stream = streams::is_stream(header.opcode, &fixed);
        mover.go(match is_stream {
            false => Place::Home,
            true if self.shared.large_reads.are_of(queue) => Place::Away,
            // Each processor has a reader.
            true => Place::Anywhere,
        });
        let _turn = is_stream.then(|| self.shared.large_reads.take());
        let is_in_place = payload_bytes == 0;
        let mut is_first = true;
        let (out, head, data_bytes) = loop {
            let desk = Desk::new(&self.shared.queues[usize::from(queue)]);
            let (input, data): (&[u8], &mut [u8]) = match is_in_place {
                true => (&[], &mut *payload),
                false => (&payload[..payload_bytes], scratch.as_mut_slice()),
            };
            let parts = (&fixed[..], input);
            let (after, reply) = self.server.handle_parts(self.gate, header, parts, data, Some(&desk));
            let made = (reply.header(), Head::of(&reply), reply.body().1.len());
            let made = match (after, desk.late.take()) {
                (After::Nothing, Some(late)) => {
                    // It may take long.
                    drop(until_replied.take());
                    let (out, head) = late.recv().unwrap_or_else(|_| (lost(header.unique), Head::default()));
                    (out, head, 0)
                }
                // Each request over io_uring has a reply.
                _ => made,
            };
            // The space of what was deleted before is free once it is forgotten.
            let may_help = is_first && made.0.error == -libc::ENOSPC;
            is_first = false;
            if !may_help
                || self
                    .shared
                    .leftovers
                    .drain(self.server)?
                    .is_none_or(|served| served == 0)
            {
                break made;
            }
        };
        let head = head.bytes();
        let end = head.len() + data_bytes;
        if !is_in_place {
            payload[head.len()..end].copy_from_slice(&scratch.as_mut_slice()[..data_bytes]);
        } else if !head.is_empty() {
            payload.copy_within(..data_bytes, head.len());
        }
        payload[..head.len()].copy_from_slice(head);
        self.entry.reply(&out, end)
    }
}

/// What comes before the data of a reply.
#[derive(Clone)]
struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    len: usize,
}

impl Default for Head {
    fn default() -> Head {
        Head {
            bytes: [0; HEAD_BYTES_MAX],
            len: 0,
        }
    }
}

impl Head {
    fn of(reply: &Reply<'_>) -> Head {
        let (from, mut head) = (reply.body().0, Head::default());
        head.bytes[..from.len()].copy_from_slice(from);
        head.len = from.len();
        head
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The header of a reply that will not come.
fn lost(unique: u64) -> OutHeader {
    OutHeader {
        len: size_of::<OutHeader>() as u32,
        error: -libc::EIO,
        unique,
    }
}

type Late = (OutHeader, Head);

/// A worker with a request at hand. A reply that comes later is waited for: the request's memory
/// is the worker's only one.
struct Desk<'a> {
    queue: &'a Queue,
    late: Cell<Option<Receiver<Late>>>,
    withholds: Cell<bool>,
}

impl<'a> Desk<'a> {
    fn new(queue: &'a Queue) -> Desk<'a> {
        Desk {
            queue,
            late: Cell::new(None),
            withholds: Cell::new(false),
        }
    }
}

impl Post for Desk<'_> {
    fn can_leave(&self) -> bool {
        false
    }

    fn may_withhold(&self) -> bool {
        let may = self.queue.withhold();
        self.withholds.set(may);
        may
    }

    fn sender(&self) -> SendLate {
        let (sender, receiver) = mpsc::channel();
        self.late.set(Some(receiver));
        Box::new(move |reply: &Reply<'_>| {
            // Without a receiver, the worker has failed.
            let _ = sender.send((reply.header(), Head::of(reply)));
        })
    }

    fn will_wait(&self) {}
}

impl Drop for Desk<'_> {
    fn drop(&mut self) {
        if self.withholds.get() {
            self.queue.replied();
        }
    }
}
