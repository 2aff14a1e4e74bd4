//! Replies that are sent after the worker that took the request has turned to another one: to FSYNC
//! and FSYNCDIR. Callers that wait for the next write of the log would otherwise keep a thread
//! each, which has to be put to sleep and woken. To direct WRITEs, too: [`super::direct`].

use std::cell::Cell;

use cowshed_vfs::{Error, Handle, NodeId};
use zerocopy::{Immutable, IntoBytes};

use super::ops::never_skipped;
use super::{Reply, Server};
use crate::proto::Request;
use crate::proto::flags::FSYNC_FDATASYNC;
use crate::proto::wire::FsyncIn;

/// Sends one reply.
pub type SendLate = Box<dyn FnOnce(&Reply<'_>) + Send>;

/// What a worker lends for a reply that may come later.
pub trait Post {
    /// The worker can turn to other requests before the reply to this one is sent.
    fn can_leave(&self) -> bool {
        true
    }

    /// May the reply wait for other requests to be served? Asked once for a request.
    fn may_withhold(&self) -> bool {
        true
    }

    /// Sends the reply to the request at hand.
    fn sender(&self) -> SendLate;
    /// The worker is going to write the log, or to sleep. Called again before each further write of
    /// the log, which is for requests of others.
    fn will_wait(&self);
}

/// A [`Post`] that remembers whether its sender was taken: then the reply is the taker's affair,
/// also in a panic.
pub(super) struct Lent<'p> {
    post: &'p dyn Post,
    is_taken: Cell<bool>,
}

impl<'p> Lent<'p> {
    pub fn new(post: &'p dyn Post) -> Lent<'p> {
        Lent {
            post,
            is_taken: Cell::new(false),
        }
    }

    pub fn is_taken(&self) -> bool {
        self.is_taken.get()
    }
}

impl Post for Lent<'_> {
    fn can_leave(&self) -> bool {
        self.post.can_leave()
    }

    fn may_withhold(&self) -> bool {
        self.post.may_withhold()
    }

    fn sender(&self) -> SendLate {
        self.is_taken.set(true);
        self.post.sender()
    }

    fn will_wait(&self) {
        self.post.will_wait();
    }
}

/// A reply that is owed. Dropped without an outcome, as in a panic, it is an I/O error.
pub(super) struct Owed {
    unique: u64,
    send: Option<SendLate>,
}

impl Owed {
    pub fn new(request: &Request<'_>, post: &dyn Post) -> Owed {
        Owed {
            unique: request.header.unique,
            send: Some(post.sender()),
        }
    }

    pub fn answer<T: IntoBytes + Immutable>(mut self, outcome: Result<T, Error>) {
        self.send(outcome);
    }

    fn send<T: IntoBytes + Immutable>(&mut self, outcome: Result<T, Error>) {
        let Some(send) = self.send.take() else {
            return;
        };
        let mut reply = Reply::new(self.unique, &mut []);
        match outcome {
            Ok(answer) => reply.put(&answer),
            Err(error) => reply.fail(never_skipped(error)),
        }
        send(&reply);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.send::<()>(Err(Error::Io));
    }
}

/// What a request wants durable.
#[derive(Clone, Copy)]
pub(super) enum Synced {
    File,
    Directory,
}

impl Server {
    pub(super) fn fsync_later(&self, request: &Request<'_>, args: &FsyncIn, what: Synced, post: &dyn Post) {
        let owed = Owed::new(request, post);
        let data_only = args.fsync_flags & FSYNC_FDATASYNC != 0;
        let done: cowshed_vfs::Done = Box::new(|outcome| owed.answer(outcome));
        let (node, handle) = (NodeId(request.header.nodeid), Handle(args.fh));
        if self.agreed().is_none() {
            return done(Err(Error::Io));
        }
        let ctx = self.context(request, 0);
        let will_wait = || post.will_wait();
        match what {
            Synced::File => self.fs.fsync_later(&ctx, node, handle, data_only, &will_wait, done),
            Synced::Directory => self.fs.fsyncdir_later(&ctx, node, handle, data_only, &will_wait, done),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    /// A reply that is owed, and what it is sent by.
    pub fn owed(unique: u64, send: impl FnOnce(&Reply<'_>) + Send + 'static) -> Owed {
        Owed {
            unique,
            send: Some(Box::new(send)),
        }
    }

    #[test]
    fn dropped_is_an_error() {
        let errno = std::sync::Arc::new(AtomicI32::new(0));
        let told = errno.clone();
        let owed = owed(1, move |reply| told.store(reply.errno(), Ordering::Relaxed));
        let done: cowshed_vfs::Done = Box::new(|outcome| owed.answer(outcome));
        drop(done);
        assert_eq!(errno.load(Ordering::Relaxed), libc::EIO);
    }
}
