//! Inodes in memory.
//!
//! Locks: [`btrfs_store::rank`]; for those of several inodes see [`super::lock`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use btrfs_format::items::{InodeItem, Timespec};
use btrfs_format::{Generation, Key, KeyType, ObjectId};
use cowshed_runtime::lock::{self, Mutex};
use cowshed_vfs::{Attr, FileKind, PERM_MASK, Timestamp};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::blocks::with_delalloc;
use super::dir::DirData;
use super::lazy::Lazy;
use super::op_lock::OpLock;
use super::subvol::{PLACEHOLDER_INO_BIT, Subvol};
use super::unasked::Unasked;
use super::xattrs::XattrCache;
use crate::block::BLOCK_BYTES;
use crate::pagecache::{DataState, FileData};
use btrfs_store::overlay::ItemBytes;
use btrfs_store::rank::LockRank;
use btrfs_store::tree::Tree;

/// The fields of an inode item, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeAttr {
    pub(crate) generation: Generation,
    pub(crate) transid: Generation,
    /// Size as callers see it, in bytes.
    pub(crate) size: u64,
    /// Bytes that extents take, as the format counts them (`nbytes`): no holes; inline data counts
    /// its length.
    pub(crate) nbytes: u64,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
    pub(crate) rdev: u64,
    pub(crate) flags: u64,
    pub(crate) sequence: u64,
    pub(crate) block_group: u64,
    pub(crate) atime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) otime: Timestamp,
}

fn decode_time(raw: &Timespec) -> Timestamp {
    Timestamp {
        secs: raw.sec.get().cast_signed(),
        nanos: raw.nsec.get(),
    }
}
fn encode_time(time: Timestamp) -> Timespec {
    Timespec {
        sec: U64::new(time.secs.cast_unsigned()),
        nsec: U32::new(time.nanos),
    }
}

impl InodeAttr {
    pub(crate) fn decode(raw: &InodeItem) -> Self {
        Self {
            generation: raw.generation.into(),
            transid: raw.transid.into(),
            size: raw.size.get(),
            nbytes: raw.nbytes.get(),
            nlink: raw.nlink.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            mode: raw.mode.get(),
            rdev: raw.rdev.get(),
            flags: raw.flags.get(),
            sequence: raw.sequence.get(),
            block_group: raw.block_group.get(),
            atime: decode_time(&raw.atime),
            ctime: decode_time(&raw.ctime),
            mtime: decode_time(&raw.mtime),
            otime: decode_time(&raw.otime),
        }
    }

    /// What the mode says the inode is; `None` where it names nothing.
    pub(crate) fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// The item, with `disk_size` as its size: what of the file is on disk already.
    pub(crate) fn encode(&self, disk_size: u64) -> InodeItem {
        InodeItem {
            generation: self.generation.into(),
            transid: self.transid.into(),
            size: U64::new(disk_size),
            nbytes: U64::new(self.nbytes),
            block_group: U64::new(self.block_group),
            nlink: U32::new(self.nlink),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            mode: U32::new(self.mode),
            rdev: U64::new(self.rdev),
            flags: U64::new(self.flags),
            sequence: U64::new(self.sequence),
            reserved: [U64::ZERO; 4],
            atime: encode_time(self.atime),
            ctime: encode_time(self.ctime),
            mtime: encode_time(self.mtime),
            otime: encode_time(self.otime),
        }
    }
}

/// What changes about an inode under `Inode::attr`.
#[derive(Debug)]
pub struct InodeState {
    pub(crate) attr: InodeAttr,
    /// The size that the inode's item says: below `attr.size` while data that was written beyond it
    /// waits in memory.
    pub(crate) disk_size: u64,
    /// When a caller last set the times, while the file was open: pages that a mapping made dirty
    /// before that may still be on their way here, and leave the times alone.
    pub(crate) times_set: Option<Box<Timestamp>>,
    /// A size that could not be put into the inode's item: memory alone has it, so the inode stays.
    pub(crate) is_unsaved: bool,
}

impl InodeState {
    /// The inode's item has the size that memory has.
    fn is_saved(&self) -> bool {
        self.disk_size == self.attr.size && !self.is_unsaved
    }

