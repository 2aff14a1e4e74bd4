//! Data that is lost, and who hears of it when.

use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, On};
use cowshed_vfs::{Caches, Context, Error as Errno, FallocateFlags, FileSystem, Handle, NodeId, WriteFlags};
use parking_lot::Mutex;

use super::tests::{Bench, mount_device, plain};
use super::{BLOCK, WriteCtx};
use crate::error::Error;
use crate::fs::MountOptions;

/// One file, on a device that fails when it is told to.
fn bench() -> (Bench, FaultPlan) {
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    bench.create();
    bench.engine().close().unwrap();
    let plan = FaultPlan::new();
    let faulty = FaultyDevice::new(bench.device.clone(), plan.clone());
    bench.fs = mount_device(Arc::new(faulty), &bench.options);
    (bench, plan)
}

#[test]
fn who_syncs_hears_of_lost_data_when_the_caches_know() {
    let (bench, plan) = bench();
    let (engine, inode) = (bench.engine(), bench.inode(0));
    let turn = Arc::new(Barrier::new(2));
    let told = turn.clone();
    engine.file.on_lost(Box::new(move |_, _| {
        told.wait();
        told.wait();
    }));
    super::write(engine, &inode, 0, &[7; 50_000], WriteCtx::default()).unwrap();
    // The write and its repetition. The commit finds a healthy device.
    (0..2).for_each(|nth| plan.add(Fault::error(On::Write, nth)));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| super::sync_all(engine));
        turn.wait();
        let others = [
            scope.spawn(|| super::sync_all(engine)),
            scope.spawn(|| super::write_back(engine, &inode)),
        ];
        std::thread::sleep(Duration::from_millis(100));
        let finished = others.each_ref().map(|other| other.is_finished());
        turn.wait();
        assert_eq!(finished, [false; 2], "syncfs and fsync");
        assert!(first.join().unwrap().is_err());
        assert!(others.into_iter().all(|other| other.join().unwrap().is_err()));
    });
    super::sync_all(engine).unwrap();
    super::write_back(engine, &inode).unwrap();
}

/// Notes what is lost.
#[derive(Default)]
struct Lost(Mutex<Vec<(NodeId, Vec<Range<u64>>)>>);

impl Caches for Lost {
    fn attributes_changed(&self, _: NodeId) {}
    fn content_changed(&self, _: NodeId, _: Vec<Range<u64>>) {}
    fn content_lost(&self, node: NodeId, ranges: Vec<Range<u64>>) {
        self.0.lock().push((node, ranges));
    }
    fn settle(&self) {}
}

#[test]
#[allow(clippy::single_range_in_vec_init)]
fn pages_of_a_cache_that_find_no_space_are_lost() {
    let (mut bench, _) = bench();
    bench.create();
    let (ctx, caches) = (Context::root(), Arc::new(Lost::default()));
    bench.fs.set_caches(caches.clone());
    let cowshed_vfs::Lookup::Found(entry) = bench.fs.lookup(&ctx, NodeId::ROOT, b"file0").unwrap() else {
        panic!("the file is there")
    };
    for blocks in [1 << 8, 1] {
        let filler = bench.inode(1);
        loop {
            let size = filler.attr_now().size;
            let range = size..size + blocks * BLOCK;
            match super::fallocate(bench.engine(), &filler, FallocateFlags::empty(), size, blocks * BLOCK) {
                Ok(()) => {}
                Err(Error::NoSpace) => break,
                Err(other) => panic!("{range:?}: {other}"),
            }
        }
    }
    let write = |flags| bench.fs.write(&ctx, entry.node, Handle::NONE, BLOCK, &[1; 100], flags);
    assert_eq!(write(WriteFlags::empty()), Err(Errno::NoSpace));
    assert!(caches.0.lock().is_empty(), "the caller still has it");
    assert_eq!(write(WriteFlags::FROM_CACHE), Err(Errno::NoSpace));
    assert_eq!(*caches.0.lock(), [(entry.node, vec![BLOCK..BLOCK + 100])]);
}
