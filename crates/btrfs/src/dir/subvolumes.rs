//! Making and deleting subvolumes: names that lead to a tree of their own.
//!
//! A new tree is made by a commit ([`btrfs_store::jobs::NewTree`]), and has no name then: a crash
//! leaves an orphan, which the next mount drops. Its name is an operation like others, made durable
//! by a second commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::items::{InodeItem, InodeRef, RootRef};
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId, Uuid, view};
use btrfs_store::jobs::{Job, NewContent, NewTree, RootChange};
use btrfs_store::overlay::ItemBytes;
use btrfs_store::space::{Budget, Purpose};
use btrfs_store::txn::Batch;
use cowshed_vfs::{Access, Error as Errno, FileKind, PERM_MASK};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U64};

use super::names::{self, NewName, Target};
use super::{check_name, find_child, is_still, next_index, note_name, touch_dir};
use crate::access::{Caller, check_dir, may_create, may_remove};
use crate::error::Result;
use crate::files::{Files, prepare_and_join};
use crate::object::{Inode, InodeAttr, Subvol, lock};
use crate::staged::Staged;
use crate::{reclaim, subvol};

/// The name in the tree of tree roots that leads to the subvolume that is mounted by default.
const DEFAULT_NAME: &[u8] = b"default";

/// Makes an empty subvolume under a name. On disk when this returns. Errors: as those of making a
/// directory.
pub fn create(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    make(files, caller, dir, name, false, 1, |generation| {
        NewContent::Items(root_items(files, caller, generation))
    })
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
    let creds = &caller.ctx.creds;
    if !creds.is_privileged() && creds.uid != source.attr_now().uid {
        return Err(Errno::NotPermitted.into());
    }
    let id = source.subvol.id;
    // Its root has a reference to each of its children, and may have more by the time of the
    // commit.
    let children = source.tree.root_children()?;
    make(files, caller, dir, name, is_read_only, children, |_| {
        NewContent::CopyOf(id)
    })
}

/// Is it the root directory of a subvolume? Errors: `Invalid`; `NotFound` (it is deleted).
fn check_root(inode: &Inode) -> Result<()> {
    if inode.is_placeholder() || inode.ino != inode.subvol.root_ino {
        return Err(Errno::Invalid.into());
    }
    match inode.subvol.dead.load(Ordering::Acquire) {
        true => Err(Errno::NotFound.into()),
        false => Ok(()),
    }
}

fn make(
    files: &Files,
    caller: &Caller<'_>,
    dir: &Arc<Inode>,
    name: &[u8],
    is_read_only: bool,
    children: usize,
    content: impl Fn(Generation) -> NewContent,
) -> Result<()> {
    check_name(name)?;
    {
        let _lock = dir.lock.read();
        may_create(files, caller, dir)?;
        names::check_absent(&Staged::new(&dir.tree), dir.ino, name)?;
    }
    let store = files.store();
    let id = files.objects().take_subvolume_id(store.forest())?;
    let uuid = new_uuid(files);
    let space = files.reserve(Budget {
        purpose: Purpose::Create,
        // The root, and a split for each extent item that gets one more reference.
        blocks: u32::try_from(children + 16).unwrap_or(u32::MAX),
        is_release: false,
    })?;
    {
        let join = store.txn().join();
        let new = NewTree {
            id,
            uuid,
            content: content(join.generation()),
            space,
        };
        store.add_job(&join, Job::MakeTree(Box::new(new)));
    }
    files.commit()?;
    let subvol = subvol::open_new(files, id)?;
    let named = clean(files, &subvol).and_then(|()| give_name(files, caller, dir, name, &subvol, &uuid, is_read_only));
    if let Err(error) = named {
        subvol.dead.store(true, Ordering::Release);
        files.objects().forget_subvolume(&subvol);
        files.background().go_on_dropping();
        return Err(error);
    }
    files.commit()
}

