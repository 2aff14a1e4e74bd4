//! Subvolumes in memory, and the objects of all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use btrfs_store::Forest;
use btrfs_store::rank::LockRank;
use btrfs_store::tree::Tree;
use cowshed_runtime::lock::{Mutex, RwLock};

use super::dead::{Dead, RememberedAfter};
use super::table::InodeTable;
use super::views::Views;
use crate::compression::compress::CompressPolicy;
use crate::error::{Error, Result, StoreError};

/// Numbers from here on are no inodes of the volume: they name the stand-ins for nested subvolumes
/// in snapshots.
pub const PLACEHOLDER_INO_BIT: u64 = 1 << 63;

/// What a mount says about all files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    pub(crate) read_only: bool,
    pub(crate) nodatacow: bool,
    pub(crate) nodatasum: bool,
    /// What is compressed without being asked for by file.
    pub(crate) compress: Option<CompressPolicy>,
}

/// Subvolumes and inodes in memory.
#[derive(Debug)]
pub struct Objects {
    /// Of all subvolumes.
    pub inodes: InodeTable,
    pub(crate) subvols: RwLock<HashMap<TreeId, Arc<Subvol>>>,
    /// Held by a rename that moves a directory to another one: nothing may move above it meanwhile.
    pub(crate) rename: Mutex<()>,
    /// Held while a subvolume gets or loses its name: one in which others are made stays.
    pub(crate) subvolume_names: Mutex<()>,
    /// The views of the volume.
    pub(crate) views: Arc<Views>,
    policy: RwLock<Policy>,
    read_only: AtomicBool,
    /// The id of the next new subvolume; 0 while it is not known.
    next_subvolume: AtomicU64,
    pub(super) dead: Mutex<Dead>,
}

impl Objects {
    /// Of an engine that may use so much memory for changes.
    pub(crate) fn with_memory(bytes_max: u64) -> Self {
        let views = Arc::<Views>::default();
        Self {
            inodes: InodeTable::with_memory(bytes_max, views.clone()),
            subvols: RwLock::new(LockRank::Subvolumes, HashMap::new()),
            rename: Mutex::new(LockRank::Rename, ()),
            subvolume_names: Mutex::new(LockRank::SubvolumeNames, ()),
            views,
            policy: RwLock::new(LockRank::Policy, Policy::default()),
            read_only: AtomicBool::new(false),
            next_subvolume: AtomicU64::new(0),
            dead: Mutex::new(LockRank::DeadSubvolumes, Dead::default()),
        }
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.read_only.store(policy.read_only, Ordering::Release);
        *self.policy.write() = policy;
    }
    pub(crate) fn policy(&self) -> Policy {
        *self.policy.read()
    }
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// An id that no subvolume has, nor any has had since the mount.
    pub(crate) fn take_subvolume_id(&self, forest: &Forest) -> Result<TreeId> {
        if self.next_subvolume.load(Ordering::Acquire) == 0 {
            let next = forest.last_subvolume_id()?.get().max(ObjectId::FIRST_FREE.get() - 1) + 1;
            // The first caller is right: later ones may see what it made, or not.
            let _ = self
                .next_subvolume
                .compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(TreeId(self.next_subvolume.fetch_add(1, Ordering::AcqRel)))
    }
}

/// One subvolume.
#[derive(Debug)]
pub struct Subvol {
    pub(crate) id: TreeId,
    pub(crate) tree: Arc<Tree>,
    pub(crate) root_ino: ObjectId,
    pub(crate) read_only: AtomicBool,
    /// Its name is gone: no directory in it changes any more, and it is dropped when nothing in it
    /// is in use.
    pub(crate) dead: AtomicBool,
    /// The next inode number; 0 while it is not known.
    pub(crate) next_ino: AtomicU64,
    /// Users at the last call of [`Self::is_being_emptied`]; 0 before the first.
    pub(crate) seen_users: AtomicUsize,
    /// Of its inodes those that are [`Taken`].
    pub(crate) unloading: AtomicUsize,
    /// Of its inodes those that left memory while front ends remembered them.
    pub(crate) remembered: Arc<RememberedAfter>,
}

impl Subvol {
    /// Nothing in it changes.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }
    /// No directory in it changes.
    pub(crate) fn has_fixed_names(&self) -> bool {
        self.is_read_only() || self.is_dead()
    }
    /// Its name is gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// A number that no inode has had in this transaction: a log would lay the new one over what
    /// the last commit has under that number. Nor has one had it since the first call.
    pub(crate) fn take_ino(&self) -> Result<ObjectId> {
        if self.next_ino.load(Ordering::Acquire) == 0 {
            let last = Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX);
            let used = self.tree.floor_key_ever(&Key::MIN, &last)?;
            let used = used.map_or(ObjectId::FIRST_FREE, |key| key.objectid);
            let next = used.0.max(ObjectId::FIRST_FREE.0) + 1;
            // The first caller is right: later readers may have seen numbers that it gave out, or
            // not.
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
