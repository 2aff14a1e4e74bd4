//! Whole files against a model: random operations with write-back, commits and new mounts in
//! between, judged by the model, by the checker and by the kernel.

use std::sync::Arc;

use btrfs_check::{CheckOptions, check};
use btrfs_image::MkfsOptions;
use cowshed_device::BlockDevice;
use cowshed_vfs::{FallocateFlags, SeekKind};

use super::WriteCtx;
use super::atomic_tests::random_group;
use super::tests::{Bench, plain, random_bytes, set_range};
use crate::block::BLOCK;
use crate::compression::compress::CompressPolicy;
use crate::error::Error;
use crate::fs::MountOptions;
use crate::testing::Dice;

const FILES: usize = 3;
const FILE_BYTES_MAX: u64 = 400 << 10;

/// Offsets and lengths, sometimes at block boundaries.
fn random_range(dice: &mut Dice, max: u64) -> (u64, u64) {
    let len_max = if dice.below(4) == 0 { 100 << 10 } else { 9000 };
    let (at, len) = (dice.below(max), 1 + dice.below(len_max));
    match dice.below(3) {
        0 => (crate::block::round_down(at), crate::block::round_up(len)),
        1 => (at, len),
        _ => (crate::block::round_down(at), len),
    }
}

fn zero_range(file: &mut [u8], at: u64, end: u64) {
    let end = (end as usize).min(file.len());
    if (at as usize) < end {
        file[at as usize..end].fill(0);
    }
}

fn step(bench: &mut Bench, dice: &mut Dice) -> String {
    let file = dice.below(FILES as u64) as usize;
    let inode = bench.inode(file);
    let size = bench.files[file].len() as u64;
    let (at, len) = random_range(dice, FILE_BYTES_MAX.min(size + 20_000));
    let mount = bench.mount();
    match dice.below(22) {
        0..=5 => {
            let len = if dice.below(6) == 0 && size == 0 {
                1 + dice.below(2100)
            } else {
                len
            };
            let at = if size == 0 && dice.below(2) == 0 { 0 } else { at };
            let append = dice.below(4) == 0 && size < FILE_BYTES_MAX;
            let at = if append { size } else { at };
            let data = random_bytes(dice, len);
            let ctx = WriteCtx {
                append,
                ..WriteCtx::default()
            };
            let written = super::write(mount, &inode, if append { 5 } else { at }, &data, ctx).unwrap();
            assert_eq!(written as u64, len);
            set_range(&mut bench.files[file], at, &data);
            format!("write {file} {at}+{len}")
        }
        6 | 7 => {
            let new_size = if dice.below(4) == 0 { dice.below(3000) } else { at };
            super::truncate(mount, &inode, new_size).unwrap();
            bench.files[file].resize(new_size as usize, 0);
            format!("truncate {file} {size} -> {new_size}")
        }
        8 => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            super::fallocate(mount, &inode, mode, at, len).unwrap();
            zero_range(&mut bench.files[file], at, at + len);
            format!("punch {file} {at}+{len}")
        }
        9 | 10 => {
            let keep = dice.below(2) == 0;
            let zero = dice.below(2) == 0;
            let mut mode = FallocateFlags::empty();
            mode.set(FallocateFlags::KEEP_SIZE, keep);
            mode.set(FallocateFlags::ZERO_RANGE, zero);
            super::fallocate(mount, &inode, mode, at, len).unwrap();
            if !keep && size < at + len {
                bench.files[file].resize((at + len) as usize, 0);
            }
            if zero {
                zero_range(&mut bench.files[file], at, at + len);
            }
            format!("fallocate {file} {at}+{len} {mode:?}")
        }
        11..=13 => copy_step(bench, dice, file, at, len),
        14 => {
            super::write_back(mount, &inode).unwrap();
            format!("write back {file}")
        }
        15 => {
            // With data still dirty: what a crash now would leave.
            mount.commit().unwrap();
            let crashed: Arc<dyn BlockDevice> = Arc::new(bench.device.snapshot());
            let options = CheckOptions {
                data_csums: true,
                ..CheckOptions::default()
            };
            let report = check(&[crashed], &options);
            assert!(report.is_clean(), "after a commit:\n{report}");
            "commit".into()
        }
        16 => {
            mount.sync().unwrap();
            mount.store().nodes().drop_clean();
            "sync".into()
        }
        17 => {
            check_seek(bench, file);
            format!("seek {file}")
        }
        20 | 21 => random_group(bench, dice, FILE_BYTES_MAX),
        18 if dice.below(10) == 0 => {
            bench.remount();
            "remount".into()
        }
        _ => {
            let mut buf = vec![0xcc; len as usize];
            let got = super::read(mount, &inode, at, &mut buf).unwrap();
            let want = &bench.files[file];
            let end = want.len().min((at + len) as usize);
            assert_eq!(got, end.saturating_sub(at as usize));
            assert!(
                got == 0 || buf[..got] == want[at as usize..end],
                "read {file} {at}+{len}"
            );
            "read".into()
        }
    }
}

fn copy_step(bench: &mut Bench, dice: &mut Dice, src: usize, at: u64, len: u64) -> String {
    let dst = dice.below(FILES as u64) as usize;
    let (from, to) = (bench.inode(src), bench.inode(dst));
    let dst_size = bench.files[dst].len() as u64;
    let to_at = dice.below(dst_size + 5000);
    let to_at = if dice.below(3) == 0 {
        to_at
    } else {
        crate::block::round_down(to_at) + at % BLOCK
    };
    let source = bench.files[src].clone();
    let end = source.len().min((at + len) as usize);
    let part = source.get(at as usize..end).unwrap_or(&[]);
    let got = super::copy_range(bench.mount(), &from, at, &to, to_at, len);
    let overlaps = src == dst && at < to_at + part.len() as u64 && to_at < at + part.len() as u64;
    match got {
        Ok(copied) => {
            assert_eq!(copied, part.len() as u64, "copied");
            if copied > 0 {
                set_range(&mut bench.files[dst], to_at, part);
            }
        }
        Err(Error::Outcome(cowshed_vfs::Error::Invalid)) if overlaps => {}
        Err(error) => panic!("{error}"),
    }
    format!("copy {src} {at}+{len} -> {dst} {to_at}")
}

