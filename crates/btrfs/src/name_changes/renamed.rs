//! Inodes whose names changed in the running transaction.
//!
//! Linux makes more durable than the inode that is synced, and programs rely on it: an fsync of an
//! inode that got or lost a name logs the directories that it is in, with all their changes; and an
//! inode that the log has already is logged again as soon as it gets a name. Here the first is
//! looked up at the fsync, the second is left to the next sync.
//! docs/design/log-tree.md#what-an-fsync-carries-along
//!
//! A commit that stands in for a log ends our transaction, where Linux' goes on. So that an fsync
//! carries as much along behind it, what is noted here stays until the next commit of another kind,
//! and what was in the log counts as logged.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use btrfs_format::{ObjectId, TreeId};

/// Inodes kept for one transaction, some 30 bytes each; beyond it every fsync commits.
pub(crate) const RENAMED_MAX: usize = 1 << 16;

/// Inodes that the log has in an older state, each with the logged directories that it left since.
pub(crate) type Stale = BTreeMap<ObjectId, BTreeSet<ObjectId>>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Renamed {
    inodes: HashSet<(TreeId, ObjectId)>,
    /// Files made without a name, each with the directory that it was made in.
    unnamed: HashMap<(TreeId, ObjectId), ObjectId>,
    /// Subvolumes in which directories were moved.
    moved_dirs: HashSet<TreeId>,
    stale: HashMap<TreeId, Stale>,
    /// New directories in which a logged inode got a name since.
    dirs_of_stale: HashMap<TreeId, BTreeSet<ObjectId>>,
    /// Count as logged, though the tree does not track them: what was in a log, or was synced,
    /// before a commit that stood in for a log; files without a name that were synced; new
    /// directories that were logged for their names.
    were_logged: HashSet<(TreeId, ObjectId)>,
}

impl Renamed {
    /// A name of the inode came or went. False where there are too many to remember.
    #[must_use]
    pub(crate) fn note(&mut self, tree: TreeId, ino: ObjectId) -> bool {
        if self.inodes.len() >= RENAMED_MAX {
            return false;
        }
        self.inodes.insert((tree, ino));
        true
    }

    /// The log has an older state of the inode, and of the directory that it left.
    pub(crate) fn note_stale(&mut self, tree: TreeId, ino: ObjectId, left: Option<ObjectId>) {
        let dirs = self.stale.entry(tree).or_default().entry(ino).or_default();
        dirs.extend(left);
    }

    /// A file was made without a name.
    pub(crate) fn note_unnamed(&mut self, tree: TreeId, ino: ObjectId, dir: ObjectId) {
        if self.unnamed.len() < RENAMED_MAX {
            self.unnamed.insert((tree, ino), dir);
        }
    }

    /// Where a file was made without a name.
    pub(crate) fn dir_of_unnamed(&self, tree: TreeId, ino: ObjectId) -> Option<ObjectId> {
        self.unnamed.get(&(tree, ino)).copied()
    }

    /// A directory has another place.
    pub(crate) fn note_moved_dir(&mut self, tree: TreeId) {
        self.moved_dirs.insert(tree);
    }

    pub(crate) fn has_moved_dirs(&self, tree: TreeId) -> bool {
        self.moved_dirs.contains(&tree)
    }

    /// A name of the inode came or went since the commit.
    pub(crate) fn contains(&self, tree: TreeId, ino: ObjectId) -> bool {
        self.inodes.contains(&(tree, ino))
    }

    /// Takes the inodes of a subvolume that the log has in an older state: the caller logs them.
    pub(crate) fn take_stale(&mut self, tree: TreeId) -> Stale {
        self.stale.remove(&tree).unwrap_or_default()
    }

    /// An inode that the log has got a name in the new directory, which counts as logged, too.
    pub(crate) fn note_dir_of_stale(&mut self, tree: TreeId, dir: ObjectId) {
        self.dirs_of_stale.entry(tree).or_default().insert(dir);
        self.note_logged(tree, dir);
    }

    /// Takes the directories of a subvolume in which inodes got names that the log has in an older
    /// state.
    pub(crate) fn take_dirs_of_stale(&mut self, tree: TreeId) -> BTreeSet<ObjectId> {
        self.dirs_of_stale.remove(&tree).unwrap_or_default()
    }

    /// The inode counts as logged from now on.
    pub(crate) fn note_logged(&mut self, tree: TreeId, ino: ObjectId) {
        if self.were_logged.len() < RENAMED_MAX {
            self.were_logged.insert((tree, ino));
        }
    }

    /// The inode counts as logged.
    pub(crate) fn was_logged(&self, tree: TreeId, ino: ObjectId) -> bool {
        self.were_logged.contains(&(tree, ino))
    }

    /// A commit stands in for a log that would have had these objects, and perhaps all whose names
    /// changed.
    pub(crate) fn committed_instead(&mut self, tree: TreeId, objects: impl IntoIterator<Item = ObjectId>) {
        let room = RENAMED_MAX.saturating_sub(self.were_logged.len());
        let renamed = self.inodes.iter().filter(|(of, _)| *of == tree).copied();
        let objects = objects.into_iter().map(|ino| (tree, ino));
        self.were_logged.extend(objects.chain(renamed).take(room));
    }

    /// A commit made all names durable.
    pub(crate) fn committed(&mut self) {
        self.stale.clear();
        self.dirs_of_stale.clear();
    }

    /// A commit of another kind: nothing that was logged before counts.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
