//! Buffers kept for reuse: new memory comes from the kernel page by page, which costs as much as
//! filling it.

use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::Mutex;

/// Buffers that are not in use, as many as a stream keeps under way.
#[derive(Debug)]
pub(crate) struct Spares {
    kept: Mutex<Vec<Vec<u8>>>,
    count_max: usize,
}

impl Spares {
    pub(crate) const fn new(count_max: usize) -> Self {
        Self {
            kept: Mutex::const_new(LockRank::SpareBuffers.rank(), Vec::new()),
            count_max,
        }
    }

    /// An empty buffer, of whatever capacity.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        self.kept.lock().pop()
    }

    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut kept = self.kept.lock();
        if kept.len() < self.count_max {
            kept.push(buffer);
        }
    }

    /// Frees all that is kept.
    pub(crate) fn free(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }
}