/// Files of the source that had lost their last name and were in use: they go from the snapshot.
fn clean(files: &Files, subvol: &Arc<Subvol>) -> Result<()> {
    reclaim::clean_orphans(files, subvol).map(drop)
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

fn new_uuid(files: &Files) -> Uuid {
    let mut uuid = Uuid::default();
    files.store().env().random(&mut uuid);
    // Version 4, variant 1.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// Gives a tree that was made its name.
fn give_name(
    files: &Files,
    caller: &Caller<'_>,
    dir: &Arc<Inode>,
    name: &[u8],
    subvol: &Subvol,
    uuid: &Uuid,
    is_read_only: bool,
) -> Result<()> {
    let id = subvol.id;
    let space = files.reserve(Budget::CREATE)?;
    let _lock = dir.lock.write();
    may_create(files, caller, dir)?;
    let now = files.store().env().now();
    let (join, (mut staged, index)) = prepare_and_join(files, |generation| {
        let mut staged = Staged::new(&dir.tree);
        let entry = NewName {
            dir: dir.ino,
            name,
            index: next_index(dir)?,
            location: Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX),
            ty: names::file_type(FileKind::Directory),
            generation,
        };
        names::insert(&mut staged, &entry)?;
        Ok((staged, entry.index))
    })?;
    files.names().turn_off();
    let mut state = dir.attr.lock();
    note_name(dir, name);
    touch_dir(&mut state, join.generation(), now, name.len(), 0);
    staged.put(dir.key(), dir.item_bytes(&state));
    let mut batch = staged.into_batch();
    let head = RootRef {
        dirid: dir.ino.into(),
        sequence: U64::new(index),
        name_len: U16::new(u16::try_from(name.len()).expect("names were checked to be short")),
    };
    let root_ref = [head.as_bytes(), name].concat();
    let root_tree = files.store().forest().root_tree();
    let [down, up] = ref_keys(dir.tree.id(), id);
    batch.put(root_tree, down, root_ref.clone());
    batch.put(root_tree, up, root_ref);
    batch.delete(root_tree, orphan_key(id));
    put_uuid(files, &mut batch, KeyType::UUID_SUBVOL, uuid, Some(id))?;
    let change = RootChange::Named { is_read_only };
    files.store().add_job(&join, Job::ChangeRoot(id, change));
    subvol.read_only.store(is_read_only, Ordering::Release);
    join.apply(batch, space);
    drop(state);
    Ok(())
}

/// The references of a parent's tree to a subvolume, and back.
fn ref_keys(parent: TreeId, id: TreeId) -> [Key; 2] {
    [
        Key::new(parent.object_id(), KeyType::ROOT_REF, id.get()),
        Key::new(id.object_id(), KeyType::ROOT_BACKREF, parent.get()),
    ]
}

fn orphan_key(id: TreeId) -> Key {
    Key::new(ObjectId::ORPHAN, KeyType::ORPHAN_ITEM, id.get())
}

/// Notes in the tree of uuids which subvolume has this one; `None`: none has.
fn put_uuid(files: &Files, batch: &mut Batch, ty: KeyType, uuid: &Uuid, id: Option<TreeId>) -> Result<()> {
    let Some(tree) = files.store().forest().load(TreeId::UUID)? else {
        return Ok(());
    };
    if *uuid == Uuid::default() {
        return Ok(());
    }
    let (low, high) = uuid.split_at(8);
    let number = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of a uuid is eight bytes"));
    let key = Key::new(ObjectId(number(low)), ty, number(high));
    match id {
        Some(id) => batch.put(&tree, key, id.get().to_le_bytes()),
        None => batch.delete(&tree, key),
    }
    Ok(())
}

/// Deletes the subvolume under a name, whatever it has in it. Its space comes back in the
/// background, once nothing in it is in use any more. Errors: those of removing a directory;
/// `Invalid` (no subvolume), `NotEmpty` (subvolumes are nested in it), `NotPermitted` (it is
/// mounted by default, or the caller may not write into it).
pub(crate) fn delete(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    remove(files, caller, dir, name, |child| {
        caller.need(child, Access::WRITE | Access::EXEC)
    })
}

/// As [`delete`], of one that has nothing in it: the caller need not be allowed to write into it.
pub(super) fn delete_empty(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
    remove(files, caller, dir, name, |child| match child.attr_now().size {
        0 => Ok(()),
        _ => Err(Errno::NotEmpty.into()),
    })
}

fn remove(
    files: &Files,
    caller: &Caller<'_>,
    dir: &Arc<Inode>,
    name: &[u8],
    may_go: impl Fn(&Inode) -> Result<()>,
) -> Result<()> {
    check_dir(dir)?;
    check_name(name)?;
    let space = files.reserve(Budget::UNLINK)?;
    loop {
        let (found, child) = find_child(files, dir, name)?;
        let Target::Subvol(id) = found.target else {
            return Err(Errno::Invalid.into());
        };
        let locks = lock::write_all(&[dir, &child]);
        if !is_still(dir, name, &found)? {
            continue;
        }
        check_root(&child)?;
        may_remove(files, caller, dir, &child)?;
        may_go(&child)?;
        check_deletable(files, id)?;
        let now = files.store().env().now();
        let root_tree = files.store().forest().root_tree();
        let [down, up] = ref_keys(dir.tree.id(), id);
        let (join, (mut staged, is_last, item)) = prepare_and_join(files, |_| {
            let index = root_tree
                .get(&down)?
                .and_then(|item| view::root_ref(&item).map(|(head, _)| head.sequence.get()))
                .ok_or(Errno::NotFound)?;
            let mut staged = Staged::new(&dir.tree);
            let is_last = names::remove(&mut staged, dir.ino, name, index)?;
            let top = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
            let item = root_tree.floor_same_type(&top)?;
            let item = item
                .and_then(|(_, item)| view::root_item(&item))
                .ok_or(Errno::NotFound)?;
            Ok((staged, is_last, item))
        })?;
        files.names().turn_off();
        let mut state = dir.attr.lock();
        touch_dir(&mut state, join.generation(), now, 0, name.len());
        staged.put(dir.key(), dir.item_bytes(&state));
        let mut batch = staged.into_batch();
        batch.delete(root_tree, down);
        batch.delete(root_tree, up);
        batch.put(root_tree, orphan_key(id), []);
        put_uuid(files, &mut batch, KeyType::UUID_SUBVOL, &item.uuid, None)?;
        files.store().add_job(&join, Job::ChangeRoot(id, RootChange::Dead));
        child.subvol.dead.store(true, Ordering::Release);
        join.apply(batch, space);
        drop(state);
        if is_last {
            dir.dir.filter.remove_last(name);
        }
        drop(locks);
        files.objects().forget_subvolume(&child.subvol);
        files.background().go_on_dropping();
        return Ok(());
    }
}

/// Nothing else needs the subvolume.
fn check_deletable(files: &Files, id: TreeId) -> Result<()> {
    let root_tree = files.store().forest().root_tree();
    let default = root_tree.get(&names::item_key(ObjectId::ROOT_TREE_DIR, DEFAULT_NAME))?;
    let default = default.and_then(|item| {
        let entry = view::dir_entries(&item).find(|e| e.name == DEFAULT_NAME)?;
        Some(Key::from(entry.head.location).objectid)
    });
    if default == Some(id.object_id()) {
        return Err(Errno::NotPermitted.into());
    }
    let nested = root_tree
        .cursor_type(Key::new(id.object_id(), KeyType::ROOT_REF, 0))
        .next()?;
    match nested {
        Some(_) => Err(Errno::NotEmpty.into()),
        None => Ok(()),
    }
}

/// Makes a subvolume, whose root directory is `root`, read-only or writable. On disk when this
/// returns. Errors: `Invalid` (no subvolume), `NotPermitted`.
pub fn set_read_only(files: &Files, caller: &Caller<'_>, root: &Arc<Inode>, is_read_only: bool) -> Result<()> {
    check_root(root)?;
    let creds = &caller.ctx.creds;
    if !creds.is_privileged() && creds.uid != root.attr_now().uid {
        return Err(Errno::NotPermitted.into());
    }
    if files.objects().is_read_only() || files.store().volume().is_read_only() {
        return Err(Errno::ReadOnly.into());
    }
    {
        let join = files.store().txn().join();
        root.subvol.read_only.store(is_read_only, Ordering::Release);
        let change = Job::ChangeRoot(root.subvol.id, RootChange::ReadOnly(is_read_only));
        files.store().add_job(&join, change);
        files.names().turn_off();
    }
    files.commit()
}

/// Has those deleted subvolumes dropped in which nothing is in use any more. True where some are
/// left.
pub(crate) fn drop_unused(files: &Files) -> bool {
    let is_unused = |subvol: &Arc<Subvol>| files.objects().inodes.evict_tree(subvol.id);
    let (unused, is_left) = files.objects().take_unused(is_unused);
    files.store().queue_drops(unused);
    is_left
}

/// A subvolume, as the volume's tree of roots has it.
#[derive(Clone, Debug)]
pub struct Listed {
    pub id: TreeId,
    /// `None` for the top level.
    pub parent: Option<TreeId>,
    /// Directory in the parent's tree, and the name in it.
    pub dir: ObjectId,
    pub name: Vec<u8>,
    pub item: btrfs_format::items::RootItem,
}

/// The subvolume with the least id from `from` on that has a name, or is the top level.
pub fn next_listed(files: &Files, from: TreeId) -> Result<Option<Listed>> {
    let root_tree = files.store().forest().root_tree();
    let mut id = from.max(TreeId::FS);
    loop {
        let key = Key::new(id.object_id(), KeyType::ROOT_ITEM, 0);
        let end = Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX);
        let Some((key, item)) = root_tree.cursor(key, end).next()? else {
            return Ok(None);
        };
        let found = key.objectid.tree_id();
        let next = TreeId(found.get() + 1);
        if key.ty != KeyType::ROOT_ITEM || !found.is_subvolume() {
            // Other items of the object stand before its root item, or it has none.
            id = if key.ty < KeyType::ROOT_ITEM { found } else { next };
            continue;
        }
        let item = view::root_item(&item).ok_or(Errno::Io)?;
        let parent = subvol::parent_of_root(files, found)?;
        if item.refs.get() == 0 || (parent.is_none() && found != TreeId::FS) {
            id = next;
            continue;
        }
        let (mut dir, mut name) = (ObjectId(0), Vec::new());
        if let Some((tree, _)) = parent {
            let [_, up] = ref_keys(tree, found);
            let back = root_tree.get(&up)?.ok_or(Errno::Io)?;
            let (head, bytes) = view::root_ref(&back).ok_or(Errno::Io)?;
            (dir, name) = (ObjectId(head.dirid.get()), bytes.to_vec());
        }
        return Ok(Some(Listed {
            id: found,
            parent: parent.map(|(tree, _)| tree),
            dir,
            name,
            item,
        }));
    }
}
