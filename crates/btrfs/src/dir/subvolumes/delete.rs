//! Deleting subvolumes, and having them dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::{KeyType, ObjectId, TreeId};
use btrfs_store::jobs::{Job, RootChange};
use btrfs_store::space::Budget;
use cowshed_vfs::{Access, Error as Errno};

use super::uuids::UuidEdits;
use super::{check_root, ref_keys, root_ref_index};
use crate::access::{Caller, check_dir, may_remove};
use crate::dir::names::{self, Target};
use crate::dir::{check_name, find_child, touch_dir};
use crate::error::Result;
use crate::files::{Files, prepare_and_join};
use crate::object::{Inode, Remaining, Subvol, Taken, lock};
use crate::staged::Staged;
use crate::{reclaim, subvol};

/// Deletes the subvolume under a name, whatever it has in it, and returns it. Its space comes back
/// in the background, once nothing in it is in use any more. Errors: those of removing a directory;
/// `Invalid` (a directory that is no subvolume), `NotEmpty` (subvolumes are nested in it),
/// `NotPermitted` (it is mounted by default, or the caller may not write into it), `Busy` (it is
/// the root of a mount).
pub(crate) fn delete(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Subvol>> {
    remove(files, caller, dir, name, |child| {
        caller.need(child, Access::WRITE | Access::EXEC)
    })
}

/// As [`delete`], of one that has nothing in it: the caller need not be allowed to write into it.
pub(in crate::dir) fn delete_empty(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    remove(files, caller, dir, name, |child| match child.attr_now().size {
        0 => Ok(()),
        _ => Err(Errno::NotEmpty.into()),
    })?;
    Ok(())
}

/// As [`delete`], by number. Returns where its name was, too. Errors: in addition `NotFound`.
pub(crate) fn delete_by_id(
    files: &Files,
    caller: &Caller<'_>,
    id: TreeId,
) -> Result<(Arc<Inode>, Vec<u8>, Arc<Subvol>)> {
    let place = super::find(files, id)?.ok_or(Errno::NotFound)?.place;
    let place = place.ok_or(Errno::NotPermitted)?;
    let above = subvol::load(files, place.tree)?.ok_or(Errno::NotFound)?;
    let dir = files.objects().inodes.load(&above, place.dir)?.ok_or(Errno::NotFound)?;
    let gone = delete(files, caller, &dir, &place.name)?;
    Ok((dir, place.name, gone))
}

fn remove(
    files: &Files,
    caller: &Caller<'_>,
    dir: &Arc<Inode>,
    name: &[u8],
    may_go: impl Fn(&Inode) -> Result<()>,
) -> Result<Arc<Subvol>> {
    check_dir(dir)?;
    check_name(name)?;
    let space = files.reserve(Budget::UNLINK)?;
    loop {
        let held = find_child(files, dir, name)?;
        let child = &held.inode;
        let Target::Subvol(id) = held.found.target else {
            return Err(if child.is_dir() {
                Errno::Invalid
            } else {
                Errno::NotDirectory
            }
            .into());
        };
        // None may be made in it between the check that none is nested in it and the batch.
        let _names = files.objects().subvolume_names.lock();
        let locks = lock::write_all(&[dir, child]);
        if !held.is_still(files, dir, name)? {
            continue;
        }
        check_root(child)?;
        may_remove(files, caller, dir, child)?;
        may_go(child)?;
        check_deletable(files, id)?;
        let now = files.store().env().now();
        let root_tree = files.store().forest().root_tree();
        let [down, up] = ref_keys(dir.tree.id(), id);
        let (join, (mut staged, is_last, uuids)) = prepare_and_join(files, |_| {
            let index = root_ref_index(files, dir.tree.id(), id)?;
            let mut staged = Staged::new(&dir.tree);
            let is_last = names::remove(&mut staged, dir.ino, name, index)?;
            let item = super::root_item(files, id)?.ok_or(Errno::NotFound)?;
            let mut uuids = UuidEdits::new(files)?;
            uuids.remove(&item.uuid, KeyType::UUID_SUBVOL, id)?;
            uuids.remove(&item.received_uuid, KeyType::UUID_RECEIVED_SUBVOL, id)?;
            Ok((staged, is_last, uuids))
        })?;
        files.names().turn_off();
        let mut state = dir.attr.lock();
        touch_dir(&mut state, join.generation(), now, 0, name.len());
        staged.put(dir.key(), dir.item_bytes(&state));
        let mut batch = staged.into_batch();
        batch.delete(root_tree, down);
        batch.delete(root_tree, up);
        batch.put(root_tree, reclaim::orphan_key(id.object_id()), []);
        uuids.add_to(&mut batch);
        files.store().add_job(&join, Job::ChangeRoot(id, RootChange::Dead));
        child.subvol.dead.store(true, Ordering::Release);
        join.apply(batch, space);
        drop(state);
        if is_last {
            dir.dir.filter.remove_last(name);
        }
        drop(locks);
        files.objects().forget_subvolume(&child.subvol);
        files.background().note_deletion();
        return Ok(child.subvol.clone());
    }
}

/// Nothing else needs the subvolume.
fn check_deletable(files: &Files, id: TreeId) -> Result<()> {
    if files.objects().views.shows_as_root(id) {
        return Err(Errno::Busy.into());
    }
    if subvol::default_id(files)? == id {
        return Err(Errno::NotPermitted.into());
    }
    match super::next_child(files, id, TreeId(0))? {
        Some(_) => Err(Errno::NotEmpty.into()),
        None => Ok(()),
    }
}

/// Was the subvolume deleted, and is not gone yet? `None` where there is none.
pub(crate) fn is_deleted(files: &Files, id: TreeId) -> Result<Option<bool>> {
    let orphan = reclaim::orphan_key(id.object_id());
    if files.store().forest().root_tree().get(&orphan)?.is_some() {
        return Ok(Some(true));
    }
    Ok(super::root_item(files, id)?.map(|_| false))
}

/// Those that were deleted and are not gone yet.
pub(crate) fn all_deleted(files: &Files) -> Result<Vec<u64>> {
    let mut orphans = files
        .store()
        .forest()
        .root_tree()
        .cursor_type(reclaim::orphan_key(ObjectId(0)));
    let mut all = Vec::new();
    while let Some((key, _)) = orphans.next()? {
        all.push(key.offset);
    }
    Ok(all)
}

/// Has those deleted subvolumes dropped in which nothing is in use any more. Returns what the
/// others wait for, and what is to be freed. `discard` drops dirty data of a file.
pub(crate) fn drop_unused(files: &Files, discard: impl Fn(&Arc<Inode>)) -> (Remaining, Vec<Taken>) {
    let (unused, remaining, gone) = files
        .objects()
        .take_unused(|tree| files.data().listed_in(tree), discard);
    files.store().queue_drops(unused);
    files.objects().end_look();
    (remaining, gone)
}
