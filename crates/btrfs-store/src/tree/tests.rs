//! The bulk merge and the cursor against a map: random edits, several generations, every structure
//! rule checked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use btrfs_format::block::{leaf_capacity_bytes, node_capacity_ptrs};
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, ObjectId, TreeBlock, TreeId};
use cowshed_harness::threads::SetOnDrop;

use super::{MergeHost, Merger, NodeStore, RootPtr, Tree, child_ptr};
use crate::error::Result;
use crate::overlay::stripes::{STRIPES, stripe_of};
use crate::overlay::{Edit, ItemBytes};
use crate::testing::{Dice, memory_volume};
use crate::volume::BlockPtr;

/// An allocator that checks what the merge does with blocks.
pub(super) struct Host {
    pub(super) transid: Generation,
    next_addr: u64,
    pub(super) live: BTreeSet<u64>,
    replaced: BTreeSet<u64>,
    nodesize: u64,
}

impl MergeHost for Host {
    fn transid(&self) -> Generation {
        self.transid
    }
    fn alloc(&mut self, _tree: TreeId, _level: u8) -> Result<LogicalAddr> {
        self.next_addr += self.nodesize;
        self.live.insert(self.next_addr);
        Ok(LogicalAddr(self.next_addr))
    }
    fn replace(&mut self, _tree: TreeId, block: &TreeBlock) -> Result<Option<LogicalAddr>> {
        let addr = block.addr().get();
        assert!(
            self.live.contains(&addr),
            "replaces a block that is not in the tree: {addr}"
        );
        if block.generation() == self.transid {
            return Ok(Some(block.addr()));
        }
        self.live.remove(&addr);
        assert!(self.replaced.insert(addr), "replaces block {addr} twice");
        Ok(None)
    }
    fn release(&mut self, _tree: TreeId, addr: LogicalAddr, _level: u8) -> Result<()> {
        assert!(self.live.remove(&addr.get()), "releases block {addr} that is not live");
        Ok(())
    }
}

pub(super) struct Fixture {
    pub(super) store: Arc<NodeStore>,
    pub(super) tree: Arc<Tree>,
    pub(super) host: Host,
    pub(super) model: BTreeMap<Key, Vec<u8>>,
}

