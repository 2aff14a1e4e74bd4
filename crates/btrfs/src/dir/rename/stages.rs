//! The items of a rename before they are a batch: names that go and come, in one tree or two, and
//! the references of subvolumes to those that they are nested in.

use std::sync::Arc;

use btrfs_format::{Generation, Key, TreeId};
use btrfs_store::txn::Batch;

use crate::dir::Held;
use crate::dir::link::may_extend_refs;
use crate::dir::names::{self, NewName, Target};
use crate::dir::remove::stage_removal;
use crate::dir::subvolumes::{ref_keys, root_ref, root_ref_index};
use crate::error::Result;
use crate::files::Files;
use crate::object::Inode;
use crate::staged::Staged;

/// One end of a rename.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) dir: &'a Arc<Inode>,
    pub(super) name: &'a [u8],
}

impl Held {
    /// The subvolume that the name is of: its root directory is no inode of the directory's tree.
    pub(super) fn subvolume(&self) -> Option<TreeId> {
        match self.found.target {
            Target::Subvol(id) if !self.inode.is_placeholder() => Some(id),
            _ => None,
        }
    }
    /// The stand-in for a subvolume that belongs to another place.
    pub(super) fn is_stand_in(&self) -> bool {
        self.inode.is_placeholder()
    }
}

pub(super) struct Stages<'t> {
    /// Of the tree that the name leaves.
    pub(super) from: Staged<'t>,
    /// Of the tree that it comes to, where that is another one.
    pub(super) to: Option<Staged<'t>>,
    /// Edits of the tree of roots, the later ones last.
    pub(super) roots: Vec<(Key, Option<Vec<u8>>)>,
    /// The old name was the last one with its hash in its directory.
    pub(super) is_last_of_hash: bool,
}

impl<'t> Stages<'t> {
    pub(super) fn new(from: &'t Inode, to: &'t Inode) -> Self {
        let is_other = from.tree.id() != to.tree.id();
        Self {
            from: Staged::new(&from.tree),
            to: is_other.then(|| Staged::new(&to.tree)),
            roots: Vec::new(),
            is_last_of_hash: false,
        }
    }

    /// What is staged for the tree of a directory.
    pub(super) fn of(&mut self, dir: &Inode) -> &mut Staged<'t> {
        match &mut self.to {
            Some(to) if to.tree_id() == dir.tree.id() => to,
            _ => &mut self.from,
        }
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.from.is_crowded() || self.to.as_ref().is_some_and(Staged::is_crowded)
    }

    /// A name goes. True where no name with its hash is left.
    pub(super) fn take_off(&mut self, files: &Files, place: Place<'_>, held: &Held) -> Result<bool> {
        let dir = place.dir;
        let Some(id) = held.subvolume() else {
            return stage_removal(self.of(dir), dir, place.name, held);
        };
        let index = root_ref_index(files, dir.tree.id(), id)?;
        let is_last = names::remove(self.of(dir), dir.ino, place.name, index)?;
        self.roots.extend(ref_keys(dir.tree.id(), id).map(|key| (key, None)));
        Ok(is_last)
    }

    /// A name comes, under an index that is new in its directory.
    pub(super) fn put_on(
        &mut self,
        files: &Files,
        place: Place<'_>,
        held: &Held,
        (index, generation): (u64, Generation),
    ) -> Result<()> {
        let dir = place.dir;
        let new = NewName {
            dir: dir.ino,
            name: place.name,
            index,
            location: held.found.location,
            ty: held.found.ty,
            generation,
        };
        names::insert(self.of(dir), &new)?;
        let Some(id) = held.subvolume() else {
            return names::insert_ref(self.of(dir), held.inode.ino, &new, || may_extend_refs(files));
        };
        let item = root_ref(dir.ino, index, place.name);
        let keys = ref_keys(dir.tree.id(), id);
        self.roots.extend(keys.map(|key| (key, Some(item.clone()))));
        Ok(())
    }

    pub(super) fn into_batch(self, files: &Files) -> Batch {
        let mut batch = self.from.into_batch();
        if let Some(to) = self.to {
            batch.append(to.into_batch());
        }
        let root_tree = files.store().forest().root_tree();
        for (key, edit) in self.roots {
            match edit {
                Some(item) => batch.put(root_tree, key, item),
                None => batch.delete(root_tree, key),
            }
        }
        batch
    }
}
