//! Reading a compressed file in small steps: each extent is decompressed once, and no reader gets
//! what the file held before.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use btrfs_format::{Generation, LogicalAddr};
use cowshed_vfs::{Defrag, Exchange, FallocateFlags, Timestamp};

use super::WriteCtx;
use super::tests::{Bench, mount_in, plain};
use crate::block::BLOCK;
use crate::compression::compress::CompressPolicy;
use crate::extent::{Extent, Walk};
use crate::files::EngineOptions;
use crate::fs::MountOptions;
use crate::object::FileShared;
use crate::object::Inode;
use crate::testing::Dice;
use cowshed_runtime::{Env, FixedEnv};

/// What a compressed extent holds at most.
pub(super) const EXTENT: usize = 128 << 10;

fn compressed() -> MountOptions {
    MountOptions {
        compress: Some(CompressPolicy {
            how: "lzo".parse().unwrap(),
            force: true,
        }),
        ..MountOptions::default()
    }
}

/// A clock that repeats, and so many processors.
struct Processors(FixedEnv, usize);

impl Env for Processors {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
    fn random(&self, bytes: &mut [u8]) {
        self.0.random(bytes);
    }
    fn processors(&self) -> usize {
        self.1
    }
}

/// Nothing is cached afterwards.
pub(super) fn remount(bench: &mut Bench, processors: usize, engine_options: EngineOptions) {
    bench.mount().close().unwrap();
    let env = Processors(FixedEnv::default(), processors);
    bench.fs = mount_in(Arc::new(env), bench.device.clone(), &bench.options, engine_options);
}

/// Text in which each block differs.
fn text(seed: usize, len: usize) -> Vec<u8> {
    let line = |n: usize| format!("line {n} of text {seed}\n");
    let mut data = Vec::with_capacity(len + 64);
    while data.len() < len {
        data.extend(line(data.len() / 64).bytes());
    }
    data.truncate(len);
    data
}

/// Files of so many extents each, on disk and with nothing cached.
pub(super) fn files(count: usize, extents_each: usize) -> Bench {
    let mut bench = Bench::new(512 << 20, plain, compressed());
    for file in 0..count {
        bench.create();
        let data = text(file, extents_each * EXTENT);
        let inode = bench.inode(file);
        super::write(bench.mount(), &inode, 0, &data, WriteCtx::default()).unwrap();
        bench.files[file] = data;
    }
    bench.remount();
    bench
}

/// Reads all files to their ends, a step of each in turn; decompressions for each extent.
pub(super) fn read_in_turn(bench: &Bench, step: usize) -> f64 {
    let inodes: Vec<_> = (0..bench.files.len()).map(|file| bench.inode(file)).collect();
    let len = bench.files[0].len();
    let before = bench.mount().data().decompressions.load(Relaxed);
    let mut buf = vec![0; step];
    for at in (0..len).step_by(step) {
        for (inode, want) in inodes.iter().zip(&bench.files) {
            let now = step.min(len - at);
            let got = super::read(bench.mount(), inode, at as u64, &mut buf[..now]).unwrap();
            assert_eq!((got, &buf[..now]), (now, &want[at..at + now]), "at {at}");
        }
    }
    let done = bench.mount().data().decompressions.load(Relaxed) - before;
    done as f64 / (inodes.len() * len / EXTENT) as f64
}

#[test]
fn an_extent_that_is_read_in_small_steps_is_decompressed_once() {
    for step in [1000, 4096, 65_536] {
        let times = read_in_turn(&files(1, 16), step);
        assert_eq!(times, 1.0, "steps of {step}");
    }
}

#[test]
fn so_are_those_of_many_files_that_are_read_by_turns() {
    for count in [17, 200] {
        let times = read_in_turn(&files(count, 2), 4096);
        assert_eq!(times, 1.0, "{count} files");
    }
}

#[test]
fn what_is_being_read_is_not_dropped_for_what_was_read_once() {
    let bench = files(40, 1);
    let shared = FileShared::with_memory(0, crate::block::BLOCK_BYTES);
    let id = |file: usize| extents(&bench.inode(file))[0];
    let data = |file: usize| Arc::new(vec![file as u8; EXTENT]);
    for file in 0..40 {
        shared.cache(id(file), data(file));
        assert!(shared.cached(id(0)) == Some(data(0)), "after {file} others");
    }
    let kept = |shared: &FileShared| (0..40).filter(|file| shared.cached(id(*file)).is_some()).count();
    assert_eq!(kept(&shared), 16);
    // An extent that is already cached evicts no other.
    shared.cache(id(39), data(39));
    assert_eq!(kept(&shared), 16);
}

const FILES: usize = 3;
const FILE_BYTES: usize = 6 * EXTENT;

