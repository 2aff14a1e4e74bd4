//! Locks with a rank: a thread takes them in the order of their ranks, or panics in a debug build.
//!
//! Two threads that take two locks in different orders wait for each other for ever, but only when
//! they meet. A rank makes the mistake visible in every run: each lock is made with a [`Rank`], and
//! a thread that holds locks may wait only for a lock of a higher rank. Lower ranks are outer.
//!
//! ```text
//!   held by this thread      next           outcome
//!   commit(1)                names(3)       fine
//!   names(3)                 commit(1)      panic: `commit` (1) is taken inside `names` (3)
//!   inode(2)                 inode(2)       panic, also where it is the same lock
//!   inode(2) with key 5:7    inode(2), 5:9  fine: `lock_ordered` with rising keys
//!   names(3)                 try commit(1)  fine: an attempt does not wait
//! ```
//!
//! An engine declares its ranks in one enum, with a line of reason for each, and makes locks with
//! them alone:
//!
//! ```
//! use cowshed_runtime::lock::{Mutex, Rank};
//!
//! #[derive(Clone, Copy, Debug)]
//! #[repr(u16)]
//! enum LockRank {
//!     /// Held for a whole commit, which takes all others.
//!     Commit,
//!     /// Taken by operations and by the commit, for moments.
//!     Names,
//! }
//!
//! impl From<LockRank> for Rank {
//!     fn from(rank: LockRank) -> Rank {
//!         let name = match rank {
//!             LockRank::Commit => "commit",
//!             LockRank::Names => "names",
//!         };
//!         Rank::new(rank as u16, name)
//!     }
//! }
//!
//! let (commit, names) = (Mutex::new(LockRank::Commit, ()), Mutex::new(LockRank::Names, vec![1]));
//! let _commit = commit.lock();
//! names.lock().push(2);
//! ```
//!
//! What is checked:
//! - Every acquisition that may wait: its rank against all ranks that the thread holds, also those
//!   from attempts. Guards may be dropped in any order.
//! - A wait on a [`Condvar`], and [`MutexGuard::unlocked`]: both take the lock again, so the thread
//!   may hold no lock that is inside it.
//!
//! - [`may_wait_for`]: a wait that is not for a lock, but for a thread that takes locks.
//!
//! What is not checked: locks that other threads hold, and waits that are not for a lock (a join, a
//! channel, an [`Event`](crate::Event)) and do not say so.
//!
//! Cost: in a debug build a thread-local list of the held ranks, which is a few entries long. In a
//! release build (without `debug_assertions`) a lock is the one of `parking_lot`, without a rank;
//! the sizes are asserted at compile time. The methods are inlined across crates, as those are.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Orders locks of one rank that a thread holds at the same time: (tree, number), say.
pub type Key = (u64, u64);

/// The place of a lock in the order of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    level: u16,
    name: &'static str,
}

impl Rank {
    /// A rank of this level, lower levels being outer, and the name that a panic says.
    pub const fn new(level: u16, name: &'static str) -> Self {
        Self { level, name }
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({})", self.name, self.level)
    }
}

#[cfg(debug_assertions)]
mod check {
    use std::cell::{Cell, RefCell};

    use super::{Key, Rank};

    /// A lock that the thread holds.
    struct Entry {
        id: u64,
        rank: Rank,
        key: Option<Key>,
    }

    thread_local! {
        static HELD: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
        static NEXT_ID: Cell<u64> = const { Cell::new(0) };
    }

    /// The rank of a lock.
    #[derive(Clone, Copy)]
    pub(super) struct Ranked(Rank);

    /// Counts a lock as held by this thread until it is dropped.
    pub(super) struct Held {
        id: u64,
        ranked: Ranked,
        key: Option<Key>,
    }

    impl Ranked {
        pub const fn new(rank: Rank) -> Self {
            Self(rank)
        }

        /// Panics unless the thread may wait for the lock.
        pub fn before_wait(self, key: Option<Key>) {
            let inner = find(|held| !self.may_follow(held, key));
            if let Some((inner, inner_key)) = inner {
                match (inner.level == self.0.level, key, inner_key) {
                    (true, Some((a, b)), Some((x, y))) => panic!(
                        "lock order: {} with key {a}:{b} is taken inside {inner} with key {x}:{y}",
                        self.0
                    ),
                    _ => panic!("lock order: {} is taken inside {inner}", self.0),
                }
            }
        }

