//! Writing the log: what fsync does instead of a commit.
//!
//! ```text
//!   fsync --write back--> queue --commit lock--> collect (operations kept out) --> write
//!                                   |                |
//!                                   |                +--> not certain, or dearer: a full commit
//!                                   +--> one leader syncs for all followers
//!
//!   write: merge, seal, write, barrier, superblock, barrier
//! ```
//!
//! Guarantees: docs/design/log-tree.md#writing. After an error in a sync the logs are in no known
//! state and are not written again in this transaction: the fsync commits, and fails if that fails.
//!
//! Locks: [`btrfs_store::rank`].

mod blocks;
mod collect;
mod cost;
mod dir;
mod extents;
mod ranges;

use std::collections::BTreeMap;
use std::sync::Arc;

use btrfs_format::block::ITEM_HEADER_BYTES;
use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use cowshed_runtime::Env;
use cowshed_runtime::group_commit::{self, Abandoned, Queue};
use cowshed_runtime::lock::{self, Mutex};

use blocks::LogTrees;
use collect::{Collector, Step, Stop};
use cost::{Costs, Pending, least_blocks};

use crate::error::{Error, Result};
use crate::files::Files;
use crate::name_changes::RENAMED_MAX;
use crate::object::{Inode, Subvol, flags};
use btrfs_store::Store;
use btrfs_store::overlay::Edit;
use btrfs_store::rank::LockRank;
use btrfs_store::tree::{Edits, Tree};
use btrfs_store::txn::CommitStats;

/// What syncs did so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogStats {
    /// Logs written.
    pub syncs: u64,
    /// Callers whose fsync they were.
    pub(crate) requests: u64,
    /// Syncs that became commits.
    pub commits: u64,
    /// Those among them that did so because it is cheaper.
    pub chosen: u64,
    /// Those among them that did so because something failed: on a healthy device none.
    pub failed: u64,
    /// Items merged into logs, those of logs that became commits after all included.
    pub items_merged: u64,
    /// How often a tree was searched for extended attributes of an inode: never for those known to
    /// have none.
    pub xattr_searches: u64,
    /// Tree blocks and bytes written for logs.
    pub blocks_written: u64,
    pub(crate) bytes_written: u64,
}

/// How much of an inode a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// What is needed to read its data (fdatasync): where only times changed, nothing is.
    Data,
    /// All of it.
    All,
}

/// Receives the outcome of an fsync, once, in the thread that has it.
pub(crate) type Done = group_commit::Done<Error>;

impl From<Abandoned> for Error {
    fn from(_: Abandoned) -> Self {
        Error::Outcome(cowshed_vfs::Error::Io)
    }
}

/// A queued fsync.
#[derive(Debug)]
struct Request {
    subvol: Arc<Subvol>,
    ino: ObjectId,
    scope: Scope,
    in_place: bool,
}

impl Request {
    fn of(inode: &Inode, scope: Scope) -> Self {
        Self {
            subvol: inode.subvol.clone(),
            ino: inode.ino,
            scope,
            in_place: inode.flags() & flags::NODATACOW != 0,
        }
    }
}

/// The logs of the running transaction. See the module's page.
#[derive(Debug)]
pub(crate) struct Log {
    queue: Queue<Request, Error>,
    state: Mutex<LogTrees>,
    costs: Mutex<Costs>,
    stats: Mutex<LogStats>,
}

impl Log {
    /// No fsync was queued yet.
    pub(crate) fn new(env: Arc<dyn Env>) -> Self {
        Self {
            queue: Queue::new(env, true),
            state: Mutex::new(LockRank::LogState, LogTrees::default()),
            costs: Mutex::new(LockRank::LogCosts, Costs::default()),
            stats: Mutex::new(LockRank::LogStats, LogStats::default()),
        }
    }

    /// The running transaction ends: operations are kept out.
    pub(crate) fn frozen(&self, edits_applied: u64) {
        self.costs.lock().frozen(edits_applied);
    }

