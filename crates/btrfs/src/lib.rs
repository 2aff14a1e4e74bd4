//! The btrfs engine: volumes, trees, transactions, files. See docs/design/ for why it is built this way.

mod background;
pub mod dir;
pub mod discard;
pub mod engine;
pub mod error;
pub mod file;
pub mod fs;
pub mod inode;
pub mod log;
pub mod subvol;
#[cfg(test)]
mod testing;
pub mod xattr;

pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
