//! A set of ranges of bytes.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges, neighbours joined: start to end.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The parts of a range that are not in the set, in order.
    pub(crate) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        let mut at = range.start;
        let first = self.0.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (start, end) in self.0.range(first..range.end) {
            if *start > at {
                out.push(at..*start);
            }
            at = at.max(*end);
        }
        if at < range.end {
            out.push(at..range.end);
        }
        out
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((s, e)) = self.0.range(..=end).next_back().map(|(s, e)| (*s, *e)) {
            if e < start {
                break;
            }
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.0.insert(start, end);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_what_is_missing_lies_between() {
        let mut set = Ranges::default();
        assert_eq!(set.missing(5..9), vec![5..9]);
        set.insert(10..20);
        set.insert(30..40);
        assert_eq!(set.missing(0..50), vec![0..10, 20..30, 40..50]);
        assert_eq!(set.missing(12..18), vec![]);
        assert_eq!(set.missing(15..35), vec![20..30]);
        set.insert(20..30);
        assert_eq!(set.iter().collect::<Vec<_>>(), vec![10..40]);
        set.insert(0..5);
        set.insert(4..12);
        assert_eq!(set.iter().collect::<Vec<_>>(), vec![0..40]);
    }
}
