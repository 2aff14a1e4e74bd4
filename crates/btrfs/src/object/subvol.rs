//! Subvolumes in memory, and the objects of all of them.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use btrfs_store::Forest;
use btrfs_store::rank::LockRank;
use btrfs_store::tree::Tree;
use cowshed_runtime::lock::{Mutex, RwLock};
use cowshed_vfs::Held;

use super::inode::Inode;
use super::table::InodeTable;
use super::views::Views;
use crate::compression::compress::CompressPolicy;
use crate::error::{Error, Result, StoreError};

/// Numbers from here on are no inodes of the volume: they name the stand-ins for nested subvolumes
/// in snapshots.
pub const PLACEHOLDER_INO_BIT: u64 = 1 << 63;

/// What a mount says about all files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    pub(crate) read_only: bool,
    pub(crate) nodatacow: bool,
    pub(crate) nodatasum: bool,
    /// What is compressed without being asked for by file.
    pub(crate) compress: Option<CompressPolicy>,
}

/// Subvolumes and inodes in memory.
#[derive(Debug)]
pub struct Objects {
    /// Of all subvolumes.
    pub inodes: InodeTable,
    pub(crate) subvols: RwLock<HashMap<TreeId, Arc<Subvol>>>,
    /// Held by a rename that moves a directory to another one: nothing may move above it meanwhile.
    pub(crate) rename: Mutex<()>,
    /// Held while a subvolume gets or loses its name: one in which others are made stays.
    pub(crate) subvolume_names: Mutex<()>,
    /// The views of the volume.
    pub(crate) views: Arc<Views>,
    policy: RwLock<Policy>,
    read_only: AtomicBool,
    /// The id of the next new subvolume; 0 while it is not known.
    next_subvolume: AtomicU64,
    dead: Mutex<Dead>,
}

impl Objects {
    /// Of an engine that may use so much memory for changes.
    pub(crate) fn with_memory(bytes_max: u64) -> Self {
        let views = Arc::<Views>::default();
        Self {
            inodes: InodeTable::with_memory(bytes_max, views.clone()),
            subvols: RwLock::new(LockRank::Subvolumes, HashMap::new()),
            rename: Mutex::new(LockRank::Rename, ()),
            subvolume_names: Mutex::new(LockRank::SubvolumeNames, ()),
            views,
            policy: RwLock::new(LockRank::Policy, Policy::default()),
            read_only: AtomicBool::new(false),
            next_subvolume: AtomicU64::new(0),
            dead: Mutex::new(LockRank::DeadSubvolumes, Dead::default()),
        }
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.read_only.store(policy.read_only, Ordering::Release);
        *self.policy.write() = policy;
    }
    pub(crate) fn policy(&self) -> Policy {
        *self.policy.read()
    }
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// An id that no subvolume has, nor any has had since the mount.
    pub(crate) fn take_subvolume_id(&self, forest: &Forest) -> Result<TreeId> {
        if self.next_subvolume.load(Ordering::Acquire) == 0 {
            let next = forest.last_subvolume_id()?.get().max(ObjectId::FIRST_FREE.get() - 1) + 1;
            // The first caller is right: later ones may see what it made, or not.
            let _ = self
                .next_subvolume
                .compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(TreeId(self.next_subvolume.fetch_add(1, Ordering::AcqRel)))
    }

    /// A subvolume has lost its name: it is not found any more, and is dropped once it is unused.
    pub(crate) fn forget_subvolume(&self, subvol: &Arc<Subvol>) {
        let mut dead = self.dead.lock();
        dead.ids.insert(subvol.id);
        dead.dying.push(subvol.clone());
        self.subvols.write().remove(&subvol.id);
    }

    /// Some that were deleted are in use, or were not looked at yet.
    pub(crate) fn has_dying(&self) -> bool {
        !self.dead.lock().dying.is_empty()
    }

    /// The one object of a subvolume that was opened just now, by this call or another one. `None`:
    /// it was deleted meanwhile, and its root item may say so with the next commit only.
    pub(crate) fn keep_subvolume(&self, opened: &Arc<Subvol>) -> Option<Arc<Subvol>> {
        let dead = self.dead.lock();
        if dead.ids.contains(&opened.id) {
            return None;
        }
        let mut subvols = self.subvols.write();
        Some(subvols.entry(opened.id).or_insert_with(|| opened.clone()).clone())
    }

    /// Deleted subvolumes that are unused now, what the others wait for, and what is to be freed.
    /// `listed` gives the inodes of one that have dirty data, `discard` drops that of one.
    pub(crate) fn take_unused(
        &self,
        listed: impl Fn(TreeId) -> Vec<Arc<Inode>>,
        discard: impl Fn(&Arc<Inode>),
    ) -> (Vec<TreeId>, Remaining, Vec<Taken>) {
        let (all, evicted) = {
            let mut dead = self.dead.lock();
            (std::mem::take(&mut dead.dying), std::mem::take(&mut dead.evicted))
        };
        let (emptied, stopped): (Vec<_>, Vec<_>) = all.into_iter().partition(|subvol| subvol.is_being_emptied());
        let used: Vec<_> = stopped.iter().filter(|subvol| subvol.users() > 0).collect();
        let mut dirty = evicted;
        let mut gone = match used.is_empty() {
            true => Vec::new(),
            false => self.take_out(&used, &mut dirty, listed, discard),
        };
        // Write-back may have begun with one before it was taken out.
        let (free, busy): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|one| Arc::strong_count(one) == 1);
        fence(Ordering::Acquire);
        gone.extend(free.into_iter().map(Taken::new));
        let (used, unused): (Vec<_>, Vec<_>) = stopped.into_iter().partition(|subvol| subvol.users() > 0);
        let mut dead = self.dead.lock();
        dead.evicted.extend(busy);
        let remaining = if dead.dying.is_empty() && used.is_empty() && emptied.is_empty() {
            Remaining::None
        } else if used.is_empty() {
            Remaining::BeingEmptied
        } else {
            Remaining::InUse
        };
        dead.dying.extend(emptied);
        dead.dying.extend(used);
        (unused.iter().map(|subvol| subvol.id).collect(), remaining, gone)
    }

