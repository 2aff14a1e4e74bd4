//! How requests come and replies go, and the threads that serve them. What the bytes mean is the
//! server's part.
//!
//! - [`dev`]: reads and writes `/dev/fuse`. Every kernel has it.
//! - [`uring`]: a queue for each processor over io_uring, served on that processor. Linux 6.14 and
//!   later, where the administrator allows it.

pub mod dev;
mod habit;
mod history;
mod keeper;
pub(crate) mod processors;
pub(crate) mod streams;
pub mod uring;

use std::io;

use crate::server::Server;

/// Moves requests to a server and its replies back.
pub(crate) trait Transport: Send + std::fmt::Debug {
    /// Serves until the mount is gone. Returns the first error of a thread; `failed` is called with
    /// it at once, and has to end the mount, by which the other threads end.
    ///
    /// # Errors
    /// The transport failed, or the connection was aborted.
    fn serve(self: Box<Self>, server: &Server, failed: &(dyn Fn(&io::Error) + Sync)) -> io::Result<()>;
}
