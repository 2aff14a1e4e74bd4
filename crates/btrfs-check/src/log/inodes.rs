//! What a log says of inodes, compared with itself and with the subvolume that it belongs to: a replay refuses a log whose
//! names or extents have no inode, or one of the wrong type.

use std::collections::{BTreeMap, BTreeSet};

use btrfs_format::items::InodeItem;
use btrfs_format::view::{fixed, inode_extrefs};
use btrfs_format::{Key, KeyType, ObjectId};

use super::say;
use crate::block::Block;
use crate::walk::{Cx, Root};

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
                KeyType::INODE_REF if key.offset != ino => {
                    self.judge_name(cx, subvolume, leaf, key, key.offset);
                }
                KeyType::INODE_EXTREF => {
                    for (head, _) in inode_extrefs(data) {
                        self.judge_name(cx, subvolume, leaf, key, head.parent_objectid.get());
                    }
                }
                KeyType::DIR_INDEX => self.judge_dir(cx, subvolume, leaf, key, ino),
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
        if self.get(cx, subvolume, key.objectid.get()) == Is::Absent {
            let what = "the inode exists neither here nor in the subvolume";
            say(cx, leaf, key, what.into());
        }
        self.judge_dir(cx, subvolume, leaf, key, dir);
    }

    fn judge_dir(&mut self, cx: &mut Cx<'_>, subvolume: &Root, leaf: &Block, key: Key, dir: u64) {
        match self.get(cx, subvolume, dir) {
            // A directory that does not exist was not logged: replay passes over the name.
            Is::OfType(S_IFDIR) | Is::Absent | Is::Unknown => {}
            Is::OfType(_) => say(cx, leaf, key, format!("a name in {dir}, which is no directory")),
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
