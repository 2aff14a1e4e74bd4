//! A block group's free space as the trees have it, and the edits of the free-space tree that keep
//! it so. Pure.
//!
//! It follows the extent tree: an extent item that comes takes its range away, one that goes gives
//! it back. Nothing of what is merely allocated or pinned in memory shows here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use btrfs_format::items::{FREE_SPACE_BITMAP_BYTES, FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
use btrfs_format::{Key, KeyType, ObjectId, U32};
use zerocopy::IntoBytes;

use super::ranges::{Change, RangeSet};
use crate::overlay::{Edit, ItemBytes};

/// Bytes of a leaf's item header: part of what an item costs.
const ITEM_HEADER_BYTES: u64 = 25;

/// The block group's shape, as the free-space tree needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub start: u64,
    pub len_bytes: u64,
    pub sector_bytes: u64,
}

impl Shape {
    fn end(&self) -> u64 {
        self.start + self.len_bytes
    }
    /// Bytes that one bitmap item covers.
    pub(crate) fn bitmap_span_bytes(&self) -> u64 {
        FREE_SPACE_BITMAP_BYTES as u64 * 8 * self.sector_bytes
    }
    /// More extents than this cost more than bitmaps: the group changes over to them.
    pub(crate) fn extents_max(&self) -> u64 {
        let bitmaps = self.len_bytes.div_ceil(self.bitmap_span_bytes());
        bitmaps * (ITEM_HEADER_BYTES + FREE_SPACE_BITMAP_BYTES as u64) / ITEM_HEADER_BYTES
    }
    /// With fewer extents than this a group leaves its bitmaps; below the other limit, so that it
    /// does not swing.
    pub(crate) fn bitmaps_min(&self) -> u64 {
        const SWING: u64 = 100;
        self.extents_max().saturating_sub(SWING)
    }
    pub(crate) fn info_key(&self) -> Key {
        Key::new(ObjectId(self.start), KeyType::FREE_SPACE_INFO, self.len_bytes)
    }
    fn bitmap_range(&self, index: u64) -> Range<u64> {
        let start = self.start + index * self.bitmap_span_bytes();
        start..(start + self.bitmap_span_bytes()).min(self.end())
    }
    fn bitmap_count(&self) -> u64 {
        self.len_bytes.div_ceil(self.bitmap_span_bytes())
    }
}

/// Whether a key was in the tree before the edits collected, and whether it is now.
#[derive(Clone, Copy, Debug)]
struct Presence {
    before: bool,
    now: bool,
}

#[derive(Debug)]
pub(super) struct DiskView {
    shape: Shape,
    free: RangeSet,
    /// Representation in the tree.
    bitmaps: bool,
    /// Extents of the tree that changed since the last edits: start and end.
    changed_extents: BTreeMap<(u64, u64), Presence>,
    /// Bitmaps that changed, by index.
    changed_bitmaps: BTreeSet<u64>,
    /// What the info item in the tree says; `None`: there is none yet.
    info_written: Option<(u32, u32)>,
}

impl DiskView {
    /// What was loaded from the trees.
    pub(crate) fn loaded(shape: Shape, free: RangeSet, bitmaps: bool) -> Self {
        let count = u32::try_from(free.len()).unwrap_or(u32::MAX);
        let flags = if bitmaps { FREE_SPACE_USING_BITMAPS } else { 0 };
        Self {
            shape,
            free,
            bitmaps,
            changed_extents: BTreeMap::new(),
            changed_bitmaps: BTreeSet::new(),
            info_written: Some((count, flags)),
        }
    }

    /// A block group of which the trees know nothing yet.
    pub(crate) fn newborn(shape: Shape, free: RangeSet) -> Self {
        let changed = Presence {
            before: false,
            now: true,
        };
        Self {
            shape,
            changed_extents: free.iter().map(|r| ((r.start, r.end), changed)).collect(),
            free,
            bitmaps: false,
            changed_bitmaps: BTreeSet::new(),
            info_written: None,
        }
    }

    pub(crate) fn free(&self) -> &RangeSet {
        &self.free
    }

