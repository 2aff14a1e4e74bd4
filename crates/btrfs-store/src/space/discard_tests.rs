//! Claims: an allocation beside a discard finds what is free, and nothing of what is being
//! discarded. What commits, logs and chunks that go leave to be discarded.

use std::sync::Arc;

use btrfs_format::DevId;
use btrfs_format::features::block_group;
use cowshed_device::BlockDevice;
use cowshed_device_sim::{Event, Log};
use parking_lot::{Condvar, Mutex};

use super::placement::Device;
use super::ranges::{Holes, RangeSet};
use super::tests::{Filler, open_engine_on};
use super::*;
use crate::testing::{Engine, SetOnDrop, memory_device};

const MIB: u64 = 1 << 20;

/// A device on which a discard takes as long as the gate is closed, and then destroys what it
/// covers.
#[derive(Debug)]
struct Gate {
    below: Arc<dyn BlockDevice>,
    /// The gate is closed; discards that wait before it.
    state: Mutex<(bool, Vec<Range<u64>>)>,
    bell: Condvar,
}

impl Gate {
    fn await_discard(&self) {
        let mut state = self.state.lock();
        while state.1.is_empty() {
            self.bell.wait(&mut state);
        }
    }
    fn open(&self) {
        self.state.lock().0 = false;
        self.bell.notify_all();
    }
}

impl BlockDevice for Gate {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn sector_size_bytes(&self) -> u32 {
        self.below.sector_size_bytes()
    }
    fn name(&self) -> &str {
        self.below.name()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> cowshed_device::Result<()> {
        self.below.read_at(offset_bytes, buf)
    }
    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> cowshed_device::Result<()> {
        let end = offset_bytes + buf.len() as u64;
        for discard in &self.state.lock().1 {
            assert!(
                discard.end <= offset_bytes || end <= discard.start,
                "a write into a discard"
            );
        }
        self.below.write_at(offset_bytes, buf)
    }
    fn flush(&self) -> cowshed_device::Result<()> {
        self.below.flush()
    }
    fn discard_granularity_bytes(&self) -> Option<u64> {
        Some(512)
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> cowshed_device::Result<()> {
        let range = offset_bytes..offset_bytes + len_bytes;
        let mut state = self.state.lock();
        state.1.push(range.clone());
        self.bell.notify_all();
        while state.0 {
            self.bell.wait(&mut state);
        }
        state.1.retain(|other| *other != range);
        drop(state);
        self.below.discard(offset_bytes, len_bytes)
    }
}

#[test]
fn allocation_of_all_that_is_free_waits_for_a_discard_and_succeeds() {
    let gate = Arc::new(Gate {
        below: memory_device(256 * MIB, 16384),
        state: Mutex::new((true, Vec::new())),
        bell: Condvar::new(),
    });
    let engine = open_engine_on(vec![gate.clone()]);
    let space = engine.store.space();
    // All room becomes data: what is free then lies in groups.
    let mut filler = Filler::create(&engine, 257);
    for step in [16 * MIB, MIB, 4096] {
        while filler.append(step).is_ok() {}
    }
    filler.punch(|_| true).unwrap();
    engine.commit().unwrap();
    let free = space.ledger.pool(Pool::Data).free;
    let mut data = space.reserve_data(free).unwrap();
    let (mut got, mut pieces) = (RangeSet::default(), Vec::new());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| space.discard_free(0..u64::MAX, 0));
        gate.await_discard();
        // As soon as the allocation waits for the claim, it is let go.
        let failed = SetOnDrop(&is_over);
        let opener = scope.spawn(|| {
            while space.discards.claims.lock().pauses == 0 && !is_over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            gate.open();
        });
        while data.bytes() > 0 {
            let (addr, len) = space.alloc_data(&mut data, 8 * MIB).unwrap();
            let new = got.insert(range_of(addr, len), |_| {});
            assert_eq!(new, len, "each byte is given once");
            pieces.push((addr, len));
        }
        drop(failed);
        opener.join().unwrap();
        trim.join().unwrap().unwrap();
    });
    assert_eq!(got.total_bytes(), free);
    for (addr, len) in pieces {
        space.unalloc_data(addr, len);
    }
}

/// How many groups go for metadata, with a discard of free space under way or without one.
fn retired(is_discarding: bool) -> u64 {
    let gate = Arc::new(Gate {
        below: memory_device(256 * MIB, 16384),
        state: Mutex::new((is_discarding, Vec::new())),
        bell: Condvar::new(),
    });
    let engine = open_engine_on(vec![gate.clone()]);
    let space = engine.store.space();
    let mut filler = Filler::create(&engine, 257);
    while filler.append(16 * MIB).is_ok() {}
    filler.punch(|_| true).unwrap();
    engine.commit().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let failed = SetOnDrop(&is_over);
        if is_discarding {
            // The newest one would go first; the oldest one stays in any case.
            let groups = space.groups.read();
            let newest = groups.values().rfind(|group| group.is_of(block_group::DATA));
            let range = newest.expect("there was data").range();
            drop(groups);
            scope.spawn(move || space.discard_free(range, 0).unwrap());
            gate.await_discard();
            scope.spawn(|| {
                while space.discards.claims.lock().pauses == 0 && !is_over.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                gate.open();
            });
        }
        let budget = Budget {
            purpose: Purpose::Other,
            blocks: 64,
            is_release: false,
        };
        let promised: Vec<_> = std::iter::from_fn(|| space.reserve_meta(budget).ok()).collect();
        drop((promised, failed));
    });
    space.group_stats().retired
}

