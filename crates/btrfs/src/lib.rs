//! The btrfs engine: volumes, trees, transactions, files. See docs/design/ for why it is built this
//! way.

#![deny(missing_docs)]

mod access;
mod background;
pub mod block;
pub mod compression;
pub mod diff;
pub mod dir;
pub mod discard;
pub mod error;
mod extent;
mod file;
mod files;
pub mod fs;
mod log;
pub mod mount;
mod name_changes;
pub mod object;
mod pagecache;
mod pressure;
mod reclaim;
mod requests;
pub mod send;
mod spare;
mod staged;
mod subvol;
#[cfg(test)]
mod testing;
mod tree_clone;
mod xattr;
mod xattr_ops;

pub use error::{Error, Result};
pub use files::{Commits, DiscardMode, EngineOptions, Files};
pub use mount::Mount;