/// What memory keeps of an extent is not shown in place of what was written since, however the
/// items came to be: extents' places are used again and again here.
fn no_reader_sees_what_extents_held(processors: usize) {
    let mut dice = Dice::new(1);
    let mut bench = Bench::new(128 << 20, plain, compressed());
    for file in 0..FILES {
        bench.create();
        let data = text(file, FILE_BYTES);
        super::write(bench.mount(), &bench.inode(file), 0, &data, WriteCtx::default()).unwrap();
        bench.files[file] = data;
    }
    leave_free(&mut bench, 3 << 20);
    remount(&mut bench, processors, EngineOptions::default());
    let (mut seen, mut free, mut used_again) = (HashSet::new(), HashSet::new(), 0);
    for round in 0..500 {
        let done = change(&mut bench, &mut dice, round);
        let (mount, files) = (bench.mount(), 0..FILES);
        // Anything from nothing to a commit.
        let steps = dice.below(4);
        if steps > 0 {
            files
                .clone()
                .for_each(|file| super::write_back(mount, &bench.inode(file)).unwrap());
        }
        if steps > 1 {
            mount.commit().unwrap();
        }
        let mut places = HashSet::new();
        for file in files {
            read_all(&bench, file, 4096, &format!("round {round}, {done}, file {file}"));
            places.extend(extents(&bench.inode(file)).iter().map(|id| id.0));
        }
        used_again += free.intersection(&places).count();
        seen.extend(&places);
        free = seen.difference(&places).copied().collect();
    }
    assert!(used_again > 100, "only {used_again} extents lie where others were");
    bench.judge("at the end");
}

#[test]
fn no_reader_gets_what_an_extent_held_before() {
    no_reader_sees_what_extents_held(1);
}

#[test]
fn nor_where_extents_are_read_ahead() {
    no_reader_sees_what_extents_held(3);
}

/// Takes all space but so much, so that what is free is soon used again. It is no file that is
/// compared.
fn leave_free(bench: &mut Bench, bytes: u64) {
    const STEP: u64 = 1 << 20;
    bench.create();
    bench.files.pop();
    let (mount, inode) = (bench.mount(), bench.inode(bench.files.len()));
    let steps = (0..).map(|step| super::fallocate(mount, &inode, FallocateFlags::empty(), step * STEP, STEP));
    let full = steps.take_while(Result::is_ok).count() as u64 * STEP;
    super::truncate(mount, &inode, full - bytes).unwrap();
    mount.sync().unwrap();
}

/// Where a file's extents lie, and when they came there.
pub(super) fn extents(inode: &Inode) -> Vec<(LogicalAddr, Generation)> {
    let walk = Walk::new(&inode.tree, inode.ino, 0..u64::MAX).unwrap();
    let all = walk.collect().unwrap();
    let place = |e: &Extent| e.on_disk().map(|disk| (disk.addr, e.generation));
    all.iter().filter_map(place).collect()
}

/// Reads a file in small steps.
pub(super) fn read_all(bench: &Bench, file: usize, step: usize, when: &str) {
    let (inode, want) = (bench.inode(file), &bench.files[file]);
    let mut buf = vec![0; step];
    for at in (0..want.len()).step_by(step) {
        let got = super::read(bench.mount(), &inode, at as u64, &mut buf).unwrap();
        assert!(buf[..got] == want[at..want.len().min(at + step)], "{when}: at {at}");
    }
}

/// One change of one or two files, and of what they should hold.
fn change(bench: &mut Bench, dice: &mut Dice, round: usize) -> &'static str {
    let (a, b) = (dice.below(FILES as u64) as usize, dice.below(FILES as u64) as usize);
    let (from, to) = (bench.inode(a), bench.inode(b));
    // Often whole extents: what takes their place is as large, and finds the same places.
    let unit = [EXTENT as u64, EXTENT as u64, BLOCK][dice.below(3) as usize];
    let units = FILE_BYTES as u64 / unit;
    let first = dice.below(units);
    let (at, end) = (first * unit, (first + 1 + dice.below(units - first)) * unit);
    let (start, stop) = (at as usize, end as usize);
    let mount = bench.fs.mount();
    match dice.below(8) {
        0..=2 => {
            let start = if dice.below(2) == 0 { start } else { start + 100 };
            let data = text(1000 + round, stop - start);
            super::write(mount, &from, start as u64, &data, WriteCtx::default()).unwrap();
            bench.files[a][start..stop].copy_from_slice(&data);
            "written over"
        }
        3 => {
            super::truncate(mount, &from, at).unwrap();
            let data = text(1000 + round, FILE_BYTES - start);
            super::write(mount, &from, at, &data, WriteCtx::default()).unwrap();
            bench.files[a][start..].copy_from_slice(&data);
            "cut and written on"
        }
        4 => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            super::fallocate(mount, &from, mode, at, end - at).unwrap();
            bench.files[a][start..stop].fill(0);
            "punched"
        }
        5 if a != b => {
            super::clone_range(mount, &from, at, &to, at, end - at).unwrap();
            let part = bench.files[a][start..stop].to_vec();
            bench.files[b][start..stop].copy_from_slice(&part);
            "cloned"
        }
        6 if a != b => {
            let what = Exchange {
                a_offset: at,
                b_offset: at,
                len_bytes: end - at,
                to_eof: false,
                only_written: false,
                fresh_b: None,
                dry_run: false,
            };
            super::exchange_range(mount, &from, &to, &what).unwrap();
            let part = bench.files[a][start..stop].to_vec();
            let other = std::mem::take(&mut bench.files[b]);
            bench.files[a][start..stop].copy_from_slice(&other[start..stop]);
            bench.files[b] = other;
            bench.files[b][start..stop].copy_from_slice(&part);
            "exchanged"
        }
        _ => {
            let what = Defrag {
                target_bytes: EXTENT as u64,
                compress: Some(["lzo", "zlib", "zstd"][round % 3].parse().unwrap()),
            };
            super::defragment(mount, &from, at..end, &what).unwrap();
            "defragmented"
        }
    }
}
