//! Trees: reading through overlay and committed blocks with one cursor, and the bulk merge of a
//! commit.
//!
//! A [`Tree`] is a root pointer, the active overlay, and during a commit the frozen one. Readers
//! take the tree's lock for one step (a lookup, a window of a range read); the commit takes it to
//! freeze and to publish the merged root. Between two steps of a cursor the tree may move on: a
//! cursor sees each key as it is when its window is read.
//!
//! The active overlay has locks of its own, which operations take to change it, and readers, inside
//! of the tree's lock, to look at it: what holds while the tree's lock is held is that no edit
//! leaves the active overlay.

mod changes;
pub mod compare;
#[cfg(test)]
mod compare_tests;
mod cursor;
mod full;
mod merge;
mod opened;
mod pending;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use btrfs_format::{Generation, Key, LogicalAddr, TreeBlock, TreeId};
use cowshed_runtime::lock::RwLock;

pub use changes::Change;
pub use cursor::Cursor;
pub use cursor::Run;
pub use full::FullLeaves;
pub use merge::{Edits, MergeHost, MergeOutcome, Merger, csum_item_bytes_max};
pub use opened::Opened;
use pending::{ActiveEdits, ReadStripes};
pub use store::{AddrHash, NodeStore};

use crate::error::Result;
use crate::overlay::stripes::{self, EntryRef, FrozenEdits};
use crate::overlay::{Edit, Growth, ItemBytes, Overlay};
use crate::rank::LockRank;
use crate::volume::BlockPtr;

/// Leaves that a sequential walk reads at once: half a MiB at the usual node size, which is what a
/// device is fast with.
const READAHEAD_LEAVES_MAX: usize = 32;

/// An item as a reader gets it: shared bytes, from an overlay or from a leaf.
#[derive(Clone)]
pub enum Item {
    /// Bytes of an overlay.
    Pending(ItemBytes),
    /// An item of a committed leaf.
    Leaf {
        /// The leaf.
        block: TreeBlock,
        /// Index of the item in it.
        slot: usize,
    },
}

impl std::ops::Deref for Item {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Pending(bytes) => bytes,
            Self::Leaf { block, slot } => block.data(*slot),
        }
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Item({} bytes)", self.len())
    }
}

/// Where a tree's root block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootPtr {
    /// Logical address of the block.
    pub addr: LogicalAddr,
    /// Generation in its header.
    pub generation: Generation,
    /// Height of the tree: 0 for a leaf.
    pub level: u8,
}

impl RootPtr {
    /// Of a tree that no commit has written yet: it has no block, and is empty below its overlays.
    pub const UNBORN: Self = Self {
        addr: LogicalAddr(u64::MAX),
        generation: Generation(0),
        level: 0,
    };

    pub(crate) fn is_unborn(&self) -> bool {
        *self == Self::UNBORN
    }

    fn block_ptr(&self) -> BlockPtr {
        BlockPtr {
            addr: self.addr,
            generation: self.generation,
            level: self.level,
            first_key: None,
        }
    }
}

/// What a commit changes.
#[derive(Debug)]
struct State {
    root: RootPtr,
    frozen: Option<Arc<FrozenEdits>>,
}

/// One tree of a volume.
#[derive(Debug)]
pub struct Tree {
    id: TreeId,
    store: Arc<NodeStore>,
    state: RwLock<State>,
    /// Looked at inside of `state`.
    active: ActiveEdits,
}

/// The one with the higher key; the active one of two with the same.
fn newest<'s>(active: Option<EntryRef<'s>>, frozen: Option<EntryRef<'s>>) -> Option<EntryRef<'s>> {
    match (active, frozen) {
        (Some(a), Some(f)) => Some(if a.0 >= f.0 { a } else { f }),
        (a, f) => a.or(f),
    }
}

impl Tree {
    /// A tree with this root and without pending edits.
    pub fn new(id: TreeId, store: Arc<NodeStore>, root: RootPtr) -> Self {
        Self {
            id,
            store,
            state: RwLock::new(LockRank::TreeState, State { root, frozen: None }),
            active: ActiveEdits::new(id),
        }
    }

