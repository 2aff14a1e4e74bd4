//! Commits of hand-made items: merged, settled, durable, and content for the independent checker
//! after each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use btrfs_check::{CheckOptions, Finding, FindingId, Severity, check};
use btrfs_format::hash::name_hash;
use btrfs_format::items::{DirItem, InodeItem, InodeRef, file_type};
use btrfs_format::superblock::SUPERBLOCK_OFFSETS;
use btrfs_format::{DiskKey, Generation, Key, KeyType, ObjectId, TreeId};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::crash::{CrashImages, Options};
use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, Log, On};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::space::Budget;
use crate::testing::{Dice, Engine, SetOnDrop, memory_device};
use crate::tree::Tree;
use crate::txn::Batch;

const ROOT_DIR: ObjectId = ObjectId(256);

fn open(device: &Arc<dyn BlockDevice>) -> Arc<Engine> {
    Engine::open(vec![device.clone()])
}

fn assert_clean(device: &Arc<dyn BlockDevice>, when: &str) {
    let report = check(std::slice::from_ref(device), &CheckOptions::default());
    assert!(report.is_clean(), "{when}:\n{report}");
    // The kernel's own numbers drift by a block now and then; ours are exact.
    assert!(!report.has(FindingId::RootBytesUsed), "{when}:\n{report}");
}

/// Copies of the superblock stand in for each other.
fn assert_clean_but_mirrors(device: &Arc<dyn BlockDevice>, when: &str) {
    let report = check(std::slice::from_ref(device), &CheckOptions::default());
    let is_fine = |finding: &Finding| finding.severity == Severity::Note || finding.id == FindingId::SuperMirror;
    assert!(report.findings.iter().all(is_fine), "{when}:\n{report}");
}

fn dir_item(ino: u64, generation: Generation, name: &[u8]) -> Vec<u8> {
    let head = DirItem {
        location: DiskKey::from(Key::new(ObjectId(ino), KeyType::INODE_ITEM, 0)),
        transid: generation.into(),
        data_len: U16::new(0),
        name_len: U16::new(name.len() as u16),
        ty: file_type::REG_FILE,
    };
    [head.as_bytes(), name].concat()
}

/// The four items of an empty file and its parent's new size, as one batch.
fn create(engine: &Engine, tree: &Arc<Tree>, ino: u64, name: &[u8], is_created: bool) {
    let reservation = engine.reserve(Budget::CREATE).unwrap();
    let join = engine.store.txn().join();
    let parent_key = Key::new(ROOT_DIR, KeyType::INODE_ITEM, 0);
    let parent_item = tree.get(&parent_key).unwrap().unwrap();
    let mut parent = InodeItem::read_from_bytes(&parent_item).unwrap();
    let delta = 2 * name.len() as u64;
    parent.size = U64::new(if is_created {
        parent.size.get() + delta
    } else {
        parent.size.get() - delta
    });
    parent.transid = join.generation().into();
    let mut inode = InodeItem::new_zeroed();
    inode.generation = join.generation().into();
    inode.transid = join.generation().into();
    inode.nlink = U32::new(1);
    inode.mode = U32::new(0o100_644);
    let inode_ref = InodeRef {
        index: U64::new(ino),
        name_len: U16::new(name.len() as u16),
    };
    let items = [
        (
            Key::new(ObjectId(ino), KeyType::INODE_ITEM, 0),
            inode.as_bytes().to_vec(),
        ),
        (
            Key::new(ObjectId(ino), KeyType::INODE_REF, ROOT_DIR.get()),
            [inode_ref.as_bytes(), name].concat(),
        ),
        (
            Key::new(ROOT_DIR, KeyType::DIR_ITEM, name_hash(name)),
            dir_item(ino, join.generation(), name),
        ),
        (
            Key::new(ROOT_DIR, KeyType::DIR_INDEX, ino),
            dir_item(ino, join.generation(), name),
        ),
    ];
    let mut batch = Batch::new();
    for (key, bytes) in items {
        if is_created {
            batch.put(tree, key, bytes)
        } else {
            batch.delete(tree, key)
        }
    }
    batch.put(tree, parent_key, parent.as_bytes());
    join.apply(batch, reservation);
}

/// Full leaves are written when there are so many: the commits here are small.
const FEW_LEAVES: usize = 3;

fn name(ino: u64) -> Vec<u8> {
    format!("file-{ino}-{}", "x".repeat((ino % 40) as usize)).into_bytes()
}

#[test]
fn commits_of_random_creates_and_removals_stay_clean() {
    for nodesize in [4096, 16384] {
        let device = memory_device(512 << 20, nodesize);
        assert_clean(&device, "fresh");
        let mut dice = Dice::new(7);
        let mut alive = std::collections::BTreeSet::new();
        let mut next = 257;
        for round in 0..12 {
            let engine = open(&device);
            if round % 2 == 1 {
                engine.store.nodes().set_full_bytes_max(FEW_LEAVES * nodesize as usize);
            }
            let tree = engine.store.forest().require(TreeId::FS).unwrap();
            let removing = round % 4 == 3;
            for _ in 0..dice.below(3000) {
                if removing || (!alive.is_empty() && dice.below(4) == 0) {
                    let Some(ino) = alive.range(257 + dice.below(next - 256)..).next().copied() else {
                        continue;
                    };
                    alive.remove(&ino);
                    create(&engine, &tree, ino, &name(ino), false);
                } else {
                    alive.insert(next);
                    create(&engine, &tree, next, &name(next), true);
                    next += 1;
                }
                if dice.below(500) == 0 {
                    engine.commit().unwrap();
                    assert_clean(&device, &format!("nodesize {nodesize}, round {round}, in between"));
                }
            }
            engine.close().unwrap();
            assert_clean(&device, &format!("nodesize {nodesize}, round {round}"));
        }
        let engine = open(&device);
        let tree = engine.store.forest().require(TreeId::FS).unwrap();
        let mut cursor = tree.cursor_type(Key::new(ROOT_DIR, KeyType::DIR_INDEX, 0));
        let mut found = Vec::new();
        while let Some((key, _)) = cursor.next().unwrap() {
            found.push(key.offset);
        }
        assert_eq!(found, alive.iter().copied().collect::<Vec<_>>());
    }
}

