//! Writing the log: what fsync does instead of a commit.
//!
//! ```text
//!   fsync --write back--> queue --commit lock--> collect (operations kept out) --> merge, seal, write, barrier,
//!                                   |                |                              superblock, barrier
//!                                   |                +--> not certain, or dearer: a full commit
//!                                   +--> one thread leads, and syncs for all who wait
//! ```
//!
//! Guarantees: docs/design/log-tree.md#writing. After an error in a sync the logs are in no known state and are not written
//! again in this transaction: the fsync commits, and fails if that fails.
//!
//! Locks, outermost first: the commit lock, the state of the logs, the gate (exclusively, while items are collected), the
//! names. The locks of the queue and of the costs are held for moments.

mod blocks;
mod collect;
mod cost;
mod dir;
mod extents;
mod names;
mod ranges;
mod renamed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use btrfs_format::block::ITEM_HEADER_BYTES;
use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use cowshed_runtime::Env;
use cowshed_runtime::group_commit::{self, Abandoned, Queue};
use parking_lot::Mutex;

use blocks::LogTrees;
use collect::{Collector, Step, Stop, inode_item, inode_key};
use cost::{Costs, Pending, least_blocks};
use names::LeftNames;
use renamed::Renamed;

use crate::dir::staged::Staged;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::inode::{Inode, flags};
use btrfs_store::overlay::Edit;
use btrfs_store::tree::{Edits, Tree};
use btrfs_store::txn::CommitStats;

/// What syncs did so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogStats {
    /// Logs written.
    pub syncs: u64,
    /// Callers whose fsync they were.
    pub requests: u64,
    /// Syncs that became commits.
    pub commits: u64,
    /// Those among them that did so because it is cheaper.
    pub chosen: u64,
    /// Those among them that did so because something failed: on a healthy device none.
    pub failed: u64,
    /// Items merged into logs, those of logs that became commits after all included.
    pub items_merged: u64,
    /// How often a tree was searched for extended attributes of an inode: never for those known to have none.
    pub xattr_searches: u64,
    /// Tree blocks and bytes written for logs.
    pub blocks_written: u64,
    pub bytes_written: u64,
}

/// How much of an inode a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// What is needed to read its data (fdatasync): where only times changed, nothing is.
    Data,
    /// All of it.
    All,
}

/// Receives the outcome of an fsync, once, in the thread that has it.
pub type Done = group_commit::Done<Error>;

impl From<Abandoned> for Error {
    fn from(_: Abandoned) -> Self {
        Error::Outcome(cowshed_vfs::Error::Io)
    }
}

/// A queued fsync.
#[derive(Debug)]
struct Request {
    tree: Arc<Tree>,
    ino: ObjectId,
    scope: Scope,
    in_place: bool,
}

impl Request {
    fn of(inode: &Inode, scope: Scope) -> Self {
        Self {
            tree: inode.tree.clone(),
            ino: inode.ino,
            scope,
            in_place: inode.flags() & flags::NODATACOW != 0,
        }
    }
}

/// The logs of the running transaction. See the module's page.
#[derive(Debug)]
pub struct Log {
    queue: Queue<Request, Error>,
    state: Mutex<LogTrees>,
    left: Mutex<LeftNames>,
    renamed: Mutex<Renamed>,
    /// The commit under way stands in for a log.
    stands_in: AtomicBool,
    /// Something happened in the running transaction that logs cannot say.
    is_off: AtomicBool,
    costs: Mutex<Costs>,
    stats: Mutex<LogStats>,
}

impl Log {
    /// No fsync was queued yet.
    pub(crate) fn new(env: Arc<dyn Env>) -> Self {
        Self {
            queue: Queue::new(env, true),
            state: Mutex::default(),
            left: Mutex::default(),
            renamed: Mutex::default(),
            stands_in: AtomicBool::default(),
            is_off: AtomicBool::default(),
            costs: Mutex::default(),
            stats: Mutex::default(),
        }
    }

