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
        // Freed after the lock is released.
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_kept_up_to_the_bound_until_they_are_freed() {
        let spares = Spares::new(2);
        for _ in 0..3 {
            spares.give(vec![7; 10]);
        }
        assert_eq!(spares.take(), Some(Vec::new()));
        spares.give(Vec::with_capacity(10));
        assert_eq!(spares.kept.lock().len(), 2);
        spares.free();
        assert_eq!(spares.take(), None);
    }
}
