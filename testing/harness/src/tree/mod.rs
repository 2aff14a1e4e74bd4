//! Directory trees: made from a seed, taken as a snapshot, compared.
//!
//! A snapshot holds everything that can be seen of a tree, contents as one hash per block; so a
//! volume can be seen through one driver, unmounted, seen through another, and the two views
//! compared.

mod collide;
mod diff;
mod maker;
mod snapshot;

use std::path::Path;

use anyhow::Result;

pub use collide::{colliding_names, colliding_xfs_names};
pub use diff::{Compare, Difference, Differences};
pub use maker::{Kinds, Made, MakeOptions, make};
pub use snapshot::{Content, Kind, Node, Time, Tree, snapshot};

/// Compares two live trees.
pub fn compare(left: &Path, right: &Path, options: &Compare) -> Result<Differences> {
    Ok(snapshot(left)?.diff(&snapshot(right)?, options))
}
