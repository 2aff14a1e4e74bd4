//! A volume in memory with some files ([`Bench`]), compared with what they should hold, and judged
//! by the checker and by the kernel; and what single files do: writers beside each other, no space,
//! writes that fail.

use std::sync::Arc;
use std::time::{Duration, Instant};

use btrfs_check::{CheckOptions, check};
use btrfs_format::{Key, KeyType};
use btrfs_image::{MkfsOptions, mkfs};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, On};
use cowshed_harness::{KernelVolume, need};
use cowshed_vfs::{Context, FallocateFlags, FileSystem, Lookup, NodeId, OpenFlags, OpenRequest, SeekKind};

use super::WriteCtx;
use crate::block::BLOCK;
use crate::error::{Error, StoreError};
use crate::files::EngineOptions;
use crate::fs::{Fs, MountOptions};
use crate::mount::Mount;
use crate::object::Inode;
use crate::testing::Dice;
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_runtime::{Env, FixedEnv};

fn name(file: usize) -> String {
    format!("file{file}")
}

/// A volume in memory, and what its files should hold.
pub(super) struct Bench {
    pub device: Arc<MemDevice>,
    pub fs: Fs,
    pub files: Vec<Vec<u8>>,
    pub options: MountOptions,
}

impl Bench {
    pub fn new(size_bytes: u64, adjust: impl FnOnce(&mut MkfsOptions), options: MountOptions) -> Self {
        let device = Arc::new(MemDevice::new("memory", size_bytes));
        let mut mkfs_options = MkfsOptions::new([0x5a; 16]);
        adjust(&mut mkfs_options);
        mkfs(&[device.clone() as Arc<dyn BlockDevice>], &mkfs_options).unwrap();
        let fs = mount(&device, &options);
        Self {
            device,
            fs,
            files: Vec::new(),
            options,
        }
    }

    pub fn mount(&self) -> &Mount {
        self.fs.mount()
    }

    pub fn create(&mut self) {
        let open = OpenRequest {
            flags: OpenFlags::WRITE,
            kill_suidgid: false,
        };
        let ctx = Context::root();
        self.fs
            .create(&ctx, NodeId::ROOT, name(self.files.len()).as_bytes(), 0o644, &open)
            .unwrap();
        self.files.push(Vec::new());
    }

