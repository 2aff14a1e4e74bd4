//! The store of one open volume: its parts, and the hooks that a commit calls in the layers above.

use std::sync::{Arc, OnceLock, Weak};

use btrfs_format::items::{DEV_REPLACE_STARTED, DEV_REPLACE_SUSPENDED, DevReplace};
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, ObjectId, TreeId, view};
use cowshed_runtime::{Env, Workers};

use crate::error::{Error, Result};
use crate::forest::Forest;
use crate::jobs::Jobs;
use crate::overlay::stripes::FrozenEdits;
use crate::space::Space;
use crate::tree::NodeStore;
use crate::txn::Txn;
use crate::volume::Volume;

/// What a commit tells the layers above.
pub trait CommitHooks: Send + Sync {
    /// The running transaction ends. Operations are kept out. `edits_applied`: of all transactions
    /// so far.
    fn frozen(&self, edits_applied: u64);

    /// Some references of these data extents went in the transaction `when`, others are left.
    /// Called before readers see that: an extent with one reference left was still shared in the
    /// last commit.
    fn unshared(&self, extents: &[LogicalAddr], when: Generation);

    /// The superblock on disk leads to the new transaction. The commit wrote so many blocks.
    fn committed(&self, blocks: u64);

    /// The overlays that were merged, perhaps millions of items to be freed. Called last.
    fn merged(&self, overlays: Vec<Arc<FrozenEdits>>);
}

/// The parts of an open volume. A part knows those below it, never the store.
pub struct Store {
    volume: Arc<Volume>,
    nodes: Arc<NodeStore>,
    forest: Forest,
    space: Arc<Space>,
    txn: Txn,
    jobs: Jobs,
    env: Arc<dyn Env>,
    workers: Workers,
    hooks: OnceLock<Weak<dyn CommitHooks>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store(generation {})", self.txn.committed())
    }
}

impl Store {
    /// Opens the trees of a volume. `cache_bytes`: of tree blocks that are kept in memory.
    ///
    /// # Errors
    /// [`Error::Refused`] for a writable volume that could not be kept consistent.
    pub fn open(volume: Arc<Volume>, env: Arc<dyn Env>, cache_bytes: u64) -> Result<Self> {
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        let nodes = Arc::new(NodeStore::new(volume.clone(), cache_bytes));
        let forest = Forest::new(nodes.clone())?;
        if !volume.is_read_only() {
            check_writable(&forest)?;
            if volume.options().rescue.no_log_replay {
                return Err(Error::Refused {
                    what: "nologreplay is for reading: mount read-only with it".into(),
                });
            }
        }
        let space = Space::load(&volume, &forest)?;
        let txn = Txn::new(volume.superblock().generation.into(), space.clone());
        Ok(Self {
            volume,
            nodes,
            forest,
            space,
            txn,
            jobs: Jobs::default(),
            workers: Workers::new(env.clone()),
            env,
            hooks: OnceLock::new(),
        })
    }

    /// Sets what commits call, once, before the first commit.
    pub fn set_hooks(&self, hooks: Weak<dyn CommitHooks>) {
        let was_set = self.hooks.set(hooks).is_err();
        assert!(!was_set, "the hooks of a store are set once");
    }

    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub(crate) fn hooks(&self) -> Option<Arc<dyn CommitHooks>> {
        self.hooks.get().and_then(Weak::upgrade)
    }

    /// Devices, superblocks, chunk map.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }
    /// The cache of tree blocks, and their way to and from the volume.
    pub fn nodes(&self) -> &Arc<NodeStore> {
        &self.nodes
    }
    /// All open trees.
    pub fn forest(&self) -> &Forest {
        &self.forest
    }
    /// Block groups and reservations.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }
    /// The running transaction.
    pub fn txn(&self) -> &Txn {
        &self.txn
    }
    /// Clock and randomness.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.env
    }
    /// Threads for checksums and compression.
    pub fn workers(&self) -> &Workers {
        &self.workers
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
