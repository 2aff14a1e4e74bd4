//! A volume with contents, made in one go: docs/design/image-build.md.
//!
//! Every inode gets its number first. Then the data is laid down, extent behind extent, read,
//! compressed and checksummed on all processors (`data`). Then the trees are counted, given their
//! addresses, and written in key order with full leaves (`layout`, `bulk`). The superblocks come
//! last.

mod bulk;
mod data;
mod extents;
mod files;
mod job;
mod layout;
mod number;
mod options;
mod plan;
mod run;
mod space_trees;

pub use options::{BuildOptions, BuildSubvolume, Cloner, FilePolicy, Packer, Policy, Size};
pub use run::{BuildReport, build, dry_run};
