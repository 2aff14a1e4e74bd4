//! Serves a vfs file system through the FUSE protocol.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # fn main() -> Result<(), cowshed_fuse::SessionError> {
//! let fs = Arc::new(cowshed_vfs::memfs::MemFs::default());
//! let session = cowshed_fuse::Session::mount(fs, "/mnt".as_ref(), Default::default())?;
//! let unmounter = session.unmounter(); // for a signal handler's thread
//! # drop(unmounter);
//! session.run()
//! # }
//! ```
//!
//! Layers, each knowing only what is before it: [`proto`] (bytes to requests, pure), [`server`]
//! (requests to calls and replies, no I/O), [`transport`] (moving bytes), [`mount`], and
//! [`Session`], which ties them together.

pub mod mount;
mod notify;
mod pages;
pub mod proto;
pub mod server;
mod session;
mod sys;
pub mod transport;

pub use mount::{MountError, MountOptions, Mountpoint};
pub use notify::{KernelCaches, Notifier};
pub use server::groups_of_process;
pub use session::{
    IO_BYTES_MAX, Permissions, Session, SessionError, SessionOptions, TransportChoice, TransportUsed, Unmounter,
};
pub use transport::uring::{Unavailable, available as uring_available};
