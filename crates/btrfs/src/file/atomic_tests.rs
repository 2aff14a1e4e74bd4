//! Atomic groups: whole or not at all for readers, crashes, failing devices and full volumes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use btrfs_image::MkfsOptions;
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::crash::{CrashImages, Options};
use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, Log, On};
use cowshed_runtime::SystemEnv;
use cowshed_vfs::{
    Caches, Context, Error as Errno, FileSystem, Handle, Ioctl, NodeId, OpenFlags, OpenRequest, WriteFlags,
};
use cowshed_vfs_ioctl::Front;
use parking_lot::Mutex;

use super::atomic::GROUP_BYTES_MAX;
use super::tests::{Bench, mount_device, plain, set_range};
use super::{Group, WriteCtx};
use crate::block::BLOCK;
use crate::error::{Error, StoreError};
use crate::fs::{Fs, MountOptions};
use crate::testing::Dice;

const START: u32 = 0xf501;
const COMMIT: u32 = 0xf502;
const ABORT: u32 = 0xf505;
const GET_FEATURES: u32 = 0x8004_f50c;

fn write(bench: &mut Bench, file: usize, at: u64, data: &[u8]) {
    super::write(bench.mount(), &bench.inode(file), at, data, WriteCtx::default()).unwrap();
    set_range(&mut bench.files[file], at, data);
}

/// Three files: inline, with extents, and empty.
fn three_files(adjust: impl FnOnce(&mut MkfsOptions)) -> Bench {
    let mut bench = Bench::new(256 << 20, adjust, MountOptions::default());
    (0..3).for_each(|_| bench.create());
    write(&mut bench, 0, 0, &[1; 1000]);
    bench.mount().sync().unwrap();
    write(&mut bench, 1, 0, &[2; 50_000]);
    bench
}

fn appears_whole(adjust: impl FnOnce(&mut MkfsOptions)) {
    let mut bench = three_files(adjust);
    let writes: [(usize, u64, &[u8]); 6] = [
        (0, 900, &[3; 300]),
        (0, 9000, &[4; 10]),
        (1, 100, &[5; 5000]),
        (1, 4096, &[6; 4096]),
        (1, 49_000, &[7; 2000]),
        (2, 20_000, &[8; 100]),
    ];
    let mut group = Group::new(bench.mount(), crate::reclaim::close);
    let before = bench.files.clone();
    for (file, at, data) in writes {
        group.write(bench.mount(), &bench.inode(file), at, data).unwrap();
        set_range(&mut bench.files[file], at, data);
    }
    let after = std::mem::replace(&mut bench.files, before);
    for (file, want) in after.iter().enumerate() {
        bench.compare(file, "before the commit");
        let inode = bench.inode(file);
        let mut seen = vec![0xee; want.len() + 10];
        let len = group.read(bench.mount(), &inode, 0, &mut seen).unwrap();
        assert!(seen[..len] == want[..], "the group reads file {file} as it will be");
        assert_eq!(group.size_after(&inode, inode.attr_now().size), want.len() as u64);
    }
    // Others write too; what was written before the end lies below the group.
    write(&mut bench, 2, 0, &[9; 30]);
    bench.fs.commit_group(group, Handle::NONE).unwrap();
    bench.files = after;
    set_range(&mut bench.files[2], 0, &[9; 30]);
    for file in 0..3 {
        bench.compare(file, "after the commit");
    }
    assert_eq!(bench.mount().data().dirty_bytes(), 0);
    bench.check("after the commit");
    bench.judge_by_kernel();
}

#[test]
fn a_group_over_several_files_appears_whole() {
    appears_whole(plain);
    appears_whole(|options| options.features.no_holes = false);
}

