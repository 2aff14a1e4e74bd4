//! Empty block groups that go: of all profiles, judged by the kernel; what is not free before its
//! commit is done; beside threads that allocate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use btrfs_format::KeyType;
use btrfs_format::features::block_group;
use cowshed_device::{BlockDevice, MemDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, need, progs};

use super::tests::{Filler, SECTOR, assert_views_agree, devices, open_engine, open_engine_on, volumes};
use super::*;
use crate::testing::{Dice, Engine, SetOnDrop, memory_device};
use crate::txn::Batch;

const MIB: u64 = 1 << 20;

/// Fills the volume with data; gives the bytes.
fn fill(filler: &mut Filler) -> u64 {
    let mut bytes = 0;
    for step in [16 * MIB, MIB, SECTOR] {
        while let Ok(len) = filler.append(step) {
            bytes += len;
        }
    }
    bytes
}

fn empty(engine: &Engine, filler: &mut Filler) {
    filler.punch(|_| true).unwrap();
    engine.commit().unwrap();
}

/// Promises as many tree blocks as can be had; gives them.
fn promise_all(space: &Space) -> Vec<MetaReservation> {
    let budget = Budget {
        purpose: Purpose::Other,
        blocks: 64,
        is_release: false,
    };
    std::iter::from_fn(|| space.reserve_meta(budget).ok()).collect()
}

fn kinds(space: &Space) -> BTreeMap<u64, usize> {
    let mut kinds = BTreeMap::new();
    for group in &space.all_groups() {
        *kinds.entry(group.flags).or_default() += 1;
    }
    kinds
}

fn take_turns(engine: &Arc<Engine>, what: &str) {
    let space = engine.store.space();
    let mut filler = Filler::create(engine, 257);
    let first = fill(&mut filler);
    empty(engine, &mut filler);
    let before = kinds(space);
    let groups = space.groups.read().len() as u64;
    // An empty volume has none of this to spare, unless groups go.
    let promised = promise_all(space);
    let stats = space.group_stats();
    assert!(stats.retired > 0, "{what}: {before:?}");
    assert_eq!(groups, space.groups.read().len() as u64 + stats.retired, "{what}");
    assert_views_agree(space, &format!("{what}: groups gone"));
    let after = kinds(space);
    for (flags, count) in &before {
        let is_data = flags & block_group::DATA != 0;
        let left = after.get(flags).copied().unwrap_or(0);
        assert!(
            left == if is_data { 1 } else { *count },
            "{what}: {before:?}, then {after:?}"
        );
    }
    let report = btrfs_check::check(&devices_of(engine), &btrfs_check::CheckOptions::default());
    assert!(report.is_clean(), "{what}: groups gone\n{report}");
    // As many tree blocks again need no more: the room is there.
    drop(promised);
    drop(promise_all(space));
    assert_eq!(space.group_stats(), stats, "{what}");
    // The room of what went is used again, and as much fits as before.
    let again = fill(&mut filler);
    let chunk_bytes = space.groups.read().values().map(|g| g.shape.len_bytes).max();
    assert!(
        again + chunk_bytes.unwrap_or(0) >= first,
        "{what}: {first} bytes, then {again}"
    );
    engine.commit().unwrap();
    assert_views_agree(space, &format!("{what}: full again"));
    engine.close().unwrap();
    crate::testing::assert_nothing_reserved(space);
}

fn devices_of(engine: &Engine) -> Vec<Arc<dyn BlockDevice>> {
    engine
        .store
        .volume()
        .devices()
        .into_iter()
        .filter_map(|d| d.device)
        .collect()
}

