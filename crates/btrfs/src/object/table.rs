//! The inodes in memory: one object per (tree, number).
//!
//! An inode stays while it is open or the engine holds its `Arc` (dirty data does). Others stay up
//! to a bound:
//!
//! ```text
//!               load, make                 forgotten
//!   (no object) ----------> in memory -------------------> idle -------> (no object)
//!                             |    ^                      too many
//!              too many files |    | used, loaded again
//!                             v    |
//!                            parked: a count of lookups
//! ```
//!
//! A file that a front end remembers and does not use is *parked* where many are in memory: its
//! object goes, and a count of lookups stays, in a tenth of the memory. The next use loads it
//! again. Directories, and files of which memory knows more than their items say
//! ([`Inode::settled_attr`]), are not parked. Nor is anything while a volume has several views,
//! which walk over all inodes that one of them refers to.
//!
//! Locks: one per shard, a leaf of [`btrfs_store::rank`].

mod evict;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use btrfs_format::items::InodeItem;
use btrfs_format::{Key, KeyType, ObjectId, TreeId, view};
use cowshed_runtime::lock::Mutex;

use super::inode::{Inode, InodeAttr};
use super::subvol::{PLACEHOLDER_INO_BIT, Subvol};
use super::views::Views;
use crate::error::{Error, Result, StoreError};
use btrfs_store::rank::LockRank;
use btrfs_store::tree::AddrHash;

const SHARDS: usize = 64;
/// Idle inodes kept per shard: 64 x 512 of about half a KiB each are 16 MiB at most.
const IDLE_PER_SHARD_MAX: usize = 512;
/// Idle inodes looked at when one more comes.
const SWEEP_STEPS: usize = 4;

/// The share of the memory for changes that files in memory may take, and what one takes about,
/// with its place in the tables.
const MEMORY_SHARES: u64 = 8;
const FILE_BYTES: u64 = 512;
const FILES_PER_SHARD_MIN: u64 = 16;
/// Files looked at when one more comes.
const PARK_STEPS: usize = 2;
/// Tables of fewer entries do not shrink.
const SHRINK_MIN: usize = 1024;

type Id = (TreeId, ObjectId);

/// A moment at which an inode was not in memory: [`InodeTable::get_or_mark`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

/// A file that is remembered by front ends alone.
#[derive(Debug)]
struct Parked {
    subvol: Arc<Subvol>,
    lookups: u64,
    /// What its item must say: nothing else was known of it.
    #[cfg(debug_assertions)]
    attr: InodeAttr,
}

impl Parked {
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "compared in debug builds"))]
    fn of(inode: &Inode, attr: InodeAttr) -> Self {
        Self {
            subvol: inode.subvol.clone(),
            lookups: inode.refs.lookups(),
            #[cfg(debug_assertions)]
            attr,
        }
    }
}

#[derive(Debug, Default)]
struct Shard {
    inodes: HashMap<Id, Arc<Inode>, AddrHash>,
    /// None of these is in `inodes`.
    parked: HashMap<Id, Parked, AddrHash>,
    /// Files in the order in which they came, and where each is in memory: one that came back later
    /// is another object, and has another entry.
    came: VecDeque<(Id, usize)>,
    /// Inodes that were idle when they were put here, oldest first.
    idle: VecDeque<Id>,
    /// Grows whenever an inode leaves: what was read from the tree before may be old then.
    evictions: u64,
}

/// The inodes in memory.
#[derive(Debug)]
pub struct InodeTable {
    shards: [Mutex<Shard>; SHARDS],
    files_per_shard_max: AtomicUsize,
    views: Arc<Views>,
    /// Nothing is parked while this is not 0.
    keeps_all: Arc<AtomicUsize>,
}

/// Nothing is parked while this lives, unless it is ended.
#[derive(Debug)]
#[must_use = "dropped at once, it keeps nothing"]
pub(crate) struct KeepAll {
    count: Arc<AtomicUsize>,
    is_over: AtomicBool,
}

