//! Which pages of a file the kernel may have filled with content that a direct write has replaced
//! since.
//!
//! Linux drops the cached pages of a range before it sends a direct WRITE. It drops them again
//! afterwards only where the caller waits for the write, not after one of io_submit or io_uring. A
//! page that is filled between the first drop and the moment at which the server applies the write
//! keeps the old content for good. A request does not tell whether its caller waits. So the server
//! notes what is filled, applies the write, has the kernel drop what was filled in its range, and
//! acknowledges the write then. Why this suffices: docs/design/page-cache.md.
//!
//! Guarantee: after [`Pages::applied`] has said that nothing is stale, or what it said is stale was
//! dropped, no page of the range has content from before the write.
//!
//! Cost: fills are noted in detail only for files that are written directly, 2048 at most. Of other
//! files one bit is kept, which files share. A mount without direct writes takes no lock here.
//!
//! Locks: one shard, for a few instructions, no other lock within.

mod ranges;

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use cowshed_vfs::NodeId;
use parking_lot::Mutex;

use ranges::Ranges;

const SHARDS: usize = 64;
/// Beyond, the file that was written least recently is given up. 2048 files in all.
const TRACKED_PER_SHARD: usize = 32;
/// Bits of files that are not tracked: 16 KiB.
const FILTER_BITS: usize = 1 << 17;
/// All of a file.
const WHOLE: Range<u64> = 0..u64::MAX;

/// What is known of the files of a mount.
pub(crate) struct Pages {
    shards: Box<[Shard]>,
    /// Files of which something was ever filled, by a hash of their number. Bits are never cleared.
    filled: Box<[AtomicU64]>,
}

#[derive(Default)]
struct Shard {
    /// How many files there are, for a look without the lock.
    tracked: AtomicUsize,
    files: Mutex<Vec<File>>,
    /// Counts the direct writes.
    clock: AtomicU64,
}

/// A file that is written directly.
struct File {
    node: NodeId,
    /// What was filled, as far as it was not ordered to be dropped since.
    filled: Ranges,
    /// Something may have been filled before the file was tracked.
    is_unknown: bool,
    /// What is being dropped. It counts as filled until this is done: another write of the same
    /// range must not be acknowledged earlier.
    dropping: Vec<Range<u64>>,
    /// How often attributes were looked up, and what of it the kernel was told to forget.
    attributes_told: u64,
    attributes_forgotten: u64,
    last_write: u64,
}

/// What must go from the kernel's memory before a direct write is acknowledged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    Nothing,
    /// Attributes. Pass the number to [`Pages::attributes_forgotten`] afterwards.
    Attributes(u64),
    /// Pages in this range, and attributes. Pass both to [`Pages::dropped`] afterwards.
    Content(Range<u64>, u64),
}

/// SplitMix64's last step: neighbours must not share shards.
fn hash(node: NodeId) -> usize {
    let mut z = node.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as usize
}

