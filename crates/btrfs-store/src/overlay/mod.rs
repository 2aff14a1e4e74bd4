//! The pending items of one tree: what operations wrote and no commit has merged yet.
//!
//! Ordered like the tree; an entry is a put or a delete and hides what lies below it. Plain memory,
//! no locks: its owner ([`crate::tree::Tree`]) holds one.

mod bytes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use btrfs_format::Key;

pub use bytes::{ItemBytes, Packed, Packer};

/// What is pending for one key: new bytes, or `None` for "deleted".
pub type Edit = Option<ItemBytes>;

/// Bytes of memory that an entry takes beside its item's bytes: key, map slot and allocation,
/// rounded up.
pub(crate) const ENTRY_OVERHEAD_BYTES: usize = 96;
/// Entries of a chunk. An insertion moves half of them on average: 1.5 KiB.
const CHUNK_ENTRIES_MAX: usize = 64;
/// So many entries for one gap are worth a search for its end.
const RUN_ENTRIES_MIN: usize = 4;

/// By how much an overlay grew. An edit of a key that is pending already adds no item, and may
/// take bytes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// Keys that were not pending before.
    pub items: i64,
    /// Bytes of items.
    pub bytes: i64,
}

impl std::ops::AddAssign for Growth {
    fn add_assign(&mut self, other: Self) {
        self.items += other.items;
        self.bytes += other.bytes;
    }
}

type Entry = (Key, Edit);

/// The pending edits in front of one tree, in key order.
///
/// A B+-tree of two levels: chunks of up to [`CHUNK_ENTRIES_MAX`] entries in order, and a map that
/// finds them. A sorted run that falls into a gap becomes chunks of its own.
#[derive(Debug, Default)]
pub struct Overlay {
    /// By a key that is not above the first of the chunk, and above the last of the chunk before.
    /// The first chunk has [`Key::MIN`]. No chunk is empty.
    chunks: BTreeMap<Key, Vec<Entry>>,
    len: usize,
}

fn place_in(chunk: &[Entry], key: &Key) -> Result<usize, usize> {
    chunk.binary_search_by(|(at, _)| at.cmp(key))
}

impl Overlay {
    /// Notes an edit; the newest wins. Returns the one before.
    pub fn insert(&mut self, key: Key, edit: Edit) -> Option<Edit> {
        let Some((_, chunk)) = self.chunks.range_mut(..=key).next_back() else {
            assert!(self.len == 0, "the first chunk takes every key below the second");
            self.chunks.insert(Key::MIN, vec![(key, edit)]);
            self.len = 1;
            return None;
        };
        let at = match place_in(chunk, &key) {
            Ok(at) => return Some(std::mem::replace(&mut chunk[at].1, edit)),
            Err(at) => at,
        };
        self.len += 1;
        if chunk.len() < CHUNK_ENTRIES_MAX {
            chunk.insert(at, (key, edit));
            return None;
        }
        if let Some((last, _)) = chunk.last()
            && *last < key
        {
            // What is appended leaves full chunks behind. The next one takes all that falls between
            // the two: keys that descend share it.
            let bound = last.next().unwrap_or(key);
            let mut next = Vec::with_capacity(CHUNK_ENTRIES_MAX);
            next.push((key, edit));
            self.chunks.insert(bound, next);
            return None;
        }
        let mut upper = chunk.split_off(CHUNK_ENTRIES_MAX / 2);
        match at.checked_sub(chunk.len()) {
            Some(at) => upper.insert(at, (key, edit)),
            None => chunk.insert(at, (key, edit)),
        }
        self.chunks.insert(upper[0].0, upper);
        None
    }