    /// The superblock on disk leads to no log any more. The commit wrote so many blocks.
    pub(crate) fn committed(&self, store: &Store, blocks: u64) {
        let tree_blocks = store.space().metadata_used_bytes() / store.nodes().nodesize_bytes() as u64;
        self.costs.lock().committed(blocks, tree_blocks);
        self.state.lock().clear(store);
    }

    pub(crate) fn stats(&self) -> LogStats {
        *self.stats.lock()
    }
}

impl Log {
    /// Makes an inode durable as it is when this is called: its attributes, its names, and of its
    /// data what was written back.
    ///
    /// # Errors
    /// When neither a log nor a commit could be written: the mount is read-only then.
    pub(crate) fn sync_inode(&self, files: &Files, inode: &Inode, scope: Scope) -> Result<()> {
        lock::may_wait_for(LockRank::Commit);
        let request = Request::of(inode, scope);
        self.queue.wait(request, &|take| round(files, self, take))
    }

    /// As [`Log::sync_inode`] for a caller that is told later: see [`Queue::later`].
    pub(crate) fn sync_inode_later(
        &self,
        files: &Files,
        inode: &Inode,
        scope: Scope,
        done: Done,
        will_wait: &dyn Fn(),
    ) {
        lock::may_wait_for(LockRank::Commit);
        let request = Request::of(inode, scope);
        self.queue
            .later(request, done, will_wait, &|take| round(files, self, take));
    }
}

/// One round of group commit: syncs all queued requests once no commit runs.
fn round(files: &Files, log: &Log, take: &dyn Fn() -> Vec<Request>) -> Result<()> {
    let mut commits = files.store().txn().hold_commits();
    sync_all(files, log, &take(), &mut commits)
}

fn sync_all(files: &Files, log: &Log, requests: &[Request], commits: &mut CommitStats) -> Result<()> {
    files.store().txn().check_writable()?;
    if !files.options().tree_log {
        return Ok(files.store().commit_held(commits)?);
    }
    let why = match log_all(files, log, requests) {
        Ok(()) => return Ok(()),
        Err(Stop::Commit(why)) => why.to_string(),
        Err(Stop::Cheaper) => {
            log.stats.lock().chosen += 1;
            "it is cheaper than a log".to_string()
        }
        Err(Stop::Failed(error)) => {
            tracing::warn!(%error, "the log could not be written");
            log.stats.lock().failed += 1;
            error.to_string()
        }
    };
    tracing::debug!(%why, "fsync commits");
    log.stats.lock().commits += 1;
    commit_instead(files, requests, commits)
}

/// Commits where a log would have been written: see [`crate::name_changes`].
fn commit_instead(files: &Files, requests: &[Request], commits: &mut CommitStats) -> Result<()> {
    for request in requests {
        let tree = &request.subvol.tree;
        let objects = tree.tracked_objects(RENAMED_MAX).into_iter();
        let (_, mut renamed) = files.names().take();
        renamed.committed_instead(tree.id(), objects.chain([request.ino]));
    }
    files.names().set_stands_in(true);
    let done = files.store().commit_held(commits);
    files.names().set_stands_in(false);
    Ok(done?)
}

