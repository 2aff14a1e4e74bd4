//! A pool of threads that help a caller with work that lives on the caller's stack.
//!
//! This is a crate of its own for its unsafe code: the lifetime of the work is erased for the
//! helpers, and the protocol between caller and helpers (`protocol.rs`) is what makes that sound.
//! The protocol is a file without unsafe code; `tests/protocol.rs` compiles the same file against
//! loom, which tries all interleavings.
//!
//! The pool starts threads only through the function that it is given.
#![deny(missing_docs)]

mod pool;
mod protocol;
mod sched;
mod sync;

pub use pool::{Body, Join, Pool, Spawn};
