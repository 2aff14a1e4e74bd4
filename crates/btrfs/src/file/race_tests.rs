//! Everything that changes the extents of the same few files, from several threads at once.
//!
//! All operations are on whole blocks, and each block that is ever written is one byte over and
//! over: a block that is anything else was torn by a race.

use std::sync::atomic::{AtomicBool, Ordering};

use cowshed_vfs::{Defrag, Exchange};

use super::tests::{Bench, plain};
use super::{Group, WriteCtx};
use crate::block::BLOCK;
use crate::compression::compress::CompressPolicy;
use crate::fs::MountOptions;
use crate::mount::Mount;
use crate::object::Inode;
use crate::testing::{Dice, SetOnDrop};
use std::sync::Arc;

const BLOCKS: u64 = 96;
const STEPS: u64 = 150;

fn step(mount: &Mount, files: &[Arc<Inode>], dice: &mut Dice) -> crate::Result<()> {
    let count = files.len() as u64;
    let (a, b) = (dice.below(count) as usize, dice.below(count) as usize);
    let (from, to) = (dice.below(BLOCKS), dice.below(BLOCKS));
    let blocks = 1 + dice.below(BLOCKS - from.max(to));
    let (at, other, len) = (from * BLOCK, to * BLOCK, blocks * BLOCK);
    let value = 1 + dice.below(255) as u8;
    let (a, b) = (&files[a], &files[b]);
    match dice.below(14) {
        0..=3 => super::write(mount, a, at, &vec![value; len as usize], WriteCtx::default()).map(|_| ()),
        4 => super::clone_range(mount, a, at, b, other, len),
        5 => super::copy_range(mount, a, at, b, other, len).map(|_| ()),
        6 => super::dedupe_range(mount, a, at, b, other, len).map(|_| ()),
        7 => {
            let what = Exchange {
                a_offset: at,
                b_offset: other,
                len_bytes: len,
                to_eof: dice.below(3) == 0,
                only_written: false,
                fresh_b: None,
                dry_run: false,
            };
            super::exchange_range(mount, a, b, &what)
        }
        8 => {
            let what = Defrag {
                target_bytes: 1 << 20,
                compress: (dice.below(3) == 0).then(|| "zstd:1".parse().unwrap()),
            };
            super::defragment(mount, a, at..at + len, &what).map(|_| ())
        }
        9 => super::truncate(mount, a, at),
        10 => super::fallocate(mount, a, cowshed_vfs::FallocateFlags::empty(), at, len),
        11 => {
            use cowshed_vfs::FallocateFlags as F;
            super::fallocate(mount, a, F::PUNCH_HOLE | F::KEEP_SIZE, at, len)
        }
        12 => {
            let mut group = Group::new(mount, crate::reclaim::close);
            group.write(mount, a, at, &vec![value; len as usize])?;
            group.write(mount, b, other, &vec![value; BLOCK as usize])?;
            group.apply(mount).map(|_| ())
        }
        _ => super::write_back(mount, a),
    }
}

/// Refusals that a race explains: another thread cut the file meanwhile, or the two ranges are one.
fn is_expected(result: &crate::Result<()>) -> bool {
    use cowshed_vfs::Error as Outcome;
    matches!(
        result,
        Ok(()) | Err(crate::Error::Outcome(Outcome::Invalid | Outcome::Busy))
    )
}

fn assert_whole_blocks(content: &[u8], when: &str) {
    for (n, block) in content.chunks(BLOCK as usize).enumerate() {
        let is_whole = block.iter().all(|b| *b == block[0]);
        assert!(is_whole, "{when}: block {n} is torn");
    }
}

fn race(options: &MountOptions, seed: u64) {
    let mut bench = Bench::new(512 << 20, plain, options.clone());
    (0..3).for_each(|_| bench.create());
    let files: Vec<_> = (0..3).map(|file| bench.inode(file)).collect();
    let is_over = AtomicBool::new(false);
    let mount = bench.mount();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|thread| {
                let files = &files;
                scope.spawn(move || {
                    let mut dice = Dice::new(seed * 100 + thread);
                    for n in 0..STEPS {
                        let result = step(mount, files, &mut dice);
                        assert!(
                            is_expected(&result),
                            "seed {seed}, thread {thread}, step {n}: {result:?}"
                        );
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut content = vec![0; (BLOCKS * BLOCK) as usize];
            while !is_over.load(Ordering::Acquire) {
                for file in &files {
                    let len = super::read(mount, file, 0, &mut content).unwrap();
                    assert_whole_blocks(&content[..len], &format!("seed {seed}, reading"));
                }
                mount.commit().unwrap();
            }
        });
        let over = SetOnDrop(&is_over);
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        drop(over);
        assert!(done.iter().all(Result::is_ok), "a thread failed");
    });
    for (file, inode) in files.iter().enumerate() {
        let mut content = vec![0; inode.attr_now().size as usize];
        super::read(bench.mount(), inode, 0, &mut content).unwrap();
        assert_whole_blocks(&content, &format!("seed {seed}, at the end"));
        bench.files[file] = content;
    }
    drop(files);
    bench.check(&format!("seed {seed}"));
    crate::testing::assert_nothing_reserved(bench.mount().store().space());
    bench.remount();
    (0..3).for_each(|file| bench.compare(file, &format!("seed {seed}, after a remount")));
    bench.judge_by_kernel();
}

