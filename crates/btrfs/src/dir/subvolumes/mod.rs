//! Making and deleting subvolumes: names that lead to a tree of their own.
//!
//! An empty subvolume is made in the running transaction: its tree has no block until the next
//! commit. The tree of a snapshot is made by a commit ([`btrfs_store::jobs::NewSnapshot`]), and has
//! no name then: a crash leaves an orphan, which the next mount drops. Its name is an operation
//! like others, made durable by a second commit.

mod delete;
mod list;
mod props;
mod uuids;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::items::{InodeItem, InodeRef, RootItem, RootRef, Timespec};
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId, Uuid, view};
use btrfs_store::jobs::{Job, NewSnapshot, RootChange, root_item_of_new};
use btrfs_store::overlay::ItemBytes;
use btrfs_store::space::{Budget, MetaReservation, Purpose};
use btrfs_store::txn::{Batch, Join};
use cowshed_vfs::{Error as Errno, FileKind, PERM_MASK, Timestamp};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

pub(super) use delete::delete_empty;
pub(crate) use delete::{all_deleted, delete, delete_by_id, drop_unused, is_deleted};
pub use list::{Listed, find, next_child, next_listed};
pub use props::{set_default, set_read_only, set_received};

use super::names::{self, NewName};
use super::{check_name, know_absence, next_index, note_name, touch_dir};
use crate::access::{Caller, may_create};
use crate::error::Result;
use crate::files::{Files, prepare_and_join};
use crate::object::{Inode, InodeAttr, Subvol};
use crate::staged::Staged;
use crate::{reclaim, subvol};
use uuids::UuidEdits;

/// Makes an empty subvolume under a name, in the running transaction. Errors: as those of making a
/// directory.
pub fn create(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    check_new_name(files, caller, dir, name)?;
    let store = files.store();
    let id = files.objects().take_subvolume_id(store.forest())?;
    let uuid = new_uuid(files);
    // Its root block, for which no leaf has to be opened.
    let root_space = files.reserve(Budget {
        blocks: 1,
        ..Budget::CREATE
    })?;
    let space = files.reserve(Budget::NEW_SUBVOLUME)?;
    let _names = files.objects().subvolume_names.lock();
    let _lock = dir.lock.write();
    may_create(files, caller, dir)?;
    let now = store.env().now();
    let (join, plan) = prepare_and_join(files, |generation| {
        let mut plan = NewPlace::prepare(files, (dir, name), id, generation)?;
        plan.uuids.add(&uuid, KeyType::UUID_SUBVOL, id)?;
        Ok(plan)
    })?;
    let generation = join.generation();
    let tree = store.forest().add_unborn(id);
    let root = root_item_of_new(uuid, generation, disk_time(now), store.volume().nodesize_bytes().into());
    let mut batch = Batch::new();
    for (key, item) in root_items(files, caller, generation) {
        batch.put(&tree, key, item);
    }
    let root_key = Key::new(id.object_id(), KeyType::ROOT_ITEM, 0);
    batch.put(store.forest().root_tree(), root_key, root.as_bytes());
    subvol::open_new(files, id, tree);
    store.add_job(&join, Job::HoldSpace(root_space));
    plan.apply(files, (dir, name), &join, (batch, space));
    Ok(())
}

