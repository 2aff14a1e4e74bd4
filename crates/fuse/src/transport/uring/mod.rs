//! The transport over io_uring: a queue for each processor, served by threads on that processor.
//!
//! ```text
//!   a program on processor 1 --request--> queue 1 --> a thread on processor 1 --reply--> program
//! ```
//!
//! A request and its reply never cross processors, so that neither costs an interrupt to another
//! one; and the reply and the wait for the next request are one system call. Each thread has an
//! [`entry`] of its own, and serves one request at a time. The kernel gives a request to the thread
//! of its queue that was busy last. Where all threads of a queue are busy, requests wait in the
//! kernel until one replies. No thread is added later, and none serves a request before all entries
//! are registered: Linux (6.18) gives a request that waits to an entry that replies, and not to a
//! new one ([`queues::Unregistered`]).
//!
//! Large reads are those of readahead: while they are served, the program works on what came
//! before. They are served on another processor, one after the other ([`streams`](super::streams)).
//!
//! What the kernel does not send over io_uring (forgotten nodes) comes by `/dev/fuse`:
//! [`leftovers`].
//!
//! Memory: queues x threads x (largest request + 4 KiB), as far as it was written to.
//!
//! Locks: `leftovers`, the large reads' turns, and the count of entries that are not registered,
//! with no lock within.

mod command;
mod entry;
mod leftovers;
mod queues;
mod worker;

// The processors that the crate io-uring is made for; Cargo.toml has the list, too.
#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "loongarch64",
    target_arch = "powerpc64"
))]
mod ring;
#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "loongarch64",
    target_arch = "powerpc64"
)))]
#[path = "no_ring.rs"]
mod ring;

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, Scope};

use entry::Entry;
use leftovers::Leftovers;
use queues::{Queue, Shared, THREADS_MIN, Unregistered, UnregisteredEntry};
use worker::Worker;

use super::Transport;
use super::dev::Device;
use super::streams::Turns;
use crate::server::Server;
use crate::transport::keeper::Keepers;
use crate::transport::processors;

/// Where the kernel says whether it offers this.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";
/// Threads of all queues together: as many payload buffers.
const THREADS_MAX: usize = 64;
/// The kernel takes no entry with less payload.
const PAYLOAD_BYTES_MIN: usize = (64 << 10) + 4096;

/// Why a mount is not served over io_uring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("the kernel has no FUSE over io_uring: Linux 6.14 and later have it, where it is built in")]
    NoKernel,
    #[error("the administrator has not allowed it: `echo 1 > {ENABLED}` as root does, for mounts from then on")]
    NotEnabled,
    #[error("io_uring cannot be used: {0}; the sysctl kernel.io_uring_disabled or a container may forbid it")]
    NoRing(String),
    #[error("the kernel did not agree to it for this mount")]
    NotAgreed,
}

/// Would new mounts of this process be served over io_uring?
///
/// # Errors
/// They would not, and why.
pub fn available() -> Result<(), Unavailable> {
    is_offered()?;
    let probe = Entry::new(0, PAYLOAD_BYTES_MIN);
    probe.map(drop).map_err(|error| Unavailable::NoRing(error.to_string()))
}

fn is_offered() -> Result<(), Unavailable> {
    match std::fs::read_to_string(ENABLED) {
        Ok(text) if text.trim() == "Y" => Ok(()),
        Ok(_) => Err(Unavailable::NotEnabled),
        Err(_) => Err(Unavailable::NoKernel),
    }
}

/// Does the kernel serve the session of this device by `/dev/fuse`, although it offered io_uring and
/// we accepted? It does where the administrator forbade io_uring in between.
///
/// False where that cannot be found out: a session that does use io_uring gets no requests by
/// `/dev/fuse`, and would hang.
pub(crate) fn was_revoked(device: &Device) -> bool {
    Entry::probe(&device.file()).is_err_and(|error| error.raw_os_error() == Some(libc::EOPNOTSUPP))
}

/// Queues that the kernel does not know yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    entries: Vec<Entry>,
    payload_bytes: usize,
    queues: usize,
    /// Of each queue.
    threads: usize,
}

