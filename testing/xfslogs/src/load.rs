//! Work on a volume until it is shut down.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use cowshed_device_sim::Rng;
use cowshed_harness::kernel::kernel_version;
use cowshed_harness::{KernelMount, LoopDevice, clone_range, run};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};

use crate::focus::{self, Exchanger, Focus};
use crate::host::Host;
use crate::plant::set_new_bits;

const WORKERS: u64 = 4;
const FILES: u64 = 24;
const OPEN_MAX: usize = 6;

/// A kind of volume.
#[derive(Debug)]
struct Kind {
    /// Options of mkfs.xfs.
    options: &'static str,
    /// Bits are set that an older mkfs.xfs does not know.
    is_new: bool,
    /// Not every kernel has it.
    since: Since,
}

/// Which kernels mount a kind of volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Since {
    /// Those from this version on.
    Version(u32, u32),
    /// Those that are built with version 4 of the format.
    V4,
}

/// From here on turning quotas off is not logged.
const NO_QUOTAOFF: (u32, u32) = (5, 15);

const ANY: Since = Since::Version(5, 10);
/// Counts of extents of 64 bits.
const NREXT64: Since = Since::Version(5, 19);
/// Exchanges and parent pointers.
const NEW_BITS: Since = Since::Version(6, 10);

const fn kind(options: &'static str, is_new: bool, since: Since) -> Kind {
    Kind { options, is_new, since }
}

const KINDS: &[Kind] = &[
    kind("-m rmapbt=1,reflink=1 -i nrext64=1", false, NREXT64),
    kind("-m rmapbt=1,reflink=1", true, NEW_BITS),
    kind("-m rmapbt=0,reflink=1", false, ANY),
    kind("-b size=1k -m rmapbt=1,reflink=1 -n size=4k", false, ANY),
    kind(
        "-m rmapbt=0,reflink=0,finobt=0,bigtime=0,inobtcount=0 -i sparse=0",
        false,
        ANY,
    ),
    kind("-m rmapbt=1,reflink=1 -i size=1024 -n size=16k", true, NEW_BITS),
    kind("-m rmapbt=1,reflink=1 -l su=32k", false, ANY),
    kind("-m rmapbt=0,reflink=1 -b size=1k", true, NEW_BITS),
    kind("-m rmapbt=1,reflink=1 -b size=1k", true, NEW_BITS),
    kind("-m crc=0,finobt=0,rmapbt=0,reflink=0", false, Since::V4),
    kind(
        "-m crc=0,finobt=0,rmapbt=0,reflink=0 -b size=1k -n size=4k",
        false,
        Since::V4,
    ),
];

/// What the running kernel can do with XFS.
#[derive(Debug)]
pub struct Able {
    version: (u32, u32),
    /// Volumes of version 4.
    v4: bool,
    quotas: bool,
}

impl Able {
    pub fn find() -> Result<Able> {
        Ok(Able {
            version: kernel_version(),
            v4: mounts_v4()?,
            quotas: Path::new("/proc/fs/xfs/xqmstat").exists(),
        })
    }

    fn mounts(&self, kind: &Kind) -> bool {
        match kind.since {
            Since::V4 => self.v4,
            Since::Version(major, minor) => self.version >= (major, minor),
        }
    }

    fn options(&self, focus: Focus) -> Vec<&'static Kind> {
        let fits = |kind: &&Kind| {
            self.mounts(kind)
                && (kind.is_new || !focus.needs_new_bits())
                && (kind.options.contains("reflink=1") || !focus.needs_reflink())
                && (kind.options.contains("size=1k") || !focus.needs_small_blocks())
        };
        KINDS.iter().filter(fits).collect()
    }
}

