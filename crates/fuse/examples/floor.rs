//! What the transport costs: a file system in memory, mounted, and the operations that people
//! measure.
//!
//! `cargo run --release -p cowshed-fuse --example floor -- [transport=uring|dev] [workers=N]
//! [spin=MICROS] [open] [kernel] [writeback] [threads=N] [readahead=BYTES] [names] [on=DIRECTORY]
//! [serve=DIRECTORY]`
//!
//! `open`: do not skip OPEN. `kernel`: the kernel checks permissions. `threads`: how many threads
//! of the benchmark run at once. `names`: leave out reading and writing. `on`: measure what is
//! mounted there instead. `serve`: measure nothing, but stay mounted there until standard input
//! ends; see [`serve`].
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cowshed_fuse::{Permissions, Session, SessionError, SessionOptions, TransportChoice, Unmounter};
use cowshed_vfs::memfs::MemFs;

const FILES: usize = 20_000;
const WRITES: usize = 50_000;
const STREAM_BYTES: usize = 512 << 20;

fn main() {
    let mut options = SessionOptions::default();
    let mut threads = 1;
    let mut has_data = true;
    let mut target = None;
    let mut served = None;
    for arg in std::env::args().skip(1) {
        match arg.split_once('=').unwrap_or((&arg, "")) {
            ("workers", n) => options.workers = n.parse().expect("a number"),
            ("spin", n) => options.spin = Duration::from_micros(n.parse().expect("microseconds")),
            ("threads", n) => threads = n.parse().expect("a number"),
            ("transport", "uring") => options.transport = TransportChoice::Uring,
            ("transport", "dev") => options.transport = TransportChoice::Dev,
            ("open", _) => options.skip_open = false,
            ("kernel", _) => options.permissions = Permissions::Kernel,
            ("readahead", n) => options.readahead_bytes = n.parse().expect("bytes"),
            ("names", _) => has_data = false,
            ("writeback", _) => options.writeback_cache = true,
            ("on", dir) => target = Some(PathBuf::from(dir)),
            ("serve", dir) => served = Some(PathBuf::from(dir)),
            _ => panic!("unknown option {arg}"),
        }
    }
    if let Some(dir) = served {
        return serve(&dir, &options).expect("the caller reads what is printed");
    }
    if let Some(dir) = target {
        measure_names(&dir, threads, &mut || ());
        return measure_data(&dir, threads);
    }
    let SessionOptions {
        workers,
        spin,
        skip_open,
        permissions,
        ..
    } = &options;
    println!("workers={workers} spin={spin:?} skip_open={skip_open} {permissions:?}");
    let dir = tempfile::tempdir().expect("a directory");
    let fs = Arc::new(MemFs::default());
    let mount = || Some(Mount::new(fs.clone(), dir.path(), options.clone()));
    let mut mounted = mount();
    // A new mount of the same file system is one whose kernel remembers nothing.
    measure_names(dir.path(), threads, &mut || {
        mounted.take();
        mounted = mount();
    });
    if has_data {
        measure_data(dir.path(), threads);
    }
}

/// Mounts, prints `ready`, and unmounts when standard input ends: also when the caller was killed.
/// A line `remount` unmounts and mounts the same file system again, so that the kernel has nothing
/// of it in its caches, and is answered with `ready`, too.
fn serve(dir: &Path, options: &SessionOptions) -> io::Result<()> {
    let fs = Arc::new(MemFs::default());
    let mount = || Some(Mount::new(fs.clone(), dir, options.clone()));
    let say_ready = || {
        println!("ready");
        io::stdout().flush()
    };
    let mut mounted = mount();
    say_ready()?;
    for line in io::stdin().lock().lines() {
        assert_eq!(line?, "remount", "the only command");
        drop(mounted.take());
        mounted = mount();
        say_ready()?;
    }
    Ok(())
}

struct Mount(Unmounter, Option<JoinHandle<Result<(), SessionError>>>);

