//! What is bounded: dirty memory under writers that are faster than the device, the size of
//! extents, the blocks that a seek reads.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use btrfs_image::MkfsOptions;
use cowshed_device::BlockDevice;
use cowshed_device_sim::{Fault, FaultKind, FaultPlan, FaultyDevice, On};
use cowshed_vfs::{FallocateFlags, SeekKind};

use super::WriteCtx;
use super::tests::{Bench, mount_device, plain};
use super::writeback::GROUP_RUNS_MAX;
use crate::block::BLOCK;
use crate::error::{Error, StoreError};
use crate::extent::{Extent, Walk, extent_key};
use crate::fs::MountOptions;
use crate::object::Inode;
use crate::testing::SetOnDrop;
use btrfs_store::space::{Budget, Purpose};
use btrfs_store::tree::Run;

const WRITERS: u64 = 3;
const DIRTY_BYTES_MAX: u64 = 1 << 20;
const WRITE_BYTES: u64 = 64 << 10;

/// The most that was dirty while so many writers wrote 8 MiB each, into files of their own or into
/// one.
fn peak_of_writers(files: usize) -> u64 {
    const EACH_BYTES: u64 = 8 << 20;
    let mut bench = Bench::new(512 << 20, plain, MountOptions::default());
    (0..files).for_each(|_| bench.create());
    bench.mount().close().unwrap();
    let plan = FaultPlan::new();
    let pause = Duration::from_millis(1);
    plan.add(
        Fault::error(On::Write, 0)
            .with_kind(FaultKind::Slow { pause })
            .forever(),
    );
    bench.fs = mount_device(Arc::new(FaultyDevice::new(bench.device.clone(), plan)), &bench.options);
    let mount = bench.mount();
    mount.data().set_dirty_bytes_max(DIRTY_BYTES_MAX);
    let (peak, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let look = || peak.fetch_max(mount.data().dirty_bytes(), Ordering::Relaxed);
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
                        super::write(mount, &inode, at, &data, WriteCtx::default()).unwrap();
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
    mount.close().unwrap();
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
    bench.mount().data().set_dirty_bytes_max(u64::MAX);
    let data = vec![3; MIB as usize];
    for part in 0..300 {
        super::write(bench.mount(), &inode, part * MIB, &data, WriteCtx::default()).unwrap();
    }
    super::write_back(bench.mount(), &inode).unwrap();
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
                bench.mount(),
                &inode,
                block * BLOCK,
                &[7; BLOCK as usize],
                WriteCtx::default(),
            )
            .unwrap();
        }
        bench.mount().sync().unwrap();
    }
    drop(inode);
    bench.mount().close().unwrap();
    let plan = FaultPlan::new();
    let counting: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(bench.device.clone(), plan.clone()));
    bench.fs = mount_device(counting, &bench.options);
    let (mount, inode) = (bench.mount(), bench.inode(0));

    let reads_of = |offset: u64, what: SeekKind, found: Option<u64>| {
        let before = plan.counts().reads;
        assert_eq!(super::seek(&inode, offset, what).ok(), found);
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
    mount.store().nodes().drop_clean();
    assert_eq!(reads_of(0, SeekKind::Hole, Some(size)), blocks, "cold");
    assert_eq!(reads_of(0, SeekKind::Hole, Some(size)), 0, "warm");
    // The way to one place is the path alone.
    mount.store().nodes().drop_clean();
    assert_eq!(reads_of(size / 2, SeekKind::Data, Some(size / 2)), 2, "where data is");
    mount.store().nodes().drop_clean();
    let half = reads_of(size / 2, SeekKind::Hole, Some(size));
    assert!(half <= blocks / 2 + 2, "{half} of {blocks} blocks for the second half");
}

