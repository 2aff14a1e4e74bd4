//! Making inodes: with a name, or without one for now.

use std::sync::Arc;

use btrfs_format::block::item_bytes_max;
use btrfs_format::items::{FileExtentHead, file_extent_type};
use btrfs_format::{Generation, Key, KeyType, ObjectId};
use cowshed_vfs::{Error as Errno, FileKind, Timestamp, perm};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U64};

use super::names::{self, NewName};
use super::{check_name, know_absence, next_index, note_name, touch_dir};
use crate::access::{Caller, may_create};
use crate::error::Result;
use crate::files::{Files, prepare_and_join};
use crate::object::{Inode, InodeAttr, flags};
use crate::reclaim::orphan_key;
use crate::staged::Staged;
use crate::xattr::{self, acl, props};
use btrfs_store::overlay::ItemBytes;
use btrfs_store::space::Budget;

/// What a new inode shall be.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    pub(crate) kind: FileKind,
    /// Permission bits before umask and default access list.
    pub(crate) perm: u32,
    /// Device number in the callers' form.
    pub(crate) rdev: u32,
    /// Target of a symbolic link.
    pub(crate) target: &'a [u8],
}

/// An inode that is in no overlay yet.
pub(super) struct Plan<'t> {
    pub(super) inode: Arc<Inode>,
    pub(super) staged: Staged<'t>,
}

/// Makes an inode under a name. Errors: `Exists`, `NotFound` (the directory is unlinked),
/// `NoSpace`, ...
pub fn create(
    files: &Files,
    caller: &Caller<'_>,
    dir: &Arc<Inode>,
    name: &[u8],
    new: &NewInode<'_>,
) -> Result<Arc<Inode>> {
    check_name(name)?;
    check_target(files, new)?;
    let space = files.reserve(Budget::CREATE)?;
    let _lock = dir.lock.write();
    may_create(files, caller, dir)?;
    caller.need_node(new.kind, new.rdev.into())?;
    let now = files.store().env().now();
    let mut taken = None;
    let (join, plan) = prepare_and_join(files, |generation| {
        let mut staged = Staged::new(&dir.tree);
        // The name first: most failures are here, and no number is spent on them.
        know_absence(&mut staged, dir, name);
        let item = names::check_absent(&staged, dir.ino, name)?;
        let ino = match taken {
            Some(ino) => ino,
            None => *taken.insert(dir.subvol.take_ino()?),
        };
        let entry = NewName {
            dir: dir.ino,
            name,
            index: next_index(dir)?,
            location: Key::new(ino, KeyType::INODE_ITEM, 0),
            ty: names::file_type(new.kind),
            generation,
        };
        names::insert_into(&mut staged, &entry, item.as_deref());
        names::insert_first_ref(&mut staged, ino, &entry);
        let stamp = Stamp {
            generation,
            now,
            nlink: 1,
        };
        make(files, caller, dir, staged, ino, new, stamp)
    })?;
    let Plan { inode, mut staged } = plan;
    files.names().changed(staged.is_crowded());
    let mut state = dir.attr.lock();
    note_name(dir, name);
    touch_dir(&mut state, join.generation(), now, name.len(), 0);
    staged.put(dir.key(), dir.item_bytes(&state));
    // Before its name can be seen: a lookup of it would load another inode object.
    files.objects().inodes.insert_new(inode.clone());
    join.apply(staged.into_batch(), space);
    drop(state);
    Ok(inode)
}

/// Makes a regular file without a name: an orphan until it is linked.
pub fn tmpfile(files: &Files, caller: &Caller<'_>, dir: &Arc<Inode>, perm: u32) -> Result<Arc<Inode>> {
    let space = files.reserve(Budget::CREATE)?;
    let _lock = dir.lock.read();
    may_create(files, caller, dir)?;
    let new = NewInode {
        kind: FileKind::Regular,
        perm,
        rdev: 0,
        target: &[],
    };
    let now = files.store().env().now();
    let ino = dir.subvol.take_ino()?;
    let (join, plan) = prepare_and_join(files, |generation| {
        let mut staged = Staged::new(&dir.tree);
        staged.put(orphan_key(ino), []);
        make(
            files,
            caller,
            dir,
            staged,
            ino,
            &new,
            Stamp {
                generation,
                now,
                nlink: 0,
            },
        )
    })?;
    plan.inode.refs.set_linkable(true);
    let inode = plan.inode;
    files.names().made_without_name(dir, &inode);
    files.objects().inodes.insert_new(inode.clone());
    join.apply(plan.staged.into_batch(), space);
    Ok(inode)
}

