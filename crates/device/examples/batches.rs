//! What batches of reads and writes of a file cost, each way by turns:
//! docs/decisions/004-batches-through-the-page-cache.md.
//!
//! ```sh
//! cargo run --release -p cowshed-device --example batches -- \
//!     IMAGE [ROUNDS [cached|cold|mixed|write]]
//! ```
//!
//! IMAGE is a file of 1 GiB, made where there is none, or a file or a block device of at least
//! that, **whose content is lost**. Printed are medians of the time and of the processor time of
//! one batch of reads or writes at random places. "cold": the image is put out of memory before
//! each batch; "mixed": and every other place of the batch is read beforehand.
//!
//! Why there is unsafe code: system calls and rings take addresses. The buffers live as long as the
//! whole run, and what cannot be waited for ends it.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use cowshed_device::{BlockDevice, FileDevice, Locking, OpenMode, ReadOp};
use io_uring::{IoUring, opcode, types};

const IMAGE_BYTES: u64 = 1 << 30;
/// Length of each place, and places per batch.
const SHAPES: [(usize, usize); 3] = [(16 << 10, 64), (4 << 10, 256), (128 << 10, 64)];
/// To find from how many places on a way pays.
const SHORT_SHAPES: [(usize, usize); 5] = [
    (16 << 10, 2),
    (16 << 10, 4),
    (16 << 10, 8),
    (16 << 10, 16),
    (16 << 10, 32),
];
const ENTRIES: u32 = 256;
const ALIGNMENT_BYTES: usize = 4096;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    /// One after the other.
    Pread,
    /// posix_fadvise(WILLNEED) for all, then one after the other.
    Announced,
    /// preadv2(RWF_NOWAIT) for all, then, of what was not in memory, announced and one after the
    /// other.
    Nowait,
    /// All at once.
    Ring,
    RingAnnounced,
    /// The file is registered with the ring.
    RingRegistered,
    /// All at once with RWF_NOWAIT, then, of what was not in memory, announced and one after the
    /// other.
    RingNowait,
    /// As `RingRegistered`, on a ring that only this thread uses and only in its own time.
    RingTuned,
    RingDirect,
    /// `FileDevice::read_batch`.
    Device,
}

const READS: [Way; 10] = [
    Way::Pread,
    Way::Announced,
    Way::Nowait,
    Way::Ring,
    Way::RingAnnounced,
    Way::RingRegistered,
    Way::RingNowait,
    Way::RingTuned,
    Way::RingDirect,
    Way::Device,
];
const WRITES: [Way; 4] = [Way::Pread, Way::Ring, Way::RingRegistered, Way::RingTuned];

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

struct Rig {
    file: File,
    direct: Option<File>,
    device: FileDevice,
    ring: IoUring,
    tuned: IoUring,
    memory: Vec<u8>,
}

