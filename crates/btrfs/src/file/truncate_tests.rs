//! One file that is cut and grown, written, punched, zeroed, read, mapped and synced from several
//! threads, with little memory for what is dirty: at no byte, and with sizes that are no multiples
//! of a block, so that the end of the file is inline, in a block that is covered in part, or in
//! flight when it moves.
//!
//! Every byte that is ever written is its offset (its block, folded): whatever is read must be
//! that, or zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cowshed_vfs::FallocateFlags as F;

use super::WriteCtx;
use super::tests::{Bench, plain};
use crate::block::BLOCK;
use crate::compression::compress::CompressPolicy;
use crate::fs::MountOptions;
use crate::mount::Mount;
use crate::object::Inode;
use crate::testing::{Dice, SetOnDrop};

fn byte_at(at: u64) -> u8 {
    (at / BLOCK * 7 + at % 251) as u8 | 1
}

fn content(at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(byte_at).collect()
}

fn step(mount: &Mount, inode: &Arc<Inode>, dice: &mut Dice, size_max: u64) -> crate::Result<()> {
    let (at, len) = (dice.below(size_max), 1 + dice.below(size_max / 3));
    match dice.below(16) {
        0..=3 => super::write(mount, inode, at, &content(at, len), WriteCtx::default()).map(drop),
        4 | 5 => super::truncate(mount, inode, at),
        6 => super::truncate(mount, inode, dice.below(4000)),
        7 => super::truncate(mount, inode, at + len),
        8 => super::fallocate(mount, inode, F::PUNCH_HOLE | F::KEEP_SIZE, at, len),
        9 => super::fallocate(mount, inode, F::ZERO_RANGE | F::KEEP_SIZE, at, len),
        10 => super::fallocate(mount, inode, F::empty(), at, len),
        11 => {
            // What is mapped comes in whole pages, whatever the size has become.
            let page = at / BLOCK * BLOCK;
            let ctx = WriteCtx {
                from_cache: true,
                ..WriteCtx::default()
            };
            let size = inode.attr_now().size;
            let len = BLOCK.min(size.saturating_sub(page));
            super::write(mount, inode, page, &content(page, len), ctx).map(drop)
        }
        12 => mount.commit(),
        13 => {
            inode.vfs_attr();
            super::seek(inode, at, cowshed_vfs::SeekKind::Hole).map(drop).or(Ok(()))
        }
        _ => super::write_back(mount, inode),
    }
}

fn assert_plausible(bytes: &[u8], at: u64, when: &str) {
    for (i, byte) in bytes.iter().enumerate() {
        let pos = at + i as u64;
        assert!(*byte == 0 || *byte == byte_at(pos), "{when}: {byte:#x} at {pos}");
    }
}

fn race(options: &MountOptions, adjust: fn(&mut btrfs_image::MkfsOptions), seed: u64, steps: u64) {
    let mut bench = Bench::new(512 << 20, adjust, options.clone());
    bench.create();
    let mount = bench.mount();
    mount.data().set_dirty_bytes_max(32 << 10);
    let inode = bench.inode(0);
    // Mostly around the first blocks, where data is inline.
    let size_max = [3 * BLOCK, 40 * BLOCK, 500 * BLOCK][(seed % 3) as usize];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|thread| {
                let inode = &inode;
                scope.spawn(move || {
                    let mut dice = Dice::new(seed * 100 + thread);
                    for n in 0..steps {
                        let result = step(mount, inode, &mut dice, size_max);
                        assert!(result.is_ok(), "seed {seed}, thread {thread}, step {n}: {result:?}");
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut dice = Dice::new(seed);
            let mut buf = vec![0; size_max as usize];
            while !is_over.load(Ordering::Acquire) {
                let at = dice.below(size_max);
                let len = super::read(mount, &inode, at, &mut buf).unwrap();
                assert_plausible(&buf[..len], at, &format!("seed {seed}, reading"));
                inode.vfs_attr();
            }
        });
        let over = SetOnDrop(&is_over);
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        drop(over);
        assert!(done.iter().all(Result::is_ok), "a thread failed");
    });
    let mut last = vec![0; inode.attr_now().size as usize];
    super::read(bench.mount(), &inode, 0, &mut last).unwrap();
    assert_plausible(&last, 0, &format!("seed {seed}, at the end"));
    bench.files[0] = last;
    drop(inode);
    bench.check(&format!("seed {seed}"));
    crate::testing::assert_nothing_reserved(bench.mount().store().space());
    bench.remount();
    bench.compare(0, &format!("seed {seed}, after a remount"));
}