    pub fn inode(&self, file: usize) -> Arc<Inode> {
        match self
            .fs
            .lookup(&Context::root(), NodeId::ROOT, name(file).as_bytes())
            .unwrap()
        {
            Lookup::Found(entry) => self.fs.inode(entry.node).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn remount(&mut self) {
        self.mount().close().unwrap();
        self.fs = mount(&self.device, &self.options);
    }

    pub fn check(&self, when: &str) {
        self.mount().sync().unwrap();
        let device: Arc<dyn BlockDevice> = self.device.clone();
        let options = CheckOptions {
            data_csums: true,
            ..CheckOptions::default()
        };
        let report = check(&[device], &options);
        assert!(report.is_clean(), "{when}:\n{report}");
    }

    pub fn compare(&self, file: usize, when: &str) {
        let inode = self.inode(file);
        let want = &self.files[file];
        assert_eq!(inode.attr_now().size, want.len() as u64, "{when}: size of {file}");
        let mut got = vec![0xee; want.len() + 100];
        let len = super::read(self.mount(), &inode, 0, &mut got).unwrap();
        assert_eq!(len, want.len(), "{when}: length of {file}");
        if got[..len] != want[..] {
            let at = (0..len).find(|i| got[*i] != want[*i]).unwrap();
            panic!(
                "{when}: file {file} differs at {at}: {} instead of {}",
                got[at], want[at]
            );
        }
    }

    /// All files, in memory and after a new mount; the checker, and the kernel.
    pub fn judge(&mut self, when: &str) {
        let all = |bench: &Self, then: &str| {
            (0..bench.files.len()).for_each(|file| bench.compare(file, &format!("{when}, {then}")));
        };
        all(self, "in memory");
        self.check(when);
        self.remount();
        all(self, "after a remount");
        self.judge_by_kernel();
    }

    /// The kernel finds nothing wrong and reads what we wrote.
    pub fn judge_by_kernel(&mut self) {
        self.mount().close().unwrap();
        let Some(()) = need::kernel_btrfs() else { return };
        let volume = KernelVolume::from_memory(&[self.device.snapshot()]).unwrap();
        volume.assert_clean();
        let read = |dir: &std::path::Path| {
            let contents = (0..self.files.len()).map(|file| std::fs::read(dir.join(name(file))));
            Ok(contents.collect::<std::io::Result<Vec<_>>>()?)
        };
        let contents = volume.with_mount(read).unwrap();
        for (file, content) in contents.iter().enumerate() {
            assert!(
                *content == self.files[file],
                "the kernel reads something else in file {file}"
            );
        }
    }
}

fn mount(device: &Arc<MemDevice>, options: &MountOptions) -> Fs {
    mount_device(device.clone(), options)
}

pub(super) fn mount_device(device: Arc<dyn BlockDevice>, options: &MountOptions) -> Fs {
    mount_in(Arc::new(FixedEnv::default()), device, options, EngineOptions::default())
}

pub(super) fn mount_in(
    env: Arc<dyn Env>,
    device: Arc<dyn BlockDevice>,
    options: &MountOptions,
    engine_options: EngineOptions,
) -> Fs {
    let volume = Volume::open(vec![device], &OpenOptions::default()).unwrap();
    let engine_options = EngineOptions {
        commit_interval_s: 0,
        ..engine_options
    };
    let mount = Mount::open(volume, env, engine_options).unwrap();
    Fs::new(mount, options.clone()).unwrap()
}

pub(super) fn random_bytes(dice: &mut Dice, len: u64) -> Vec<u8> {
    // Never zero, so that a hole where data should be is seen. Fewer values compress better.
    let values = [255, 255, 40, 3][dice.below(4) as usize];
    (0..len).map(|_| 1 + dice.below(values) as u8).collect()
}

pub(super) fn set_range(file: &mut Vec<u8>, at: u64, data: &[u8]) {
    let end = at as usize + data.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[at as usize..end].copy_from_slice(data);
}

pub(super) fn plain(_: &mut MkfsOptions) {}

/// Bytes of one file that belong to a thread: not a divisor of a block, so that threads share
/// blocks.
const STRIPE_BYTES: u64 = 1000;

#[test]
fn writers_that_share_blocks_lose_nothing() {
    const WRITERS: u64 = 3;
    const STRIPES: u64 = 300;
    let mut bench = Bench::new(512 << 20, plain, MountOptions::default());
    bench.create();
    bench.files[0] = vec![0; (STRIPES * STRIPE_BYTES) as usize];
    let (mount, inode) = (bench.mount(), bench.inode(0));
    super::truncate(mount, &inode, STRIPES * STRIPE_BYTES).unwrap();
    mount.data().set_dirty_bytes_max(100 << 10);
    let byte = |round: u64, stripe: u64| (round * 7 + stripe % 200) as u8 + 1;
    const ROUNDS: u64 = 8;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let inode = &inode;
            scope.spawn(move || {
                let mut dice = Dice::new(writer);
                for round in 0..ROUNDS {
                    for stripe in (0..STRIPES).filter(|s| s % WRITERS == writer) {
                        let data = vec![byte(round, stripe); STRIPE_BYTES as usize];
                        let at = stripe * STRIPE_BYTES;
                        super::write(mount, inode, at, &data, WriteCtx::default()).unwrap();
                        if dice.below(4) == 0 {
                            let mut buf = vec![0; STRIPE_BYTES as usize];
                            super::read(mount, inode, at, &mut buf).unwrap();
                            assert_eq!(buf, data, "a writer reads what it wrote");
                        }
                    }
                }
            });
        }
        let inode = &inode;
        scope.spawn(move || {
            for _ in 0..60 {
                super::write_back(mount, inode).unwrap();
                mount.commit().unwrap();
                // Allocated beyond the end, then dropped again: a second changer of extents.
                let (keep, end) = (FallocateFlags::KEEP_SIZE, STRIPES * STRIPE_BYTES);
                super::fallocate(mount, inode, keep, crate::block::round_up(end), 64 << 10).unwrap();
            }
        });
    });
    for stripe in 0..STRIPES {
        let data = vec![byte(ROUNDS - 1, stripe); STRIPE_BYTES as usize];
        set_range(&mut bench.files[0], stripe * STRIPE_BYTES, &data);
    }
    bench.compare(0, "after all writers");
    bench.check("after all writers");
    bench.judge_by_kernel();
}

