//! The inodes in memory: one object per (tree, number).
//!
//! An inode stays while front ends remember it (lookups, opens) or the engine holds its `Arc`
//! (dirty data does). Idle ones stay too, up to a bound. Locks: one per shard, a leaf of
//! [`btrfs_store::rank`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::items::InodeItem;
use btrfs_format::{Key, KeyType, ObjectId, TreeId, view};
use cowshed_runtime::lock::Mutex;

use super::inode::{Inode, InodeAttr};
use super::subvol::{PLACEHOLDER_INO_BIT, Subvol};
use crate::error::{Error, Result, StoreError};
use btrfs_store::rank::LockRank;
use btrfs_store::tree::AddrHash;

const SHARDS: usize = 64;
/// Idle inodes kept per shard: 64 x 512 of about half a KiB each are 16 MiB.
const IDLE_PER_SHARD_MAX: usize = 512;
/// Idle inodes looked at when one more comes.
const SWEEP_STEPS: usize = 4;

type Id = (TreeId, ObjectId);

/// A moment at which an inode was not in memory: [`InodeTable::get_or_mark`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

#[derive(Debug, Default)]
struct Shard {
    inodes: HashMap<Id, Arc<Inode>, AddrHash>,
    /// Inodes that were idle when they were put here, oldest first.
    idle: VecDeque<Id>,
    /// Grows whenever an inode leaves: what was read from the tree before may be old then.
    evictions: u64,
}

/// The inodes in memory.
#[derive(Debug)]
pub struct InodeTable {
    shards: [Mutex<Shard>; SHARDS],
}

impl Default for InodeTable {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(LockRank::InodeTable, Shard::default())),
        }
    }
}

fn id_of(inode: &Inode) -> Id {
    (inode.tree.id(), inode.ino)
}

impl InodeTable {
    fn shard(&self, id: Id) -> &Mutex<Shard> {
        let n = id.1.0 ^ id.0.0.wrapping_mul(0x9e37_79b9);
        &self.shards[(n % SHARDS as u64) as usize]
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
            let mut shard = self.shard(id).lock();
            if let Some(there) = shard.inodes.get(&id) {
                return Ok(Some(there.clone()));
            }
            if shard.evictions == evictions {
                let inode = Arc::new(inode);
                shard.inodes.insert(id, inode.clone());
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
        self.shard(id).lock().inodes.insert(id, inode);
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
    }

    /// Every inode in memory, to find what must be written or deleted.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let mut all: Vec<_> = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().inodes.values().cloned());
        }
        all.sort_by_key(|inode| id_of(inode));
        all
    }

    /// Drops the inodes of a tree that are not in use; true where none of it is left.
    pub(crate) fn evict_tree(&self, tree: TreeId) -> bool {
        let mut is_left = false;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.inodes.len();
            shard.inodes.retain(|id, inode| {
                let is_used = id.0 == tree && (Arc::strong_count(inode) > 1 || !inode.refs.is_idle());
                is_left |= is_used;
                id.0 != tree || is_used
            });
            shard.evictions += (before - shard.inodes.len()) as u64;
        }
        !is_left
    }

    /// Drops every inode without references: what memory pressure would do.
    pub fn drop_idle(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.inodes.len();
            shard
                .inodes
                .retain(|_, inode| Arc::strong_count(inode) > 1 || !inode.refs.is_idle());
            shard.evictions += (before - shard.inodes.len()) as u64;
        }
    }
}

impl Shard {
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
            } else if Arc::strong_count(inode) > 1 {
                self.idle.push_back(id);
            } else {
                self.inodes.remove(&id);
                self.evictions += 1;
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
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use cowshed_vfs::{Context, FileKind, FileSystem as _, NodeId};

    use super::*;
    use crate::files::EngineOptions;
    use crate::fs::{Fs, MountOptions};
    use crate::mount::Mount;
    use crate::testing::{SetOnDrop, memory_volume};
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
}
