//! Write-backs that failed, until they are reported: of a file by fsync, of all files by syncfs.
//! Front ends that cache contents of files are told at once.

use std::collections::HashMap;

use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::{self, Condvar, Mutex};

use crate::error::{Error, Result};

/// An open file among those of its inode.
pub(crate) type Opened = u64;

/// Failed write-backs. A caller takes [`Failures::count`] before its write-back and passes it to
/// [`Failures::take`] after: each of several concurrent callers gets the error, and none before the
/// front ends know of it.
///
/// Each opening of the file gets an error once, as on all file systems of Linux: the lost data may
/// have been written through it. A later opening gets it only if no other did.
///
/// A caller of `take` holds no lock that [`Telling`] is kept under: from [`LockRank::Flush`] on.
#[derive(Debug)]
pub(crate) struct Failures {
    state: Mutex<State>,
    /// All front ends have been told.
    all_know: Condvar,
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            state: Mutex::new(LockRank::Failures, State::default()),
            all_know: Condvar::new(),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    last: Option<Error>,
    count: u64,
    /// So many were reported.
    told: u64,
    /// Of so many, front ends may not know yet.
    telling: u64,
    /// Of so many these were told, or came after them; of none all others.
    told_each: HashMap<Opened, u64>,
}

/// A failure was noted, and front ends are being told; dropped when they know.
#[derive(Debug)]
#[must_use = "dropped at once, it says that all know"]
pub(crate) struct Telling<'a>(&'a Failures);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.telling -= 1;
        if state.telling == 0 {
            self.0.all_know.notify_all();
        }
    }
}

impl Failures {
    /// Notes that data could not be written: before it is dropped, so that it is never neither
    /// dirty nor failed.
    pub(crate) fn note(&self, error: Error) -> Telling<'_> {
        let mut state = self.state.lock();
        state.last = Some(error);
        state.count += 1;
        state.telling += 1;
        Telling(self)
    }

    /// How many there were until now.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// There were none. Waits for no lock.
    pub(crate) fn are_none(&self) -> bool {
        self.state.try_lock().is_some_and(|state| state.count == 0)
    }

    /// The file is open once more.
    pub(crate) fn open(&self, opened: Opened) {
        let mut state = self.state.lock();
        let count = state.count;
        if count > 0 {
            state.told_each.insert(opened, count);
        }
    }

    /// And once less.
    pub(crate) fn close(&self, opened: Opened) {
        self.state.lock().told_each.remove(&opened);
    }

    /// The error of a write-back that was not reported, or that failed after the first `seen` did,
    /// or of which `opened` was not told.
    pub(crate) fn take(&self, seen: u64, opened: Option<Opened>) -> Result<()> {
        lock::may_wait_for(LockRank::Flush);
        let mut state = self.state.lock();
        let told_before = opened.map_or(state.count, |opened| state.told_each.get(&opened).copied().unwrap_or(0));
        if [seen, state.told, told_before] == [state.count; 3] {
            return Ok(());
        }
        state.told = state.count;
        if let Some(opened) = opened {
            let count = state.count;
            state.told_each.insert(opened, count);
        }
        let error = state.last.clone();
        self.all_know.wait_while(&mut state, |state| state.telling > 0);
        error.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::StoreError;

    #[test]
    fn all_waiting_syncs_report_a_failure_and_later_ones_do_not() {
        let failures = Failures::default();
        let (first, second) = (failures.count(), failures.count());
        drop(failures.note(Error::Store(StoreError::NoSpace)));
        assert!(failures.take(first, None).is_err());
        assert!(failures.take(second, None).is_err(), "it waited, too");
        assert!(failures.take(failures.count(), None).is_ok(), "reported before");
        drop(failures.note(Error::Store(StoreError::NoSpace)));
        assert!(
            failures.take(failures.count(), None).is_err(),
            "failed in the background: not reported yet"
        );
    }

    #[test]
    fn each_open_handle_gets_a_failure_once() {
        let failures = Failures::default();
        failures.open(1);
        failures.open(2);
        drop(failures.note(Error::Store(StoreError::NoSpace)));
        let hears = |opened| failures.take(failures.count(), Some(opened)).is_err();
        assert!(hears(1));
        failures.open(3);
        assert!(!hears(1) && !hears(3), "once, and not to later openers");
        assert!(hears(2));
        assert!(!hears(2));
        drop(failures.note(Error::Store(StoreError::NoSpace)));
        failures.open(4);
        assert!(hears(4), "not reported yet");
        assert!(hears(1) && hears(2) && hears(3));
        (1..5).for_each(|opened| failures.close(opened));
        assert!(failures.state.lock().told_each.is_empty());
    }

    #[test]
    fn no_sync_reports_a_failure_before_the_caches_were_told() {
        let failures = Failures::default();
        let seen = failures.count();
        let (one, other) = (
            failures.note(Error::Store(StoreError::NoSpace)),
            failures.note(Error::Store(StoreError::ReadOnly)),
        );
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| failures.take(seen, None));
            for telling in [one, other] {
                std::thread::sleep(Duration::from_millis(20));
                assert!(!waiting.is_finished());
                drop(telling);
            }
            assert!(waiting.join().unwrap().is_err());
        });
    }
}