/// Holes are zero, and all that is not zero is data.
fn check_seek(bench: &Bench, file: usize) {
    let inode = bench.inode(file);
    let content = &bench.files[file];
    let seek = |at, what| super::seek(&inode, at, what);
    let size = content.len() as u64;
    let mut at = 0;
    while at < size {
        let data = seek(at, SeekKind::Data).unwrap_or(size);
        assert!(
            content[at as usize..data as usize].iter().all(|b| *b == 0),
            "a hole at {at} has data"
        );
        if data == size {
            break;
        }
        assert_eq!(seek(data, SeekKind::Data).unwrap(), data);
        let hole = seek(data, SeekKind::Hole).unwrap();
        assert!(hole > data && hole <= size, "data at {data} ends at {hole}");
        if hole < size {
            assert_eq!(seek(hole, SeekKind::Hole).unwrap(), hole);
        }
        at = hole;
    }
    assert!(seek(size, SeekKind::Hole).is_err() && seek(size + 1, SeekKind::Data).is_err());
}

fn run(seed: u64, steps: u64, mut bench: Bench) {
    let mut dice = Dice::new(seed);
    for _ in 0..FILES {
        bench.create();
    }
    let mut log: Vec<String> = Vec::new();
    for number in 0..steps {
        if number % 97 == 50 {
            bench.mount().data().set_dirty_bytes_max(dice.below(1 << 20));
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step(&mut bench, &mut dice)));
        let last: Vec<_> = log.iter().rev().take(30).rev().collect();
        match done {
            Ok(what) => log.push(format!("{number}: {what}")),
            Err(panic) => {
                eprintln!("seed {seed}, step {number}, after:\n{last:#?}");
                std::panic::resume_unwind(panic);
            }
        }
        let last: Vec<_> = log.iter().rev().take(30).rev().collect();
        if number % 5 == 0 {
            for file in 0..FILES {
                bench.compare(file, &format!("seed {seed}, step {number}, after {last:#?}"));
            }
        }
        if number % 100 == 99 {
            bench.check(&format!("seed {seed}, step {number}, after {last:#?}"));
        }
    }
    bench.remount();
    for file in 0..FILES {
        bench.compare(file, &format!("seed {seed}, at the end"));
    }
    bench.judge_by_kernel();
}

#[test]
fn random_operations_match_a_model() {
    for seed in 0..6 {
        run(seed, 500, Bench::new(512 << 20, plain, MountOptions::default()));
    }
}

#[test]
fn random_operations_with_explicit_holes_match_a_model() {
    for seed in 100..103 {
        let with_holes = |options: &mut MkfsOptions| options.features.no_holes = false;
        run(seed, 400, Bench::new(512 << 20, with_holes, MountOptions::default()));
    }
}

#[test]
fn random_operations_without_checksums_match_a_model() {
    let options = MountOptions {
        nodatasum: true,
        ..MountOptions::default()
    };
    run(200, 400, Bench::new(512 << 20, plain, options));
}

#[test]
fn random_operations_with_compression_match_a_model() {
    let policies = ["zlib:1", "lzo", "zstd:-3", "zstd"]
        .into_iter()
        .zip([true, true, true, false]);
    for (seed, (how, force)) in (400..).zip(policies) {
        let options = MountOptions {
            compress: Some(CompressPolicy {
                how: how.parse().unwrap(),
                force,
            }),
            ..MountOptions::default()
        };
        run(seed, 500, Bench::new(512 << 20, plain, options));
    }
}

#[test]
fn random_operations_in_place_match_a_model() {
    for seed in 450..453 {
        let options = MountOptions {
            nodatacow: true,
            ..MountOptions::default()
        };
        run(seed, 400, Bench::new(512 << 20, plain, options));
    }
}

#[test]
fn every_checksum_is_one_that_the_kernel_accepts() {
    for (seed, csum_type) in (300..).zip(btrfs_format::ChecksumType::ALL) {
        run(
            seed,
            100,
            Bench::new(512 << 20, |o| o.csum_type = csum_type, MountOptions::default()),
        );
    }
}

/// More of the same: `COWSHED_SEEDS=1000..1200 cargo test -p cowshed-btrfs at_length -- --ignored`.
#[test]
#[ignore = "takes as long as it is given seeds"]
fn random_operations_at_length() {
    let seeds = std::env::var("COWSHED_SEEDS").unwrap_or("1000..1050".into());
    let (from, to) = seeds.split_once("..").expect("two numbers");
    for seed in from.parse().unwrap()..to.parse().unwrap() {
        let no_holes = seed % 3 != 0;
        let nodatasum = seed % 5 == 0;
        let adjust = |options: &mut MkfsOptions| options.features.no_holes = no_holes;
        let options = MountOptions {
            nodatasum,
            compress: (seed % 2 == 0).then(|| CompressPolicy {
                how: ["zlib:1", "lzo", "zstd:1"][(seed / 2 % 3) as usize].parse().unwrap(),
                force: seed % 4 == 0,
            }),
            ..MountOptions::default()
        };
        run(seed, 1000, Bench::new(512 << 20, adjust, options));
    }
}
