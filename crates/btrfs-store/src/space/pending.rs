//! What is pending in front of the trees, and how many tree blocks merging it writes at most.
//!
//! The blocks that a merge copies are counted in one of two ways:
//!
//! - *By items*: each pending item opens a leaf of its own, and the path to it. Nothing has to be
//!   looked up, and where items lie side by side it is far too much.
//! - *By leaves*: the leaves and nodes under which pending items lie, each once
//!   ([`crate::tree::Tree::opened_blocks`]). Counted where a reservation does not fit otherwise
//!   ([`crate::Store::count_leaves`]). Items that came since are counted by items.
//!
//! docs/design/space.md#pending says why both are upper bounds.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::overlay::Growth;
use crate::tree::Opened;

/// Share of a leaf that packed new items fill at least.
const FILL_DIVISOR: u64 = 2;
/// Bytes of an item header.
const ITEM_HEADER_BYTES: u64 = 25;
/// Bytes of a key pointer.
const KEY_PTR_BYTES: u64 = 33;
/// Bytes that one reference change adds at most to the extent tree, its item header included: an
/// extent item with one inline reference (24 + 29), or a keyed reference (28).
const REF_ITEM_BYTES: u64 = ITEM_HEADER_BYTES + 24 + 29;

/// Items, their bytes and reference changes of one generation of overlays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Keys.
    pub items: u64,
    /// Bytes of their items.
    pub bytes: u64,
    /// Changes of references.
    pub refs: u64,
}

/// [`Pending`], counted by many threads.
///
/// Threads note what they applied in any order, so that a sum may be below zero for a moment: the
/// thread whose part is missing still holds its reservation.
#[derive(Debug, Default)]
pub(super) struct PendingCounts {
    items: AtomicI64,
    bytes: AtomicI64,
    refs: AtomicI64,
}

impl PendingCounts {
    pub fn add(&self, growth: Growth, refs: i64) {
        let counts = [
            (&self.items, growth.items),
            (&self.bytes, growth.bytes),
            (&self.refs, refs),
        ];
        for (count, n) in counts {
            if n != 0 {
                count.fetch_add(n, Ordering::AcqRel);
            }
        }
    }
    pub fn add_all(&self, p: Pending) {
        let growth = Growth {
            items: p.items.cast_signed(),
            bytes: p.bytes.cast_signed(),
        };
        self.add(growth, p.refs.cast_signed());
    }
    pub fn clear(&self) {
        for count in [&self.items, &self.bytes, &self.refs] {
            count.store(0, Ordering::Release);
        }
    }
    pub fn get(&self) -> Pending {
        let get = |count: &AtomicI64| count.load(Ordering::Acquire).max(0).cast_unsigned();
        Pending {
            items: get(&self.items),
            bytes: get(&self.bytes),
            refs: get(&self.refs),
        }
    }
}

/// The size of tree blocks, and how many are in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    pub nodesize_bytes: u64,
    pub in_use: u64,
}

impl Blocks {
    fn fanout(self) -> u64 {
        (self.nodesize_bytes / KEY_PTR_BYTES / 4).max(2)
    }

    /// Blocks from a root to a leaf: nodes that are a quarter full at least lead to all blocks
    /// there are, and one level may be added.
    pub fn depth(self) -> u64 {
        let mut depth = 2;
        let mut reach = 1u64;
        while reach < self.in_use {
            reach = reach.saturating_mul(self.fanout());
            depth += 1;
        }
        depth
    }

    /// Tree blocks that merging writes at most, without the copies of extent, free-space and root
    /// tree that the global reserve covers. `opened`: of the pending items, those whose leaves were
    /// counted.
    pub fn to_merge(self, pending: Pending, opened: Opened) -> u64 {
        if pending == Pending::default() {
            return 0;
        }
        let depth = self.depth();
        let alone = pending.items.saturating_sub(opened.items).saturating_add(pending.refs);
        // A block that is copied may be split, whatever little comes into it.
        let split_all = |blocks: u64| blocks.saturating_mul(2);
        let paths = alone.saturating_mul(depth).saturating_add(split_all(opened.blocks));
        let copied = paths.min(split_all(self.in_use));
        let new_bytes = pending
            .bytes
            .saturating_add(pending.items.saturating_mul(ITEM_HEADER_BYTES))
            .saturating_add(pending.refs.saturating_mul(REF_ITEM_BYTES));
        let new_leaves = new_bytes.div_ceil(self.nodesize_bytes / FILL_DIVISOR);
        let new_nodes = new_leaves.div_ceil(self.fanout()) + depth;
        copied + new_leaves + new_nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: Blocks = Blocks {
        nodesize_bytes: 16384,
        in_use: 1000,
    };

    fn to_merge(items: u64, bytes: u64, opened: Opened) -> u64 {
        BLOCKS.to_merge(Pending { items, bytes, refs: 0 }, opened)
    }

    #[test]
    fn pending_is_bounded_by_what_exists_and_what_is_added() {
        let none = Opened::default();
        assert_eq!(to_merge(0, 0, none), 0);
        // One item: its path, a split on each level at most.
        let one = to_merge(1, 160, none);
        assert!((4..=12).contains(&one), "{one}");
        // Many scattered puts: every block is copied and split, and the new bytes fill leaves by
        // half.
        let many = to_merge(1_000_000, 0, none);
        assert!(
            (2000 + 25_000_000 / 16384..2000 + 2 * 25_000_000 / 16384 + 200).contains(&many),
            "{many}"
        );
    }

    #[test]
    fn items_in_leaves_that_were_counted_cost_their_bytes_alone() {
        let opened = |items, blocks| Opened { items, blocks };
        let by_items = to_merge(200, 10_000, opened(0, 0));
        let by_leaves = to_merge(200, 10_000, opened(200, 3));
        assert!(by_items >= 800 && by_leaves <= 15, "{by_items} {by_leaves}");
        // One that came later opens a path of its own.
        let later = to_merge(201, 10_000, opened(200, 3));
        assert_eq!(later, by_leaves + BLOCKS.depth());
    }

    #[test]
    fn sum_that_is_below_zero_for_a_moment_counts_as_nothing() {
        let counts = PendingCounts::default();
        counts.add(Growth { items: 0, bytes: -100 }, 0);
        assert_eq!(counts.get(), Pending::default());
        counts.add(Growth { items: 1, bytes: 160 }, 2);
        let expected = Pending {
            items: 1,
            bytes: 60,
            refs: 2,
        };
        assert_eq!(counts.get(), expected);
    }
}