/// Is the kernel built with version 4? It is asked.
fn mounts_v4() -> Result<bool> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let image = dir.path().join("v4");
    File::create(&image)?.set_len(64 << 20)?;
    let mkfs = "mkfs.xfs -q --unsupported -m crc=0,finobt=0,rmapbt=0,reflink=0";
    run("bash", &["-ec", &format!("{mkfs} {}", image.display())])?;
    let device = LoopDevice::attach(&image)?;
    match KernelMount::new("xfs", &[device.path()], dir.path(), "") {
        Ok(mount) => mount.unmount().map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Makes a volume, works on it, and gives its images: some in flight, the last one after the
/// shutdown.
pub fn round(host: &Host, able: &Able, rng: &mut Rng, focus: Option<Focus>) -> Result<Vec<PathBuf>> {
    let image = host.path("image");
    let focus = match focus {
        Some(focus) => focus,
        None => std::iter::repeat_with(|| Focus::random(rng))
            .find(|focus| !able.options(*focus).is_empty())
            .expect("an endless iterator"),
    };
    let kinds = able.options(focus);
    ensure!(
        !kinds.is_empty(),
        "Linux {:?} has nothing for the load {focus:?}",
        able.version
    );
    let Kind { options, is_new, .. } = *kinds[rng.index(kinds.len())];
    let log_mib = [16, 20, 32][rng.index(3)];
    let mkfs = format!("mkfs.xfs -q -f --unsupported -d size=160m,agcount=4 -l size={log_mib}m {options}");
    File::create(&image)?.set_len(160 << 20)?;
    run("bash", &["-ec", &format!("{mkfs} {}", image.display())])?;
    if is_new {
        set_new_bits(&image)?;
    }
    let device = LoopDevice::attach(&image)?;
    // Buffers of other sizes make records of other sizes.
    let buffers = ["logbsize=32k", "logbsize=256k", "logbsize=64k,logbufs=2"][rng.index(3)];
    let mut mount_options = buffers.to_owned();
    let mut switched_off = None;
    if able.quotas && rng.one_in(2) {
        mount_options += ",uquota,gquota";
        mount_options += if options.contains("crc=0") { "" } else { ",pquota" };
        if able.version < NO_QUOTAOFF {
            switched_off = [Some("off -u"), Some("off -g"), Some("off -ug"), None][rng.index(4)];
        }
    }
    let mount = KernelMount::new("xfs", &[device.path()], &host.mountpoint, &mount_options)?;
    // Half of the rounds leave no unlinked files, whose freeing need not give the same blocks.
    let holds = rng.one_in(2);
    let (copies, pause) = if focus == Focus::Mixed {
        (1 + rng.below(4), 1500)
    } else {
        (8, 200)
    };
    let mut images = Vec::new();
    let is_over = AtomicBool::new(false);
    let worked: Result<()> = std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (seed, over, dir) = (rng.next_u64(), &is_over, &host.mountpoint);
            if focus == Focus::Mixed {
                scope.spawn(move || work(dir, worker, seed, over, holds));
            } else {
                let dir = dir.join(format!("w{worker}"));
                scope.spawn(move || focus::work(focus, &dir, &mut Rng::new(seed), holds, over));
            }
        }
        let exchanges = if focus == Focus::Exchange { 2 } else { 0 };
        let mut exchangers = Vec::new();
        for number in 0..exchanges {
            exchangers.push(Exchanger::start(
                &host.mountpoint.join(format!("x{number}")),
                rng.next_u64(),
            )?);
        }
        for _ in 0..2 {
            let (seed, over, dir) = (rng.next_u64(), &is_over, &host.mountpoint);
            scope.spawn(move || force(dir, seed, pause, over));
        }
        let over = cowshed_harness::threads::SetOnDrop(&is_over);
        let starting = if focus == Focus::Exchange { 500 } else { 150 };
        std::thread::sleep(Duration::from_millis(starting + rng.below(900)));
        for number in 0..copies {
            if number == copies / 2
                && let Some(command) = switched_off
            {
                let dir = host.mountpoint.as_os_str();
                run("xfs_quota", &["-x".as_ref(), "-c".as_ref(), command.as_ref(), dir])?;
            }
            images.push(host.copy(&image, &format!("copy{number}"))?);
            std::thread::sleep(Duration::from_millis(rng.below(300)));
        }
        let shutdown = if rng.one_in(3) { "shutdown -f" } else { "shutdown" };
        let dir = host.mountpoint.as_os_str();
        run("xfs_io", &["-x".as_ref(), "-c".as_ref(), shutdown.as_ref(), dir])?;
        drop(over);
        Ok(())
    });
    mount.unmount()?;
    drop(device);
    worked?;
    images.push(host.copy(&image, "last")?);
    Ok(images)
}

/// Forces the log at random moments, so that chains of transactions are cut anywhere.
fn force(dir: &Path, seed: u64, pause_micros: u64, over: &AtomicBool) {
    let mut rng = Rng::new(seed);
    let path = dir.join(format!("forced{seed}"));
    let Ok(file) = File::create(path) else { return };
    while !over.load(Ordering::Acquire) {
        let done = file.write_at(b"x", rng.below(4096)).and_then(|_| file.sync_all());
        if done.is_err() {
            return;
        }
        std::thread::sleep(Duration::from_micros(rng.below(pause_micros)));
    }
}

struct Worker {
    dir: PathBuf,
    rng: Rng,
    open: Vec<File>,
    /// Keeps unlinked files open.
    holds: bool,
}

fn work(dir: &Path, number: u64, seed: u64, over: &AtomicBool, holds: bool) {
    let dir = dir.join(format!("w{number}"));
    let _ = fs::create_dir(&dir);
    let mut worker = Worker {
        dir,
        rng: Rng::new(seed),
        open: Vec::new(),
        holds,
    };
    while !over.load(Ordering::Acquire) {
        match worker.step() {
            Err(error) if error.raw_os_error() == Some(5) => return,
            _ => {}
        }
    }
}

impl Worker {
    fn name(&mut self) -> PathBuf {
        let number = self.rng.below(FILES);
        match self.rng.below(4) {
            0 => self.dir.join("sub").join(format!("n{number}")),
            1 => self.dir.join(format!("a_name_that_is_longer_than_others_{number}")),
            _ => self.dir.join(format!("n{number}")),
        }
    }