#[test]
fn a_full_volume_says_so_and_can_be_emptied() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    bench.create();
    bench.create();
    let data = random_bytes(&mut Dice::new(1), 1 << 20);
    let inode = bench.inode(0);
    let mut at = 0;
    let error = loop {
        match super::write(bench.mount(), &inode, at, &data, WriteCtx::default()) {
            Ok(written) => at += written as u64,
            Err(error) => break error,
        }
        assert!(at < 128 << 20, "more than the volume holds");
    };
    assert!(matches!(error, Error::Store(StoreError::NoSpace)), "{error}");
    assert!(at > 20 << 20, "full after {at} bytes");
    bench.check("full");
    let mode = FallocateFlags::empty();
    let refused = super::fallocate(bench.mount(), &bench.inode(1), mode, 0, 90 << 20);
    assert!(matches!(refused, Err(Error::Store(StoreError::NoSpace))), "{refused:?}");
    // What was written is all there.
    let mut buf = vec![0; data.len()];
    for part in (0..at / data.len() as u64 * data.len() as u64).step_by(data.len()) {
        super::read(bench.mount(), &inode, part, &mut buf).unwrap();
        assert!(buf == data, "at {part}");
    }
    super::truncate(bench.mount(), &inode, 0).unwrap();
    let inode = bench.inode(1);
    for part in 0..16 {
        let written = super::write(bench.mount(), &inode, part << 20, &data, WriteCtx::default()).unwrap();
        assert_eq!(written, data.len());
        set_range(&mut bench.files[1], part << 20, &data);
    }
    bench.check("emptied and filled again");
    bench.judge_by_kernel();
}

#[test]
fn a_failed_write_reaches_fsync_once_and_harms_nothing_else() {
    for adjust in [plain, |options: &mut MkfsOptions| options.features.no_holes = false] {
        a_write_fails(Bench::new(256 << 20, adjust, MountOptions::default()));
    }
}

fn a_write_fails(mut bench: Bench) {
    bench.create();
    bench.create();
    let before = random_bytes(&mut Dice::new(1), 50_000);
    super::write(bench.mount(), &bench.inode(0), 0, &before, WriteCtx::default()).unwrap();
    bench.files[0].clone_from(&before);
    bench.mount().close().unwrap();

    let plan = FaultPlan::new();
    let faulty: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(bench.device.clone(), plan.clone()));
    bench.fs = mount_device(faulty, &bench.options);
    let inode = bench.inode(1);
    super::write(bench.mount(), &inode, 0, &before, WriteCtx::default()).unwrap();
    plan.add(Fault::error(On::Write, 0).forever());
    plan.add(Fault::error(On::Write, 1).forever());
    assert!(super::write_back(bench.mount(), &inode).is_err());
    plan.clear();
    super::write_back(bench.mount(), &inode).unwrap();
    super::write(bench.mount(), &inode, 0, b"again", WriteCtx::default()).unwrap();
    bench.files[1] = vec![0; before.len()];
    set_range(&mut bench.files[1], 0, b"again");
    bench.compare(1, "what failed is a hole");
    bench.compare(0, "the other file");
    bench.check("after a failed write");
    bench.judge_by_kernel();
}