        fn may_follow(self, held: &Entry, key: Option<Key>) -> bool {
            match (key, held.key) {
                (Some(key), Some(held_key)) if self.0.level == held.rank.level => held_key < key,
                _ => held.rank.level < self.0.level,
            }
        }

        /// The lock was taken.
        pub fn taken(self, key: Option<Key>) -> Held {
            let id = NEXT_ID.get();
            NEXT_ID.set(id + 1);
            HELD.with_borrow_mut(|held| {
                held.push(Entry { id, rank: self.0, key });
            });
            Held { id, ranked: self, key }
        }
    }

    impl Held {
        /// Panics where the thread holds locks inside this one, which it is about to take again.
        pub fn before_retake(&self) {
            let inner = find(|held| held.id != self.id && !self.ranked.may_follow(held, self.key));
            if let Some((inner, _)) = inner {
                panic!(
                    "lock order: {} is released and taken again inside {inner}",
                    self.ranked.0
                );
            }
        }
    }

    /// The first held lock that is so.
    fn find(is_so: impl Fn(&Entry) -> bool) -> Option<(Rank, Option<Key>)> {
        HELD.with_borrow(|held| {
            let found = held.iter().find(|held| is_so(held));
            found.map(|held| (held.rank, held.key))
        })
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // Without the list, at the end of the thread, there is nothing left to check.
            let _ = HELD.try_with(|held| held.borrow_mut().retain(|held| held.id != self.id));
        }
    }
}

#[cfg(not(debug_assertions))]
mod check {
    use super::{Key, Rank};

    #[derive(Clone, Copy)]
    pub(super) struct Ranked;

    pub(super) struct Held;

    impl Ranked {
        #[inline]
        pub const fn new(_: Rank) -> Self {
            Self
        }

        #[inline]
        pub fn before_wait(self, _: Option<Key>) {}

        #[inline]
        pub fn taken(self, _: Option<Key>) -> Held {
            Held
        }
    }

    impl Held {
        #[inline]
        pub fn before_retake(&self) {}
    }

    const _: () = assert!(
        size_of::<super::Mutex<u64>>() == size_of::<parking_lot::Mutex<u64>>()
            && size_of::<super::RwLock<u64>>() == size_of::<parking_lot::RwLock<u64>>()
            && size_of::<super::Condvar>() == size_of::<parking_lot::Condvar>()
            && size_of::<super::MutexGuard<'_, u64>>() == size_of::<parking_lot::MutexGuard<'_, u64>>()
            && size_of::<super::RwLockReadGuard<'_, u64>>() == size_of::<parking_lot::RwLockReadGuard<'_, u64>>()
            && size_of::<super::RwLockWriteGuard<'_, u64>>() == size_of::<parking_lot::RwLockWriteGuard<'_, u64>>()
    );
}

use check::{Held, Ranked};

/// Says that the thread may wait for work that takes a lock of this rank, here or in another
/// thread: checked also where the wait turns out not to be needed.
///
/// # Panics
/// In a debug build, where the thread holds a lock of the same or a higher rank.
#[inline]
pub fn may_wait_for(rank: impl Into<Rank>) {
    Ranked::new(rank.into()).before_wait(None);
}

/// A mutex with a rank.
pub struct Mutex<T: ?Sized> {
    ranked: Ranked,
    lock: parking_lot::Mutex<T>,
}

/// A held [`Mutex`].
#[must_use = "the lock is released when this is dropped"]
pub struct MutexGuard<'l, T: ?Sized> {
    // Released before it counts as such: fields are dropped in this order.
    guard: parking_lot::MutexGuard<'l, T>,
    held: Held,
}

impl<T> Mutex<T> {
    /// A lock of this rank.
    #[inline]
    pub fn new(rank: impl Into<Rank>, value: T) -> Self {
        Self::const_new(rank.into(), value)
    }

    /// As [`Mutex::new`], for a `static`.
    #[inline]
    pub const fn const_new(rank: Rank, value: T) -> Self {
        Self {
            ranked: Ranked::new(rank),
            lock: parking_lot::Mutex::new(value),
        }
    }

