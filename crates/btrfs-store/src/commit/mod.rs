//! The commit: freeze, merge, run references until nothing is left, seal, write, barrier,
//! superblock, barrier.

mod csum;
mod drop;
mod quota;
mod roots;
mod space_cache;
mod subvolumes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use btrfs_format::features::incompat;
use btrfs_format::items::RootItem;
use btrfs_format::superblock::LABEL_BYTES;
use btrfs_format::view::{FileExtentView, file_extent};
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, TreeBlock, TreeId};

pub use csum::removal_edits;
pub use drop::dead_subvolumes;

use crate::error::{Error, Result};
use crate::jobs::Job;
use crate::overlay::Edit;
use crate::overlay::stripes::FrozenEdits;
use crate::refs::ExtentRecord;
use crate::refs::run::{ExtentFormat, Outcome, count_of, load_record, run_head};
use crate::refs::{RefName, RefQueue};
use crate::space::BlockKind;
use crate::store::{CommitHooks, Store};
use crate::tree::Opened;
use crate::tree::{Edits, FullLeaves, MergeHost, Merger, Tree};
use crate::txn::CommitStats;
use crate::volume::BlockPtr;

/// Rounds of references and free space after which a commit that does not settle is given up. Each
/// round only touches blocks that the one before dirtied, so a handful is normal.
const ROUNDS_MAX: u32 = 64;

impl Store {
    /// Commits everything applied before the call; returns when it is on disk. Dirty file data is
    /// the caller's matter.
    pub fn commit(&self) -> Result<()> {
        let wanted = self.txn().running();
        let mut stats = self.txn().hold_commits();
        if self.txn().committed() >= wanted {
            return Ok(());
        }
        self.commit_held(&mut stats)
    }

    /// Commits for a caller that keeps other commits out.
    pub fn commit_held(&self, stats: &mut CommitStats) -> Result<()> {
        self.txn().check_writable()?;
        // A panic in here must end in "read-only", never in a later commit of half a transaction.
        let mut guard = AbortOnDrop {
            store: self,
            armed: true,
        };
        let result = self.commit_locked(stats);
        guard.armed = false;
        drop(guard);
        if let Err(error) = &result {
            self.txn().abort(&format!("commit failed: {error}"));
            self.space().commit_failed();
        }
        result
    }

    /// What commits did since the volume was opened. Waits for a running commit.
    pub fn commit_stats(&self) -> CommitStats {
        *self.txn().hold_commits()
    }

    /// Counts the leaves under which pending items lie, instead of one for each item, for
    /// reservations that find too little space. A tree that cannot be counted (it is too large, or
    /// a node cannot be read) keeps a leaf for each of its items.
    ///
    /// Waits for the commit that is under way; the caller holds no lock from
    /// [`crate::rank::LockRank::Commit`] on.
    pub fn count_leaves(&self) {
        /// Of one tree: a few milliseconds, in which no operation goes on.
        const BLOCKS_MAX: u64 = 32_768;
        let _commits = self.txn().hold_commits();
        let _gate = self.txn().exclude();
        let mut opened = Opened::default();
        for tree in self.forest().open_trees() {
            match tree.opened_blocks(BLOCKS_MAX) {
                Ok(counted) => opened += counted.unwrap_or_default(),
                Err(error) => tracing::debug!(%error, tree = %tree.id(), "its leaves are not counted"),
            }
        }
        self.space().set_opened(opened);
    }