    /// Brings the size in the item up to date; the caller puts the item into its batch.
    pub(crate) fn update_disk_size(&mut self, data: &DataState, has_landed: bool) {
        self.disk_size = match data.cut {
            // The item still covers what is to be cut. What it did not cover before may be dirty
            // below the new end.
            Some(cut) if self.disk_size > self.attr.size => self.disk_size.min(cut).max(self.attr.size),
            Some(_) | None => data.disk_size(self.attr.size, self.disk_size, has_landed),
        };
    }
}

/// An inode in memory. One object per (tree, number) at a time.
#[derive(Debug)]
pub struct Inode {
    pub(crate) tree: Arc<Tree>,
    pub(crate) ino: ObjectId,
    pub(crate) lock: OpLock,
    pub(crate) attr: Mutex<InodeState>,
    /// Dirty ranges and whatever else `file` keeps per inode, from its first use on.
    pub(crate) data: Lazy<FileData>,
    /// What `dir` keeps per directory, from its first use on.
    pub(crate) dir: Lazy<DirData>,
    /// What the inode table keeps: lookup counts and so on.
    pub(crate) refs: InodeRefs,
    /// The subvolume whose tree this is.
    pub(crate) subvol: Arc<Subvol>,
    /// What is known of extended attributes.
    pub(crate) xattrs: XattrCache,
    /// Changes of attributes that front ends have to be told of.
    pub(crate) unasked: Unasked,
    /// Never changes in an inode's life; kept outside of `attr` so that asking costs no lock.
    kind: FileKind,
    /// A regular file that this object was created for: it has no extents until `data` is first
    /// used. False for an inode that was loaded from its items.
    pub(crate) began_without_extents: bool,
}

/// Device numbers on disk have twenty bits of minor number; callers see them as
/// [`cowshed_vfs::rdev`] packs them.
const DISK_MINOR_BITS: u32 = 20;

/// The `rdev` field of an inode item for a device number in the callers' form.
pub fn rdev_to_disk(rdev: u32) -> u64 {
    let major = (rdev >> 8) & 0xfff;
    let minor = (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00);
    u64::from(major) << DISK_MINOR_BITS | u64::from(minor)
}
pub(crate) fn rdev_from_disk(rdev: u64) -> u32 {
    let minor = (rdev & ((1 << DISK_MINOR_BITS) - 1)) as u32;
    let major = ((rdev >> DISK_MINOR_BITS) & 0xfff) as u32;
    cowshed_vfs::rdev(major, minor)
}

fn sane_time(time: Timestamp) -> Timestamp {
    Timestamp {
        nanos: time.nanos.min(999_999_999),
        ..time
    }
}

impl Inode {
    /// An inode in memory. `kind` is what its mode says.
    pub(crate) fn new(subvol: &Arc<Subvol>, ino: ObjectId, attr: InodeAttr, kind: FileKind) -> Self {
        Self {
            tree: subvol.tree.clone(),
            ino,
            lock: OpLock::default(),
            attr: Mutex::new(
                LockRank::Attr,
                InodeState {
                    disk_size: attr.size,
                    times_set: None,
                    is_unsaved: false,
                    attr,
                },
            ),
            data: Lazy::default(),
            dir: Lazy::default(),
            refs: InodeRefs::default(),
            subvol: subvol.clone(),
            xattrs: XattrCache::default(),
            unasked: Unasked::default(),
            kind,
            began_without_extents: false,
        }
    }

    /// Its place among inodes of which locks of one rank are held together: (tree, number).
    pub(crate) fn lock_key(&self) -> lock::Key {
        (self.tree.id().0, self.ino.0)
    }

    pub(crate) fn kind(&self) -> FileKind {
        self.kind
    }
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
    pub(crate) fn is_regular(&self) -> bool {
        self.kind == FileKind::Regular
    }
    /// The directory that stands where a snapshot was taken over a nested subvolume: empty, on no
    /// disk.
    pub(crate) fn is_placeholder(&self) -> bool {
        self.ino.0 >= PLACEHOLDER_INO_BIT
    }
    /// A copy of the attributes.
    pub(crate) fn attr_now(&self) -> InodeAttr {
        self.attr.lock().attr
    }
    pub(crate) fn flags(&self) -> u64 {
        self.attr.lock().attr.flags
    }

