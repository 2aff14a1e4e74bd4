//! What operations on files, directories and attributes share: the store, the objects in memory,
//! and the state that layers above look at. Fields are private; each has its owner's methods.

use std::sync::Arc;

use btrfs_format::{Generation, TreeId};
use btrfs_store::Store;
use btrfs_store::space::{Budget, MetaReservation};
use btrfs_store::tree::Tree;
use btrfs_store::txn::Join;
use btrfs_store::volume::BlockPtr;
use cowshed_runtime::Timestamp;

use crate::error::{Error, Result, StoreError};
use crate::name_changes::NameChanges;
use crate::object::{FileShared, InodeState, Objects};
use crate::requests::Background;

/// The mount option `discard`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardMode {
    /// Not at all.
    #[default]
    Off,
    /// Before a commit returns.
    Sync,
    /// Some time later, by a thread of its own.
    Async,
}

/// How an engine runs.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Seconds between commits that no sync asks for; zero: only when asked.
    pub commit_interval_s: u32,
    /// Which commits there are beside those that callers ask for.
    pub commits: Commits,
    /// Bytes for pending items, again for cached blocks, and again, but no more than 256 MiB, for
    /// dirty data; of decompressed extents a thirty-second of it is kept, at least 2 MiB and at
    /// most 32.
    pub memory_bytes_max: u64,
    /// An fsync writes a log where that is cheaper than a commit (`treelog`).
    pub tree_log: bool,
    /// Sequential small reads trigger readahead: the next compressed extents are decompressed, by
    /// all processors. For callers without a kernel that reads ahead, which a mount has.
    pub read_ahead: bool,
    /// What becomes of freed space on devices that can discard.
    pub discard: DiscardMode,
    /// Gives memory that was freed back to the system. Called some time after much was, when
    /// nothing changes any more.
    pub return_memory: Option<fn()>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            commit_interval_s: 30,
            commits: Commits::default(),
            memory_bytes_max: 1 << 30,
            tree_log: false,
            read_ahead: true,
            discard: DiscardMode::Off,
            return_memory: None,
        }
    }
}

/// Which commits there are beside those that callers ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commits {
    /// At intervals, and where space or memory is short.
    #[default]
    AsNeeded,
    /// None, unless pending items would exceed the bound on memory: all changes since the last one
    /// can be given up. Where only a commit would make room, there is no space.
    WhenAsked,
}

/// See the module.
#[derive(Debug)]
pub struct Files {
    store: Arc<Store>,
    csum_tree: Arc<Tree>,
    has_data_csums: bool,
    objects: Objects,
    data: FileShared,
    names: NameChanges,
    background: Background,
    options: EngineOptions,
}

impl Files {
    /// Nothing is in memory yet.
    ///
    /// # Errors
    /// Where there is no tree of data checksums, and the volume's options want one.
    pub(crate) fn new(store: Store, options: EngineOptions) -> Result<Self> {
        let (csum_tree, has_data_csums) = open_csum_tree(&store)?;
        Ok(Self {
            csum_tree,
            has_data_csums,
            objects: Objects::with_memory(options.memory_bytes_max),
            data: FileShared::with_memory(options.memory_bytes_max, store.volume().sectorsize_bytes()),
            names: NameChanges::default(),
            background: Background::new(store.env().clone()),
            store: Arc::new(store),
            options,
        })
    }

    /// The volume and its trees.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }
    /// Bytes of a sector of the volume. Of a writable one it is [`BLOCK`](crate::block::BLOCK);
    /// others are only read.
    pub(crate) fn sector_bytes(&self) -> u64 {
        self.store.volume().sectorsize_bytes().into()
    }
    /// The tree of data checksums, which write-back and reads use.
    pub(crate) fn csum_tree(&self) -> &Arc<Tree> {
        &self.csum_tree
    }
    /// False where data is read as it is: the mount asked for that, or for doing without a tree
    /// that cannot be read.
    pub(crate) fn has_data_csums(&self) -> bool {
        self.has_data_csums
    }
    /// Subvolumes and inodes in memory.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }
    /// Dirty data of all files.
    pub fn data(&self) -> &FileShared {
        &self.data
    }
    /// What the log has to know of names.
    pub(crate) fn names(&self) -> &NameChanges {
        &self.names
    }
    /// The background thread of the mount.
    pub fn background(&self) -> &Background {
        &self.background
    }
    /// How the mount runs.
    pub(crate) fn options(&self) -> &EngineOptions {
        &self.options
    }
    /// The volume keeps no items for holes (NO_HOLES).
    pub(crate) fn has_no_holes(&self) -> bool {
        self.data.has_no_holes(self.store.volume())
    }