/// Writes one log for all requests.
fn log_all(files: &Files, log: &Log, requests: &[Request]) -> Step<()> {
    let mut state = log.state.lock();
    let (edits, running) = {
        let _gate = files.store().txn().exclude();
        if state.is_broken || files.names().is_off() {
            return Err(Stop::Commit("logs are off in this transaction"));
        }
        // No replay would look for its tree.
        if requests.iter().any(|request| request.subvol.is_dead()) {
            return Err(Stop::Commit("the subvolume is deleted"));
        }
        if files.store().space().has_new_chunk() {
            return Err(Stop::Commit("a chunk was made"));
        }
        if prefers_commit(files, log, 0) {
            return Err(Stop::Cheaper);
        }
        // Whatever stops this, or fails, leaves lists of changes that were taken: only a commit
        // helps.
        state.is_broken = true;
        (
            collect(files, log, &mut state, requests)?,
            files.store().txn().running(),
        )
    };
    if edits.is_empty() {
        state.is_broken = false;
        // Data written in place leaves no trace in items.
        if requests.iter().any(|request| request.in_place) {
            files.store().volume().flush()?;
        }
        return Ok(());
    }
    let items: u64 = edits.iter().map(|(_, edits)| edits.len() as u64).sum();
    let sizes: Vec<u64> = edits.iter().map(|(_, edits)| item_bytes(edits)).collect();
    let nodesize = files.store().nodes().nodesize_bytes();
    // The last one is the root of the logs.
    let least_blocks = sizes.iter().map(|bytes| least_blocks(*bytes, nodesize)).sum::<u64>() + 1;
    if prefers_commit(files, log, least_blocks) {
        return Err(Stop::Cheaper);
    }
    check_room(files.store(), least_blocks)?;
    let blocks = state.blocks_needed(nodesize as u64, items, sizes.iter().sum());
    let reserved = files.store().space().try_reserve_blocks(blocks);
    let reserved = reserved.ok_or(Stop::Commit("no room for a log beside what is promised"))?;
    log.stats.lock().items_merged += items;
    let written = state.sync(files.store(), running, edits)?;
    drop(reserved);
    state.is_broken = false;
    log.costs.lock().logged(written.blocks, least_blocks);
    let mut stats = log.stats.lock();
    stats.syncs += 1;
    stats.requests += requests.len() as u64;
    stats.blocks_written += written.blocks;
    stats.bytes_written += written.bytes;
    Ok(())
}

/// See [`Costs::prefers_commit`].
fn prefers_commit(files: &Files, log: &Log, least_blocks: u64) -> bool {
    let pending = Pending {
        edits_applied: files.store().txn().applied().0,
        blocks: files.store().space().pending_memory_bytes() / files.store().nodes().nodesize_bytes() as u64,
    };
    log.costs.lock().prefers_commit(pending, least_blocks)
}

/// A log of so many blocks fits beside what there is: replay knows no chunk that was made for it.
fn check_room(store: &Store, least_blocks: u64) -> Step<()> {
    match least_blocks <= store.space().blocks_without_chunk() {
        true => Ok(()),
        false => Err(Stop::Commit("the log would need a new chunk")),
    }
}

/// Bytes that items take in leaves.
fn item_bytes(edits: &Edits) -> u64 {
    let bytes = |(_, edit): &(Key, Edit)| ITEM_HEADER_BYTES + edit.as_ref().map_or(0, |b| b.len());
    edits.iter().map(bytes).sum::<usize>() as u64
}

/// What is to be merged into which log, in key order.
fn collect(files: &Files, log: &Log, state: &mut LogTrees, requests: &[Request]) -> Step<Vec<(TreeId, Edits)>> {
    let mut by_tree: BTreeMap<TreeId, (Arc<Tree>, BTreeMap<ObjectId, Scope>)> = BTreeMap::new();
    for request in requests {
        let entry = by_tree.entry(request.subvol.id);
        let (_, inodes) = entry.or_insert_with(|| (request.subvol.tree.clone(), BTreeMap::new()));
        let scope = inodes.entry(request.ino).or_insert(request.scope);
        *scope = request.scope.max(*scope);
    }
    let (mut left, mut renamed) = files.names().take();
    let mut all = Vec::new();
    for (id, (tree, inodes)) in by_tree {
        if !state.subvols.contains_key(&id) && !is_committed_subvolume(files.store(), id)? {
            return Err(Stop::Commit("a new subvolume"));
        }
        let subvol = state.subvols.entry(id).or_default();
        let mut collector = Collector::new((files, log), &tree, subvol, (&mut left, &mut renamed));
        collector.run(&inodes)?;
        let mut edits = collector.edits;
        if edits.is_empty() {
            continue;
        }
        edits.sort_by_key(|(key, _)| *key);
        // Of equal keys the last one stays.
        edits.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            if is_same {
                std::mem::swap(later, first);
            }
            is_same
        });
        all.push((id, edits));
    }
    Ok(all)
}

/// Replay finds the subvolume in the committed root tree, or drops its log.
fn is_committed_subvolume(store: &Store, id: TreeId) -> Result<bool> {
    let last = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let found = store.forest().root_tree().floor_committed_key(&last)?;
    Ok(found.is_some_and(|key| key.objectid == last.objectid && key.ty == last.ty))
}
