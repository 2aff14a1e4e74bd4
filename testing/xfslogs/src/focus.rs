//! Loads that do one thing over and over, so that the last checkpoint on the device cuts its chains
//! of transactions: each leaves unfinished intents of some kinds.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cowshed_device_sim::Rng;
use cowshed_harness::clone_range;
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};

/// What a round does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Focus {
    /// Everything.
    Mixed,
    /// Names: with parent pointers, each change of one logs an ATTRI.
    Parents,
    /// Very many names of few files, on volumes with small blocks: an ATTRI each, in trees of three
    /// levels.
    Links,
    /// Exchanges of long ranges: XMI.
    Exchange,
    /// Clones of many extents: CUI, BUI, RUI.
    Clones,
    /// Truncates, punches and collapses of files of many extents: EFI, RUI, BUI.
    Frees,
    /// Large attributes, set and removed: EFI.
    Attributes,
}

const ALL: [Focus; 9] = [
    Focus::Mixed,
    Focus::Mixed,
    Focus::Parents,
    Focus::Parents,
    Focus::Links,
    Focus::Exchange,
    Focus::Clones,
    Focus::Frees,
    Focus::Attributes,
];

impl Focus {
    pub fn random(rng: &mut Rng) -> Self {
        ALL[rng.index(ALL.len())]
    }

    /// True where the load needs bits that this mkfs.xfs does not know.
    pub fn needs_new_bits(self) -> bool {
        matches!(self, Self::Parents | Self::Links | Self::Exchange)
    }

    /// True where the load needs small blocks, for trees with many of them.
    pub fn needs_small_blocks(self) -> bool {
        self == Self::Links
    }

    /// True where the load clones.
    pub fn needs_reflink(self) -> bool {
        matches!(self, Self::Clones)
    }
}

/// EIO: the volume was shut down.
const SHUT_DOWN: i32 = 5;

/// Works until the volume is shut down.
///
/// `removes`: names are removed, too, so that unlinked inodes are left.
pub fn work(focus: Focus, dir: &Path, rng: &mut Rng, removes: bool, over: &AtomicBool) {
    let _ = fs::create_dir(dir);
    let mut names = 0;
    while !over.load(Ordering::Acquire) {
        let done = match focus {
            Focus::Parents => parents(dir, rng, removes, &mut names),
            Focus::Links => links(dir, rng),
            Focus::Clones => clones(dir, rng),
            Focus::Frees => frees(dir, rng, removes),
            Focus::Attributes => attributes(dir, rng, removes),
            Focus::Exchange | Focus::Mixed => return,
        };
        match done {
            Err(error) if error.raw_os_error() == Some(SHUT_DOWN) => return,
            _ => {}
        }
    }
}

/// Names made, linked, moved and removed. Lengths differ, so that attributes change their form.
fn parents(dir: &Path, rng: &mut Rng, removes: bool, names: &mut u64) -> io::Result<()> {
    let mut name = |rng: &mut Rng| {
        *names += 1;
        let filler = "x".repeat([1, 20, 100, 200][rng.index(4)]);
        dir.join(format!("{filler}{names}"))
    };
    let first = name(rng);
    match rng.below(4) {
        0 => drop(File::create(&first)?),
        1 => fs::create_dir(&first)?,
        2 => std::os::unix::fs::symlink("t".repeat(1 + rng.index(600)), &first)?,
        _ => drop(File::create(&first)?),
    }
    let is_dir = first.is_dir();
    let mut there = vec![first];
    let most = if rng.one_in(4) { 60 } else { 6 };
    for _ in 0..rng.below(most) {
        let (at, other) = (rng.index(there.len()), name(rng));
        if is_dir || rng.one_in(3) {
            fs::rename(&there[at], &other)?;
            there[at] = other;
        } else {
            fs::hard_link(&there[at], &other)?;
            there.push(other);
        }
    }
    if !removes || rng.one_in(3) {
        return Ok(());
    }
    while let Some(path) = there.pop() {
        let _ = if is_dir {
            fs::remove_dir(path)
        } else {
            fs::remove_file(path)
        };
    }
    Ok(())
}

/// Names of one file: first mostly more, then mostly fewer.
fn links(dir: &Path, rng: &mut Rng) -> io::Result<()> {
    const LINKS_MAX: usize = 500;
    let first = dir.join(format!("first{}", rng.next_u64()));
    drop(File::create(&first)?);
    let (mut there, mut is_growing, mut number) = (Vec::new(), true, 0);
    loop {
        number += 1;
        let filler = "y".repeat(100 + rng.index(100));
        let new = dir.join(format!("{}{filler}{number}", rng.below(1 << 30)));
        let at = rng.index(there.len().max(1));
        if there.is_empty() || rng.one_in(5) != is_growing {
            fs::hard_link(&first, &new)?;
            there.push(new);
        } else if rng.one_in(4) {
            fs::rename(&there[at], &new)?;
            there[at] = new;
        } else {
            fs::remove_file(there.swap_remove(at))?;
        }
        if there.len() == LINKS_MAX {
            is_growing = false;
        }
        if !is_growing && there.is_empty() {
            return fs::remove_file(first);
        }
    }
}

