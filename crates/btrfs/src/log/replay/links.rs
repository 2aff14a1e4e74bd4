//! The last pass: link counts are what the references say; an inode without any becomes an orphan,
//! and takes what is below it along.

use std::collections::HashSet;

use btrfs_format::{Key, KeyType, ObjectId, view};
use zerocopy::little_endian::{U32, U64};

use super::inodes::is_dir;
use super::{Replay, corrupt};
use crate::error::Result;
use crate::reclaim::orphan_key;
use btrfs_store::txn::Batch;

impl Replay<'_, '_> {
    pub(super) fn link_counts(&mut self) -> Result<()> {
        let mut todo: Vec<ObjectId> = self.touched.iter().copied().collect();
        // An inode comes again only when one of its names was removed here: of those there is an
        // end.
        while let Some(ino) = todo.pop() {
            let Some(inode) = self.inode(ino)?.copied() else {
                continue;
            };
            let mut names = self.names_of(ino)?;
            if is_dir(&inode) && names.len() > 1 {
                names = self.leave_logged_name(ino, names)?;
            }
            let nlink = u32::try_from(names.len()).map_err(|_| corrupt(format!("inode {ino} has too many names")))?;
            if nlink == 0 && is_dir(&inode) {
                todo.extend(self.empty_directory(ino)?);
            }
            self.set_links(ino, inode.nlink.get(), nlink)?;
        }
        Ok(())
    }

    fn set_links(&mut self, ino: ObjectId, before: u32, nlink: u32) -> Result<()> {
        let key = orphan_key(ino);
        let has_orphan = self.tree.get(&key)?.is_some();
        let mut batch = Batch::new();
        match (nlink, has_orphan) {
            (0, false) => batch.put(&self.tree, key, []),
            (1.., true) => batch.delete(&self.tree, key),
            (0, true) | (1.., false) => {}
        }
        if !batch.is_empty() {
            self.shared.apply(batch);
        }
        if nlink != before {
            self.touched.insert(ino);
            if let Some(inode) = self.inode(ino)? {
                inode.nlink = U32::new(nlink);
            }
        }
        Ok(())
    }

    /// (directory, name) of each reference.
    fn names_of(&self, ino: ObjectId) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let from = Key::new(ino, KeyType::INODE_REF, 0);
        let to = Key::new(ino, KeyType::INODE_EXTREF, u64::MAX);
        let mut names = Vec::new();
        let mut cursor = self.tree.cursor(from, to);
        while let Some((key, item)) = cursor.next()? {
            if key.ty == KeyType::INODE_REF {
                let dir = ObjectId(key.offset);
                names.extend(view::inode_refs(&item).map(|(_, name)| (dir, name.to_vec())));
            } else {
                let extrefs = view::inode_extrefs(&item);
                names.extend(extrefs.map(|(head, name)| (ObjectId(head.parent_objectid.get()), name.to_vec())));
            }
        }
        Ok(names)
    }

    /// A directory has one name. Moved and logged without the directory that it left, it keeps the
    /// name of the log.
    fn leave_logged_name(
        &mut self,
        ino: ObjectId,
        names: Vec<(ObjectId, Vec<u8>)>,
    ) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let mut kept = Vec::new();
        for (dir, name) in names {
            if self.is_name_logged(ino, dir, &name)? {
                kept.push((dir, name));
            } else {
                self.unlink(dir, &name)?;
            }
        }
        if kept.len() > 1 {
            return Err(corrupt(format!("directory {ino} has {} names", kept.len())));
        }
        Ok(kept)
    }

    /// From each directory that got a name the way up ends: at the root, or at a directory that is
    /// gone.
    ///
    /// Linux logs the new place of a directory without that of the directory it moved into. Where
    /// the commit has the one below the other, replay makes a circle, which no path leads to. That
    /// is accepted, as Linux does. A circle of logged names alone was never written by a file
    /// system.
    pub(super) fn check_ways_up(&mut self) -> Result<()> {
        let mut ends = HashSet::from([ObjectId::FIRST_FREE]);
        for dir in std::mem::take(&mut self.named_dirs) {
            let mut way = HashSet::new();
            let mut at = dir;
            while !ends.contains(&at) {
                if !way.insert(at) {
                    self.check_circle(at)?;
                    break;
                }
                match self.names_of(at)?.first() {
                    Some((parent, _)) => at = *parent,
                    None => break,
                }
            }
            ends.extend(way);
        }
        Ok(())
    }

    /// The way up from a directory leads back to it.
    fn check_circle(&mut self, start: ObjectId) -> Result<()> {
        let mut at = start;
        while let Some((parent, name)) = self.names_of(at)?.into_iter().next() {
            if !self.is_name_logged(at, parent, &name)? && !self.is_entry_logged(at, parent)? {
                let subvol = self.tree.id();
                tracing::warn!(%subvol, directory = %start, "the log leaves a directory below itself: no path leads to it");
                return Ok(());
            }
            at = parent;
            if at == start {
                break;
            }
        }
        Err(corrupt(format!("directory {start} lies below itself")))
    }

    /// The log has an entry of the directory that leads to the inode.
    fn is_entry_logged(&self, ino: ObjectId, dir: ObjectId) -> Result<bool> {
        let mut cursor = self.log.cursor_type(Key::new(dir, KeyType::DIR_INDEX, 0));
        while let Some((_, item)) = cursor.next()? {
            if view::dir_entries(&item).any(|entry| Key::from(entry.head.location).objectid == ino) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Everything below a directory that is gone is gone. Returns the inodes that lost a name.
    fn empty_directory(&mut self, dir: ObjectId) -> Result<Vec<ObjectId>> {
        let mut below = Vec::new();
        let mut cursor = self.tree.cursor_type(Key::new(dir, KeyType::DIR_INDEX, 0));
        while let Some((_, item)) = cursor.next()? {
            for entry in view::dir_entries(&item) {
                below.push((entry.name.to_vec(), Key::from(entry.head.location).objectid));
            }
        }
        let mut lost = Vec::with_capacity(below.len());
        for (name, ino) in below {
            self.unlink(dir, &name)?;
            lost.push(ino);
        }
        if let Some(inode) = self.inode(dir)? {
            inode.size = U64::new(0);
        }
        Ok(lost)
    }
}