#[test]
fn groups_of_which_something_is_being_discarded_are_removed_for_others_all_the_same() {
    let expected = retired(false);
    assert!(expected > 0);
    assert_eq!(retired(true), expected);
}

/// What was discarded, in order of the addresses of the device.
fn discards(log: &Log) -> RangeSet {
    let mut all = RangeSet::default();
    for event in log.take() {
        if let Event::Discard {
            offset_bytes,
            len_bytes,
            ..
        } = event
        {
            all.insert(offset_bytes..offset_bytes + len_bytes, |_| {});
        }
    }
    all
}

#[test]
fn room_of_chunks_that_went_is_discarded_after_the_commit_without_them() {
    let log = Log::new();
    let device = Arc::new(log.record(memory_device(256 * MIB, 16384)));
    let engine = Engine::open_with(vec![device], 1 << 29, true);
    let space = engine.store.space();
    let mut filler = Filler::create(&engine, 257);
    while filler.append(16 * MIB).is_ok() {}
    filler.punch(|_| true).unwrap();
    engine.commit().unwrap();
    let chunks = |space: &Space| space.chunks.lock().devices[0].taken.clone();
    let before = chunks(space);
    log.take();
    let budget = Budget {
        purpose: Purpose::Other,
        blocks: 64,
        is_release: false,
    };
    let promised: Vec<_> = std::iter::from_fn(|| space.reserve_meta(budget).ok()).collect();
    assert!(space.group_stats().retired > 0);
    let mut gone = before;
    for range in chunks(space).iter() {
        gone.remove(range, |_| {});
    }
    let done = discards(&log);
    assert!(!gone.is_empty());
    for range in gone.iter() {
        // What a chunk has taken again since is not looked for.
        assert!(done.intersects(&range), "{range:?} of {done:?}");
    }
    drop(promised);
    engine.close().unwrap();
}

#[test]
fn freed_ranges_are_not_collected_without_discards() {
    let engine = Engine::open(vec![memory_device(256 * MIB, 16384)]);
    let mut filler = Filler::create(&engine, 257);
    filler.append(MIB).unwrap();
    engine.commit().unwrap();
    filler.punch(|_| true).unwrap();
    engine.commit().unwrap();
    assert!(engine.store.space().take_freed(1000, 0).is_empty());
}

#[test]
fn short_ranges_wait_for_their_neighbours() {
    let engine = Engine::open_with(vec![memory_device(256 * MIB, 16384)], 1 << 29, true);
    let space = engine.store.space();
    space.take_freed(1000, 0);
    for n in [0, 2, 3, 8] {
        space.discards.note(n * 4096..(n + 1) * 4096);
    }
    assert_eq!(space.take_freed(10, 8192), [Freed::Logical(2 * 4096..4 * 4096)]);
    space.discards.note(9 * 4096..12 * 4096);
    assert_eq!(space.take_freed(1, 0), [Freed::Logical(0..4096)]);
    space.discards.forget(9 * 4096..10 * 4096);
    assert_eq!(space.take_freed(9, 8192), [Freed::Logical(10 * 4096..12 * 4096)]);
    assert_eq!(space.take_freed(9, 0), [Freed::Logical(8 * 4096..9 * 4096)]);
    assert!(space.take_freed(9, 0).is_empty());
}

#[test]
fn room_leaves_superblocks_and_chunks_out() {
    let mut taken = RangeSet::default();
    taken.insert(10 * MIB..20 * MIB, |_| {});
    taken.insert(63 * MIB..64 * MIB, |_| {});
    let device = Device {
        devid: DevId(1),
        uuid: [1; 16],
        total_bytes: 300 * MIB,
        used_bytes: 11 * MIB,
        writable: true,
        taken,
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(room) = discard::next_room(&device, at..u64::MAX) {
        at = room.end;
        found.push(room);
    }
    let copy_end = 64 * MIB + (64 << 10);
    assert_eq!(
        found,
        [
            MIB..10 * MIB,
            20 * MIB..63 * MIB,
            copy_end..copy_end + 128 * MIB,
            copy_end + 128 * MIB..300 * MIB
        ]
    );
    assert_eq!(discard::next_room(&device, 12 * MIB..18 * MIB), None);
    assert_eq!(
        discard::next_room(&device, 15 * MIB..30 * MIB),
        Some(20 * MIB..30 * MIB)
    );
    assert_eq!(discard::next_room(&device, 300 * MIB..u64::MAX), None);
}

#[test]
fn parts_of_holes_are_taken_and_come_back() {
    let mut free = RangeSet::default();
    free.insert(0..100, |_| {});
    free.insert(200..300, |_| {});
    let mut holes = Holes::new(free.clone());
    let used = holes.alloc(10).unwrap();
    assert_eq!(
        holes.next_hole(0..1000, 0),
        Some(if used.start == 0 { 10..100 } else { 0..100 })
    );
    assert_eq!(holes.next_hole(0..1000, 101), None);
    assert_eq!(holes.next_hole(150..1000, 90).map(|hole| hole.end), Some(300));
    assert_eq!(holes.next_hole(250..260, 0), Some(250..260));
    let parts = holes.take_parts(50..250);
    assert_eq!(
        parts.iter().map(|part| part.end - part.start).sum::<u64>(),
        50 + 50 - if used.start == 200 { 10 } else { 0 }
    );
    assert!(parts.iter().all(|part| !holes.intersects(part)));
    parts.into_iter().for_each(|part| holes.free(part));
    holes.free(used);
    assert_eq!(holes.to_set(), free);
    assert_eq!(holes.alloc(100).map(|range| range.end - range.start), Some(100));
}
