//! Which inodes differ between two trees, and which of their names.

use std::collections::BTreeSet;
use std::mem;
use std::ops::ControlFlow;

use btrfs_format::items::{FileExtent, InodeItem};
use btrfs_format::view::{self, FileExtentView, file_extent};
use btrfs_format::{Key, KeyType, ObjectId};
use btrfs_store::tree::compare::{Difference, compare};
use btrfs_store::tree::{Item, Tree};
use cowshed_vfs::FileKind;

use crate::error::Result;

/// Is told of extents on disk that differing items name.
pub(crate) trait Extents {
    /// One came into a file that did not have it.
    fn came(&mut self, addr: u64) {
        let _ = addr;
    }
    /// An item of the old tree, at `pos` of a file, names it.
    fn had(&mut self, ino: ObjectId, pos: u64, extent: &FileExtent) {
        let _ = (ino, pos, extent);
    }
}

impl Extents for () {}

/// A name of an inode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(crate) dir: ObjectId,
    pub(crate) name: Vec<u8>,
}

/// What is kept in memory of an inode: there may be millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) generation: u64,
    pub(crate) mode: u32,
}

impl Short {
    /// `None` for an inode without a name: it is deleted and was in use.
    fn of(item: &InodeItem) -> Option<Short> {
        (item.nlink.get() > 0).then(|| Short {
            generation: item.generation.get(),
            mode: item.mode.get(),
        })
    }

    fn is_same_inode(self, other: Short) -> bool {
        self.generation == other.generation && self.kind() == other.kind()
    }

    pub(crate) fn kind(self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }
}

/// An inode that differs.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) ino: ObjectId,
    /// In the old tree.
    pub(crate) old: Option<Short>,
    /// In the new one.
    pub(crate) new: Option<Short>,
    /// Names that only the old tree has. Empty where the inode is not in both.
    pub(crate) removed: Vec<Name>,
    /// Names that only the new tree has. Empty where the inode is not in both.
    pub(crate) added: Vec<Name>,
    /// Extended attributes differ.
    pub(crate) has_xattrs: bool,
    /// Extents differ.
    pub(crate) has_extents: bool,
}

impl Changed {
    pub(crate) fn is_dir(&self) -> bool {
        let kind = self.new.or(self.old).and_then(Short::kind);
        kind == Some(FileKind::Directory)
    }

    /// It is only in the new tree.
    pub(crate) fn is_made(&self) -> bool {
        self.old.is_none()
    }
}

/// Collects the inodes that differ, by number. One that is another inode of the same number is in
/// the list twice: as deleted, and as made. Extents that come and go are told to `extents`.
pub(crate) fn collect(old: Option<&Tree>, new: &Tree, extents: &mut impl Extents) -> Result<Vec<Changed>> {
    let range = (
        Key::new(ObjectId::FIRST_FREE, KeyType(0), 0),
        Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX),
    );
    let mut all = Vec::new();
    let mut group = Group::default();
    let _: ControlFlow<()> = compare(old, new, range, |found| {
        if found.key.objectid != group.ino {
            mem::take(&mut group).finish(old, new, extents, &mut all)?;
            group.ino = found.key.objectid;
        }
        group.add(&found, extents);
        Ok::<_, crate::error::Error>(ControlFlow::Continue(()))
    })?;
    group.finish(old, new, extents, &mut all)?;
    Ok(all)
}

/// The differences of one inode.
#[derive(Default)]
struct Group {
    /// 0: of none.
    ino: ObjectId,
    /// The inode item differs.
    has_item: bool,
    old_names: BTreeSet<Name>,
    new_names: BTreeSet<Name>,
    has_xattrs: bool,
    has_extents: bool,
    /// Addresses of extents that its old items name.
    had: BTreeSet<u64>,
    /// Addresses of extents that its new items name.
    came: BTreeSet<u64>,
}

