//! The operation lock of an inode.

use std::sync::atomic::{AtomicU32, Ordering};

use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::{Key, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held for reading by reads, for writing by every change of names, size or extents.
///
/// It counts its exclusive holds. A caller that reads without the lock can tell afterwards, under
/// the lock, whether what it read may have changed:
///
/// ```text
///   times_written -> read -> lock -> times_written: equal, so nothing has changed
/// ```
#[derive(Debug)]
pub(crate) struct OpLock {
    lock: RwLock<()>,
    /// Exclusive holds that have ended. Counted at the end of a hold, before the lock is released:
    /// a caller that read during the hold finds a higher number once it has the lock.
    times_written: AtomicU32,
}

/// An exclusive hold of an [`OpLock`].
#[must_use = "the lock is released when this is dropped"]
pub(crate) struct OpWriteGuard<'l> {
    times_written: &'l AtomicU32,
    _guard: RwLockWriteGuard<'l, ()>,
}

impl Drop for OpWriteGuard<'_> {
    fn drop(&mut self) {
        // The lock is held, so there is no other writer.
        let times = self.times_written.load(Ordering::Relaxed);
        self.times_written.store(times.wrapping_add(1), Ordering::Release);
    }
}

impl Default for OpLock {
    fn default() -> Self {
        Self {
            lock: RwLock::new(LockRank::InodeOp, ()),
            times_written: AtomicU32::new(0),
        }
    }
}

impl OpLock {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read()
    }
    pub(crate) fn read_ordered(&self, key: Key) -> RwLockReadGuard<'_, ()> {
        self.lock.read_ordered(key)
    }
    #[cfg(test)]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.lock.try_read()
    }
    pub(crate) fn write(&self) -> OpWriteGuard<'_> {
        self.held(self.lock.write())
    }
    pub(crate) fn write_ordered(&self, key: Key) -> OpWriteGuard<'_> {
        self.held(self.lock.write_ordered(key))
    }

    fn held<'l>(&'l self, _guard: RwLockWriteGuard<'l, ()>) -> OpWriteGuard<'l> {
        OpWriteGuard {
            times_written: &self.times_written,
            _guard,
        }
    }

    /// Number of exclusive holds that have ended.
    pub(crate) fn times_written(&self) -> u32 {
        self.times_written.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_holds_count_when_they_end() {
        let lock = OpLock::default();
        drop(lock.read());
        assert_eq!(lock.times_written(), 0);
        let held = lock.write();
        assert_eq!(lock.times_written(), 0);
        drop(held);
        drop(lock.write_ordered((1, 1)));
        assert_eq!(lock.times_written(), 2);
    }
}
