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

#[derive(Debug, Default)]
pub(super) struct Sets {
    all: Vec<Ranges>,
    numbers: HashMap<Ranges, SetId>,
    /// Ranges of sets that are being united.
    parts: Vec<(u32, u32)>,
}

impl Sets {
    /// The set of one subvolume.
    pub(super) fn one(&mut self, position: u32) -> SetId {
        self.number(&[(position, position + 1)])
    }

    /// The union of some sets, best in order, at least one. What is between is not kept.
    pub(super) fn union(&mut self, sets: impl Iterator<Item = SetId>) -> SetId {
        let mut parts = std::mem::take(&mut self.parts);
        parts.clear();
        let mut last = None;
        let mut is_one = true;
        for set in sets.filter(|set| last.replace(*set) != Some(*set)) {
            is_one = parts.is_empty();
            parts.extend_from_slice(&self.all[set.index()]);
        }
        let union = match last {
            Some(set) if is_one => set,
            _ => {
                // Ascending runs, as a rule.
                parts.sort();
                parts.dedup_by(|later, first| {
                    let joins = first.1 >= later.0;
                    if joins {
                        first.1 = first.1.max(later.1);
                    }
                    joins
                });
                self.number(&parts)
            }
        };
        self.parts = parts;
        union
    }

    fn number(&mut self, ranges: &[(u32, u32)]) -> SetId {
        if let Some(known) = self.numbers.get(ranges) {
            return *known;
        }
        let ranges = Ranges::from(ranges);
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

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
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
            let picked: Vec<usize> = (0..1 + dice.below(4)).map(|_| pick(&mut dice)).collect();
            let expected: BTreeSet<usize> = picked.iter().flat_map(|n| known[*n].1.iter().copied()).collect();
            let union = sets.union(picked.iter().map(|n| known[*n].0));
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
