//! One block group: what may be allocated of it now, what waits for a commit, and what the trees
//! say.
//!
//! Two views. *Memory*: `holes` (free), `pinned` (free after the commit), all else is in use.
//! *Disk* ([`DiskView`]): the extent tree of the transaction being committed. They meet at load and
//! after each commit with nothing in flight.
//!
//! A group starts unloaded: only `used` is known. It is loaded before anything is allocated from
//! it; so extents can leave an unloaded group (`gone`), but none can come. Once loaded it stays so.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use btrfs_format::features::block_group;
use btrfs_format::{Key, KeyType, ObjectId};
use cowshed_runtime::lock::Mutex;

use super::disk_view::{DiskView, Shape};
use super::ranges::{Holes, RangeSet};
use crate::rank::LockRank;

#[derive(Debug)]
pub(super) struct Group {
    pub shape: Shape,
    /// Type and profile.
    pub flags: u64,
    /// What superblocks make unusable, in order.
    pub excluded: Vec<Range<u64>>,
    pub excluded_bytes: u64,
    pub load_lock: Mutex<()>,
    loaded: AtomicBool,
    /// Length of the biggest hole; `u64::MAX` where that is not known yet.
    biggest_bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    holes: Holes,
    pinned: RangeSet,
    disk: Option<DiskView>,
    /// Extents that left before the group was loaded.
    gone: RangeSet,
    used_bytes: u64,
    /// What the block group item in the tree says; `None`: there is no item yet.
    used_written: Option<u64>,
}

/// What went wrong between us and the trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contradiction(pub String);

fn whole(shape: &Shape) -> RangeSet {
    let mut all = RangeSet::default();
    all.insert(shape.start..shape.start + shape.len_bytes, |_| {});
    all
}

impl Group {
    /// A block group that the trees have.
    pub(crate) fn existing(shape: Shape, flags: u64, excluded: Vec<Range<u64>>, used_bytes: u64) -> Self {
        Self::new(shape, flags, excluded, |_| State {
            holes: Holes::default(),
            pinned: RangeSet::default(),
            disk: None,
            gone: RangeSet::default(),
            used_bytes,
            used_written: Some(used_bytes),
        })
    }

    /// A block group that was just made; loaded, empty.
    pub(crate) fn newborn(shape: Shape, flags: u64, excluded: Vec<Range<u64>>) -> Self {
        let group = Self::new(shape, flags, excluded, |free| State {
            holes: Holes::new(free),
            pinned: RangeSet::default(),
            disk: Some(DiskView::newborn(shape, whole(&shape))),
            gone: RangeSet::default(),
            used_bytes: 0,
            used_written: None,
        });
        group.loaded.store(true, Ordering::Release);
        group.refresh(&group.state.lock());
        group
    }

