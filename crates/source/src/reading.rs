//! What sources are read with.

use std::path::Path;

use cowshed_runtime::{Env, Workers};

use crate::platform::Platform;
use crate::tree::InodeId;

/// What sources are read with.
pub struct Reading<'r> {
    /// Which image of a container image is taken.
    pub platform: &'r Platform,
    /// The directory for contents of compressed archives, in files without a name.
    pub spool_dir: &'r Path,
    /// Has the threads that compute digests.
    pub env: &'r dyn Env,
    /// Threads that list directories.
    pub workers: &'r Workers,
    /// `Some`: gets a copy of the tree's directories after each layer of a container image, which
    /// no name refers to.
    pub layers: Option<Vec<InodeId>>,
}