    /// Takes inodes of deleted subvolumes out of memory that nothing uses, and others into `dirty`,
    /// whose data was discarded.
    fn take_out(
        &self,
        used: &[&Arc<Subvol>],
        dirty: &mut Vec<Arc<Inode>>,
        listed: impl Fn(TreeId) -> Vec<Arc<Inode>>,
        discard: impl Fn(&Arc<Inode>),
    ) -> Vec<Taken> {
        let held = match self.views.held() {
            Held::Found(held) => Some(held),
            Held::Unknown => None,
            Held::NotNow => {
                // The next look asks again, whether or not there are fewer users then.
                used.iter()
                    .for_each(|subvol| subvol.seen_users.store(0, Ordering::Relaxed));
                return Vec::new();
            }
        };
        let is_held = |id: &TreeId| held.as_ref().is_none_or(|held| held.contains(id));
        let dead = used.iter().map(|subvol| (subvol.id, is_held(&subvol.id)));
        let taken = self.inodes.evict_subvolumes(&dead.collect());
        let mut remembered = HashMap::<TreeId, Vec<ObjectId>>::new();
        for (tree, ino) in taken.remembered {
            remembered.entry(tree).or_default().push(ino);
        }
        for subvol in used.iter().filter(|subvol| !is_held(&subvol.id)) {
            subvol.evicted.add(remembered.remove(&subvol.id).unwrap_or_default());
            let listed = listed(subvol.id);
            // A call, or a walk over a tree that goes on later, refers to the subvolume: it may read
            // what is not written yet.
            if listed.len() < subvol.users() {
                continue;
            }
            let own: Vec<_> = listed.into_iter().filter(|one| self.inodes.evict_dirty(one)).collect();
            subvol.evicted.add(own.iter().map(|inode| inode.ino).collect());
            own.iter().for_each(&discard);
            dirty.extend(own);
        }
        taken.gone
    }
}

/// An inode of a deleted subvolume that is in no table any more, and that nothing else refers to.
#[derive(Debug)]
pub(crate) struct Taken(Arc<Inode>);