    /// Notes edits in the order of their keys, each key once. Tells `noted` each key, and what was
    /// there before.
    pub(crate) fn insert_run(&mut self, run: Vec<Entry>, mut noted: impl FnMut(&Key, Option<Edit>)) {
        assert!(run.is_sorted_by(|(a, _), (b, _)| a < b), "a run is in order");
        let mut run = run.into_iter();
        while let Some((key, edit)) = run.next() {
            noted(&key, self.insert(key, edit));
            if run.len() < RUN_ENTRIES_MIN {
                continue;
            }
            let upper = self.next_key(&key);
            let in_gap = |(key, _): &Entry| upper.is_none_or(|upper| *key < upper);
            let len = run.as_slice().partition_point(in_gap);
            if len >= RUN_ENTRIES_MIN {
                run.as_slice()[..len].iter().for_each(|(key, _)| noted(key, None));
                self.fill_gap(&key, len, &mut run);
            }
        }
    }

    /// The first key above this one.
    fn next_key(&self, key: &Key) -> Option<Key> {
        self.range((Bound::Excluded(*key), Bound::Unbounded))
            .next()
            .map(|(key, _)| *key)
    }

    /// Puts the next `len` of `run` between `key`, which is there, and the next one.
    fn fill_gap(&mut self, key: &Key, len: usize, run: &mut std::vec::IntoIter<Entry>) {
        let Some((_, chunk)) = self.chunks.range_mut(..=*key).next_back() else {
            return;
        };
        let end = place_in(chunk, key).map_or_else(|at| at, |at| at + 1);
        let above = chunk.split_off(end);
        let room = CHUNK_ENTRIES_MAX.saturating_sub(chunk.len()).min(len);
        chunk.extend(run.by_ref().take(room));
        if let Some((first, _)) = above.first() {
            self.chunks.insert(*first, above);
        }
        let mut left = len - room;
        while left > 0 {
            let len = left.min(CHUNK_ENTRIES_MAX);
            let full: Vec<Entry> = run.by_ref().take(len).collect();
            self.chunks.insert(full[0].0, full);
            left -= len;
        }
        self.len += len;
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Edit> {
        let (_, chunk) = self.chunks.range(..=*key).next_back()?;
        place_in(chunk, key).ok().map(|at| &chunk[at].1)
    }

    /// The last edit at or below a key.
    pub(crate) fn floor(&self, key: &Key) -> Option<(&Key, &Edit)> {
        let mut below = self.chunks.range(..=*key);
        loop {
            let (_, chunk) = below.next_back()?;
            // A chunk may begin above its bound: then it is the last of the one before.
            if let Some(at) = chunk.partition_point(|(at, _)| at <= key).checked_sub(1) {
                let (at, edit) = &chunk[at];
                return Some((at, edit));
            }
        }
    }

    pub(crate) fn range(&self, range: impl RangeBounds<Key>) -> impl DoubleEndedIterator<Item = (&Key, &Edit)> {
        let (from, to) = (range.start_bound().cloned(), range.end_bound().cloned());
        let first = match from {
            // The first of it may lie in the chunk before.
            Bound::Included(key) | Bound::Excluded(key) => self.chunks.range(..=key).next_back(),
            Bound::Unbounded => None,
        };
        let first = first.map_or(Bound::Unbounded, |(bound, _)| Bound::Included(*bound));
        self.chunks.range((first, to)).flat_map(move |(_, chunk)| {
            let start = match from {
                Bound::Included(key) => chunk.partition_point(|(at, _)| *at < key),
                Bound::Excluded(key) => chunk.partition_point(|(at, _)| *at <= key),
                Bound::Unbounded => 0,
            };
            let end = match to {
                Bound::Included(key) => chunk.partition_point(|(at, _)| *at <= key),
                Bound::Excluded(key) => chunk.partition_point(|(at, _)| *at < key),
                Bound::Unbounded => chunk.len(),
            };
            chunk[start..end.max(start)].iter().map(|(key, edit)| (key, edit))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Edit)> {
        self.chunks.values().flatten().map(|(key, edit)| (key, edit))
    }

    /// Number of edits.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