#[test]
fn a_dropped_group_has_never_been() {
    let mut bench = three_files(plain);
    let mut group = Group::new(bench.mount(), crate::reclaim::close);
    for file in 0..3 {
        group
            .write(bench.mount(), &bench.inode(file), 500, &[9; 70_000])
            .unwrap();
    }
    drop(group);
    for file in 0..3 {
        bench.compare(file, "after the drop");
    }
    bench.mount().sync().unwrap();
    crate::testing::assert_nothing_reserved(bench.mount().store().space());
    bench.check("after the drop");
    write(&mut bench, 0, 0, &[9; 10]);
    bench.judge_by_kernel();
}

#[test]
fn a_log_must_not_tell_of_half_a_group() {
    let mut bench = three_files(plain);
    bench.mount().sync().unwrap();
    for (files, is_for_commits_only) in [(1..2, false), (0..2, true), (2..3, false)] {
        let mut group = Group::new(bench.mount(), crate::reclaim::close);
        for file in files {
            group.write(bench.mount(), &bench.inode(file), 0, &[9; 100]).unwrap();
            set_range(&mut bench.files[file], 0, &[9; 100]);
        }
        group.apply(bench.mount()).unwrap();
        assert_eq!(bench.mount().names().is_off(), is_for_commits_only);
        bench.mount().commit().unwrap();
        assert!(!bench.mount().names().is_off());
    }
    bench.check("at the end");
}

/// Blocks that each version of the two files fills.
const BLOCKS: [u64; 5] = [0, 1, 7, 20, 31];

fn group_of_version(fs: &Fs, names: &[&str], version: u8) -> Group {
    let mount = fs.mount();
    let mut group = Group::new(mount, crate::reclaim::close);
    for name in names {
        for block in BLOCKS {
            let data = [version; BLOCK as usize];
            group.write(mount, &inode(fs, name), block * BLOCK, &data).unwrap();
        }
    }
    group
}

