//! The closer look at names: for inodes whose directory items, indices and references do not
//! balance, which of them is missing. Each is looked up by its key; nothing is kept.

use std::collections::BTreeSet;

use btrfs_format::hash::{extref_hash, name_hash};
use btrfs_format::items::InodeItem;
use btrfs_format::view::{DirEntry, dir_entries, fixed, inode_extrefs, inode_refs};
use btrfs_format::{Key, KeyType, ObjectId};

use crate::file_items::type_of_mode;
use crate::finding::{FindingId as Id, Site};
use crate::util::count;
use crate::walk::{Cx, Root};

/// How many names of a tree are looked up.
const LOOKUPS_MAX: u64 = 100_000;

/// A name, said from one side.
struct Name<'n> {
    dir: u64,
    target: u64,
    name: &'n [u8],
}

/// Looks up all names that touch the inodes in `watch`.
pub(crate) fn check(cx: &mut Cx<'_>, root: &Root, watch: &BTreeSet<u64>) {
    let mut look = Look {
        root,
        left: LOOKUPS_MAX,
        said: BTreeSet::new(),
    };
    cx.walk_quietly(root, &mut |cx, leaf| {
        for (key, data) in leaf.items() {
            let ino = key.objectid.get();
            match key.ty {
                KeyType::DIR_ITEM | KeyType::DIR_INDEX => {
                    for entry in dir_entries(data) {
                        let at = Key::from(entry.head.location);
                        if watch.contains(&ino) || (at.ty == KeyType::INODE_ITEM && watch.contains(&at.objectid.get()))
                        {
                            look.entry(cx, key, &entry);
                        }
                    }
                }
                KeyType::INODE_REF if watch.contains(&ino) => {
                    for (index, name) in inode_refs(data) {
                        look.reference(cx, ino, key.offset, index, name);
                    }
                }
                KeyType::INODE_EXTREF if watch.contains(&ino) => {
                    for (head, name) in inode_extrefs(data) {
                        look.reference(cx, ino, head.parent_objectid.get(), head.index.get(), name);
                    }
                }
                _ => {}
            }
        }
    });
    for ino in watch {
        if !look.said.contains(ino) {
            let site = Site::inode(root.tree, *ino);
            cx.sink.add(
                Id::DirNames,
                site,
                "directory items, indices and references do not agree",
            );
        }
    }
}

struct Look<'r> {
    root: &'r Root,
    left: u64,
    said: BTreeSet<u64>,
}