    /// The value, without the lock.
    #[inline]
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock.
    ///
    /// # Panics
    /// In a debug build, where the thread holds a lock of the same or a higher rank.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock_keyed(None)
    }

    /// Takes the lock, also inside locks of the same rank that were taken with lower keys.
    ///
    /// # Panics
    /// In a debug build, where the thread holds a lock of a higher rank, or one of the same rank
    /// that was taken without a key or with no lower key.
    #[inline]
    pub fn lock_ordered(&self, key: Key) -> MutexGuard<'_, T> {
        self.lock_keyed(Some(key))
    }

    #[inline]
    fn lock_keyed(&self, key: Option<Key>) -> MutexGuard<'_, T> {
        self.ranked.before_wait(key);
        let guard = self.lock.lock();
        let held = self.ranked.taken(key);
        MutexGuard { guard, held }
    }

    /// Takes the lock where it is free, whatever the thread holds.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        let held = self.ranked.taken(None);
        Some(MutexGuard { guard, held })
    }

    /// The value, through the only reference to the lock.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Runs `work` without the lock, and takes it again.
    ///
    /// # Panics
    /// In a debug build, where the thread holds locks inside this one. The lock counts as held
    /// meanwhile: `work` may take inner locks only.
    #[inline]
    pub fn unlocked<R>(this: &mut Self, work: impl FnOnce() -> R) -> R {
        this.held.before_retake();
        parking_lot::MutexGuard::unlocked(&mut this.guard, work)
    }

    /// Releases the lock to the thread that has waited longest, if one waits: a loop that takes the
    /// lock again at once does not keep the others out.
    #[inline]
    pub fn unlock_fair(this: Self) {
        // It counts as held until it is released.
        let Self { guard, held: _held } = this;
        parking_lot::MutexGuard::unlock_fair(guard);
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// A condition variable for a [`Mutex`]. For a wait with a deadline see [`Event`](crate::Event).
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// A condition variable without waiters.
    #[inline]
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Releases the lock, waits for a notification, and takes the lock again.
    ///
    /// # Panics
    /// In a debug build, where the thread holds locks inside this one.
    #[inline]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.held.before_retake();
        self.0.wait(&mut guard.guard);
    }

    /// Waits as long as `condition` returns true.
    ///
    /// # Panics
    /// As [`Condvar::wait`].
    #[inline]
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, condition: impl FnMut(&mut T) -> bool) {
        guard.held.before_retake();
        self.0.wait_while(&mut guard.guard, condition);
    }

    /// Ends one wait.
    #[inline]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Ends all waits.
    #[inline]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A reader-writer lock with a rank. Readers are checked as writers are: a reader that comes while
/// a writer waits has to wait, too.
pub struct RwLock<T: ?Sized> {
    ranked: Ranked,
    lock: parking_lot::RwLock<T>,
}

/// A shared hold of a [`RwLock`].
#[must_use = "the lock is released when this is dropped"]
pub struct RwLockReadGuard<'l, T: ?Sized> {
    guard: parking_lot::RwLockReadGuard<'l, T>,
    _held: Held,
}

/// An exclusive hold of a [`RwLock`].
#[must_use = "the lock is released when this is dropped"]
pub struct RwLockWriteGuard<'l, T: ?Sized> {
    guard: parking_lot::RwLockWriteGuard<'l, T>,
    _held: Held,
}

impl<T> RwLock<T> {
    /// A lock of this rank.
    #[inline]
    pub fn new(rank: impl Into<Rank>, value: T) -> Self {
        Self {
            ranked: Ranked::new(rank.into()),
            lock: parking_lot::RwLock::new(value),
        }
    }

    /// The value, without the lock.
    #[inline]
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Takes a share of the lock.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.read_keyed(None)
    }

    /// Takes a share of the lock, also inside locks of the same rank with lower keys.
    ///
    /// # Panics
    /// As [`Mutex::lock_ordered`].
    #[inline]
    pub fn read_ordered(&self, key: Key) -> RwLockReadGuard<'_, T> {
        self.read_keyed(Some(key))
    }

    #[inline]
    fn read_keyed(&self, key: Option<Key>) -> RwLockReadGuard<'_, T> {
        self.ranked.before_wait(key);
        let guard = self.lock.read();
        let _held = self.ranked.taken(key);
        RwLockReadGuard { guard, _held }
    }

    /// Takes the lock exclusively.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.write_keyed(None)
    }

    /// Takes the lock exclusively, also inside locks of the same rank with lower keys.
    ///
    /// # Panics
    /// As [`Mutex::lock_ordered`].
    #[inline]
    pub fn write_ordered(&self, key: Key) -> RwLockWriteGuard<'_, T> {
        self.write_keyed(Some(key))
    }

    #[inline]
    fn write_keyed(&self, key: Option<Key>) -> RwLockWriteGuard<'_, T> {
        self.ranked.before_wait(key);
        let guard = self.lock.write();
        let _held = self.ranked.taken(key);
        RwLockWriteGuard { guard, _held }
    }

    /// Takes a share of the lock where that needs no wait, whatever the thread holds.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let guard = self.lock.try_read()?;
        let _held = self.ranked.taken(None);
        Some(RwLockReadGuard { guard, _held })
    }

    /// Takes the lock exclusively where it is free, whatever the thread holds.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let guard = self.lock.try_write()?;
        let _held = self.ranked.taken(None);
        Some(RwLockWriteGuard { guard, _held })
    }

    /// The value, through the only reference to the lock.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