fn inode(fs: &Fs, name: &str) -> Arc<crate::object::Inode> {
    match fs.lookup(&Context::root(), NodeId::ROOT, name.as_bytes()).unwrap() {
        cowshed_vfs::Lookup::Found(entry) => fs.inode(entry.node).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

/// The version that all files agree on.
fn version_of(fs: &Fs, names: &[&str], when: &str) -> u8 {
    let mut versions = Vec::new();
    for name in names {
        let mut content = vec![0; 32 * BLOCK as usize];
        let len = super::read(fs.mount(), &inode(fs, name), 0, &mut content).unwrap();
        assert_eq!(len, content.len(), "{when}: {name} has its length");
        for block in 0..32 {
            let bytes = &content[(block * BLOCK) as usize..][..BLOCK as usize];
            let is_written = BLOCKS.contains(&block);
            assert!(
                bytes.iter().all(|b| *b == if is_written { bytes[0] } else { 0 }),
                "{when}: {name}, block {block}"
            );
            versions.extend(is_written.then_some(bytes[0]));
        }
    }
    assert!(
        versions.iter().all(|v| *v == versions[0]),
        "{when}: a group in parts: {versions:?}"
    );
    versions[0]
}

/// A volume whose files are at version 1, durably.
fn at_version_one(options: &MountOptions, names: &[&str]) -> Arc<MemDevice> {
    let mut bench = Bench::new(128 << 20, plain, options.clone());
    names.iter().for_each(|_| bench.create());
    bench
        .fs
        .commit_group(group_of_version(&bench.fs, names, 1), Handle::NONE)
        .unwrap();
    bench.mount().close().unwrap();
    bench.device
}

fn crash_images(names: &[&str], options: &MountOptions) {
    let base = at_version_one(options, names);
    let log = Log::new();
    let device = Arc::new(base.snapshot());
    let fs = mount_device(Arc::new(log.record(device)), options);
    const LAST: u8 = 9;
    for version in 2..=LAST {
        fs.commit_group(group_of_version(&fs, names, version), Handle::NONE)
            .unwrap();
        log.mark(version.into());
    }
    let events = log.take();
    fs.mount().store().txn().abort("a crash");
    let images = Options {
        exhaustive_images_max: 8,
        prefix_images_max: 5,
        sampled_images: 5,
        torn_images: 1,
        tear_bytes: 4096,
        ..Options::default()
    };
    let mut seen = 0;
    for image in CrashImages::new(&[base.snapshot()], &events, images) {
        let when = image.to_string();
        let acknowledged = image.last_mark().map_or(1, |mark| mark as u8);
        let device = Arc::new(image.devices.into_iter().next().unwrap());
        let fs = mount_device(device, options);
        let version = version_of(&fs, names, &when);
        assert!(
            (acknowledged..=acknowledged + 1).contains(&version),
            "{when}: version {version}, {acknowledged} was acknowledged"
        );
        fs.mount().store().txn().abort("seen");
        seen += 1;
    }
    assert!(seen > 50, "only {seen} images");
}

#[test]
fn every_crash_image_has_all_of_a_group_or_nothing() {
    crash_images(&["file0", "file1"], &MountOptions::default());
    crash_images(&["file0"], &MountOptions::default());
    // In place would be in parts.
    let in_place = MountOptions {
        nodatacow: true,
        ..MountOptions::default()
    };
    crash_images(&["file0", "file1"], &in_place);
}

#[test]
fn whatever_write_fails_a_group_stays_whole() {
    let names = ["file0", "file1"];
    let base = at_version_one(&MountOptions::default(), &names);
    let mut nth = 0;
    loop {
        let device = Arc::new(base.snapshot());
        let plan = FaultPlan::new();
        let faulty: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(device.clone(), plan.clone()));
        let fs = mount_device(faulty, &MountOptions::default());
        let group = group_of_version(&fs, &names, 2);
        plan.add(Fault::error(On::Any, nth).forever());
        let is_done = fs.commit_group(group, Handle::NONE).is_ok();
        plan.clear();
        if is_done {
            assert_eq!(version_of(&fs, &names, "done"), 2);
        }
        fs.mount().store().txn().abort("the test ends here");
        drop(fs);
        let fs = mount_device(device, &MountOptions::default());
        let version = version_of(&fs, &names, &format!("operation {nth} failed"));
        assert!(version == 2 || !is_done, "acknowledged and gone");
        fs.mount().store().txn().abort("seen");
        if is_done {
            break;
        }
        nth += 1;
    }
    assert!(nth > 5, "{nth} operations");
}

#[test]
fn a_full_volume_refuses_a_group_and_keeps_what_is_there() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    (0..2).for_each(|_| bench.create());
    write(&mut bench, 0, 0, &[1; 100_000]);
    let piece = vec![7; 1 << 20];
    let mut at = 0;
    while super::write(bench.mount(), &bench.inode(1), at, &piece, WriteCtx::default()).is_ok() {
        at += piece.len() as u64;
    }
    bench.mount().sync().unwrap();
    let mut group = Group::new(bench.mount(), crate::reclaim::close);
    let inode = bench.inode(0);
    let mut offset = 0;
    let error = loop {
        match group.write(bench.mount(), &inode, offset, &piece) {
            Ok(()) => offset += piece.len() as u64,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Store(StoreError::NoSpace)), "{error}");
    bench.compare(0, "refused");
    drop(group);
    super::truncate(bench.mount(), &bench.inode(1), 0).unwrap();
    let mut group = Group::new(bench.mount(), crate::reclaim::close);
    group.write(bench.mount(), &inode, 50, &piece).unwrap();
    bench.fs.commit_group(group, Handle::NONE).unwrap();
    set_range(&mut bench.files[0], 50, &piece);
    bench.compare(0, "with space again");
    bench.check("with space again");
    bench.judge_by_kernel();
}

/// Notes what it is told. One process has ended.
#[derive(Default)]
struct Told(Mutex<Vec<(NodeId, Vec<std::ops::Range<u64>>)>>, u32);