    /// An extent item came. Gives the bytes that were free: anything but the whole length is a
    /// contradiction.
    pub(crate) fn take(&mut self, range: Range<u64>) -> u64 {
        self.note_bitmaps(&range);
        let changed = &mut self.changed_extents;
        let track = !self.bitmaps;
        self.free.remove(range, |change| {
            if track {
                note(changed, change);
            }
        })
    }

    /// An extent item went. Gives the bytes that were not free before.
    pub(crate) fn give(&mut self, range: Range<u64>) -> u64 {
        self.note_bitmaps(&range);
        let changed = &mut self.changed_extents;
        let track = !self.bitmaps;
        self.free.insert(range, |change| {
            if track {
                note(changed, change);
            }
        })
    }

    fn note_bitmaps(&mut self, range: &Range<u64>) {
        if self.bitmaps && !range.is_empty() {
            let span = self.shape.bitmap_span_bytes();
            let first = (range.start - self.shape.start) / span;
            let last = (range.end - 1 - self.shape.start) / span;
            self.changed_bitmaps.extend(first..=last);
        }
    }

    /// The edits of the free-space tree since the last call.
    pub(crate) fn take_edits(&mut self, out: &mut Vec<(Key, Edit)>) {
        let count = self.free.len() as u64;
        if !self.bitmaps && count > self.shape.extents_max() {
            self.change_to_bitmaps(out);
        } else if self.bitmaps && count < self.shape.bitmaps_min() {
            self.change_to_extents(out);
        }
        for ((start, end), presence) in std::mem::take(&mut self.changed_extents) {
            if presence.before != presence.now {
                let edit = presence.now.then(|| ItemBytes::from(&[][..]));
                out.push((extent_key(start, end), edit));
            }
        }
        for index in std::mem::take(&mut self.changed_bitmaps) {
            let range = self.shape.bitmap_range(index);
            out.push((bitmap_key(&range), Some(self.bitmap(&range))));
        }
        let flags = if self.bitmaps { FREE_SPACE_USING_BITMAPS } else { 0 };
        let info = (u32::try_from(self.free.len()).unwrap_or(u32::MAX), flags);
        if self.info_written != Some(info) {
            let item = FreeSpaceInfo {
                extent_count: U32::new(info.0),
                flags: U32::new(info.1),
            };
            out.push((self.shape.info_key(), Some(item.as_bytes().into())));
            self.info_written = Some(info);
        }
    }

    /// The block group goes: edits for all that the tree has of it.
    pub(crate) fn removal_edits(&mut self, out: &mut Vec<(Key, Edit)>) {
        if self.bitmaps {
            self.remove_bitmaps(out);
        } else {
            self.remove_extents(out);
        }
        if self.info_written.take().is_some() {
            out.push((self.shape.info_key(), None));
        }
    }

    /// Takes the extents that are in the tree away: those of now that did not change, and those
    /// that were there before.
    fn remove_extents(&mut self, out: &mut Vec<(Key, Edit)>) {
        let changed = std::mem::take(&mut self.changed_extents);
        let before = changed.iter().filter(|(_, p)| p.before).map(|(&key, _)| key);
        let unchanged = self
            .free
            .iter()
            .map(|r| (r.start, r.end))
            .filter(|key| !changed.contains_key(key));
        out.extend(
            before
                .chain(unchanged)
                .map(|(start, end)| (extent_key(start, end), None)),
        );
    }

    fn remove_bitmaps(&mut self, out: &mut Vec<(Key, Edit)>) {
        self.changed_bitmaps.clear();
        out.extend((0..self.shape.bitmap_count()).map(|i| (bitmap_key(&self.shape.bitmap_range(i)), None)));
    }

    fn change_to_bitmaps(&mut self, out: &mut Vec<(Key, Edit)>) {
        self.remove_extents(out);
        self.bitmaps = true;
        self.changed_bitmaps.extend(0..self.shape.bitmap_count());
    }

    fn change_to_extents(&mut self, out: &mut Vec<(Key, Edit)>) {
        self.remove_bitmaps(out);
        self.bitmaps = false;
        let new = Presence {
            before: false,
            now: true,
        };
        self.changed_extents = self.free.iter().map(|r| ((r.start, r.end), new)).collect();
    }

