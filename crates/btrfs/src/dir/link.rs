//! One more name for an inode.

use std::sync::Arc;

use btrfs_format::features::incompat;
use btrfs_format::{Key, KeyType};
use cowshed_vfs::Error as Errno;

use super::names::{self, NewName};
use super::{check_name, know_absence, next_index, note_name, touch_dir};
use crate::access::{Caller, check_changeable, may_create};
use crate::error::Result;
use crate::files::{Files, prepare_and_join, touch_inode};
use crate::object::{Inode, lock};
use crate::reclaim::orphan_key;
use crate::staged::Staged;
use btrfs_store::space::Budget;

/// Names that one inode can have.
pub(crate) const LINKS_MAX: u32 = 65535;

/// May refs that outgrow a leaf go into items of their own?
pub(crate) fn may_extend_refs(files: &Files) -> bool {
    files.store().volume().superblock().incompat_flags.get() & incompat::EXTENDED_IREF != 0
}

/// Gives an inode one more name. Errors: `Exists`, `NotPermitted` (directory), `TooManyLinks`,
/// `CrossDevice`, `NotFound` (the inode is unlinked for good).
pub fn link(files: &Files, caller: &Caller<'_>, inode: &Arc<Inode>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    check_name(name)?;
    if inode.tree.id() != dir.tree.id() {
        return Err(Errno::CrossDevice.into());
    }
    if inode.is_dir() {
        return Err(Errno::NotPermitted.into());
    }
    let space = files.reserve(Budget::CREATE)?;
    let _locks = lock::write_all(&[dir, inode]);
    may_create(files, caller, dir)?;
    check_changeable(files, inode)?;
    let nlink = inode.attr_now().nlink;
    if nlink >= LINKS_MAX {
        return Err(Errno::TooManyLinks.into());
    }
    if nlink == 0 && !inode.refs.is_linkable() {
        return Err(Errno::NotFound.into());
    }
    let now = files.store().env().now();
    let (join, mut staged) = prepare_and_join(files, |generation| {
        let mut staged = Staged::new(&dir.tree);
        let new = NewName {
            dir: dir.ino,
            name,
            index: next_index(dir)?,
            location: Key::new(inode.ino, KeyType::INODE_ITEM, 0),
            ty: names::file_type(inode.kind()),
            generation,
        };
        know_absence(&mut staged, dir, name);
        names::insert(&mut staged, &new)?;
        names::insert_ref(&mut staged, inode.ino, &new, || may_extend_refs(files))?;
        if nlink == 0 {
            staged.delete(orphan_key(inode.ino));
        }
        Ok(staged)
    })?;
    files.names().changed(staged.is_crowded());
    files.names().added(inode, (dir, name), None);
    inode.refs.set_linkable(false);
    let generation = join.generation();
    let mut attrs = lock::attrs_all(&[dir, inode]);
    note_name(dir, name);
    touch_dir(attrs.of(dir), generation, now, name.len(), 0);
    staged.put(dir.key(), dir.item_bytes(attrs.of(dir)));
    let state = attrs.of(inode);
    state.attr.nlink += 1;
    touch_inode(state, generation, now);
    staged.put(inode.key(), inode.item_bytes(state));
    join.apply(staged.into_batch(), space);
    Ok(())
}
