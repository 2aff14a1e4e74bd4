//! What is held for pending items: by leaves, never less than the merge writes, and no more than
//! that where items lie side by side.

use std::collections::BTreeSet;
use std::sync::Arc;

use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId, TreeId};

use super::*;
use crate::testing::{Dice, Engine, SetOnDrop, memory_device};
use crate::tree::{Tree, child_ptr};
use crate::txn::Batch;
use crate::volume::BlockPtr;

/// Items of a subvolume's tree that nothing looks into.
struct Items {
    engine: Arc<Engine>,
    tree: Arc<Tree>,
}

impl Items {
    fn new(nodesize: u32) -> Self {
        let engine = Engine::open(vec![memory_device(1 << 30, nodesize)]);
        let tree = engine.store.forest().require(TreeId::FS).unwrap();
        Self { engine, tree }
    }

    fn space(&self) -> &Space {
        self.engine.store.space()
    }

    fn key(n: u64) -> Key {
        Key::new(ObjectId(10_000 + n / 16), KeyType::TEMPORARY_ITEM, n % 16)
    }

    /// Puts items of so many bytes, or deletes them.
    fn edit(&self, edits: impl IntoIterator<Item = (u64, Option<usize>)>) {
        let reservation = self.engine.reserve(Budget::CREATE).unwrap();
        let join = self.engine.store.txn().join();
        let mut batch = Batch::new();
        for (n, bytes) in edits {
            match bytes {
                Some(bytes) => batch.put(&self.tree, Self::key(n), vec![n as u8; bytes]),
                None => batch.delete(&self.tree, Self::key(n)),
            }
        }
        join.apply(batch, reservation);
    }

    /// Addresses of all committed blocks of the tree.
    fn blocks(&self) -> BTreeSet<LogicalAddr> {
        fn visit(tree: &Tree, ptr: &BlockPtr, out: &mut BTreeSet<LogicalAddr>) {
            out.insert(ptr.addr);
            if ptr.level > 0 {
                let block = tree.store().load(ptr, tree.id()).unwrap();
                for slot in 0..block.len() {
                    visit(tree, &child_ptr(&block, slot), out);
                }
            }
        }
        let (root, mut out) = (self.tree.root(), BTreeSet::new());
        let ptr = BlockPtr {
            addr: root.addr,
            generation: root.generation,
            level: root.level,
            first_key: None,
        };
        visit(&self.tree, &ptr, &mut out);
        out
    }

    /// Commits; returns how many blocks of the tree went, and how many came.
    fn commit(&self) -> (u64, u64) {
        let before = self.blocks();
        self.engine.commit().unwrap();
        let after = self.blocks();
        let count = |a: &BTreeSet<_>, b: &BTreeSet<_>| a.difference(b).count() as u64;
        (count(&before, &after), count(&after, &before))
    }

    fn estimate(&self) -> u64 {
        self.space().ledger.estimate_blocks()
    }
}

#[test]
fn item_that_is_pending_already_adds_nothing_but_bytes() {
    let items = Items::new(16384);
    for round in 0..100 {
        items.edit([(7, Some(100 + round))]);
    }
    let pending = items.space().account().pending;
    assert_eq!((pending.items, pending.bytes), (1, 199));
    items.edit([(7, None), (8, Some(50))]);
    let pending = items.space().account().pending;
    assert_eq!((pending.items, pending.bytes), (2, 50));
    let line = items.space().account().purposes[Purpose::Create as usize];
    assert_eq!((line.granted, line.held_blocks, line.growth.items), (101, 0, 2));
    assert_eq!(line.peak_blocks, u64::from(Budget::CREATE.blocks));
    items.engine.close().unwrap();
}

#[test]
fn counted_blocks_are_those_that_a_merge_copies() {
    for nodesize in [4096, 16384] {
        let (items, mut dice) = (Items::new(nodesize), Dice::new(11));
        items.edit((0..30_000).map(|n| (n * 2, Some(150))));
        items.commit();
        for round in 0..20 {
            // Updates that change no size: what is opened is copied, and nothing else.
            let start = dice.below(20_000);
            for _ in 0..1 + dice.below(200) {
                let n = if round % 2 == 0 {
                    start + dice.below(2000)
                } else {
                    dice.below(30_000)
                };
                items.edit([(n * 2, Some(150))]);
            }
            let opened = items.tree.opened_blocks(u64::MAX).unwrap().unwrap();
            assert_eq!(opened.items, items.space().account().pending.items);
            assert_eq!(items.tree.opened_blocks(opened.blocks - 1).unwrap(), None);
            assert_eq!(items.commit(), (opened.blocks, opened.blocks), "round {round}");
        }
        items.engine.close().unwrap();
    }
}

