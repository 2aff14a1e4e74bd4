//! What is bounded: dirty memory under writers that are faster than the device, the size of extents, the blocks that a seek
//! reads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cowshed_device::BlockDevice;
use cowshed_device_sim::{Fault, FaultKind, FaultPlan, FaultyDevice, On};
use cowshed_vfs::SeekKind;

use super::extent::{Extent, Walk, extent_key};
use super::tests::{Bench, mount_device, plain};
use super::{BLOCK, WriteCtx};
use crate::fs::MountOptions;
use crate::inode::Inode;
use crate::testing::SetOnDrop;
use crate::tree::Run;

const WRITERS: u64 = 3;
const DIRTY_BYTES_MAX: u64 = 1 << 20;
const WRITE_BYTES: u64 = 64 << 10;

/// The most that was dirty while so many writers wrote 8 MiB each, into files of their own or into one.
fn peak_of_writers(files: usize) -> u64 {
    const EACH_BYTES: u64 = 8 << 20;
    let mut bench = Bench::new(512 << 20, plain, MountOptions::default());
    (0..files).for_each(|_| bench.create());
    bench.engine().close().unwrap();
    let plan = FaultPlan::new();
    let pause = Duration::from_millis(1);
    plan.add(
        Fault::error(On::Write, 0)
            .with_kind(FaultKind::Slow { pause })
            .forever(),
    );
    bench.fs = mount_device(Arc::new(FaultyDevice::new(bench.device.clone(), plan)), &bench.options);
    let engine = bench.engine();
    engine.file.set_dirty_bytes_max(DIRTY_BYTES_MAX);
    let (peak, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let look = || peak.fetch_max(engine.file.dirty_bytes(), Ordering::Relaxed);
    std::thread::scope(|scope| {
        let end = SetOnDrop(&is_done);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let inode = bench.inode(writer as usize % files);
                let data = vec![writer as u8 + 1; WRITE_BYTES as usize];
                let look = &look;
                scope.spawn(move || {
                    for part in 0..EACH_BYTES / WRITE_BYTES {
                        let at = (part * WRITERS + writer) * WRITE_BYTES;
                        super::write(engine, &inode, at, &data, WriteCtx::default()).unwrap();
                        look();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                look();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        drop(end);
    });
    engine.close().unwrap();
    peak.into_inner()
}

#[test]
fn writers_wait_for_a_slow_device_instead_of_filling_memory() {
    for files in [WRITERS as usize, 1] {
        let peak = peak_of_writers(files);
        assert!(
            peak <= DIRTY_BYTES_MAX + WRITERS * WRITE_BYTES,
            "{peak} bytes were dirty, {files} files"
        );
        assert!(
            peak > DIRTY_BYTES_MAX,
            "{peak}: the device was not slow, this says nothing"
        );
    }
}

fn extents(inode: &Inode) -> Vec<Extent> {
    Walk::new(&inode.tree, inode.ino, 0..u64::MAX)
        .unwrap()
        .collect()
        .unwrap()
}

#[test]
fn a_stream_becomes_extents_of_128_mib() {
    const MIB: u64 = 1 << 20;
    let mut bench = Bench::new(8 << 30, plain, MountOptions::default());
    bench.create();
    let inode = bench.inode(0);
    bench.engine().file.set_dirty_bytes_max(u64::MAX);
    let data = vec![3; MIB as usize];
    for part in 0..300 {
        super::write(bench.engine(), &inode, part * MIB, &data, WriteCtx::default()).unwrap();
    }
    super::write_back(bench.engine(), &inode).unwrap();
    let lens: Vec<_> = extents(&inode).iter().map(|e| e.len_bytes / MIB).collect();
    assert_eq!(lens, [128, 128, 44]);
}

#[test]
fn a_seek_reads_each_leaf_once() {
    const BLOCKS: u64 = 8000;
    let mut bench = Bench::new(512 << 20, plain, MountOptions::default());
    bench.create();
    // Neighbours in the file are none on disk, so that each block is an extent.
    let inode = bench.inode(0);
    for first in [1, 0] {
        for block in (first..BLOCKS).step_by(2) {
            super::write(
                bench.engine(),
                &inode,
                block * BLOCK,
                &[7; BLOCK as usize],
                WriteCtx::default(),
            )
            .unwrap();
        }
        bench.engine().sync().unwrap();
    }
    drop(inode);
    bench.engine().close().unwrap();
    let plan = FaultPlan::new();
    let counting: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(bench.device.clone(), plan.clone()));
    bench.fs = mount_device(counting, &bench.options);
    let (engine, inode) = (bench.engine(), bench.inode(0));

    let reads_of = |offset: u64, what: SeekKind, found: Option<u64>| {
        let before = plan.counts().reads;
        assert_eq!(super::seek(engine, &inode, offset, what).ok(), found);
        plan.counts().reads - before
    };
    let mut leaves = BTreeSet::new();
    let mut cursor = inode
        .tree
        .cursor(extent_key(inode.ino, 0), extent_key(inode.ino, u64::MAX));
    while let Some(run) = cursor.next_run().unwrap() {
        let Run::Leaf { block, .. } = run else {
            panic!("all is on disk")
        };
        leaves.insert(block.addr());
    }
    assert!(leaves.len() > 30, "{} leaves", leaves.len());
    assert_eq!(inode.tree.root().level, 1, "the path to them is one node");
    let (blocks, size) = (leaves.len() as u64 + 1, BLOCKS * BLOCK);
    engine.store.drop_clean();
    assert_eq!(reads_of(0, SeekKind::Hole, Some(size)), blocks, "cold");
    assert_eq!(reads_of(0, SeekKind::Hole, Some(size)), 0, "warm");
    // The way to one place is the path alone.
    engine.store.drop_clean();
    assert_eq!(reads_of(size / 2, SeekKind::Data, Some(size / 2)), 2, "where data is");
    engine.store.drop_clean();
    let half = reads_of(size / 2, SeekKind::Hole, Some(size));
    assert!(half <= blocks / 2 + 2, "{half} of {blocks} blocks for the second half");
}