impl KeepAll {
    pub(crate) fn end(&self) {
        if !self.is_over.swap(true, Ordering::SeqCst) {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for KeepAll {
    fn drop(&mut self) {
        self.end();
    }
}

/// The table's reference to an inode is the only one, and what other threads did through theirs is
/// seen. The caller holds the table's lock, so that no other reference comes.
fn is_alone(inode: &Arc<Inode>) -> bool {
    let is_alone = Arc::strong_count(inode) == 1;
    // Pairs with the release of the last other reference.
    fence(Ordering::Acquire);
    is_alone
}

/// Nothing is lost with an inode: it is not in use, and its item says all that is known of it. The
/// caller holds the table's lock.
fn may_go(inode: &Arc<Inode>) -> bool {
    is_alone(inode) && inode.refs.is_idle() && inode.is_size_saved()
}

fn id_of(inode: &Inode) -> Id {
    (inode.tree.id(), inode.ino)
}

impl InodeTable {
    /// A table for an engine that may use so much memory for changes.
    pub(super) fn with_memory(bytes_max: u64, views: Arc<Views>) -> Self {
        let files = (bytes_max / MEMORY_SHARES / FILE_BYTES / SHARDS as u64).max(FILES_PER_SHARD_MIN);
        Self {
            shards: std::array::from_fn(|_| Mutex::new(LockRank::InodeTable, Shard::default())),
            files_per_shard_max: AtomicUsize::new(usize::try_from(files).unwrap_or(usize::MAX)),
            views,
            keeps_all: Arc::default(),
        }
    }

    /// Parks nothing for a while: a view ends, and gives back what it refers to of all inodes,
    /// those that are in memory; or the front end of a view does not say which files are open.
    pub(crate) fn keeping_all(&self) -> KeepAll {
        self.keeps_all.fetch_add(1, Ordering::SeqCst);
        KeepAll {
            count: self.keeps_all.clone(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Asked in this order: the last but one view ends within a [`KeepAll`].
    fn may_park(&self) -> bool {
        !self.views.are_many() && self.keeps_all.load(Ordering::SeqCst) == 0
    }

    /// How many files stay in memory while others come, about.
    pub fn set_files_max(&self, count: usize) {
        self.files_per_shard_max
            .store(count.div_ceil(SHARDS), Ordering::Release);
    }

    /// Inodes in memory, and those that are parked.
    pub fn counts(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(inodes, parked), shard| {
            let shard = shard.lock();
            (inodes + shard.inodes.len(), parked + shard.parked.len())
        })
    }

    fn shard(&self, id: Id) -> &Mutex<Shard> {
        let n = id.1.0 ^ id.0.0.wrapping_mul(0x9e37_79b9);
        &self.shards[(n % SHARDS as u64) as usize]
    }

    /// The inode if it is in memory, or parked: then it is loaded.
    pub(crate) fn known(&self, tree: TreeId, ino: ObjectId) -> Result<Option<Arc<Inode>>> {
        let id = (tree, ino);
        let subvol = {
            let shard = self.shard(id).lock();
            if let Some(inode) = shard.inodes.get(&id) {
                return Ok(Some(inode.clone()));
            }
            match shard.parked.get(&id) {
                Some(parked) => parked.subvol.clone(),
                None => return Ok(None),
            }
        };
        self.load(&subvol, ino)
    }

    /// Takes lookups back of a file that is parked. False where it is not.
    pub(crate) fn forget_parked(&self, tree: TreeId, ino: ObjectId, lookups: u64) -> bool {
        let id = (tree, ino);
        let mut shard = self.shard(id).lock();
        let Some(parked) = shard.parked.get_mut(&id) else {
            return false;
        };
        parked.lookups = parked.lookups.saturating_sub(lookups);
        if parked.lookups == 0 {
            shard.parked.remove(&id);
            shrink(&mut shard.parked);
        }
        true
    }

    /// Loads all that is parked. While the volume has several views nothing is parked afterwards.
    pub(crate) fn load_parked(&self) -> Result<()> {
        for shard in &self.shards {
            let parked: Vec<_> = {
                let shard = shard.lock();
                let parked = shard.parked.iter();
                parked.map(|((_, ino), parked)| (parked.subvol.clone(), *ino)).collect()
            };
            for (subvol, ino) in parked {
                self.load(&subvol, ino)?;
            }
        }
        Ok(())
    }

    /// The inode if it is in memory.
    pub(crate) fn get(&self, tree: TreeId, ino: ObjectId) -> Option<Arc<Inode>> {
        self.shard((tree, ino)).lock().inodes.get(&(tree, ino)).cloned()
    }

    /// The inode if it is in memory, else a mark for [`InodeTable::is_absent_since`].
    pub(crate) fn get_or_mark(&self, tree: TreeId, ino: ObjectId) -> std::result::Result<Arc<Inode>, Mark> {
        let shard = self.shard((tree, ino)).lock();
        shard.inodes.get(&(tree, ino)).cloned().ok_or(Mark(shard.evictions))
    }

    /// The inode has not been in memory since the mark was made. All changes of an inode are made
    /// through its object, so its items have not changed since, and no data of it is in memory.
    /// May say false where that is so.
    pub(crate) fn is_absent_since(&self, tree: TreeId, ino: ObjectId, mark: Mark) -> bool {
        let shard = self.shard((tree, ino)).lock();
        shard.evictions == mark.0 && !shard.inodes.contains_key(&(tree, ino))
    }

    /// The inode, from memory or from its tree; `None` where it has no item.
    pub(crate) fn load(&self, subvol: &Arc<Subvol>, ino: ObjectId) -> Result<Option<Arc<Inode>>> {
        let id = (subvol.id, ino);
        loop {
            let evictions = {
                let shard = self.shard(id).lock();
                if let Some(inode) = shard.inodes.get(&id) {
                    return Ok(Some(inode.clone()));
                }
                shard.evictions
            };
            let Some(inode) = read_inode(subvol, ino)? else {
                return Ok(None);
            };
            #[cfg(debug_assertions)]
            let attr = inode.attr_now();
            let mut shard = self.shard(id).lock();
            if let Some(there) = shard.inodes.get(&id) {
                return Ok(Some(there.clone()));
            }
            if shard.evictions == evictions {
                let inode = Arc::new(inode);
                if let Some(parked) = shard.parked.remove(&id) {
                    #[cfg(debug_assertions)]
                    assert_eq!(attr, parked.attr, "inode {ino} was parked with unsaved changes");
                    inode.refs.set_lookups(parked.lookups);
                }
                self.insert(&mut shard, id, &inode);
                return Ok(Some(inode));
            }
        }
    }

    /// Adds an inode that is about to be seen: before the batch that makes it is applied, lest a
    /// lookup finds its name, loads its item and has another object for it. As with a loaded one,
    /// the caller makes an entry of it or settles it (`reclaim::settle`); else it stays for
    /// good.
    pub(crate) fn insert_new(&self, inode: Arc<Inode>) {
        let id = id_of(&inode);
        self.insert(&mut self.shard(id).lock(), id, &inode);
    }

    fn insert(&self, shard: &mut Shard, id: Id, inode: &Arc<Inode>) {
        shard.inodes.insert(id, inode.clone());
        if inode.is_dir() {
            return;
        }
        shard.came.push_back((id, Arc::as_ptr(inode).addr()));
        let files_max = self.files_per_shard_max.load(Ordering::Acquire);
        for _ in 0..PARK_STEPS {
            if shard.came.len() <= files_max {
                break;
            }
            shard.look_at_oldest(self.may_park());
        }
    }

    /// Notes that an inode may have become idle.
    pub(crate) fn note_idle(&self, inode: &Arc<Inode>) {
        if !inode.refs.is_idle() || inode.refs.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let id = id_of(inode);
        let mut shard = self.shard(id).lock();
        shard.idle.push_back(id);
        shard.sweep();
    }

    /// Takes a deleted inode out; its number is not found any more.
    pub(crate) fn remove(&self, inode: &Arc<Inode>) {
        let id = id_of(inode);
        let mut shard = self.shard(id).lock();
        shard.inodes.remove(&id);
        shard.evictions += 1;
        shrink(&mut shard.inodes);
    }

    /// Every inode in memory, to find what must be written or deleted.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().inodes.iter().map(|(id, inode)| (*id, inode.clone())));
        }
        // Sorted by the ids beside the pointers: reading them from the inodes would miss the
        // processor's cache for each (0.2 s for 300,000).
        all.sort_unstable_by_key(|(id, _)| *id);
        all.into_iter().map(|(_, inode)| inode).collect()
    }

    /// The inodes of a tree that front ends remember.
    pub(crate) fn remembered(&self, tree: TreeId) -> Vec<ObjectId> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let of_tree = |id: &&Id| id.0 == tree;
            all.extend(shard.parked.keys().filter(of_tree).map(|id| id.1));
            let inodes = shard.inodes.iter().filter(|(_, inode)| inode.refs.lookups() > 0);
            all.extend(inodes.map(|(id, _)| id).filter(of_tree).map(|id| id.1));
        }
        all
    }

    /// Inodes in memory of which a condition holds.
    pub(crate) fn all_with(&self, is_meant: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(shard.inodes.values().filter(|inode| is_meant(inode)).cloned());
        }
        all
    }