impl Taken {
    pub(crate) fn new(inode: Arc<Inode>) -> Self {
        inode.subvol.unloading.fetch_add(1, Ordering::Relaxed);
        Self(inode)
    }
}

impl Deref for Taken {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        &self.0
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Before the inode is dropped, lest another user is not seen in between.
        self.0.subvol.unloading.fetch_sub(1, Ordering::Release);
    }
}

/// Subvolumes that have lost their names.
#[derive(Debug, Default)]
struct Dead {
    /// All of them since the volume was opened.
    ids: HashSet<TreeId>,
    /// In use yet.
    dying: Vec<Arc<Subvol>>,
    /// Taken out of the table of inodes, and in use by write-back.
    evicted: Vec<Arc<Inode>>,
}

/// Inodes of a deleted subvolume that left memory while front ends remembered them.
#[derive(Debug)]
pub(crate) struct RememberedAfter(Mutex<Vec<ObjectId>>);

impl Default for RememberedAfter {
    fn default() -> Self {
        Self(Mutex::new(LockRank::RememberedAfter, Vec::new()))
    }
}

impl RememberedAfter {
    fn add(&self, more: Vec<ObjectId>) {
        self.0.lock().extend(more);
    }
    pub(crate) fn all(&self) -> Vec<ObjectId> {
        self.0.lock().clone()
    }
}

/// Deleted subvolumes that cannot be dropped yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remaining {
    None,
    /// The users of each become fewer: Linux forgets its inodes.
    BeingEmptied,
    InUse,
}

/// One subvolume.
#[derive(Debug)]
pub struct Subvol {
    pub(crate) id: TreeId,
    pub(crate) tree: Arc<Tree>,
    pub(crate) root_ino: ObjectId,
    pub(crate) read_only: AtomicBool,
    /// Its name is gone: nothing in it changes any more, and it is dropped when nothing in it is in
    /// use.
    pub(crate) dead: AtomicBool,
    /// The next inode number; 0 while it is not known.
    pub(crate) next_ino: AtomicU64,
    /// Users at the last call of [`Self::is_being_emptied`]; 0 before the first.
    pub(crate) seen_users: AtomicUsize,
    /// Of its inodes those that are [`Taken`].
    pub(crate) unloading: AtomicUsize,
    pub(crate) evicted: Arc<RememberedAfter>,
}

impl Subvol {
    /// What has a reference beside the caller, which has one: inodes in memory, those that are
    /// parked, calls. One that is deleted gets no more once it has none.
    fn users(self: &Arc<Self>) -> usize {
        // In this order: one that is freed meanwhile counts as a user.
        let references = Arc::strong_count(self) - 1;
        let users = references.saturating_sub(self.unloading.load(Ordering::Acquire));
        // Pairs with the release of the last other reference.
        fence(Ordering::Acquire);
        users
    }
    /// It is in use, but has fewer users than at the last call: Linux forgets its inodes, and a look
    /// for unused ones among all inodes in memory can wait.
    pub(crate) fn is_being_emptied(self: &Arc<Self>) -> bool {
        let users = self.users();
        let before = self.seen_users.swap(users, Ordering::Relaxed);
        (1..before).contains(&users)
    }
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire) || self.is_dead()
    }
    /// Its name is gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// A number that no inode has had in this transaction: a log would lay the new one over what
    /// the last commit has under that number. Nor has one had it since the first call.
    pub(crate) fn take_ino(&self) -> Result<ObjectId> {
        if self.next_ino.load(Ordering::Acquire) == 0 {
            let last = Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX);
            let used = self.tree.floor_key_ever(&Key::MIN, &last)?;
            let used = used.map_or(ObjectId::FIRST_FREE, |key| key.objectid);
            let next = used.0.max(ObjectId::FIRST_FREE.0) + 1;
            // The first caller is right: later readers may have seen numbers that it gave out, or
            // not.
            let _ = self
                .next_ino
                .compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
        }
        let ino = self.next_ino.fetch_add(1, Ordering::AcqRel);
        if ino >= PLACEHOLDER_INO_BIT {
            self.next_ino.fetch_sub(1, Ordering::AcqRel);
            return Err(Error::Store(StoreError::NoSpace));
        }
        Ok(ObjectId(ino))
    }
}