    fn new(shape: Shape, flags: u64, excluded: Vec<Range<u64>>, state: impl FnOnce(RangeSet) -> State) -> Self {
        let mut free = whole(&shape);
        let mut excluded_bytes = 0;
        for range in &excluded {
            excluded_bytes += free.remove(range.clone(), |_| {});
        }
        Self {
            shape,
            flags,
            excluded,
            excluded_bytes,
            load_lock: Mutex::new(LockRank::GroupLoad, ()),
            loaded: AtomicBool::new(false),
            biggest_bytes: AtomicU64::new(u64::MAX),
            state: Mutex::new(LockRank::GroupState, state(free)),
        }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.shape.start..self.shape.start + self.shape.len_bytes
    }
    /// Bytes that data can fill.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.shape.len_bytes - self.excluded_bytes
    }
    pub(crate) fn item_key(&self) -> Key {
        Key::new(
            ObjectId(self.shape.start),
            KeyType::BLOCK_GROUP_ITEM,
            self.shape.len_bytes,
        )
    }
    pub(crate) fn is_of(&self, type_flag: u64) -> bool {
        self.flags & block_group::TYPE_MASK & type_flag != 0
    }
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }
    /// At least the length of the biggest hole.
    pub(crate) fn biggest_bytes(&self) -> u64 {
        self.biggest_bytes.load(Ordering::Relaxed)
    }
    /// Adds the lengths of its biggest holes, so many of them at least. Where they are not known
    /// yet, what is free counts as one.
    pub(crate) fn add_biggest(&self, count: usize, into: &mut Vec<u64>) {
        if self.is_loaded() {
            into.extend(self.state.lock().holes.biggest(count));
        } else {
            into.push(self.usable_bytes().saturating_sub(self.used_bytes()));
        }
    }
    pub(crate) fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes
    }

    /// What the trees say is free, all of it in this group. `Err` where it contradicts `used`.
    ///
    /// Superblocks are no extents: the free-space tree counts their places as free; only allocation
    /// leaves them out.
    pub(crate) fn install(&self, mut free: RangeSet, bitmaps: bool) -> Result<(), Contradiction> {
        let mut state = self.state.lock();
        assert!(state.disk.is_none(), "a block group is loaded once");
        for range in state.gone.iter() {
            free.insert(range, |_| {});
        }
        let expected = self.shape.len_bytes.checked_sub(state.used_bytes);
        if expected != Some(free.total_bytes()) {
            return Err(Contradiction(format!(
                "block group {}: {} bytes are free, but {} of {} are used",
                self.shape.start,
                free.total_bytes(),
                state.used_bytes,
                self.shape.len_bytes,
            )));
        }
        // The view starts from what the tree has, then follows what happened since.
        let mut in_tree = free.clone();
        let gone = std::mem::take(&mut state.gone);
        for range in gone.iter() {
            in_tree.remove(range, |_| {});
        }
        let mut disk = DiskView::loaded(self.shape, in_tree, bitmaps);
        for range in gone.iter() {
            disk.give(range);
        }
        state.disk = Some(disk);
        for range in state.pinned.iter().chain(self.excluded.iter().cloned()) {
            free.remove(range, |_| {});
        }
        state.holes = Holes::new(free);
        self.refresh(&state);
        self.loaded.store(true, Ordering::Release);
        Ok(())
    }

    fn refresh(&self, state: &State) {
        self.biggest_bytes.store(state.holes.biggest_bytes(), Ordering::Relaxed);
    }

    /// Up to `want_bytes`, from the hole in use or the biggest one.
    pub(crate) fn alloc(&self, want_bytes: u64) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        let found = state.holes.alloc(want_bytes);
        self.refresh(&state);
        found
    }
    /// One piece of `len_bytes` at a multiple of `len_bytes`.
    pub(crate) fn alloc_aligned(&self, len_bytes: u64) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        let found = state.holes.alloc_aligned(len_bytes, len_bytes);
        self.refresh(&state);
        found
    }
    /// One piece of `len_bytes`.
    pub(crate) fn alloc_whole(&self, len_bytes: u64) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        let found = state.holes.alloc_aligned(len_bytes, 1);
        self.refresh(&state);
        found
    }
    /// Takes a range that must be free.
    pub(crate) fn claim(&self, range: Range<u64>) -> Result<(), Contradiction> {
        let mut state = self.state.lock();
        let len = range.end - range.start;
        let took = state.holes.take(range.clone());
        self.refresh(&state);
        if took == len {
            return Ok(());
        }
        Err(Contradiction(format!(
            "{range:?} is claimed, but only {took} bytes of it are free"
        )))
    }
    /// The first hole, or part of one, of at least `bytes_min` in this range. The group must be
    /// loaded.
    pub(crate) fn next_hole(&self, within: Range<u64>, bytes_min: u64) -> Option<Range<u64>> {
        self.state.lock().holes.next_hole(within, bytes_min)
    }
    /// Takes what is free of a range out of reach, until it is [put back](Self::put_free).
    pub(crate) fn take_free(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut state = self.state.lock();
        let parts = state.holes.take_parts(range);
        self.refresh(&state);
        parts
    }
    pub(crate) fn put_free(&self, parts: Vec<Range<u64>>) {
        let mut state = self.state.lock();
        for part in parts {
            state.holes.free(part);
        }
        self.refresh(&state);
    }
    /// In use to free.
    pub(crate) fn give_back(&self, range: Range<u64>) -> Result<(), Contradiction> {
        let mut state = self.state.lock();
        if state.holes.intersects(&range) {
            return Err(Contradiction(format!("{range:?} is given back, but is free")));
        }
        state.holes.free(range);
        self.refresh(&state);
        Ok(())
    }
    /// In use to pinned; gives the bytes that were not pinned before. `Err` where some of it is
    /// free: what the extent tree says is in use, the free-space tree may say is not.
    pub(crate) fn pin(&self, range: Range<u64>) -> Result<u64, Contradiction> {
        let mut state = self.state.lock();
        if state.holes.intersects(&range) {
            return Err(Contradiction(format!("{range:?} is pinned, but is free")));
        }
        Ok(state.pinned.insert(range, |_| {}))
    }
    /// True where an extent item covers the range, as far as the extent tree has got.
    pub(crate) fn has_extent_item(&self, range: &Range<u64>) -> bool {
        let state = self.state.lock();
        state.disk.as_ref().is_none_or(|disk| !disk.free().contains(range))
    }

    /// An extent item came into the extent tree.
    pub(crate) fn extent_inserted(&self, range: Range<u64>) -> Result<(), Contradiction> {
        let mut state = self.state.lock();
        let len = range.end - range.start;
        state.used_bytes += len;
        let Some(disk) = &mut state.disk else {
            return Err(Contradiction(format!("{range:?} came without having been allocated")));
        };
        let took = disk.take(range.clone());
        if took == len {
            return Ok(());
        }
        Err(Contradiction(format!(
            "{range:?} came into the extent tree, but only {took} bytes were free"
        )))
    }

    /// An extent item left the extent tree; its space is pinned. Gives the bytes that were not
    /// pinned before.
    pub(crate) fn extent_removed(&self, range: Range<u64>) -> Result<u64, Contradiction> {
        let len = range.end - range.start;
        let pinned = self.pin(range.clone())?;
        let mut state = self.state.lock();
        let new = match &mut state.disk {
            Some(disk) => disk.give(range.clone()),
            None => state.gone.insert(range.clone(), |_| {}),
        };
        let used = state.used_bytes.checked_sub(len);
        state.used_bytes = used.unwrap_or(0);
        if new == len && used.is_some() {
            return Ok(pinned);
        }
        Err(Contradiction(format!(
            "{range:?} left the extent tree, but only {new} bytes were used"
        )))
    }

    /// After a commit: pinned becomes free. Gives the ranges.
    pub(crate) fn unpin(&self) -> RangeSet {
        let mut state = self.state.lock();
        let pinned = std::mem::take(&mut state.pinned);
        if state.disk.is_some() {
            for range in pinned.iter() {
                state.holes.free(range);
            }
            self.refresh(&state);
        }
        pinned
    }

    /// True where nothing of it is in use or waits for a commit, and the trees of the last commit
    /// say the same. The group must be loaded.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_empty_in(&self.state.lock())
    }
    fn is_empty_in(&self, state: &State) -> bool {
        let on_disk = state.disk.as_ref().map(|disk| disk.free().total_bytes());
        state.used_written == Some(0)
            && state.used_bytes == 0
            && on_disk == Some(self.shape.len_bytes)
            && state.pinned.is_empty()
            && state.holes.total_bytes() == self.usable_bytes()
    }
    /// Takes all of an empty group out: nothing is allocated from it any more. `may` is asked last,
    /// under the group's lock, when no allocation can come between. False where it is not empty, or
    /// may not go.
    pub(crate) fn retire(&self, may: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        if !self.is_empty_in(&state) || !may() {
            return false;
        }
        state.holes = Holes::default();
        self.refresh(&state);
        true
    }
    /// The edits that take all that the free-space tree has of the group away.
    pub(crate) fn removal_edits(&self, out: &mut Vec<(Key, crate::overlay::Edit)>) {
        if let Some(disk) = &mut self.state.lock().disk {
            disk.removal_edits(out);
        }
    }

    /// Edits of the free-space tree since the last call. The group must be loaded.
    pub(crate) fn take_free_space_edits(&self, out: &mut Vec<(Key, crate::overlay::Edit)>) {
        if let Some(disk) = &mut self.state.lock().disk {
            disk.take_edits(out);
        }
    }
    /// `used` where the block group item has to be written.
    pub(crate) fn take_used(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let used = state.used_bytes;
        (state.used_written.replace(used) != Some(used)).then_some(used)
    }

    /// Free and pinned ranges, and what the trees say is free: for tests and checks.
    #[cfg(test)]
    pub(crate) fn views(&self) -> (RangeSet, RangeSet, Option<RangeSet>) {
        let state = self.state.lock();
        (
            state.holes.to_set(),
            state.pinned.clone(),
            state.disk.as_ref().map(|disk| disk.free().clone()),
        )
    }
}