/// Makes a snapshot of a subvolume, whose root directory is `source`, under a name. On disk when
/// this returns. Dirty data that has not been written back is not in it. Errors: as those of making
/// a directory; `Invalid` (no subvolume), `NotPermitted` (only the owner of the source's root
/// directory may).
pub fn snapshot(
    files: &Files,
    caller: &Caller<'_>,
    source: &Arc<Inode>,
    (dir, name): (&Arc<Inode>, &[u8]),
    is_read_only: bool,
) -> Result<()> {
    check_root(source)?;
    caller.need_owner(source)?;
    check_new_name(files, caller, dir, name)?;
    // Its root has a reference to each of its children, and may have more by the time of the
    // commit.
    let children = source.tree.root_children()?;
    let store = files.store();
    let id = files.objects().take_subvolume_id(store.forest())?;
    let space = files.reserve(Budget {
        purpose: Purpose::Create,
        // The root, and a split for each extent item that gets one more reference.
        blocks: u32::try_from(children + 16).unwrap_or(u32::MAX),
        is_release: false,
    })?;
    let new = NewSnapshot {
        id,
        uuid: new_uuid(files),
        source: source.subvol.id,
        space,
    };
    store.add_job(&store.txn().join(), Job::Snapshot(Box::new(new)));
    files.commit()?;
    let subvol = subvol::open_new(files, id, store.forest().require(id)?);
    // Files of the source that had lost their last name and were in use go from the snapshot.
    let cleaned = reclaim::clean_orphans(files, &subvol);
    let named = cleaned.and_then(|_| give_name(files, caller, (dir, name), &subvol, is_read_only));
    if let Err(error) = named {
        subvol.dead.store(true, Ordering::Release);
        files.objects().forget_subvolume(&subvol);
        files.background().note_deletion();
        return Err(error);
    }
    files.commit()
}

fn check_new_name(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    check_name(name)?;
    let _lock = dir.lock.read();
    may_create(files, caller, dir)?;
    names::check_absent(&Staged::new(&dir.tree), dir.ino, name)?;
    Ok(())
}

/// Is it the root directory of a subvolume? Errors: `Invalid`; `NotFound` (it is deleted).
fn check_root(inode: &Inode) -> Result<()> {
    if inode.is_placeholder() || inode.ino != inode.subvol.root_ino {
        return Err(Errno::Invalid.into());
    }
    match inode.subvol.is_dead() {
        true => Err(Errno::NotFound.into()),
        false => Ok(()),
    }
}

/// The items of an empty subvolume: its root directory.
fn root_items(files: &Files, caller: &Caller<'_>, generation: Generation) -> Vec<(Key, ItemBytes)> {
    let now = files.store().env().now();
    let ctx = caller.ctx;
    let attr = InodeAttr {
        generation,
        transid: generation,
        size: 0,
        nbytes: 0,
        nlink: 1,
        uid: ctx.creds.uid,
        gid: ctx.creds.gid,
        mode: FileKind::Directory.mode_bits() | 0o777 & !ctx.umask & PERM_MASK,
        rdev: 0,
        flags: 0,
        sequence: 0,
        block_group: 0,
        atime: now,
        ctime: now,
        mtime: now,
        otime: now,
    };
    let root = ObjectId::FIRST_FREE;
    let up = InodeRef {
        index: U64::ZERO,
        name_len: U16::new(2),
    };
    let item: InodeItem = attr.encode(0);
    vec![
        (Key::new(root, KeyType::INODE_ITEM, 0), item.as_bytes().into()),
        (
            Key::new(root, KeyType::INODE_REF, root.get()),
            [up.as_bytes(), b".."].concat().into(),
        ),
    ]
}

fn disk_time(time: Timestamp) -> Timespec {
    Timespec {
        sec: U64::new(time.secs.cast_unsigned()),
        nsec: U32::new(time.nanos),
    }
}

fn new_uuid(files: &Files) -> Uuid {
    let mut uuid = Uuid::default();
    files.store().env().random(&mut uuid);
    // Version 4, variant 1.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// Gives the tree of a snapshot its name.
fn give_name(
    files: &Files,
    caller: &Caller<'_>,
    (dir, name): (&Arc<Inode>, &[u8]),
    subvol: &Subvol,
    is_read_only: bool,
) -> Result<()> {
    let id = subvol.id;
    let space = files.reserve(Budget::CREATE)?;
    // The subvolume that the directory is in may not be deleted meanwhile.
    let _names = files.objects().subvolume_names.lock();
    let _lock = dir.lock.write();
    may_create(files, caller, dir)?;
    let root = root_item(files, id)?.ok_or(Errno::NotFound)?;
    let (join, plan) = prepare_and_join(files, |generation| {
        let mut plan = NewPlace::prepare(files, (dir, name), id, generation)?;
        plan.uuids.add(&root.uuid, KeyType::UUID_SUBVOL, id)?;
        if is_read_only {
            plan.uuids.add(&root.received_uuid, KeyType::UUID_RECEIVED_SUBVOL, id)?;
        }
        Ok(plan)
    })?;
    let mut batch = Batch::new();
    batch.delete(files.store().forest().root_tree(), reclaim::orphan_key(id.object_id()));
    let change = RootChange::Named { is_read_only };
    files.store().add_job(&join, Job::ChangeRoot(id, change));
    subvol.read_only.store(is_read_only, Ordering::Release);
    plan.apply(files, (dir, name), &join, (batch, space));
    Ok(())
}

/// A name for a subvolume that has none, in its directory, in the tree of roots and in that of
/// uuids.
struct NewPlace<'t> {
    id: TreeId,
    staged: Staged<'t>,
    index: u64,
    uuids: UuidEdits,
}

