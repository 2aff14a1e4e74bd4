//! Writers past the page cache with many writes under way each (io_uring and io_submit), beside
//! readers through the cache, through mappings and past them. Each block of the file carries its
//! number, a version and a checksum. A reader that begins after a write was acknowledged must find
//! that version or a later one, whole.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use cowshed_device_sim::Rng;
use rustix::fs::{Advice, OFlags, fadvise, fdatasync};

use crate::queue::{Buffers, Queue};
use crate::raw::Mapping;

const BLOCK_BYTES: usize = 4096;
/// Writes are within groups of so many blocks. A group belongs to one writer, which has one write
/// of it under way at most: so the versions of a block are in order.
const GROUP_BLOCKS: usize = 4;
const GROUPS: usize = 1024;
const BLOCKS: usize = GROUPS * GROUP_BLOCKS;
const FILE_BYTES: usize = BLOCKS * BLOCK_BYTES;
const QUEUE_DEPTH: usize = 16;
/// A writer writes so many times past the cache for each write through it.
const BUFFERED_EVERY: usize = 64;
const READERS: usize = 2;
const READ_BLOCKS_MAX: usize = 32;

/// A hash of a word.
fn mix(word: u64) -> u64 {
    Rng::new(word).next_u64()
}

/// A block is pairs of words: the version, and a checksum of block, version and place.
const PAIR_BYTES: usize = 16;

fn checksum(block: usize, version: u64, pair: usize) -> u64 {
    mix(version ^ mix((block * BLOCK_BYTES / PAIR_BYTES + pair) as u64))
}

fn fill(block: usize, version: u64, bytes: &mut [u8]) {
    for (pair, place) in bytes.chunks_exact_mut(PAIR_BYTES).enumerate() {
        let (head, tail) = place.split_at_mut(8);
        head.copy_from_slice(&version.to_le_bytes());
        tail.copy_from_slice(&checksum(block, version, pair).to_le_bytes());
    }
}

/// The version of a pair of words, if it is whole.
fn version_of(block: usize, pair: usize, bytes: &[u8]) -> Option<u64> {
    let word = |at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let version = word(0);
    (word(8) == checksum(block, version, pair)).then_some(version)
}

/// The versions of each block.
struct Table {
    /// Writes up to this one have begun.
    begun: Vec<AtomicU64>,
    /// Writes up to this one have been acknowledged.
    acknowledged: Vec<AtomicU64>,
    /// Something failed, or the time is over.
    stop: AtomicBool,
}

impl Table {
    fn new() -> Self {
        let zeros = || (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
        Self {
            begun: zeros(),
            acknowledged: zeros(),
            stop: AtomicBool::new(false),
        }
    }

    fn acknowledged(&self, first: usize, blocks: usize) -> Vec<u64> {
        let range = &self.acknowledged[first..first + blocks];
        range.iter().map(|version| version.load(SeqCst)).collect()
    }
}

/// How a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Cached,
    Mapped,
    Direct,
}

/// How often what was done.
#[derive(Debug, Default)]
pub struct Done {
    pub writes: u64,
    pub cached_reads: u64,
    pub mapped_reads: u64,
    pub direct_reads: u64,
}

struct Stress<'p> {
    path: &'p Path,
    table: Table,
    writers: usize,
    seed: u64,
}

fn open(path: &Path, flags: OFlags) -> Result<File> {
    let flags = i32::try_from(flags.bits())?;
    let file = File::options().read(true).write(true).custom_flags(flags).open(path);
    Ok(file?)
}

/// Writes and reads a new file of this name for so long.
pub fn exercise(dir: &Path, name: &str, time: Duration, writers: usize, seed: u64) -> Result<Done> {
    ensure!(
        (1..=GROUPS / QUEUE_DEPTH / 2).contains(&writers),
        "too many writers for their file"
    );
    let path = dir.join(name);
    let file = File::create_new(&path)?;
    let mut block_bytes = vec![0; BLOCK_BYTES];
    for block in 0..BLOCKS {
        fill(block, 0, &mut block_bytes);
        file.write_all_at(&block_bytes, (block * BLOCK_BYTES) as u64)?;
    }
    fdatasync(&file)?;
    drop(file);
    let stress = Stress {
        path: &path,
        table: Table::new(),
        writers,
        seed,
    };
    let done = stress.run(time)?;
    // At rest all doors show the last version.
    for door in [Door::Mapped, Door::Cached, Door::Direct] {
        let mut reader = Reader::new(&stress, door, 0)?;
        for first in (0..BLOCKS).step_by(READ_BLOCKS_MAX) {
            reader.read(first, READ_BLOCKS_MAX).context("at the end")?;
        }
    }
    ensure!(std::fs::metadata(&path)?.len() == FILE_BYTES as u64, "the size changed");
    Ok(done)
}

