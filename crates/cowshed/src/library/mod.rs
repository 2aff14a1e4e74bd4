//! The library face: a volume's files and directories for Rust, on top of the vfs contract.
//! Translation only.
//!
//! Locks: none of its own.

mod atomic;
mod dir;
mod entries;
mod error;
mod extents;
mod file;
mod metadata;
mod node;
mod options;
mod volume;

pub use atomic::AtomicWrites;
pub use dir::Dir;
pub use entries::{DirEntry, ReadDir};
pub use error::{Error, Result};
pub use file::{File, FileOptions};
pub use metadata::Metadata;
pub use options::{OpenOptions, Rescue, Subvolume};
pub use volume::Volume;
