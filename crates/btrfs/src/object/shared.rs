//! What all files of a volume share: the bound on dirty data, the list of inodes that have some,
//! decompressed extents.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use btrfs_format::features::incompat;
use btrfs_format::{Generation, LogicalAddr, ObjectId, TreeId};
use btrfs_store::rank::LockRank;
use btrfs_store::volume::Volume;
use cowshed_runtime::lock::Mutex;

use super::inode::Inode;
use crate::block::BLOCK_BYTES;
use crate::compression::compress::Encoders;
use crate::compression::decompress::{COMPRESSED_EXTENT_BYTES_MAX, Decoders};
use crate::pagecache::{DataState, Failures};

/// Dirty bytes over which a writer writes back itself.
const DIRTY_BYTES_MAX_DEFAULT: u64 = 256 << 20;
/// Bounds of a compressed group: [`FileShared::compressed_group_bytes_max`].
const COMPRESSED_GROUP_BYTES_MIN: u64 = 1 << 20;
const COMPRESSED_GROUP_BYTES_MAX: u64 = 64 << 20;
/// Bounds of [`FileShared::decompressed_max`]: 2 and 32 MiB.
pub(crate) const DECOMPRESSED_MAX: RangeInclusive<usize> = 16..=256;
/// The share of the memory for changes that decompressed extents may take once more, within these
/// bounds.
const DECOMPRESSED_SHARES: u64 = 32;
/// Files up to this size live in their item: the kernel's default of `max_inline`.
pub(crate) const INLINE_BYTES_MAX: u64 = 2048;

type InodeId = (TreeId, ObjectId);
/// An address is reused only in a later transaction, so that an old extent and a new one never
/// agree in both.
type ExtentId = (LogicalAddr, Generation);

/// Extents whose references change in a transaction that is not on disk yet: given to one more
/// file, to another, or given up by one.
#[derive(Debug, Default)]
pub(crate) struct Remapped {
    /// When: as long as that is not committed, the extent tree does not tell, or tells too early.
    pub by_addr: HashMap<LogicalAddr, Generation>,
    /// The newest of these.
    pub latest: Generation,
}

/// Called with an inode and the ranges of bytes that were written and are lost.
pub type OnLost = Box<dyn Fn(&Inode, Vec<Range<u64>>) + Send + Sync>;

/// The front end that keeps contents of files in a cache.
#[derive(Default)]
pub(crate) struct Listener(OnceLock<OnLost>);

impl Listener {
    pub(crate) fn set(&self, on_lost: OnLost) {
        let _ = self.0.set(on_lost);
    }

    /// What was lost must read as before it was written already, or it might be remembered once
    /// more.
    pub(crate) fn tell(&self, inode: &Inode, lost: Vec<Range<u64>>) {
        if let Some(on_lost) = self.0.get() {
            on_lost(inode, lost);
        }
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener")
    }
}

/// What all files of a volume share.
#[derive(Debug)]
pub struct FileShared {
    dirty_bytes: AtomicU64,
    dirty_bytes_max: AtomicU64,
    dirty: Mutex<BTreeMap<InodeId, Arc<Inode>>>,
    /// Extents of which a part was read, and those read ahead: a reader that goes
    /// on finds the rest. Those used last are at the end.
    decompressed: Mutex<VecDeque<(ExtentId, Arc<Vec<u8>>)>>,
    /// As many files can be read in small steps by turns without an extent being decompressed
    /// twice.
    decompressed_max: usize,
    /// How often an extent was read and decompressed.
    #[cfg(test)]
    pub(crate) decompressions: AtomicU64,
    /// What write-back and clones know of shared extents before the extent tree does.
    pub(crate) remapped: Mutex<Remapped>,
    /// Bytes that all open atomic groups hold.
    staged_bytes: Arc<AtomicU64>,
    /// Of all files, for syncfs.
    pub(crate) failures: Failures,
    pub(crate) listener: Listener,
    no_holes: OnceLock<bool>,
    pub(crate) encoders: Encoders,
    pub(crate) decoders: Decoders,
}

impl Default for FileShared {
    fn default() -> Self {
        Self {
            dirty_bytes: AtomicU64::new(0),
            dirty_bytes_max: AtomicU64::new(DIRTY_BYTES_MAX_DEFAULT),
            dirty: Mutex::new(LockRank::DirtyList, BTreeMap::new()),
            decompressed: Mutex::new(LockRank::Decompressed, VecDeque::new()),
            decompressed_max: *DECOMPRESSED_MAX.start(),
            #[cfg(test)]
            decompressions: AtomicU64::new(0),
            remapped: Mutex::new(LockRank::Remapped, Remapped::default()),
            staged_bytes: Arc::default(),
            failures: Failures::default(),
            listener: Listener::default(),
            no_holes: OnceLock::new(),
            encoders: Encoders::default(),
            decoders: Decoders::new(BLOCK_BYTES),
        }
    }
}

fn id_of(inode: &Inode) -> InodeId {
    (inode.tree.id(), inode.ino)
}

impl FileShared {
    /// The volume keeps no items for holes (NO_HOLES).
    pub(crate) fn has_no_holes(&self, volume: &Volume) -> bool {
        *self
            .no_holes
            .get_or_init(|| volume.superblock().incompat_flags.get() & incompat::NO_HOLES != 0)
    }