impl Caches for Told {
    fn attributes_changed(&self, node: NodeId) {
        self.0.lock().push((node, Vec::new()));
    }
    fn content_changed(&self, node: NodeId, ranges: Vec<std::ops::Range<u64>>) {
        self.0.lock().push((node, ranges));
    }
    fn content_lost(&self, node: NodeId, ranges: Vec<std::ops::Range<u64>>) {
        self.0.lock().push((node, ranges));
    }
    fn settle(&self) {}
    fn has_ended(&self, pid: u32) -> bool {
        pid != 0 && pid == self.1
    }
}

struct Mounted {
    fs: Front<Fs>,
    node: NodeId,
    told: Arc<Told>,
}

impl Mounted {
    fn open(&self, flags: OpenFlags) -> Handle {
        let open = OpenRequest {
            flags,
            kill_suidgid: false,
        };
        self.fs.open(&Context::root(), self.node, &open).unwrap().handle
    }
    fn ioctl(&self, handle: Handle, cmd: u32) -> Result<u32, Errno> {
        self.ioctl_by(&Context::root(), handle, cmd)
    }
    fn ioctl_by(&self, ctx: &Context, handle: Handle, cmd: u32) -> Result<u32, Errno> {
        let call = Ioctl {
            cmd,
            arg: 0,
            compat: false,
        };
        let mut out = [0; 4];
        let done = self.fs.ioctl(ctx, self.node, handle, &call, &[], &mut out);
        done.map(|_| u32::from_le_bytes(out))
    }
    fn write(&self, handle: Handle, at: u64, data: &[u8]) {
        let (ctx, flags) = (Context::root(), WriteFlags::empty());
        let written = self.fs.write(&ctx, self.node, handle, at, data, flags).unwrap();
        assert_eq!(written, data.len());
    }
    fn read(&self, handle: Handle) -> Vec<u8> {
        let mut buf = vec![0xee; 64];
        let len = self.fs.read(&Context::root(), self.node, handle, 0, &mut buf).unwrap();
        buf.truncate(len);
        buf
    }
    fn size(&self, handle: Handle) -> u64 {
        let attr = self.fs.getattr(&Context::root(), self.node, Some(handle)).unwrap();
        attr.size_bytes
    }
    fn told(&self) -> Vec<(NodeId, Vec<std::ops::Range<u64>>)> {
        std::mem::take(&mut *self.told.0.lock())
    }
}

