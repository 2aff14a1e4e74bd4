//! Subvolumes: which there are, how names cross into them, where a mount starts.
//!
//! Locks: the map of open subvolumes, held for moments; nothing is called under it.

pub mod number;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use btrfs_format::features::root_flags;
use btrfs_format::{Key, KeyType, ObjectId, TreeId, hash, view};
use cowshed_vfs::{Error as Errno, FileKind, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::Engine;
use crate::dir;
use crate::error::{Error, Result, StoreError};
use crate::file::compress::CompressPolicy;
use crate::inode::{Inode, InodeAttr, InodeTable, delete};
use btrfs_store::tree::Tree;

/// Numbers from here on are no inodes of the volume: they name the stand-ins for nested subvolumes in snapshots.
pub const PLACEHOLDER_INO_BIT: u64 = 1 << 63;

/// Names on the way to a subvolume that `subvol=` may have.
const PATH_COMPONENTS_MAX: usize = 4096;

/// What a mount says about all files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    pub read_only: bool,
    pub nodatacow: bool,
    pub nodatasum: bool,
    /// What is compressed without being asked for by file.
    pub compress: Option<CompressPolicy>,
}

/// Subvolumes and inodes in memory.
#[derive(Debug, Default)]
pub struct Objects {
    pub inodes: InodeTable,
    subvols: RwLock<HashMap<TreeId, Arc<Subvol>>>,
    /// Held by a rename that moves a directory to another one: nothing may move above it meanwhile.
    pub(crate) rename: Mutex<()>,
    policy: RwLock<Policy>,
    read_only: AtomicBool,
}

impl Objects {
    pub fn set_policy(&self, policy: Policy) {
        self.read_only.store(policy.read_only, Ordering::Release);
        *self.policy.write() = policy;
    }
    pub fn policy(&self) -> Policy {
        *self.policy.read()
    }
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }
}

/// One subvolume.
#[derive(Debug)]
pub struct Subvol {
    pub id: TreeId,
    pub tree: Arc<Tree>,
    pub root_ino: ObjectId,
    read_only: bool,
    /// The next inode number; 0 while nobody has asked.
    next_ino: AtomicU64,
}

impl Subvol {
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// A number that no inode has had in this transaction: a log would lay the new one over what the last commit has under
    /// that number. Nor has one had it since the first call.
    pub fn take_ino(&self) -> Result<ObjectId> {
        if self.next_ino.load(Ordering::Acquire) == 0 {
            let last = Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX);
            let used = self.tree.floor_key_ever(&last)?;
            let used = used.map_or(ObjectId::FIRST_FREE, |key| key.objectid);
            let next = used.0.max(ObjectId::FIRST_FREE.0) + 1;
            // Whoever came first is right: later readers may have seen numbers that it gave out, or not.
            let _ = self
                .next_ino
                .compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
        }
        let ino = self.next_ino.fetch_add(1, Ordering::AcqRel);
        if ino >= PLACEHOLDER_INO_BIT {
            self.next_ino.fetch_sub(1, Ordering::AcqRel);
            return Err(Error::Store(StoreError::NoSpace));
        }
        Ok(ObjectId(ino))
    }
}

/// The subvolume `id`; `None` where there is none, or only its remains.
pub fn load(engine: &Engine, id: TreeId) -> Result<Option<Arc<Subvol>>> {
    if let Some(subvol) = engine.objects.subvols.read().get(&id) {
        return Ok(Some(subvol.clone()));
    }
    if !id.is_subvolume() {
        return Ok(None);
    }
    let key = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let Some((_, item)) = engine.store.forest().root_tree().floor_same_type(&key)? else {
        return Ok(None);
    };
    let root = view::root_item(&item).ok_or_else(|| {
        Error::Store(StoreError::CorruptTree {
            tree: TreeId::ROOT,
            what: format!("root item of tree {id} is too short"),
        })
    })?;
    let flags = root.flags.get();
    if root.refs.get() == 0 || flags & root_flags::SUBVOL_DEAD != 0 {
        return Ok(None);
    }
    let Some(tree) = engine.store.forest().load(id)? else {
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
        read_only: flags & root_flags::SUBVOL_RDONLY != 0,
        next_ino: AtomicU64::new(0),
    });
    let subvol = {
        let mut subvols = engine.objects.subvols.write();
        subvols.entry(id).or_insert_with(|| fresh.clone()).clone()
    };
    let is_writable = !(subvol.read_only || engine.objects.is_read_only() || engine.store.volume().is_read_only());
    if Arc::ptr_eq(&subvol, &fresh) && is_writable {
        // The files that are left wait for the next mount; what cannot be read answers for itself.
        if let Err(error) = delete::clean_orphans(engine, &subvol) {
            tracing::error!(tree = %id, %error, "the orphans of the subvolume cannot be cleaned up");
        }
    }
    Ok(Some(subvol))
}

