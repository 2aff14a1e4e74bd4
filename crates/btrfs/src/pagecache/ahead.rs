//! Where the last reader of a file is: see `file::ahead`.

use std::ops::Range;

/// With the one that is asked for as many extents are decompressed at a time.
pub(crate) const EXTENTS_MAX: usize = 8;
/// Where the last reader of a file is, and how many extents are decompressed for it at a time.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// It read up to here.
    next: u64,
    /// Extents up to here were decompressed.
    pub ready: u64,
    /// The next time so many, with the one that is asked for.
    extents: usize,
    /// But never more.
    extents_max: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            next: 0,
            ready: 0,
            extents: 1,
            extents_max: EXTENTS_MAX,
        }
    }
}

impl Ahead {
    /// A range is read: does it go on where the last one ended? A reader that begins anew begins
    /// with one extent.
    pub(crate) fn goes_on(&mut self, range: Range<u64>) -> bool {
        if range.start != self.next {
            *self = Self::default();
        }
        range.start == std::mem::replace(&mut self.next, range.end)
    }

    /// What begins at `start` is not decompressed: how many extents shall be now? Twice as many
    /// each time; where some were dropped before they were read, since too many are read by turns
    /// for all to be kept, half as many, and never more again.
    pub(crate) fn grow(&mut self, start: u64) -> usize {
        if start < self.ready {
            self.extents_max = (self.extents_max / 2).max(1);
            self.extents = 1;
            self.ready = 0;
        }
        let now = self.extents;
        self.extents = (2 * now).min(self.extents_max);
        now
    }
}
