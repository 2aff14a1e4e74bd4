//! Removing names.

use std::sync::Arc;

use btrfs_format::view;
use cowshed_vfs::Error as Errno;

use super::names::{self, Target};
use super::{FIRST_INDEX, Held, check_name, find_child, subvolumes, touch_dir};
use crate::access::{Caller, check_dir, may_remove};
use crate::error::{Error, Result, StoreError};
use crate::files::{Files, prepare_and_join, touch_inode};
use crate::object::{Inode, InodeState, lock};
use crate::reclaim::{orphan_key, settle};
use crate::staged::Staged;
use btrfs_store::space::{Budget, MetaReservation};

/// Removes a name that is not a directory. Errors: `NotFound`, `IsDirectory`, `NotPermitted`.
pub fn unlink(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    remove(files, caller, dir, name, false)
}

/// Removes an empty directory. Errors: `NotFound`, `NotDirectory`, `NotEmpty`, `NotPermitted` (a
/// subvolume).
pub fn rmdir(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    remove(files, caller, dir, name, true)
}

fn remove(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8], want_dir: bool) -> Result<()> {
    check_dir(dir)?;
    check_name(name)?;
    let space = files.reserve(Budget::UNLINK)?;
    loop {
        let held = find_child(files, dir, name)?;
        let child = &held.inode;
        if want_dir && matches!(held.found.target, Target::Subvol(_)) && !child.is_placeholder() {
            drop(space);
            return subvolumes::delete_empty(files, caller, dir, name);
        }
        let locks = lock::write_all(&[dir, child]);
        if !held.is_still(files, dir, name)? {
            continue;
        }
        may_remove(files, caller, dir, child)?;
        match (want_dir, child.is_dir()) {
            (true, false) => return Err(Errno::NotDirectory.into()),
            (false, true) => return Err(Errno::IsDirectory.into()),
            (true, true) => check_removable_dir(child)?,
            (false, false) => {}
        }
        apply_removal(files, dir, name, &held, space)?;
        drop(locks);
        settle(files, child);
        return Ok(());
    }
}

fn apply_removal(files: &Files, dir: &Arc<Inode>, name: &[u8], held: &Held, space: MetaReservation) -> Result<()> {
    let child = &held.inode;
    let now = files.store().env().now();
    let (join, (mut staged, is_last)) = prepare_and_join(files, |_| {
        let mut staged = Staged::new(&dir.tree);
        let is_last = stage_removal(&mut staged, dir, name, held)?;
        Ok((staged, is_last))
    })?;
    files.names().changed(staged.is_crowded());
    let generation = join.generation();
    let mut attrs = lock::attrs_all(&[dir, child]);
    touch_dir(attrs.of(dir), generation, now, 0, name.len());
    staged.put(dir.key(), dir.item_bytes(attrs.of(dir)));
    if child.is_placeholder() {
        files.names().turn_off();
    } else {
        let state = attrs.of(child);
        drop_link(&mut staged, child, state);
        if state.attr.nlink > 0 {
            files.names().left(dir, name, child);
        } else {
            files.names().removed(dir, name, child);
        }
        touch_inode(state, generation, now);
        staged.put(child.key(), child.item_bytes(state));
    }
    join.apply(staged.into_batch(), space);
    if is_last {
        dir.dir.filter.remove_last(name);
    }
    Ok(())
}

/// Stages the removal of a name and of the way back to it. True where no name with its hash is
/// left.
pub(super) fn stage_removal(staged: &mut Staged<'_>, dir: &Inode, name: &[u8], held: &Held) -> Result<bool> {
    held.look.pass_to(staged, dir, name);
    let index = match held.found.target {
        Target::Inode(_) => names::remove_ref(staged, held.inode.ino, dir.ino, name)?,
        Target::Subvol(_) => find_index(dir, name)?,
    };
    names::remove(staged, dir.ino, name, index)
}

/// The index of a name that no inode leads back to: the stand-in for a subvolume.
fn find_index(dir: &Inode, name: &[u8]) -> Result<u64> {
    let mut cursor = dir.tree.cursor_type(names::index_key(dir.ino, FIRST_INDEX));
    while let Some((key, item)) = cursor.next()? {
        if view::dir_entries(&item).any(|e| e.name == name) {
            return Ok(key.offset);
        }
    }
    Err(Error::Store(StoreError::CorruptTree {
        tree: dir.tree.id(),
        what: format!("a name in directory {} has no index", dir.ino),
    }))
}

/// One name less; the last one makes an orphan of the inode.
pub(super) fn drop_link(staged: &mut Staged<'_>, child: &Inode, state: &mut InodeState) {
    let nlink = if child.is_dir() {
        0
    } else {
        state.attr.nlink.saturating_sub(1)
    };
    state.attr.nlink = nlink;
    if nlink == 0 {
        staged.put(orphan_key(child.ino), []);
        if child.is_dir() {
            state.attr.size = 0;
            state.disk_size = 0;
        }
    }
}

/// A directory that may go or be replaced. Errors: `NotEmpty`, also for the root of a subvolume.
pub(super) fn check_removable_dir(child: &Inode) -> Result<()> {
    if child.is_placeholder() {
        return Ok(());
    }
    if child.attr_now().size != 0 || child.ino == child.subvol.root_ino {
        return Err(Errno::NotEmpty.into());
    }
    let first = child.tree.cursor_type(names::index_key(child.ino, 0)).next()?;
    match first {
        Some(_) => Err(Errno::NotEmpty.into()),
        None => Ok(()),
    }
}