#[test]
fn a_write_back_that_failed_in_the_background_reaches_syncfs_once() {
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    bench.create();
    bench.mount().close().unwrap();
    let plan = FaultPlan::new();
    let faulty: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(bench.device.clone(), plan.clone()));
    bench.fs = mount_device(faulty, &bench.options);
    let sync = |bench: &Bench| super::sync_all(bench.mount());
    super::write(bench.mount(), &bench.inode(0), 0, &[7; 50_000], WriteCtx::default()).unwrap();
    plan.add(Fault::error(On::Write, 0).forever());
    plan.add(Fault::error(On::Write, 1).forever());
    // As the thread in the background does it.
    drop(super::write_back_all(bench.mount()));
    plan.clear();
    assert!(sync(&bench).is_err(), "nobody else was told");
    sync(&bench).unwrap();
    assert!(
        super::write_back(bench.mount(), &bench.inode(0)).is_err(),
        "fsync of the file is told, too"
    );
    super::write_back(bench.mount(), &bench.inode(0)).unwrap();
}

#[test]
fn what_cannot_be_is_refused() {
    use cowshed_vfs::Error as Errno;
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    bench.create();
    let (mount, inode) = (bench.mount(), bench.inode(0));
    super::write(mount, &inode, 0, &[1; 9000], WriteCtx::default()).unwrap();
    let is = |result: crate::Result<()>, errno: Errno| {
        assert!(
            matches!(&result, Err(Error::Outcome(found)) if *found == errno),
            "{result:?}, not {errno:?}"
        );
    };
    use FallocateFlags as F;
    is(
        super::fallocate(mount, &inode, F::COLLAPSE_RANGE, 0, 4096),
        Errno::NotSupported,
    );
    is(
        super::fallocate(mount, &inode, F::INSERT_RANGE, 0, 4096),
        Errno::NotSupported,
    );
    is(
        super::fallocate(mount, &inode, F::PUNCH_HOLE, 0, 4096),
        Errno::NotSupported,
    );
    is(super::fallocate(mount, &inode, F::empty(), 0, 0), Errno::Invalid);
    is(
        super::fallocate(mount, &inode, F::empty(), u64::MAX / 2, 4096),
        Errno::FileTooBig,
    );
    is(super::truncate(mount, &inode, u64::MAX), Errno::FileTooBig);
    is(
        super::write(mount, &inode, u64::MAX - 5, b"x", WriteCtx::default()).map(drop),
        Errno::FileTooBig,
    );
    is(super::clone_range(mount, &inode, 0, &inode, 100, 4096), Errno::Invalid);
    is(super::clone_range(mount, &inode, 0, &inode, 4096, 8192), Errno::Invalid);
    is(
        super::clone_range(mount, &inode, 4096, &inode, 16384, 8192),
        Errno::Invalid,
    );
    is(
        super::copy_range(mount, &inode, 0, &inode, 10, 4096).map(drop),
        Errno::Invalid,
    );
    is(super::seek(&inode, 9000, SeekKind::Data).map(drop), Errno::NoSuchDevice);
}

