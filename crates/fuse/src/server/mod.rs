//! From requests to calls of the file system and back to replies. No I/O: a transport hands in
//! bytes and takes a [`Reply`] away.
//!
//! # Life
//!
//! ```text
//! new --INIT--> serving --DESTROY, or finish()--> ended
//! ```
//!
//! `FileSystem::init` is called in INIT; `FileSystem::destroy` exactly once, after every other call
//! has returned: each worker holds its own gate while it is inside the file system, and the thread
//! that ends the session takes all gates. A gate is only ever contended at the end, so it costs a
//! request next to nothing.

mod direct;
mod in_flight;
pub mod init;
mod late;
mod listings;
mod ops;
mod reply;
mod told;
mod waits;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cowshed_vfs::{Context, Credentials, Error, FileSystem, Groups, InitInfo, NodeId};
use parking_lot::Mutex;

use zerocopy::FromBytes;

use crate::proto::flags::InitFlags;
use crate::proto::request::forgotten;
use crate::proto::wire::{InHeader, InitInShort, InitOut, Opcode};
use crate::proto::{Dialect, Operation, Request};
use direct::DirectWrites;
pub use direct::DropPages;
pub(crate) use in_flight::InFlight;
pub use init::{Agreed, Wishes};
use late::{Lent, Owed, Synced};
pub use late::{Post, SendLate};
use listings::Listings;
pub use reply::{HEAD_BYTES_MAX, Reply};
use told::{Begun, Told};
use waits::Waits;

/// Called with a description when the file system panicked. The file system should refuse changes
/// from then on.
pub type OnPanic = Arc<dyn Fn(&str) + Send + Sync>;

/// Target of the trace event that each request causes, in the order of their arrival:
/// `COWSHED_LOG=cowshed_fuse::requests=trace`.
const REQUESTS: &str = "cowshed_fuse::requests";

/// What to do after a request was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Send the reply.
    Send,
    /// The request has no reply, or one that is sent later.
    Nothing,
}

/// One per worker, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Gate(Mutex<()>);

/// The adapter between protocol and file system.
pub struct Server {
    fs: Arc<dyn FileSystem>,
    wishes: Wishes,
    agreed: OnceLock<Agreed>,
    gates: Box<[Gate]>,
    ended: AtomicBool,
    on_panic: Option<OnPanic>,
    direct: Arc<DirectWrites>,
    in_flight: Arc<InFlight>,
    waits: Waits,
    listings: Listings,
    told: Told,
}

impl Server {
    /// A server for `workers` threads.
    pub fn new(fs: Arc<dyn FileSystem>, wishes: Wishes, workers: usize, on_panic: Option<OnPanic>) -> Server {
        let gates = (0..workers).map(|_| Gate::default()).collect();
        let in_flight = Arc::new(InFlight::new(workers));
        Server {
            in_flight,
            fs,
            wishes,
            agreed: OnceLock::new(),
            gates,
            ended: AtomicBool::new(false),
            on_panic,
            direct: Arc::new(DirectWrites::new(wishes.background_max)),
            waits: Waits::default(),
            listings: Listings::default(),
            told: Told::default(),
        }
    }

    /// What was agreed on in INIT, once there was one.
    pub fn agreed(&self) -> Option<&Agreed> {
        self.agreed.get()
    }

    /// The requests that are being served, each until its reply was sent: a transport holds a turn
    /// from before [`Server::handle`] until then.
    pub(crate) fn in_flight(&self) -> &Arc<InFlight> {
        &self.in_flight
    }