    /// Bytes of file data that are dirty or in flight.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.data.get().map_or(0, FileData::pending_bytes)
    }
    /// Nothing is known of its size but what its item says. The caller holds the only reference in
    /// memory.
    pub(super) fn is_size_saved(&self) -> bool {
        !self.is_regular() || self.attr.try_lock().is_some_and(|state| state.is_saved())
    }
    /// The attributes, where nothing is known of the inode but what its items say, and its lookups:
    /// another object can take its place. The caller holds the only reference in memory.
    ///
    /// Directories know more: where their listings end, and which names they do not have.
    pub(super) fn settled_attr(&self) -> Option<InodeAttr> {
        if self.is_dir() || self.is_placeholder() || self.refs.is_open() || self.unasked.is_due() {
            return None;
        }
        // Attempts, which no other reference can be in the way of: the table's lock is inside of
        // these.
        let state = self.attr.try_lock()?;
        let is_kept = state.attr.nlink == 0 || state.times_set.is_some() || !state.is_saved();
        let is_settled = !is_kept && self.data.get().is_none_or(FileData::is_clean);
        is_settled.then_some(state.attr)
    }

    /// What callers see, with the volume's own inode number.
    pub(crate) fn vfs_attr(&self) -> Attr {
        let (a, delalloc) = with_delalloc(self);
        // Roots of subvolumes carry the bytes of a block as theirs, and the kernel shows them.
        let block = u64::from(BLOCK_BYTES);
        let used_bytes = a.nbytes.saturating_add(delalloc.bytes);
        let blocks_512 = used_bytes.div_ceil(block).saturating_mul(block / 512);
        Attr {
            ino: self.ino.0,
            size_bytes: a.size,
            blocks_512,
            is_estimate: !delalloc.is_exact,
            blksize: BLOCK_BYTES,
            kind: self.kind,
            perm: a.mode & PERM_MASK,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            rdev: rdev_from_disk(a.rdev),
            atime: sane_time(a.atime),
            mtime: sane_time(a.mtime),
            ctime: sane_time(a.ctime),
            btime: sane_time(a.otime),
        }
    }

    /// All pages that were dirty in mappings of the file until now have come.
    pub(crate) fn note_mapped_pages_came(&self) {
        self.attr.lock().times_set = None;
    }

    pub(crate) fn key(&self) -> Key {
        Key::new(self.ino, KeyType::INODE_ITEM, 0)
    }
    /// The inode's item as of now; put it into a batch whenever `attr` changed.
    pub(crate) fn item_bytes(&self, state: &InodeState) -> ItemBytes {
        state.attr.encode(state.disk_size).as_bytes().into()
    }
    /// As [`Self::item_bytes`], of a new inode.
    pub(crate) fn new_item_bytes(&self, state: &InodeState) -> ItemBytes {
        ItemBytes::beside_others(&[state.attr.encode(state.disk_size).as_bytes()])
    }
}

/// References to an inode in memory from outside: lookups and open files. Owned by the inode table.
#[derive(Debug, Default)]
pub struct InodeRefs {
    lookups: AtomicU64,
    opens: AtomicU32,
    /// Was opened for writing at some time.
    had_writers: AtomicBool,
    /// In the table's queue of inodes that may be dropped.
    pub(crate) queued: AtomicBool,
    /// Its items are being deleted, by one thread.
    deleting: AtomicBool,
    /// Made without a name, and may get one.
    linkable: AtomicBool,
}

