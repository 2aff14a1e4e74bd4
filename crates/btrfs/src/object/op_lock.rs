//! The operation lock of an inode.

use std::sync::atomic::{AtomicU32, Ordering};

use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::{Key, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held for reading by reads, for writing by whatever changes names, size or extents.
///
/// It counts how often it was held for writing. Who looks at something before taking the lock, and
/// finds that it was not held for writing since, need not look again:
///
/// ```text
///   times_written -> look -> write -> times_written: the same? then as it was looked at
/// ```
#[derive(Debug)]
pub(crate) struct OpLock {
    lock: RwLock<()>,
    /// Set before the lock is let go, so that whoever finds the old number has seen nothing newer, or
    /// finds a higher one once it has the lock.
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
        // Nobody else writes it: the lock is held.
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

    /// How often it was held for writing, and let go.
    pub(crate) fn times_written(&self) -> u32 {
        self.times_written.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_for_writing_count_once_they_end() {
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