#[test]
fn merge_writes_no_more_than_was_counted_by_leaves() {
    let mut gains = 0;
    for seed in 0..16 {
        let nodesize = if seed % 2 == 0 { 4096 } else { 16384 };
        let (items, mut dice) = (Items::new(nodesize), Dice::new(seed));
        items.edit((0..8000).map(|n| (n * 2, Some(20 + dice.below(300) as usize))));
        items.commit();
        for round in 0..20 {
            let what = dice.below(5);
            let (start, edits) = (dice.below(16_000), 1 + dice.below(400));
            let counts_at = dice.below(edits);
            for at in 0..edits {
                let bytes = Some(1 + dice.below(600) as usize);
                let edit = match what {
                    // Side by side, in between what is there.
                    0 => (start + at, bytes),
                    // All over.
                    1 => (dice.below(16_000), bytes),
                    // Whole leaves go.
                    2 => (start + at, None),
                    // At the end.
                    3 => (20_000 + round * 1000 + at, bytes),
                    // A few clusters, and deletions among them.
                    _ => (dice.below(4) * 4000 + dice.below(50), bytes.filter(|_| at % 3 > 0)),
                };
                items.edit([edit]);
                if at == counts_at {
                    items.engine.store.count_leaves();
                }
            }
            let by_items = items.estimate();
            if dice.below(2) == 0 {
                items.engine.store.count_leaves();
            }
            let estimate = items.estimate();
            assert!(
                estimate <= by_items,
                "seed {seed}, round {round}: {estimate} {by_items}"
            );
            gains += u64::from(estimate * 3 < by_items);
            let (_, written) = items.commit();
            assert!(
                written <= estimate,
                "seed {seed}, round {round}, {what}: {written} > {estimate}"
            );
        }
        items.engine.close().unwrap();
    }
    assert!(gains > 10, "only {gains} counts freed two thirds");
}

/// Promises all metadata but so many blocks.
fn hold_all_but(space: &Space, left_blocks: u64) -> MetaReservation {
    let room = (0..40).rev().fold(0, |room, bit| {
        let more = room + (1u64 << bit);
        if space.try_reserve_blocks(more).is_some() {
            more
        } else {
            room
        }
    });
    space.try_reserve_blocks(room - left_blocks).unwrap()
}

/// Where items lie side by side, they go on finding room without a commit.
#[test]
fn items_that_share_leaves_need_no_commit() {
    let items = Items::new(16384);
    items.edit((0..40_000).map(|n| (n * 2, Some(150))));
    items.commit();
    let space = items.space();
    // All but this much is promised to others.
    const LEFT_BLOCKS: u64 = 100;
    let held = hold_all_but(space, LEFT_BLOCKS);
    let before = items.engine.commit_stats().commits;
    for n in 0..1000 {
        items.edit([(2 * n + 1, Some(100))]);
    }
    assert_eq!(items.engine.commit_stats().commits, before);
    let pending = space.account();
    assert!(
        pending.pending_blocks < LEFT_BLOCKS && pending.pending_blocks_by_items > 5 * LEFT_BLOCKS,
        "{pending:?}"
    );
    // All over the tree they do need one.
    let is_committed = || items.engine.commit_stats().commits > before;
    for n in (0..60).take_while(|_| !is_committed()) {
        items.edit([(n * 600 + 1, Some(100))]);
    }
    assert!(is_committed());
    drop(held);
    items.engine.close().unwrap();
    crate::testing::assert_nothing_reserved(space);
}

/// Small reservations that come and go all the time do not keep a large one out.
#[test]
fn reservation_in_line_is_served_before_those_that_come_later() {
    let items = Items::new(16384);
    let space = items.space();
    let held = hold_all_but(space, 16);
    let is_over = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                // Nothing is held while a thread waits for the next one, as in operations.
                while !is_over.load(Ordering::Acquire) {
                    let small = space.reserve_meta(Budget::SETATTR);
                    std::thread::yield_now();
                    drop(small);
                    rounds.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
        let _over = SetOnDrop(&is_over);
        while rounds.load(Ordering::Acquire) < 100 {
            std::thread::yield_now();
        }
        for n in 0..50 {
            let large = space.reserve_meta(Budget::RENAME);
            assert!(large.is_ok(), "the large reservation {n} is refused: {large:?}");
        }
    });
    drop(held);
    items.engine.close().unwrap();
}
