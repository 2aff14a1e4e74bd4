//! The XFS engine: reads volumes of version 4 and 5. Nothing is written.
//!
//! [`Volume`] reads and verifies blocks through a bounded cache. Inodes, directories, attributes
//! and files are read through it. [`Fs`] shows the volume as a [`cowshed_vfs::Volume`].
//!
//! A dirty log is recovered in memory, unless [`OpenOptions::no_recovery`] is set.

#![deny(missing_docs)]

mod ag;
mod attr;
mod dir;
mod error;
mod file;
mod fs;
mod inode;
mod log;
mod rank;
mod recovery;
mod symlink;
mod tree;
mod volume;

pub use error::{Error, Result};
pub use fs::Fs;
pub use recovery::Recovery;
pub use volume::{OpenOptions, Volume};
