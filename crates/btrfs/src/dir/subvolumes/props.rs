//! What can be changed of a subvolume: its read-only flag, what it was received from, and whether
//! it is mounted by default.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::features::incompat;
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId};
use btrfs_store::jobs::{Job, Received, RootChange};
use btrfs_store::space::Budget;
use btrfs_store::txn::Batch;
use cowshed_vfs::{Error as Errno, FileKind, Received as FromCaller, Timestamp};

use super::uuids::UuidEdits;
use super::{check_root, disk_time, root_item};
use crate::access::{Caller, check_volume_writable};
use crate::dir::names;
use crate::error::Result;
use crate::files::{Files, prepare_and_join};
use crate::object::Inode;
use crate::subvol;

/// Makes a subvolume, whose root directory is `root`, read-only or writable. On disk when this
/// returns. Errors: `Invalid` (no subvolume), `NotPermitted`, `ReadOnly`.
pub fn set_read_only(files: &Files, caller: &Caller<'_>, root: &Arc<Inode>, is_read_only: bool) -> Result<()> {
    check_root(root)?;
    caller.need_owner(root)?;
    check_volume_writable(files)?;
    {
        let join = files.store().txn().join();
        root.subvol.read_only.store(is_read_only, Ordering::Release);
        let change = Job::ChangeRoot(root.subvol.id, RootChange::ReadOnly(is_read_only));
        files.store().add_job(&join, change);
        files.names().turn_off();
    }
    files.commit()
}

/// Notes what a subvolume, whose root directory is `root`, was received from. On disk when this
/// returns. Gives the transaction and the time at which it counts as received. Errors: `Invalid`
/// (no subvolume), `NotPermitted`, `ReadOnly` (the volume, or the subvolume).
pub fn set_received(
    files: &Files,
    caller: &Caller<'_>,
    root: &Arc<Inode>,
    from: &FromCaller,
) -> Result<(Generation, Timestamp)> {
    check_root(root)?;
    caller.need_owner(root)?;
    check_volume_writable(files)?;
    if root.subvol.is_read_only() {
        return Err(Errno::ReadOnly.into());
    }
    let (id, now) = (root.subvol.id, files.store().env().now());
    let space = files.reserve(Budget::CREATE)?;
    let received_in = {
        let _names = files.objects().subvolume_names.lock();
        check_root(root)?;
        let (join, uuids) = prepare_and_join(files, |_| {
            let before = root_item(files, id)?.ok_or(Errno::NotFound)?.received_uuid;
            let mut uuids = UuidEdits::new(files)?;
            uuids.remove(&before, KeyType::UUID_RECEIVED_SUBVOL, id)?;
            uuids.add(&from.uuid, KeyType::UUID_RECEIVED_SUBVOL, id)?;
            Ok(uuids)
        })?;
        let mut batch = Batch::new();
        uuids.add_to(&mut batch);
        let received = Received {
            uuid: from.uuid,
            sent_generation: Generation(from.sent_generation),
            sent: disk_time(from.sent),
            received: disk_time(now),
        };
        let change = Job::ChangeRoot(id, RootChange::Received(received));
        files.store().add_job(&join, change);
        join.apply(batch, space);
        join.generation()
    };
    files.commit()?;
    Ok((received_in, now))
}

/// Has a subvolume mounted by default; 0 stands for the top level. On disk when this returns.
/// Errors: `NotFound`, `ReadOnly`.
pub fn set_default(files: &Files, id: TreeId) -> Result<()> {
    check_volume_writable(files)?;
    let id = if id == TreeId(0) { TreeId::FS } else { id };
    let space = files.reserve(Budget::CREATE)?;
    {
        // It may not be deleted meanwhile.
        let _names = files.objects().subvolume_names.lock();
        subvol::load(files, id)?.ok_or(Errno::NotFound)?;
        let location = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
        let key = names::item_key(ObjectId::ROOT_TREE_DIR, subvol::DEFAULT_NAME);
        let ty = names::file_type(FileKind::Directory);
        let (join, item) = prepare_and_join(files, |generation| {
            Ok(names::entry_bytes(subvol::DEFAULT_NAME, location, ty, generation))
        })?;
        files.store().volume().need_features(incompat::DEFAULT_SUBVOL);
        let mut batch = Batch::new();
        batch.put(files.store().forest().root_tree(), key, item);
        join.apply(batch, space);
    }
    files.commit()
}