fn judged_by_the_kernel(volume: &KernelVolume, what: &str) {
    let check = |when: &str| {
        let report = volume.check(progs::CheckOptions::default()).unwrap();
        assert!(report.clean, "{what}, {when}:\n{}", report.output);
    };
    check("as we left it");
    volume
        .with_mount(|root| {
            std::fs::remove_file(root.join("filler-257"))?;
            std::fs::write(root.join("new"), vec![3; 3 << 20])?;
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{what}: {e:#}"));
    check("after the kernel");
    let report = btrfs_check::check(
        &devices(volume, OpenMode::ReadOnly),
        &btrfs_check::CheckOptions::default(),
    );
    assert!(report.is_clean(), "{what}:\n{report}");
}

#[test]
fn groups_of_every_profile_go_and_their_room_is_used() {
    let Some(()) = need::kernel_btrfs() else { return };
    for options in volumes() {
        if options.features.contains(&"^no-holes") || options.mixed {
            // Holes by hand need no-holes; mixed groups serve all, so no other pool asks for their
            // room.
            continue;
        }
        let volume = KernelVolume::make(&options).unwrap();
        let what = options.describe();
        take_turns(&open_engine(&volume), &what);
        judged_by_the_kernel(&volume, &what);
    }
}

/// The old cache of a group's free space is an inode that goes with it, which we know nothing of.
#[test]
fn groups_with_a_version_1_cache_stay() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions {
        runtime_features: vec!["^free-space-tree"],
        ..VolumeOptions::default()
    })
    .unwrap();
    let engine = open_engine(&volume);
    let mut filler = Filler::create(&engine, 100_000);
    fill(&mut filler);
    empty(&engine, &mut filler);
    let last = engine.store.space().pools[Pool::Data as usize]
        .read()
        .last()
        .unwrap()
        .clone();
    let key = Key::new(ObjectId::FREE_SPACE, KeyType::UNTYPED, last.shape.start);
    let reservation = engine.reserve(Budget::SETATTR).unwrap();
    let mut batch = Batch::new();
    batch.put(&engine.store.space().trees.root, key, &[0; 41][..]);
    engine.store.txn().join().apply(batch, reservation);
    drop(promise_all(engine.store.space()));
    assert!(engine.store.space().group_stats().retired > 0);
    assert!(engine.store.space().groups.read().contains_key(&last.shape.start));
    engine.close().unwrap();
}

/// Until the superblock is on disk that does not know a group, what the last one knows is as it
/// was.
#[test]
fn the_room_of_a_group_is_free_when_the_commit_that_removed_it_is_done() {
    let engine = open_engine_on(vec![memory_device(512 << 20, 16384)]);
    let space = engine.store.space();
    let mut filler = Filler::create(&engine, 257);
    fill(&mut filler);
    empty(&engine, &mut filler);
    let addable = || space.chunks.lock().addable_bytes(Pool::Metadata, None);
    let (before, groups, chunks) = (
        addable(),
        space.groups.read().len(),
        engine.store.volume().chunks().len(),
    );
    let free_before = space.ledger.pool(Pool::Data).free;
    assert!(space.want_retired_for(Pool::Metadata));
    assert!(!space.want_retired_for(Pool::System) || space.has_changes());
    space.retire_groups();
    let data = space.pools[Pool::Data as usize].read().clone();
    assert_eq!(data.len(), 1, "nothing comes into the others any more");
    assert_eq!(space.ledger.pool(Pool::Data).free, data[0].usable_bytes());
    assert!(free_before > data[0].usable_bytes());
    let edits = space.take_edits(Generation(9)).unwrap();
    let deleted = |tree| edits.iter().filter(|e| e.0 == tree && e.2.is_none()).count();
    let others: usize = [1, 2].map(|pool| space.pools[pool].read().len()).iter().sum();
    let gone = groups - data.len() - others;
    assert!(gone > 1);
    assert_eq!(deleted(TreeId::CHUNK), gone);
    assert_eq!(deleted(TreeId::DEV), gone, "one stripe each");
    assert_eq!(deleted(TreeId::BLOCK_GROUP), gone);
    assert!(
        deleted(TreeId::FREE_SPACE) >= 2 * gone,
        "what was free, and the group's own item"
    );
    assert_eq!(
        (addable(), space.groups.read().len()),
        (before, groups),
        "not before the commit is done"
    );
    assert_eq!(engine.store.volume().chunks().len(), chunks);
    space.commit_done();
    assert!(addable() > before);
    assert_eq!(space.groups.read().len(), groups - gone);
    assert_eq!(engine.store.volume().chunks().len(), chunks - gone);
    assert_eq!(space.group_stats().retired, gone as u64);
    // The edits went nowhere: nothing of this may be written.
    engine.store.txn().abort("a test ends");
}

/// A group that covers a reservation is not retired, whichever pool needs the room.
#[test]
fn groups_that_promises_need_stay() {
    let engine = open_engine_on(vec![memory_device(512 << 20, 16384)]);
    let space = engine.store.space();
    let mut filler = Filler::create(&engine, 257);
    fill(&mut filler);
    empty(&engine, &mut filler);
    let free = space.ledger.pool(Pool::Data).free;
    let mut held = space.reserve_data(free - SECTOR).unwrap();
    drop(promise_all(space));
    assert_eq!(space.group_stats().retired, 0);
    let half = held.split(held.bytes() / 2);
    drop(half);
    drop(promise_all(space));
    assert!(space.group_stats().retired > 0);
    while held.bytes() > 0 {
        let bytes = held.bytes();
        let (addr, len) = space.alloc_data(&mut held, bytes).unwrap();
        space.unalloc_data(addr, len);
    }
    engine.close().unwrap();
}

/// Threads allocate and give back while others want the room: no byte is given twice, none is lost,
/// no promise is broken.
#[test]
fn groups_go_while_threads_allocate() {
    let device = Arc::new(MemDevice::new("memory", 400 << 20));
    let devices: Vec<Arc<dyn BlockDevice>> = vec![device];
    btrfs_image::mkfs(&devices, &btrfs_image::MkfsOptions::new([0x5b; 16])).unwrap();
    let engine = open_engine_on(devices.clone());
    let stop = AtomicBool::new(false);
    let space = engine.store.space();
    std::thread::scope(|scope| {
        let end = SetOnDrop(&stop);
        let workers: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn(move || {
                    let mut dice = Dice::new(200 + thread);
                    for round in 0..40 {
                        let mut held: Vec<(LogicalAddr, u64)> = Vec::new();
                        // Up and down, so that groups are made and become empty.
                        for _ in 0..60 {
                            let Ok(mut data) = space.reserve_data(SECTOR * (1 + dice.below(700))) else {
                                continue;
                            };
                            while data.bytes() > 0 {
                                let bytes = data.bytes();
                                held.push(space.alloc_data(&mut data, bytes).unwrap());
                            }
                        }
                        let kept = if round % 4 == 0 { 0 } else { held.len() / 3 };
                        for (addr, len) in held.drain(kept..) {
                            space.unalloc_data(addr, len);
                        }
                        for (addr, len) in held {
                            space.unalloc_data(addr, len);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                drop(promise_all(space));
                std::thread::yield_now();
            }
        });
        // Commits, for as long as there is something for them to meet.
        let mut filler = Filler::create(&engine, 257);
        while workers.iter().any(|worker| !worker.is_finished()) {
            let _ = filler.append(SECTOR * 7);
            engine.commit().unwrap();
        }
        for worker in workers {
            worker.join().unwrap();
        }
        drop(end);
        empty(&engine, &mut filler);
    });
    assert_views_agree(space, "after all threads");
    // Whether a group was empty at the moment of a request depends on the scheduler; now all are.
    drop(promise_all(space));
    let stats = space.group_stats();
    assert!(stats.retired > 0, "{stats:?}");
    assert_views_agree(space, "groups gone");
    engine.close().unwrap();
    crate::testing::assert_nothing_reserved(space);
    let report = btrfs_check::check(&devices, &btrfs_check::CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}