#[test]
#[allow(clippy::single_range_in_vec_init)]
fn a_handle_has_its_group_to_itself_until_the_commit() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    bench.create();
    write(&mut bench, 0, 0, b"before");
    let cowshed_vfs::Lookup::Found(entry) = bench.fs.lookup(&Context::root(), NodeId::ROOT, b"file0").unwrap() else {
        panic!("the file is there")
    };
    let (told, node) = (Arc::new(Told::default()), entry.node);
    let front = Front::new(Arc::new(bench.fs), Arc::new(SystemEnv));
    front.set_caches(told.clone());
    let mount = Mounted { fs: front, node, told };
    let (writer, other) = (
        mount.open(OpenFlags::READ | OpenFlags::WRITE),
        mount.open(OpenFlags::WRITE),
    );
    let reader = mount.open(OpenFlags::READ);
    assert_eq!(mount.ioctl(writer, GET_FEATURES), Ok(4));
    assert_eq!(mount.ioctl(reader, GET_FEATURES), Ok(0));
    assert_eq!(mount.ioctl(reader, START), Err(Errno::BadHandle));
    assert_eq!(mount.ioctl(reader, COMMIT), Err(Errno::BadHandle));
    assert_eq!(mount.ioctl(reader, ABORT), Err(Errno::BadHandle));

    mount.ioctl(writer, START).unwrap();
    mount.ioctl(writer, START).unwrap();
    assert_eq!(mount.ioctl(other, START), Err(Errno::Busy));
    mount.write(writer, 0, b"after it");
    assert_eq!((mount.read(writer), mount.size(writer)), (b"after it".to_vec(), 8));
    assert_eq!((mount.read(reader), mount.size(reader)), (b"before".to_vec(), 6));
    mount.ioctl(writer, ABORT).unwrap();
    assert_eq!(mount.told(), [(node, vec![0..BLOCK])], "what was staged is forgotten");
    assert_eq!(mount.read(writer), b"before");
    mount.ioctl(writer, ABORT).unwrap();
    assert_eq!(mount.told(), []);

    mount.ioctl(other, START).unwrap();
    mount.write(other, 2, b"fresh");
    mount.ioctl(other, COMMIT).unwrap();
    assert_eq!(mount.told(), [(node, vec![])], "nobody had read it");
    assert_eq!(mount.read(reader), b"befresh");
    mount.ioctl(other, START).unwrap();
    mount.write(other, 0, b"to");
    assert_eq!(mount.read(reader), b"befresh");
    mount.ioctl(other, COMMIT).unwrap();
    assert_eq!(mount.told(), [(node, vec![0..BLOCK])], "somebody may remember the old");
    assert_eq!(mount.read(reader), b"tofresh");
    mount.ioctl(other, COMMIT).unwrap();

    mount.ioctl(other, START).unwrap();
    mount.write(other, 0, b"never");
    mount.fs.release(node, other);
    assert_eq!(mount.told(), [(node, vec![0..BLOCK])], "closed without a commit");
    assert_eq!(mount.read(reader), b"tofresh");
    mount.ioctl(writer, START).unwrap();
    mount.write(writer, 0, b"nor this");
    mount.fs.destroy();
    assert_eq!(mount.read(reader), b"tofresh");
    crate::testing::assert_nothing_reserved(mount.fs.mount().store().space());
}

#[test]
fn a_file_that_is_deleted_before_the_commit_stays_deleted() {
    let mut bench = three_files(plain);
    let mut group = Group::new(bench.mount(), crate::reclaim::close);
    for file in 0..2 {
        let inode = bench.inode(file);
        group.write(bench.mount(), &inode, 0, &[9; 10_000]).unwrap();
    }
    let inode = bench.inode(0);
    bench.fs.unlink(&Context::root(), NodeId::ROOT, b"file0").unwrap();
    inode.refs.reset();
    crate::reclaim::settle(bench.mount(), &inode);
    bench.fs.commit_group(group, Handle::NONE).unwrap();
    set_range(&mut bench.files[1], 0, &[9; 10_000]);
    bench.compare(1, "the other file");
    bench.check("nothing is left of the deleted file");
    // Open, and without a name: the last close deletes it.
    let mut group = Group::new(bench.mount(), crate::reclaim::close);
    let inode = bench.inode(2);
    group.write(bench.mount(), &inode, 0, &[9; 10_000]).unwrap();
    bench.fs.unlink(&Context::root(), NodeId::ROOT, b"file2").unwrap();
    inode.refs.reset();
    group.apply(bench.mount()).unwrap();
    assert!(inode.refs.is_deleting(), "the group was the last to have it open");
    bench.mount().commit().unwrap();
    bench.check("nor of the second one");
}

/// Handles can be used by several threads: a write that comes while the group ends must not be lost
/// with it.
#[test]
fn a_write_beside_the_end_of_its_group_is_not_lost() {
    for round in 0..30_u8 {
        let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
        bench.create();
        let node = match bench.fs.lookup(&Context::root(), NodeId::ROOT, b"file0").unwrap() {
            cowshed_vfs::Lookup::Found(entry) => entry.node,
            other => panic!("{other:?}"),
        };
        let told = Arc::new(Told::default());
        let fs = Front::new(Arc::new(bench.fs), Arc::new(SystemEnv));
        let mount = Mounted { fs, node, told };
        let handle = mount.open(OpenFlags::READ | OpenFlags::WRITE);
        mount.ioctl(handle, START).unwrap();
        let writes = 2000;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..writes).for_each(|n| mount.write(handle, n, &[round + 1])));
            std::thread::sleep(Duration::from_micros(200 * u64::from(round)));
            mount.ioctl(handle, COMMIT).unwrap();
        });
        let mut buf = vec![0; 4096];
        let len = mount.fs.read(&Context::root(), node, handle, 0, &mut buf).unwrap();
        assert_eq!(buf[..len], vec![round + 1; writes as usize][..], "round {round}");
        mount.fs.mount().store().txn().abort("the test ends here");
    }
}

