//! Transactional trees on a btrfs volume. Knows no inode, no file and no log.
//!
//! From bottom to top: [`volume`] (devices, superblocks, chunk map, mirrors), [`tree`] (cursor,
//! overlay, bulk merge) and [`Forest`] (all open trees), [`refs`] (delayed references), [`space`]
//! (block groups, reservations, allocation), [`txn`] (batches, join, commit), and [`Store`], which
//! holds one of each. Why: docs/design/.

#![deny(missing_docs)]

pub mod commit;
pub mod error;
mod forest;
pub mod jobs;
pub mod overlay;
pub mod rank;
pub mod refs;
pub mod space;
mod store;
#[cfg(test)]
mod testing;
pub mod tree;
pub mod txn;
pub mod usage;
pub mod volume;

pub use error::{Error, Result};
pub use forest::Forest;
pub use store::{CommitHooks, Store};
