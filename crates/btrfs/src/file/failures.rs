//! Write-backs that failed, until somebody who asks is told: of a file for fsync, of all files for syncfs. And who must
//! hear at once, because he remembers what files hold.

use std::ops::Range;
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::inode::Inode;

/// Called with an inode and the ranges of bytes that were written and are lost.
pub type OnLost = Box<dyn Fn(&Inode, Vec<Range<u64>>) + Send + Sync>;

/// Who remembers the contents of files.
#[derive(Default)]
pub(super) struct Listener(OnceLock<OnLost>);

impl Listener {
    pub fn set(&self, on_lost: OnLost) {
        let _ = self.0.set(on_lost);
    }

    /// What was lost must read as before it was written already, or it might be remembered once more.
    pub fn tell(&self, inode: &Inode, lost: Vec<Range<u64>>) {
        if let Some(on_lost) = self.0.get() {
            on_lost(inode, lost);
        }
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener")
    }
}

/// Failed write-backs. Whoever waits takes [`Failures::count`] before and hands it to [`Failures::take`] after: of several
/// who waited each one is told.
#[derive(Debug, Default)]
pub(super) struct Failures {
    last: Option<Error>,
    count: u64,
    /// Of so many somebody was told.
    told: u64,
}

impl Failures {
    /// Notes that data could not be written.
    pub fn note(&mut self, error: Error) {
        self.last = Some(error);
        self.count += 1;
    }

    /// How many there were until now.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The error of a write-back that nobody was told of, or that failed after the first `seen` did.
    pub fn take(&mut self, seen: u64) -> Result<()> {
        if self.count == seen && self.count == self.told {
            return Ok(());
        }
        self.told = self.count;
        self.last.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_who_waited_hears_of_a_failure_and_nobody_later() {
        let mut failures = Failures::default();
        let (first, second) = (failures.count(), failures.count());
        failures.note(Error::NoSpace);
        assert!(failures.take(first).is_err());
        assert!(failures.take(second).is_err(), "it waited, too");
        assert!(failures.take(failures.count()).is_ok(), "somebody was told");
        failures.note(Error::NoSpace);
        assert!(
            failures.take(failures.count()).is_err(),
            "failed in the background: nobody was told"
        );
    }
}