    fn step(&mut self) -> io::Result<()> {
        let path = self.name();
        match self.rng.below(26) {
            0 => fs::create_dir(self.dir.join("sub")),
            1 => fs::remove_dir(self.dir.join("sub")),
            2..=4 => self.write(&path),
            5 | 6 => self.fragments(&path),
            7 | 8 => fs::remove_file(path),
            9 => {
                let len = self.rng.below(1 << 20);
                OpenOptions::new().write(true).open(path)?.set_len(len)
            }
            10 => fs::rename(path, self.name()),
            11 => fs::hard_link(path, self.name()),
            12 => {
                let target = "t".repeat(1 + self.rng.index(1000));
                std::os::unix::fs::symlink(target, path)
            }
            13 | 14 => self.attribute(&path),
            15..=17 => self.clone(&path),
            18 => self.punch(&path),
            19 => File::open(path)?.sync_all(),
            20 => self.keep_open(&path),
            21 => self.many(),
            22 => {
                self.open.pop();
                Ok(())
            }
            23 => self.exchange(&path),
            24 => self.shift(&path),
            _ => fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)),
        }
    }

    fn write(&mut self, path: &Path) -> io::Result<()> {
        let mut data = vec![0; 1 + self.rng.index(60_000)];
        self.rng.fill(&mut data);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.write_all_at(&data, self.rng.below(300_000))?;
        if self.rng.one_in(3) { file.sync_data() } else { Ok(()) }
    }

    /// A file of many extents.
    fn fragments(&mut self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        let count = 20 + self.rng.below(400);
        let start = self.rng.below(100) * 8192;
        for index in 0..count {
            file.write_all_at(&index.to_le_bytes(), start + index * 8192)?;
        }
        file.sync_data()
    }

    fn attribute(&mut self, path: &Path) -> io::Result<()> {
        let name = format!("user.attribute_{}", self.rng.below(20));
        if self.rng.one_in(4) {
            return Ok(rustix::fs::removexattr(path, name)?);
        }
        let most = [30, 300, 3000, 40_000][self.rng.index(4)];
        let mut value = vec![0; self.rng.index(most)];
        self.rng.fill(&mut value);
        Ok(setxattr(path, name, &value, XattrFlags::empty())?)
    }

    fn clone(&mut self, path: &Path) -> io::Result<()> {
        let to = self.name();
        let from = File::open(path)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(to)?;
        clone_range(&from, 0, &file, 0, 0)?;
        let len = file.metadata()?.len().max(1);
        for _ in 0..self.rng.below(30) {
            file.write_all_at(&[7; 5000], self.rng.below(len) & !4095)?;
        }
        if self.rng.one_in(2) { file.sync_data() } else { Ok(()) }
    }

    fn punch(&mut self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        let (at, len) = (self.rng.below(400_000) & !4095, 4096 * (1 + self.rng.below(60)));
        let flags = [
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::empty(),
        ][self.rng.index(3)];
        Ok(fallocate(&file, flags, at, len)?)
    }

    fn shift(&mut self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        let flags = [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE][self.rng.index(2)];
        Ok(fallocate(&file, flags, self.rng.below(100_000) & !4095, 4096 * 4)?)
    }

    /// An unlinked file that is in use.
    fn keep_open(&mut self, path: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        fs::remove_file(path)?;
        if !self.holds {
            return Ok(());
        }
        if self.open.len() >= OPEN_MAX {
            self.open.remove(0);
        }
        self.open.push(file);
        Ok(())
    }

    fn many(&mut self) -> io::Result<()> {
        let dir = self.dir.join("many");
        if self.rng.one_in(2) {
            return fs::remove_dir_all(dir);
        }
        let _ = fs::create_dir(&dir);
        for number in 0..self.rng.below(250) {
            let mut file = File::create(dir.join(format!("one_of_many_{number}")))?;
            if number % 16 == 0 {
                file.write_all(b"contents")?;
            }
        }
        Ok(())
    }

    /// Through python: the request is no safe call.
    fn exchange(&mut self, path: &Path) -> io::Result<()> {
        if !self.rng.one_in(8) {
            return Ok(());
        }
        const PROGRAM: &str = "import fcntl,os,struct,sys\n\
            a,b=(os.open(p,os.O_RDWR) for p in sys.argv[1:3])\n\
            n=min(os.fstat(a).st_size,os.fstat(b).st_size)&~4095\n\
            fcntl.ioctl(b,0x40285881,struct.pack('=iIQQQQ',a,0,0,0,n,0))";
        let other = self.name();
        let args = ["-c".as_ref(), PROGRAM.as_ref(), path.as_os_str(), other.as_os_str()];
        let _ = cowshed_harness::run_raw("python3", &args);
        let mut byte = [0];
        File::open(path)?.read_exact(&mut byte)
    }
}