impl Prepared {
    /// Makes what every queue begins with: after a kernel was promised queues, it serves nothing
    /// until it has them all.
    pub fn new(io_bytes_max: usize, threads_max: usize) -> Result<Prepared, Unavailable> {
        is_offered()?;
        let queues = processors::possible();
        let payload_bytes = io_bytes_max.max(PAYLOAD_BYTES_MIN);
        let threads = (THREADS_MAX / queues).clamp(THREADS_MIN, threads_max.max(THREADS_MIN));
        // The last queue comes last: with its first entry, the kernel begins.
        let numbers = (0..queues).flat_map(|queue| std::iter::repeat_n(queue as u16, threads));
        let entries = numbers
            .map(|queue| Entry::new(queue, payload_bytes))
            .collect::<io::Result<_>>();
        Ok(Prepared {
            entries: entries.map_err(|error| Unavailable::NoRing(error.to_string()))?,
            payload_bytes,
            queues,
            threads,
        })
    }

    /// Gates that the server needs: one for each thread, and one for what comes by `/dev/fuse`.
    pub fn gates(&self) -> usize {
        self.entries.len() + 1
    }
}

/// The transport of one mount.
#[derive(Debug)]
pub(crate) struct Uring {
    pub prepared: Prepared,
    pub device: Device,
}

impl Transport for Uring {
    fn serve(self: Box<Self>, server: &Server, failed: &(dyn Fn(&io::Error) + Sync)) -> io::Result<()> {
        let Uring { prepared, device } = *self;
        let Prepared {
            entries,
            payload_bytes,
            queues,
            threads,
        } = prepared;
        let shared = Shared {
            queues: (0..queues).map(|_| Queue::new(threads)).collect(),
            large_reads: Turns::default(),
            unregistered: Unregistered::default(),
            keepers: Keepers::new(queues),
            leftovers: Leftovers::new(&device, payload_bytes)?,
        };
        let session = device.file();
        let (ended, received) = mpsc::channel();
        thread::scope(|scope| {
            let mut crew = Crew {
                scope,
                server,
                shared: &shared,
                session,
                ended,
                failed,
                running: 0,
                gates: leftovers::GATE,
            };
            let mut outcome = crew.start("fuse-forget".into(), {
                let shared = &shared;
                move || {
                    let served = shared.leftovers.serve(server, device, payload_bytes);
                    // Workers wait for the replies to such calls, not for the kernel.
                    server.end_waits();
                    served
                }
            });
            // Counted before the first of them can get a request.
            let entries: Vec<_> = entries
                .into_iter()
                .map(|entry| (entry, shared.unregistered.entry()))
                .collect();
            for (entry, unregistered) in entries {
                outcome = outcome.and(crew.start_worker(entry, unregistered));
            }
            if let Err(error) = &outcome {
                failed(error);
            }
            shared.keepers.start(scope);
            while crew.running > 0 {
                // The crew has a sender.
                let Ok(result) = received.recv() else { break };
                crew.running -= 1;
                outcome = outcome.and(result);
            }
            shared.keepers.end();
            outcome
        })
    }
}

/// Starts the threads.
struct Crew<'s, 'e> {
    scope: &'s Scope<'s, 'e>,
    server: &'s Server,
    shared: &'s Shared,
    session: Arc<File>,
    ended: Sender<io::Result<()>>,
    failed: &'s (dyn Fn(&io::Error) + Sync),
    running: usize,
    /// The last gate that a thread was given.
    gates: usize,
}

impl<'s> Crew<'s, '_> {
    fn start(&mut self, name: String, work: impl FnOnce() -> io::Result<()> + Send + 's) -> io::Result<()> {
        let (ended, failed) = (self.ended.clone(), self.failed);
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(work))
                .unwrap_or_else(|_| Err(io::Error::other("a thread of the FUSE transport panicked")));
            if let Err(error) = &result {
                failed(error);
            }
            // The receiver outlives the threads.
            let _ = ended.send(result);
        };
        thread::Builder::new().name(name).spawn_scoped(self.scope, work)?;
        self.running += 1;
        Ok(())
    }

    fn start_worker(&mut self, entry: Entry, unregistered: UnregisteredEntry<'s>) -> io::Result<()> {
        self.gates += 1;
        let name = format!("fuse-{}-{}", entry.queue(), self.gates);
        let worker = Worker {
            server: self.server,
            shared: self.shared,
            entry,
            gate: self.gates,
            session: self.session.clone(),
            unregistered: Some(unregistered),
        };
        self.start(name, || worker.run())
    }
}
