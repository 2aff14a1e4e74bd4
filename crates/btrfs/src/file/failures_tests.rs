//! Data that is lost: which callers get the error, and when.

use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, On};
use cowshed_vfs::{
    Caches, Context, Error as Errno, FallocateFlags, FileSystem, Handle, NodeId, SetAttr, Volume as _, WriteFlags,
};
use parking_lot::Mutex;

use super::WriteCtx;
use super::tests::{Bench, mount_device, plain};
use crate::block::BLOCK;
use crate::error::{Error, StoreError};
use crate::fs::MountOptions;

/// One file, on a device that fails when it is told to.
fn bench() -> (Bench, FaultPlan) {
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    bench.create();
    bench.mount().close().unwrap();
    let plan = FaultPlan::new();
    let faulty = FaultyDevice::new(bench.device.clone(), plan.clone());
    bench.fs = mount_device(Arc::new(faulty), &bench.options);
    (bench, plan)
}

#[test]
fn syncs_report_lost_data_after_the_caches_were_told() {
    let (bench, plan) = bench();
    let (mount, inode) = (bench.mount(), bench.inode(0));
    let turn = Arc::new(Barrier::new(2));
    let told = turn.clone();
    mount.data().on_lost(Box::new(move |_, _| {
        told.wait();
        told.wait();
    }));
    super::write(mount, &inode, 0, &[7; 50_000], WriteCtx::default()).unwrap();
    // The write and its repetition. The commit finds a healthy device.
    (0..2).for_each(|nth| plan.add(Fault::error(On::Write, nth)));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| super::sync_all(mount));
        turn.wait();
        let others = [
            scope.spawn(|| super::sync_all(mount)),
            scope.spawn(|| super::write_back(mount, &inode)),
        ];
        std::thread::sleep(Duration::from_millis(100));
        let finished = others.each_ref().map(|other| other.is_finished());
        turn.wait();
        assert_eq!(finished, [false; 2], "syncfs and fsync");
        assert!(first.join().unwrap().is_err());
        assert!(others.into_iter().all(|other| other.join().unwrap().is_err()));
    });
    super::sync_all(mount).unwrap();
    super::write_back(mount, &inode).unwrap();
}

/// Notes what is lost, and what has changed.
#[derive(Default)]
struct Told {
    lost: Mutex<Vec<(NodeId, Vec<Range<u64>>)>>,
    changed: Mutex<Vec<(NodeId, Vec<Range<u64>>)>>,
}

impl Caches for Told {
    fn attributes_changed(&self, _: NodeId) {}
    fn content_changed(&self, node: NodeId, ranges: Vec<Range<u64>>) {
        self.changed.lock().push((node, ranges));
    }
    fn content_lost(&self, node: NodeId, ranges: Vec<Range<u64>>) {
        self.lost.lock().push((node, ranges));
    }
    fn settle(&self) {}
}

#[test]
#[allow(clippy::single_range_in_vec_init)]
fn pages_of_a_cache_that_find_no_space_are_lost() {
    let (mut bench, _) = bench();
    bench.create();
    let (ctx, caches) = (Context::root(), Arc::new(Told::default()));
    bench.fs.set_caches(caches.clone());
    let cowshed_vfs::Lookup::Found(entry) = bench.fs.lookup(&ctx, NodeId::ROOT, b"file0").unwrap() else {
        panic!("the file is there")
    };
    for blocks in [1 << 8, 1] {
        let filler = bench.inode(1);
        loop {
            let size = filler.attr_now().size;
            let range = size..size + blocks * BLOCK;
            match super::fallocate(bench.mount(), &filler, FallocateFlags::empty(), size, blocks * BLOCK) {
                Ok(()) => {}
                Err(Error::Store(StoreError::NoSpace)) => break,
                Err(other) => panic!("{range:?}: {other}"),
            }
        }
    }
    let write = |flags| bench.fs.write(&ctx, entry.node, Handle::NONE, BLOCK, &[1; 100], flags);
    assert_eq!(write(WriteFlags::empty()), Err(Errno::NoSpace));
    assert!(caches.lost.lock().is_empty(), "the caller still has it");
    assert_eq!(write(WriteFlags::FROM_CACHE), Err(Errno::NoSpace));
    assert_eq!(*caches.lost.lock(), [(entry.node, vec![BLOCK..BLOCK + 100])]);
}

/// A file of so many extents that its items are in several leaves, and that it is changed in
/// several steps.
fn make_fragments(bench: &mut Bench) {
    bench.create();
    let mount = bench.mount();
    for n in 0..FRAGMENTS {
        let at = n * 2 * BLOCK;
        super::write(mount, &bench.inode(0), at, &[7; BLOCK as usize], WriteCtx::default()).unwrap();
    }
    mount.close().unwrap();
}

const FRAGMENTS: u64 = 500;

/// Linux takes a call that failed for one that changed nothing.
#[test]
fn caches_are_told_of_the_steps_before_a_failure() {
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    make_fragments(&mut bench);
    let ctx = Context::root();
    let whole = FRAGMENTS * 2 * BLOCK;
    let mut halves = [0, 0];
    for (kind, nth) in (0..40).flat_map(|nth| [(0, nth), (1, nth)]) {
        let plan = FaultPlan::new();
        let device = Arc::new(bench.device.snapshot());
        bench.fs = mount_device(Arc::new(FaultyDevice::new(device, plan.clone())), &bench.options);
        let caches = Arc::new(Told::default());
        bench.fs.set_caches(caches.clone());
        let cowshed_vfs::Lookup::Found(entry) = bench.fs.lookup(&ctx, NodeId::ROOT, b"file0").unwrap() else {
            panic!("the file is there")
        };
        // Both copies.
        (0..2).for_each(|copy| plan.add(Fault::error(On::Read, nth + copy)));
        let done = match kind {
            0 => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                bench.fs.fallocate(&ctx, entry.node, Handle::NONE, 0, whole, punch)
            }
            _ => {
                let set = SetAttr {
                    size_bytes: Some(0),
                    ..SetAttr::default()
                };
                bench.fs.setattr(&ctx, entry.node, None, &set).map(drop)
            }
        };
        if done.is_ok() {
            continue;
        }
        let inode = bench.inode(0);
        let size = inode.attr_now().size;
        let mut first = [7];
        let read = super::read(bench.mount(), &inode, 0, &mut first);
        if size < whole - BLOCK || (read.is_ok() && first[0] == 0) {
            halves[kind] += 1;
            assert!(
                !caches.changed.lock().is_empty(),
                "{kind}, read {nth} fails: who remembers it is not told"
            );
        }
    }
    assert!(halves.iter().all(|n| *n > 0), "no call ended half-way: {halves:?}");
}