    /// The tree's id.
    pub fn id(&self) -> TreeId {
        self.id
    }
    /// Bytes of a sector of the volume.
    pub fn sector_bytes(&self) -> u64 {
        self.store.volume().sectorsize_bytes().into()
    }
    /// The root of the last published merge; pending edits are not in it.
    pub fn root(&self) -> RootPtr {
        self.state.read().root
    }
    /// The cache that the tree's blocks come from.
    pub fn store(&self) -> &Arc<NodeStore> {
        &self.store
    }

    /// What the overlays say of a key: `None` where they say nothing.
    fn pending(&self, state: &State, key: &Key) -> Option<Edit> {
        let active = self.active.read_one(key.objectid);
        let active = active.as_ref().and_then(|stripe| stripe.edits.get(key));
        let pending = active.or_else(|| state.frozen.as_ref().and_then(|frozen| frozen.get(key)));
        pending.cloned()
    }

    /// The item under `key`, as of now.
    pub fn get(&self, key: &Key) -> Result<Option<Item>> {
        let state = self.state.read();
        if let Some(edit) = self.pending(&state, key) {
            return Ok(edit.map(Item::Pending));
        }
        let leaf = self.descend(state.root, key)?.leaf;
        Ok(leaf.search(key).ok().map(|slot| Item::Leaf {
            block: leaf.clone(),
            slot,
        }))
    }

    /// The last item at or below `key`.
    pub(crate) fn floor(&self, key: &Key) -> Result<Option<(Key, Item)>> {
        self.floor_from(&Key::MIN, key)
    }

    /// The last item from `from` to `key`, both included. Items that are deleted and not committed
    /// are passed one by one: the nearer `from` is, the fewer they are.
    pub fn floor_from(&self, from: &Key, key: &Key) -> Result<Option<(Key, Item)>> {
        if from > key {
            return Ok(None);
        }
        let state = self.state.read();
        let committed = self.floor_committed(state.root, key)?;
        let stripes = self.active.read(from, key);
        let active = stripes::floor(stripes.edits(), key).filter(|(at, _)| *at >= from);
        let frozen = state.frozen.as_ref().and_then(|frozen| frozen.floor(from, key));
        let found = match (newest(active, frozen), committed) {
            (None, committed) => committed,
            (Some((pending, _)), Some(committed)) if committed.0 > *pending => Some(committed),
            (Some((at, Some(bytes))), _) => Some((*at, Item::Pending(bytes.clone()))),
            (Some((_, None)), committed) => return self.floor_below_deleted((&state, &stripes), committed, from, key),
        };
        Ok(found.filter(|(at, _)| at >= from))
    }

    /// As [`Tree::floor_from`]: what is pending there begins, from the end, with a deletion.
    /// `committed`: what the committed tree has at or below `key`.
    fn floor_below_deleted(
        &self,
        (state, stripes): (&State, &ReadStripes<'_>),
        mut committed: Option<(Key, Item)>,
        from: &Key,
        key: &Key,
    ) -> Result<Option<(Key, Item)>> {
        let mut active = stripes::range_back(stripes.edits(), *from, *key).peekable();
        let frozen = state.frozen.iter();
        let mut frozen = frozen.flat_map(|frozen| frozen.range_back(*from, *key)).peekable();
        // Each round passes a deleted entry, and the committed item that it hides.
        loop {
            let pending = newest(active.peek().copied(), frozen.peek().copied());
            let found = match (pending, &committed) {
                (Some((pending, _)), Some((at, _))) if at > pending => committed,
                (Some((at, Some(bytes))), _) => Some((*at, Item::Pending(bytes.clone()))),
                (Some((deleted, None)), _) => {
                    active.next_if(|(at, _)| at == &deleted);
                    frozen.next_if(|(at, _)| at == &deleted);
                    if committed.as_ref().is_some_and(|(at, _)| at == deleted) {
                        committed = match deleted.prev() {
                            Some(prev) if prev >= *from => self.floor_beside(state.root, committed, &prev)?,
                            _ => None,
                        };
                    }
                    continue;
                }
                (None, _) => committed,
            };
            return Ok(found.filter(|(at, _)| at >= from));
        }
    }

    /// As [`Tree::floor_committed`], of a key that is likely to be of the leaf of another item.
    fn floor_beside(&self, root: RootPtr, beside: Option<(Key, Item)>, key: &Key) -> Result<Option<(Key, Item)>> {
        if let Some((_, Item::Leaf { block, slot })) = beside
            && let Some(slot) = slot.checked_sub(1)
            && block.key(slot) <= *key
        {
            return Ok(Some((block.key(slot), Item::Leaf { block, slot })));
        }
        self.floor_committed(root, key)
    }

    /// The last item at or below `key` whose object id and type are those of `key`.
    pub fn floor_same_type(&self, key: &Key) -> Result<Option<(Key, Item)>> {
        self.floor_from(&Key { offset: 0, ..*key }, key)
    }

    /// All items from `from` to `to`, both included, in key order.
    pub fn cursor(&self, from: Key, to: Key) -> Cursor<'_> {
        Cursor::new(self, from, to)
    }