#[cfg(test)]
// A list of one range is meant as such.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    const K: u64 = 4096;
    const MIB: u64 = 1 << 20;

    fn shape() -> Shape {
        Shape {
            start: MIB,
            len_bytes: MIB,
            sector_bytes: K,
        }
    }
    fn set(ranges: &[Range<u64>]) -> RangeSet {
        let mut set = RangeSet::default();
        for r in ranges {
            set.insert(r.clone(), |_| {});
        }
        set
    }

    #[test]
    fn freed_space_waits_for_the_commit() {
        let group = Group::newborn(shape(), block_group::DATA, Vec::new());
        let got = group.alloc(64 * K).unwrap();
        group.extent_inserted(got.clone()).unwrap();
        assert_eq!(group.used_bytes(), 64 * K);
        assert_eq!(group.extent_removed(got.clone()), Ok(64 * K));
        let twice = group.extent_removed(got.start..got.start + K).unwrap_err();
        assert!(twice.0.contains("only 0 bytes"));
        let (free, pinned, disk) = group.views();
        assert!(pinned.contains(&got) && !free.intersects(&got) && disk.unwrap().contains(&got));
        assert!(group.unpin().contains(&got));
        assert!(group.views().0.contains(&got));
    }

    #[test]
    fn loading_after_extents_left_counts_them_once() {
        let used = set(&[MIB..MIB + 8 * K, MIB + 16 * K..MIB + 20 * K]);
        let mut free = set(&[MIB..2 * MIB]);
        for r in used.iter() {
            free.remove(r, |_| {});
        }
        // A scan may run before or after the item is gone from the tree: both come out the same.
        for scan_sees_it in [false, true] {
            let group = Group::existing(shape(), block_group::DATA, Vec::new(), 12 * K);
            assert_eq!(group.biggest_bytes(), u64::MAX);
            assert_eq!(group.extent_removed(MIB..MIB + 8 * K), Ok(8 * K));
            let mut found = free.clone();
            if !scan_sees_it {
                found.insert(MIB..MIB + 8 * K, |_| {});
            }
            group.install(found, false).unwrap();
            let (holes, _, disk) = group.views();
            assert!(!holes.intersects(&(MIB..MIB + 8 * K)), "pinned");
            assert!(disk.unwrap().contains(&(MIB..MIB + 16 * K)));
            let mut edits = Vec::new();
            group.take_free_space_edits(&mut edits);
            assert_eq!(edits.len(), 2, "one extent grows to the left: {edits:?}");
        }
    }

    #[test]
    fn a_group_goes_only_when_nothing_of_it_is_in_use_or_waits() {
        let goes = |group: &Group| group.is_empty() && group.retire(|| true);
        let empty = || {
            let group = Group::existing(shape(), block_group::DATA, vec![MIB..MIB + 64 * K], 0);
            group.install(set(&[MIB..2 * MIB]), false).unwrap();
            group
        };
        let group = empty();
        assert!(
            !group.retire(|| false) && group.biggest_bytes() > 0,
            "it may be refused"
        );
        assert!(goes(&group));
        assert_eq!(
            (group.alloc(K), group.biggest_bytes()),
            (None, 0),
            "nothing comes into it any more"
        );
        assert!(!goes(&group), "once");

        // A write under way, a block of a log, data of an atomic group: allocated, and no tree
        // knows.
        let group = empty();
        let range = group.alloc(K).unwrap();
        assert!(!goes(&group));
        // Given up again, but a log may have it.
        group.pin(range).unwrap();
        assert!(!goes(&group));
        group.unpin();
        assert!(goes(&group));

        // What a commit frees is free after it, and the tree has to learn of it.
        let group = empty();
        let range = group.alloc(K).unwrap();
        group.extent_inserted(range.clone()).unwrap();
        group.take_used();
        group.extent_removed(range).unwrap();
        assert!(!goes(&group));
        group.unpin();
        assert!(!goes(&group), "the block group item still says that some of it is used");
        group.take_used();
        assert!(goes(&group));

        let newborn = Group::newborn(shape(), block_group::DATA, Vec::new());
        assert!(!goes(&newborn), "no tree has it yet");
    }

    #[test]
    fn what_contradicts_the_used_bytes_is_refused() {
        let group = Group::existing(shape(), block_group::DATA, Vec::new(), 12 * K);
        assert!(group.install(set(&[MIB..2 * MIB]), false).is_err());
    }
}