pub(super) fn key(n: u64) -> Key {
    // A type that the verifier has no rules for.
    Key::new(ObjectId(256 + n / 64), KeyType(249), n % 64)
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::of(TreeId::FS)
    }

    fn of(tree: TreeId) -> Self {
        let volume = memory_volume(4096);
        let store = Arc::new(NodeStore::new(volume, usize::MAX));
        let host = Host {
            transid: Generation(100),
            next_addr: 1 << 40,
            live: BTreeSet::new(),
            replaced: BTreeSet::new(),
            nodesize: 4096,
        };
        let root = RootPtr {
            addr: LogicalAddr(1 << 40),
            generation: Generation(99),
            level: 0,
        };
        let tree = Arc::new(Tree::new(tree, store.clone(), root));
        let mut fixture = Self {
            store,
            tree,
            host,
            model: BTreeMap::new(),
        };
        fixture.plant_empty_root();
        fixture
    }

    fn plant_empty_root(&mut self) {
        let volume = self.store.volume();
        let header = btrfs_format::builder::HeaderFields {
            fsid: volume.metadata_fsid(),
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            addr: LogicalAddr(1 << 40),
            generation: Generation(99),
            owner: self.tree.id(),
            level: 0,
            flags: btrfs_format::features::header_flags::CURRENT,
        };
        let bytes = btrfs_format::builder::LeafBuilder::new(4096).finish(&header);
        self.store.insert_dirty(TreeBlock::from_builder(bytes));
        self.host.live.insert(1 << 40);
    }

    pub(super) fn apply(&mut self, edits: &BTreeMap<Key, Option<Vec<u8>>>) {
        for (key, edit) in edits {
            match edit {
                Some(bytes) => drop(self.model.insert(*key, bytes.clone())),
                None => drop(self.model.remove(key)),
            }
        }
        self.tree.apply(
            edits
                .iter()
                .map(|(k, e)| (*k, e.as_ref().map(|b| ItemBytes::from(&b[..]))))
                .collect(),
        );
    }

    /// One merge of what is pending, within the running transaction.
    pub(super) fn merge(&mut self) {
        let Some(frozen) = self.tree.freeze() else { return };
        let merged = Merger::new(&self.store, &mut self.host, self.tree.id())
            .merge(self.tree.root(), &mut frozen.iter())
            .unwrap();
        // What root items and the superblock will say of the root.
        assert_eq!(
            merged.root.generation, self.host.transid,
            "a root is of the transaction that made it one"
        );
        self.tree.publish(merged, true);
    }

    /// Structure: exactly the live blocks are reached, each valid, keys within the parent's range,
    /// levels right.
    fn check(&self) {
        let mut seen = BTreeSet::new();
        let root = self.tree.root();
        let ptr = BlockPtr {
            addr: root.addr,
            generation: root.generation,
            level: root.level,
            first_key: None,
        };
        let mut items = Vec::new();
        self.check_block(&ptr, None, &mut seen, &mut items);
        assert_eq!(
            seen, self.host.live,
            "the blocks of the tree are those that the host thinks live"
        );
        let expected: Vec<_> = self.model.iter().map(|(k, v)| (*k, v.clone())).collect();
        assert!(
            items == expected,
            "the tree holds {} items, the model {}",
            items.len(),
            expected.len()
        );
    }

    fn check_block(
        &self,
        ptr: &BlockPtr,
        upper: Option<Key>,
        seen: &mut BTreeSet<u64>,
        items: &mut Vec<(Key, Vec<u8>)>,
    ) {
        let block = self.store.load(ptr, self.tree.id()).unwrap();
        assert!(seen.insert(block.addr().get()));
        assert_eq!(block.level(), ptr.level);
        assert!(block.used_bytes() <= leaf_capacity_bytes(4096));
        if let Some(first) = ptr.first_key {
            assert_eq!(block.key(0), first);
        }
        if !block.is_empty()
            && let Some(upper) = upper
        {
            assert!(block.key(block.len() - 1) < upper);
        }
        for slot in 0..block.len() {
            if block.is_leaf() {
                let (key, data) = block.item(slot);
                items.push((key, data.to_vec()));
            } else {
                assert!(block.len() <= node_capacity_ptrs(4096));
                let child_upper = if slot + 1 < block.len() {
                    Some(block.key(slot + 1))
                } else {
                    upper
                };
                self.check_block(&child_ptr(&block, slot), child_upper, seen, items);
            }
        }
    }

    fn compare_reads(&self, dice: &mut Dice, span: u64) {
        let (a, b) = (dice.below(span), dice.below(span));
        let (from, to) = (key(a.min(b)), key(a.max(b)));
        let found: Vec<_> = self
            .tree
            .cursor(from, to)
            .collect()
            .unwrap()
            .into_iter()
            .map(|(k, i)| (k, i.to_vec()))
            .collect();
        let expected: Vec<_> = self.model.range(from..=to).map(|(k, v)| (*k, v.clone())).collect();
        assert_eq!(found, expected);
        let at = key(dice.below(span));
        let floor = self.tree.floor(&at).unwrap().map(|(k, i)| (k, i.to_vec()));
        assert_eq!(floor, self.model.range(..=at).next_back().map(|(k, v)| (*k, v.clone())));
        let floor = self.tree.floor_from(&from, &to).unwrap().map(|(k, i)| (k, i.to_vec()));
        assert_eq!(floor, expected.last().cloned());
        let got = self.tree.get(&at).unwrap().map(|i| i.to_vec());
        assert_eq!(got, self.model.get(&at).cloned());
    }
}

pub(super) fn random_edits(dice: &mut Dice, span: u64, delete_percent: u64) -> BTreeMap<Key, Option<Vec<u8>>> {
    let mut edits = BTreeMap::new();
    let clustered = dice.below(3) == 0;
    let base = dice.below(span);
    for _ in 0..dice.below(400) + 1 {
        let n = if clustered {
            (base + dice.below(100)) % span
        } else {
            dice.below(span)
        };
        let edit = if dice.below(100) < delete_percent {
            None
        } else {
            let len = if dice.below(20) == 0 {
                dice.below(2500)
            } else {
                dice.below(120)
            };
            Some(vec![dice.below(256) as u8; len as usize])
        };
        edits.insert(key(n), edit);
    }
    edits
}

#[test]
fn random_merges_keep_the_tree_equal_to_a_map() {
    for seed in 0..12 {
        let mut dice = Dice::new(seed);
        let mut fixture = Fixture::new();
        let span = [200, 3000, 20_000][(seed % 3) as usize];
        for round in 0..60 {
            // Phases of growth and of decline, so that blocks are split, joined and emptied.
            let delete_percent = if (round / 15) % 2 == 0 { 20 } else { 85 };
            fixture.apply(&random_edits(&mut dice, span, delete_percent));
            for _ in 0..5 {
                fixture.compare_reads(&mut dice, span);
            }
            fixture.merge();
            fixture.check();
            fixture.compare_reads(&mut dice, span);
            if dice.below(2) == 0 {
                fixture.host.transid = fixture.host.transid.next();
            }
        }
        let all: BTreeMap<_, _> = fixture.model.keys().map(|k| (*k, None)).collect();
        fixture.apply(&all);
        fixture.merge();
        fixture.check();
        assert_eq!(fixture.tree.root().level, 0, "an empty tree is one leaf");
    }
}

