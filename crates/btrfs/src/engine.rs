//! The engine of one mounted volume: what its parts share. Holds them, decides nothing.

use std::collections::HashMap;
use std::sync::Arc;

use btrfs_format::items::{DEV_REPLACE_STARTED, DEV_REPLACE_SUSPENDED, DevReplace};
use btrfs_format::{Key, KeyType, ObjectId, TreeId, view};
use parking_lot::RwLock;

use crate::discard::DiscardMode;
use crate::error::{Error, Result};
use crate::space::{Budget, MetaReservation, Space};
use crate::tree::{BlockPtr, NodeStore, RootPtr, Tree};
use crate::txn::Txn;
use crate::volume::Volume;
use cowshed_runtime::Env;
use cowshed_runtime::Workers;

/// All trees that are open, by id.
#[derive(Debug)]
pub struct Forest {
    store: Arc<NodeStore>,
    root_tree: Arc<Tree>,
    trees: RwLock<HashMap<TreeId, Arc<Tree>>>,
}

impl Forest {
    /// Starts with the root tree and the chunk tree, whose roots the superblock names.
    pub fn new(store: Arc<NodeStore>) -> Self {
        let sb = store.volume().superblock();
        let root = RootPtr {
            addr: sb.root.into(),
            generation: sb.generation.into(),
            level: sb.root_level,
        };
        let chunk_root = RootPtr {
            addr: sb.chunk_root.into(),
            generation: sb.chunk_root_generation.into(),
            level: sb.chunk_root_level,
        };
        let root_tree = Arc::new(Tree::new(TreeId::ROOT, store.clone(), root));
        let chunk_tree = Arc::new(Tree::new(TreeId::CHUNK, store.clone(), chunk_root));
        let trees = HashMap::from([(TreeId::ROOT, root_tree.clone()), (TreeId::CHUNK, chunk_tree)]);
        Self {
            store,
            root_tree,
            trees: RwLock::new(trees),
        }
    }

    pub fn root_tree(&self) -> &Arc<Tree> {
        &self.root_tree
    }

    /// Opens a tree; `None` where the root tree has no item for it.
    pub fn load(&self, id: TreeId) -> Result<Option<Arc<Tree>>> {
        if let Some(tree) = self.trees.read().get(&id) {
            return Ok(Some(tree.clone()));
        }
        let key = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
        let Some((_, item)) = self.root_tree.floor_same_type(&key)? else {
            return Ok(None);
        };
        let root = btrfs_format::view::root_item(&item).ok_or_else(|| Error::CorruptTree {
            tree: TreeId::ROOT,
            what: format!("root item of tree {id} is too short"),
        })?;
        let ptr = RootPtr {
            addr: root.bytenr.into(),
            generation: root.generation.into(),
            level: root.level,
        };
        let mut trees = self.trees.write();
        let tree = trees
            .entry(id)
            .or_insert_with(|| Arc::new(Tree::new(id, self.store.clone(), ptr)));
        Ok(Some(tree.clone()))
    }

    /// Opens a tree that must be there.
    pub fn require(&self, id: TreeId) -> Result<Arc<Tree>> {
        self.load(id)?.ok_or_else(|| Error::CorruptTree {
            tree: id,
            what: "has no root item".into(),
        })
    }

    /// Every open tree.
    pub fn open_trees(&self) -> Vec<Arc<Tree>> {
        let mut all: Vec<_> = self.trees.read().values().cloned().collect();
        all.sort_by_key(|t| t.id());
        all
    }
    /// Adds a tree that was just made.
    pub fn insert(&self, tree: Arc<Tree>) {
        self.trees.write().insert(tree.id(), tree);
    }
    /// Drops a tree that is gone.
    pub fn remove(&self, id: TreeId) {
        self.trees.write().remove(&id);
    }
    /// Object id of the last subvolume or other object in the root tree.
    pub fn last_subvolume_id(&self) -> Result<ObjectId> {
        let key = Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX);
        Ok(self.root_tree.floor(&key)?.map_or(ObjectId(0), |(k, _)| k.objectid))
    }
}

