//! The first pass over a log: inodes, their xattrs, and what is gone from directories and from
//! behind the end of files.

use std::collections::HashMap;

use btrfs_format::items::{DirLogItem, InodeItem};
use btrfs_format::{Key, KeyType, ObjectId, view};
use cowshed_vfs::FileKind;
use zerocopy::little_endian::U64;

use super::{Replay, corrupt};
use crate::dir::names as dir_names;
use crate::error::Result;
use crate::file::replay as file;
use crate::object::PLACEHOLDER_INO_BIT;
use crate::object::flags::NODATASUM;
use btrfs_store::txn::Batch;

pub(super) fn kind_of(inode: &InodeItem) -> Option<FileKind> {
    FileKind::from_mode(inode.mode.get())
}
pub(super) fn is_dir(inode: &InodeItem) -> bool {
    kind_of(inode) == Some(FileKind::Directory)
}
fn is_regular(inode: &InodeItem) -> bool {
    kind_of(inode) == Some(FileKind::Regular)
}

impl Replay<'_, '_> {
    pub(super) fn inodes(&mut self) -> Result<()> {
        let log = self.log.clone();
        let from = Key::new(ObjectId::FIRST_FREE, KeyType::INODE_ITEM, 0);
        let to = Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX);
        let mut cursor = log.cursor(from, to);
        while let Some((key, item)) = cursor.next()? {
            if key.ty != KeyType::INODE_ITEM {
                continue;
            }
            let logged =
                *view::fixed::<InodeItem>(&item).ok_or_else(|| corrupt(format!("{key}: item is too short")))?;
            self.replay_inode(key.objectid, logged)?;
        }
        Ok(())
    }

    fn replay_inode(&mut self, ino: ObjectId, logged: InodeItem) -> Result<()> {
        if logged.nlink.get() == 0 {
            // Open and without a name when it was logged: a crash is its end.
            self.ignored.insert(ino);
            return Ok(());
        }
        if ino.0 >= PLACEHOLDER_INO_BIT {
            return Err(corrupt(format!("inode number {ino} is beyond every limit")));
        }
        let existing = self.inode(ino)?.copied();
        if let Some(existing) = &existing {
            if kind_of(existing) != kind_of(&logged) {
                return Err(corrupt(format!("inode {ino} changed its type")));
            }
            if is_dir(&logged) {
                self.delete_unlogged_names(ino)?;
            }
        }
        self.replay_xattrs(ino, existing.is_some())?;
        // Deleting names changed the directory.
        let existing = self.inode(ino)?.copied();
        let inode = merged(existing.as_ref(), &logged, self.shared.generation.into());
        self.inodes.insert(ino, Some(inode));
        self.touched.insert(ino);
        if existing.is_some_and(|e| (e.flags.get() ^ inode.flags.get()) & NODATASUM != 0) {
            self.flipped.insert(ino);
        }
        if existing.is_some() && is_regular(&inode) {
            let plan = file::plan_cut(&self.tree, ino, inode.size.get())?;
            self.apply_extents(ino, plan)?;
        }
        Ok(())
    }

    /// Within the ranges that the log has whole, what it does not have is gone.
    fn delete_unlogged_names(&mut self, dir: ObjectId) -> Result<()> {
        let mut gone = Vec::new();
        let mut done_to = 0;
        let mut ranges = self.log.cursor_type(Key::new(dir, KeyType::DIR_LOG_INDEX, 0));
        while let Some((key, item)) = ranges.next()? {
            let range = view::fixed::<DirLogItem>(&item).ok_or_else(|| corrupt(format!("{key}: item is too short")))?;
            // Watched: the kernel's ranges may overlap.
            let (first, last) = (key.offset.max(done_to), range.end.get());
            if first > last {
                continue;
            }
            done_to = last.saturating_add(1);
            let (from, to) = (dir_names::index_key(dir, first), dir_names::index_key(dir, last));
            let mut logged = self.log.cursor(from, to);
            let mut next_logged = logged.next()?.map(|(key, _)| key);
            let mut ours = self.tree.cursor(from, to);
            while let Some((key, item)) = ours.next()? {
                while next_logged.is_some_and(|k| k < key) {
                    next_logged = logged.next()?.map(|(key, _)| key);
                }
                if next_logged != Some(key) {
                    gone.extend(view::dir_entries(&item).map(|e| e.name.to_vec()));
                }
            }
        }
        for name in gone {
            self.unlink(dir, &name)?;
        }
        Ok(())
    }

    /// The log has all xattrs of the inode.
    fn replay_xattrs(&mut self, ino: ObjectId, exists: bool) -> Result<()> {
        let first = Key::new(ino, KeyType::XATTR_ITEM, 0);
        let mut batch = Batch::new();
        let mut logged = HashMap::new();
        let mut cursor = self.log.cursor_type(first);
        while let Some((key, item)) = cursor.next()? {
            logged.insert(key, item);
        }
        if exists {
            let mut ours = self.tree.cursor_type(first);
            while let Some((key, item)) = ours.next()? {
                match logged.get(&key) {
                    None => batch.delete(&self.tree, key),
                    Some(new) if new[..] == item[..] => {
                        logged.remove(&key);
                    }
                    Some(_) => {}
                }
            }
        }
        let mut logged: Vec<_> = logged.into_iter().collect();
        logged.sort_unstable_by_key(|(key, _)| *key);
        for (key, item) in logged {
            batch.put(&self.tree, key, &item[..]);
        }
        if !batch.is_empty() {
            self.shared.apply(batch);
        }
        Ok(())
    }
}

/// The inode item after replay. Bytes and names are counted as they are replayed, on top of what
/// was there.
fn merged(existing: Option<&InodeItem>, logged: &InodeItem, generation: U64) -> InodeItem {
    let is_whole = logged.generation.get() != 0;
    let mut inode = match existing {
        Some(existing) if !is_whole => *existing,
        _ => *logged,
    };
    match existing {
        Some(existing) => {
            inode.nbytes = existing.nbytes;
            if is_dir(logged) {
                inode.size = existing.size;
            } else if !is_whole && is_regular(logged) && logged.size.get() != 0 {
                // Logged so that it exists: zero says nothing about its size.
                inode.size = logged.size;
            }
        }
        None => {
            inode.nbytes = U64::new(0);
            if is_dir(logged) {
                inode.size = U64::new(0);
            }
            if !is_whole {
                inode.generation = generation;
            }
        }
    }
    inode
}
