//! Sets of byte ranges in the logical (or a device's) address space: merged, ordered, with their
//! total.
//!
//! Pure. [`RangeSet`] keeps ranges; [`Holes`] adds an index by length and a cursor for allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What an edit of a [`RangeSet`] did to one of its ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Gone { start: u64, end: u64 },
    New { start: u64, end: u64 },
}

/// Ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet {
    /// Start to end.
    map: BTreeMap<u64, u64>,
    total_bytes: u64,
}

impl RangeSet {
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.map.iter().map(|(&start, &end)| start..end)
    }

    /// The parts of `within` that the set holds.
    pub(crate) fn overlaps(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self
            .map
            .range(..=within.start)
            .next_back()
            .map_or(within.start, |(&start, _)| start);
        self.map
            .range(first..within.end.max(first))
            .map(move |(&start, &end)| start.max(within.start)..end.min(within.end))
            .filter(|part| part.start < part.end)
    }

    /// True where the whole range is in the set.
    pub(crate) fn contains(&self, range: &Range<u64>) -> bool {
        self.map
            .range(..=range.start)
            .next_back()
            .is_some_and(|(_, &end)| end >= range.end)
    }

    /// True where any byte of the range is in the set.
    pub(crate) fn intersects(&self, range: &Range<u64>) -> bool {
        self.map
            .range(..range.end)
            .next_back()
            .is_some_and(|(_, &end)| end > range.start)
    }

    /// Adds a range; gives the bytes that were not there before.
    pub(crate) fn insert(&mut self, range: Range<u64>, mut changed: impl FnMut(Change)) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let Range { mut start, mut end } = range;
        let before = self.total_bytes;
        // From the right: every range that starts at or before our end and ends at or after our
        // start melts in.
        while let Some((&s, &e)) = self.map.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.map.remove(&s);
            self.total_bytes -= e - s;
            changed(Change::Gone { start: s, end: e });
            start = start.min(s);
            end = end.max(e);
        }
        self.map.insert(start, end);
        self.total_bytes += end - start;
        changed(Change::New { start, end });
        self.total_bytes - before
    }

    /// Takes a range out; gives the bytes that were there.
    pub(crate) fn remove(&mut self, range: Range<u64>, mut changed: impl FnMut(Change)) -> u64 {
        let before = self.total_bytes;
        if range.is_empty() {
            return 0;
        }
        while let Some((&s, &e)) = self.map.range(..range.end).next_back() {
            if e <= range.start {
                break;
            }
            self.map.remove(&s);
            self.total_bytes -= e - s;
            changed(Change::Gone { start: s, end: e });
            if e > range.end {
                self.map.insert(range.end, e);
                self.total_bytes += e - range.end;
                changed(Change::New {
                    start: range.end,
                    end: e,
                });
            }
            if s < range.start {
                self.map.insert(s, range.start);
                self.total_bytes += range.start - s;
                changed(Change::New {
                    start: s,
                    end: range.start,
                });
            }
        }
        before - self.total_bytes
    }
}

/// Free space to allocate from: biggest hole first, then on and on through that hole.
///
/// The hole in use (`current`) is out of the index, so that the usual allocation is two additions.
#[derive(Clone, Debug, Default)]
pub(super) struct Holes {
    set: RangeSet,
    /// (length, start) of every range in `set`.
    by_len: BTreeSet<(u64, u64)>,
    current: Range<u64>,
}

impl Holes {
    pub(crate) fn new(free: RangeSet) -> Self {
        let by_len = free.iter().map(|r| (r.end - r.start, r.start)).collect();
        Self {
            set: free,
            by_len,
            current: 0..0,
        }
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.set.total_bytes() + (self.current.end - self.current.start)
    }

    /// Length of the biggest hole.
    pub(crate) fn biggest_bytes(&self) -> u64 {
        let indexed = self.by_len.last().map_or(0, |&(len, _)| len);
        indexed.max(self.current.end - self.current.start)
    }

    /// Lengths of the biggest holes, so many of them at most.
    pub(crate) fn biggest(&self, count: usize) -> impl Iterator<Item = u64> {
        let current = self.current.end - self.current.start;
        let indexed = self.by_len.iter().rev().take(count).map(|&(len, _)| len);
        indexed.chain((current > 0).then_some(current))
    }