#[test]
fn a_group_that_is_too_large_is_refused() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    bench.create();
    let (mount, inode) = (bench.mount(), bench.inode(0));
    let mut group = Group::new(mount, crate::reclaim::close);
    let is_too_big = |result: crate::Result<()>| {
        assert!(matches!(result, Err(Error::Outcome(Errno::FileTooBig))), "{result:?}");
    };
    is_too_big(group.write(mount, &inode, u64::MAX - 5, b"x"));
    is_too_big(group.write(mount, &inode, crate::block::FILE_BYTES_MAX, b"x"));
    let others = GROUP_BYTES_MAX - 2 * BLOCK;
    let all = mount.data().staged_bytes();
    all.fetch_add(others, std::sync::atomic::Ordering::Relaxed);
    group.write(mount, &inode, 0, &[1; 8192]).unwrap();
    is_too_big(group.write(mount, &inode, 8192, b"x"));
    group.write(mount, &inode, 0, b"").unwrap();
    drop(group);
    assert_eq!(all.load(std::sync::atomic::Ordering::Relaxed), others);
}

fn node_of(fs: &Fs, name: &str) -> NodeId {
    match fs.lookup(&Context::root(), NodeId::ROOT, name.as_bytes()).unwrap() {
        cowshed_vfs::Lookup::Found(entry) => entry.node,
        other => panic!("{other:?}"),
    }
}

/// What was written before the group is durable with its commit, also where nothing was staged.
#[test]
fn a_commit_of_nothing_is_an_fsync() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    bench.create();
    bench.mount().sync().unwrap();
    let device = bench.device.clone();
    let mount = Mounted {
        node: node_of(&bench.fs, "file0"),
        fs: Front::new(Arc::new(bench.fs), Arc::new(SystemEnv)),
        told: Arc::new(Told::default()),
    };
    let handle = mount.open(OpenFlags::READ | OpenFlags::WRITE);
    mount.write(handle, 0, b"plain");
    mount.ioctl(handle, START).unwrap();
    mount.ioctl(handle, COMMIT).unwrap();
    // The power fails.
    let crashed = mount_device(Arc::new(device.snapshot()), &MountOptions::default());
    let mut seen = [0; 5];
    super::read::read_range(crashed.mount(), &inode(&crashed, "file0"), 0, &mut seen).unwrap();
    assert_eq!(seen, *b"plain");
    crashed.mount().store().txn().abort("seen");
    mount.fs.release(mount.node, handle);
    mount.fs.mount().store().txn().abort("the test ends here");
}

