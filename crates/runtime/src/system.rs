//! The machine's clocks, randomness and threads. The only file that may take them from the standard
//! library: everything else asks its [`Env`](crate::Env). `cargo xtask ci` checks that.
#![allow(clippy::disallowed_methods, reason = "this is what Env hands out on a real machine")]

use std::any::Any;
use std::io;
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use crate::event::{Event, Seen};
use crate::time::Timestamp;

/// What a thread runs.
pub type Body = Box<dyn FnOnce() + Send>;

/// A thread that was started by [`Env::spawn`](crate::Env::spawn). It goes on when this is dropped.
#[derive(Debug)]
pub struct Thread(JoinHandle<()>);

impl Thread {
    /// Whether the caller is this thread.
    pub fn is_current(&self) -> bool {
        self.0.thread().id() == std::thread::current().id()
    }

    /// Waits for the thread to end.
    ///
    /// # Errors
    /// What the thread panicked with.
    pub fn join(self) -> Result<(), Box<dyn Any + Send>> {
        self.0.join()
    }
}

/// Wall-clock time.
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// The start that [`monotonic`] counts from: the first look of the process.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Time since the start. Never goes back.
pub(crate) fn monotonic() -> Duration {
    start().elapsed()
}

/// See [`Env::wait`](crate::Env::wait).
pub(crate) fn wait(event: &Event, seen: Seen, until: Duration) {
    match start().checked_add(until) {
        Some(deadline) => event.wait_until(seen, deadline),
        None => event.wait(seen),
    }
}

/// How many processors the process may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Fills `bytes` from the kernel's random number generator.
pub(crate) fn random(bytes: &mut [u8]) {
    let filled = getrandom::fill(bytes);
    assert!(filled.is_ok(), "the random number generator always answers");
}

/// See [`Env::spawn`](crate::Env::spawn).
pub(crate) fn spawn(name: &str, body: Body) -> io::Result<Thread> {
    Builder::new().name(name.into()).spawn(body).map(Thread)
}