    /// An inode that lives on loses a name. Called by the operation that takes it, inside its join.
    pub(crate) fn name_left(&self, dir: &Inode, name: &[u8], inode: &Inode) {
        if inode.is_placeholder() {
            return self.turn_off();
        }
        if !self.left.lock().note(dir.tree.id(), dir.ino, name, inode.ino) {
            self.turn_off();
        }
        self.note_renamed(inode, None, None, &[]);
    }

    /// An inode has one more name, or another one; it had one in `from` before, if that is given. Called as
    /// [`Log::name_left`].
    pub(crate) fn name_added(&self, inode: &Inode, (dir, name): (&Inode, &[u8]), from: Option<&Inode>) {
        if inode.is_placeholder() {
            return;
        }
        let before = self.left.lock().previous_holders(dir.tree.id(), dir.ino, name);
        self.note_renamed(inode, from, Some(dir), &before);
    }

    /// A file was made without a name in `dir`. Called as [`Log::name_left`].
    pub(crate) fn made_without_name(&self, dir: &Inode, inode: &Inode) {
        let mut renamed = self.renamed.lock();
        renamed.note_unnamed(inode.tree.id(), inode.ino, dir.ino);
    }

    /// See [`renamed`]. Where the inode is logged again, so are those that had its new name `before`.
    fn note_renamed(&self, inode: &Inode, from: Option<&Inode>, to: Option<&Inode>, before: &[ObjectId]) {
        let mut renamed = self.renamed.lock();
        let is_logged = |renamed: &Renamed, inode: &Inode| {
            inode.tree.is_tracked(inode.ino) || renamed.was_logged(inode.tree.id(), inode.ino)
        };
        let left = from.filter(|from| is_logged(&renamed, from)).map(|from| from.ino);
        if left.is_some() || is_logged(&renamed, inode) {
            for ino in before {
                renamed.note_stale(inode.tree.id(), *ino, None);
            }
            renamed.note_stale(inode.tree.id(), inode.ino, left);
            if let Some(to) = to.filter(|to| !is_logged(&renamed, to) && is_new_in_transaction(to)) {
                renamed.note_dir_of_stale(to.tree.id(), to.ino);
            }
            if !is_new_in_transaction(inode) {
                // They come along with it.
                for dir in [from, to].into_iter().flatten() {
                    renamed.note_logged(dir.tree.id(), dir.ino);
                }
            }
        }
        if inode.is_dir() && from.is_some() {
            renamed.note_moved_dir(inode.tree.id());
        }
        if !renamed.note(inode.tree.id(), inode.ino) {
            self.turn_off();
        }
    }

    /// An inode loses its last name. As [`Log::name_left`].
    pub(crate) fn name_removed(&self, dir: &Inode, name: &[u8], inode: &Inode) {
        let mut left = self.left.lock();
        let (tree, ino) = (inode.tree.id(), inode.ino);
        // Replaying the removal of a directory removes all that the committed tree has in it: what moved out of it since
        // would go, too.
        let is_left = inode.is_dir() && left.has_left(tree, ino);
        let is_noted = !left.has_lost(tree, ino) || left.note(dir.tree.id(), dir.ino, name, ino);
        if inode.is_placeholder() || is_left || !is_noted {
            self.turn_off();
        }
    }

    /// Names come and go. Called as [`Log::name_left`].
    ///
    /// Replay adds the names of a log to what the commit has, which may be more than there was at any time: in the item of names
    /// that share a hash it must not be more than a leaf holds. Such an item of the commit that did not change is none of our
    /// concern; one that changed and never was longer than half a leaf fits twice.
    pub(crate) fn names_changed(&self, staged: &Staged<'_>) {
        if staged.is_crowded() {
            self.turn_off();
        }
    }

    /// Until the next commit, every fsync commits.
    pub(crate) fn turn_off(&self) {
        self.is_off.store(true, Ordering::Release);
    }