#[derive(Clone, Copy)]
pub(super) struct Stamp {
    pub(super) generation: Generation,
    pub(super) now: Timestamp,
    pub(super) nlink: u32,
}

/// Stages the inode item, what it inherits and a link's target.
pub(super) fn make<'t>(
    files: &Files,
    caller: &Caller<'_>,
    dir: &Arc<Inode>,
    mut staged: Staged<'t>,
    ino: ObjectId,
    new: &NewInode<'_>,
    stamp: Stamp,
) -> Result<Plan<'t>> {
    let parent = dir.vfs_attr();
    let parent_flags = dir.flags();
    let default = acl::default_list(dir)?;
    let owned = perm::new_node(caller.ctx, &parent, default.as_deref(), new.kind, new.perm);
    let policy = files.objects().policy();
    let is_regular = new.kind == FileKind::Regular;
    let inode_flags = flags::inherit(parent_flags, is_regular, policy.nodatacow, policy.nodatasum);
    let target_bytes = new.target.len() as u64;
    let attr = InodeAttr {
        generation: stamp.generation,
        transid: stamp.generation,
        size: target_bytes,
        nbytes: target_bytes,
        nlink: stamp.nlink,
        uid: owned.uid,
        gid: owned.gid,
        mode: new.kind.mode_bits() | owned.perm,
        rdev: crate::object::rdev_to_disk(new.rdev),
        flags: inode_flags,
        sequence: 0,
        block_group: 0,
        atime: stamp.now,
        ctime: stamp.now,
        mtime: stamp.now,
        otime: stamp.now,
    };
    let mut inode = Inode::new(&dir.subvol, ino, attr, new.kind);
    inode.began_without_extents = is_regular;
    let inode = Arc::new(inode);
    let mut has_xattrs = false;
    for (name, list) in [(acl::ACCESS_NAME, &owned.access), (acl::DEFAULT_NAME, &owned.default)] {
        if let Some(list) = list {
            xattr::stage_set(&mut staged, ino, name, &list.to_bytes(), stamp.generation)?;
            has_xattrs = true;
        }
    }
    if let Some(value) = props::inherited_compression(dir, parent_flags, new.kind, inode_flags)? {
        xattr::stage_set(&mut staged, ino, props::COMPRESSION_NAME, value, stamp.generation)?;
        has_xattrs = true;
    }
    if !has_xattrs {
        inode.xattrs.set_known_empty();
    }
    if new.kind == FileKind::Directory {
        inode.dir.filter.start();
    }
    if new.kind == FileKind::Symlink {
        let key = Key::new(ino, KeyType::EXTENT_DATA, 0);
        staged.put(key, inline_extent(new.target, stamp.generation));
    }
    let item = inode.new_item_bytes(&inode.attr.lock());
    staged.put(inode.key(), item);
    Ok(Plan { inode, staged })
}

fn inline_extent(target: &[u8], generation: Generation) -> ItemBytes {
    let head = FileExtentHead {
        generation: generation.into(),
        ram_bytes: U64::new(target.len() as u64),
        compression: 0,
        encryption: 0,
        other_encoding: U16::ZERO,
        ty: file_extent_type::INLINE,
    };
    ItemBytes::beside_others(&[head.as_bytes(), target])
}

/// A link's target must fit one inline extent and be shorter than a sector.
fn check_target(files: &Files, new: &NewInode<'_>) -> Result<()> {
    if new.kind != FileKind::Symlink {
        return Ok(());
    }
    let inline_max = item_bytes_max(files.store().nodes().nodesize_bytes()) - size_of::<FileExtentHead>();
    if new.target.len() > inline_max || new.target.len() >= files.store().volume().sectorsize_bytes() as usize {
        return Err(Errno::NameTooLong.into());
    }
    if new.target.is_empty() {
        return Err(Errno::NotFound.into());
    }
    if new.target.contains(&0) {
        return Err(Errno::Invalid.into());
    }
    Ok(())
}
