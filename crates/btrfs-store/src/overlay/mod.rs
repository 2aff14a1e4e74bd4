//! The pending items of one tree: what operations wrote and no commit has merged yet.
//!
//! Ordered like the tree; an entry is a put or a delete and hides what lies below it. Plain memory,
//! no locks: its owner ([`crate::tree::Tree`]) holds one.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::Arc;

use btrfs_format::Key;

/// The bytes of an item in memory, shared and immutable.
pub type ItemBytes = Arc<[u8]>;

/// What is pending for one key: new bytes, or `None` for "deleted".
pub type Edit = Option<ItemBytes>;

/// Bytes of memory that an entry takes beside its item's bytes: key, map slot and allocation,
/// rounded up.
pub(crate) const ENTRY_OVERHEAD_BYTES: usize = 96;

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

/// The pending edits in front of one tree, in key order.
#[derive(Debug, Default)]
pub struct Overlay {
    map: BTreeMap<Key, Edit>,
}

impl Overlay {
    /// Notes an edit; the newest wins. Returns the one before.
    pub fn insert(&mut self, key: Key, edit: Edit) -> Option<Edit> {
        self.map.insert(key, edit)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Edit> {
        self.map.get(key)
    }

    pub(crate) fn range(&self, range: impl RangeBounds<Key>) -> impl DoubleEndedIterator<Item = (&Key, &Edit)> {
        self.map.range(range)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Edit)> {
        self.map.iter()
    }

    /// Number of edits.
    pub fn len(&self) -> usize {
        self.map.len()
    }
    /// Whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}