impl Look<'_> {
    fn say(&mut self, cx: &mut Cx<'_>, id: Id, name: &Name<'_>, what: &str) {
        self.said.insert(name.dir);
        self.said.insert(name.target);
        let site = Site::inode(self.root.tree, name.target);
        let text = String::from_utf8_lossy(name.name);
        cx.sink
            .add(id, site, format!("{text:?} in directory {}: {what}", name.dir));
    }

    fn lookup(&mut self, cx: &mut Cx<'_>, objectid: u64, ty: KeyType, offset: u64) -> Option<Vec<u8>> {
        cx.lookup(self.root, &Key::new(ObjectId(objectid), ty, offset))
    }

    fn spend(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }

    /// The index that the inode's references state for a name.
    fn index_of(&mut self, cx: &mut Cx<'_>, name: &Name<'_>) -> Vec<u64> {
        let mut found = Vec::new();
        if let Some(data) = self.lookup(cx, name.target, KeyType::INODE_REF, name.dir) {
            found.extend(
                inode_refs(&data)
                    .filter(|(_, n)| *n == name.name)
                    .map(|(index, _)| index),
            );
        }
        let hash = extref_hash(ObjectId(name.dir), name.name);
        if let Some(data) = self.lookup(cx, name.target, KeyType::INODE_EXTREF, hash) {
            let same = |(head, n): &(&btrfs_format::items::InodeExtref, &[u8])| {
                head.parent_objectid.get() == name.dir && *n == name.name
            };
            found.extend(inode_extrefs(&data).filter(same).map(|(head, _)| head.index.get()));
        }
        found
    }

    /// The entry's type, if an item under the key holds the same name and place.
    fn same_entry(&mut self, cx: &mut Cx<'_>, ty: KeyType, offset: u64, name: &Name<'_>, at: Key) -> Option<u8> {
        let data = self.lookup(cx, name.dir, ty, offset)?;
        dir_entries(&data)
            .find(|e| e.name == name.name && Key::from(e.head.location) == at)
            .map(|e| e.head.ty)
    }

    /// One directory item or index.
    fn entry(&mut self, cx: &mut Cx<'_>, key: Key, entry: &DirEntry<'_>) {
        if !self.spend() {
            return;
        }
        let at = Key::from(entry.head.location);
        let name = Name {
            dir: key.objectid.get(),
            target: at.objectid.get(),
            name: entry.name,
        };
        let is_index = key.ty == KeyType::DIR_INDEX;
        if is_index {
            match self.same_entry(cx, KeyType::DIR_ITEM, name_hash(entry.name), &name, at) {
                None => self.say(cx, Id::DirItemMissing, &name, "an index without a directory item"),
                Some(ty) if ty != entry.head.ty => {
                    self.say(cx, Id::DirEntryType, &name, "directory item and index differ in type");
                }
                Some(_) => {}
            }
        }
        if at.ty != KeyType::INODE_ITEM {
            if !is_index && !self.has_index_by_scan(cx, &name, at) {
                self.say(cx, Id::DirIndexMissing, &name, "a directory item without an index");
            }
            return;
        }
        let inode = self.lookup(cx, name.target, KeyType::INODE_ITEM, 0);
        let Some(inode) = inode.as_deref().and_then(|data| fixed::<InodeItem>(data)) else {
            self.say(cx, Id::DirEntryDangling, &name, "the inode does not exist");
            return;
        };
        if type_of_mode(inode.mode.get()) != entry.head.ty {
            let what = format!("type {}, but the inode has mode {:o}", entry.head.ty, inode.mode);
            self.say(cx, Id::DirEntryType, &name, &what);
        }
        let stated = self.index_of(cx, &name);
        if stated.is_empty() {
            self.say(
                cx,
                Id::InodeRefMissing,
                &name,
                "the inode has no reference to this name",
            );
        } else if is_index && !stated.contains(&key.offset) {
            let what = format!("the inode's reference states index {stated:?}, not {}", key.offset);
            self.say(cx, Id::InodeRefMissing, &name, &what);
        } else if !is_index {
            let mut found = false;
            for index in stated {
                found |= self.same_entry(cx, KeyType::DIR_INDEX, index, &name, at).is_some();
            }
            if !found {
                self.say(cx, Id::DirIndexMissing, &name, "a directory item without an index");
            }
        }
    }

    /// Subvolumes state their index in the root tree; here the directory is searched instead.
    fn has_index_by_scan(&mut self, cx: &mut Cx<'_>, name: &Name<'_>, at: Key) -> bool {
        let mut next = Some(Key::new(ObjectId(name.dir), KeyType::DIR_INDEX, 0));
        let mut leaves = 0u64;
        while let Some(key) = next.take().filter(|_| leaves < count(1 << 10)) {
            leaves = leaves.saturating_add(1);
            let Some(leaf) = cx.lookup_leaf(self.root, &key) else {
                return false;
            };
            for (found, data) in leaf.items() {
                if found.objectid.get() != name.dir || found.ty != KeyType::DIR_INDEX {
                    continue;
                }
                if dir_entries(data).any(|e| e.name == name.name && Key::from(e.head.location) == at) {
                    return true;
                }
                next = found.next();
            }
            // The same leaf again, or one without indices: the directory ends here.
            if next.is_none_or(|next| next <= key) {
                return false;
            }
        }
        false
    }

    /// One reference of an inode.
    fn reference(&mut self, cx: &mut Cx<'_>, ino: u64, dir: u64, index: u64, bytes: &[u8]) {
        if !self.spend() || (ino == dir && ino == ObjectId::FIRST_FREE.get()) {
            return;
        }
        let name = Name {
            dir,
            target: ino,
            name: bytes,
        };
        let at = Key::new(ObjectId(ino), KeyType::INODE_ITEM, 0);
        let item = self
            .same_entry(cx, KeyType::DIR_ITEM, name_hash(bytes), &name, at)
            .is_some();
        let in_index = self.same_entry(cx, KeyType::DIR_INDEX, index, &name, at).is_some();
        match (item, in_index) {
            (true, true) => {}
            (false, false) => self.say(
                cx,
                Id::InodeRefStale,
                &name,
                "the directory has neither item nor index of this name",
            ),
            (false, true) => self.say(cx, Id::DirItemMissing, &name, "an index without a directory item"),
            (true, false) => self.say(cx, Id::DirIndexMissing, &name, "a directory item without an index"),
        }
    }
}