#[test]
fn files_whose_extents_change_from_all_sides_stay_whole() {
    let policy = |how: &str| CompressPolicy {
        how: how.parse().unwrap(),
        force: true,
    };
    let in_place = MountOptions {
        nodatacow: true,
        ..MountOptions::default()
    };
    let packed = MountOptions {
        compress: Some(policy("lzo")),
        ..MountOptions::default()
    };
    for (seed, options) in [MountOptions::default(), in_place, packed].iter().enumerate() {
        race(options, seed as u64);
    }
}

#[test]
#[ignore = "as above, at length"]
fn files_whose_extents_change_from_all_sides_stay_whole_at_length() {
    for seed in 0..200 {
        let options = MountOptions {
            nodatacow: seed % 3 == 1,
            ..MountOptions::default()
        };
        race(&options, 1000 + seed);
    }
}

/// A sync covers what was written before it, though others write over it and behind it while it is
/// under way.
#[test]
fn the_size_on_disk_covers_what_was_synced_beside_writers() {
    const APPENDED: u64 = 5 * BLOCK + 700;
    for options in [false, true].map(|nodatacow| MountOptions {
        nodatacow,
        ..MountOptions::default()
    }) {
        let mut bench = Bench::new(512 << 20, plain, options);
        bench.create();
        let (mount, inode, is_over) = (bench.mount(), bench.inode(0), AtomicBool::new(false));
        let size = || inode.attr_now().size;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut dice = Dice::new(1);
                while !is_over.load(Ordering::Acquire) {
                    let at = dice.below(size() + 1);
                    super::write(mount, &inode, at, &[2; 30], WriteCtx::default()).unwrap();
                    super::write(mount, &inode, 0, &[3; 30], WriteCtx::default()).unwrap();
                }
            });
            let _over = SetOnDrop(&is_over);
            for _ in 0..1000 {
                super::write(mount, &inode, size(), &[1; APPENDED as usize], WriteCtx::default()).unwrap();
                let synced = size();
                super::write_back(mount, &inode).unwrap();
                let on_disk = inode.attr.lock().disk_size;
                assert!(on_disk >= synced, "{on_disk} of {synced} bytes after a sync");
            }
        });
    }
}

/// A file without copy on write, too, comes to lie in one piece.
#[test]
fn nodatacow_files_are_defragmented() {
    let options = MountOptions {
        nodatacow: true,
        ..MountOptions::default()
    };
    let mut bench = Bench::new(128 << 20, plain, options);
    (0..2).for_each(|_| bench.create());
    for block in 0..40_u8 {
        for file in 0..2 {
            let data = [block + 1; BLOCK as usize];
            super::write(
                bench.mount(),
                &bench.inode(file),
                u64::from(block) * BLOCK,
                &data,
                WriteCtx::default(),
            )
            .unwrap();
            super::tests::set_range(&mut bench.files[file], u64::from(block) * BLOCK, &data);
            super::write_back(bench.mount(), &bench.inode(file)).unwrap();
        }
    }
    let inode = bench.inode(0);
    let count = || {
        let walk = crate::extent::Walk::new(&inode.tree, inode.ino, 0..u64::MAX >> 1).unwrap();
        walk.collect().unwrap().len()
    };
    let before = count();
    let what = Defrag {
        target_bytes: 32 << 20,
        compress: None,
    };
    assert_eq!(
        super::defragment(bench.mount(), &inode, 0..u64::MAX, &what).unwrap(),
        40 * BLOCK
    );
    assert!(before > 20 && count() == 1, "{before} extents became {}", count());
    bench.compare(0, "defragmented");
    bench.check("defragmented");
    // And is overwritten in place again afterwards.
    super::write(bench.mount(), &inode, 0, &[9; 4096], WriteCtx::default()).unwrap();
    bench.mount().sync().unwrap();
    assert_eq!(count(), 1);
}
