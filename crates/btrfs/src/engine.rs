//! The engine of one mounted volume: what its parts share. Holds them, decides nothing.

use std::sync::{Arc, Weak};

use btrfs_format::{Generation, LogicalAddr, TreeId};
use btrfs_store::overlay::Overlay;
use btrfs_store::space::{Budget, MetaReservation};
use btrfs_store::tree::Tree;
use btrfs_store::txn::CommitStats;
use btrfs_store::volume::{BlockPtr, Volume};
use btrfs_store::{CommitHooks, Store};
use cowshed_runtime::Env;

use crate::discard::DiscardMode;
use crate::error::{Error, Result, StoreError};

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
    pub store: Store,
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
    pub(crate) background: crate::background::Background,
    pub(crate) discarder: crate::discard::Discarder,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine(generation {})", self.store.txn().committed())
    }
}

impl Engine {
    /// Makes the engine of an open volume. Refuses to write what it could not keep consistent.
    pub fn open(volume: Arc<Volume>, env: Arc<dyn Env>, options: EngineOptions) -> Result<Arc<Self>> {
        let store = Store::open(volume, env.clone(), options.memory_bytes_max / 2)?;
        let (csum_tree, has_data_csums) = open_csum_tree(&store)?;
        let engine = Arc::new(Self {
            store,
            log: crate::log::write::Log::new(env.clone()),
            background: crate::background::Background::new(env.clone()),
            discarder: crate::discard::Discarder::new(env),
            csum_tree,
            has_data_csums,
            options,
            objects: crate::subvol::Objects::default(),
            file: crate::file::FileShared::with_memory(options.memory_bytes_max),
        });
        let hooks: Weak<Self> = Arc::downgrade(&engine);
        engine.store.set_hooks(hooks);
        engine.replay_log()?;
        if !engine.store.volume().is_read_only() {
            let flusher: Weak<Self> = Arc::downgrade(&engine);
            engine.store.space().set_flusher(flusher);
            let dead = btrfs_store::commit::dead_subvolumes(engine.store.forest())?;
            engine.store.queue_drops(dead);
            crate::discard::start(&engine);
            crate::background::start(&engine);
        }
        Ok(engine)
    }

    /// Commits everything applied before the call; returns when it is on disk. Dirty file data is the caller's matter.
    pub fn commit(&self) -> Result<()> {
        Ok(self.store.commit()?)
    }

    /// What commits did so far.
    pub fn commit_stats(&self) -> CommitStats {
        self.store.commit_stats()
    }

    /// Takes over what the last crash left in the log. On disk when this returns, unless the mount is read-only.
    fn replay_log(&self) -> Result<()> {
        if self.store.volume().options().rescue.no_log_replay || !crate::log::replay::replay(self)? {
            return Ok(());
        }
        tracing::info!(generation = %self.store.txn().running(), "replayed the log of the last mount");
        if self.store.volume().is_read_only() {
            return Ok(());
        }
        // No reservation: where the commit finds no room, the opening fails, and the disk is as it was.
        self.commit()
    }

    /// Sets metadata aside for an operation that is about to begin. No lock may be held.
    ///
    /// Waits where the memory for pending items is used up, and where space is short.
    pub fn reserve(&self, budget: Budget) -> Result<MetaReservation> {
        self.store.txn().check_writable()?;
        if self.store.volume().is_read_only() {
            return Err(Error::Store(StoreError::ReadOnly));
        }
        let pending = self.store.space().pending_memory_bytes();
        if pending > self.options.memory_bytes_max / 2 {
            if pending > self.options.memory_bytes_max {
                self.commit()?;
            } else {
                self.background.wake();
            }
        }
        Ok(self.store.space().reserve_meta(budget)?)
    }

    /// What fsync wrote so far.
    pub fn log_stats(&self) -> crate::log::write::LogStats {
        self.log.stats()
    }

    /// Everything written before the call is on disk after it.
    pub fn sync(&self) -> Result<()> {
        if self.store.volume().is_read_only() {
            return Ok(());
        }
        // One file that cannot be written (a full volume, a failing place) must not keep the rest from being durable.
        let written = crate::file::write_back_all(self);
        self.commit()?;
        written
    }

    /// Ends the mount: everything on disk, no thread left. The engine refuses changes afterwards.
    pub fn close(&self) -> Result<()> {
        if self.store.txn().is_closed() {
            return Ok(());
        }
        self.background.stop();
        self.discarder.stop();
        let result = if self.store.txn().is_aborted() {
            Err(Error::Store(StoreError::ReadOnly))
        } else {
            let synced = self.sync();
            self.drain_discards();
            synced
        };
        self.store.txn().close();
        result
    }
}

impl btrfs_store::space::Flusher for Engine {
    fn write_back_data(&self) -> btrfs_store::Result<()> {
        crate::file::write_back_for_space(self);
        Ok(())
    }
    fn commit(&self) -> btrfs_store::Result<()> {
        self.store.commit()
    }
}

impl CommitHooks for Engine {
    fn frozen(&self, edits_applied: u64) {
        self.log.frozen(edits_applied);
    }
    fn unshared(&self, extents: &[LogicalAddr], when: Generation) {
        crate::file::note_dropped(self, extents, when);
    }
    fn committed(&self, blocks: u64) {
        self.log.committed(self, blocks);
    }
    fn merged(&self, overlays: Vec<Arc<Overlay>>) {
        self.background.free(overlays);
        self.discard_after_commit();
    }
}

/// The tree of data checksums, and whether it is to be asked. `rescue=ignorebadroots` does without one whose root cannot be
/// read; the tree that is returned then is a stand-in.
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
