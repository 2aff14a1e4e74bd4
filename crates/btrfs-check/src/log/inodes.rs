//! What a log says of inodes, compared with itself and with the subvolume that it belongs to: a
//! replay refuses a log whose names or extents have no inode, or one of the wrong type.

use std::collections::{BTreeMap, BTreeSet};

use btrfs_format::items::InodeItem;
use btrfs_format::view::{dir_entries, fixed, inode_extrefs, inode_refs};
use btrfs_format::{Key, KeyType, ObjectId, TreeId};

use crate::block::Block;
use crate::file_items::ROOT_DIR;
use crate::finding::{FindingId as Id, Site};

use crate::paths::parent_of;
use crate::walk::{Cx, Root, item_site};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// Readers take no number from here on: inode numbers are signed in places.
const INO_END: u64 = 1 << 63;

/// The inodes of one subvolume's log, some 40 bytes each.
#[derive(Default)]
pub(super) struct Inodes {
    /// File types of those that were logged.
    types: BTreeMap<u64, u32>,
    /// Logged without a name: none of their items count.
    nameless: BTreeSet<u64>,
    /// What the subvolume has of those that were asked for.
    below: BTreeMap<u64, Is>,
    /// Where a directory will be: what its references say, and what a directory's entry says.
    parents: BTreeMap<u64, u64>,
    entries: BTreeMap<u64, u64>,
}

/// An inode as replay will find it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Is {
    Absent,
    OfType(u32),
    /// The subvolume could not be read there, which has been said.
    Unknown,
}

impl Inodes {
    pub(super) fn note(&mut self, leaf: &Block) {
        for (key, data) in leaf.items().filter(|(key, _)| key.ty == KeyType::INODE_ITEM) {
            let Some(inode) = fixed::<InodeItem>(data) else {
                continue;
            };
            if inode.nlink.get() == 0 {
                self.nameless.insert(key.objectid.get());
            } else {
                self.types.insert(key.objectid.get(), inode.mode.get() & S_IFMT);
            }
        }
    }

    /// Judges the items of a leaf, when all inodes are noted.
    pub(super) fn judge(&mut self, cx: &mut Cx<'_>, subvolume: &Root, leaf: &Block) {
        for (key, data) in leaf.items() {
            let ino = key.objectid.get();
            if self.nameless.contains(&ino) {
                continue;
            }
            match key.ty {
                KeyType::INODE_ITEM => self.judge_inode(cx, subvolume, leaf, key),
                // The root directory calls itself its parent.
                KeyType::INODE_REF if key.offset == ROOT_DIR && ino == ROOT_DIR => {}
                KeyType::INODE_REF => {
                    for _ in inode_refs(data) {
                        self.judge_name(cx, subvolume, leaf, key, key.offset);
                    }
                }
                KeyType::INODE_EXTREF => {
                    for (head, _) in inode_extrefs(data) {
                        self.judge_name(cx, subvolume, leaf, key, head.parent_objectid.get());
                    }
                }
                KeyType::DIR_INDEX => {
                    self.judge_dir(cx, subvolume, leaf, key, ino);
                    for entry in dir_entries(data) {
                        let target = Key::from(entry.head.location);
                        if target.ty == KeyType::INODE_ITEM {
                            self.judge_entry(cx, subvolume, leaf, key, target.objectid.get());
                        }
                    }
                }
                KeyType::EXTENT_DATA => match self.get(cx, subvolume, ino) {
                    Is::OfType(S_IFREG | S_IFLNK) | Is::Unknown => {}
                    Is::OfType(_) => say(cx, leaf, key, "file extents of what is no file".into()),
                    Is::Absent => say(
                        cx,
                        leaf,
                        key,
                        "the inode exists neither here nor in the subvolume".into(),
                    ),
                },
                _ => {}
            }
        }
    }

    fn judge_inode(&mut self, cx: &mut Cx<'_>, subvolume: &Root, leaf: &Block, key: Key) {
        let ino = key.objectid.get();
        if ino >= INO_END {
            say(cx, leaf, key, "an inode number beyond every limit".into());
        }
        let now = self.types.get(&ino).copied().map(Is::OfType);
        let before = self.get_below(cx, subvolume, ino);
        if matches!(before, Is::OfType(_)) && now.is_some_and(|now| now != before) {
            say(cx, leaf, key, "in the subvolume it is of another file type".into());
        }
    }