    fn commit_locked(&self, stats: &mut CommitStats) -> Result<()> {
        let started = self.env().monotonic();
        let hooks = self.hooks();
        let begun = self.space().commit_begins();
        let Some(frozen) = self.freeze(hooks.as_deref())? else {
            self.space().commit_was_idle(&begun);
            return Ok(());
        };
        self.space().retire_groups();
        let mut committer = Committer::new(self, frozen.transid, frozen.refs)?;
        for (tree, overlay) in &frozen.overlays {
            stats.items_merged += overlay.len() as u64;
            committer.merge(tree, &mut overlay.iter(), true)?;
        }
        committer.run_jobs(frozen.jobs)?;
        committer.mark_quotas_inconsistent()?;
        committer.forget_space_caches()?;
        committer.drop_subvolumes(&frozen.drops)?;
        committer.settle()?;
        let blocks = committer.write_out()?;
        stats.blocks_written += blocks;
        self.space().commit_done();
        self.space().pending_merged();
        if let Some(hooks) = &hooks {
            hooks.committed(blocks);
        }
        self.txn().set_committed(frozen.transid);
        stats.commits += 1;
        stats.time += self.env().monotonic().saturating_sub(started);
        if let Some(hooks) = hooks {
            hooks.merged(frozen.overlays.into_iter().map(|(_, overlay)| overlay).collect());
        }
        Ok(())
    }

    /// Ends the running transaction and starts the next one. `None` when nothing is pending.
    fn freeze(&self, hooks: Option<&dyn CommitHooks>) -> Result<Option<Frozen>> {
        let _gate = self.txn().exclude();
        let trees = self.forest().open_trees();
        let is_idle = !self.volume().has_log()
            && self.txn().has_no_references()
            && !self.space().has_changes()
            && self.jobs().is_idle()
            && !trees.iter().any(|tree| tree.has_pending());
        if is_idle {
            return Ok(None);
        }
        let transid = self.txn().running();
        let overlays = trees
            .into_iter()
            .filter_map(|tree| tree.freeze().map(|overlay| (tree, overlay)))
            .collect();
        let refs = self.txn().take_references();
        let (jobs, drops) = (self.jobs().take(), self.jobs().waiting_drops());
        self.space().pending_frozen();
        if let Some(hooks) = hooks {
            hooks.frozen(self.txn().applied().0);
        }
        self.txn().begin(transid.next());
        Ok(Some(Frozen {
            transid,
            overlays,
            refs,
            jobs,
            drops,
        }))
    }
}

struct AbortOnDrop<'a> {
    store: &'a Store,
    armed: bool,
}

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.store.txn().abort("a commit panicked");
            self.store.space().commit_failed();
        }
    }
}

/// What the freeze took out of the running transaction.
struct Frozen {
    transid: Generation,
    overlays: Vec<(Arc<Tree>, Arc<FrozenEdits>)>,
    refs: RefQueue,
    jobs: Vec<Job>,
    /// Dead subvolumes.
    drops: Vec<TreeId>,
}

/// One commit at work.
pub(super) struct Committer<'e> {
    pub(super) store: &'e Store,
    transid: Generation,
    format: ExtentFormat,
    queue: RefQueue,
    /// Blocks of this transaction, by address: what is to be written.
    dirty: BTreeMap<u64, TreeBlock>,
    /// Net blocks that each tree gained, for its root item.
    blocks_delta: HashMap<TreeId, i64>,
    /// Trees whose root item is not up to date.
    stale_roots: HashSet<TreeId>,
    /// Subvolumes whose content changed.
    touched: HashSet<TreeId>,
    last_snapshot: HashMap<TreeId, Generation>,
    extent_tree: Arc<Tree>,
    /// Leaves that no merge of this commit looks at again. See [`Committer::take_full`].
    full: FullLeaves,
    /// The subvolume whose frozen overlay is being merged.
    streams: Option<TreeId>,
    /// The volume's new label.
    pub(super) label: Option<Box<[u8; LABEL_BYTES]>>,
}

impl<'e> Committer<'e> {
    fn new(store: &'e Store, transid: Generation, queue: RefQueue) -> Result<Self> {
        let sb = store.volume().superblock();
        let format = ExtentFormat {
            nodesize_bytes: store.volume().nodesize_bytes().into(),
            is_skinny: sb.incompat_flags.get() & incompat::SKINNY_METADATA != 0,
        };
        Ok(Self {
            store,
            transid,
            format,
            queue,
            dirty: BTreeMap::new(),
            blocks_delta: HashMap::new(),
            stale_roots: HashSet::new(),
            touched: HashSet::new(),
            last_snapshot: HashMap::new(),
            extent_tree: store.forest().require(TreeId::EXTENT)?,
            full: FullLeaves::default(),
            streams: None,
            label: None,
        })
    }

