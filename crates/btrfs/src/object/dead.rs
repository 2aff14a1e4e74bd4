//! Deleted subvolumes: what keeps each in use, and which can be dropped. See "Deleting" in
//! docs/design/subvolumes.md.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use btrfs_format::{ObjectId, TreeId};
use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::Mutex;
use cowshed_vfs::Held;

use super::inode::Inode;
use super::subvol::{Objects, Subvol};

/// Subvolumes that have lost their names.
#[derive(Debug, Default)]
pub(super) struct Dead {
    /// All of them since the volume was opened.
    ids: HashSet<TreeId>,
    /// In use yet.
    dying: Vec<Arc<Subvol>>,
    /// Calls of `take_unused` whose result is not queued yet: `dying` lacks those subvolumes
    /// meanwhile.
    looks: u32,
    /// Inodes that were taken out of the table, and are in use by write-back.
    busy: Vec<Arc<Inode>>,
}

/// Deleted subvolumes that cannot be dropped yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remaining {
    None,
    /// The users of each become fewer: Linux forgets its inodes.
    BeingEmptied,
    InUse,
}

impl Objects {
    /// A subvolume has lost its name: it is not found any more, and is dropped once it is unused.
    pub(crate) fn forget_subvolume(&self, subvol: &Arc<Subvol>) {
        let mut dead = self.dead.lock();
        dead.ids.insert(subvol.id);
        dead.dying.push(subvol.clone());
        self.subvols.write().remove(&subvol.id);
    }

    /// Some that were deleted are in use, or were not looked at yet.
    pub(crate) fn has_dying(&self) -> bool {
        let dead = self.dead.lock();
        !dead.dying.is_empty() || dead.looks > 0
    }

    /// Those that [`Objects::take_unused`] returned are queued.
    pub(crate) fn end_look(&self) {
        self.dead.lock().looks -= 1;
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
    /// `listed` gives the inodes of one that have dirty data, `discard` drops that of one. When the
    /// caller has queued them, it calls [`Objects::end_look`].
    pub(crate) fn take_unused(
        &self,
        listed: impl Fn(TreeId) -> Vec<Arc<Inode>>,
        discard: impl Fn(&Arc<Inode>),
    ) -> (Vec<TreeId>, Remaining, Vec<Taken>) {
        let (all, busy) = {
            let mut dead = self.dead.lock();
            dead.looks += 1;
            (std::mem::take(&mut dead.dying), std::mem::take(&mut dead.busy))
        };
        let (emptied, stopped): (Vec<_>, Vec<_>) = all.into_iter().partition(|subvol| subvol.is_being_emptied());
        let used: Vec<_> = stopped.iter().filter(|subvol| subvol.users() > 0).collect();
        let mut dirty = busy;
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
        dead.busy.extend(busy);
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
        for subvol in used.iter().filter(|subvol| !is_held(&subvol.id)) {
            let listed = listed(subvol.id);
            // A call, or a walk over a tree that goes on later, refers to the subvolume: it may
            // read what is not written yet.
            if listed.len() < subvol.users() {
                continue;
            }
            let own: Vec<_> = listed.into_iter().filter(|one| self.inodes.evict_dirty(one)).collect();
            own.iter().for_each(&discard);
            dirty.extend(own);
        }
        taken
    }
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
    /// It is in use, but has fewer users than at the last call: Linux forgets its inodes, and a
    /// look for unused ones among all inodes in memory can wait.
    pub(crate) fn is_being_emptied(self: &Arc<Self>) -> bool {
        let users = self.users();
        let before = self.seen_users.swap(users, Ordering::Relaxed);
        (1..before).contains(&users)
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

/// Inodes of a deleted subvolume that left memory while front ends remembered them.
#[derive(Debug)]
pub(crate) struct RememberedAfter(Mutex<Vec<ObjectId>>);

impl Default for RememberedAfter {
    fn default() -> Self {
        Self(Mutex::new(LockRank::RememberedAfter, Vec::new()))
    }
}

impl RememberedAfter {
    pub(super) fn add(&self, ino: ObjectId) {
        self.0.lock().push(ino);
    }
    pub(crate) fn all(&self) -> Vec<ObjectId> {
        self.0.lock().clone()
    }
}