/// How an engine runs.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Seconds between commits that no sync asks for; zero: only when asked.
    pub commit_interval_s: u32,
    /// Bytes for pending items, again for cached blocks, and again, but no more than 256 MiB, for dirty data; of decompressed
    /// extents a thirty-second of it is kept, at least 2 MiB and at most 32.
    pub memory_bytes_max: u64,
    /// An fsync writes a log where that is cheaper than a commit (`treelog`).
    pub tree_log: bool,
    /// Who reads a file in order in small steps finds the next compressed extents decompressed, by all processors. For callers
    /// who have no kernel that reads ahead for them, as a mount has.
    pub read_ahead: bool,
    /// What becomes of freed space on devices that can discard.
    pub discard: DiscardMode,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            commit_interval_s: 30,
            memory_bytes_max: 1 << 30,
            tree_log: false,
            read_ahead: true,
            discard: DiscardMode::Off,
        }
    }
}

/// The parts of a mounted volume.
pub struct Engine {
    pub volume: Arc<Volume>,
    pub store: Arc<NodeStore>,
    pub forest: Forest,
    pub space: Arc<Space>,
    pub txn: Txn,
    pub env: Arc<dyn Env>,
    /// The tree of data checksums, which write-back and reads use.
    pub csum_tree: Arc<Tree>,
    /// False where data is read as it is: the mount asked for that, or for doing without a tree that cannot be read.
    pub has_data_csums: bool,
    /// Subvolumes and inodes in memory.
    pub objects: crate::subvol::Objects,
    /// Dirty data of all files.
    pub file: crate::file::FileShared,
    /// What fsync wrote since the last commit.
    pub(crate) log: crate::log::write::Log,
    pub options: EngineOptions,
    /// Threads for checksums and compression.
    pub(crate) workers: Workers,
    pub(crate) background: crate::background::Background,
    pub(crate) discarder: crate::discard::Discarder,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine(generation {})", self.txn.committed())
    }
}

impl Engine {
    /// Makes the engine of an open volume. Refuses to write what it could not keep consistent.
    pub fn open(volume: Arc<Volume>, env: Arc<dyn Env>, options: EngineOptions) -> Result<Arc<Self>> {
        let sb = volume.superblock();
        let store = Arc::new(NodeStore::new(
            volume.clone(),
            usize::try_from(options.memory_bytes_max / 2).unwrap_or(usize::MAX),
        ));
        let forest = Forest::new(store.clone());
        if !volume.is_read_only() {
            check_writable(&forest)?;
            if volume.options().rescue.no_log_replay {
                return Err(Error::Refused {
                    what: "nologreplay is for reading: mount read-only with it".into(),
                });
            }
        }
        let space = Space::load(&volume, &forest)?;
        let (csum_tree, has_data_csums) = open_csum_tree(&volume, &forest, &store)?;
        let txn = Txn::new(sb.generation.into(), space.clone());
        let engine = Arc::new(Self {
            volume,
            store,
            forest,
            space,
            txn,
            workers: Workers::new(env.clone()),
            log: crate::log::write::Log::new(env.clone()),
            background: crate::background::Background::new(env.clone()),
            discarder: crate::discard::Discarder::new(env.clone()),
            env,
            csum_tree,
            has_data_csums,
            options,
            objects: crate::subvol::Objects::default(),
            file: crate::file::FileShared::with_memory(options.memory_bytes_max),
        });
        engine.replay_log()?;
        if !engine.volume.is_read_only() {
            let flusher: std::sync::Weak<Self> = Arc::downgrade(&engine);
            engine.space.set_flusher(flusher);
            engine.queue_drops(crate::txn::dead_subvolumes(&engine.forest)?);
            crate::discard::start(&engine);
            crate::background::start(&engine);
        }
        Ok(engine)
    }

    /// Takes over what the last crash left in the log. On disk when this returns, unless the mount is read-only.
    fn replay_log(&self) -> Result<()> {
        if self.volume.options().rescue.no_log_replay || !crate::log::replay::replay(self)? {
            return Ok(());
        }
        tracing::info!(generation = %self.txn.running(), "replayed the log of the last mount");
        if self.volume.is_read_only() {
            return Ok(());
        }
        // No reservation: where the commit finds no room, the opening fails, and the disk is as it was.
        self.commit()
    }