/// Watched on Linux 6.18, a source of four blocks and a hundred bytes.
#[test]
fn clones_and_copies_at_the_largest_offset_are_as_on_linux() {
    use cowshed_vfs::Error as Errno;
    const SIZE: u64 = 4 * BLOCK + 100;
    const MAX: u64 = i64::MAX as u64;
    const END: u64 = MAX + 1;
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    (0..2).for_each(|_| bench.create());
    let (mount, src, dst) = (bench.mount(), bench.inode(0), bench.inode(1));
    super::write(mount, &src, 0, &[b'x'; SIZE as usize], WriteCtx::default()).unwrap();
    let said = |result: crate::Result<u64>| match result {
        Ok(done) => Ok(done),
        Err(Error::Outcome(errno)) => Err(errno),
        Err(other) => panic!("{other}"),
    };
    // Source, length, target, and the size that comes of it.
    for (from, len, to, size) in [
        (0, BLOCK, END - BLOCK, None),
        (0, BLOCK, END - 2 * BLOCK, Some(END - BLOCK)),
        (0, 2 * BLOCK, END - 2 * BLOCK, None),
        (0, BLOCK, END, None),
        (0, BLOCK, u64::MAX - BLOCK + 1, None),
        (0, 2 * BLOCK, u64::MAX - BLOCK + 1, None),
        (0, 0, END - 4 * BLOCK, None),
        (0, 0, END - 5 * BLOCK, Some(END - BLOCK + 100)),
        (4 * BLOCK, 100, END - BLOCK, Some(END - BLOCK + 100)),
        (4 * BLOCK, 0, END, None),
        (0, END, 0, None),
        (BLOCK, u64::MAX - BLOCK + 1, 0, None),
        (END, BLOCK, 0, None),
        (SIZE, 0, END - BLOCK, Some(0)),
        (SIZE, 0, END, None),
        (5 * BLOCK, BLOCK, END, None),
    ] {
        let result = super::clone_range(mount, &src, from, &dst, to, len);
        let result = said(result.map(|()| dst.attr_now().size));
        assert_eq!(
            result,
            size.ok_or(Errno::Invalid),
            "clone {from:#x}+{len:#x} to {to:#x}"
        );
        super::truncate(mount, &dst, 0).unwrap();
    }
    for (from, len, to, want) in [
        (0, BLOCK, END - BLOCK, Ok(BLOCK - 1)),
        (0, 2 * BLOCK, END - BLOCK, Ok(BLOCK - 1)),
        (0, BLOCK, MAX - BLOCK, Ok(BLOCK)),
        (0, 11, MAX - 10, Ok(10)),
        (0, BLOCK, MAX - 1, Ok(1)),
        (0, BLOCK, MAX, Err(Errno::FileTooBig)),
        (0, 0, MAX, Err(Errno::FileTooBig)),
        (1 << 20, BLOCK, MAX, Err(Errno::FileTooBig)),
        (0, BLOCK, END, Err(Errno::Invalid)),
        (0, 0, END, Err(Errno::Invalid)),
        (1 << 20, BLOCK, END, Err(Errno::Invalid)),
        (0, 5, u64::MAX - 5, Err(Errno::Invalid)),
        (0, BLOCK, u64::MAX - 5, Err(Errno::Overflow)),
        (0, u64::MAX, 0, Ok(SIZE)),
        (0, 1 << 62, 3 << 61, Ok(SIZE)),
        (MAX, BLOCK, 0, Ok(0)),
        (END, BLOCK, 0, Err(Errno::Invalid)),
        (u64::MAX - 5, BLOCK, 0, Err(Errno::Overflow)),
        (0, BLOCK, END - 2 * BLOCK, Ok(BLOCK)),
    ] {
        let result = said(super::copy_range(mount, &src, from, &dst, to, len));
        assert_eq!(result, want, "copy {from:#x}+{len:#x} to {to:#x}");
        let size = want.ok().filter(|copied| *copied > 0).map_or(0, |copied| to + copied);
        assert_eq!(dst.attr_now().size, size);
        super::truncate(mount, &dst, 0).unwrap();
    }
    let within = |len: u64, to: u64| said(super::copy_range(mount, &src, 0, &src, to, len));
    assert_eq!(within(MAX, BLOCK), Err(Errno::Invalid), "it ends with the source");
    assert_eq!(within(0, 0), Ok(0));
    assert_eq!(within(BLOCK, MAX), Err(Errno::FileTooBig));
    bench.files[0] = vec![b'x'; SIZE as usize];
    drop((src, dst));
    bench.judge("at the end");
}