impl<'t> NewPlace<'t> {
    /// The caller holds the locks on the directory and on the names of subvolumes.
    fn prepare(
        files: &Files,
        (dir, name): (&'t Arc<Inode>, &[u8]),
        id: TreeId,
        generation: Generation,
    ) -> Result<Self> {
        let mut staged = Staged::new(&dir.tree);
        let entry = NewName {
            dir: dir.ino,
            name,
            index: next_index(dir)?,
            location: Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX),
            ty: names::file_type(FileKind::Directory),
            generation,
        };
        know_absence(&mut staged, dir, name);
        names::insert(&mut staged, &entry)?;
        Ok(Self {
            id,
            staged,
            index: entry.index,
            uuids: UuidEdits::new(files)?,
        })
    }

    /// Applies it with what else the operation changes.
    fn apply(
        mut self,
        files: &Files,
        (dir, name): (&Arc<Inode>, &[u8]),
        join: &Join<'_>,
        (others, space): (Batch, MetaReservation),
    ) {
        files.names().turn_off();
        let mut state = dir.attr.lock();
        note_name(dir, name);
        let now = files.store().env().now();
        touch_dir(&mut state, join.generation(), now, name.len(), 0);
        self.staged.put(dir.key(), dir.item_bytes(&state));
        let mut batch = self.staged.into_batch();
        let item = root_ref(dir.ino, self.index, name);
        let root_tree = files.store().forest().root_tree();
        let [down, up] = ref_keys(dir.tree.id(), self.id);
        batch.put(root_tree, down, item.clone());
        batch.put(root_tree, up, item);
        self.uuids.add_to(&mut batch);
        batch.append(others);
        join.apply(batch, space);
    }
}

/// The root item of a subvolume; `None` where there is none.
fn root_item(files: &Files, id: TreeId) -> Result<Option<RootItem>> {
    let top = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let item = files.store().forest().root_tree().floor_same_type(&top)?;
    Ok(match item {
        Some((_, item)) => Some(view::root_item(&item).ok_or(Errno::Io)?),
        None => None,
    })
}

/// The item of both references: the directory, and the name there.
pub(super) fn root_ref(dir: ObjectId, index: u64, name: &[u8]) -> Vec<u8> {
    let head = RootRef {
        dirid: dir.into(),
        sequence: U64::new(index),
        name_len: U16::new(u16::try_from(name.len()).expect("names were checked to be short")),
    };
    [head.as_bytes(), name].concat()
}

/// The index of a subvolume's name in its directory. Errors: `NotFound`.
pub(super) fn root_ref_index(files: &Files, parent: TreeId, id: TreeId) -> Result<u64> {
    let [down, _] = ref_keys(parent, id);
    let item = files.store().forest().root_tree().get(&down)?;
    let head = item.and_then(|item| view::root_ref(&item).map(|(head, _)| head.sequence.get()));
    Ok(head.ok_or(Errno::NotFound)?)
}

/// The references of a parent's tree to a subvolume, and back.
pub(super) fn ref_keys(parent: TreeId, id: TreeId) -> [Key; 2] {
    [
        Key::new(parent.object_id(), KeyType::ROOT_REF, id.get()),
        Key::new(id.object_id(), KeyType::ROOT_BACKREF, parent.get()),
    ]
}