    /// Has the file system been destroyed?
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Handles the request in `bytes` on behalf of worker number `worker`. Any bytes are fine. A
    /// panic in the file system becomes an I/O error. With a `post`, the reply may be sent later.
    pub fn handle<'b>(
        &self,
        worker: usize,
        bytes: &[u8],
        data: &'b mut [u8],
        post: Option<&dyn Post>,
    ) -> (After, Reply<'b>) {
        match Request::parse(bytes, self.dialect()) {
            Ok(request) => self.serve(worker, &request, data, post),
            Err(malformed) => {
                tracing::error!(%malformed, "refused a request");
                refuse(
                    InHeader::read_from_prefix(bytes).map_or_else(|_| InHeader::default(), |(h, _)| h),
                    data,
                )
            }
        }
    }

    /// As [`Server::handle`], for a request that came in parts: its header, the fixed structure of
    /// its operation (more bytes may follow that), its names and data.
    pub fn handle_parts<'b>(
        &self,
        worker: usize,
        header: InHeader,
        (fixed, payload): (&[u8], &[u8]),
        data: &'b mut [u8],
        post: Option<&dyn Post>,
    ) -> (After, Reply<'b>) {
        match Request::from_parts(header, fixed, Some(payload), self.dialect()) {
            Ok(request) => self.serve(worker, &request, data, post),
            Err(malformed) => {
                tracing::error!(%malformed, "refused a request");
                refuse(header, data)
            }
        }
    }

    fn dialect(&self) -> Dialect {
        let agreed = self.agreed.get();
        Dialect {
            setxattr_ext: agreed.is_some_and(|agreed| agreed.flags.contains(InitFlags::SETXATTR_EXT)),
        }
    }

    fn serve<'b>(
        &self,
        worker: usize,
        request: &Request<'_>,
        data: &'b mut [u8],
        post: Option<&dyn Post>,
    ) -> (After, Reply<'b>) {
        let InHeader { opcode, nodeid, .. } = request.header;
        tracing::trace!(target: REQUESTS, opcode = opcode_name(opcode), node = nodeid, "request");
        let mut reply = Reply::new(request.header.unique, data);
        if matches!(request.op, Operation::Destroy) {
            self.finish();
            return (After::Send, reply);
        }
        let _inside = self.gates[worker].0.lock();
        if self.has_ended() {
            reply.fail(Error::NotConnected);
            return (after(&request.op), reply);
        }
        let lent = post.map(Lent::new);
        let outcome = catch_unwind(AssertUnwindSafe(|| match (&request.op, &lent) {
            (Operation::Fsync(args), Some(post)) if post.can_leave() => {
                self.fsync_later(request, args, Synced::File, post);
                Ok(After::Nothing)
            }
            (Operation::Fsyncdir(args), Some(post)) if post.can_leave() => {
                self.fsync_later(request, args, Synced::Directory, post);
                Ok(After::Nothing)
            }
            (Operation::Write { args, data }, Some(post)) if direct::is_direct(args) => {
                self.write_direct(request, (args, data), post, &mut reply)
            }
            (Operation::Ioctl { args, input }, Some(post)) => match self.ioctl_wait(request, args, input)? {
                Some(_) if !post.may_withhold() => Err(Error::Again),
                Some(wait) => {
                    self.waits.add(request.header.unique, Owed::new(request, post), wait);
                    Ok(After::Nothing)
                }
                None => self.dispatch(request, &mut reply).map(|()| after(&request.op)),
            },
            _ => self.dispatch(request, &mut reply).map(|()| after(&request.op)),
        }));
        let after = match outcome {
            Ok(Ok(after)) => after,
            Ok(Err(error)) => {
                reply.fail(error);
                after(&request.op)
            }
            Err(panic) => {
                reply.fail(Error::Io);
                self.report_panic(request, &*panic);
                match &lent {
                    // What was to send the reply did so when it was dropped.
                    Some(lent) if lent.is_taken() => After::Nothing,
                    _ => after(&request.op),
                }
            }
        };
        (after, reply)
    }

    /// Ends the session: waits for the other workers to leave the file system, then destroys it.
    /// Does nothing the second time.
    pub fn finish(&self) {
        let _all: Vec<_> = self.gates.iter().map(|gate| gate.0.lock()).collect();
        if self.ended.swap(true, Ordering::AcqRel) || self.agreed.get().is_none() {
            return;
        }
        self.waits.end();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.fs.destroy())) {
            tracing::error!(message = panic_text(&*panic), "the file system panicked while it ended");
        }
    }

    /// No call waits for long any more: the connection has ended, and a thread of the transport may
    /// be held by each that does.
    pub(crate) fn end_waits(&self) {
        self.waits.end();
    }

    fn report_panic(&self, request: &Request<'_>, panic: &(dyn Any + Send)) {
        let message = panic_text(panic);
        tracing::error!(
            opcode = request.header.opcode,
            node = request.header.nodeid,
            message,
            "the file system panicked"
        );
        if let Some(hook) = &self.on_panic {
            // A hook that panics too has nothing more to tell.
            let _ = catch_unwind(AssertUnwindSafe(|| hook(message)));
        }
    }

    fn context(&self, request: &Request<'_>, umask: u32) -> Context {
        let InHeader { uid, gid, pid, .. } = request.header;
        let groups = if pid == 0 {
            Groups::none()
        } else {
            Groups::lazy(pid, groups_of_process)
        };
        let groups = groups.with_hint(request.supplementary_group);
        Context::new(Credentials { uid, gid, groups }, pid, umask)
    }

    fn init(&self, kernel: &InitInShort, flags2: u32, reply: &mut Reply<'_>) -> Result<(), Error> {
        if kernel.major > init::MAJOR {
            // The kernel asks again with our version.
            reply.put(&InitOut {
                major: init::MAJOR,
                minor: init::MINOR,
                ..Default::default()
            });
            return Ok(());
        }
        if kernel.major < init::MAJOR || kernel.minor < init::MINOR_MIN {
            tracing::error!(
                major = kernel.major,
                minor = kernel.minor,
                "the kernel's FUSE protocol is too old"
            );
            return Err(Error::NotSupported);
        }
        if self.agreed.get().is_some() {
            return Err(Error::Io);
        }
        let Wishes {
            checks,
            read_only,
            io_bytes_max,
            ..
        } = self.wishes;
        let capabilities = self.fs.init(&InitInfo {
            checks,
            read_only,
            io_bytes_max,
        })?;
        let agreed = init::agree(kernel, flags2, &self.wishes, capabilities);
        reply.put(&init::init_out(kernel, &self.wishes, &agreed));
        tracing::debug!(minor = agreed.minor, flags = ?agreed.flags, "agreed with the kernel");
        self.agreed.set(agreed).map_err(|_| Error::Io)
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.fs.forget(NodeId(node), lookups);
    }

    fn forget_batch(&self, nodes: &[u8]) {
        for (node, lookups) in forgotten(nodes) {
            self.forget(node, lookups);
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("wishes", &self.wishes)
            .field("agreed", &self.agreed)
            .finish_non_exhaustive()
    }
}

fn after(op: &Operation<'_>) -> After {
    match op {
        Operation::Forget { .. }
        | Operation::BatchForget { .. }
        | Operation::NotifyReply
        | Operation::Interrupt { .. } => After::Nothing,
        _ => After::Send,
    }
}

/// The answer to bytes that are no request: an error, if there is a request to send it to.
fn refuse(header: InHeader, data: &mut [u8]) -> (After, Reply<'_>) {
    let mut reply = Reply::new(header.unique, data);
    reply.fail(Error::Invalid);
    let is_unanswered = Opcode::is_forget(header.opcode) || header.unique == 0;
    (if is_unanswered { After::Nothing } else { After::Send }, reply)
}

fn opcode_name(raw: u32) -> String {
    Opcode::from_raw(raw).map_or_else(|| raw.to_string(), |opcode| format!("{opcode:?}"))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The supplementary groups of a process, from `/proc`. A process that is gone has none.
pub fn groups_of_process(pid: u32) -> Vec<u32> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return Vec::new();
    };
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|gid| gid.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests;