    /// Drops every inode without references: what memory pressure would do.
    pub fn drop_idle(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.inodes.len();
            shard.inodes.retain(|_, inode| !may_go(inode));
            shard.evictions += (before - shard.inodes.len()) as u64;
            shrink(&mut shard.inodes);
        }
    }
}

/// Gives the memory of a table back that has become nearly empty.
fn shrink<V>(table: &mut HashMap<Id, V, AddrHash>) {
    if table.capacity() > SHRINK_MIN && table.len() < table.capacity() / 8 {
        table.shrink_to(2 * table.len());
    }
}

impl Shard {
    /// Parks the file that came first, if that can be.
    fn look_at_oldest(&mut self, may_park: bool) {
        let Some((id, addr)) = self.came.pop_front() else {
            return;
        };
        let Some(inode) = self.inodes.get(&id).filter(|inode| Arc::as_ptr(inode).addr() == addr) else {
            return;
        };
        let is_unused = may_park && is_alone(inode) && inode.refs.lookups() > 0;
        let settled = if is_unused { inode.settled_attr() } else { None };
        let Some(attr) = settled else {
            self.came.push_back((id, addr));
            return;
        };
        let parked = Parked::of(inode, attr);
        self.inodes.remove(&id);
        self.parked.insert(id, parked);
        self.evictions += 1;
    }