/// A volume whose free space for data lies in single blocks, 32 MiB of them.
fn fragmented() -> Bench {
    const PIECES: u64 = 16_384;
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    (0..3).for_each(|_| bench.create());
    let (mount, pieces, rest) = (bench.mount(), bench.inode(0), bench.inode(1));
    let any = FallocateFlags::empty();
    (0..PIECES).for_each(|n| super::fallocate(mount, &pieces, any, n * BLOCK, BLOCK).unwrap());
    for len in [8 << 20, 1 << 20, 64 << 10, BLOCK] {
        while super::fallocate(mount, &rest, any, rest.attr_now().size, len).is_ok() {}
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let every_other = (0..PIECES).step_by(2);
    every_other.for_each(|n| super::fallocate(mount, &pieces, punch, n * BLOCK, BLOCK).unwrap());
    mount.sync().unwrap();
    assert_eq!(mount.store().space().data_bytes_in(1, u64::MAX), BLOCK);
    assert_eq!(mount.store().space().data_bytes_in(100, u64::MAX), 100 * BLOCK);
    assert_eq!(mount.store().space().data_bytes_in(100, 5 * BLOCK), 5 * BLOCK);
    bench
}

/// An operation that makes very many extents of one stretch of data has reserved the metadata for
/// them, or fails before it begins.
#[test]
fn data_in_very_many_pieces_takes_no_metadata_that_was_not_reserved() {
    const BYTES: u64 = 24 << 20;
    let data = vec![5; BYTES as usize];
    let one = Budget {
        purpose: Purpose::Other,
        blocks: 1,
        is_release: false,
    };
    type Step<'a> = &'a dyn Fn(&Bench, &Arc<Inode>) -> crate::Result<()>;
    let steps: [(&str, Step<'_>); 3] = [
        ("write-back", &|bench, inode| {
            super::write(bench.mount(), inode, 0, &data, WriteCtx::default()).unwrap();
            super::write_back(bench.mount(), inode)
        }),
        ("fallocate", &|bench, inode| {
            super::fallocate(bench.mount(), inode, FallocateFlags::empty(), 0, BYTES)
        }),
        ("group", &|bench, inode| {
            let mut group = super::Group::new(bench.mount(), crate::reclaim::close);
            group.write(bench.mount(), inode, 0, &data).unwrap();
            group.apply(bench.mount()).map(drop)
        }),
    ];
    for (what, step) in steps {
        for is_short in [true, false] {
            let bench = fragmented();
            let (mount, inode) = (bench.mount(), bench.inode(2));
            let mut held = Vec::new();
            if is_short {
                held.extend(std::iter::from_fn(|| mount.store().space().reserve_meta(one).ok()));
                held.truncate(held.len() - 20);
            }
            let done = step(&bench, &inode);
            if what == "write-back" {
                let groups = inode.data.state.lock().landings;
                assert!(groups >= BYTES / BLOCK / GROUP_RUNS_MAX as u64, "{groups} groups");
            } else {
                assert_eq!(done.is_ok(), !is_short, "{what}: {done:?}");
            }
            drop(held);
            bench.check(what);
            if done.is_ok() && what != "fallocate" {
                let mut got = vec![0; BYTES as usize];
                super::read(mount, &inode, 0, &mut got).unwrap();
                assert!(got == data, "{what}");
            }
            drop(inode);
            bench.mount().close().unwrap();
        }
    }
}

#[test]
fn what_cannot_fit_makes_no_chunks() {
    let mut bench = Bench::new(8 << 30, plain, MountOptions::default());
    bench.create();
    let (mount, inode) = (bench.mount(), bench.inode(0));
    let before = mount.store().space().group_stats().made;
    for len in [9 << 30, 1 << 40, 1 << 62] {
        let refused = super::fallocate(mount, &inode, FallocateFlags::empty(), 0, len);
        assert!(matches!(refused, Err(Error::Store(StoreError::NoSpace))), "{refused:?}");
        assert_eq!(mount.store().space().group_stats().made, before, "{len} bytes");
    }
    super::fallocate(mount, &inode, FallocateFlags::empty(), 0, 6 << 30).unwrap();
    bench.check("at the end");
}

/// As on the kernel's side.
#[test]
fn files_end_where_offsets_do() {
    const MAX: u64 = i64::MAX as u64;
    const LAST: u64 = MAX - (BLOCK - 1);
    for adjust in [plain, |options: &mut MkfsOptions| options.features.no_holes = false] {
        let mut bench = Bench::new(256 << 20, adjust, MountOptions::default());
        (0..6).for_each(|_| bench.create());
        let inodes: Vec<_> = (0..6).map(|file| bench.inode(file)).collect();
        let mount = bench.mount();
        let write = |file: usize, at, data: &[u8]| super::write(mount, &inodes[file], at, data, WriteCtx::default());
        let fallocate = |file: usize, mode, at, len| super::fallocate(mount, &inodes[file], mode, at, len);
        super::truncate(mount, &inodes[0], MAX).unwrap();
        super::truncate(mount, &inodes[0], MAX + 1).unwrap_err();
        assert_eq!(write(1, MAX - 1, b"x").unwrap(), 1);
        write(1, MAX - 1, b"xy").unwrap_err();
        write(1, MAX, b"x").unwrap_err();
        let seek = |at, what| super::seek(&inodes[1], at, what).unwrap();
        let is_as_written = || {
            assert_eq!(seek(0, SeekKind::Data), LAST);
            assert_eq!((seek(0, SeekKind::Hole), seek(LAST, SeekKind::Hole)), (0, MAX));
            let mut found = Vec::new();
            super::map::map(mount, &inodes[1], 0..u64::MAX, true, &mut |e| {
                found.push(e.start);
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(found, [LAST]);
            let mut tail = [7; 5];
            assert_eq!(super::read(mount, &inodes[1], MAX - 3, &mut tail).unwrap(), 3);
            assert_eq!(tail[..3], *b"\0\0x");
        };
        is_as_written();
        mount.sync().unwrap();
        is_as_written();
        let (punch, zero) = (
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE,
        );
        write(2, 0, &[3; 20_000]).unwrap();
        fallocate(2, zero, MAX - 10_000, 10_000).unwrap();
        fallocate(2, FallocateFlags::empty(), MAX - 5, 6).unwrap_err();
        write(3, 0, &[3; 20_000]).unwrap();
        fallocate(3, FallocateFlags::KEEP_SIZE, MAX - 5000, 5000).unwrap();
        fallocate(3, punch, 4096, MAX - 4096).unwrap();
        super::clone_range(mount, &inodes[1], LAST, &inodes[4], 0, 0).unwrap();
        super::clone_range(mount, &inodes[1], LAST - BLOCK, &inodes[5], LAST - BLOCK, 0).unwrap();
        let sizes = [MAX, MAX, MAX, 20_000, BLOCK - 1, MAX];
        // Of the fourth the last block stays, as on the kernel's side: the hole covers all of it
        // but a byte.
        let blocks = [0, 1, 3, 2, 1, 1];
        let seen = |bench: &Bench| -> Vec<_> {
            let attrs = (0..6).map(|file| bench.inode(file).vfs_attr());
            attrs
                .map(|attr| (attr.size_bytes, attr.blocks_512 * 512 / BLOCK))
                .collect()
        };
        let want: Vec<_> = sizes.into_iter().zip(blocks).collect();
        mount.sync().unwrap();
        assert_eq!(seen(&bench)[..2], want[..2]);
        assert_eq!(seen(&bench)[3..], want[3..]);
        drop(inodes);
        bench.check("at the end");
        bench.remount();
        assert_eq!(seen(&bench)[3..], want[3..]);
        for file in 0..6 {
            let inode = bench.inode(file);
            super::truncate(bench.mount(), &inode, 5000).unwrap();
        }
        bench.check("cut");
        bench.mount().close().unwrap();
    }
}
