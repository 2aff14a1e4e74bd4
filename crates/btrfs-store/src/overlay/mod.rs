//! The pending items of one tree: what operations wrote and no commit has merged yet.
//!
//! Ordered like the tree; an entry is a put or a delete and hides what lies below it. Plain memory,
//! no locks: its owner ([`crate::tree::Tree`]) has a lock for each stripe ([`stripes`]).

mod bytes;
pub mod stripes;
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
/// Two directories that get names at the same time change five chunks again and again, and others
/// in between.
const RECENT: usize = 8;
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
    /// In the order in which they were made. They stay as long as the overlay.
    chunks: Vec<Chunk>,
    /// Numbers of chunks by [`Chunk::low`].
    order: BTreeMap<Key, u32>,
    /// Numbers of chunks that were changed last, the newest first. Operations come back to the same
    /// ones: new inodes to the last of the tree, names to the last index of their directory.
    recent: [u32; RECENT],
    len: usize,
}

/// The edits from `low` to below `high`. Chunks cover all keys, without gaps between them.
#[derive(Debug)]
struct Chunk {
    low: Key,
    /// [`Key::MAX`] is in the last chunk nevertheless.
    high: Key,
    /// In order, and never none.
    entries: Vec<Entry>,
}

impl Chunk {
    fn covers(&self, key: &Key) -> bool {
        self.low <= *key && *key < self.high
    }
    fn place(&self, key: &Key) -> Result<usize, usize> {
        self.entries.binary_search_by(|(at, _)| at.cmp(key))
    }
}

impl Overlay {
    /// The number of the chunk that a key belongs to. `None`: there are no chunks.
    fn chunk_of(&mut self, key: &Key) -> Option<usize> {
        let seen = self.recent.iter().position(|n| {
            let chunk = self.chunks.get(*n as usize);
            chunk.is_some_and(|chunk| chunk.covers(key))
        });
        let (at, number) = match seen {
            Some(at) => (at, self.recent[at]),
            None => (RECENT - 1, self.find(key)?),
        };
        self.recent.copy_within(..at, 1);
        self.recent[0] = number;
        Some(number as usize)
    }

    fn find(&self, key: &Key) -> Option<u32> {
        self.order.range(..=*key).next_back().map(|(_, number)| *number)
    }

    /// Adds a chunk that takes over from another what is not below `low`.
    fn cut(&mut self, number: usize, low: Key, entries: Vec<Entry>) {
        let high = std::mem::replace(&mut self.chunks[number].high, low);
        self.add(Chunk { low, high, entries });
    }

    fn add(&mut self, chunk: Chunk) {
        let number = u32::try_from(self.chunks.len()).expect("memory has no room for so many");
        self.order.insert(chunk.low, number);
        self.chunks.push(chunk);
    }

    /// Notes an edit; the newest wins. Returns the one before.
    pub fn insert(&mut self, key: Key, edit: Edit) -> Option<Edit> {
        let Some(number) = self.chunk_of(&key) else {
            self.len = 1;
            self.add(Chunk {
                low: Key::MIN,
                high: Key::MAX,
                entries: vec![(key, edit)],
            });
            return None;
        };
        let chunk = &mut self.chunks[number];
        let at = match chunk.place(&key) {
            Ok(at) => return Some(std::mem::replace(&mut chunk.entries[at].1, edit)),
            Err(at) => at,
        };
        self.len += 1;
        if chunk.entries.len() < CHUNK_ENTRIES_MAX {
            chunk.entries.insert(at, (key, edit));
            return None;
        }
        if let Some((last, _)) = chunk.entries.last()
            && *last < key
        {
            // What is appended leaves full chunks behind. The next one takes all that falls between
            // the two: keys that descend share it.
            let low = last.next().unwrap_or(key);
            let mut next = Vec::with_capacity(CHUNK_ENTRIES_MAX);
            next.push((key, edit));
            self.cut(number, low, next);
            return None;
        }
        let mut upper = chunk.entries.split_off(CHUNK_ENTRIES_MAX / 2);
        match at.checked_sub(chunk.entries.len()) {
            Some(at) => upper.insert(at, (key, edit)),
            None => chunk.entries.insert(at, (key, edit)),
        }
        self.cut(number, upper[0].0, upper);
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
        let Some(mut number) = self.chunk_of(key) else {
            return;
        };
        let chunk = &mut self.chunks[number];
        let end = chunk.place(key).map_or_else(|at| at, |at| at + 1);
        let above = chunk.entries.split_off(end);
        let room = CHUNK_ENTRIES_MAX.saturating_sub(end).min(len);
        chunk.entries.extend(run.by_ref().take(room));
        if let Some((first, _)) = above.first() {
            self.cut(number, *first, above);
        }
        let mut left = len - room;
        while left > 0 {
            let len = left.min(CHUNK_ENTRIES_MAX);
            let full: Vec<Entry> = run.by_ref().take(len).collect();
            self.cut(number, full[0].0, full);
            number = self.chunks.len() - 1;
            left -= len;
        }
        self.len += len;
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Edit> {
        let chunk = &self.chunks[self.find(key)? as usize];
        chunk.place(key).ok().map(|at| &chunk.entries[at].1)
    }

    /// Chunks of this range, from the one that the first key belongs to.
    fn chunks_of(&self, from: Bound<Key>, to: Bound<Key>) -> impl DoubleEndedIterator<Item = &Chunk> {
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => self.find(&key),
            Bound::Unbounded => None,
        };
        let first = first.map_or(Bound::Unbounded, |number| {
            Bound::Included(self.chunks[number as usize].low)
        });
        self.order
            .range((first, to))
            .map(|(_, number)| &self.chunks[*number as usize])
    }

    /// The last edit at or below a key.
    pub(crate) fn floor(&self, key: &Key) -> Option<(&Key, &Edit)> {
        let mut below = self.chunks_of(Bound::Unbounded, Bound::Included(*key));
        loop {
            let entries = &below.next_back()?.entries;
            // A chunk may begin above its bound: then it is the last of the one before.
            if let Some(at) = entries.partition_point(|(at, _)| at <= key).checked_sub(1) {
                let (at, edit) = &entries[at];
                return Some((at, edit));
            }
        }
    }

    pub(crate) fn range(&self, range: impl RangeBounds<Key>) -> impl DoubleEndedIterator<Item = (&Key, &Edit)> {
        let (from, to) = (range.start_bound().cloned(), range.end_bound().cloned());
        self.chunks_of(from, to).flat_map(move |Chunk { entries, .. }| {
            let start = match from {
                Bound::Included(key) => entries.partition_point(|(at, _)| *at < key),
                Bound::Excluded(key) => entries.partition_point(|(at, _)| *at <= key),
                Bound::Unbounded => 0,
            };
            let end = match to {
                Bound::Included(key) => entries.partition_point(|(at, _)| *at <= key),
                Bound::Excluded(key) => entries.partition_point(|(at, _)| *at < key),
                Bound::Unbounded => entries.len(),
            };
            entries[start..end.max(start)].iter().map(|(key, edit)| (key, edit))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Edit)> {
        let chunks = self.order.values().map(|number| &self.chunks[*number as usize]);
        chunks.flat_map(|chunk| chunk.entries.iter().map(|(key, edit)| (key, edit)))
    }

    pub(crate) fn has_chunks(&self) -> bool {
        !self.chunks.is_empty()
    }
    /// See [`stripes::FrozenEdits::free_some`].
    pub(crate) fn free_some(&mut self, chunks: usize) {
        self.chunks.truncate(self.chunks.len().saturating_sub(chunks));
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