impl Default for Pages {
    fn default() -> Pages {
        Pages {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            filled: (0..FILTER_BITS / 64).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Pages {
    fn shard(&self, node: NodeId) -> &Shard {
        &self.shards[hash(node) % SHARDS]
    }

    /// The word and the bit of a file in the filter. Other bits of the hash than those of the
    /// shard.
    fn filter(&self, node: NodeId) -> (&AtomicU64, u64) {
        let bit = hash(node) / SHARDS % FILTER_BITS;
        (&self.filled[bit / 64], 1 << (bit % 64))
    }

    /// A request fills pages of this range: a read into the cache, or a write from it. Call before
    /// the content is looked up.
    pub fn fill(&self, node: NodeId, range: Range<u64>) {
        let (word, bit) = self.filter(node);
        if word.load(SeqCst) & bit == 0 {
            word.fetch_or(bit, SeqCst);
        }
        self.with_tracked(node, |file| file.filled.insert(range));
    }

    /// A request takes attributes into the kernel's memory. Call before they are looked up.
    pub fn tell_attributes(&self, node: NodeId) {
        self.with_tracked(node, |file| file.attributes_told += 1);
    }

    /// Were there direct writes to the file lately? Attributes that were looked up before this is
    /// asked may be stale.
    pub fn is_tracked(&self, node: NodeId) -> bool {
        self.with_tracked(node, |_| ()).is_some()
    }

    /// A file that is not tracked costs no lock, unless it shares its shard with one that is.
    fn with_tracked<T>(&self, node: NodeId, f: impl FnOnce(&mut File) -> T) -> Option<T> {
        let shard = self.shard(node);
        if shard.tracked.load(SeqCst) == 0 {
            return None;
        }
        shard.files.lock().iter_mut().find(|file| file.node == node).map(f)
    }

    /// A direct write begins. Call before it is applied: fills are noted from here on.
    pub fn begin_write(&self, node: NodeId) {
        let shard = self.shard(node);
        let mut files = shard.files.lock();
        let now = shard.clock.fetch_add(1, SeqCst) + 1;
        if let Some(file) = files.iter_mut().find(|file| file.node == node) {
            file.last_write = now;
            return;
        }
        if files.len() >= TRACKED_PER_SHARD {
            give_up_oldest(&mut files);
        }
        let mut file = File::new(node, now);
        // In this order: a fill sets its bit, then looks whether anything is tracked. One of both
        // sees the other.
        shard.tracked.store(files.len() + 1, SeqCst);
        let (word, bit) = self.filter(node);
        file.is_unknown = word.load(SeqCst) & bit != 0;
        files.push(file);
    }

    /// A direct write of this range was applied, or has failed: what may be stale?
    pub fn applied(&self, node: NodeId, range: Range<u64>) -> Stale {
        let mut files = self.shard(node).files.lock();
        let Some(file) = files.iter_mut().find(|file| file.node == node) else {
            // Given up meanwhile.
            return Stale::Content(range, 0);
        };
        let told = file.attributes_told;
        let range = if std::mem::take(&mut file.is_unknown) {
            WHOLE
        } else {
            ranges::whole_pages(&range)
        };
        if range == WHOLE || file.has_pages(&range) {
            file.filled.remove(&range);
            file.dropping.push(range.clone());
            Stale::Content(range, told)
        } else if told > file.attributes_forgotten {
            Stale::Attributes(told)
        } else {
            Stale::Nothing
        }
    }

    /// The kernel has dropped the pages of a range, and the attributes.
    pub fn dropped(&self, node: NodeId, range: &Range<u64>, told: u64) {
        self.with_tracked(node, |file| {
            if let Some(at) = file.dropping.iter().position(|dropping| dropping == range) {
                file.dropping.swap_remove(at);
            }
            file.forget_attributes(told);
        });
    }

    /// The kernel has forgotten the attributes.
    pub fn attributes_forgotten(&self, node: NodeId, told: u64) {
        self.with_tracked(node, |file| file.forget_attributes(told));
    }
}

impl File {
    fn new(node: NodeId, now: u64) -> File {
        File {
            node,
            filled: Ranges::default(),
            is_unknown: true,
            dropping: Vec::new(),
            // Looked up at least once, to be found.
            attributes_told: 1,
            attributes_forgotten: 0,
            last_write: now,
        }
    }

    fn has_pages(&self, range: &Range<u64>) -> bool {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        self.filled.overlaps(range) || self.dropping.iter().any(overlaps)
    }

    fn forget_attributes(&mut self, told: u64) {
        self.attributes_forgotten = self.attributes_forgotten.max(told.min(self.attributes_told));
    }
}

/// The file that was written least recently is not tracked any more. One of which something is
/// being dropped stays: their number is that of the requests under way.
fn give_up_oldest(files: &mut Vec<File>) {
    let idle = files.iter().enumerate().filter(|(_, file)| file.dropping.is_empty());
    if let Some((at, _)) = idle.min_by_key(|(_, file)| file.last_write) {
        files.swap_remove(at);
    }
}

#[cfg(test)]
mod tests;