    /// Sets metadata aside for an operation, or its next step. The caller holds no lock from
    /// [`LockRank::SpaceTurn`](btrfs_store::rank::LockRank::SpaceTurn) on.
    ///
    /// Waits where the memory for pending items is used up, and where space is short: see
    /// `pressure`.
    pub fn reserve(&self, budget: Budget) -> Result<MetaReservation> {
        self.limit_memory()?;
        let reserved = self.store.space().reserve_meta(budget)?;
        if self.store.space().is_half_pending() {
            self.background.wake_for_room();
        }
        Ok(reserved)
    }

    /// As [`Files::reserve`], for write-back: where space is short, nothing is written back for it.
    pub(crate) fn reserve_for_write_back(&self, budget: Budget) -> Result<MetaReservation> {
        self.limit_memory()?;
        Ok(self.store.space().reserve_meta_for_data(budget)?)
    }

    fn limit_memory(&self) -> Result<()> {
        self.store.txn().check_writable()?;
        if self.store.volume().is_read_only() {
            return Err(Error::Store(StoreError::ReadOnly));
        }
        let pending = self.store.space().pending_memory_bytes();
        if pending > self.options.memory_bytes_max {
            self.commit()?;
        } else if pending > self.options.memory_bytes_max / 2 && self.options.commits == Commits::AsNeeded {
            self.background.wake();
        }
        Ok(())
    }

    /// Commits everything applied before the call; returns when it is on disk. Dirty file data is
    /// the caller's matter.
    pub fn commit(&self) -> Result<()> {
        Ok(self.store.commit()?)
    }
}

/// Prepares until the plan and the transaction agree on the transaction's number. `prepare` may
/// fail and do I/O.
pub(crate) fn prepare_and_join<'e, P>(
    files: &'e Files,
    mut prepare: impl FnMut(Generation) -> Result<P>,
) -> Result<(Join<'e>, P)> {
    loop {
        let generation = files.store().txn().running();
        let plan = prepare(generation)?;
        let join = files.store().txn().join();
        if join.generation() == generation {
            return Ok((join, plan));
        }
    }
}

/// An inode's attributes after a change that callers can see.
pub(crate) fn touch_inode(state: &mut InodeState, generation: Generation, now: Timestamp) {
    state.attr.ctime = now;
    state.attr.sequence = state.attr.sequence.wrapping_add(1);
    state.attr.transid = generation;
}

/// The tree of data checksums, and whether it is to be asked. `rescue=ignorebadroots` does without
/// one whose root cannot be read; the tree that is returned then is a stand-in.
fn open_csum_tree(store: &Store) -> Result<(Arc<Tree>, bool)> {
    let rescue = store.volume().options().rescue;
    let found = store.forest().require(TreeId::CSUM);
    if !(store.volume().is_read_only() && rescue.ignore_bad_roots) {
        return Ok((found?, !rescue.ignore_data_csums));
    }
    let read = |tree: Arc<Tree>| {
        let root = tree.root();
        let ptr = BlockPtr {
            addr: root.addr,
            generation: root.generation,
            level: root.level,
            first_key: None,
        };
        store.nodes().load(&ptr, TreeId::CSUM).map(|_| tree)
    };
    match found.and_then(read) {
        Ok(tree) => Ok((tree, !rescue.ignore_data_csums)),
        Err(error) => {
            tracing::warn!(%error, "no checksums of data: it is read as it is");
            Ok((store.forest().root_tree().clone(), false))
        }
    }
}
