//! The btrfs engine: volumes, trees, transactions, files. See docs/design/ for why it is built this way.

pub mod access;
mod background;
pub mod block;
pub mod compression;
pub mod dir;
pub mod discard;
pub mod error;
mod extent;
pub mod file;
pub mod files;
pub mod fs;
pub mod log;
pub mod mount;
mod name_changes;
pub mod object;
mod pagecache;
mod pressure;
pub mod reclaim;
mod requests;
mod spare;
mod staged;
pub mod subvol;
#[cfg(test)]
mod testing;
pub mod xattr;
pub mod xattr_ops;

pub use error::{Error, Result};
pub use files::{DiscardMode, EngineOptions, Files};
pub use mount::Mount;