#[test]
fn a_commit_of_nothing_writes_nothing() {
    let device = memory_device(256 << 20, 16384);
    let engine = open(&device);
    let before = engine.store.volume().superblock().generation.get();
    engine.commit().unwrap();
    assert_eq!(engine.store.volume().superblock().generation.get(), before);
    let tree = engine.store.forest().require(TreeId::FS).unwrap();
    create(&engine, &tree, 257, b"one", true);
    engine.commit().unwrap();
    assert_eq!(engine.store.volume().superblock().generation.get(), before + 1);
    engine.commit().unwrap();
    assert_eq!(engine.store.volume().superblock().generation.get(), before + 1);
}

const NAMES: u64 = 2000;
const NODESIZE: u32 = 4096;

/// An engine on a device that fails when it is told to, with many names pending, whose full leaves
/// are written early.
fn with_names() -> (Arc<dyn BlockDevice>, FaultPlan, Arc<Engine>) {
    let (device, plan) = (memory_device(256 << 20, NODESIZE), FaultPlan::new());
    let faulty: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(device.clone(), plan.clone()));
    let engine = open(&faulty);
    engine.store.nodes().set_full_bytes_max(FEW_LEAVES * NODESIZE as usize);
    let tree = engine.store.forest().require(TreeId::FS).unwrap();
    (0..NAMES).for_each(|n| create(&engine, &tree, 257 + n, &name(n), true));
    (device, plan, engine)
}

/// How many of the names are there; each has the item that it was given.
fn names_of(engine: &Engine) -> usize {
    let tree = engine.store.forest().require(TreeId::FS).unwrap();
    let is_there = |n: &u64| {
        let key = Key::new(ROOT_DIR, KeyType::DIR_INDEX, 257 + n);
        let item = tree.get(&key).unwrap();
        item.is_some_and(|item| item[size_of::<DirItem>()..] == name(*n))
    };
    (0..NAMES).filter(is_there).count()
}

#[test]
fn leaves_that_are_written_early_are_not_kept_and_readers_see_all_of_them() {
    let (_, _, engine) = with_names();
    engine.commit().unwrap();
    let written = engine.commit_stats().blocks_written * u64::from(NODESIZE);
    assert!(written > NAMES * 300, "all are counted: {written}");
    assert!(
        (engine.store.nodes().clean_bytes() as u64) < written / 2,
        "of {written}"
    );

    let (device, _, engine) = with_names();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = SetOnDrop(&is_over);
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                assert_eq!(names_of(&engine), NAMES as usize);
            }
        });
        engine.commit().unwrap();
        drop(end);
        reader.join().unwrap();
    });
    assert_clean(&device, "leaves written early");
    assert_eq!(names_of(&open(&device)), NAMES as usize);
}

#[test]
fn what_is_written_early_of_a_commit_that_fails_is_nothing() {
    let (device, plan, engine) = with_names();
    // In the midst of the merge.
    plan.add(Fault::error(On::Write, 20).forever());
    engine.commit().unwrap_err();
    assert!(engine.store.txn().is_aborted());
    assert!(plan.counts().writes > 20, "some were written");
    assert_eq!(names_of(&engine), NAMES as usize, "readers keep what they see");
    assert_clean(&device, "as before the commit");
    assert_eq!(names_of(&open(&device)), 0);
}

#[test]
fn a_crash_finds_all_that_was_written_early_or_nothing_of_it() {
    let device = memory_device(256 << 20, NODESIZE);
    let base = MemDevice::copy_of("base", device.as_ref()).unwrap();
    let log = Log::new();
    let recorded: Arc<dyn BlockDevice> = Arc::new(log.record(device));
    let engine = open(&recorded);
    engine.store.nodes().set_full_bytes_max(FEW_LEAVES * NODESIZE as usize);
    let tree = engine.store.forest().require(TreeId::FS).unwrap();
    (0..NAMES).for_each(|n| create(&engine, &tree, 257 + n, &name(n), true));
    engine.commit().unwrap();
    let events = log.take();
    let options = Options {
        sampled_images: 30,
        prefix_images_max: 30,
        torn_images: 10,
        ..Options::default()
    };
    let mut seen = [0, 0];
    for image in CrashImages::new(&[base], &events, options) {
        let name = image.to_string();
        let device: Arc<dyn BlockDevice> = Arc::new(image.devices.into_iter().next().unwrap());
        assert_clean_but_mirrors(&device, &name);
        let found = names_of(&open(&device));
        assert!([0, NAMES as usize].contains(&found), "{found} names: {name}");
        seen[usize::from(found > 0)] += 1;
    }
    assert!(seen[0] > 20 && seen[1] > 0, "{seen:?}");
}

#[test]
fn readers_of_a_commit_without_superblock_keep_what_they_see() {
    let (device, plan, engine) = with_names();
    let at = SUPERBLOCK_OFFSETS[0];
    plan.add(Fault::error(On::Write, 0).forever().within(at..at + 4096));
    engine.commit().unwrap_err();
    assert_eq!(names_of(&engine), NAMES as usize);
    engine.store.nodes().drop_clean();
    assert_eq!(names_of(&engine), NAMES as usize, "from the device");
    assert_clean(&device, "as before the commit");
    assert_eq!(names_of(&open(&device)), 0);
}