fn settings() -> [MountOptions; 3] {
    let policy = |how: &str| CompressPolicy {
        how: how.parse().unwrap(),
        force: true,
    };
    [
        MountOptions::default(),
        MountOptions {
            nodatacow: true,
            ..MountOptions::default()
        },
        MountOptions {
            compress: Some(policy("lzo")),
            ..MountOptions::default()
        },
    ]
}

#[test]
fn a_file_that_is_cut_while_it_is_written_and_read_stays_itself() {
    for (setting, options) in settings().iter().enumerate() {
        for size in 0..3 {
            race(options, plain, setting as u64 * 3 + size, 300);
        }
    }
}

/// The space that a truncation reserves is that for the size which the file has by then.
#[test]
fn sizes_that_change_before_a_truncation_has_its_lock() {
    let mut bench = Bench::new(512 << 20, plain, MountOptions::default());
    bench.create();
    let (mount, inode) = (bench.mount(), bench.inode(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4000 {
                super::write(mount, &inode, 0, &[1; 200], WriteCtx::default()).unwrap();
                super::write_back(mount, &inode).unwrap();
                super::truncate(mount, &inode, 100).unwrap();
            }
        });
        for _ in 0..4000 {
            super::truncate(mount, &inode, BLOCK).unwrap();
            super::truncate(mount, &inode, 2 * BLOCK).unwrap();
        }
    });
    drop(inode);
    bench.check("at the end");
    crate::testing::assert_nothing_reserved(bench.mount().store().space());
}

/// Space for the last block is looked for by writing back, this very file, too.
#[test]
fn a_truncation_that_writes_its_own_file_back_to_find_space() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    bench.create();
    let (mount, inode) = (bench.mount(), bench.inode(0));
    let reserve = |blocks: u64| mount.store().space().reserve_data(blocks * BLOCK);
    let few = reserve(6).unwrap();
    let mut rest = Vec::new();
    for blocks in [4096, 256, 16, 1] {
        rest.extend(std::iter::from_fn(|| reserve(blocks).ok()));
    }
    drop(few);
    super::write(mount, &inode, 0, &[7; 3 * BLOCK as usize], WriteCtx::default()).unwrap();
    rest.push(reserve(3).unwrap());
    assert!(
        inode.pending_bytes() > 0,
        "it is dirty, and there is no space beside it"
    );
    super::truncate(mount, &inode, 100).unwrap();
    assert!(super::truncate(mount, &inode, 200).is_err(), "zeros want a block");
    drop(rest);
    drop(inode);
    bench.files[0] = vec![7; 100];
    bench.compare(0, "cut, though its last block could not be written");
    bench.remount();
    bench.compare(0, "after a remount");
    super::truncate(bench.mount(), &bench.inode(0), 200).unwrap();
    bench.files[0].resize(200, 0);
    bench.compare(0, "what was cut off does not come back");
    bench.remount();
    bench.compare(0, "nor from disk");
}

#[test]
#[ignore = "as above, at length"]
fn a_file_that_is_cut_while_it_is_written_and_read_stays_itself_at_length() {
    let settings = settings();
    for seed in 100..400 {
        race(&settings[(seed / 3 % 3) as usize], plain, seed, 1500);
    }
}