/// The root directory of a subvolume.
pub fn root_of(engine: &Engine, subvol: &Arc<Subvol>) -> Result<Arc<Inode>> {
    let root = engine.objects.inodes.load(subvol, subvol.root_ino)?;
    root.filter(|inode| inode.is_dir()).ok_or_else(|| {
        Error::Store(StoreError::CorruptTree {
            tree: subvol.id,
            what: format!("root directory {} is missing", subvol.root_ino),
        })
    })
}

/// The directory behind a name whose location is a subvolume: its root, or a stand-in where the subvolume belongs to
/// another place (snapshots copy the names of nested subvolumes, not these).
pub fn enter(engine: &Engine, dir: &Arc<Inode>, name: &[u8], child: TreeId) -> Result<Arc<Inode>> {
    let key = Key::new(dir.tree.id().object_id(), KeyType::ROOT_REF, child.0);
    let belongs_here = engine.store.forest().root_tree().get(&key)?.is_some_and(|item| {
        view::root_ref(&item).is_some_and(|(head, found)| head.dirid.get() == dir.ino.0 && found == name)
    });
    if belongs_here && let Some(subvol) = load(engine, child)? {
        return root_of(engine, &subvol);
    }
    Ok(placeholder(engine, dir, child))
}

fn placeholder(engine: &Engine, dir: &Arc<Inode>, child: TreeId) -> Arc<Inode> {
    let ino = ObjectId(PLACEHOLDER_INO_BIT | child.0);
    if let Some(there) = engine.objects.inodes.get(dir.tree.id(), ino) {
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
    engine.objects.inodes.insert_new(inode.clone());
    inode
}

/// The tree and directory above the root of a subvolume; `None` for the top level.
pub fn parent_of_root(engine: &Engine, id: TreeId) -> Result<Option<(TreeId, ObjectId)>> {
    let from = Key::new(id.object_id(), KeyType::ROOT_BACKREF, 0);
    let found = engine.store.forest().root_tree().cursor_type(from).next()?;
    Ok(found.and_then(|(key, item)| {
        view::root_ref(&item).map(|(head, _)| (TreeId(key.offset), ObjectId(head.dirid.get())))
    }))
}

/// Which subvolume a mount shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SubvolChoice {
    /// What the volume names as default.
    #[default]
    Default,
    Id(TreeId),
    /// A path from the top level.
    Path(Vec<u8>),
    /// A path that must lead to the subvolume of this number.
    PathOf(Vec<u8>, TreeId),
}

/// The directory that a mount shows as its root. Errors: `NotFound`, `NotDirectory`; `Invalid` where path and number differ.
pub fn resolve(engine: &Engine, choice: &SubvolChoice) -> Result<Arc<Inode>> {
    let id = match choice {
        SubvolChoice::Default => default_subvol(engine)?,
        SubvolChoice::Id(id) => *id,
        SubvolChoice::Path(_) | SubvolChoice::PathOf(..) => TreeId::FS,
    };
    let subvol = load(engine, id)?.ok_or(Errno::NotFound)?;
    let mut at = root_of(engine, &subvol)?;
    if let SubvolChoice::Path(path) | SubvolChoice::PathOf(path, _) = choice {
        let names = path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".");
        for (depth, name) in names.enumerate() {
            if depth >= PATH_COMPONENTS_MAX {
                return Err(Errno::NameTooLong.into());
            }
            at = dir::lookup(engine, &at, name)?.ok_or(Errno::NotFound)?;
        }
        if !at.is_dir() {
            return Err(Errno::NotDirectory.into());
        }
    }
    if let SubvolChoice::PathOf(_, id) = choice
        && at.tree.id() != *id
    {
        return Err(Errno::Invalid.into());
    }
    Ok(at)
}

/// What the entry `default` of the root tree's directory names; the top level where there is none.
fn default_subvol(engine: &Engine) -> Result<TreeId> {
    const NAME: &[u8] = b"default";
    let key = Key::new(ObjectId::ROOT_TREE_DIR, KeyType::DIR_ITEM, hash::name_hash(NAME));
    let Some(item) = engine.store.forest().root_tree().get(&key)? else {
        return Ok(TreeId::FS);
    };
    let entry = view::dir_entries(&item).find(|e| e.name == NAME);
    Ok(entry.map_or(TreeId::FS, |e| Key::from(e.head.location).objectid.tree_id()))
}
