//! What an inode has beside names: attributes, extended attributes, and data.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;

use btrfs_format::{Key, KeyType, ObjectId, view};
use btrfs_store::tree::compare::compare;
use btrfs_stream::{Command, Time, Version};
use cowshed_vfs::xattr::CAPABILITY_NAME;
use cowshed_vfs::{FileKind, PERM_MASK, Timestamp};

use super::Sender;
use super::side::{Result, SendError};
use crate::diff::changes::{self, Changed};
use crate::object::InodeAttr;

/// Set-user-id and set-group-id: a write may take them.
const SET_ID_BITS: u32 = 0o6000;

impl<W: Write> Sender<'_, W> {
    /// Makes the content of an inode that has its new names that of the new tree.
    pub(super) fn content(&mut self, inode: &Changed) -> Result<()> {
        let Some(kind) = inode.new.map(|new| new.kind()) else {
            return Ok(());
        };
        let new = self.attr(&self.new.subvol.tree, inode.ino)?;
        let old = match (&self.old, inode.old) {
            (Some(old), Some(_)) => Some(self.attr(&old.subvol.tree, inode.ino)?),
            _ => None,
        };
        let path = match inode.is_dir() {
            true => self.places.dir_path(inode.ino)?.to_vec(),
            false => self.places.new_path(inode.ino)?,
        };
        let mut capability = None;
        if inode.has_xattrs {
            capability = self.xattrs(inode, &path)?;
        }
        let mut is_written = false;
        if kind == Some(FileKind::Regular) {
            is_written = self.data(inode, &path, old.as_ref(), &new)?;
        }
        let owner = |attr: &InodeAttr| (attr.uid, attr.gid);
        let is_given = old.is_none_or(|old| owner(&old) != owner(&new));
        if is_given {
            let (uid, gid) = (new.uid.into(), new.gid.into());
            self.out.write(&Command::Chown { path: &path, uid, gid })?;
        }
        let has_lost_bits = (is_given || is_written) && new.mode & SET_ID_BITS != 0;
        let is_changed = old.is_none_or(|old| old.mode != new.mode);
        if kind != Some(FileKind::Symlink) && (is_changed || has_lost_bits) {
            let mode = (new.mode & PERM_MASK).into();
            self.out.write(&Command::Chmod { path: &path, mode })?;
        }
        // Writes and changes of the owner take it.
        if capability.is_none() && (is_given || is_written) && kind == Some(FileKind::Regular) && !inode.is_made() {
            capability = self.capability(inode.ino)?;
        }
        if let Some(data) = capability {
            let name = CAPABILITY_NAME;
            self.out.write(&Command::SetXattr {
                path: &path,
                name,
                data: &data,
            })?;
        }
        self.times_at(&path, &new)
    }

    fn attr(&self, tree: &btrfs_store::tree::Tree, ino: ObjectId) -> Result<InodeAttr> {
        let item = changes::inode(tree, ino)?.ok_or(cowshed_vfs::Error::Corrupt)?;
        Ok(InodeAttr::decode(&item))
    }

    /// The times of an inode that has its new names.
    pub(super) fn times(&mut self, ino: ObjectId) -> Result<()> {
        let attr = self.attr(&self.new.subvol.tree, ino)?;
        let path = self.places.new_path(ino)?;
        self.times_at(&path, &attr)
    }

    fn times_at(&mut self, path: &[u8], attr: &InodeAttr) -> Result<()> {
        let time = |time: Timestamp| Time {
            secs: time.secs,
            nanos: time.nanos,
        };
        let otime = (self.out.version() >= Version::V2).then(|| time(attr.otime));
        self.out.write(&Command::Utimes {
            path,
            atime: time(attr.atime),
            mtime: time(attr.mtime),
            ctime: time(attr.ctime),
            otime,
        })?;
        Ok(())
    }

    /// Sends what differs of the extended attributes. Returns the file capability where it is new:
    /// it comes last.
    fn xattrs(&mut self, inode: &Changed, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let (from, to) = (
            Key::new(inode.ino, KeyType::XATTR_ITEM, 0),
            Key::new(inode.ino, KeyType::XATTR_ITEM, u64::MAX),
        );
        let old = self.old.as_ref().filter(|_| !inode.is_made());
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        let _: ControlFlow<()> = compare(
            old.map(|old| &*old.subvol.tree),
            &self.new.subvol.tree,
            (from, to),
            |found| {
                for (item, all) in [(found.old, &mut before), (found.new, &mut after)] {
                    let entries = item.iter().flat_map(|item| view::dir_entries(item));
                    all.extend(entries.map(|entry| (entry.name.to_vec(), entry.data.to_vec())));
                }
                Ok::<_, SendError>(ControlFlow::Continue(()))
            },
        )?;
        for name in before.keys().filter(|name| !after.contains_key(*name)) {
            self.out.write(&Command::RemoveXattr { path, name })?;
        }
        let mut capability = None;
        for (name, data) in after {
            if before.get(&name) == Some(&data) {
                continue;
            }
            if name == CAPABILITY_NAME {
                capability = Some(data);
                continue;
            }
            self.out.write(&Command::SetXattr {
                path,
                name: &name,
                data: &data,
            })?;
        }
        Ok(capability)
    }

    fn capability(&self, ino: ObjectId) -> Result<Option<Vec<u8>>> {
        let key = Key::new(ino, KeyType::XATTR_ITEM, btrfs_format::hash::name_hash(CAPABILITY_NAME));
        let item = self.new.subvol.tree.get(&key)?;
        let entry = item.iter().flat_map(|item| view::dir_entries(item));
        Ok(entry
            .filter(|entry| entry.name == CAPABILITY_NAME)
            .map(|entry| entry.data.to_vec())
            .next())
    }
}