impl Mount {
    fn new(fs: Arc<MemFs>, dir: &Path, options: SessionOptions) -> Mount {
        let session = Session::mount(fs, dir, options).expect("mounting");
        Mount(session.unmounter(), Some(session.spawn()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.0.unmount(true).expect("unmounting");
        let _ = self.1.take().map(JoinHandle::join);
    }
}

/// Runs `work` on each thread and prints how much was done in a second.
fn run(what: &str, unit: &str, amount: usize, threads: usize, work: impl Fn(usize) + Sync) {
    let (start, cpu) = (Instant::now(), cpu_time());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    let took = start.elapsed().as_secs_f64();
    let cpu = cpu_time() - cpu;
    let done = (amount * threads) as f64;
    println!(
        "{what:20} {:>9.0} {unit}/s  {:>7.2} us of processor each",
        done / took,
        cpu * 1e6 / done
    );
}

fn cpu_time() -> f64 {
    // SAFETY: the structure is plain data, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime]
        .iter()
        .map(|t| t.tv_sec as f64 + t.tv_usec as f64 / 1e6)
        .sum()
}

/// As most programs call it. The standard library also asks for the birth time, which the kernel
/// has to fetch first.
fn stat(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    // SAFETY: the structure is plain data, filled by the call; the path is a string.
    let result = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::stat(path.as_ptr(), &mut stat)
    };
    assert_eq!(result, 0);
}

fn measure_names(dir: &Path, threads: usize, remount: &mut dyn FnMut()) {
    let name = |thread: usize, i: usize| dir.join(format!("t{thread}/file-{i:06}"));
    (0..threads).for_each(|t| fs::create_dir(dir.join(format!("t{t}"))).expect("mkdir"));
    let stat_all = |t| (0..FILES).for_each(|i| stat(&name(t, i)));
    run("create+close", "files", FILES, threads, |t| {
        (0..FILES).for_each(|i| drop(File::create_new(name(t, i)).expect("create")));
    });
    run("stat, cached", "files", FILES, threads, stat_all);
    remount();
    run("stat, uncached", "files", FILES, threads, stat_all);
    run("open+read+close", "files", FILES, threads, |t| {
        (0..FILES).for_each(|i| drop(fs::read(name(t, i)).expect("read")));
    });
    remount();
    run("list+stat", "files", FILES, threads, |t| {
        let list = fs::read_dir(dir.join(format!("t{t}"))).expect("list");
        list.for_each(|e| stat(&e.expect("entry").path()));
    });
    run("rename", "files", FILES, threads, |t| {
        (0..FILES).for_each(|i| fs::rename(name(t, i), name(t, i + FILES)).expect("rename"));
    });
    run("unlink", "files", FILES, threads, |t| {
        (0..FILES).for_each(|i| fs::remove_file(name(t, i + FILES)).expect("unlink"));
    });
    (0..threads).for_each(|t| fs::remove_dir(dir.join(format!("t{t}"))).expect("rmdir"));
}

fn measure_data(dir: &Path, threads: usize) {
    let direct = |t: usize| {
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
        open.open(dir.join(format!("direct-{t}"))).expect("open")
    };
    let offset = |i: usize| (i * 7919 % 16384 * 4096) as u64;
    run("direct 4k write", "IO", WRITES, threads, |t| {
        let (file, block) = (direct(t), Aligned([1; 4096]));
        (0..WRITES).for_each(|i| file.write_all_at(&block.0, offset(i)).expect("write"));
    });
    run("direct 4k read", "IO", WRITES, threads, |t| {
        let (file, mut block) = (direct(t), Aligned([1; 4096]));
        (0..WRITES).for_each(|i| assert!(file.read_at(&mut block.0, offset(i)).is_ok()));
    });
    run("the same, one file", "IO", WRITES, threads, |t| {
        let (file, block) = (direct(0), Aligned([1; 4096]));
        (0..WRITES).for_each(|i| file.write_all_at(&block.0, offset(i * threads + t)).expect("write"));
    });
    let stream = |t: usize| dir.join(format!("stream-{t}"));
    let chunk = vec![7u8; 1 << 20];
    run("buffered 1M write", "MiB", STREAM_BYTES >> 20, threads, |t| {
        let file = File::create(stream(t)).expect("create");
        (0..STREAM_BYTES >> 20).for_each(|i| file.write_all_at(&chunk, (i << 20) as u64).expect("write"));
    });
    run("buffered 4k write", "MiB", STREAM_BYTES >> 22, threads, |t| {
        let file = File::create(dir.join(format!("small-{t}"))).expect("create");
        (0..STREAM_BYTES >> 14).for_each(|i| file.write_all_at(&chunk[..4096], (i << 12) as u64).expect("write"));
    });
    run("buffered 1M read", "MiB", STREAM_BYTES >> 20, threads, |t| {
        let (file, mut buf) = (File::open(stream(t)).expect("open"), vec![0u8; 1 << 20]);
        // SAFETY: integers only. Cached pages are dropped.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        (0..STREAM_BYTES >> 20).for_each(|i| file.read_exact_at(&mut buf, (i << 20) as u64).expect("read"));
    });
    for kind in ["direct", "stream", "small"] {
        (0..threads).for_each(|t| fs::remove_file(dir.join(format!("{kind}-{t}"))).expect("remove"));
    }
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);
