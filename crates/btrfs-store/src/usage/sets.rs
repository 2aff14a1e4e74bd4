//! Sets of subvolumes, each kept once and named by a number.
//!
//! A set is a list of ranges of positions in the list of subvolumes. Snapshots of one subvolume are
//! made one after another, so that the set of those that share a block is a range or a few.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Number of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SetId(u32);

impl SetId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Sorted, disjoint, not adjacent.
type Ranges = Arc<[(u32, u32)]>;

/// Unions that are remembered: forgotten together when there are more.
const UNIONS_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Sets {
    all: Vec<Ranges>,
    numbers: HashMap<Ranges, SetId>,
    unions: HashMap<(SetId, SetId), SetId>,
}

impl Sets {
    /// The set of one subvolume.
    pub(super) fn one(&mut self, position: u32) -> SetId {
        self.number([(position, position + 1)].into())
    }

    pub(super) fn union(&mut self, a: SetId, b: SetId) -> SetId {
        if a == b {
            return a;
        }
        let pair = (a.min(b), a.max(b));
        if let Some(known) = self.unions.get(&pair) {
            return *known;
        }
        let mut parts: Vec<_> = [a, b]
            .iter()
            .flat_map(|id| self.all[id.index()].iter().copied())
            .collect();
        parts.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(parts.len());
        for (start, end) in parts {
            match merged.last_mut() {
                Some((_, last)) if *last >= start => *last = end.max(*last),
                _ => merged.push((start, end)),
            }
        }
        let union = self.number(merged.into());
        if self.unions.len() >= UNIONS_MAX {
            self.unions.clear();
        }
        self.unions.insert(pair, union);
        union
    }

    fn number(&mut self, ranges: Ranges) -> SetId {
        if let Some(known) = self.numbers.get(&ranges) {
            return *known;
        }
        // A set takes more than eight bytes: there is no memory for more of them than this holds.
        let id = SetId(u32::try_from(self.all.len()).expect("fewer sets than 2^32"));
        self.all.push(ranges.clone());
        self.numbers.insert(ranges, id);
        id
    }

    /// Positions of a set's subvolumes.
    pub(super) fn ranges(&self, id: SetId) -> impl Iterator<Item = Range<usize>> {
        self.all[id.index()]
            .iter()
            .map(|&(start, end)| start as usize..end as usize)
    }

    /// The position of the first subvolume in a set.
    pub(super) fn first(&self, id: SetId) -> usize {
        self.ranges(id).next().map_or(0, |range| range.start)
    }

    /// All sets, in the order of [`SetId::index`].
    pub(super) fn numbers(&self) -> impl Iterator<Item = SetId> {
        (0..self.all.len() as u32).map(SetId)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::Dice;

    #[test]
    fn unions_are_those_of_sets_and_equal_sets_have_one_number() {
        let mut dice = Dice::new(1);
        let mut sets = Sets::default();
        let mut known: Vec<(SetId, BTreeSet<usize>)> =
            (0..20).map(|n| (sets.one(n), BTreeSet::from([n as usize]))).collect();
        for _ in 0..5000 {
            let pick = |dice: &mut Dice| dice.below(known.len() as u64) as usize;
            let (a, b) = (pick(&mut dice), pick(&mut dice));
            let expected: BTreeSet<usize> = &known[a].1 | &known[b].1;
            let union = sets.union(known[a].0, known[b].0);
            assert_eq!(sets.ranges(union).flatten().collect::<BTreeSet<_>>(), expected);
            for (id, set) in &known {
                assert_eq!(*id == union, *set == expected, "{set:?}, {expected:?}");
            }
            if known.len() < 200 && !known.iter().any(|(id, _)| *id == union) {
                known.push((union, expected));
            }
        }
    }
}
