//! The edits of one tree in several overlays, its *stripes*: threads that change different objects
//! mostly change different stripes, and seldom wait for each other.
//!
//! All edits of an object are in one stripe. What goes over several objects reads several stripes,
//! and puts them in order again ([`InOrder`]).

use std::ops::Range;

use btrfs_format::{Key, ObjectId};
use smallvec::SmallVec;

use super::{Edit, Overlay};

/// Stripes of a tree that many threads change at a time. Each has a lock, which a walk over several
/// objects takes.
pub(crate) const STRIPES: usize = 8;

/// The stripe of an object, of a tree with so many stripes. Numbers are hashed: with the number
/// modulo eight, directories of seven files each, made one after the other, would all be in one
/// stripe.
pub(crate) fn stripe_of(id: ObjectId, count: usize) -> usize {
    let hash = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(hash) * count as u128) >> 64) as usize
}

/// The stripes that keys of this range may be in.
pub(crate) fn stripes_of(from: &Key, to: &Key, count: usize) -> Range<usize> {
    if from.objectid == to.objectid {
        let one = stripe_of(from.objectid, count);
        one..one + 1
    } else {
        0..count
    }
}

/// An edit and its key.
pub(crate) type EntryRef<'s> = (&'s Key, &'s Edit);

/// Entries of several stripes in the order of their keys, or in the reverse one.
///
/// All entries of an object are in one stripe, so comparing the numbers of objects is enough. Most
/// objects have several entries: after each entry its stripe is compared with the lowest of the
/// others alone, and all stripes are compared only where that one comes first.
pub(crate) struct InOrder<'s, I> {
    /// What each stripe has next, and the rest of it. Those at their end are not here.
    parts: SmallVec<[(EntryRef<'s>, I); 1]>,
    /// The sort key of each part's next entry, see [`sort_key`].
    sort_keys: SmallVec<[u64; STRIPES]>,
    is_reverse: bool,
    /// The part whose entry is next.
    at: usize,
    /// The lowest sort key of the others.
    other: u64,
}

impl<'s, I: Iterator<Item = EntryRef<'s>>> InOrder<'s, I> {
    fn new(stripes: impl Iterator<Item = I>, is_reverse: bool) -> Self {
        let (mut parts, mut sort_keys) = (SmallVec::new(), SmallVec::new());
        for mut stripe in stripes {
            if let Some(first) = stripe.next() {
                sort_keys.push(sort_key(first, is_reverse));
                parts.push((first, stripe));
            }
        }
        let mut all = Self {
            parts,
            sort_keys,
            is_reverse,
            at: 0,
            other: u64::MAX,
        };
        all.choose();
        all
    }

    /// Looks for the part whose entry is next.
    fn choose(&mut self) {
        let (mut at, mut lowest, mut other) = (0, u64::MAX, u64::MAX);
        for (number, &key) in self.sort_keys.iter().enumerate() {
            if key < lowest {
                (at, lowest, other) = (number, key, lowest);
            } else {
                other = other.min(key);
            }
        }
        (self.at, self.other) = (at, other);
    }
}

/// The object's number, or its complement where the order is reversed: the lowest comes first.
fn sort_key((key, _): EntryRef<'_>, is_reverse: bool) -> u64 {
    if is_reverse { !key.objectid.0 } else { key.objectid.0 }
}

impl<'s, I: Iterator<Item = EntryRef<'s>>> Iterator for InOrder<'s, I> {
    type Item = EntryRef<'s>;

    fn next(&mut self) -> Option<Self::Item> {
        let (next, rest) = self.parts.get_mut(self.at)?;
        let taken = *next;
        match rest.next() {
            Some(entry) => {
                *next = entry;
                let key = sort_key(entry, self.is_reverse);
                self.sort_keys[self.at] = key;
                if key > self.other {
                    self.choose();
                }
            }
            None => {
                self.parts.swap_remove(self.at);
                self.sort_keys.swap_remove(self.at);
                self.choose();
            }
        }
        Some(taken)
    }
}

/// Entries of several stripes from `from` to `to`, both included, in order.
pub(crate) fn range<'s>(
    stripes: impl Iterator<Item = &'s Overlay>,
    from: Key,
    to: Key,
) -> InOrder<'s, impl Iterator<Item = EntryRef<'s>>> {
    InOrder::new(stripes.map(move |stripe| stripe.range(from..=to)), false)
}

/// As [`range`], from the end.
pub(crate) fn range_back<'s>(
    stripes: impl Iterator<Item = &'s Overlay>,
    from: Key,
    to: Key,
) -> InOrder<'s, impl Iterator<Item = EntryRef<'s>>> {
    InOrder::new(stripes.map(move |stripe| stripe.range(from..=to).rev()), true)
}