    /// True where any byte of the range is free.
    pub(crate) fn intersects(&self, range: &Range<u64>) -> bool {
        (self.current.start < range.end && range.start < self.current.end) || self.set.intersects(range)
    }

    /// Up to `want_bytes` from the hole in use or, where that is too small, from the biggest one.
    pub(crate) fn alloc(&mut self, want_bytes: u64) -> Option<Range<u64>> {
        let have = self.current.end - self.current.start;
        if have < want_bytes
            && let Some(&(len, start)) = self.by_len.last()
            && len > have
        {
            self.switch_to(start..start + len);
        }
        let len = want_bytes.min(self.current.end - self.current.start);
        if len == 0 {
            return None;
        }
        let start = self.current.start;
        self.current.start += len;
        Some(start..start + len)
    }

    /// Exactly `len_bytes` at a multiple of `align_bytes`.
    pub(crate) fn alloc_aligned(&mut self, len_bytes: u64, align_bytes: u64) -> Option<Range<u64>> {
        let fits = |hole: &Range<u64>| {
            let start = hole.start.checked_next_multiple_of(align_bytes)?;
            (start.checked_add(len_bytes)? <= hole.end).then_some(start)
        };
        let start = match fits(&self.current) {
            Some(start) => start,
            None => {
                let hole = self
                    .by_len
                    .iter()
                    .rev()
                    .take_while(|&&(len, _)| len >= len_bytes)
                    .map(|&(len, start)| start..start + len)
                    .find(|hole| fits(hole).is_some())?;
                self.switch_to(hole.clone());
                fits(&hole)?
            }
        };
        let skipped = self.current.start..start;
        self.current.start = start + len_bytes;
        self.add(skipped);
        Some(start..start + len_bytes)
    }

    /// Gives a range back.
    pub(crate) fn free(&mut self, range: Range<u64>) {
        if range.end == self.current.start && !self.current.is_empty() {
            self.current.start = range.start;
        } else if range.start == self.current.end && !self.current.is_empty() {
            self.current.end = range.end;
        } else {
            self.add(range);
        }
    }

    /// Takes exactly this range out; gives the bytes of it that were free.
    pub(crate) fn take(&mut self, range: Range<u64>) -> u64 {
        let current = std::mem::replace(&mut self.current, 0..0);
        self.add(current);
        let by_len = &mut self.by_len;
        self.set.remove(range, |change| index(by_len, change))
    }

    /// The first hole, or part of one, of at least `bytes_min` in this range.
    pub(crate) fn next_hole(&self, within: Range<u64>, bytes_min: u64) -> Option<Range<u64>> {
        let current = self.current.start.max(within.start)..self.current.end.min(within.end);
        let is_long = |part: &Range<u64>| part.start < part.end && part.end - part.start >= bytes_min;
        let in_set = self.set.overlaps(within).find(is_long);
        let current = Some(current).filter(is_long);
        in_set.into_iter().chain(current).min_by_key(|part| part.start)
    }

    /// Takes what is free of a range out; gives the parts, in order.
    pub(crate) fn take_parts(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        if self.current.start < range.end && range.start < self.current.end {
            let current = std::mem::replace(&mut self.current, 0..0);
            self.add(current);
        }
        let parts: Vec<_> = self.set.overlaps(range).collect();
        let by_len = &mut self.by_len;
        for part in &parts {
            self.set.remove(part.clone(), |change| index(by_len, change));
        }
        parts
    }

    /// All holes, in order.
    #[cfg(test)]
    pub(crate) fn to_set(&self) -> RangeSet {
        let mut set = self.set.clone();
        set.insert(self.current.clone(), |_| {});
        set
    }

    fn switch_to(&mut self, hole: Range<u64>) {
        let old = std::mem::replace(&mut self.current, hole.clone());
        let by_len = &mut self.by_len;
        self.set.remove(hole, |change| index(by_len, change));
        self.add(old);
        // The old hole may have been all that kept two others apart, ours among them: both stay as
        // they are.
    }

    fn add(&mut self, range: Range<u64>) {
        let by_len = &mut self.by_len;
        self.set.insert(range, |change| index(by_len, change));
    }
}

fn index(by_len: &mut BTreeSet<(u64, u64)>, change: Change) {
    match change {
        Change::Gone { start, end } => by_len.remove(&(end - start, start)),
        Change::New { start, end } => by_len.insert((end - start, start)),
    };
}