    /// All items of one object and type with offsets from `from` on.
    pub fn cursor_type(&self, from: Key) -> Cursor<'_> {
        Cursor::new(
            self,
            from,
            Key {
                offset: u64::MAX,
                ..from
            },
        )
    }

    /// As [`Tree::get`], without what operations of the running transaction have pending: the
    /// commit's own view.
    pub(crate) fn get_committed(&self, key: &Key) -> Result<Option<Item>> {
        let root = self.state.read().root;
        let leaf = self.descend(root, key)?.leaf;
        Ok(leaf.search(key).ok().map(|slot| Item::Leaf {
            block: leaf.clone(),
            slot,
        }))
    }

    /// The last key at or below `key`, in the commit's own view.
    pub fn floor_committed_key(&self, key: &Key) -> Result<Option<Key>> {
        let root = self.state.read().root;
        Ok(self.floor_committed(root, key)?.map(|(key, _)| key))
    }

    /// The last key from `from` to `key`, both included, that the running transaction has, or had
    /// when it began, or had in between: also one that is deleted by now.
    pub fn floor_key_ever(&self, from: &Key, key: &Key) -> Result<Option<Key>> {
        // Held while blocks are read: no commit frees them meanwhile.
        let state = self.state.read();
        let committed = self.floor_committed(state.root, key)?.map(|(key, _)| key);
        let stripes = self.active.read(from, key);
        let active = stripes::floor(stripes.edits(), key);
        let frozen = state.frozen.as_ref().and_then(|frozen| frozen.floor(from, key));
        let pending = newest(active, frozen).map(|(key, _)| *key);
        Ok(pending.max(committed).filter(|found| found >= from))
    }

    /// As [`Tree::cursor`], in the commit's own view.
    pub(crate) fn cursor_committed(&self, from: Key, to: Key) -> Cursor<'_> {
        Cursor::new(self, from, to).without_pending()
    }

    /// Adds edits to the active overlay, in order; called by [`crate::txn`] alone. Returns by how
    /// much it grew.
    pub fn apply(&self, edits: Vec<(Key, Edit)>) -> Growth {
        self.active.insert(edits)
    }

    /// As [`Tree::apply`], of edits in the order of their keys, each key once.
    pub(crate) fn apply_run(&self, run: Vec<(Key, Edit)>) -> Growth {
        self.active.insert_run(run)
    }

    /// Moves the active overlay aside for the commit that begins; `None` when there is nothing to
    /// merge.
    ///
    /// The caller holds the transaction's gate, so that no operation is half applied.
    pub(crate) fn freeze(&self) -> Option<Arc<FrozenEdits>> {
        if self.active.is_untouched() {
            return None;
        }
        let mut state = self.state.write();
        assert!(state.frozen.is_none(), "a tree is frozen by one commit at a time");
        let frozen = FrozenEdits::new(self.active.take());
        if frozen.is_empty() {
            return None;
        }
        let frozen = Arc::new(frozen);
        state.frozen = Some(frozen.clone());
        Some(frozen)
    }

    /// The frozen overlay is in the tree under `root`: readers see both change at once.
    pub fn publish(&self, merged: MergeOutcome, drop_frozen: bool) {
        let mut state = self.state.write();
        for addr in merged.released {
            self.store.forget(addr);
        }
        for block in merged.blocks.into_values() {
            self.store.insert_dirty(block);
        }
        state.root = merged.root;
        if drop_frozen {
            state.frozen = None;
        }
    }

    /// How many children, or items, the committed root block has.
    pub fn root_children(&self) -> Result<usize> {
        let state = self.state.read();
        Ok(self.load_root(&state.root)?.len())
    }

    fn load_root(&self, root: &RootPtr) -> Result<TreeBlock> {
        match root.is_unborn() {
            true => Ok(self.store.empty_leaf()),
            false => self.store.load(&root.block_ptr(), self.id),
        }
    }

    /// The active overlay has edits.
    pub(crate) fn has_pending(&self) -> bool {
        !self.active.is_untouched() && !self.active.read_all().edits().all(Overlay::is_empty)
    }

    fn descend(&self, root: RootPtr, key: &Key) -> Result<LeafAt> {
        self.descend_with(root, key, |_, _| {})
    }

    /// As [`Tree::descend`] for a walk that needs the leaves behind this one, too, up to the key
    /// `to`: where this one has to be read, those that the parent names next are read with it.
    fn descend_in_sequence(&self, root: RootPtr, key: &Key, to: &Key) -> Result<LeafAt> {
        self.descend_with(root, key, |block, slot| {
            if block.level() == 1 {
                self.read_ahead(block, slot, to, |_| true);
            }
        })
    }

    /// Reads a child of a node, and those behind it up to the key `to` that are wanted, if it is
    /// not in memory.
    fn read_ahead(&self, node: &TreeBlock, slot: usize, to: &Key, is_wanted: impl Fn(&BlockPtr) -> bool) {
        if self.store.holds(&child_ptr(node, slot)) {
            return;
        }
        let end = node.len().min(slot + READAHEAD_LEAVES_MAX);
        let wanted: Vec<_> = (slot..end)
            .take_while(|&next| next == slot || node.key(next) <= *to)
            .map(|slot| child_ptr(node, slot))
            .filter(is_wanted)
            .collect();
        self.store.read_ahead(&wanted, self.id);
    }

    /// Tells `passed` each node on the way, and the slot taken in it, before the child is loaded.
    fn descend_with(&self, root: RootPtr, key: &Key, passed: impl Fn(&TreeBlock, usize)) -> Result<LeafAt> {
        let mut block = self.load_root(&root)?;
        let mut upper = None;
        loop {
            if block.is_leaf() {
                return Ok(LeafAt { leaf: block, upper });
            }
            let slot = block.child_slot(key);
            if slot + 1 < block.len() {
                upper = Some(block.key(slot + 1));
            }
            passed(&block, slot);
            block = self.store.load(&child_ptr(&block, slot), self.id)?;
        }
    }

    /// Addresses and levels of the committed blocks that lead to a key, the root first; none in a
    /// tree that no commit has written yet.
    pub fn path(&self, key: &Key) -> Result<Vec<(LogicalAddr, u8)>> {
        let state = self.state.read();
        let mut path = Vec::new();
        if state.root.is_unborn() {
            return Ok(path);
        }
        let mut ptr = state.root.block_ptr();
        loop {
            path.push((ptr.addr, ptr.level));
            let block = self.store.load(&ptr, self.id)?;
            if block.is_leaf() {
                return Ok(path);
            }
            ptr = child_ptr(&block, block.child_slot(key));
        }
    }

    fn floor_committed(&self, root: RootPtr, key: &Key) -> Result<Option<(Key, Item)>> {
        let mut key = *key;
        loop {
            let at = self.descend(root, &key)?;
            let slot = match at.leaf.search(&key) {
                Ok(slot) => Some(slot),
                Err(slot) => slot.checked_sub(1),
            };
            if let Some(slot) = slot {
                return Ok(Some((at.leaf.key(slot), Item::Leaf { block: at.leaf, slot })));
            }
            // The key lies below this leaf's first item: only the leftmost leaf has nothing before
            // it. A separator in a node equals its child's first key, so one step to the left is
            // enough.
            match at
                .leaf
                .item_headers()
                .first()
                .map(|h| Key::from(h.key))
                .and_then(Key::prev)
            {
                Some(prev) if prev < key => key = prev,
                _ => return Ok(None),
            }
        }
    }
}

/// Child `slot` of a node as its parent describes it.
pub fn child_ptr(block: &TreeBlock, slot: usize) -> BlockPtr {
    let (addr, generation) = block.child(slot);
    BlockPtr {
        addr,
        generation,
        level: block.level() - 1,
        first_key: Some(block.key(slot)),
    }
}

/// A leaf and the key at which the next one begins (`None` for the last).
struct LeafAt {
    leaf: TreeBlock,
    upper: Option<Key>,
}