    /// Every fsync commits, until the next commit.
    pub(crate) fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Acquire)
    }

    /// The running transaction ends: operations are kept out.
    pub(crate) fn frozen(&self, edits_applied: u64) {
        self.left.lock().clear();
        let mut renamed = self.renamed.lock();
        match self.stands_in.load(Ordering::Acquire) {
            true => renamed.committed(),
            false => renamed.clear(),
        }
        drop(renamed);
        self.costs.lock().frozen(edits_applied);
        self.is_off.store(false, Ordering::Release);
    }

    /// The superblock on disk leads to no log any more. The commit wrote so many blocks.
    pub(crate) fn committed(&self, engine: &Engine, blocks: u64) {
        let tree_blocks = engine.store.space().metadata_used_bytes() / engine.store.nodes().nodesize_bytes() as u64;
        self.costs.lock().committed(blocks, tree_blocks);
        self.state.lock().clear(engine);
    }

    pub fn stats(&self) -> LogStats {
        *self.stats.lock()
    }
}

/// The running transaction has made the inode, which changed in it.
fn is_new_in_transaction(inode: &Inode) -> bool {
    let item = inode.tree.pending_edit(&inode_key(inode.ino)).flatten();
    item.is_some_and(|item| inode_item(&item).is_some_and(|item| item.generation == item.transid))
}

/// Makes an inode durable as it is when this is called: its attributes, its names, and of its data what was written back.
///
/// # Errors
/// When neither a log nor a commit could be written: the mount is read-only then.
pub fn sync_inode(engine: &Engine, inode: &Inode, scope: Scope) -> Result<()> {
    let request = Request::of(inode, scope);
    engine.log.queue.wait(request, &|take| round(engine, take))
}

/// As [`sync_inode`] for a caller who is told later: see [`Queue::later`].
pub fn sync_inode_later(engine: &Engine, inode: &Inode, scope: Scope, done: Done, will_wait: &dyn Fn()) {
    let request = Request::of(inode, scope);
    let queue = &engine.log.queue;
    queue.later(request, done, will_wait, &|take| round(engine, take));
}

/// Syncs for all who wait once no commit runs any more.
fn round(engine: &Engine, take: &dyn Fn() -> Vec<Request>) -> Result<()> {
    let mut commits = engine.store.txn().hold_commits();
    sync_all(engine, &take(), &mut commits)
}

fn sync_all(engine: &Engine, requests: &[Request], commits: &mut CommitStats) -> Result<()> {
    engine.store.txn().check_writable()?;
    if !engine.options.tree_log {
        return Ok(engine.store.commit_held(commits)?);
    }
    let why = match log_all(engine, requests) {
        Ok(()) => return Ok(()),
        Err(Stop::Commit(why)) => why.to_string(),
        Err(Stop::Cheaper) => {
            engine.log.stats.lock().chosen += 1;
            "it is cheaper than a log".to_string()
        }
        Err(Stop::Failed(error)) => {
            tracing::warn!(%error, "the log could not be written");
            engine.log.stats.lock().failed += 1;
            error.to_string()
        }
    };
    tracing::debug!(%why, "fsync commits");
    engine.log.stats.lock().commits += 1;
    commit_instead(engine, requests, commits)
}

/// Commits where a log would have been written: see [`renamed`].
fn commit_instead(engine: &Engine, requests: &[Request], commits: &mut CommitStats) -> Result<()> {
    let log = &engine.log;
    for request in requests {
        let tree = &request.tree;
        let objects = tree.tracked_objects(renamed::RENAMED_MAX).into_iter();
        let mut renamed = log.renamed.lock();
        renamed.committed_instead(tree.id(), objects.chain([request.ino]));
    }
    log.stands_in.store(true, Ordering::Release);
    let done = engine.store.commit_held(commits);
    log.stands_in.store(false, Ordering::Release);
    Ok(done?)
}