impl Rig {
    fn open(path: &Path) -> io::Result<Rig> {
        if !path.exists() {
            let file = File::create(path)?;
            let mut dice = Dice(1);
            let mut chunk = vec![0u8; 1 << 20];
            for at in (0..IMAGE_BYTES).step_by(chunk.len()) {
                for word in chunk.chunks_mut(8) {
                    word.copy_from_slice(&dice.below(u64::MAX).to_le_bytes());
                }
                file.write_all_at(&chunk, at)?;
            }
            file.sync_all()?;
        }
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .ok();
        let device = FileDevice::open_with(path, OpenMode::ReadOnly, Locking::Unlocked).map_err(io::Error::other)?;
        let ring = IoUring::new(ENTRIES)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let tuned = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)?;
        tuned.submitter().register_files(&[file.as_raw_fd()])?;
        let bytes_max = SHAPES.iter().map(|(len, count)| len * count).max().unwrap_or(0);
        Ok(Rig {
            file,
            direct,
            device,
            ring,
            tuned,
            memory: vec![7; bytes_max + ALIGNMENT_BYTES],
        })
    }

    fn forget(&self) {
        // SAFETY: no memory is passed.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }

    fn remember(&mut self) -> io::Result<()> {
        for at in (0..IMAGE_BYTES).step_by(1 << 20) {
            self.file.read_exact_at(&mut self.memory[..1 << 20], at)?;
        }
        Ok(())
    }

    fn buffers(&mut self, len_bytes: usize) -> impl Iterator<Item = &mut [u8]> {
        let skip = self.memory.as_ptr().align_offset(ALIGNMENT_BYTES);
        self.memory[skip..].chunks_exact_mut(len_bytes)
    }

    fn announce(&self, at: u64, len_bytes: usize) {
        let (at, len) = (at as libc::off_t, len_bytes as libc::off_t);
        // SAFETY: no memory is passed.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), at, len, libc::POSIX_FADV_WILLNEED) };
    }

    /// All places over the ring; returns what each gave.
    fn over_ring(&mut self, way: Way, places: &[u64], len_bytes: usize, write: bool) -> io::Result<Vec<i32>> {
        let fd = match way {
            Way::RingDirect => self.direct.as_ref().map_or(-1, File::as_raw_fd),
            _ => self.file.as_raw_fd(),
        };
        let registered = matches!(way, Way::RingRegistered | Way::RingTuned);
        let flags = if way == Way::RingNowait { libc::RWF_NOWAIT } else { 0 };
        let bufs: Vec<*mut u8> = self
            .buffers(len_bytes)
            .take(places.len())
            .map(<[u8]>::as_mut_ptr)
            .collect();
        let len = len_bytes as u32;
        let ring = if way == Way::RingTuned {
            &mut self.tuned
        } else {
            &mut self.ring
        };
        for (index, (at, buf)) in places.iter().zip(bufs).enumerate() {
            let entry = match (write, registered) {
                (false, false) => opcode::Read::new(types::Fd(fd), buf, len)
                    .offset(*at)
                    .rw_flags(flags)
                    .build(),
                (false, true) => opcode::Read::new(types::Fixed(0), buf, len)
                    .offset(*at)
                    .rw_flags(flags)
                    .build(),
                (true, false) => opcode::Write::new(types::Fd(fd), buf, len).offset(*at).build(),
                (true, true) => opcode::Write::new(types::Fixed(0), buf, len).offset(*at).build(),
            };
            // SAFETY: the buffers belong to `self`, and nothing touches them before all have come
            // back.
            unsafe { ring.submission().push(&entry.user_data(index as u64)) }.map_err(io::Error::other)?;
        }
        let mut results = vec![0; places.len()];
        let mut missing = places.len();
        while missing > 0 {
            ring.submit_and_wait(missing).expect("a ring that can be waited for");
            for done in ring.completion() {
                results[done.user_data() as usize] = done.result();
                missing -= 1;
            }
        }
        Ok(results)
    }

    /// Announces and reads the places that `is_there` does not have.
    fn rest(&mut self, places: &[u64], len_bytes: usize, is_there: &[bool]) -> io::Result<()> {
        let missing = || places.iter().zip(is_there).filter(|(_, there)| !**there);
        for (at, _) in missing() {
            self.announce(*at, len_bytes);
        }
        let file = self.file.try_clone()?;
        for ((at, there), buf) in places.iter().zip(is_there).zip(self.buffers(len_bytes)) {
            if !there {
                file.read_exact_at(buf, *at)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, way: Way, places: &[u64], len_bytes: usize) -> io::Result<()> {
        match way {
            Way::Pread | Way::Announced => {
                if way == Way::Announced {
                    places.iter().for_each(|at| self.announce(*at, len_bytes));
                }
                let fd = self.file.as_raw_fd();
                for (at, buf) in places.iter().zip(self.buffers(len_bytes)) {
                    // SAFETY: the buffer is borrowed.
                    let n = unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), len_bytes, *at as libc::off_t) };
                    assert_eq!(n, len_bytes as isize);
                }
            }
            Way::Nowait => {
                let fd = self.file.as_raw_fd();
                let mut is_there = vec![false; places.len()];
                for ((at, buf), there) in places.iter().zip(self.buffers(len_bytes)).zip(&mut is_there) {
                    let n = nowait(fd, buf, *at);
                    *there = n == len_bytes as isize;
                }
                if is_there.contains(&false) {
                    self.rest(places, len_bytes, &is_there)?;
                }
            }
            Way::Ring | Way::RingAnnounced | Way::RingRegistered | Way::RingTuned | Way::RingDirect => {
                if way == Way::RingAnnounced {
                    places.iter().for_each(|at| self.announce(*at, len_bytes));
                }
                let results = self.over_ring(way, places, len_bytes, false)?;
                assert!(results.iter().all(|n| *n == len_bytes as i32), "{way:?}: {results:?}");
            }
            Way::RingNowait => {
                let results = self.over_ring(way, places, len_bytes, false)?;
                let is_there: Vec<bool> = results.iter().map(|n| *n == len_bytes as i32).collect();
                if is_there.contains(&false) {
                    self.rest(places, len_bytes, &is_there)?;
                }
            }
            Way::Device => {
                let skip = self.memory.as_ptr().align_offset(ALIGNMENT_BYTES);
                let bufs = self.memory[skip..].chunks_exact_mut(len_bytes);
                let mut ops: Vec<_> = places
                    .iter()
                    .zip(bufs)
                    .map(|(at, buf)| ReadOp { offset_bytes: *at, buf })
                    .collect();
                self.device.read_batch(&mut ops).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, way: Way, places: &[u64], len_bytes: usize) -> io::Result<()> {
        if way == Way::Pread {
            let fd = self.file.as_raw_fd();
            for (at, buf) in places.iter().zip(self.buffers(len_bytes)) {
                // SAFETY: the buffer is borrowed.
                let n = unsafe { libc::pwrite(fd, buf.as_ptr().cast(), len_bytes, *at as libc::off_t) };
                assert_eq!(n, len_bytes as isize);
            }
            return Ok(());
        }
        let results = self.over_ring(way, places, len_bytes, true)?;
        assert!(results.iter().all(|n| *n == len_bytes as i32), "{way:?}: {results:?}");
        Ok(())
    }
}

fn nowait(fd: i32, buf: &mut [u8], at: u64) -> isize {
    let vector = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: the buffer is borrowed.
    unsafe { libc::preadv2(fd, &raw const vector, 1, at as libc::off_t, libc::RWF_NOWAIT) }
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values[values.len() / 2]
}

/// Prints the medians of each way.
fn measure(
    title: &str,
    (len_bytes, count): (usize, usize),
    ways: &[Way],
    rounds: usize,
    mut step: impl FnMut(Way, &[u64]) -> io::Result<Option<(Duration, Duration)>>,
) -> io::Result<()> {
    println!("{title}: {count} x {} KiB", len_bytes >> 10);
    let mut taken = vec![(vec![], vec![]); ways.len()];
    let mut dice = Dice(rounds as u64);
    let mut order: Vec<usize> = (0..ways.len()).collect();
    for _ in 0..rounds {
        // In another order each time: what one way leaves behind, in memory and on the disk, is the
        // next one's start.
        for last in (1..order.len()).rev() {
            order.swap(last, dice.below(last as u64 + 1) as usize);
        }
        for (way, taken_by) in order.iter().map(|index| (ways[*index], *index)) {
            // In order, as the device sorts them.
            let mut places: Vec<u64> = (0..count)
                .map(|_| dice.below(IMAGE_BYTES / len_bytes as u64) * len_bytes as u64)
                .collect();
            places.sort_unstable();
            places.dedup();
            if let Some((time, processor)) = step(way, &places)? {
                taken[taken_by].0.push(time);
                taken[taken_by].1.push(processor);
            }
        }
    }
    for (way, (times, processor)) in ways.iter().zip(taken) {
        if times.is_empty() {
            continue;
        }
        let (time, processor) = (median(times), median(processor));
        let rate = (len_bytes * count) as f64 / time.as_secs_f64() / 1e6;
        println!(
            "  {:22} {:9.1} us {rate:8.0} MB/s  processor {:9.1} us",
            format!("{way:?}"),
            time.as_secs_f64() * 1e6,
            processor.as_secs_f64() * 1e6
        );
    }
    Ok(())
}

fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<Option<(Duration, Duration)>> {
    let (processor, start) = (processor_time(), Instant::now());
    work()?;
    let time = start.elapsed();
    Ok(Some((time, processor_time() - processor)))
}

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = || io::Error::other("usage: batches IMAGE [ROUNDS [KIND]]");
    let path = args.next().ok_or_else(usage)?;
    let rounds: usize = args
        .next()
        .map_or(Ok(200), |text| text.parse())
        .map_err(io::Error::other)?;
    let kind = args.next().unwrap_or_default();
    let mut rig = Rig::open(Path::new(&path))?;
    let thousand_calls = || {
        let start = Instant::now();
        // SAFETY: no memory is passed.
        (0..1000).for_each(|_| _ = unsafe { libc::getppid() });
        start.elapsed()
    };
    let call = median((0..100).map(|_| thousand_calls()).collect()) / 1000;
    println!("a system call that does nothing: {} ns", call.as_nanos());
    let wanted = |name: &str| kind.is_empty() || kind == name;
    if wanted("cached") {
        rig.remember()?;
        for shape in SHAPES.iter().chain(&SHORT_SHAPES[4..]) {
            // What goes around the cache is no faster for what lies in it.
            let ways: Vec<_> = READS.into_iter().filter(|way| *way != Way::RingDirect).collect();
            measure("cached reads", *shape, &ways, rounds, |way, places| {
                timed(|| rig.read(way, places, shape.0))
            })?;
        }
    }
    if wanted("cold") {
        for shape in SHAPES.iter().chain(&SHORT_SHAPES[2..]) {
            measure("cold reads", *shape, &READS, rounds / 4, |way, places| {
                if way == Way::RingDirect && rig.direct.is_none() {
                    return Ok(None);
                }
                rig.forget();
                timed(|| rig.read(way, places, shape.0))
            })?;
        }
    }
    if wanted("mixed") {
        for shape in SHAPES {
            measure("half of it cold", shape, &READS, rounds / 4, |way, places| {
                if way == Way::RingDirect {
                    return Ok(None);
                }
                rig.forget();
                let half: Vec<_> = places.iter().copied().step_by(2).collect();
                rig.read(Way::Announced, &half, shape.0)?;
                timed(|| rig.read(way, places, shape.0))
            })?;
        }
    }
    if wanted("write") {
        for shape in SHAPES {
            measure("writes, into memory", shape, &WRITES, rounds / 4, |way, places| {
                let taken = timed(|| rig.write(way, places, shape.0));
                rig.file.sync_data()?;
                taken
            })?;
            measure("writes and a barrier", shape, &WRITES, rounds / 8, |way, places| {
                timed(|| {
                    rig.write(way, places, shape.0)?;
                    rig.file.sync_data()
                })
            })?;
        }
    }
    Ok(())
}