    fn judge_name(&mut self, cx: &mut Cx<'_>, subvolume: &Root, leaf: &Block, key: Key, dir: u64) {
        let ino = key.objectid.get();
        if ino == ROOT_DIR {
            return say(cx, leaf, key, format!("the root directory has a name in {dir}"));
        }
        let is = self.get(cx, subvolume, ino);
        if is == Is::Absent {
            let what = "the inode exists neither here nor in the subvolume";
            say(cx, leaf, key, what.into());
        }
        let in_dir = self.judge_dir(cx, subvolume, leaf, key, dir);
        if in_dir && is == Is::OfType(S_IFDIR) && self.parents.insert(ino, dir).is_some() {
            say(cx, leaf, key, "a directory with two names".into());
        }
    }

    /// An entry that leads to an inode.
    fn judge_entry(&mut self, cx: &mut Cx<'_>, subvolume: &Root, leaf: &Block, key: Key, target: u64) {
        if target == ROOT_DIR {
            let what = format!("the root directory has a name in {}", key.objectid);
            return say(cx, leaf, key, what);
        }
        if self.get(cx, subvolume, target) == Is::OfType(S_IFDIR) {
            self.entries.insert(target, key.objectid.get());
        }
    }

    /// False where the directory is none, or does not exist.
    fn judge_dir(&mut self, cx: &mut Cx<'_>, subvolume: &Root, leaf: &Block, key: Key, dir: u64) -> bool {
        match self.get(cx, subvolume, dir) {
            Is::OfType(S_IFDIR) => return true,
            // A directory that does not exist was not logged: replay passes over the name.
            Is::Absent | Is::Unknown => {}
            Is::OfType(_) => say(cx, leaf, key, format!("a name in {dir}, which is no directory")),
        }
        false
    }

    /// No names of the log alone put a directory below itself. Called when all items are judged.
    ///
    /// With names of the subvolume replay may make such a circle: Linux logs the new place of a
    /// directory without that of the directory it moved into.
    pub(super) fn judge_ways_up(&self, cx: &mut Cx<'_>, subvolume: &Root) {
        let mut ends = BTreeSet::from([ROOT_DIR]);
        for &dir in self.parents.keys().chain(self.entries.keys()) {
            // The directories passed, and whether the log has their names.
            let (mut way, mut passed) = (Vec::new(), BTreeSet::new());
            let mut at = dir;
            while !ends.contains(&at) {
                if !passed.insert(at) {
                    let mut circle = way.iter().skip_while(|(dir, _)| *dir != at);
                    if circle.all(|(_, is_logged)| *is_logged) {
                        let site = Site::inode(subvolume.tree, at);
                        cx.sink
                            .add(Id::LogInvalid, site, "the log moves the directory below itself");
                    }
                    break;
                }
                let logged = self.parents.get(&at).copied();
                let below = || parent_of(cx, subvolume, at).map(|(parent, _)| parent);
                let (parent, is_logged) = match (logged, logged.or_else(below)) {
                    (_, None) => (self.entries.get(&at).copied(), true),
                    (logged, parent) => (parent, logged.is_some()),
                };
                way.push((at, is_logged));
                match parent {
                    Some(parent) => at = parent,
                    None => break,
                }
            }
            ends.extend(passed);
        }
    }

    fn get(&mut self, cx: &mut Cx<'_>, subvolume: &Root, ino: u64) -> Is {
        match self.types.get(&ino) {
            Some(ty) => Is::OfType(*ty),
            None => self.get_below(cx, subvolume, ino),
        }
    }

    fn get_below(&mut self, cx: &mut Cx<'_>, subvolume: &Root, ino: u64) -> Is {
        let load = || load_type(cx, subvolume, ino);
        *self.below.entry(ino).or_insert_with(load)
    }
}

fn load_type(cx: &mut Cx<'_>, subvolume: &Root, ino: u64) -> Is {
    let key = Key::new(ObjectId(ino), KeyType::INODE_ITEM, 0);
    let Some(leaf) = cx.lookup_leaf(subvolume, &key) else {
        return Is::Unknown;
    };
    let item = leaf.items().find(|(found, _)| *found == key);
    match item.map(|(_, data)| fixed::<InodeItem>(data)) {
        None => Is::Absent,
        Some(None) => Is::Unknown,
        Some(Some(inode)) => Is::OfType(inode.mode.get() & S_IFMT),
    }
}

/// Reports a fault of one item of the log.
pub(super) fn say(cx: &mut Cx<'_>, leaf: &Block, key: Key, what: String) {
    cx.sink
        .add(Id::LogInvalid, item_site(TreeId::TREE_LOG, leaf, key), what);
}