    /// Merges edits into a tree and shows readers the result.
    fn merge<'s>(
        &mut self,
        tree: &Arc<Tree>,
        edits: &mut dyn Iterator<Item = (&'s Key, &'s Edit)>,
        is_frozen: bool,
    ) -> Result<()> {
        let id = tree.id();
        let before = tree.root();
        let store = self.store.nodes().clone();
        // The other trees are merged more than once, and first keys are asked for where the format
        // has them in extent items.
        self.streams = Some(id).filter(|id| is_frozen && id.is_fs_tree() && self.format.is_skinny);
        let mut merged = Merger::new(&store, self, id).merge(before, edits)?;
        let rest = self.full.take_rest().map(|block| (block.addr().get(), block));
        merged.blocks.extend(rest);
        for addr in &merged.released {
            self.dirty.remove(&addr.get());
        }
        for (addr, block) in &merged.blocks {
            self.dirty.insert(*addr, block.clone());
        }
        if merged.root != before || self.blocks_delta.get(&id).is_some_and(|delta| *delta != 0) {
            self.stale_roots.insert(id);
        }
        if is_frozen && id.is_fs_tree() {
            self.touched.insert(id);
            self.stale_roots.insert(id);
        }
        tree.publish(merged, is_frozen);
        Ok(())
    }

    pub(super) fn merge_edits(&mut self, id: TreeId, mut edits: Edits) -> Result<()> {
        if edits.is_empty() {
            return Ok(());
        }
        // Later edits of a key win: keep the last of equals.
        edits.reverse();
        edits.sort_by_key(|(key, _)| *key);
        edits.dedup_by_key(|(key, _)| *key);
        let tree = self.store.forest().require(id)?;
        self.merge(&tree, &mut edits.iter().map(|(key, edit)| (key, edit)), false)
    }

    /// References, free space, chunks and root items, until nothing is left to do.
    fn settle(&mut self) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            self.run_refs()?;
            let mut by_tree: BTreeMap<TreeId, Edits> = BTreeMap::new();
            for (tree, key, edit) in self.store.space().take_edits(self.transid)? {
                by_tree.entry(tree).or_default().push((key, edit));
            }
            let is_quiet = by_tree.is_empty() && self.stale_roots.is_empty() && self.queue.is_empty();
            for (tree, edits) in by_tree {
                self.merge_edits(tree, edits)?;
            }
            self.update_root_items()?;
            if is_quiet && !self.copy_root_tree()? {
                return Ok(());
            }
        }
        Err(Error::Refused {
            what: format!("a commit did not settle in {ROUNDS_MAX} rounds"),
        })
    }

    /// The superblock names the root tree's root with its own generation: a commit that changed no
    /// tree, because a log had nothing in it that was not known, copies the root all the same.
    /// False where it is of this transaction.
    fn copy_root_tree(&mut self) -> Result<bool> {
        let root_tree = self.store.forest().root_tree().clone();
        if root_tree.root().generation == self.transid {
            return Ok(false);
        }
        let (key, item) = roots::load_root_item(&root_tree, TreeId::EXTENT)?;
        self.merge_edits(TreeId::ROOT, vec![(key, Some(roots::root_item_bytes(&item)))])?;
        self.stale_roots.remove(&TreeId::ROOT);
        Ok(true)
    }

    fn run_refs(&mut self) -> Result<()> {
        let heads = self.queue.take()?;
        if heads.is_empty() {
            return Ok(());
        }
        let mut edits: Edits = Vec::with_capacity(heads.len());
        let mut freed_data = Vec::new();
        let mut unshared_data = Vec::new();
        let space = &self.store.space();
        for (addr, head) in &heads {
            let first_key = || self.first_key_of(*addr);
            let outcome = run_head(
                &self.extent_tree,
                &self.format,
                self.transid,
                (*addr, head),
                first_key,
                &mut edits,
            )?;
            match outcome {
                Outcome::Inserted => space.extent_inserted(*addr, head.len_bytes),
                Outcome::Kept => {}
                Outcome::Removed => space.extent_removed(*addr, head.len_bytes),
                Outcome::NeverWas => space.pin(*addr, head.len_bytes),
            }
            if head.level.is_none() && outcome == Outcome::Kept && head.drops_any() {
                unshared_data.push(*addr);
            }
            if head.level.is_none() && matches!(outcome, Outcome::Removed | Outcome::NeverWas) {
                freed_data.push((*addr, head.len_bytes));
            }
        }
        // Before readers see it: an extent with one reference left was still shared on disk.
        if let Some(hooks) = self.store.hooks().filter(|_| !unshared_data.is_empty()) {
            hooks.unshared(&unshared_data, self.transid);
        }
        self.merge_edits(TreeId::EXTENT, edits)?;
        if !freed_data.is_empty() {
            let csum_bytes = self.store.volume().csum_type().size_bytes();
            let sector_bytes = self.store.volume().sectorsize_bytes().into();
            let csum_tree = self.store.forest().require(TreeId::CSUM)?;
            let edits = csum::removal_edits(&csum_tree, csum_bytes, sector_bytes, &freed_data)?;
            self.merge_edits(TreeId::CSUM, edits)?;
        }
        Ok(())
    }

    fn first_key_of(&self, addr: LogicalAddr) -> Key {
        self.dirty
            .get(&addr.get())
            .filter(|block| !block.is_empty())
            .map_or(Key::MIN, |block| block.key(0))
    }

    fn update_root_items(&mut self) -> Result<()> {
        let root_tree = self.store.forest().root_tree().clone();
        let mut edits: Edits = Vec::new();
        for id in std::mem::take(&mut self.stale_roots) {
            if !roots::has_root_item(id) {
                continue;
            }
            let (key, before) = roots::load_root_item(&root_tree, id)?;
            let mut item: RootItem = before;
            let delta = self.blocks_delta.remove(&id).unwrap_or(0);
            let root = self.store.forest().require(id)?.root();
            roots::update_root_item(&mut item, root, self.transid, delta, self.format.nodesize_bytes);
            if self.touched.remove(&id) {
                roots::touch_subvolume(&mut item, self.transid, self.store.env().now());
            }
            if item != before {
                edits.push((key, Some(roots::root_item_bytes(&item))));
            }
        }
        self.merge_edits(TreeId::ROOT, edits)?;
        self.stale_roots.remove(&TreeId::ROOT);
        self.stale_roots.remove(&TreeId::CHUNK);
        Ok(())
    }

    /// Seals and writes all dirty blocks, then the superblock. Returns the number of blocks.
    fn write_out(&mut self) -> Result<u64> {
        let volume = &self.store.volume();
        let blocks: Vec<TreeBlock> = std::mem::take(&mut self.dirty).into_values().collect();
        let count = (blocks.len() + self.full.written()) as u64;
        let workers = &self.store.workers();
        self.store.nodes().write_out(workers, blocks, self.transid, None)?;
        let mut sb = volume.superblock();
        roots::fill_superblock(self.store, &mut sb, self.transid)?;
        self.store.space().fill_superblock(&mut sb);
        if let Some(label) = self.label.take() {
            sb.label = *label;
        }
        roots::fill_backup(self.store, &mut sb)?;
        // Barrier: every block and all file data that the new superblock leads to must be on disk
        // before it.
        volume.flush()?;
        volume.write_superblocks(&sb)?;
        // Barrier: the transaction is durable only with its superblock; freed space must not be
        // written before that.
        volume.flush()?;
        Ok(count)
    }

    /// May a snapshot or a relocation share this block? False wherever the generations exclude it.
    fn can_be_shared(&mut self, tree: TreeId, block: &TreeBlock) -> Result<bool> {
        if !tree.is_subvolume() {
            return Ok(false);
        }
        let last_snapshot = match self.last_snapshot.get(&tree) {
            Some(generation) => *generation,
            None => {
                let (_, item) = roots::load_root_item(self.store.forest().root_tree(), tree)?;
                let generation = Generation::from(item.last_snapshot);
                self.last_snapshot.insert(tree, generation);
                generation
            }
        };
        let is_relocated = block.header().flags.get() & btrfs_format::features::header_flags::RELOC != 0;
        Ok(block.generation() <= last_snapshot || is_relocated)
    }

    /// References and FULL_BACKREF of a block, with what is queued.
    pub(super) fn sharing(&self, block: &TreeBlock) -> Result<(i64, bool)> {
        self.sharing_at(block.addr())
    }
    pub(super) fn sharing_at(&self, addr: LogicalAddr) -> Result<(i64, bool)> {
        let record = load_record(&self.extent_tree, addr)?;
        self.sharing_of(addr, record.as_ref().map(|(_, record)| record))
    }

    /// The same of a block that may be another one by now: `None` where `name` does not refer to
    /// it.
    pub(super) fn sharing_by(&self, addr: LogicalAddr, name: RefName) -> Result<Option<(i64, bool)>> {
        let record = load_record(&self.extent_tree, addr)?.map(|(_, record)| record);
        let count = match &record {
            Some(record) => count_of(&self.extent_tree, addr, record, name)?,
            // The block may be new in this commit.
            None => 0,
        };
        let queued = self.queue.get(addr).map_or(0, |head| head.delta_of(name));
        match i64::from(count) + queued {
            1.. => self.sharing_of(addr, record.as_ref()).map(Some),
            _ => Ok(None),
        }
    }

    fn sharing_of(&self, addr: LogicalAddr, record: Option<&ExtentRecord>) -> Result<(i64, bool)> {
        let head = self.queue.get(addr);
        let base = record.map_or(0, |r| i64::try_from(r.refs).unwrap_or(i64::MAX));
        let refs = base.saturating_add(head.map_or(0, crate::refs::Head::net));
        if refs <= 0 {
            let what = format!("block {addr} is in use but has no references");
            return Err(Error::CorruptTree {
                tree: TreeId::EXTENT,
                what,
            });
        }
        let is_full = record.is_some_and(ExtentRecord::is_full_backref) || head.is_some_and(|h| h.set_full_backref);
        Ok((refs, is_full))
    }

    pub(super) fn drop_reference(&mut self, ptr: &BlockPtr, name: RefName) {
        self.queue
            .add(ptr.addr, self.format.nodesize_bytes, Some(ptr.level), name, -1);
    }

    pub(super) fn set_full_backref(&mut self, block: &TreeBlock) {
        self.queue
            .set_full_backref(block.addr(), self.format.nodesize_bytes, block.level());
    }

    /// A tree is gone: nothing of it is to be written any more.
    pub(super) fn forget_tree(&mut self, id: TreeId) {
        self.stale_roots.remove(&id);
        self.touched.remove(&id);
        self.store.forest().remove(id);
    }

    /// Adds `delta` to each reference that the block makes: named by its tree, or by the block
    /// itself. Returns how many these are.
    pub(super) fn change_children(
        &mut self,
        block: &TreeBlock,
        tree: TreeId,
        is_shared: bool,
        delta: i64,
    ) -> Result<usize> {
        let parent = block.addr();
        let mut changed = 0;
        for slot in 0..block.len() {
            if !block.is_leaf() {
                let name = if is_shared {
                    RefName::SharedBlock { parent }
                } else {
                    RefName::TreeBlock { root: tree }
                };
                let level = Some(block.level() - 1);
                self.queue
                    .add(block.child(slot).0, self.format.nodesize_bytes, level, name, delta);
                changed += 1;
                continue;
            }
            let (key, data) = block.item(slot);
            if key.ty != KeyType::EXTENT_DATA {
                continue;
            }
            let Some(FileExtentView::Regular(extent)) = file_extent(data) else {
                continue;
            };
            if extent.disk_bytenr.get() == 0 {
                continue;
            }
            let name = if is_shared {
                RefName::SharedData { parent }
            } else {
                let offset = key.offset.wrapping_sub(extent.offset.get());
                RefName::ExtentData {
                    root: tree,
                    ino: key.objectid,
                    offset,
                }
            };
            self.queue.add(
                extent.disk_bytenr.into(),
                extent.disk_num_bytes.get(),
                None,
                name,
                delta,
            );
            changed += 1;
        }
        Ok(changed)
    }
}

