//! Commits of hand-made items: merged, settled, durable, and content for the independent checker after each of them.

use std::sync::Arc;

use btrfs_check::{CheckOptions, FindingId, check};
use btrfs_format::hash::name_hash;
use btrfs_format::items::{DirItem, InodeItem, InodeRef, file_type};
use btrfs_format::{DiskKey, Generation, Key, KeyType, ObjectId, TreeId};
use cowshed_device::BlockDevice;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::Batch;
use crate::engine::{Engine, EngineOptions};
use crate::env::FixedEnv;
use crate::space::Budget;
use crate::testing::{Dice, memory_device};
use crate::tree::Tree;
use crate::volume::{OpenOptions, Volume};

const ROOT_DIR: ObjectId = ObjectId(256);

fn open(device: &Arc<dyn BlockDevice>) -> Arc<Engine> {
    let volume = Volume::open(vec![device.clone()], &OpenOptions::default()).unwrap();
    let options = EngineOptions {
        commit_interval_s: 0,
        ..EngineOptions::default()
    };
    Engine::open(volume, Arc::new(FixedEnv::default()), options).unwrap()
}

fn assert_clean(device: &Arc<dyn BlockDevice>, when: &str) {
    let report = check(std::slice::from_ref(device), &CheckOptions::default());
    assert!(report.is_clean(), "{when}:\n{report}");
    // The kernel's own numbers drift by a block now and then; ours are exact.
    assert!(!report.has(FindingId::RootBytesUsed), "{when}:\n{report}");
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
    let join = engine.txn.join();
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
            let tree = engine.forest.require(TreeId::FS).unwrap();
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
        let tree = engine.forest.require(TreeId::FS).unwrap();
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
    let before = engine.volume.superblock().generation.get();
    engine.commit().unwrap();
    assert_eq!(engine.volume.superblock().generation.get(), before);
    let tree = engine.forest.require(TreeId::FS).unwrap();
    create(&engine, &tree, 257, b"one", true);
    engine.commit().unwrap();
    assert_eq!(engine.volume.superblock().generation.get(), before + 1);
    engine.commit().unwrap();
    assert_eq!(engine.volume.superblock().generation.get(), before + 1);
}