impl InodeRefs {
    pub(crate) fn add_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::SeqCst);
    }
    /// As many as an inode had when it left memory.
    pub(super) fn set_lookups(&self, count: u64) {
        self.lookups.store(count, Ordering::SeqCst);
    }
    /// Lookups of all views.
    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::SeqCst)
    }
    pub(crate) fn add_open(&self) {
        self.opens.fetch_add(1, Ordering::SeqCst);
    }
    /// The file is opened for writing.
    pub(crate) fn note_writer(&self) {
        self.had_writers.store(true, Ordering::SeqCst);
    }
    /// Whether the file is open, and was opened for writing at some time, so that a process may
    /// store into a mapping of it.
    pub(crate) fn may_have_stores(&self) -> bool {
        self.is_open() && self.had_writers.load(Ordering::SeqCst)
    }
    /// Whether the file is open, so that a process may have mapped it.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::SeqCst) > 0
    }
    /// No lookup and no open file refers to it.
    pub(crate) fn is_idle(&self) -> bool {
        self.lookups.load(Ordering::SeqCst) == 0 && self.opens.load(Ordering::SeqCst) == 0
    }
    /// Takes lookups back; more than there are is a fault of the caller's that costs nothing here.
    pub(crate) fn drop_lookups(&self, count: u64) {
        let _ = self
            .lookups
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| Some(n.saturating_sub(count)));
    }
    pub(crate) fn drop_open(&self) {
        let _ = self
            .opens
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| Some(n.saturating_sub(1)));
    }
    /// Drops all references, whatever was counted.
    pub(crate) fn reset(&self) {
        self.lookups.store(0, Ordering::Release);
        self.opens.store(0, Ordering::Release);
    }
    /// Its items go, or are gone: the answer stays for a caller that has it open.
    pub(crate) fn is_deleting(&self) -> bool {
        self.deleting.load(Ordering::SeqCst)
    }
    /// The caller is the one to delete it: it has no references, and no other thread deletes it.
    pub(crate) fn begin_deleting(&self) -> bool {
        while !self.deleting.swap(true, Ordering::SeqCst) {
            if self.is_idle() {
                return true;
            }
            // A thread that held on to the inode opened it in the last moment: its close comes here
            // again. If it has closed already it found the flag, which is exchanged, not stored, to
            // see what it did before.
            self.deleting.swap(false, Ordering::SeqCst);
            if !self.is_idle() {
                return false;
            }
        }
        false
    }
    pub(crate) fn set_linkable(&self, linkable: bool) {
        self.linkable.store(linkable, Ordering::Release);
    }
    pub(crate) fn is_linkable(&self) -> bool {
        self.linkable.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One closes what was open; the other, which holds on to it, opens it and closes it again.
    /// Very often, by two threads that begin each round within few instructions: the window is as
    /// narrow.
    #[test]
    fn the_last_close_deletes() {
        const ROUNDS: u64 = 1_000_000;
        let (refs, is_at_it, arrived) = (InodeRefs::default(), AtomicU64::new(0), AtomicU64::new(0));
        let close = || {
            refs.drop_open();
            if refs.is_idle() && refs.begin_deleting() {
                is_at_it.fetch_add(1, Ordering::SeqCst);
            }
        };
        let both_come = || {
            let meeting = arrived.fetch_add(1, Ordering::SeqCst) / 2;
            for looks in 0_u64.. {
                match arrived.load(Ordering::SeqCst) / 2 > meeting {
                    true => break,
                    // With one processor no other thread comes otherwise.
                    false if looks % 1000 == 999 => std::thread::yield_now(),
                    false => std::hint::spin_loop(),
                }
            }
        };
        refs.add_open();
        std::thread::scope(|scope| {
            let closer = scope.spawn(|| {
                let mut wrong = 0;
                for round in 0..ROUNDS {
                    both_come();
                    for wait in 0..round % 200 {
                        std::hint::black_box(wait);
                    }
                    close();
                    both_come();
                    wrong += u64::from(is_at_it.swap(0, Ordering::SeqCst) != 1);
                    refs.reset();
                    refs.deleting.store(false, Ordering::SeqCst);
                    refs.add_open();
                }
                wrong
            });
            for _ in 0..ROUNDS {
                both_come();
                if !refs.is_deleting() {
                    refs.add_open();
                    close();
                }
                both_come();
            }
            assert_eq!(closer.join().unwrap(), 0, "of {ROUNDS} rounds");
        });
    }

    #[test]
    fn device_numbers_change_form_and_back() {
        // Watched: mknod c 5 1 gives 5242881 on disk.
        assert_eq!(rdev_to_disk(cowshed_vfs::rdev(5, 1)), 5_242_881);
        for (major, minor) in [(0, 0), (8, 300), (4095, 0xf_ffff), (1, 255), (259, 256)] {
            let seen = cowshed_vfs::rdev(major, minor);
            assert_eq!(rdev_from_disk(rdev_to_disk(seen)), seen);
        }
    }
}