#[test]
fn appended_items_fill_leaves() {
    let mut fixture = Fixture::new();
    let edits = (0..5000).map(|n| (key(n), Some(vec![7; 50]))).collect();
    fixture.apply(&edits);
    fixture.merge();
    fixture.check();
    let per_leaf = leaf_capacity_bytes(4096) / (25 + 50);
    let leaves = 5000_usize.div_ceil(per_leaf);
    let nodes = leaves.div_ceil(node_capacity_ptrs(4096));
    assert!(
        fixture.host.live.len() <= leaves + nodes + 1,
        "{} blocks for {leaves} leaves",
        fixture.host.live.len()
    );
}

/// Checksums of sectors between old ones, in place of old ones, and where old ones were taken away:
/// the tree has the same ones as a map, in as few items as their neighbourhood allows.
#[test]
fn new_checksums_join_old_ones_and_each_other() {
    const SECTOR: u64 = 4096;
    let key = |sector: u64| Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, sector * SECTOR);
    let sectors = |key: &Key, data: &[u8]| {
        let sums = data
            .chunks_exact(4)
            .map(|sum| u32::from_le_bytes(sum.try_into().unwrap()));
        (key.offset / SECTOR..).zip(sums).collect::<Vec<_>>()
    };
    for seed in 0..40 {
        let mut dice = Dice::new(seed);
        let mut fixture = Fixture::of(TreeId::CSUM);
        let mut sums = BTreeMap::new();
        let mut items: Vec<(Key, Vec<u8>)> = Vec::new();
        for _ in 0..16 {
            let mut edits = BTreeMap::new();
            let put = |edits: &mut BTreeMap<_, _>, run: &[(u64, u32)]| {
                let bytes = run.iter().flat_map(|(_, sum)| sum.to_le_bytes());
                edits.insert(key(run[0].0), Some(bytes.collect::<Vec<u8>>()));
            };
            for (key, data) in &items {
                let run = sectors(key, data);
                match dice.below(8) {
                    // Its end goes, all of it goes, or all of it is new.
                    0 if run.len() > 1 => {
                        let left = 1 + dice.below(run.len() as u64 - 1) as usize;
                        sums.retain(|sector, _| !run[left..].iter().any(|gone| gone.0 == *sector));
                        put(&mut edits, &run[..left]);
                    }
                    1 => {
                        sums.retain(|sector, _| !run.iter().any(|gone| gone.0 == *sector));
                        edits.insert(*key, None);
                    }
                    2 => {
                        let run: Vec<_> = run
                            .iter()
                            .map(|(sector, _)| (*sector, dice.below(1 << 32) as u32))
                            .collect();
                        sums.extend(run.iter().copied());
                        put(&mut edits, &run);
                    }
                    _ => {}
                }
            }
            for _ in 0..dice.below(60) + 1 {
                let start = dice.below(3000);
                let run: Vec<_> = (start..start + 1 + dice.below(4))
                    .map(|sector| (sector, dice.below(1 << 32) as u32))
                    .collect();
                let is_free = run.iter().all(|(sector, _)| !sums.contains_key(sector));
                if is_free && !edits.contains_key(&key(start)) {
                    sums.extend(run.iter().copied());
                    put(&mut edits, &run);
                }
            }
            fixture.apply(&edits);
            fixture.merge();
            let found = fixture.tree.cursor(key(0), key(4000)).collect().unwrap();
            items = found.into_iter().map(|(key, item)| (key, item.to_vec())).collect();
            let found: Vec<_> = items.iter().flat_map(|(key, data)| sectors(key, data)).collect();
            assert_eq!(
                found,
                sums.iter().map(|(sector, sum)| (*sector, *sum)).collect::<Vec<_>>()
            );
            if dice.below(2) == 0 {
                fixture.host.transid = fixture.host.transid.next();
            }
        }
    }
}

/// One new checksum between each two old ones: an item is left for each part of the largest size.
#[test]
fn a_checksum_joins_the_items_on_both_sides() {
    let key = |sector: u64| Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, sector * 4096);
    let mut fixture = Fixture::of(TreeId::CSUM);
    for first in [0, 1] {
        let every_second = (first..2000).step_by(2).map(|sector| (key(sector), Some(vec![7; 4])));
        fixture.apply(&every_second.collect());
        fixture.merge();
    }
    let items = fixture.tree.cursor(key(0), key(2000)).collect().unwrap().len();
    let parts = 2000 * 4 / super::csum_item_bytes_max(&fixture.store) + 1;
    // The end of a leaf parts what belongs together.
    let most = parts + 1000 * (25 + 4) / leaf_capacity_bytes(4096) + 1;
    assert!(items <= most, "{items} items, not {parts} to {most}");
}