// The order is checked in debug builds only.
#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const OUTER: Rank = Rank::new(1, "outer");
    const MIDDLE: Rank = Rank::new(2, "middle");
    const INNER: Rank = Rank::new(3, "inner");

    /// What `work` panics with, if it does.
    fn panic_of(work: impl FnOnce()) -> Option<String> {
        let panic = catch_unwind(AssertUnwindSafe(work)).err()?;
        Some(*panic.downcast::<String>().expect("a formatted message"))
    }

    #[test]
    fn rising_ranks_do_not_panic() {
        let (outer, middle, inner) = (Mutex::new(OUTER, 1), RwLock::new(MIDDLE, 2), Mutex::new(INNER, 3));
        for _ in 0..2 {
            let (a, b, c) = (outer.lock(), middle.read(), inner.lock());
            assert_eq!(*a + *b + *c, 6);
        }
        let (_outer, mut middle) = (outer.lock(), middle.write());
        *middle += 1;
        drop(inner.lock());
        drop(inner.lock());
    }

    #[test]
    fn inversion_panics_with_both_names_and_the_locks_stay_usable() {
        let (outer, inner) = (Mutex::new(OUTER, ()), Mutex::new(INNER, ()));
        let panic = panic_of(|| {
            let _inner = inner.lock();
            drop(outer.lock());
        });
        assert_eq!(panic.unwrap(), "lock order: `outer` (1) is taken inside `inner` (3)");
        let (_outer, _inner) = (outer.lock(), inner.lock());
    }

    #[test]
    fn inversion_of_readers_and_writers_panics() {
        let (outer, inner) = (RwLock::new(OUTER, ()), RwLock::new(INNER, ()));
        let share = inner.read();
        assert!(panic_of(|| drop(outer.read())).is_some());
        assert!(panic_of(|| drop(outer.write())).is_some());
        drop(share);
        let _exclusive = inner.write();
        assert!(panic_of(|| drop(outer.read())).is_some());
    }

    #[test]
    fn same_rank_panics_even_for_another_lock_and_for_two_readers() {
        let (one, other) = (RwLock::new(MIDDLE, ()), RwLock::new(MIDDLE, ()));
        let _one = one.read();
        for lock in [&one, &other] {
            let panic = panic_of(|| drop(lock.read())).unwrap();
            assert_eq!(panic, "lock order: `middle` (2) is taken inside `middle` (2)");
        }
    }

    #[test]
    fn same_rank_with_rising_keys_does_not_panic_and_with_falling_or_equal_keys_does() {
        let locks: Vec<_> = (0..3).map(|_| Mutex::new(MIDDLE, ())).collect();
        let (_first, _second) = (locks[0].lock_ordered((1, 9)), locks[1].lock_ordered((2, 7)));
        for (key, name) in [((2, 5), "2:5"), ((2, 7), "2:7")] {
            let panic = panic_of(|| drop(locks[2].lock_ordered(key))).unwrap();
            let expected =
                format!("lock order: `middle` (2) with key {name} is taken inside `middle` (2) with key 2:7");
            assert_eq!(panic, expected);
        }
        assert!(panic_of(|| drop(locks[2].lock())).is_some(), "without a key");
        drop(locks[2].lock_ordered((2, 8)));
        let share = RwLock::new(MIDDLE, ());
        drop(share.read_ordered((3, 0)));
        drop(share.write_ordered((2, 8)));
    }

    #[test]
    fn key_does_not_excuse_a_lock_of_higher_rank() {
        let (outer, inner) = (Mutex::new(OUTER, ()), Mutex::new(INNER, ()));
        let _inner = inner.lock_ordered((0, 1));
        assert!(panic_of(|| drop(outer.lock_ordered((0, 2)))).is_some());
    }

    #[test]
    fn guards_dropped_out_of_order_leave_the_others_held() {
        let (outer, middle, inner) = (Mutex::new(OUTER, ()), Mutex::new(MIDDLE, ()), Mutex::new(INNER, ()));
        let (first, second) = (outer.lock(), middle.lock());
        drop(first);
        drop(inner.lock());
        let panic = panic_of(|| drop(outer.lock())).unwrap();
        assert_eq!(panic, "lock order: `outer` (1) is taken inside `middle` (2)");
        drop(second);
        drop(outer.lock());
    }

    #[test]
    fn attempt_inside_a_higher_rank_does_not_panic_and_counts_as_held() {
        let (outer, inner) = (Mutex::new(OUTER, ()), RwLock::new(INNER, ()));
        let held = inner.write();
        let attempt = outer.try_lock().expect("free");
        assert!(inner.try_read().is_none() && inner.try_write().is_none() && outer.try_lock().is_none());
        drop(held);
        assert!(panic_of(|| drop(outer.lock())).is_some());
        drop((attempt, inner.try_read().unwrap()));
        drop(outer.lock());
    }

    #[test]
    fn threads_do_not_see_the_ranks_of_each_other() {
        let (outer, inner) = (Mutex::new(OUTER, ()), Mutex::new(INNER, ()));
        let _inner = inner.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(outer.lock()));
        });
    }

    #[test]
    fn wait_with_an_inner_lock_held_panics_and_with_an_outer_one_does_not() {
        let (outer, middle, inner) = (Mutex::new(OUTER, ()), Mutex::new(MIDDLE, 0), Mutex::new(INNER, ()));
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let _outer = outer.lock();
                let mut value = middle.lock();
                changed.wait_while(&mut value, |value| *value == 0);
                drop(inner.lock());
            });
            *middle.lock() = 1;
            changed.notify_all();
            waiter.join().unwrap();
        });
        let mut value = middle.lock();
        let _inner = inner.lock();
        let panic = panic_of(|| changed.wait(&mut value)).unwrap();
        assert_eq!(
            panic,
            "lock order: `middle` (2) is released and taken again inside `inner` (3)"
        );
        assert!(panic_of(|| MutexGuard::unlocked(&mut value, || {})).is_some());
    }

    #[test]
    fn wait_on_a_lower_key_of_the_same_rank_panics_and_on_a_higher_one_does_not() {
        let (one, other) = (Mutex::new(MIDDLE, ()), Mutex::new(MIDDLE, ()));
        let (mut one, mut other) = (one.lock_ordered((0, 1)), other.lock_ordered((0, 2)));
        MutexGuard::unlocked(&mut other, || {});
        assert!(panic_of(|| MutexGuard::unlocked(&mut one, || {})).is_some());
    }

    #[test]
    fn unlocked_releases_the_lock_and_takes_it_again() {
        let lock = Mutex::new(MIDDLE, 0);
        let mut value = lock.lock();
        MutexGuard::unlocked(&mut value, || {
            std::thread::scope(|scope| {
                scope.spawn(|| *lock.lock() += 1);
            });
        });
        assert_eq!(*value, 1);
        assert!(lock.try_lock().is_none());
    }
    #[test]
    fn wait_for_work_that_takes_an_outer_rank_panics_and_for_an_inner_one_does_not() {
        let middle = Mutex::new(MIDDLE, ());
        may_wait_for(OUTER);
        let _middle = middle.lock();
        may_wait_for(INNER);
        for rank in [OUTER, MIDDLE] {
            assert!(panic_of(|| may_wait_for(rank)).is_some());
        }
    }

    #[test]
    fn fair_unlock_releases_the_lock_and_its_rank() {
        let (outer, inner) = (Mutex::new(OUTER, ()), Mutex::new(INNER, ()));
        MutexGuard::unlock_fair(inner.lock());
        assert!(inner.try_lock().is_some());
        drop(outer.lock());
    }

    #[test]
    fn lock_of_a_static_has_a_rank() {
        static LOCK: Mutex<()> = Mutex::const_new(INNER, ());
        let outer = Mutex::new(OUTER, ());
        let _held = LOCK.lock();
        assert!(panic_of(|| drop(outer.lock())).is_some());
    }
}