    /// Sets metadata aside for an operation that is about to begin. No lock may be held.
    ///
    /// Waits where the memory for pending items is used up, and where space is short.
    pub fn reserve(&self, budget: Budget) -> Result<MetaReservation> {
        self.txn.check_writable()?;
        if self.volume.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let pending = self.txn.pending_memory_bytes();
        if pending > self.options.memory_bytes_max / 2 {
            if pending > self.options.memory_bytes_max {
                self.commit()?;
            } else {
                self.background.wake();
            }
        }
        self.space.reserve_meta(budget)
    }

    /// What fsync wrote so far.
    pub fn log_stats(&self) -> crate::log::write::LogStats {
        self.log.stats()
    }

    /// Everything written before the call is on disk after it.
    pub fn sync(&self) -> Result<()> {
        if self.volume.is_read_only() {
            return Ok(());
        }
        // One file that cannot be written (a full volume, a failing place) must not keep the rest from being durable.
        let written = crate::file::write_back_all(self);
        self.commit()?;
        written
    }

    /// Ends the mount: everything on disk, no thread left. The engine refuses changes afterwards.
    pub fn close(&self) -> Result<()> {
        if self.txn.is_closed() {
            return Ok(());
        }
        self.background.stop();
        self.discarder.stop();
        let result = if self.txn.is_aborted() {
            Err(Error::ReadOnly)
        } else {
            let synced = self.sync();
            self.drain_discards();
            synced
        };
        #[cfg(feature = "bench-switches")]
        crate::switches::count(self);
        self.txn.close();
        result
    }
}

impl crate::space::Flusher for Engine {
    fn write_back_data(&self) -> Result<()> {
        crate::file::write_back_for_space(self);
        Ok(())
    }
    fn commit(&self) -> Result<()> {
        Engine::commit(self)
    }
}

/// The tree of data checksums, and whether it is to be asked. `rescue=ignorebadroots` does without one whose root cannot be
/// read; the tree that is returned then is a stand-in.
fn open_csum_tree(volume: &Volume, forest: &Forest, store: &NodeStore) -> Result<(Arc<Tree>, bool)> {
    let rescue = volume.options().rescue;
    let found = forest.require(TreeId::CSUM);
    if !(volume.is_read_only() && rescue.ignore_bad_roots) {
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
        store.load(&ptr, TreeId::CSUM).map(|_| tree)
    };
    match found.and_then(read) {
        Ok(tree) => Ok((tree, !rescue.ignore_data_csums)),
        Err(error) => {
            tracing::warn!(%error, "no checksums of data: it is read as it is");
            Ok((forest.root_tree().clone(), false))
        }
    }
}

/// What keeps a volume from being written by us, beside its feature bits.
fn check_writable(forest: &Forest) -> Result<()> {
    let refuse = |what: &str| Err(Error::Refused { what: what.into() });
    let reloc = Key::new(TreeId::TREE_RELOC.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    if forest.root_tree().floor_same_type(&reloc)?.is_some() {
        return refuse("a balance was interrupted on this volume: let the kernel finish it first, or mount read-only");
    }
    let balance = Key::new(ObjectId::BALANCE, KeyType::TEMPORARY_ITEM, 0);
    if forest.root_tree().get(&balance)?.is_some() {
        return refuse("a balance is paused on this volume: finish or cancel it first, or mount read-only");
    }
    let replace = Key::new(ObjectId(0), KeyType::DEV_REPLACE, 0);
    let item = forest.require(TreeId::DEV)?.get(&replace)?;
    let state = item
        .as_deref()
        .and_then(view::fixed::<DevReplace>)
        .map_or(0, |item| item.replace_state.get());
    if state == DEV_REPLACE_STARTED || state == DEV_REPLACE_SUSPENDED {
        return refuse(
            "a device of this volume is being replaced: let the kernel finish or cancel that first, or mount read-only",
        );
    }
    Ok(())
}
