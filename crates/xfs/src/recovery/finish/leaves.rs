//! The extents of a fork in the leaves of their tree, so that a tree keeps its shape, and the inode
//! its number of blocks, as Linux keeps them.

use xfs_format::btree::EXTENT_BLOCKS_MAX;
use xfs_format::{Extent, FileBlock, FsBlock};

use super::btree::split_at;

/// Extents in order. A fork without a tree has one leaf.
pub(super) struct Leaves {
    leaves: Vec<Vec<Extent>>,
    leaf_max: usize,
}

impl Leaves {
    pub(super) fn new(leaf_max: usize) -> Self {
        Self {
            leaves: Vec::new(),
            leaf_max,
        }
    }

    pub(super) fn add_leaf(&mut self, extents: impl Iterator<Item = Extent>) {
        let leaf: Vec<Extent> = extents.collect();
        if !leaf.is_empty() {
            self.leaves.push(leaf);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Extent> {
        self.leaves.iter().flatten().copied()
    }

    pub(super) fn last(&self) -> Option<Extent> {
        self.leaves.iter().rev().find_map(|leaf| leaf.last().copied())
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = &[Extent]> {
        self.leaves.iter().map(Vec::as_slice)
    }

    /// The first extent that ends behind a block of the file: leaf and index. Behind the last one
    /// where there is none.
    fn find(&self, block: u64) -> (usize, usize) {
        let ends = |extent: &Extent| extent.end().get() <= block;
        let before = self.leaves.partition_point(|leaf| leaf.last().is_none_or(ends));
        let leaf = before.min(self.leaves.len().saturating_sub(1));
        let index = self.leaves.get(leaf).map_or(0, |leaf| leaf.partition_point(ends));
        (leaf, index)
    }

    /// The first extent that ends behind a block of the file.
    pub(super) fn ending_behind(&self, block: u64) -> Option<Extent> {
        self.get(self.find(block))
    }

    fn get(&self, (leaf, index): (usize, usize)) -> Option<Extent> {
        self.leaves.get(leaf)?.get(index).copied()
    }

    fn set(&mut self, (leaf, index): (usize, usize), extent: Extent) {
        if let Some(place) = self.leaves.get_mut(leaf).and_then(|leaf| leaf.get_mut(index)) {
            *place = extent;
        }
    }

    /// The place before another one.
    fn before(&self, (leaf, index): (usize, usize)) -> Option<(usize, usize)> {
        if index > 0 {
            return Some((leaf, index - 1));
        }
        let leaf = leaf.checked_sub(1)?;
        Some((leaf, self.leaves.get(leaf)?.len().checked_sub(1)?))
    }

    /// Where Linux puts a new extent before the one at a place: between two leaves it goes to the
    /// end of the first one, whose key it finds.
    fn place_of_new(&self, (leaf, index): (usize, usize)) -> (usize, usize) {
        let before = leaf.checked_sub(1).filter(|_| index == 0);
        let before = before.and_then(|leaf| Some((leaf, self.leaves.get(leaf)?.len())));
        before.unwrap_or((leaf, index))
    }

    /// Where Linux puts the rest of an extent that was cut in two: behind the first part, which
    /// between two leaves is the start of the second one.
    fn next_place(&self, (leaf, index): (usize, usize)) -> (usize, usize) {
        let is_last = self.leaves.get(leaf).is_some_and(|extents| index + 1 == extents.len());
        if is_last && leaf + 1 < self.leaves.len() {
            (leaf + 1, 0)
        } else {
            (leaf, index + 1)
        }
    }

    /// Takes a range of the file out, cut at its ends.
    pub(super) fn take(&mut self, from: u64, to: u64) -> Vec<Extent> {
        let mut taken = Vec::new();
        while let Some(extent) = self.get(self.find(from)) {
            let at = self.find(from);
            let (start, end) = (extent.offset.get(), extent.end().get());
            if start >= to {
                break;
            }
            let part = |from: u64, to: u64| Extent {
                offset: FileBlock(from),
                start: FsBlock(extent.start.get() + (from - start)),
                blocks: (to - from) as u32,
                is_unwritten: extent.is_unwritten,
            };
            taken.push(part(start.max(from), end.min(to)));
            match (start < from, end > to) {
                (false, false) => self.remove(at),
                (true, false) => self.set(at, part(start, from)),
                (false, true) => self.set(at, part(to, end)),
                (true, true) => {
                    self.set(at, part(start, from));
                    self.insert(self.next_place(at), part(to, end));
                }
            }
        }
        taken
    }

    /// Puts an extent in where the file has a hole, and joins it with its neighbours. False where
    /// it has none.
    #[must_use]
    pub(super) fn put(&mut self, extent: Extent) -> bool {
        let at = self.find(extent.offset.get());
        let next = self.get(at);
        if next.is_some_and(|next| next.offset < extent.end()) {
            return false;
        }
        let before = self.before(at);
        let left = before.and_then(|at| joined(&self.get(at)?, &extent));
        let right = next.and_then(|next| joined(&extent, &next));
        match (before.zip(left), right) {
            (Some((place, left)), Some(_)) => {
                let whole = next.and_then(|next| joined(&left, &next));
                self.set(place, whole.unwrap_or(left));
                if whole.is_some() {
                    self.remove(at);
                }
            }
            (Some((place, left)), None) => self.set(place, left),
            (None, Some(right)) => self.set(at, right),
            (None, None) => self.insert(self.place_of_new(at), extent),
        }
        true
    }

    /// Puts an extent in. A full leaf gives one to a neighbour with room, else it is split.
    fn insert(&mut self, (at, index): (usize, usize), extent: Extent) {
        let most = self.leaf_max;
        let Some(leaf) = self.leaves.get_mut(at) else {
            self.leaves.push(vec![extent]);
            return;
        };
        leaf.insert(index.min(leaf.len()), extent);
        if leaf.len() <= most {
            return;
        }
        let has_room = |leaf: Option<&Vec<Extent>>| leaf.is_some_and(|leaf| leaf.len() < most);
        if index + 1 < most && has_room(self.leaves.get(at + 1)) {
            self.shift(at, at + 1);
        } else if index > 0 && at > 0 && has_room(self.leaves.get(at - 1)) {
            self.shift(at, at - 1);
        } else if let Some(leaf) = self.leaves.get_mut(at) {
            let right = leaf.split_off(split_at(most, index).min(leaf.len()));
            self.leaves.insert(at + 1, right);
        }
    }

    /// Moves an extent from a leaf to one beside it.
    fn shift(&mut self, from: usize, to: usize) {
        let moved = match self.leaves.get_mut(from) {
            Some(leaf) if to > from => leaf.pop(),
            Some(leaf) if !leaf.is_empty() => Some(leaf.remove(0)),
            _ => None,
        };
        if let (Some(moved), Some(leaf)) = (moved, self.leaves.get_mut(to)) {
            let at = if to > from { 0 } else { leaf.len() };
            leaf.insert(at, moved);
        }
    }

    /// Takes an extent out. A leaf that is too empty borrows one of a neighbour, else it is joined
    /// with one.
    fn remove(&mut self, (at, index): (usize, usize)) {
        let (least, most) = (self.leaf_max / 2, self.leaf_max);
        let Some(leaf) = self.leaves.get_mut(at).filter(|leaf| index < leaf.len()) else {
            return;
        };
        leaf.remove(index);
        let count = leaf.len();
        if count >= least {
            return;
        }
        let len = |at: Option<usize>| at.and_then(|at| self.leaves.get(at)).map(Vec::len);
        let (left, right) = (len(at.checked_sub(1)), len(at.checked_add(1)));
        if right.is_some_and(|right| right > least) {
            self.shift(at + 1, at);
        } else if left.is_some_and(|left| left > least) {
            self.shift(at - 1, at);
        } else if left.is_some_and(|left| left + count <= most) {
            self.join(at - 1);
        } else if right.is_some_and(|right| right + count <= most) {
            self.join(at);
        } else if count == 0 {
            self.leaves.remove(at);
        }
    }

    /// Joins a leaf with the one behind it.
    fn join(&mut self, at: usize) {
        let mut right = self.leaves.remove(at + 1);
        if let Some(leaf) = self.leaves.get_mut(at) {
            leaf.append(&mut right);
        }
    }
}

/// Two extents as one, where the second one continues the first one.
fn joined(left: &Extent, right: &Extent) -> Option<Extent> {
    let blocks = left.blocks.checked_add(right.blocks)?;
    let is_one = left.end() == right.offset
        && left.start.get().checked_add(left.blocks.into()) == Some(right.start.get())
        && left.is_unwritten == right.is_unwritten
        && blocks <= EXTENT_BLOCKS_MAX;
    is_one.then_some(Extent { blocks, ..*left })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, start: u64, blocks: u32) -> Extent {
        Extent {
            offset: FileBlock(offset),
            start: FsBlock(start),
            blocks,
            is_unwritten: false,
        }
    }

    #[test]
    fn ranges_are_cut_out_and_put_back() {
        let mut leaves = Leaves::new(4);
        leaves.add_leaf([extent(0, 100, 10), extent(20, 200, 10)].into_iter());
        let taken = leaves.take(5, 25);
        assert_eq!(taken, [extent(5, 105, 5), extent(20, 200, 5)]);
        assert!(leaves.iter().eq([extent(0, 100, 5), extent(25, 205, 5)]));
        assert!(!leaves.put(extent(4, 300, 1)) && !leaves.put(extent(24, 300, 2)));
        assert!(leaves.put(extent(5, 105, 5)) && leaves.put(extent(20, 200, 5)));
        assert!(leaves.iter().eq([extent(0, 100, 10), extent(20, 200, 10)]));
        assert_eq!(leaves.take(3, 4), [extent(3, 103, 1)]);
        assert!(
            leaves
                .iter()
                .eq([extent(0, 100, 3), extent(4, 104, 6), extent(20, 200, 10)])
        );
    }

    #[test]
    fn extents_between_two_leaves_go_where_linux_puts_them() {
        let shape = |leaves: &Leaves| leaves.leaves().map(<[Extent]>::len).collect::<Vec<_>>();
        let make = |counts: [u64; 2]| {
            let mut leaves = Leaves::new(4);
            let mut all = (0..).map(|n| extent(n * 10, n * 1000, 5));
            for count in counts {
                leaves.add_leaf(all.by_ref().take(count as usize));
            }
            leaves
        };
        // A new one goes to the end of the first leaf, though the second one is full.
        let mut leaves = make([3, 4]);
        assert!(leaves.put(extent(27, 9, 1)));
        assert_eq!(shape(&leaves), [4, 4]);
        // The rest of one that was cut goes to the start of the second leaf.
        let mut leaves = make([4, 3]);
        let _ = leaves.take(32, 33);
        assert_eq!(shape(&leaves), [4, 4]);
        let all: Vec<u64> = leaves.iter().map(|extent| extent.offset.get()).collect();
        assert_eq!(all, [0, 10, 20, 30, 33, 40, 50, 60]);
        // Without a second leaf, the first one grows.
        let mut leaves = make([3, 0]);
        let _ = leaves.take(22, 23);
        assert_eq!(shape(&leaves), [4]);
    }

    #[test]
    fn leaves_split_lend_and_join() {
        let mut leaves = Leaves::new(4);
        for n in 0..9 {
            assert!(leaves.put(extent(n * 10, n * 1000, 1)));
        }
        let shape = |leaves: &Leaves| leaves.leaves().map(<[Extent]>::len).collect::<Vec<_>>();
        assert_eq!(shape(&leaves), [4, 2, 3]);
        assert!(leaves.put(extent(5, 77, 1)));
        assert_eq!(shape(&leaves), [4, 3, 3]);
        let all = |leaves: &Leaves| leaves.iter().map(|extent| extent.offset.get()).collect::<Vec<_>>();
        assert_eq!(all(&leaves), [0, 5, 10, 20, 30, 40, 50, 60, 70, 80]);
        let _ = leaves.take(40, 41);
        assert_eq!(shape(&leaves), [4, 2, 3]);
        let _ = leaves.take(20, 31);
        assert_eq!(shape(&leaves), [3, 2, 2]);
        for n in 0..100 {
            let _ = leaves.take(n, n + 1);
        }
        assert_eq!(leaves.iter().count(), 0);
    }
}