    fn bitmap(&self, range: &Range<u64>) -> ItemBytes {
        let sector = self.shape.sector_bytes;
        let bits = (range.end - range.start) / sector;
        let mut bytes = vec![0u8; bits.div_ceil(8) as usize];
        for free in self.free.overlaps(range.clone()) {
            let (first, end) = ((free.start - range.start) / sector, (free.end - range.start) / sector);
            for bit in first..end {
                bytes[(bit / 8) as usize] |= 1 << (bit % 8);
            }
        }
        bytes.into()
    }
}

/// Reads a bitmap item: the free ranges, or `None` where it is malformed.
pub(super) fn read_bitmap(range: Range<u64>, sector_bytes: u64, bytes: &[u8], free: &mut RangeSet) -> Option<()> {
    let bits = (range.end - range.start) / sector_bytes;
    if bytes.len() as u64 != bits.div_ceil(8) || bits > FREE_SPACE_BITMAP_BYTES as u64 * 8 {
        return None;
    }
    let is_set = |bit: u64| {
        bytes
            .get((bit / 8) as usize)
            .is_some_and(|byte| byte & (1 << (bit % 8)) != 0)
    };
    let mut run: Option<u64> = None;
    for bit in 0..=bits {
        let set = bit < bits && is_set(bit);
        match (run, set) {
            (None, true) => run = Some(bit),
            (Some(first), false) => {
                free.insert(
                    range.start + first * sector_bytes..range.start + bit * sector_bytes,
                    |_| {},
                );
                run = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }
    Some(())
}

fn note(changed: &mut BTreeMap<(u64, u64), Presence>, change: Change) {
    let (key, now) = match change {
        Change::Gone { start, end } => ((start, end), false),
        Change::New { start, end } => ((start, end), true),
    };
    changed
        .entry(key)
        .and_modify(|presence| presence.now = now)
        // What goes and has no entry was in the tree; what comes was not.
        .or_insert(Presence { before: !now, now });
}

fn extent_key(start: u64, end: u64) -> Key {
    Key::new(ObjectId(start), KeyType::FREE_SPACE_EXTENT, end - start)
}
fn bitmap_key(range: &Range<u64>) -> Key {
    Key::new(
        ObjectId(range.start),
        KeyType::FREE_SPACE_BITMAP,
        range.end - range.start,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 4096;
    const MIB: u64 = 1 << 20;

    fn shape(len_bytes: u64) -> Shape {
        Shape {
            start: MIB,
            len_bytes,
            sector_bytes: K,
        }
    }
    fn all(shape: Shape) -> RangeSet {
        let mut free = RangeSet::default();
        free.insert(shape.start..shape.end(), |_| {});
        free
    }
    /// The tree after the edits; putting an extent that is there or deleting what is not would be a
    /// fault.
    fn apply(tree: &mut BTreeMap<Key, ItemBytes>, view: &mut DiskView) {
        let mut edits = Vec::new();
        view.take_edits(&mut edits);
        for (key, edit) in edits {
            match edit {
                Some(bytes) => {
                    let old = tree.insert(key, bytes);
                    assert!(old.is_none() || key.ty != KeyType::FREE_SPACE_EXTENT, "{key} put twice");
                }
                None => assert!(tree.remove(&key).is_some(), "{key} deleted but not there"),
            }
        }
    }
    /// What the tree says is free.
    fn read(tree: &BTreeMap<Key, ItemBytes>) -> RangeSet {
        let mut free = RangeSet::default();
        for (key, bytes) in tree {
            let range = key.objectid.0..key.objectid.0 + key.offset;
            if key.ty == KeyType::FREE_SPACE_EXTENT {
                assert_eq!(free.insert(range, |_| {}), key.offset);
            } else if key.ty == KeyType::FREE_SPACE_BITMAP {
                read_bitmap(range, K, bytes, &mut free).unwrap();
            }
        }
        free
    }

    #[test]
    fn thresholds() {
        assert_eq!(shape(1 << 30).extents_max(), 1438);
        assert_eq!(shape(1 << 30).bitmaps_min(), 1338);
        assert_eq!(shape(8 * MIB).extents_max(), 11);
        assert_eq!(shape(8 * MIB).bitmaps_min(), 0);
    }

    #[test]
    fn edits_that_cancel_leave_no_trace() {
        let mut view = DiskView::loaded(shape(8 * MIB), all(shape(8 * MIB)), false);
        view.take(2 * MIB..3 * MIB);
        view.give(2 * MIB..3 * MIB);
        let mut edits = Vec::new();
        view.take_edits(&mut edits);
        assert_eq!(edits, []);
    }

    #[test]
    fn random_edits_keep_tree_and_view_the_same_through_both_representations() {
        let shape = shape(25 * MIB + 12 * K);
        let mut tree = BTreeMap::new();
        let mut view = DiskView::newborn(shape, all(shape));
        let mut x = 88_172_645_463_325_252_u64;
        let mut next = |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x % n
        };
        let (mut saw_bitmaps, mut went_back) = (false, false);
        for round in 0..400 {
            let fragment = round % 100 < 60;
            for _ in 0..next(6) {
                let sectors = shape.len_bytes / K;
                let start = next(sectors);
                let len = if fragment { 1 + next(3) } else { 1 + next(600) }.min(sectors - start);
                let range = shape.start + start * K..shape.start + (start + len) * K;
                if fragment && next(4) > 0 {
                    view.take(range);
                } else {
                    view.give(range);
                }
            }
            apply(&mut tree, &mut view);
            assert_eq!(&read(&tree), view.free());
            let bitmaps = tree.keys().filter(|k| k.ty == KeyType::FREE_SPACE_BITMAP).count();
            assert!(bitmaps == 0 || (bitmaps == 4 && tree.keys().all(|k| k.ty != KeyType::FREE_SPACE_EXTENT)));
            went_back |= saw_bitmaps && bitmaps == 0;
            saw_bitmaps |= bitmaps > 0;
            let info = &tree[&shape.info_key()];
            assert_eq!(info[..4], (view.free().len() as u32).to_le_bytes());
            assert_eq!(info[4], u8::from(bitmaps > 0));
        }
        assert!(saw_bitmaps, "the test must reach bitmaps");
        let _ = went_back; // A group this small never goes back: its lower limit is zero.
    }

    #[test]
    fn a_group_that_goes_leaves_nothing_in_the_tree() {
        let remove = |tree: &mut BTreeMap<Key, ItemBytes>, view: &mut DiskView| {
            let mut edits = Vec::new();
            view.removal_edits(&mut edits);
            for (key, edit) in edits {
                assert!(
                    edit.is_none() && tree.remove(&key).is_some(),
                    "{key} deleted but not there"
                );
            }
            assert!(tree.is_empty(), "{tree:?}");
        };
        // With edits that wait, and without; as extents, and as bitmaps.
        for (pieces, waits) in [(3, true), (3, false), (400, true), (400, false)] {
            let shape = shape(256 * MIB);
            let mut tree = BTreeMap::new();
            let mut view = DiskView::newborn(shape, all(shape));
            let used = |i: u64| shape.start + i * 2 * K..shape.start + (i * 2 + 1) * K;
            for i in 0..pieces {
                view.take(used(i));
            }
            apply(&mut tree, &mut view);
            let is_bitmaps = tree.keys().any(|k| k.ty == KeyType::FREE_SPACE_BITMAP);
            assert_eq!(is_bitmaps, pieces == 400);
            for i in 0..pieces {
                view.give(used(i));
            }
            if !waits {
                apply(&mut tree, &mut view);
            }
            remove(&mut tree, &mut view);
        }
    }

    #[test]
    fn a_big_group_leaves_its_bitmaps_again() {
        let shape = shape(256 * MIB);
        let mut tree = BTreeMap::new();
        let mut view = DiskView::newborn(shape, all(shape));
        for i in 0..400 {
            view.take(shape.start + i * 2 * K..shape.start + (i * 2 + 1) * K);
        }
        apply(&mut tree, &mut view);
        assert!(tree.keys().any(|k| k.ty == KeyType::FREE_SPACE_BITMAP));
        view.give(shape.start..shape.start + 300 * 2 * K);
        apply(&mut tree, &mut view);
        assert!(tree.keys().all(|k| k.ty != KeyType::FREE_SPACE_BITMAP));
        assert_eq!(&read(&tree), view.free());
    }
}