#[test]
#[ignore = "measures, and only an optimised build is worth it"]
fn throughput() {
    let mut bench = Bench::new(8 << 30, plain, MountOptions::default());
    bench.create();
    bench.create();
    let rate = |what: &str, bytes: u64, time: Duration| {
        println!("{what}: {:.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9);
    };
    const TOTAL: u64 = 2 << 30;
    let data = random_bytes(&mut Dice::new(1), 1 << 20);
    let inode = bench.inode(0);
    let started = Instant::now();
    for at in (0..TOTAL).step_by(data.len()) {
        super::write(bench.mount(), &inode, at, &data, WriteCtx::default()).unwrap();
    }
    rate("write to memory and back", TOTAL, started.elapsed());
    bench.mount().sync().unwrap();
    rate("write + fsync", TOTAL, started.elapsed());
    let mut buf = vec![0; 1 << 20];
    let started = Instant::now();
    for at in (0..TOTAL).step_by(buf.len()) {
        super::read(bench.mount(), &inode, at, &mut buf).unwrap();
    }
    rate("read", TOTAL, started.elapsed());
    let inode = bench.inode(1);
    super::truncate(bench.mount(), &inode, 1 << 30).unwrap();
    let mut dice = Dice::new(2);
    let started = Instant::now();
    const WRITES: u64 = 60_000;
    for _ in 0..WRITES {
        let at = dice.below((1 << 30) / BLOCK) * BLOCK;
        super::write(bench.mount(), &inode, at, &data[..4096], WriteCtx::default()).unwrap();
    }
    println!(
        "random 4k writes: {:.0}/s",
        WRITES as f64 / started.elapsed().as_secs_f64()
    );
    let started = Instant::now();
    super::write_back(bench.mount(), &inode).unwrap();
    println!("written back: {:.0}/s", WRITES as f64 / started.elapsed().as_secs_f64());
    let started = Instant::now();
    bench.mount().sync().unwrap();
    println!("committed: {:.0}/s", WRITES as f64 / started.elapsed().as_secs_f64());
    bench.check("at the end");
}

/// A new file is deleted without a search for extents only where it never had one: holes are items,
/// too, on volumes without `no_holes`.
#[test]
fn deleted_new_files_leave_no_extents_behind() {
    for adjust in [plain, |options: &mut MkfsOptions| options.features.no_holes = false] {
        let mut bench = Bench::new(256 << 20, adjust, MountOptions::default());
        (0..6).for_each(|_| bench.create());
        let inodes: Vec<_> = (0..6).map(|file| bench.inode(file)).collect();
        let mount = bench.mount();
        // The first stays as it was made.
        assert!(inodes[0].began_without_extents && inodes[0].data.get().is_none());
        super::truncate(mount, &inodes[1], 1 << 20).unwrap();
        super::fallocate(mount, &inodes[2], FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
        super::write(mount, &inodes[3], 0, &[7; 10_000], WriteCtx::default()).unwrap();
        super::sync_all(mount).unwrap();
        super::truncate(mount, &inodes[3], 0).unwrap();
        super::clone_range(mount, &inodes[1], 0, &inodes[4], 0, 0).unwrap();
        super::write(mount, &inodes[5], 1 << 20, &[7; 10_000], WriteCtx::default()).unwrap();
        mount.sync().unwrap();
        for file in 0..6 {
            let unlinked = bench.fs.unlink(&Context::root(), NodeId::ROOT, name(file).as_bytes());
            unlinked.unwrap();
        }
        let numbers: Vec<_> = inodes.iter().map(|inode| inode.ino).collect();
        drop(inodes);
        bench.remount();
        let root = bench.fs.inode(NodeId::ROOT).unwrap();
        for ino in numbers {
            let (first, last) = (Key::new(ino, KeyType(0), 0), Key::new(ino, KeyType(u8::MAX), u64::MAX));
            let left = root.tree.cursor(first, last).next().unwrap();
            assert!(left.is_none(), "{ino} has items");
        }
        bench.check("at the end");
    }
}
