//! Inodes whose names changed in the running transaction.
//!
//! Linux makes more durable than the inode that is synced, and programs rely on it: an fsync of an inode that got or lost
//! a name logs the directories that it is in, with all their changes; and an inode that the log has already is logged again
//! as soon as it gets a name. Here the first is looked up at the fsync, the second is left to the next sync.
//! docs/design/log-tree.md#what-an-fsync-carries-along
//!
//! A commit that stands in for a log ends our transaction, where Linux' goes on. So that an fsync carries as much along
//! behind it, what is noted here stays until the next commit of another kind, and what was in the log counts as logged.

use std::collections::{BTreeSet, HashMap, HashSet};

use btrfs_format::{ObjectId, TreeId};

/// Inodes kept for one transaction, some 30 bytes each; beyond it every fsync commits.
pub(super) const RENAMED_MAX: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Renamed {
    inodes: HashSet<(TreeId, ObjectId)>,
    /// Logged as they were before their last name change.
    stale: HashMap<TreeId, BTreeSet<ObjectId>>,
    /// Were in a log, or were synced, before a commit that stood in for a log.
    were_logged: HashSet<(TreeId, ObjectId)>,
}

impl Renamed {
    /// A name of the inode came or went. False where there are too many to remember.
    #[must_use]
    pub fn note(&mut self, tree: TreeId, ino: ObjectId) -> bool {
        if self.inodes.len() >= RENAMED_MAX {
            return false;
        }
        self.inodes.insert((tree, ino));
        true
    }

    /// The log has an older state of the inode.
    pub fn note_stale(&mut self, tree: TreeId, ino: ObjectId) {
        self.stale.entry(tree).or_default().insert(ino);
    }

    /// A name of the inode came or went since the commit.
    pub fn contains(&self, tree: TreeId, ino: ObjectId) -> bool {
        self.inodes.contains(&(tree, ino))
    }

    /// Takes the inodes of a subvolume that the log has in an older state: the caller logs them.
    pub fn take_stale(&mut self, tree: TreeId) -> BTreeSet<ObjectId> {
        self.stale.remove(&tree).unwrap_or_default()
    }

    /// The object was in a log when a commit stood in for the next one.
    pub fn was_logged(&self, tree: TreeId, ino: ObjectId) -> bool {
        self.were_logged.contains(&(tree, ino))
    }

    /// A commit stands in for a log that would have had these objects, and perhaps all whose names changed.
    pub fn committed_instead(&mut self, tree: TreeId, objects: impl IntoIterator<Item = ObjectId>) {
        let room = RENAMED_MAX.saturating_sub(self.were_logged.len());
        let renamed = self.inodes.iter().filter(|(of, _)| *of == tree).copied();
        let objects = objects.into_iter().map(|ino| (tree, ino));
        self.were_logged.extend(objects.chain(renamed).take(room));
    }

    /// A commit made all names durable.
    pub fn committed(&mut self) {
        self.stale.clear();
    }

    /// A commit of another kind: nothing that was logged before counts.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