impl Stress<'_> {
    fn run(&self, time: Duration) -> Result<Done> {
        let mut done = Done::default();
        thread::scope(|scope| {
            let writers: Vec<_> = (0..self.writers)
                .map(|number| scope.spawn(move || self.guarded(self.writes(number))))
                .collect();
            let readers: Vec<_> = [Door::Cached, Door::Mapped, Door::Direct]
                .into_iter()
                .flat_map(|door| (0..READERS).map(move |number| (door, number)))
                .map(|(door, number)| (door, scope.spawn(move || self.guarded(self.reads(door, number)))))
                .collect();
            let started = Instant::now();
            while started.elapsed() < time && !self.table.stop.load(SeqCst) {
                thread::sleep(Duration::from_millis(20));
            }
            self.table.stop.store(true, SeqCst);
            let ended = |result: thread::Result<Result<u64>>| result.map_err(|_| anyhow!("a thread panicked"))?;
            let mut first_error = Ok(());
            let mut note = |result: Result<u64>, count: &mut u64| match result {
                Ok(more) => *count += more,
                Err(error) if first_error.is_ok() => first_error = Err(error),
                Err(_) => {}
            };
            for (door, reader) in readers {
                let count = match door {
                    Door::Cached => &mut done.cached_reads,
                    Door::Mapped => &mut done.mapped_reads,
                    Door::Direct => &mut done.direct_reads,
                };
                note(ended(reader.join()), count);
            }
            for writer in writers {
                note(ended(writer.join()), &mut done.writes);
            }
            first_error.with_context(|| format!("seed {}", self.seed))
        })?;
        Ok(done)
    }

    /// A failure ends the others, too.
    fn guarded(&self, result: Result<u64>) -> Result<u64> {
        self.table.stop.fetch_or(result.is_err(), SeqCst);
        result
    }

    /// Writes until the end; returns how often.
    fn writes(&self, number: usize) -> Result<u64> {
        let direct = open(self.path, OFlags::DIRECT)?;
        let buffered = open(self.path, OFlags::empty())?;
        let each_bytes = GROUP_BLOCKS * BLOCK_BYTES;
        let mut queue = match number % 2 {
            0 => Queue::uring(&direct, QUEUE_DEPTH, each_bytes).context("io_uring")?,
            _ => Queue::submit(&direct, QUEUE_DEPTH, each_bytes).context("io_submit")?,
        };
        let mut rng = Rng::new(mix(self.seed ^ ((number as u64) << 32)));
        let mut under_way: Vec<Option<(usize, usize)>> = vec![None; QUEUE_DEPTH];
        let mut written = 0;
        while !self.table.stop.load(SeqCst) || !queue.is_idle() {
            let slot = queue.free_slot().filter(|_| !self.table.stop.load(SeqCst));
            let Some(slot) = slot else {
                for (slot, bytes) in queue.wait()? {
                    let (first, blocks) = under_way[slot].take().expect("a slot that was used");
                    ensure!(
                        bytes == blocks * BLOCK_BYTES,
                        "a write of {blocks} blocks wrote {bytes} bytes"
                    );
                    self.acknowledge(first, blocks);
                    written += 1;
                }
                continue;
            };
            let group = rng.index(GROUPS / self.writers) * self.writers + number;
            let first = group * GROUP_BLOCKS + rng.index(GROUP_BLOCKS);
            let blocks = 1 + rng.index((group + 1) * GROUP_BLOCKS - first);
            let is_busy = |way: &Option<(usize, usize)>| way.is_some_and(|(first, _)| first / GROUP_BLOCKS == group);
            if under_way.iter().any(is_busy) {
                continue;
            }
            let offset = (first * BLOCK_BYTES) as u64;
            let len = blocks * BLOCK_BYTES;
            if rng.index(BUFFERED_EVERY) == 0 {
                let mut bytes = vec![0; len];
                self.begin(first, &mut bytes);
                buffered.write_all_at(&bytes, offset)?;
                self.acknowledge(first, blocks);
                continue;
            }
            under_way[slot] = Some((first, blocks));
            queue.write(slot, offset, len, |bytes| self.begin(first, bytes))?;
        }
        Ok(written)
    }

    /// Fills whole blocks with their next versions.
    fn begin(&self, first: usize, bytes: &mut [u8]) {
        for (n, bytes) in bytes.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            let version = self.table.begun[first + n].fetch_add(1, SeqCst) + 1;
            fill(first + n, version, bytes);
        }
    }

    fn acknowledge(&self, first: usize, blocks: usize) {
        for block in first..first + blocks {
            self.table.acknowledged[block].store(self.table.begun[block].load(SeqCst), SeqCst);
        }
    }

    /// Reads until the end; returns how often.
    fn reads(&self, door: Door, number: usize) -> Result<u64> {
        let mut reader = Reader::new(self, door, number)?;
        let mut rng = Rng::new(mix(self.seed ^ (1 << 40) ^ ((number as u64) << 32)));
        let (mut reads, mut next) = (0, 0);
        while !self.table.stop.load(SeqCst) {
            let blocks = 1 + rng.index(READ_BLOCKS_MAX);
            // Half of the reads are in order, for readahead.
            let first = match rng.index(2) {
                0 => rng.index(BLOCKS - blocks + 1),
                _ if next + blocks > BLOCKS => 0,
                _ => next,
            };
            next = first + blocks;
            reader.read(first, blocks)?;
            reads += 1;
            // Now and then the cache is cold.
            if door == Door::Cached && rng.index(256) == 0 {
                fadvise(&reader.file, 0, None, Advice::DontNeed)?;
            }
        }
        Ok(reads)
    }
}

