//! Names: directory indices and references of the log, made true in the subvolume one by one. Each
//! step changes all three places of a name (by hash, by index, the way back) at once, so that they
//! agree at any time.

use btrfs_format::{Key, KeyType, ObjectId, hash, view};
use cowshed_vfs::{Error as Errno, FileKind};
use zerocopy::little_endian::U64;

use super::inodes::{is_dir, kind_of};
use super::{Replay, corrupt};
use crate::dir::names::{self as dir_names, Found, NewName, Target};
use crate::dir::{FIRST_INDEX, LAST_INDEX};
use crate::error::{Error, Result};
use crate::staged::Staged;

/// A name as the log has it.
#[derive(Clone, Copy)]
struct Name<'a> {
    dir: ObjectId,
    index: u64,
    name: &'a [u8],
}

impl Replay<'_, '_> {
    /// Entries that no logged reference tells of: names of inodes that exist, and were not logged
    /// themselves.
    pub(super) fn names_of_directories(&mut self) -> Result<()> {
        let log = self.log.clone();
        let mut cursor = log.cursor(Key::MIN, Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX));
        while let Some((key, item)) = cursor.next()? {
            if key.ty != KeyType::DIR_INDEX || self.ignored.contains(&key.objectid) {
                continue;
            }
            for entry in view::dir_entries(&item) {
                let Target::Inode(ino) = dir_names::target_of(self.log.id(), &entry)?.target else {
                    // Subvolumes come and go with commits.
                    continue;
                };
                let name = Name {
                    dir: key.objectid,
                    index: key.offset,
                    name: entry.name,
                };
                if !self.is_in_logged_refs(ino, &name)? && self.inode(ino)?.is_some() {
                    self.ensure(ino, &name)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn is_name_logged(&self, ino: ObjectId, dir: ObjectId, name: &[u8]) -> Result<bool> {
        self.is_in_logged_refs(ino, &Name { dir, index: 0, name })
    }

    fn is_in_logged_refs(&self, ino: ObjectId, name: &Name<'_>) -> Result<bool> {
        let key = Key::new(ino, KeyType::INODE_REF, name.dir.0);
        if let Some(item) = self.log.get(&key)?
            && view::inode_refs(&item).any(|(_, n)| n == name.name)
        {
            return Ok(true);
        }
        let key = Key::new(ino, KeyType::INODE_EXTREF, hash::extref_hash(name.dir, name.name));
        let item = self.log.get(&key)?;
        Ok(item.is_some_and(|item| {
            view::inode_extrefs(&item).any(|(head, n)| head.parent_objectid.get() == name.dir.0 && n == name.name)
        }))
    }

    /// The names of an inode in one directory are those of the item, no others.
    pub(super) fn replay_refs(&mut self, key: Key, item: &[u8]) -> Result<()> {
        let (ino, dir) = (key.objectid, ObjectId(key.offset));
        if ino == dir && ino == ObjectId::FIRST_FREE {
            // The root directory calls itself its parent.
            return Ok(());
        }
        if !self.can_have_names(ino, dir)? {
            return Ok(());
        }
        if let Some(ours) = self.tree.get(&key)? {
            for (_, name) in view::inode_refs(&ours) {
                let name = Name { dir, index: 0, name };
                if !self.is_in_logged_refs(ino, &name)? {
                    self.unlink(dir, name.name)?;
                }
            }
        }
        for (index, name) in view::inode_refs(item) {
            self.ensure(ino, &Name { dir, index, name })?;
        }
        Ok(())
    }

    /// As [`Replay::replay_refs`], for the names that share a hash.
    pub(super) fn replay_extrefs(&mut self, key: Key, item: &[u8]) -> Result<()> {
        let ino = key.objectid;
        if let Some(ours) = self.tree.get(&key)? {
            for (head, name) in view::inode_extrefs(&ours) {
                let dir = ObjectId(head.parent_objectid.get());
                let name = Name { dir, index: 0, name };
                if !self.is_in_logged_refs(ino, &name)? {
                    self.unlink(dir, name.name)?;
                }
            }
        }
        for (head, name) in view::inode_extrefs(item) {
            let dir = ObjectId(head.parent_objectid.get());
            let index = head.index.get();
            if self.can_have_names(ino, dir)? {
                self.ensure(ino, &Name { dir, index, name })?;
            }
        }
        Ok(())
    }

    /// False where the directory does not exist: it was not logged, and the link count will say so.
    fn can_have_names(&mut self, ino: ObjectId, dir: ObjectId) -> Result<bool> {
        if ino == ObjectId::FIRST_FREE {
            return Err(corrupt(format!("the root directory has a name in {dir}")));
        }
        if self.inode(ino)?.is_none() {
            return Err(corrupt(format!("inode {ino} has names and does not exist")));
        }
        match self.inode(dir)? {
            None => Ok(false),
            Some(inode) if is_dir(inode) => Ok(true),
            Some(_) => Err(corrupt(format!(
                "inode {ino} has a name in {dir}, which is no directory"
            ))),
        }
    }

    /// The name leads to the inode, at this index; whatever stands in the way loses its name.
    fn ensure(&mut self, ino: ObjectId, name: &Name<'_>) -> Result<()> {
        if !self.can_have_names(ino, name.dir)? {
            return Ok(());
        }
        dir_names::check_name(name.name)
            .map_err(|_| corrupt(format!("inode {ino} has the impossible name {:?}", shown(name.name))))?;
        if !(FIRST_INDEX..=LAST_INDEX).contains(&name.index) {
            return Err(corrupt(format!(
                "name {:?} in {} has the impossible index {}",
                shown(name.name),
                name.dir,
                name.index
            )));
        }
        let by_hash = dir_names::find(&self.tree, name.dir, name.name)?;
        let by_index = self.tree.get(&dir_names::index_key(name.dir, name.index))?;
        let in_place = by_index.as_ref().and_then(|item| view::dir_entries(item).next());
        if let (Some(found), Some(entry)) = (&by_hash, &in_place)
            && found.target == Target::Inode(ino)
            && entry.name == name.name
            && Key::from(entry.head.location) == found.location
        {
            return Ok(());
        }
        if by_hash.is_some() {
            self.unlink(name.dir, name.name)?;
        }
        if let Some(entry) = in_place
            && entry.name != name.name
        {
            self.unlink(name.dir, entry.name)?;
        }
        self.link(ino, name)
    }

    fn link(&mut self, ino: ObjectId, name: &Name<'_>) -> Result<()> {
        let kind = self.inode(ino)?.and_then(|inode| kind_of(inode));
        let kind = kind.ok_or_else(|| corrupt(format!("inode {ino} has no type")))?;
        let new = NewName {
            dir: name.dir,
            name: name.name,
            index: name.index,
            location: Key::new(ino, KeyType::INODE_ITEM, 0),
            ty: dir_names::file_type(kind),
            generation: self.shared.generation,
        };
        let mut staged = Staged::new(&self.tree);
        let added = dir_names::insert(&mut staged, &new).and_then(|()| {
            let may_extend = || crate::dir::may_extend_refs(self.shared.files);
            dir_names::insert_ref(&mut staged, ino, &new, may_extend)
        });
        added.map_err(|error| match error {
            Error::Outcome(Errno::Overflow | Errno::TooManyLinks) => {
                corrupt(format!("no room for name {:?} in {}", shown(name.name), name.dir))
            }
            other => other,
        })?;
        self.shared.apply(staged.into_batch());
        self.change_dir(name.dir, name.name.len(), true)?;
        self.touched.insert(ino);
        if kind == FileKind::Directory {
            self.named_dirs.insert(ino);
        }
        Ok(())
    }

    /// Takes a name away; the inode's link count follows at the end.
    pub(super) fn unlink(&mut self, dir: ObjectId, name: &[u8]) -> Result<()> {
        let Some(Found { target, .. }) = dir_names::find(&self.tree, dir, name)? else {
            return Err(self.corrupt(format!(
                "name {:?} in directory {dir} has no entry by hash",
                shown(name)
            )));
        };
        let Target::Inode(ino) = target else {
            return Err(corrupt(format!(
                "name {:?} in {dir} is a subvolume's, which no log removes",
                shown(name)
            )));
        };
        let mut staged = Staged::new(&self.tree);
        let index = dir_names::remove_ref(&mut staged, ino, dir, name)?;
        dir_names::remove(&mut staged, dir, name, index)?;
        self.shared.apply(staged.into_batch());
        self.change_dir(dir, name.len(), false)?;
        self.touched.insert(ino);
        Ok(())
    }

    /// A directory's size counts each name twice: once for each of its two items.
    fn change_dir(&mut self, dir: ObjectId, name_bytes: usize, is_added: bool) -> Result<()> {
        if let Some(inode) = self.inode(dir)? {
            let (size, bytes) = (inode.size.get(), 2 * name_bytes as u64);
            inode.size = U64::new(if is_added {
                size.saturating_add(bytes)
            } else {
                size.saturating_sub(bytes)
            });
            self.touched.insert(dir);
        }
        Ok(())
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
