//! Work that waits for a commit.

use std::sync::atomic::AtomicBool;

use btrfs_format::TreeId;
use parking_lot::Mutex;

/// What the next commits do beside merging.
#[derive(Debug, Default)]
pub struct Jobs {
    /// Dead subvolumes that wait for a commit to drop them.
    pub drops: Mutex<Vec<TreeId>>,
    /// Quota groups were looked after: they are off, or marked as inconsistent.
    pub quota_settled: AtomicBool,
}

impl Jobs {
    /// No job needs a commit of its own.
    pub fn is_idle(&self) -> bool {
        self.drops.lock().is_empty()
    }
}