/// Leaves, and nodes, without edits become the root when all others are emptied.
#[test]
fn a_child_that_becomes_the_root_is_copied() {
    let per_leaf = (leaf_capacity_bytes(4096) / (25 + 50)) as u64;
    let per_node = per_leaf * node_capacity_ptrs(4096) as u64;
    for (count, left) in [(per_leaf + 20, 0..per_leaf), (per_node + 500, 0..per_node)] {
        let mut fixture = Fixture::new();
        fixture.apply(&(0..count).map(|n| (key(n), Some(vec![7; 50]))).collect());
        fixture.merge();
        fixture.host.transid = fixture.host.transid.next();
        let gone = (0..count).filter(|n| !left.contains(n));
        fixture.apply(&gone.map(|n| (key(n), None)).collect());
        fixture.merge();
        fixture.check();
    }
}

#[test]
fn a_reader_sees_overlay_frozen_overlay_and_tree_as_one() {
    let mut fixture = Fixture::new();
    fixture.apply(&(0..300).map(|n| (key(n), Some(vec![1]))).collect());
    fixture.merge();
    fixture.apply(&(0..300).step_by(3).map(|n| (key(n), Some(vec![2]))).collect());
    let frozen = fixture.tree.freeze().unwrap();
    fixture.apply(&(0..300).step_by(5).map(|n| (key(n), None)).collect());
    let mut dice = Dice::new(1);
    for _ in 0..200 {
        fixture.compare_reads(&mut dice, 300);
    }
    let mut edits: Vec<(&Key, &Edit)> = frozen.iter().collect();
    edits.sort_by_key(|(k, _)| **k);
    let merged = Merger::new(&fixture.store, &mut fixture.host, TreeId::FS)
        .merge(fixture.tree.root(), &mut edits.into_iter())
        .unwrap();
    fixture.tree.publish(merged, true);
    for _ in 0..200 {
        fixture.compare_reads(&mut dice, 300);
    }
}

/// Beside commits, too: the two items of each batch are of different stripes.
#[test]
fn readers_see_all_of_a_batch_or_nothing() {
    const ROUNDS: u64 = 30_000;
    let mut fixture = Fixture::new();
    let (low, high) = (key(0), key(64));
    assert_ne!(stripe_of(low.objectid, STRIPES), stripe_of(high.objectid, STRIPES));
    let batch = |n: u64| {
        [low, high]
            .map(|key| (key, Some(ItemBytes::from(n.to_le_bytes()))))
            .to_vec()
    };
    let tree = fixture.tree.clone();
    tree.apply(batch(0));
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let (gate, is_over) = (RwLock::new(()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let _over = SetOnDrop(&is_over);
            let mut seen = 0;
            for _ in 0..ROUNDS {
                let items = tree.cursor(low, high).collect().unwrap();
                let [(_, one), (_, other)] = &items[..] else {
                    panic!("{} items", items.len())
                };
                assert_eq!(number(one), number(other), "half a batch");
                assert!(number(one) >= seen, "an old batch");
                let last = tree.get(&high).unwrap().unwrap();
                let (at, below) = tree.floor_from(&low, &key(70)).unwrap().unwrap();
                assert!(at == high && number(&below) >= number(&last) && number(&last) >= number(one));
                seen = number(&below);
            }
            seen
        });
        let writer = scope.spawn(|| {
            for n in 1.. {
                if is_over.load(Ordering::Acquire) {
                    return n - 1;
                }
                let _join = gate.read().unwrap();
                tree.apply(batch(n));
            }
            unreachable!()
        });
        while !writer.is_finished() {
            let frozen = {
                let _gate = gate.write().unwrap();
                tree.freeze()
            };
            let Some(frozen) = frozen else { continue };
            let merged = Merger::new(&fixture.store, &mut fixture.host, TreeId::FS)
                .merge(tree.root(), &mut frozen.iter())
                .unwrap();
            tree.publish(merged, true);
        }
        let (seen, last) = (reader.join().unwrap(), writer.join().unwrap());
        assert!(0 < seen && seen <= last, "{seen} of {last}");
        fixture.model = [low, high].map(|key| (key, last.to_le_bytes().to_vec())).into();
    });
    fixture.merge();
    fixture.check();
}