impl MergeHost for Committer<'_> {
    fn transid(&self) -> Generation {
        self.transid
    }

    fn alloc(&mut self, tree: TreeId, level: u8) -> Result<LogicalAddr> {
        let kind = if tree == TreeId::CHUNK {
            BlockKind::System
        } else {
            BlockKind::Metadata
        };
        let addr = self.store.space().alloc_block(kind)?;
        self.queue.new_block(addr, self.format.nodesize_bytes, level, tree);
        *self.blocks_delta.entry(tree).or_default() += 1;
        Ok(addr)
    }

    /// See docs/design/references.md for the rules; the names below are the format's.
    fn replace(&mut self, tree: TreeId, block: &TreeBlock) -> Result<Option<LogicalAddr>> {
        let addr = block.addr();
        if block.generation() == self.transid && block.owner() == tree && self.dirty.contains_key(&addr.get()) {
            return Ok(Some(addr));
        }
        let nodesize = self.format.nodesize_bytes;
        let name = RefName::TreeBlock { root: tree };
        *self.blocks_delta.entry(tree).or_default() -= 1;
        if !self.can_be_shared(tree, block)? {
            self.queue.drop_last(addr, nodesize, block.level(), name);
            return Ok(None);
        }
        let (refs, is_full) = self.sharing(block)?;
        if refs > 1 && block.owner() == tree && !is_full {
            // Others keep the old block: its children get references in its own name; those in the
            // tree's name pass to the copy.
            self.change_children(block, tree, true, 1)?;
            self.queue.set_full_backref(addr, nodesize, block.level());
        } else if refs > 1 {
            // The old block's references stay its own; the copy makes new ones in the tree's name.
            self.change_children(block, tree, false, 1)?;
        } else if is_full {
            // The last user takes the old block's own references over into the tree's name.
            self.change_children(block, tree, false, 1)?;
            self.change_children(block, tree, true, -1)?;
        }
        self.queue.add(addr, nodesize, Some(block.level()), name, -1);
        Ok(None)
    }

    fn release(&mut self, tree: TreeId, addr: LogicalAddr, level: u8) -> Result<()> {
        *self.blocks_delta.entry(tree).or_default() -= 1;
        if self.queue.cancel_new_block(addr) {
            self.store.space().free_block(addr);
        } else {
            // Its extent item exists already: the next round removes it and pins the space.
            self.queue.add(
                addr,
                self.format.nodesize_bytes,
                Some(level),
                RefName::TreeBlock { root: tree },
                -1,
            );
        }
        Ok(())
    }

    /// Leaves of subvolumes are written while the merge goes on: see
    /// docs/design/transactions.md#leaves-that-are-written-early.
    fn take_full(&mut self, addr: LogicalAddr, bytes: Vec<u8>) -> Result<Option<Vec<u8>>> {
        let Some(tree) = self.streams else {
            return Ok(Some(bytes));
        };
        // Under an address that readers know already, it must wait until it is published.
        if self.dirty.contains_key(&addr.get()) {
            return Ok(Some(bytes));
        }
        let (nodes, workers) = (self.store.nodes(), self.store.workers());
        self.full.take((nodes, workers), (self.transid, tree), (addr, bytes))?;
        Ok(None)
    }

    fn spare_buffer(&mut self) -> Option<Vec<u8>> {
        self.full.spare_buffer()
    }
}
