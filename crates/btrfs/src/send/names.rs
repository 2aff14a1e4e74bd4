//! The order in which names go and come.
//!
//! 1. What goes, goes first: names that only the old tree has. An inode that stays and would lose
//!    its last name gets its new name at once where that is possible, and else a temporary one in
//!    the root directory. Then the deleted directories, which are empty now, the deepest first.
//! 2. New directories are made, and those with temporary names get their new ones, each after the
//!    directory that it is in.
//! 3. All other names come.
//!
//! A name comes at once only if its directory stays, and if the old tree has nothing there: then
//! nothing is in its way, and no directory is moved below itself.

use std::collections::{HashMap, HashSet};
use std::io::Write;

use btrfs_format::{ObjectId, view};
use btrfs_stream::{Command, Node};
use cowshed_vfs::FileKind;

use super::Sender;
use super::place::Place;
use super::side::Result;
use crate::diff::changes::{self, Changed, Name};
use crate::extent::extent_key;
use crate::file;
use crate::object::rdev_from_disk;

impl<W: Write> Sender<'_, W> {
    /// Step 1.
    pub(super) fn vacate(&mut self, changed: &[Changed]) -> Result<()> {
        let Some(old) = self.old.clone() else {
            self.note_new_dirs(changed);
            return Ok(());
        };
        let old = &*old.subvol.tree;
        for dir in changed.iter().filter(|inode| inode.is_dir()) {
            if dir.new.is_none() || !dir.removed.is_empty() {
                self.places.put(dir.ino, Place::Old);
            }
        }
        self.note_new_dirs(changed);
        // Names that inodes lose which are somewhere else afterwards, or nowhere.
        let mut occupied: HashSet<Name> = HashSet::new();
        for inode in changed.iter().filter(|inode| inode.old.is_some()) {
            match inode.new {
                Some(_) => occupied.extend(inode.removed.iter().cloned()),
                None => occupied.extend(changes::names(old, inode.ino)?),
            }
        }
        for inode in changed.iter().filter(|inode| inode.new.is_some()) {
            if !inode.removed.is_empty() {
                self.leave(inode, &occupied)?;
            }
        }
        let mut deleted: Vec<(usize, ObjectId)> = Vec::new();
        for inode in changed.iter().filter(|inode| inode.new.is_none()) {
            if inode.is_dir() {
                deleted.push((depth(old, inode.ino)?, inode.ino));
                continue;
            }
            for name in changes::names(old, inode.ino)? {
                let path = self.places.path(&name)?;
                self.out.write(&Command::Unlink { path: &path })?;
            }
        }
        deleted.sort_unstable_by(|a, b| b.cmp(a));
        for (_, dir) in deleted {
            let path = self.places.dir_path(dir)?;
            self.out.write(&Command::Rmdir { path: &path })?;
        }
        Ok(())
    }

    /// Directories that are made do not stay where they are: they are not there.
    fn note_new_dirs(&mut self, changed: &[Changed]) {
        for dir in changed.iter().filter(|inode| inode.is_dir() && inode.is_made()) {
            // One of the same number may have gone.
            self.made.insert(dir.ino);
        }
    }

    /// An inode that is in both trees loses names.
    fn leave(&mut self, inode: &Changed, occupied: &HashSet<Name>) -> Result<()> {
        let old = self.old.as_ref().map_or(&self.new, |old| old).subvol.clone();
        let keeps_one = changes::names(&old.tree, inode.ino)?.len() > inode.removed.len();
        let mut removed = inode.removed.iter();
        if !keeps_one && let Some(last) = removed.next() {
            let path = self.places.path(last)?;
            let mut to = None;
            for name in &inode.added {
                if !occupied.contains(name) && !self.made.contains(&name.dir) && self.places.stays(name.dir)? {
                    to = Some(name);
                    break;
                }
            }
            let (to, place) = match to {
                Some(name) => (self.places.path(name)?, Place::New),
                None => {
                    let generation = inode.new.map_or(0, |new| new.generation);
                    let name = self.places.temporary_name(inode.ino, generation)?;
                    (name.clone(), Place::Temporary(name))
                }
            };
            self.out.write(&Command::Rename { path: &path, to: &to })?;
            self.uses_root |= place != Place::New;
            match inode.is_dir() {
                true => self.places.put(inode.ino, place),
                false => drop(self.moved.insert(inode.ino, to)),
            }
        }
        for name in removed {
            let path = self.places.path(name)?;
            self.out.write(&Command::Unlink { path: &path })?;
        }
        Ok(())
    }

    /// Step 2.
    pub(super) fn make_dirs(&mut self, changed: &[Changed]) -> Result<()> {
        let mut waiting: HashMap<ObjectId, bool> = HashMap::new();
        let mut order = Vec::new();
        for dir in changed.iter().filter(|inode| inode.is_dir() && inode.new.is_some()) {
            let is_temporary = matches!(self.places.place(dir.ino), Some(Place::Temporary(_)));
            if (dir.is_made() && dir.ino != self.new.subvol.root_ino) || is_temporary {
                waiting.insert(dir.ino, dir.is_made());
                order.push(dir.ino);
            }
        }
        let tree = self.new.subvol.tree.clone();
        for dir in order {
            // Those above it first.
            let mut chain = Vec::new();
            let mut at = dir;
            while waiting.contains_key(&at) && !chain.iter().any(|(ino, _)| *ino == at) {
                let name = changes::names(&tree, at)?.into_iter().next();
                let name = name.ok_or(cowshed_vfs::Error::Corrupt)?;
                let up = name.dir;
                chain.push((at, name));
                at = up;
            }
            for (ino, name) in chain.into_iter().rev() {
                let Some(is_made) = waiting.remove(&ino) else { continue };
                self.put_dir(ino, &name, is_made)?;
            }
        }
        Ok(())
    }

    fn put_dir(&mut self, ino: ObjectId, name: &Name, is_made: bool) -> Result<()> {
        let to = self.places.path(name)?;
        if is_made {
            let ino = Some(ino.get());
            self.out.write(&Command::Mkdir { path: &to, ino })?;
        } else {
            let path = self.places.dir_path(ino)?;
            self.out.write(&Command::Rename { path: &path, to: &to })?;
        }
        self.places.put(ino, Place::New);
        Ok(())
    }

    /// Step 3, for an inode that is no directory.
    pub(super) fn make_names(&mut self, inode: &Changed) -> Result<()> {
        let Some(new) = inode.new else { return Ok(()) };
        let tree = self.new.subvol.tree.clone();
        if inode.is_made() {
            let mut names = changes::names(&tree, inode.ino)?.into_iter();
            let first = names.next().ok_or(cowshed_vfs::Error::Corrupt)?;
            let existing = self.places.path(&first)?;
            self.make_inode(inode.ino, new.kind(), &existing)?;
            for name in names {
                self.link(&existing, &name)?;
            }
            return Ok(());
        }
        let moved = self.moved.remove(&inode.ino);
        let mut existing = None;
        let mut added = inode.added.iter();
        if let Some(at) = moved {
            // It may have its new name already.
            let mut has_one = None;
            for name in &inode.added {
                if self.places.path(name)? == at {
                    has_one = Some(name);
                }
            }
            if has_one.is_none()
                && let Some(first) = added.next()
            {
                let to = self.places.path(first)?;
                self.out.write(&Command::Rename { path: &at, to: &to })?;
                existing = Some(to);
            } else {
                existing = Some(at);
            }
        } else if !inode.added.is_empty() {
            let kept = changes::names(&tree, inode.ino)?;
            let kept = kept.iter().find(|name| !inode.added.contains(name));
            existing = kept.map(|name| self.places.path(name)).transpose()?;
        }
        for name in added {
            let existing = existing.as_ref().ok_or(cowshed_vfs::Error::Corrupt)?.clone();
            if self.places.path(name)? != existing {
                self.link(&existing, name)?;
            }
        }
        Ok(())
    }

    fn link(&mut self, existing: &[u8], name: &Name) -> Result<()> {
        let path = self.places.path(name)?;
        self.out.write(&Command::Link { path: &path, existing })?;
        Ok(())
    }

    fn make_inode(&mut self, ino: ObjectId, kind: Option<FileKind>, path: &[u8]) -> Result<()> {
        let number = Some(ino.get());
        let item = changes::inode(&self.new.subvol.tree, ino)?.ok_or(cowshed_vfs::Error::Corrupt)?;
        let node = Node {
            rdev: rdev_from_disk(item.rdev.get()).into(),
            mode: item.mode.get().into(),
        };
        let command = match kind {
            Some(FileKind::Symlink) => {
                let target = self.target(ino, item.size.get())?;
                let ino = number;
                self.out.write(&Command::Symlink {
                    path,
                    ino,
                    target: &target,
                })?;
                return Ok(());
            }
            Some(FileKind::Regular) => Command::Mkfile { path, ino: number },
            Some(FileKind::BlockDevice | FileKind::CharDevice) => Command::Mknod {
                path,
                ino: number,
                node,
            },
            Some(FileKind::Fifo) => Command::Mkfifo {
                path,
                ino: number,
                node: Some(node),
            },
            Some(FileKind::Socket) => Command::Mksock {
                path,
                ino: number,
                node: Some(node),
            },
            Some(FileKind::Directory) | None => return Err(cowshed_vfs::Error::Corrupt.into()),
        };
        self.out.write(&command)?;
        Ok(())
    }

    /// What a symbolic link contains.
    fn target(&mut self, ino: ObjectId, size_bytes: u64) -> Result<Vec<u8>> {
        let tree = &self.new.subvol.tree;
        let item = tree.get(&extent_key(ino, 0))?.ok_or(cowshed_vfs::Error::Corrupt)?;
        match view::file_extent(&item) {
            Some(view::FileExtentView::Inline { head, data })
                if head.compression == 0 && data.len() as u64 == size_bytes =>
            {
                Ok(data.to_vec())
            }
            _ => {
                let mut target = vec![0; usize::try_from(size_bytes.min(4096)).unwrap_or(4096)];
                let len = self
                    .reader
                    .read(ino, |files, inode| file::read(files, inode, 0, &mut target))?;
                target.truncate(len);
                Ok(target)
            }
        }
    }
}

/// How many directories are above one.
fn depth(tree: &btrfs_store::tree::Tree, dir: ObjectId) -> Result<usize> {
    let (mut at, mut depth) = (dir, 0);
    while at != ObjectId::FIRST_FREE && depth < 4096 {
        match crate::dir::name_of(tree, at)? {
            Some((up, _)) => at = up,
            None => break,
        }
        depth += 1;
    }
    Ok(depth)
}