    /// For files that may use so much memory for changes, on a volume of such sectors.
    pub(crate) fn with_memory(bytes_max: u64, sector_bytes: u32) -> Self {
        let extents = bytes_max / DECOMPRESSED_SHARES / COMPRESSED_EXTENT_BYTES_MAX as u64;
        let shared = Self {
            decompressed_max: (extents as usize).clamp(*DECOMPRESSED_MAX.start(), *DECOMPRESSED_MAX.end()),
            decoders: Decoders::new(sector_bytes),
            ..Self::default()
        };
        shared.set_dirty_bytes_max(bytes_max.min(DIRTY_BYTES_MAX_DEFAULT));
        shared
    }
    /// Bounds the bytes of dirty data in memory.
    pub fn set_dirty_bytes_max(&self, bytes: u64) {
        self.dirty_bytes_max.store(bytes, Ordering::Relaxed);
    }
    /// Whom to tell when dirty data could not be written and is lost: once for each failure, while
    /// locks of the file are held, so that it must not wait. Only the first caller's counts.
    pub(crate) fn on_lost(&self, on_lost: OnLost) {
        self.listener.set(on_lost);
    }
    /// Bytes of data that is dirty or being written.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed)
    }
    /// Bytes of a group that is compressed: what they become is in memory beside them until it is
    /// written. As much as that, though: at the ends of a group the workers wait for each other.
    pub(crate) fn compressed_group_bytes_max(&self) -> u64 {
        let dirty_bytes_max = self.dirty_bytes_max.load(Ordering::Relaxed);
        (dirty_bytes_max / 4).clamp(COMPRESSED_GROUP_BYTES_MIN, COMPRESSED_GROUP_BYTES_MAX)
    }
    pub(crate) fn is_over_limit(&self) -> bool {
        self.dirty_bytes() > self.dirty_bytes_max.load(Ordering::Relaxed)
    }
    /// Enough is dirty for write-back to begin.
    pub(crate) fn wants_write_back(&self) -> bool {
        self.dirty_bytes() > self.dirty_bytes_max.load(Ordering::Relaxed) / 2
    }
    pub(crate) fn add_dirty(&self, bytes: u64) {
        self.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    pub(crate) fn sub_dirty(&self, bytes: u64) {
        let before = self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "dirty bytes are counted both ways");
    }

    /// What counts the bytes of all open atomic groups.
    pub(crate) fn staged_bytes(&self) -> &Arc<AtomicU64> {
        &self.staged_bytes
    }

    /// Notes that an inode has dirty data; it stays in memory until that is written.
    pub(crate) fn list(&self, inode: &Arc<Inode>, state: &mut DataState) {
        if !std::mem::replace(&mut state.is_listed, true) {
            self.dirty.lock().insert(id_of(inode), inode.clone());
        }
    }
    /// Takes an inode off the list if nothing is dirty any more.
    pub(crate) fn unlist(&self, inode: &Inode, state: &mut DataState) {
        if state.dirty.is_empty() && state.in_flight.is_empty() && std::mem::replace(&mut state.is_listed, false) {
            self.dirty.lock().remove(&id_of(inode));
        }
    }
    /// The inodes that have dirty data now.
    pub(crate) fn listed(&self) -> Vec<Arc<Inode>> {
        self.dirty.lock().values().cloned().collect()
    }
    /// As [`FileShared::listed`], of one subvolume.
    pub(crate) fn listed_in(&self, tree: TreeId) -> Vec<Arc<Inode>> {
        let all = (tree, ObjectId(0))..=(tree, ObjectId(u64::MAX));
        self.dirty.lock().range(all).map(|(_, inode)| inode.clone()).collect()
    }
    pub(crate) fn first_listed(&self) -> Option<Arc<Inode>> {
        self.dirty.lock().values().next().cloned()
    }

    /// Without using it.
    pub(crate) fn is_cached(&self, id: ExtentId) -> bool {
        self.decompressed.lock().iter().rev().any(|(known, _)| *known == id)
    }
    pub(crate) fn cached(&self, id: ExtentId) -> Option<Arc<Vec<u8>>> {
        let mut cache = self.decompressed.lock();
        // A sequential reader had it last.
        let at = cache.iter().rposition(|(known, _)| *known == id)?;
        let used = cache.remove(at)?;
        let data = used.1.clone();
        cache.push_back(used);
        Some(data)
    }
    pub(crate) fn cache(&self, id: ExtentId, data: Arc<Vec<u8>>) {
        let mut cache = self.decompressed.lock();
        // Two concurrent readers have both decompressed it.
        let same = cache.iter().rposition(|(known, _)| *known == id);
        let is_full = cache.len() >= self.decompressed_max;
        let gone = same.or(is_full.then_some(0)).and_then(|at| cache.remove(at));
        cache.push_back((id, data));
        drop(cache);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_memory_is_less_dirty_data_and_smaller_groups() {
        const MIB: u64 = 1 << 20;
        for (memory_bytes, dirty_bytes, group_bytes) in [
            (16 * MIB, 16 * MIB, 4 * MIB),
            (256 * MIB, 256 * MIB, 64 * MIB),
            (8 << 30, 256 * MIB, 64 * MIB),
            (0, 0, MIB),
        ] {
            let shared = FileShared::with_memory(memory_bytes, BLOCK_BYTES);
            assert_eq!(shared.compressed_group_bytes_max(), group_bytes);
            shared.add_dirty(dirty_bytes);
            assert!(!shared.is_over_limit());
            shared.add_dirty(1);
            assert!(shared.is_over_limit());
        }
    }
}