/// SQLite that was refused a group makes a journal, does not sync it, and writes to the database.
#[test]
fn writes_before_a_refused_group_are_durable_before_later_ones() {
    for is_refused in [true, false] {
        let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
        (0..2).for_each(|_| bench.create());
        bench.mount().sync().unwrap();
        let (device, journal) = (bench.device.clone(), bench.inode(1));
        let node = node_of(&bench.fs, "file0");
        let mount = Mounted {
            fs: Front::new(Arc::new(bench.fs), Arc::new(SystemEnv)),
            node,
            told: Arc::new(Told::default()),
        };
        let engine = mount.fs.mount().clone();
        let handle = mount.open(OpenFlags::READ | OpenFlags::WRITE);
        mount.ioctl(handle, START).unwrap();
        mount.write(handle, 0, &[1; 4096]);
        if is_refused {
            let all = engine.data().staged_bytes();
            all.fetch_add(GROUP_BYTES_MAX, std::sync::atomic::Ordering::Relaxed);
            let (ctx, flags) = (Context::root(), WriteFlags::empty());
            let refused = mount.fs.write(&ctx, node, handle, 4096, b"x", flags);
            assert!(matches!(refused, Err(Errno::FileTooBig)), "{refused:?}");
            all.fetch_sub(GROUP_BYTES_MAX, std::sync::atomic::Ordering::Relaxed);
        }
        mount.ioctl(handle, ABORT).unwrap();
        super::write(&engine, &journal, 0, b"as it was", WriteCtx::default()).unwrap();
        mount.write(handle, 0, b"the first write");
        let commits = engine.store().txn().committed();
        mount.write(handle, 4096, b"the second write");
        assert_eq!(engine.store().txn().committed(), commits, "order is needed once");
        // The power fails.
        let crashed = mount_device(Arc::new(device.snapshot()), &MountOptions::default());
        let mut seen = [0; 9];
        let len = super::read::read_range(crashed.mount(), &inode(&crashed, "file1"), 0, &mut seen);
        let is_there = len.is_ok() && seen == *b"as it was";
        assert_eq!(is_there, is_refused, "{seen:?}");
        crashed.mount().store().txn().abort("seen");
        mount.fs.release(node, handle);
        engine.store().txn().abort("the test ends here");
    }
}

#[test]
fn opening_a_file_after_its_writer_died_waits_for_the_end_of_the_group() {
    const DEAD: u32 = 77;
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    bench.create();
    let node = node_of(&bench.fs, "file0");
    let told = Arc::new(Told(Mutex::default(), DEAD));
    let front = Front::new(Arc::new(bench.fs), Arc::new(SystemEnv));
    front.set_caches(told.clone());
    let mount = Mounted { fs: front, node, told };
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    for (pid, waits) in [(DEAD, true), (DEAD + 1, false)] {
        let handle = mount.open(flags);
        let ctx = Context::new(cowshed_vfs::Credentials::root(), pid, 0);
        mount.ioctl_by(&ctx, handle, START).unwrap();
        mount.write(handle, 0, b"staged");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| {
                let next = mount.open(flags);
                (next, mount.told())
            });
            // Both much longer than an open takes, and less than the second that one waits.
            let look_until = Instant::now() + Duration::from_millis(if waits { 300 } else { 900 });
            while Instant::now() < look_until && !next.is_finished() {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(next.is_finished(), !waits);
            mount.fs.release(node, handle);
            let (next, told) = next.join().unwrap();
            assert_eq!(told.len(), usize::from(waits), "what was staged is forgotten by then");
            mount.fs.release(node, next);
        });
        mount.told();
    }
    mount.fs.mount().store().txn().abort("the test ends here");
}

/// For the random operations of [`super::random_tests`]: a group over some files, which is
/// committed or dropped.
pub(super) fn random_group(bench: &mut Bench, dice: &mut Dice, file_bytes_max: u64) -> String {
    let mut group = Group::new(bench.mount(), crate::reclaim::close);
    let mut after = bench.files.clone();
    let mut what = Vec::new();
    for _ in 0..1 + dice.below(5) {
        let file = dice.below(after.len() as u64) as usize;
        let size = after[file].len() as u64;
        let at = dice.below(file_bytes_max.min(size + 20_000));
        let data: Vec<u8> = (0..1 + dice.below(12_000)).map(|_| 1 + dice.below(255) as u8).collect();
        group.write(bench.mount(), &bench.inode(file), at, &data).unwrap();
        set_range(&mut after[file], at, &data);
        what.push(format!("{file} {at}+{}", data.len()));
    }
    match dice.below(4) {
        0 => drop(group),
        1 => {
            group.apply(bench.mount()).unwrap();
            bench.files = after;
        }
        _ => {
            bench.fs.commit_group(group, Handle::NONE).unwrap();
            bench.files = after;
        }
    }
    format!("group {}", what.join(", "))
}