    fn sweep(&mut self) {
        for _ in 0..SWEEP_STEPS {
            if self.idle.len() <= IDLE_PER_SHARD_MAX {
                return;
            }
            let Some(id) = self.idle.pop_front() else { return };
            let Some(inode) = self.inodes.get(&id) else { continue };
            if !inode.refs.is_idle() {
                // Comes back with note_idle. Asked again after the flag is down, lest both sides
                // wait for each other.
                inode.refs.queued.store(false, Ordering::SeqCst);
                if !inode.refs.is_idle() || inode.refs.queued.swap(true, Ordering::SeqCst) {
                    continue;
                }
                self.idle.push_back(id);
            } else if !may_go(inode) {
                self.idle.push_back(id);
            } else {
                self.inodes.remove(&id);
                self.evictions += 1;
                shrink(&mut self.inodes);
            }
        }
    }
}

fn read_inode(subvol: &Arc<Subvol>, ino: ObjectId) -> Result<Option<Inode>> {
    if ino.0 >= PLACEHOLDER_INO_BIT {
        let what = format!("inode number {ino} is beyond every limit");
        return Err(Error::Store(StoreError::CorruptTree { tree: subvol.id, what }));
    }
    let Some(item) = subvol.tree.get(&Key::new(ino, KeyType::INODE_ITEM, 0))? else {
        return Ok(None);
    };
    let corrupt = |what: String| Error::Store(StoreError::CorruptTree { tree: subvol.id, what });
    let raw = view::fixed::<InodeItem>(&item)
        .ok_or_else(|| corrupt(format!("item of inode {ino} has {} bytes", item.len())))?;
    let attr = InodeAttr::decode(raw);
    let kind = attr
        .kind()
        .ok_or_else(|| corrupt(format!("mode of inode {ino} is {:o}", attr.mode)))?;
    Ok(Some(Inode::new(subvol, ino, attr, kind)))
}