#[cfg(test)]
// A list of one range is meant as such.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn set(ranges: &[Range<u64>]) -> RangeSet {
        let mut set = RangeSet::default();
        for r in ranges {
            set.insert(r.clone(), |_| {});
        }
        set
    }
    fn list(set: &RangeSet) -> Vec<Range<u64>> {
        set.iter().collect()
    }

    #[test]
    fn insert_melts_neighbours_and_overlaps() {
        let mut s = set(&[10..20, 30..40]);
        assert_eq!(s.insert(20..30, |_| {}), 10);
        assert_eq!(list(&s), [10..40]);
        assert_eq!(s.insert(5..15, |_| {}), 5);
        assert_eq!(list(&s), [5..40]);
        assert_eq!(s.total_bytes(), 35);
        assert_eq!(s.insert(50..60, |_| {}), 10);
        assert_eq!(list(&s), [5..40, 50..60]);
    }

    #[test]
    fn remove_splits_and_counts() {
        let mut s = set(&[10..40, 50..60]);
        assert_eq!(s.remove(20..55, |_| {}), 25);
        assert_eq!(list(&s), [10..20, 55..60]);
        assert_eq!(s.remove(0..100, |_| {}), 15);
        assert!(s.is_empty());
    }

    #[test]
    fn overlaps_are_clipped() {
        let s = set(&[10..20, 30..40, 50..60]);
        let parts = |r| s.overlaps(r).collect::<Vec<_>>();
        assert_eq!(parts(15..55), [15..20, 30..40, 50..55]);
        assert_eq!(parts(20..30), []);
        assert_eq!(parts(0..11), [10..11]);
        assert!(s.contains(&(30..40)) && !s.contains(&(30..41)) && s.intersects(&(19..25)) && !s.intersects(&(20..30)));
    }

    #[test]
    fn random_edits_agree_with_a_bitmap() {
        let mut x = 0x1234_5678_9abc_def1_u64;
        let mut next = |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x % n
        };
        let mut s = RangeSet::default();
        let mut index_of = BTreeSet::new();
        let mut bits = [false; 256];
        for _ in 0..5000 {
            let start = next(256);
            let end = start + next(257 - start);
            let put = next(2) == 0;
            let changed = bits[start as usize..end as usize].iter().filter(|b| **b != put).count();
            bits[start as usize..end as usize].fill(put);
            let got = if put {
                s.insert(start..end, |c| index(&mut index_of, c))
            } else {
                s.remove(start..end, |c| index(&mut index_of, c))
            };
            assert_eq!(got, changed as u64);
            let runs: Vec<_> = s.iter().collect();
            assert!(runs.windows(2).all(|w| w[0].end < w[1].start));
            for (i, bit) in bits.iter().enumerate() {
                assert_eq!(runs.iter().any(|r| r.contains(&(i as u64))), *bit);
            }
            assert_eq!(index_of.len(), runs.len());
        }
    }

    #[test]
    fn allocation_runs_through_the_biggest_hole_and_then_takes_what_is_left() {
        let mut h = Holes::new(set(&[0..10, 100..200, 300..350]));
        assert_eq!(h.alloc(30), Some(100..130));
        assert_eq!(h.alloc(30), Some(130..160));
        assert_eq!(h.alloc(50), Some(300..350));
        assert_eq!(h.alloc(100), Some(160..200));
        assert_eq!(h.alloc(100), Some(0..10));
        assert_eq!(h.alloc(1), None);
        h.free(160..200);
        h.free(150..160);
        assert_eq!(h.biggest_bytes(), 50);
        assert_eq!(h.take(170..180), 10);
        assert_eq!(list(&h.to_set()), [150..170, 180..200]);
        assert_eq!(h.total_bytes(), 40);
    }

    #[test]
    fn aligned_allocation_leaves_the_slack_free() {
        let mut h = Holes::new(set(&[4..100]));
        assert_eq!(h.alloc_aligned(16, 16), Some(16..32));
        assert_eq!(h.alloc_aligned(16, 16), Some(32..48));
        assert_eq!(h.total_bytes(), 96 - 32);
        assert_eq!(list(&h.to_set()), [4..16, 48..100]);
        assert_eq!(h.alloc_aligned(64, 64), None);
    }
}
