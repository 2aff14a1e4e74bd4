//! Names that came and went in the running transaction: what operations on names tell, and what a
//! log has to know.
//!
//! Passive state of the fsync log, below the operations, which note what they do inside their
//! joins. The log takes it while operations are kept out.

mod left;
mod renamed;

use std::sync::atomic::{AtomicBool, Ordering};

use btrfs_format::items::InodeItem;
use btrfs_format::{ObjectId, view};
use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::{Mutex, MutexGuard};

pub(crate) use left::LeftNames;
pub(crate) use renamed::{RENAMED_MAX, Renamed};

use crate::object::Inode;

/// See the module.
#[derive(Debug)]
pub(crate) struct NameChanges {
    left: Mutex<LeftNames>,
    renamed: Mutex<Renamed>,
    /// The commit under way stands in for a log.
    stands_in: AtomicBool,
    /// Something happened in the running transaction that logs cannot say.
    is_off: AtomicBool,
}

impl Default for NameChanges {
    fn default() -> Self {
        Self {
            left: Mutex::new(LockRank::NamesLeft, LeftNames::default()),
            renamed: Mutex::new(LockRank::NamesRenamed, Renamed::default()),
            stands_in: AtomicBool::new(false),
            is_off: AtomicBool::new(false),
        }
    }
}

impl NameChanges {
    /// An inode that lives on loses a name. Called by the operation that takes it, inside its join.
    pub(crate) fn left(&self, dir: &Inode, name: &[u8], inode: &Inode) {
        if inode.is_placeholder() {
            return self.turn_off();
        }
        if !self.left.lock().note(dir.tree.id(), dir.ino, name, inode.ino) {
            self.turn_off();
        }
        self.note_renamed(inode, None, None, &[]);
    }

    /// An inode has one more name, or another one; it had one in `from` before, if that is given.
    /// Called as [`NameChanges::left`].
    pub(crate) fn added(&self, inode: &Inode, (dir, name): (&Inode, &[u8]), from: Option<&Inode>) {
        if inode.is_placeholder() {
            return;
        }
        let before = self.left.lock().previous_holders(dir.tree.id(), dir.ino, name);
        self.note_renamed(inode, from, Some(dir), &before);
    }

    /// A file was made without a name in `dir`. Called as [`NameChanges::left`].
    pub(crate) fn made_without_name(&self, dir: &Inode, inode: &Inode) {
        let mut renamed = self.renamed.lock();
        renamed.note_unnamed(inode.tree.id(), inode.ino, dir.ino);
    }

    /// See [`renamed`]. Where the inode is logged again, so are those that had its new name
    /// `before`.
    fn note_renamed(&self, inode: &Inode, from: Option<&Inode>, to: Option<&Inode>, before: &[ObjectId]) {
        let mut renamed = self.renamed.lock();
        let is_logged = |renamed: &Renamed, inode: &Inode| {
            inode.tree.is_tracked(inode.ino) || renamed.was_logged(inode.tree.id(), inode.ino)
        };
        let left = from.filter(|from| is_logged(&renamed, from)).map(|from| from.ino);
        if left.is_some() || is_logged(&renamed, inode) {
            for ino in before {
                renamed.note_stale(inode.tree.id(), *ino, None);
            }
            renamed.note_stale(inode.tree.id(), inode.ino, left);
            if let Some(to) = to.filter(|to| !is_logged(&renamed, to) && is_new_in_transaction(to)) {
                renamed.note_dir_of_stale(to.tree.id(), to.ino);
            }
            if !is_new_in_transaction(inode) {
                // They come along with it.
                for dir in [from, to].into_iter().flatten() {
                    renamed.note_logged(dir.tree.id(), dir.ino);
                }
            }
        }
        if inode.is_dir() && from.is_some() {
            renamed.note_moved_dir(inode.tree.id());
        }
        if !renamed.note(inode.tree.id(), inode.ino) {
            self.turn_off();
        }
    }

    /// An inode loses its last name. As [`NameChanges::left`].
    pub(crate) fn removed(&self, dir: &Inode, name: &[u8], inode: &Inode) {
        let mut left = self.left.lock();
        let (tree, ino) = (inode.tree.id(), inode.ino);
        // Replaying the removal of a directory removes all that the committed tree has in it: what
        // moved out of it since would go, too.
        let is_left = inode.is_dir() && left.has_left(tree, ino);
        let is_noted = !left.has_lost(tree, ino) || left.note(dir.tree.id(), dir.ino, name, ino);
        if inode.is_placeholder() || is_left || !is_noted {
            self.turn_off();
        }
    }

    /// Names come and go. Called as [`NameChanges::left`].
    ///
    /// Replay adds the names of a log to what the commit has, which may be more than there was at
    /// any time: in the item of names that share a hash it must not be more than a leaf holds. Such
    /// an item of the commit that did not change is none of our concern; one that changed and never
    /// was longer than half a leaf fits twice.
    pub(crate) fn changed(&self, is_crowded: bool) {
        if is_crowded {
            self.turn_off();
        }
    }

    /// Until the next commit, every fsync commits.
    pub(crate) fn turn_off(&self) {
        self.is_off.store(true, Ordering::Release);
    }

    /// Every fsync commits, until the next commit.
    pub(crate) fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Acquire)
    }

    /// The names that went, and the inodes whose names changed. Operations are kept out.
    pub(crate) fn take(&self) -> (MutexGuard<'_, LeftNames>, MutexGuard<'_, Renamed>) {
        (self.left.lock(), self.renamed.lock())
    }

    /// A commit that stands in for a log begins, or ends.
    pub(crate) fn set_stands_in(&self, stands_in: bool) {
        self.stands_in.store(stands_in, Ordering::Release);
    }

    /// The running transaction ends. Operations are kept out.
    pub(crate) fn frozen(&self) {
        let (mut left, mut renamed) = self.take();
        left.clear();
        match self.stands_in.load(Ordering::Acquire) {
            true => renamed.committed(),
            false => renamed.clear(),
        }
        self.is_off.store(false, Ordering::Release);
    }
}

/// The running transaction has made the inode, which changed in it.
fn is_new_in_transaction(inode: &Inode) -> bool {
    let item = inode.tree.pending_edit(&inode.key()).flatten();
    item.is_some_and(|item| view::fixed::<InodeItem>(&item).is_some_and(|item| item.generation == item.transid))
}
