//! `st_blocks`: what is dirty counts once, and counts the same when it is on disk.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use cowshed_harness::{KernelVolume, need};
use cowshed_vfs::FallocateFlags;

use super::WriteCtx;
use super::tests::Bench;
use crate::block::BLOCK;
use crate::fs::MountOptions;
use crate::testing::{Dice, SetOnDrop};

const SECTORS: u64 = BLOCK / 512;

fn blocks(bench: &Bench) -> u64 {
    bench.inode(0).vfs_attr().blocks_512
}

fn write(bench: &Bench, block: u64, count: u64) {
    let data = vec![7; (count * BLOCK) as usize];
    super::write(
        bench.mount(),
        &bench.inode(0),
        block * BLOCK,
        &data,
        WriteCtx::default(),
    )
    .unwrap();
}

#[test]
fn dirty_data_over_extents_of_a_sparse_file_counts_once() {
    let mut bench = Bench::new(256 << 20, |_| {}, MountOptions::default());
    bench.create();
    write(&bench, 1, 1);
    assert_eq!(blocks(&bench), SECTORS);
    bench.mount().sync().unwrap();
    assert_eq!(blocks(&bench), SECTORS);
    write(&bench, 1, 1);
    assert_eq!(blocks(&bench), SECTORS, "what is there is written again");
    write(&bench, 0, 3);
    assert_eq!(blocks(&bench), 3 * SECTORS, "two blocks more");
    bench.mount().sync().unwrap();
    assert_eq!(blocks(&bench), 3 * SECTORS);
}

#[test]
fn a_sync_changes_no_count_and_the_kernel_counts_the_same() {
    let mut bench = Bench::new(256 << 20, |_| {}, MountOptions::default());
    bench.create();
    let mut dice = Dice::new(31);
    for _ in 0..60 {
        for _ in 0..=dice.below(6) {
            let before = blocks(&bench);
            write(&bench, dice.below(200), 1 + dice.below(8));
            assert!(blocks(&bench) >= before, "a write takes nothing away");
        }
        let before = blocks(&bench);
        bench.mount().sync().unwrap();
        assert_eq!(blocks(&bench), before);
    }
    let ours = blocks(&bench);
    bench.mount().close().unwrap();
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::from_memory(&[bench.device.snapshot()]).unwrap();
    let theirs = volume
        .with_mount(|root| Ok(std::fs::metadata(root.join("file0"))?.blocks()))
        .unwrap();
    assert_eq!(ours, theirs);
}

#[test]
fn what_is_preallocated_behind_the_end_hides_nothing_that_is_dirty() {
    let mut bench = Bench::new(256 << 20, |_| {}, MountOptions::default());
    bench.create();
    let keep = FallocateFlags::KEEP_SIZE;
    super::fallocate(bench.mount(), &bench.inode(0), keep, 100 * BLOCK, 50 * BLOCK).unwrap();
    write(&bench, 0, 3);
    assert_eq!(blocks(&bench), 53 * SECTORS);
    bench.mount().sync().unwrap();
    assert_eq!(blocks(&bench), 53 * SECTORS);
    // In the place that is there, and beside it.
    write(&bench, 110, 10);
    assert_eq!(blocks(&bench), 53 * SECTORS);
    write(&bench, 149, 10);
    assert_eq!(blocks(&bench), 62 * SECTORS);
    bench.mount().sync().unwrap();
    assert_eq!(blocks(&bench), 62 * SECTORS);
}

/// No lock is held while the extents are looked at, and still nothing counts twice, or not at all,
/// when it lands just then.
#[test]
fn what_lands_meanwhile_counts_once() {
    let mut bench = Bench::new(256 << 20, |_| {}, MountOptions::default());
    bench.create();
    (0..40).for_each(|n| write(&bench, 2 * n, 1));
    let inode = bench.inode(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _over = SetOnDrop(&is_over);
            for round in 0..200 {
                write(&bench, 2 * (round % 40), 1);
                super::write_back(bench.mount(), &inode).unwrap();
            }
        });
        while !is_over.load(Ordering::Acquire) {
            assert_eq!(blocks(&bench), 40 * SECTORS);
        }
    });
}