struct Reader<'s> {
    stress: &'s Stress<'s>,
    door: Door,
    number: usize,
    file: File,
    mapping: Option<Mapping>,
    buffers: Buffers,
}

impl<'s> Reader<'s> {
    fn new(stress: &'s Stress<'s>, door: Door, number: usize) -> Result<Self> {
        let flags = match door {
            Door::Direct => OFlags::DIRECT,
            Door::Cached | Door::Mapped => OFlags::empty(),
        };
        let file = open(stress.path, flags)?;
        let mapping = match door {
            Door::Mapped => Some(Mapping::new(&file, FILE_BYTES)?),
            Door::Cached | Door::Direct => None,
        };
        Ok(Self {
            stress,
            door,
            number,
            file,
            mapping,
            buffers: Buffers::new(1, READ_BLOCKS_MAX * BLOCK_BYTES),
        })
    }

    /// Reads blocks and judges them.
    fn read(&mut self, first: usize, blocks: usize) -> Result<()> {
        let least = self.stress.table.acknowledged(first, blocks);
        let bytes = &mut self.buffers.slot(0)[..blocks * BLOCK_BYTES];
        match &self.mapping {
            Some(mapping) => mapping.load(first * BLOCK_BYTES, bytes),
            None => self.file.read_exact_at(bytes, (first * BLOCK_BYTES) as u64)?,
        }
        for (n, least) in least.into_iter().enumerate() {
            let bytes = &self.buffers.slot(0)[n * BLOCK_BYTES..(n + 1) * BLOCK_BYTES];
            let most = self.stress.table.begun[first + n].load(SeqCst);
            let mut versions = versions(first + n, bytes);
            if self.door == Door::Mapped && versions.as_ref().is_err() {
                versions = self.load_pairs(first + n);
            }
            let judged = versions.and_then(|(oldest, newest)| self.judge((oldest, newest), (least, most)));
            judged.with_context(|| format!("{:?} reader {}, block {}", self.door, self.number, first + n))?;
        }
        Ok(())
    }

    /// A page that was replaced between the loads of two words has torn this pair. Once more, pair
    /// by pair.
    fn load_pairs(&self, block: usize) -> Result<(u64, u64)> {
        const TRIES: usize = 100;
        let mapping = self.mapping.as_ref().context("a mapping")?;
        for _ in 0..TRIES {
            let mut bytes = vec![0; BLOCK_BYTES];
            mapping.load(block * BLOCK_BYTES, &mut bytes);
            if let Ok(versions) = versions(block, &bytes) {
                return Ok(versions);
            }
        }
        bail!("torn {TRIES} times")
    }

    fn judge(&self, (oldest, newest): (u64, u64), (least, most): (u64, u64)) -> Result<()> {
        ensure!(
            oldest >= least,
            "version {oldest}, although {least} was acknowledged before the read began"
        );
        ensure!(newest <= most, "version {newest}, of which {most} were begun");
        // Loads from a mapping may see a page replaced in between.
        ensure!(
            oldest == newest || self.door == Door::Mapped,
            "torn: versions {oldest} and {newest}"
        );
        Ok(())
    }
}

/// The oldest and the newest version in a block. Loaded one after the other, they may only grow.
fn versions(block: usize, bytes: &[u8]) -> Result<(u64, u64)> {
    let mut range: Option<(u64, u64)> = None;
    for (pair, bytes) in bytes.chunks_exact(PAIR_BYTES).enumerate() {
        let version = version_of(block, pair, bytes).with_context(|| format!("pair {pair} is torn"))?;
        let (oldest, newest) = range.unwrap_or((version, version));
        range = Some((oldest.min(version), newest.max(version)));
    }
    range.context("an empty block")
}