/// The last edit of several stripes at or below a key.
pub(crate) fn floor<'s>(stripes: impl Iterator<Item = &'s Overlay>, key: &Key) -> Option<EntryRef<'s>> {
    stripes
        .filter_map(|stripe| stripe.floor(key))
        .max_by_key(|(at, _)| **at)
}

/// The edits of one tree that a commit has taken: nothing changes them.
#[derive(Debug)]
pub struct FrozenEdits {
    stripes: Box<[Overlay]>,
}

impl FrozenEdits {
    /// From the stripes of a tree, in their order.
    pub fn new(stripes: Box<[Overlay]>) -> Self {
        Self { stripes }
    }

    fn among<'s>(&'s self, from: &Key, to: &Key) -> std::slice::Iter<'s, Overlay> {
        self.stripes[stripes_of(from, to, self.stripes.len())].iter()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Edit> {
        self.stripes[stripe_of(key.objectid, self.stripes.len())].get(key)
    }

    /// The last edit from `from` to `to`, both included.
    pub(crate) fn floor(&self, from: &Key, to: &Key) -> Option<EntryRef<'_>> {
        floor(self.among(from, to), to).filter(|(at, _)| *at >= from)
    }

    /// The edits from `from` to `to`, both included, in order.
    pub(crate) fn range(&self, from: Key, to: Key) -> InOrder<'_, impl Iterator<Item = EntryRef<'_>>> {
        range(self.among(&from, &to), from, to)
    }

    /// As [`FrozenEdits::range`], from the end.
    pub(crate) fn range_back(&self, from: Key, to: Key) -> InOrder<'_, impl Iterator<Item = EntryRef<'_>>> {
        range_back(self.among(&from, &to), from, to)
    }

    /// All edits, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> {
        InOrder::new(self.stripes.iter().map(Overlay::iter), false)
    }

    /// Frees so many chunks of edits, which must not be looked at afterwards. False where none is
    /// left.
    pub fn free_some(&mut self, chunks: usize) -> bool {
        let Some(stripe) = self.stripes.iter_mut().find(|stripe| stripe.has_chunks()) else {
            return false;
        };
        stripe.free_some(chunks);
        true
    }

    /// Number of edits.
    pub fn len(&self) -> usize {
        self.stripes.iter().map(Overlay::len).sum()
    }
    /// Whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.stripes.iter().all(Overlay::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use btrfs_format::KeyType;

    use super::*;
    use crate::overlay::ItemBytes;
    use crate::testing::Dice;

    /// Objects have four keys.
    fn key(n: u64) -> Key {
        Key::new(ObjectId(n >> 2), KeyType((n & 3) as u8), n)
    }

    #[test]
    fn stripes_together_are_one_map() {
        for seed in 1..40_u64 {
            let mut dice = Dice::new(seed);
            let count = [1, 2, STRIPES][seed as usize % 3];
            let keys = [12, 300, 5000][seed as usize / 3 % 3];
            let (mut map, mut stripes) = (BTreeMap::new(), Vec::from_iter((0..count).map(|_| Overlay::default())));
            for _ in 0..dice.below(2 * keys) {
                let key = key(dice.below(keys));
                let edit: Edit = (dice.below(3) > 0).then(|| ItemBytes::from([dice.next() as u8; 3]));
                map.insert(key, edit.clone());
                stripes[stripe_of(key.objectid, count)].insert(key, edit);
            }
            let frozen = FrozenEdits::new(stripes.into());
            assert_eq!((frozen.len(), frozen.is_empty()), (map.len(), map.is_empty()));
            assert!(frozen.iter().eq(map.iter()));
            for _ in 0..200 {
                let (a, b) = (dice.below(keys), dice.below(keys));
                let (from, to) = (key(a.min(b)), key(a.max(b)));
                assert_eq!(frozen.get(&from), map.get(&from));
                assert!(frozen.range(from, to).eq(map.range(from..=to)), "{from} {to}");
                assert!(
                    frozen.range_back(from, to).eq(map.range(from..=to).rev()),
                    "{from} {to}"
                );
                assert_eq!(frozen.floor(&from, &to), map.range(from..=to).next_back());
            }
            let mut frozen = frozen;
            let steps = std::iter::repeat_with(|| frozen.free_some(2)).take_while(|is_some| *is_some);
            assert!(steps.count() <= keys as usize);
            assert!(frozen.stripes.iter().all(|stripe| !stripe.has_chunks()));
        }
    }
}
