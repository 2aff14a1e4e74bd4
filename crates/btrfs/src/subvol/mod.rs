//! Subvolumes: which there are, how names cross into them, where a mount starts.

pub(crate) mod number;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use btrfs_format::features::root_flags;
use btrfs_format::{Key, KeyType, ObjectId, TreeId, hash, view};
use btrfs_store::tree::Tree;
use cowshed_vfs::{FileKind, Timestamp};

use crate::error::{Error, Result, StoreError};
use crate::files::Files;
use crate::object::{Inode, InodeAttr, PLACEHOLDER_INO_BIT, Subvol};
use crate::reclaim;

/// The subvolume `id`; `None` where there is none, or only its remains.
pub(crate) fn load(files: &Files, id: TreeId) -> Result<Option<Arc<Subvol>>> {
    if let Some(subvol) = files.objects().subvols.read().get(&id) {
        return Ok(Some(subvol.clone()));
    }
    if !id.is_subvolume() {
        return Ok(None);
    }
    let key = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let Some((_, item)) = files.store().forest().root_tree().floor_same_type(&key)? else {
        return Ok(None);
    };
    let root = view::root_item(&item).ok_or_else(|| {
        Error::Store(StoreError::CorruptTree {
            tree: TreeId::ROOT,
            what: format!("root item of tree {id} is too short"),
        })
    })?;
    let flags = root.subvolume_flags();
    if root.refs.get() == 0 || flags & root_flags::SUBVOL_DEAD != 0 {
        return Ok(None);
    }
    let Some(tree) = files.store().forest().load(id)? else {
        return Ok(None);
    };
    let root_ino = match root.root_dirid.get() {
        0 => ObjectId::FIRST_FREE,
        n => ObjectId(n),
    };
    let fresh = Arc::new(Subvol {
        id,
        tree,
        root_ino,
        read_only: AtomicBool::new(flags & root_flags::SUBVOL_RDONLY != 0),
        dead: AtomicBool::new(false),
        next_ino: AtomicU64::new(0),
        seen_users: AtomicUsize::new(0),
        unloading: AtomicUsize::new(0),
        remembered: Arc::default(),
    });
    let Some(subvol) = files.objects().keep_subvolume(&fresh) else {
        return Ok(None);
    };
    let is_writable =
        !(subvol.is_read_only() || files.objects().is_read_only() || files.store().volume().is_read_only());
    if Arc::ptr_eq(&subvol, &fresh) && is_writable {
        // The files that are left wait for the next mount; what cannot be read answers for itself.
        if let Err(error) = reclaim::clean_orphans(files, &subvol) {
            tracing::error!(tree = %id, %error, "the orphans of the subvolume cannot be cleaned up");
        }
    }
    Ok(Some(subvol))
}

/// A subvolume that was just made and has no name yet.
pub(crate) fn open_new(files: &Files, id: TreeId, tree: Arc<Tree>) -> Arc<Subvol> {
    let subvol = Arc::new(Subvol {
        id,
        tree,
        root_ino: ObjectId::FIRST_FREE,
        read_only: AtomicBool::new(false),
        dead: AtomicBool::new(false),
        next_ino: AtomicU64::new(0),
        seen_users: AtomicUsize::new(0),
        unloading: AtomicUsize::new(0),
        remembered: Arc::default(),
    });
    files.objects().subvols.write().insert(id, subvol.clone());
    subvol
}

/// The root directory of a subvolume.
pub(crate) fn root_of(files: &Files, subvol: &Arc<Subvol>) -> Result<Arc<Inode>> {
    let root = files.objects().inodes.load(subvol, subvol.root_ino)?;
    root.filter(|inode| inode.is_dir()).ok_or_else(|| {
        Error::Store(StoreError::CorruptTree {
            tree: subvol.id,
            what: format!("root directory {} is missing", subvol.root_ino),
        })
    })
}

/// The directory behind a name whose location is a subvolume: its root, or a stand-in where the
/// subvolume belongs to another place (snapshots copy the names of nested subvolumes, not these).
pub(crate) fn enter(files: &Files, dir: &Arc<Inode>, name: &[u8], child: TreeId) -> Result<Arc<Inode>> {
    if belongs_at(files, dir, name, child)?
        && let Some(subvol) = load(files, child)?
    {
        return root_of(files, &subvol);
    }
    Ok(placeholder(files, dir, child))
}

/// Is this the one name of the subvolume?
fn belongs_at(files: &Files, dir: &Inode, name: &[u8], child: TreeId) -> Result<bool> {
    let key = Key::new(dir.tree.id().object_id(), KeyType::ROOT_REF, child.0);
    let item = files.store().forest().root_tree().get(&key)?;
    Ok(item.is_some_and(|item| {
        view::root_ref(&item).is_some_and(|(head, found)| head.dirid.get() == dir.ino.0 && found == name)
    }))
}

/// As [`enter`] finds it: the name leads to the subvolume, which is open.
pub(crate) fn is_open_at(files: &Files, dir: &Inode, name: &[u8], child: TreeId) -> Result<bool> {
    Ok(files.objects().subvols.read().contains_key(&child) && belongs_at(files, dir, name, child)?)
}

fn placeholder(files: &Files, dir: &Arc<Inode>, child: TreeId) -> Arc<Inode> {
    let ino = ObjectId(PLACEHOLDER_INO_BIT | child.0);
    if let Some(there) = files.objects().inodes.get(dir.tree.id(), ino) {
        return there;
    }
    let parent = dir.attr_now();
    let attr = InodeAttr {
        size: 0,
        nbytes: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        mode: FileKind::Directory.mode_bits() | 0o755,
        rdev: 0,
        flags: 0,
        otime: Timestamp::default(),
        ..parent
    };
    let inode = Inode::new(&dir.subvol, ino, attr, FileKind::Directory);
    inode.xattrs.set_known_empty();
    inode.dir.set_placeholder_parent(dir.ino);
    let inode = Arc::new(inode);
    files.objects().inodes.insert_new(inode.clone());
    inode
}

/// The tree and directory above the root of a subvolume; `None` for the top level.
pub(crate) fn parent_of_root(files: &Files, id: TreeId) -> Result<Option<(TreeId, ObjectId)>> {
    let from = Key::new(id.object_id(), KeyType::ROOT_BACKREF, 0);
    let found = files.store().forest().root_tree().cursor_type(from).next()?;
    Ok(found.and_then(|(key, item)| {
        view::root_ref(&item).map(|(head, _)| (TreeId(key.offset), ObjectId(head.dirid.get())))
    }))
}

/// The name in the tree of tree roots that leads to the subvolume that is mounted by default.
pub(crate) const DEFAULT_NAME: &[u8] = b"default";

/// The subvolume that is mounted where no other is asked for; the top level where the volume names
/// none.
pub(crate) fn default_id(files: &Files) -> Result<TreeId> {
    let key = Key::new(
        ObjectId::ROOT_TREE_DIR,
        KeyType::DIR_ITEM,
        hash::name_hash(DEFAULT_NAME),
    );
    let Some(item) = files.store().forest().root_tree().get(&key)? else {
        return Ok(TreeId::FS);
    };
    let entry = view::dir_entries(&item).find(|e| e.name == DEFAULT_NAME);
    Ok(entry.map_or(TreeId::FS, |e| Key::from(e.head.location).objectid.tree_id()))
}
