//! The XFS engine: reads volumes of version 4 and 5. Nothing is written.
//!
//! [`Volume`] reads and verifies blocks through a bounded cache. Inodes, directories, attributes
//! and files are read through it. [`Fs`] shows the volume as a [`cowshed_vfs::Volume`].
//!
//! A volume with a dirty log is refused unless [`OpenOptions::no_recovery`] is set: recovery of
//! the log is not implemented.

#![deny(missing_docs)]

mod ag;
mod attr;
mod dir;
mod error;
mod file;
mod fs;
mod inode;
mod rank;
mod symlink;
mod tree;
mod volume;

pub use error::{Error, Result};
pub use fs::Fs;
pub use volume::{OpenOptions, Volume};
