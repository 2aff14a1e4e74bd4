//! How often each reference of one extent is added or dropped.

use std::collections::HashMap;

use super::name::RefName;

/// With more, a reference is looked for by a map.
const LISTED_MAX: usize = 16;

/// Changes of an extent's references, each not 0. Most extents have one, and a few very many: a
/// block that a whole file is made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deltas {
    list: Vec<(RefName, i64)>,
    /// Where each is in `list`. It has all, or is not there.
    #[expect(clippy::box_collection, reason = "few extents have one, and each has its place")]
    places: Option<Box<HashMap<RefName, usize>>>,
}

impl Deltas {
    pub(crate) fn of_one(name: RefName) -> Self {
        Self {
            list: vec![(name, 1)],
            places: None,
        }
    }

    pub(crate) fn as_slice(&self) -> &[(RefName, i64)] {
        &self.list
    }

    pub(crate) fn add(&mut self, name: RefName, delta: i64) {
        let at = match &self.places {
            Some(places) => places.get(&name).copied(),
            None => self.list.iter().position(|(known, _)| *known == name),
        };
        let Some(at) = at else { return self.push(name, delta) };
        let count = &mut self.list[at].1;
        *count += delta;
        if *count == 0 {
            self.remove(at);
        }
    }

    fn push(&mut self, name: RefName, delta: i64) {
        if self.list.is_empty() {
            self.list.reserve_exact(1);
        }
        self.list.push((name, delta));
        if let Some(places) = &mut self.places {
            places.insert(name, self.list.len() - 1);
        } else if self.list.len() > LISTED_MAX {
            let places = self.list.iter().enumerate().map(|(at, (name, _))| (*name, at));
            self.places = Some(Box::new(places.collect()));
        }
    }

    fn remove(&mut self, at: usize) {
        let (name, _) = self.list.swap_remove(at);
        if let Some(places) = &mut self.places {
            places.remove(&name);
            if let Some((moved, _)) = self.list.get(at) {
                places.insert(*moved, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use btrfs_format::{ObjectId, TreeId};

    use super::*;
    use crate::testing::Dice;

    #[test]
    fn few_and_many_are_counted_alike() {
        let mut dice = Dice::new(1);
        for names in [1, 3, 20, 400] {
            let (mut deltas, mut expected) = (Deltas::default(), BTreeMap::new());
            for step in 0..4000 {
                let name = RefName::ExtentData {
                    root: TreeId::FS,
                    ino: ObjectId(257),
                    offset: dice.below(names) << 12,
                };
                let delta = [-1, 1, 2][dice.below(3) as usize];
                deltas.add(name, delta);
                *expected.entry(name).or_insert(0) += delta;
                expected.retain(|_, count| *count != 0);
                let found: BTreeMap<_, _> = deltas.as_slice().iter().copied().collect();
                assert_eq!(
                    (found.len(), &found),
                    (deltas.as_slice().len(), &expected),
                    "step {step}"
                );
            }
        }
    }
}