#[cfg(test)]
mod tests {

    use cowshed_vfs::{Context, FileKind, FileSystem as _, Handle, Lookup, NodeId, SetAttr, WriteFlags};

    use super::*;
    use crate::files::EngineOptions;
    use crate::fs::{Fs, MountOptions};
    use crate::mount::Mount;
    use crate::testing::{Dice, SetOnDrop, memory_volume};
    use cowshed_runtime::FixedEnv;

    /// A lookup of a name while its file is being made finds the inode that is made, not one of its
    /// own.
    #[test]
    fn an_inode_has_one_object() {
        const FILES: usize = 5000;
        let files = Mount::open(
            memory_volume(16384),
            Arc::new(FixedEnv::default()),
            EngineOptions::default(),
        )
        .unwrap();
        let fs = Fs::new(files, MountOptions::default()).unwrap();
        let root = fs.inode(NodeId::ROOT).unwrap();
        let (made, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let name = |n: usize| format!("file-{n}");
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                for n in 0..FILES {
                    let found = loop {
                        match crate::dir::lookup(fs.mount(), &root, name(n).as_bytes()).unwrap() {
                            Some(inode) => break inode,
                            None if is_over.load(Ordering::Acquire) => return,
                            None => std::hint::spin_loop(),
                        }
                    };
                    while made.load(Ordering::Acquire) <= n && !is_over.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    let kept = fs.mount().objects().inodes.get(found.tree.id(), found.ino).unwrap();
                    assert!(Arc::ptr_eq(&found, &kept), "two objects for {}", name(n));
                }
            });
            let over = SetOnDrop(&is_over);
            for n in 0..FILES {
                let new = cowshed_vfs::fs::NewNode {
                    kind: FileKind::Regular,
                    perm: 0o644,
                    rdev: 0,
                };
                fs.mknod(&Context::root(), NodeId::ROOT, name(n).as_bytes(), new)
                    .unwrap();
                made.store(n + 1, Ordering::Release);
            }
            looker.join().unwrap();
            drop(over);
        });
        fs.mount().close().unwrap();
    }

    /// What was in memory between two questions is told, whether it still is or not.
    #[test]
    fn mark_ends_where_an_inode_was_in_memory() {
        let files = Mount::open(
            memory_volume(16384),
            Arc::new(FixedEnv::default()),
            EngineOptions::default(),
        )
        .unwrap();
        let fs = Fs::new(files, MountOptions::default()).unwrap();
        let new = cowshed_vfs::fs::NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let entry = fs.mknod(&Context::root(), NodeId::ROOT, b"f", new).unwrap();
        let inode = fs.inode(entry.node).unwrap();
        let (subvol, ino) = (inode.subvol.clone(), inode.ino);
        let inodes = &fs.mount().objects().inodes;
        assert!(inodes.get_or_mark(subvol.id, ino).is_ok());
        drop(inode);
        fs.forget(entry.node, 1);
        inodes.drop_idle();
        let mark = inodes.get_or_mark(subvol.id, ino).unwrap_err();
        assert!(inodes.is_absent_since(subvol.id, ino, mark));
        let loaded = inodes.load(&subvol, ino).unwrap().unwrap();
        assert!(!inodes.is_absent_since(subvol.id, ino, mark), "it is there");
        drop(loaded);
        inodes.drop_idle();
        assert!(!inodes.is_absent_since(subvol.id, ino, mark), "it was there");
        let mark = inodes.get_or_mark(subvol.id, ino).unwrap_err();
        assert!(inodes.is_absent_since(subvol.id, ino, mark));
        fs.mount().close().unwrap();
    }

    fn engine() -> Fs {
        let env = Arc::new(FixedEnv::default());
        let files = Mount::open(memory_volume(16384), env, EngineOptions::default()).unwrap();
        Fs::new(files, MountOptions::default()).unwrap()
    }

    fn made(fs: &Fs, name: &str) -> NodeId {
        let new = cowshed_vfs::fs::NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let entry = fs.mknod(&Context::root(), NodeId::ROOT, name.as_bytes(), new);
        entry.unwrap().node
    }

    fn looked_up(fs: &Fs, name: &str) -> NodeId {
        match fs.lookup(&Context::root(), NodeId::ROOT, name.as_bytes()).unwrap() {
            Lookup::Found(entry) => entry.node,
            Lookup::Absent { .. } => panic!("{name} is there"),
        }
    }

    fn set_perm(fs: &Fs, node: NodeId, perm: u32) {
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        fs.setattr(&Context::root(), node, None, &set).unwrap();
    }

    fn perm(fs: &Fs, node: NodeId) -> Option<u32> {
        fs.getattr(&Context::root(), node, None).ok().map(|attr| attr.perm)
    }

    #[test]
    fn remembered_files_beyond_the_bound_are_parked_and_answer_as_before() {
        const FILES: usize = 2000;
        let (fs, ctx) = (engine(), Context::root());
        let table = &fs.mount().objects().inodes;
        table.set_files_max(SHARDS);
        let nodes: Vec<_> = (0..FILES).map(|n| made(&fs, &format!("file-{n}"))).collect();
        let (inodes, parked) = table.counts();
        assert!(
            inodes <= 2 * SHARDS && parked >= FILES - 2 * SHARDS,
            "{inodes}, {parked}"
        );
        for (n, node) in nodes.iter().enumerate() {
            fs.write(
                &ctx,
                *node,
                Handle::NONE,
                0,
                format!("{n}").as_bytes(),
                WriteFlags::empty(),
            )
            .unwrap();
            set_perm(&fs, *node, 0o600 | (n as u32 & 7));
        }
        // Dirty files stay as they are.
        assert_eq!(table.counts().1, 0);
        fs.mount().sync().unwrap();
        (0..FILES).for_each(|n| fs.forget(made(&fs, &format!("other-{n}")), 1));
        assert!(table.counts().1 > FILES / 2, "{:?}", table.counts());
        for (n, node) in nodes.iter().enumerate() {
            assert_eq!(perm(&fs, *node), Some(0o600 | (n as u32 & 7)));
            let (mut buf, expected) = ([0; 8], format!("{n}"));
            let len = fs.read(&ctx, *node, Handle::NONE, 0, &mut buf).unwrap();
            assert_eq!(&buf[..len], expected.as_bytes());
        }
        fs.mount().close().unwrap();
    }

    #[test]
    fn lookups_of_parked_files_are_counted_on() {
        const FILES: usize = 500;
        let (fs, ctx) = (engine(), Context::root());
        let table = &fs.mount().objects().inodes;
        table.set_files_max(0);
        let name = |n: usize| format!("file-{n}");
        let nodes: Vec<_> = (0..FILES).map(|n| made(&fs, &name(n))).collect();
        assert!(table.counts().1 > FILES / 2);
        // A second lookup each, some of them of parked files.
        (0..FILES).for_each(|n| assert_eq!(looked_up(&fs, &name(n)), nodes[n]));
        for (n, node) in nodes.iter().enumerate() {
            if n % 2 == 0 {
                fs.unlink(&ctx, NodeId::ROOT, name(n).as_bytes()).unwrap();
            }
            fs.forget(*node, 1);
            assert!(perm(&fs, *node).is_some(), "one lookup is left");
            fs.forget(*node, 1);
        }
        let root = fs.inode(NodeId::ROOT).unwrap();
        for (n, node) in nodes.iter().enumerate().filter(|(n, _)| n % 2 == 0) {
            assert!(perm(&fs, *node).is_none(), "{n} is deleted and forgotten");
            let key = Key::new(ObjectId(node.0), KeyType::INODE_ITEM, 0);
            assert!(
                root.tree.get(&key).unwrap().is_none(),
                "its items went with the last lookup"
            );
        }
        table.drop_idle();
        assert_eq!(table.counts(), (1, 0), "the root alone is left");
        fs.mount().close().unwrap();
    }

    #[test]
    fn nothing_is_parked_beside_a_second_view() {
        const FILES: usize = 300;
        let fs = engine();
        let table = &fs.mount().objects().inodes;
        table.set_files_max(0);
        let nodes: Vec<_> = (0..FILES).map(|n| made(&fs, &format!("file-{n}"))).collect();
        assert!(table.counts().1 > 0);
        let other = fs.beside(MountOptions::default()).unwrap();
        assert_eq!(table.counts().1, 0);
        for n in 0..FILES {
            made(&other, &format!("other-{n}"));
        }
        assert_eq!(table.counts().1, 0);
        other.destroy();
        let keeping = table.keeping_all();
        (0..FILES).for_each(|n| fs.forget(made(&fs, &format!("kept-{n}")), 1));
        assert_eq!(table.counts().1, 0, "another view is ending");
        drop(keeping);
        nodes.iter().for_each(|node| fs.forget(*node, 1));
        assert!(nodes.iter().all(|node| fs.inode(*node).is_ok()), "idle, not gone");
        fs.destroy();
    }

    /// What only memory knows of a file stays, whatever leaves memory.
    #[test]
    fn idle_file_stays_until_its_item_has_its_size() {
        let fs = engine();
        let table = &fs.mount().objects().inodes;
        let node = made(&fs, "file");
        fs.inode(node).unwrap().attr.lock().is_unsaved = true;
        fs.forget(node, 1);
        table.drop_idle();
        let others = (0..2 * SHARDS * IDLE_PER_SHARD_MAX).map(|n| made(&fs, &format!("other-{n}")));
        others.for_each(|other| fs.forget(other, 1));
        {
            let inode = fs.inode(node).unwrap();
            let mut attr = inode.attr.lock();
            assert!(attr.is_unsaved, "the same object");
            attr.is_unsaved = false;
        }
        table.drop_idle();
        assert_eq!(table.counts(), (1, 0), "the root alone is left");
        fs.mount().close().unwrap();
    }

    /// Files are parked and loaded all the time by two threads, each of which changes its own.
    #[test]
    fn parking_beside_uses_loses_no_change() {
        const FILES: usize = 64;
        const ROUNDS: usize = 3000;
        let fs = engine();
        fs.mount().objects().inodes.set_files_max(0);
        let name = |n: usize| format!("file-{n}");
        let nodes: Vec<_> = (0..FILES).map(|n| made(&fs, &name(n))).collect();
        std::thread::scope(|scope| {
            for own in 0..2 {
                let (fs, nodes, name) = (&fs, &nodes, &name);
                scope.spawn(move || {
                    let mut dice = Dice::new(own as u64);
                    let mut expected = [0o644; FILES];
                    for round in 0..ROUNDS {
                        let n = dice.below(FILES as u64) as usize;
                        assert_eq!(looked_up(fs, &name(n)), nodes[n]);
                        if n % 2 == own {
                            assert_eq!(perm(fs, nodes[n]), Some(expected[n]), "round {round}");
                            expected[n] = 0o600 | (round as u32 & 0o77);
                            set_perm(fs, nodes[n], expected[n]);
                        }
                        fs.forget(nodes[n], 1);
                    }
                });
            }
        });
        nodes.iter().for_each(|node| fs.forget(*node, 1));
        let table = &fs.mount().objects().inodes;
        table.drop_idle();
        assert_eq!(table.counts(), (1, 0), "each lookup was counted and given back once");
        fs.mount().close().unwrap();
    }
}
