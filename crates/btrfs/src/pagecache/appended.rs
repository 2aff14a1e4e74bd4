//! Which bytes of a file the item's size must not cover yet.
//!
//! A byte that was behind the end when it was written must be on disk before the size says that it
//! is there: a crash would show zeros that were never written. A byte that is written *over* holds
//! nothing back: what is on disk at its place is what the file held before, and what a sync may
//! have promised. So it is not enough to ask what is dirty.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of bytes, as disjoint ranges: start and end.
#[derive(Debug, Default)]
pub(crate) struct Appended(BTreeMap<u64, u64>);

impl Appended {
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Files mostly grow at their end.
        if let Some(mut last) = self.0.last_entry()
            && *last.get() == range.start
        {
            *last.get_mut() = range.end;
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }

    /// Takes out what of the set lies in the range.
    pub(crate) fn take(&mut self, range: &Range<u64>) -> Appended {
        let mut taken = Appended::default();
        if range.is_empty() {
            return taken;
        }
        while let Some((&from, &to)) = self.0.range(..range.end).next_back()
            && to > range.start
        {
            self.0.remove(&from);
            if to > range.end {
                self.0.insert(range.end, to);
            }
            if from < range.start {
                self.0.insert(from, range.start);
            }
            taken.0.insert(from.max(range.start), to.min(range.end));
        }
        taken
    }

    pub(crate) fn extend(&mut self, other: Appended) {
        other.0.into_iter().for_each(|(from, to)| self.insert(from..to));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The first byte of the set at or after `from`.
    pub(crate) fn first(&self, from: u64) -> Option<u64> {
        let before = self.0.range(..=from).next_back().filter(|(_, end)| **end > from);
        let found = before.or_else(|| self.0.range(from..).next())?;
        Some(from.max(*found.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Dice;

    #[test]
    fn random_operations_match_a_model() {
        const BYTES: u64 = 40;
        for seed in 0..200 {
            let mut dice = Dice::new(seed);
            let (mut set, mut model) = (Appended::default(), vec![false; BYTES as usize]);
            for _ in 0..60 {
                let from = dice.below(BYTES);
                let range = from..from + dice.below(BYTES - from + 1);
                let of_model = &mut model[range.start as usize..range.end as usize];
                if dice.below(2) == 0 {
                    set.insert(range.clone());
                    of_model.fill(true);
                } else {
                    let taken = set.take(&range);
                    for (at, was) in (range.start..).zip(of_model.iter()) {
                        assert_eq!(taken.first(at) == Some(at), *was, "seed {seed}, {at} of {range:?}");
                    }
                    of_model.fill(false);
                }
                for at in 0..BYTES {
                    let expected = (at..BYTES).find(|at| model[*at as usize]);
                    assert_eq!(set.first(at), expected, "seed {seed}, from {at}");
                }
                assert!(set.0.iter().all(|(from, to)| from < to));
                assert!(
                    set.0
                        .iter()
                        .zip(set.0.keys().skip(1))
                        .all(|((_, end), next)| end < next)
                );
            }
        }
    }
}