/// A file of many extents.
fn fragments(path: &Path, count: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)?;
    for index in 0..count {
        file.write_all_at(&index.to_le_bytes(), index * 8192)?;
    }
    file.sync_data()?;
    Ok(file)
}

fn some(dir: &Path, rng: &mut Rng) -> PathBuf {
    dir.join(format!("file{}", rng.below(4)))
}

fn clones(dir: &Path, rng: &mut Rng) -> io::Result<()> {
    let source = dir.join("source");
    let from = match File::open(&source) {
        Ok(file) if !rng.one_in(30) => file,
        _ => fragments(&source, 300 + rng.below(300))?,
    };
    let path = some(dir, rng);
    let to = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)?;
    clone_range(&from, 0, &to, 0, 0)?;
    match rng.below(4) {
        0 => to.set_len(rng.below(2_000_000)),
        1 => fallocate_at(&to, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, rng),
        _ => Ok(()),
    }
}

fn fallocate_at(file: &File, flags: FallocateFlags, rng: &mut Rng) -> io::Result<()> {
    Ok(fallocate(
        file,
        flags,
        rng.below(500_000) & !4095,
        4096 * (1 + rng.below(300)),
    )?)
}

/// Each punched hole frees an extent; then all that is left goes in one chain.
fn frees(dir: &Path, rng: &mut Rng, removes: bool) -> io::Result<()> {
    let path = some(dir, rng);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)?;
    let count = 50 + rng.below(400);
    fallocate(&file, FallocateFlags::empty(), 0, count * 8192)?;
    for index in 0..count {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, index * 8192, 4096)?;
    }
    match rng.below(5) {
        0 => file.set_len(rng.below(10_000)),
        1 if removes => fs::remove_file(path),
        2 => fallocate_at(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, rng),
        3 => fallocate_at(&file, FallocateFlags::COLLAPSE_RANGE, rng),
        _ => fallocate_at(&file, FallocateFlags::INSERT_RANGE, rng),
    }
}

fn attributes(dir: &Path, rng: &mut Rng, removes: bool) -> io::Result<()> {
    let path = some(dir, rng);
    drop(
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)?,
    );
    let name = format!("user.attribute_{}", rng.below(6));
    if rng.one_in(3) {
        let _ = rustix::fs::removexattr(&path, name);
        return Ok(());
    }
    let mut value = vec![0; 1 + rng.index(65_000)];
    rng.fill(&mut value);
    setxattr(&path, name, &value, XattrFlags::empty())?;
    if removes && rng.one_in(10) {
        fs::remove_file(path)
    } else {
        Ok(())
    }
}

/// Exchanges ranges of files of many extents until the volume is shut down. A program of its own:
/// the request is no safe call.
///
/// The files have one size: when Linux finishes an exchange of sizes, it frees what lies behind the
/// size before it, which may be data.
pub struct Exchanger(Child);

impl Exchanger {
    pub fn start(dir: &Path, seed: u64) -> io::Result<Self> {
        const PROGRAM: &str = "import fcntl,os,random,struct,sys\n\
            d=sys.argv[1]; random.seed(int(sys.argv[2])); os.makedirs(d,exist_ok=True)\n\
            def make(n):\n\
            \x20f=os.open(d+'/e%d'%n,os.O_RDWR|os.O_CREAT)\n\
            \x20for i in range(random.randrange(50,600)): os.pwrite(f,b'%d %d'%(n,i),i*random.choice((8192,12288)))\n\
            \x20os.ftruncate(f,7<<20)\n\
            \x20os.fsync(f)\n\
            \x20return f\n\
            fs=[make(n) for n in range(4)]\n\
            while True:\n\
            \x20a,b=random.sample(fs,2)\n\
            \x20n=min(os.fstat(a).st_size,os.fstat(b).st_size)&~4095\n\
            \x20s=random.randrange(0,max(n//2,1))&~4095\n\
            \x20whole=random.random()<0.5\n\
            \x20flags=random.choice((0,1<<3))\n\
            \x20args=(0,0,0,1|flags) if whole else (s,s,random.randrange(4096,max(n-s,8192))&~4095,flags)\n\
            \x20try: fcntl.ioctl(b,0x40285881,struct.pack('=iIQQQQ',a,0,*args))\n\
            \x20except OSError as e:\n\
            \x20\x20if e.errno==5: break\n";
        let child = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(dir)
            .arg(seed.to_string())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }
}

impl Drop for Exchanger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = cowshed_harness::limit::wait(&mut self.0, Duration::from_secs(30));
    }
}
