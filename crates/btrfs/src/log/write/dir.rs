//! Directories in the log: changed entries in bulk, ranges around the removed ones, and the new
//! inodes behind the added ones.
//!
//! A range `[a, b]` of a directory's indices says that whatever lies in it and is not in the log
//! does not exist. Ranges are laid around removed entries alone, so that an entry that did not
//! change is never copied.

use btrfs_format::block::ITEM_HEADER_BYTES;
use btrfs_format::items::{InodeItem, InodeRef};
use btrfs_format::{Generation, Key, KeyType, ObjectId, view};
use zerocopy::IntoBytes;

use super::check_room;
use super::collect::{Collector, Step, Stop, Subject, Want, inode_item, inode_key, is_dir};
use super::cost::least_blocks;
use crate::dir::names::{index_key, kind_of};
use crate::log::{dir_range_item, dir_range_key};
use btrfs_store::overlay::Edit;
use cowshed_vfs::FileKind;

/// What an inode that a directory's changed entry leads to takes in a leaf: its item, and a name of
/// one byte. (One that the log has already takes nothing: a commit too many, then, where there is
/// hardly any room.)
const LEAST_CHILD_BYTES: u64 = (2 * ITEM_HEADER_BYTES + size_of::<InodeItem>() + size_of::<InodeRef>() + 1) as u64;

/// So many new inodes of one directory are tracked, at 100 bytes each; of more than that only those
/// that are synced themselves.
const TRACKED_MAX: usize = 1 << 12;

impl Collector<'_> {
    /// Logs a directory with its entries.
    pub(super) fn directory(&mut self, of: Subject) -> Step<()> {
        let (dir, is_new) = (of.ino, of.is_new);
        let changed = self.tree.track(dir);
        if changed.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        self.attributes(of, changed.as_deref())?;
        for ino in self.left.take_dir(self.tree.id(), dir) {
            self.want(ino, Want::Names)?;
        }
        let mut entries = Vec::new();
        match &changed {
            None => {
                let (from, to) = (index_key(dir, 0), index_key(dir, u64::MAX));
                self.tree.pending_range(from, to, &mut entries);
            }
            Some(changes) => {
                for key in changes.iter().map(|c| c.key).filter(|key| key.ty == KeyType::DIR_INDEX) {
                    entries.extend(self.tree.pending_edit(&key).map(|edit| (key, edit)));
                }
            }
        }
        let children = self.entries(dir, is_new, changed.is_some(), entries)?;
        self.children(dir, children)
    }

    /// Returns the inodes that added entries lead to.
    fn entries(
        &mut self,
        dir: ObjectId,
        is_new: bool,
        is_logged: bool,
        entries: Vec<(Key, Edit)>,
    ) -> Step<Vec<ObjectId>> {
        // Entries beyond this index are in no committed tree.
        let committed_last = match is_new {
            true => None,
            false => self.committed.floor_same_type(&index_key(dir, u64::MAX))?,
        };
        let committed_last = committed_last.map(|(key, _)| key.offset);
        let mut children = Vec::new();
        let mut gone: Option<(u64, u64)> = None;
        self.edits.reserve(entries.len());
        for (key, edit) in entries {
            if committed_last.is_some_and(|last| key.offset <= last) {
                gone = match gone {
                    Some((first, last)) if last + 1 == key.offset => Some((first, key.offset)),
                    other => {
                        self.range(dir, other);
                        Some((key.offset, key.offset))
                    }
                };
            }
            match edit {
                Some(bytes) => {
                    let entry = view::dir_entries(&bytes)
                        .next()
                        .ok_or(Stop::Commit("a directory entry that is none"))?;
                    let location = Key::from(entry.head.location);
                    if location.ty != KeyType::INODE_ITEM || kind_of(entry.head.ty).is_none() {
                        return Err(Stop::Commit("a subvolume's name changed"));
                    }
                    children.push(location.objectid);
                    self.displaced(location.objectid, dir, entry.name)?;
                    self.edits.push((key, Some(bytes)));
                }
                None if is_logged => self.edits.push((key, None)),
                None => {}
            }
        }
        self.range(dir, gone);
        Ok(children)
    }

    fn range(&mut self, dir: ObjectId, range: Option<(u64, u64)>) {
        if let Some((first, last)) = range {
            let item = dir_range_item(last);
            self.edits
                .push((dir_range_key(dir, first), Some(item.as_bytes().into())));
        }
    }

    /// Logs what the entries lead to: new inodes without data in bulk, all others one by one.
    fn children(&mut self, dir: ObjectId, mut children: Vec<ObjectId>) -> Step<()> {
        children.sort_unstable();
        children.dedup();
        // Better known before a million inodes are copied than after it.
        let least_bytes = children.len() as u64 * LEAST_CHILD_BYTES;
        check_room(
            self.files.store(),
            least_blocks(least_bytes, self.files.store().nodes().nodesize_bytes()),
        )?;
        let (mut others, mut copied) = (Vec::new(), Vec::new());
        // A later sync of the directory brings them up to date, where they are not too many.
        let are_tracked = children.len() <= TRACKED_MAX;
        // An inode and its name each.
        self.edits.reserve(2 * children.len());
        let (running, edits) = (self.running, &mut self.edits);
        self.tree
            .pending_of_objects(&children, KeyType(KeyType::DIR_ITEM.0 - 1), |ino, items, is_tracked| {
                if !is_tracked && is_plain(items, dir, running) {
                    edits.extend(items.iter().map(|(key, edit)| (**key, (*edit).clone())));
                    if are_tracked {
                        copied.push(ino);
                    }
                } else {
                    others.push(ino);
                }
            });
        for ino in copied {
            self.tree.track(ino);
        }
        for ino in others {
            self.child(ino)?;
        }
        Ok(())
    }

    fn child(&mut self, ino: ObjectId) -> Step<()> {
        let Some(Some(item)) = self.tree.pending_edit(&inode_key(ino)) else {
            return Ok(());
        };
        if self.is_catching_up {
            self.directories_of_renamed(ino)?;
        }
        // A new directory comes with what is in it.
        let is_new_dir = inode_item(&item).is_some_and(|i| is_dir(i) && Generation::from(i.generation) == self.running);
        self.want(ino, if is_new_dir { Want::All } else { Want::Names })
    }
}

/// A new inode whose only items are its inode item, its one name in `dir`, and extended attributes.
fn is_plain(items: &[(&Key, &Edit)], dir: ObjectId, running: Generation) -> bool {
    let Some(((key, Some(item)), rest)) = items.split_first() else {
        return false;
    };
    let Some(inode) = inode_item(item).filter(|_| key.ty == KeyType::INODE_ITEM) else {
        return false;
    };
    let kind = FileKind::from_mode(inode.mode.get());
    let has_data = matches!(kind, None | Some(FileKind::Directory | FileKind::Symlink))
        || inode.size.get() > 0
        || inode.nbytes.get() > 0;
    Generation::from(inode.generation) == running
        && inode.nlink.get() == 1
        && !has_data
        && rest.iter().all(|(key, edit)| match key.ty {
            KeyType::INODE_REF => key.offset == dir.get() && edit.is_some(),
            KeyType::XATTR_ITEM => edit.is_some(),
            _ => false,
        })
}
