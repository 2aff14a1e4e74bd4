//! Work that waits for a commit.

use std::sync::atomic::AtomicBool;

use btrfs_format::TreeId;
use cowshed_runtime::lock::Mutex;

use crate::rank::LockRank;

/// What the next commits do beside merging.
#[derive(Debug)]
pub(crate) struct Jobs {
    /// Dead subvolumes that wait for a commit to drop them.
    pub(crate) drops: Mutex<Vec<TreeId>>,
    /// Quota groups were looked after: they are off, or marked as inconsistent.
    pub(crate) quota_settled: AtomicBool,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            drops: Mutex::new(LockRank::DropQueue, Vec::new()),
            quota_settled: AtomicBool::new(false),
        }
    }
}

impl Jobs {
    /// No job needs a commit of its own.
    pub(crate) fn is_idle(&self) -> bool {
        self.drops.lock().is_empty()
    }
}