/// Writes one log for all requests.
fn log_all(engine: &Engine, requests: &[Request]) -> Step<()> {
    let log = &engine.log;
    let mut state = log.state.lock();
    let (edits, running) = {
        let _gate = engine.store.txn().exclude();
        if state.is_broken || log.is_off() {
            return Err(Stop::Commit("logs are off in this transaction"));
        }
        if engine.store.space().has_new_chunk() {
            return Err(Stop::Commit("a chunk was made"));
        }
        if prefers_commit(engine, 0) {
            return Err(Stop::Cheaper);
        }
        // Whatever stops this, or fails, leaves lists of changes that were taken: only a commit helps.
        state.is_broken = true;
        (collect(engine, &mut state, requests)?, engine.store.txn().running())
    };
    if edits.is_empty() {
        state.is_broken = false;
        // Data written in place leaves no trace in items.
        if requests.iter().any(|request| request.in_place) {
            engine.store.volume().flush()?;
        }
        return Ok(());
    }
    let items: u64 = edits.iter().map(|(_, edits)| edits.len() as u64).sum();
    let sizes: Vec<u64> = edits.iter().map(|(_, edits)| item_bytes(edits)).collect();
    let nodesize = engine.store.nodes().nodesize_bytes();
    // The last one is the root of the logs.
    let least_blocks = sizes.iter().map(|bytes| least_blocks(*bytes, nodesize)).sum::<u64>() + 1;
    if prefers_commit(engine, least_blocks) {
        return Err(Stop::Cheaper);
    }
    check_room(engine, least_blocks)?;
    let blocks = state.blocks_needed(nodesize as u64, items, sizes.iter().sum());
    let reserved = engine.store.space().try_reserve_blocks(blocks);
    let reserved = reserved.ok_or(Stop::Commit("no room for a log beside what is promised"))?;
    log.stats.lock().items_merged += items;
    let written = state.sync(engine, running, edits)?;
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
fn prefers_commit(engine: &Engine, least_blocks: u64) -> bool {
    let pending = Pending {
        edits_applied: engine.store.txn().applied().0,
        blocks: engine.store.space().pending_memory_bytes() / engine.store.nodes().nodesize_bytes() as u64,
    };
    engine.log.costs.lock().prefers_commit(pending, least_blocks)
}

/// A log of so many blocks fits beside what there is: replay knows no chunk that was made for it.
fn check_room(engine: &Engine, least_blocks: u64) -> Step<()> {
    match least_blocks <= engine.store.space().blocks_without_chunk() {
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
fn collect(engine: &Engine, state: &mut LogTrees, requests: &[Request]) -> Step<Vec<(TreeId, Edits)>> {
    let mut by_tree: BTreeMap<TreeId, (Arc<Tree>, BTreeMap<ObjectId, Scope>)> = BTreeMap::new();
    for request in requests {
        let entry = by_tree.entry(request.tree.id());
        let (_, inodes) = entry.or_insert_with(|| (request.tree.clone(), BTreeMap::new()));
        let scope = inodes.entry(request.ino).or_insert(request.scope);
        *scope = request.scope.max(*scope);
    }
    let mut left = engine.log.left.lock();
    let mut renamed = engine.log.renamed.lock();
    let mut all = Vec::new();
    for (id, (tree, inodes)) in by_tree {
        if !state.subvols.contains_key(&id) && !is_committed_subvolume(engine, id)? {
            return Err(Stop::Commit("a new subvolume"));
        }
        let log = state.subvols.entry(id).or_default();
        let mut collector = Collector::new(engine, &tree, log, (&mut left, &mut renamed));
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
fn is_committed_subvolume(engine: &Engine, id: TreeId) -> Result<bool> {
    let last = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let found = engine.store.forest().root_tree().floor_committed_key(&last)?;
    Ok(found.is_some_and(|key| key.objectid == last.objectid && key.ty == last.ty))
}
