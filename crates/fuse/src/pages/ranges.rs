//! A set of ranges of bytes, of bounded size: where there would be too many, neighbours become one,
//! with what lies between.

use std::ops::Range;

use crate::sys::page_bytes;

/// As many at most: 1 KiB for each file.
const RANGES_MAX: usize = 64;

/// The kernel's pages that a range touches.
pub fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let page_bytes = page_bytes() as u64;
    let start = range.start - range.start % page_bytes;
    start..range.end.checked_next_multiple_of(page_bytes).unwrap_or(u64::MAX)
}

/// Sorted, apart from each other, none empty.
#[derive(Debug, Default)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds the pages of a range.
    pub fn insert(&mut self, range: Range<u64>) {
        let mut range = whole_pages(&range);
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|other| other.end < range.start);
        let behind = self.0.partition_point(|other| other.start <= range.end);
        if first < behind {
            range.start = range.start.min(self.0[first].start);
            range.end = range.end.max(self.0[behind - 1].end);
        }
        self.0.splice(first..behind, [range]);
        self.limit();
    }

    /// Takes away a range of whole pages, or less where there would be too many ranges.
    pub fn remove(&mut self, range: &Range<u64>) {
        let first = self.0.partition_point(|other| other.end <= range.start);
        let behind = self.0.partition_point(|other| other.start < range.end);
        if first >= behind {
            return;
        }
        let head = self.0[first].start..range.start;
        let tail = range.end..self.0[behind - 1].end;
        let rest = [head, tail].into_iter().filter(|part| !part.is_empty());
        self.0.splice(first..behind, rest);
        self.limit();
    }

    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let first = self.0.partition_point(|other| other.end <= range.start);
        self.0.get(first).is_some_and(|other| other.start < range.end)
    }

    fn limit(&mut self) {
        if self.0.len() <= RANGES_MAX {
            return;
        }
        let gap = |at: &usize| self.0[at + 1].start - self.0[*at].end;
        let at = (0..self.0.len() - 1).min_by_key(gap).expect("more than one");
        let next = self.0.remove(at + 1);
        self.0[at].end = next.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(range: Range<u64>) -> Range<u64> {
        let page = page_bytes() as u64;
        range.start * page..range.end * page
    }

    #[test]
    fn ranges_are_rounded_merged_and_split() {
        let mut set = Ranges::default();
        set.insert(100..200);
        assert_eq!(set.0, [pages(0..1)]);
        set.insert(pages(2..3));
        set.insert(pages(1..2));
        assert_eq!(set.0, [pages(0..3)]);
        set.insert(pages(5..9));
        set.remove(&pages(2..6));
        assert_eq!(set.0, [pages(0..2), pages(6..9)]);
        set.remove(&pages(7..8));
        assert_eq!(set.0, [pages(0..2), pages(6..7), pages(8..9)]);
        assert!(set.overlaps(&pages(1..3)) && !set.overlaps(&pages(2..6)));
        assert!(!set.overlaps(&pages(7..8)) && set.overlaps(&pages(7..u64::MAX / page_bytes() as u64)));
        set.remove(&(0..u64::MAX));
        assert!(set.0.is_empty());
        set.insert(7..7);
        assert_eq!(set.0, [pages(0..1)], "an empty read may fill the page it is in");
        set.insert(u64::MAX - 1..u64::MAX);
        assert!(set.overlaps(&(u64::MAX - 1..u64::MAX)));
    }

    #[test]
    fn a_full_set_keeps_all_that_was_inserted() {
        let mut set = Ranges::default();
        for n in 0..10 * RANGES_MAX as u64 {
            set.insert(pages(3 * n..3 * n + 1));
            assert!(set.0.len() <= RANGES_MAX);
        }
        assert!((0..10 * RANGES_MAX as u64).all(|n| set.overlaps(&pages(3 * n..3 * n + 1))));
        for n in 0..10 * RANGES_MAX as u64 {
            set.remove(&pages(3 * n..3 * n + 1));
            assert!(set.0.len() <= RANGES_MAX);
            assert!((n + 1..10 * RANGES_MAX as u64).all(|n| set.overlaps(&pages(3 * n..3 * n + 1))));
        }
    }
}
