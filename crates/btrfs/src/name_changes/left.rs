//! Names that inodes lost in the running transaction and live on without.
//!
//! Replay gives a name to the inode that the log names, and takes it from the inode that has it in
//! the committed tree or got it from the log before. That inode must be in the log with its other
//! names: otherwise it is deleted. Only inodes noted here can be in that place. An inode that still
//! holds the name is the only one logged with it, and an inode without names may be deleted. Replay
//! deletes it by one name alone, though: an inode that lost others before its last one is noted
//! with that one, too.

use std::collections::{HashMap, HashSet};

use btrfs_format::{ObjectId, TreeId};

/// Names kept for one transaction; beyond it the next fsync commits. About 100 bytes each.
const LEFT_NAMES_MAX: usize = 1 << 16;

/// The inodes that had a name, oldest first.
type ByName = HashMap<Box<[u8]>, Vec<ObjectId>>;

/// By subvolume and directory, then by name.
#[derive(Debug, Default)]
pub(crate) struct LeftNames {
    dirs: HashMap<(TreeId, ObjectId), ByName>,
    count: usize,
    /// All that were noted, until the commit.
    losers: HashSet<(TreeId, ObjectId)>,
}

impl LeftNames {
    /// False where there are too many to remember.
    #[must_use]
    pub(crate) fn note(&mut self, tree: TreeId, dir: ObjectId, name: &[u8], ino: ObjectId) -> bool {
        if self.count >= LEFT_NAMES_MAX || self.losers.len() >= LEFT_NAMES_MAX {
            return false;
        }
        self.count += 1;
        self.losers.insert((tree, ino));
        let names = self.dirs.entry((tree, dir)).or_default();
        names.entry(name.into()).or_default().push(ino);
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
    pub(crate) fn has_lost(&self, tree: TreeId, ino: ObjectId) -> bool {
        self.losers.contains(&(tree, ino))
    }
    pub(crate) fn has_left(&self, tree: TreeId, dir: ObjectId) -> bool {
        self.dirs.contains_key(&(tree, dir))
    }

    /// The inodes that had a name.
    pub(crate) fn previous_holders(&self, tree: TreeId, dir: ObjectId, name: &[u8]) -> Vec<ObjectId> {
        let names = self.dirs.get(&(tree, dir));
        names.and_then(|names| names.get(name)).cloned().unwrap_or_default()
    }

    /// Takes the inodes that had a name: the caller logs them.
    pub(crate) fn take(&mut self, tree: TreeId, dir: ObjectId, name: &[u8]) -> Vec<ObjectId> {
        let Some(names) = self.dirs.get_mut(&(tree, dir)) else {
            return Vec::new();
        };
        let found = names.remove(name).unwrap_or_default();
        if names.is_empty() {
            self.dirs.remove(&(tree, dir));
        }
        self.count -= found.len();
        found
    }

    /// Takes all inodes that left a directory, in order: the caller logs them.
    pub(crate) fn take_dir(&mut self, tree: TreeId, dir: ObjectId) -> Vec<ObjectId> {
        let names = self.dirs.remove(&(tree, dir)).unwrap_or_default();
        let mut all: Vec<_> = names.into_values().flatten().collect();
        self.count -= all.len();
        all.sort_unstable();
        all.dedup();
        all
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