impl Group {
    fn add(&mut self, found: &Difference, extents: &mut impl Extents) {
        match found.key.ty {
            KeyType::INODE_ITEM => self.has_item = true,
            KeyType::INODE_REF | KeyType::INODE_EXTREF => {
                for (item, names) in [(&found.old, &mut self.old_names), (&found.new, &mut self.new_names)] {
                    if let Some(item) = item {
                        names.extend(names_in(&found.key, item));
                    }
                }
            }
            KeyType::XATTR_ITEM => self.has_xattrs = true,
            KeyType::EXTENT_DATA => {
                self.has_extents = true;
                self.came
                    .extend(found.new.as_ref().and_then(extent_of).map(|e| e.disk_bytenr.get()));
                if let Some(extent) = found.old.as_ref().and_then(extent_of) {
                    self.had.insert(extent.disk_bytenr.get());
                    extents.had(self.ino, found.key.offset, &extent);
                }
            }
            _ => {}
        }
    }

    fn finish(self, old: Option<&Tree>, new: &Tree, extents: &mut impl Extents, all: &mut Vec<Changed>) -> Result<()> {
        for addr in self.came.difference(&self.had) {
            extents.came(*addr);
        }
        let names = !(self.old_names.is_empty() && self.new_names.is_empty());
        if !(self.has_item || names || self.has_xattrs || self.has_extents) {
            return Ok(());
        }
        let old = match old {
            Some(old) => inode(old, self.ino)?.and_then(|item| Short::of(&item)),
            None => None,
        };
        let new = inode(new, self.ino)?.and_then(|item| Short::of(&item));
        let changed = |old, new| Changed {
            ino: self.ino,
            old,
            new,
            removed: Vec::new(),
            added: Vec::new(),
            has_xattrs: self.has_xattrs,
            has_extents: self.has_extents,
        };
        match (old, new) {
            (None, None) => {}
            (Some(a), Some(b)) if a.is_same_inode(b) || self.ino == ObjectId::FIRST_FREE => all.push(Changed {
                removed: self.old_names.difference(&self.new_names).cloned().collect(),
                added: self.new_names.difference(&self.old_names).cloned().collect(),
                ..changed(old, new)
            }),
            (Some(_), Some(_)) => {
                all.push(changed(old, None));
                // Whatever is the same in both is new in this one.
                all.push(Changed {
                    has_xattrs: true,
                    has_extents: true,
                    ..changed(None, new)
                });
            }
            (old, new) => all.push(changed(old, new)),
        }
        Ok(())
    }
}

/// An item that names an extent on disk, written or not; `None` for holes and inline data.
fn extent_of(item: &Item) -> Option<FileExtent> {
    match file_extent(item)? {
        FileExtentView::Inline { .. } => None,
        FileExtentView::Regular(extent) => Some(*extent).filter(|extent| extent.disk_bytenr.get() != 0),
    }
}

/// The item of an inode; `None` where there is none.
pub(crate) fn inode(tree: &Tree, ino: ObjectId) -> Result<Option<InodeItem>> {
    let item = tree.get(&Key::new(ino, KeyType::INODE_ITEM, 0))?;
    Ok(item.and_then(|item| view::fixed::<InodeItem>(&item).copied()))
}

fn names_in(key: &Key, item: &[u8]) -> Vec<Name> {
    match key.ty {
        KeyType::INODE_REF => view::inode_refs(item)
            .map(|(_, name)| Name {
                dir: ObjectId(key.offset),
                name: name.to_vec(),
            })
            .collect(),
        KeyType::INODE_EXTREF => view::inode_extrefs(item)
            .map(|(head, name)| Name {
                dir: ObjectId(head.parent_objectid.get()),
                name: name.to_vec(),
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// All names of an inode, in the order of its items.
pub(crate) fn names(tree: &Tree, ino: ObjectId) -> Result<Vec<Name>> {
    let (from, to) = (
        Key::new(ino, KeyType::INODE_REF, 0),
        Key::new(ino, KeyType::INODE_EXTREF, u64::MAX),
    );
    let mut cursor = tree.cursor(from, to);
    let mut all = Vec::new();
    while let Some((key, item)) = cursor.next()? {
        all.extend(names_in(&key, &item));
    }
    Ok(all)
}
