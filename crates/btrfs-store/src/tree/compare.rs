//! Walks over committed blocks that leave out what need not be read: the difference of two trees,
//! and what changed since a transaction.
//!
//! Two trees that grew out of one share blocks. A block at the same address and of the same
//! generation holds the same items in both, so it is skipped with all that lies below it: comparing
//! costs what differs, not what there is.
//!
//! [`compare`] does not look at pending items, [`search`] does. The caller keeps the blocks from
//! being replaced meanwhile: the trees are those of read-only subvolumes, the volume is open for
//! reading alone, or commits are held.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;

use btrfs_format::{Generation, Key, LogicalAddr, TreeBlock};

use super::cursor::PendingWalk;
use super::{Item, Tree, child_ptr};
use crate::error::{Error, Result};
use crate::overlay::Edit;
use crate::volume::BlockPtr;

/// An item that two trees do not have in common.
#[derive(Debug)]
pub struct Difference {
    /// Its key.
    pub key: Key,
    /// What the old tree has.
    pub old: Option<Item>,
    /// What the new tree has.
    pub new: Option<Item>,
}

/// Shows the differences between two trees in the keys from `from` to `to`, both included, in key
/// order. Without an old tree, all items of the new one are news. Ends early where `visit` says so.
pub fn compare<B, E: From<Error>>(
    old: Option<&Tree>,
    new: &Tree,
    (from, to): (Key, Key),
    mut visit: impl FnMut(Difference) -> std::result::Result<ControlFlow<B>, E>,
) -> std::result::Result<ControlFlow<B>, E> {
    let mut new = Blocks::new(Some(new), from, to);
    let mut old = Blocks::new(old, from, to);
    loop {
        let (a, b) = (old.at(), new.at());
        let order = match (&a, &b) {
            (None, None) => return Ok(ControlFlow::Continue(())),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(At::Block(a)), Some(At::Block(b))) if a.addr == b.addr && a.generation == b.generation => {
                old.skip();
                new.skip();
                continue;
            }
            (Some(a), Some(b)) => a.key().cmp(&b.key()).then_with(|| b.level().cmp(&a.level())),
        };
        // The side with the lower key moves on; with equal keys the one that is higher up.
        let found = match order {
            Ordering::Less => old.take(a, &new)?.map(|(key, item)| Difference {
                key,
                old: Some(item),
                new: None,
            }),
            Ordering::Greater => new.take(b, &old)?.map(|(key, item)| Difference {
                key,
                old: None,
                new: Some(item),
            }),
            Ordering::Equal => match (old.take(a, &new)?, new.take(b, &old)?) {
                (Some((key, old)), Some((_, new))) if *old != *new => Some(Difference {
                    key,
                    old: Some(old),
                    new: Some(new),
                }),
                _ => None,
            },
        };
        if let Some(found) = found
            && let ControlFlow::Break(value) = visit(found)?
        {
            return Ok(ControlFlow::Break(value));
        }
    }
}

/// Pending edits that a search takes along at a time, under the tree's lock.
const PENDING_WINDOW: usize = 256;

/// What a search shows of the transactions in between.
#[derive(Clone, Copy, Debug)]
pub struct Generations {
    /// The first.
    pub since: Generation,
    /// The last.
    pub until: Generation,
    /// The running one: that of pending items.
    pub running: Generation,
}

impl Generations {
    fn has(&self, generation: Generation) -> bool {
        (self.since..=self.until).contains(&generation)
    }
}

/// Shows the items of leaves that were written in the transactions from `since` to `until`, in the
/// keys from `from` to `to`, in key order, each with its leaf's transaction. Pending items are
/// shown as of the running transaction.
pub fn search<B>(
    tree: &Tree,
    (from, to): (Key, Key),
    generations: &Generations,
    mut visit: impl FnMut(Key, &[u8], Generation) -> ControlFlow<B>,
) -> Result<ControlFlow<B>> {
    let mut blocks = Blocks::new(Some(tree), from, to);
    let mut pending = PendingWindows::new(tree, from, to);
    loop {
        let item = match blocks.at() {
            // Each change of a block copies those above it: nothing below is younger.
            Some(At::Block(ptr)) if ptr.generation < generations.since => {
                blocks.skip();
                continue;
            }
            Some(At::Block(ptr)) => {
                blocks.enter(&ptr, |child| child.generation >= generations.since)?;
                continue;
            }
            Some(At::Item { block, slot, key }) => Some((block, slot, key)),
            None => None,
        };
        let next = item.as_ref().map(|(.., key)| *key);
        while let Some((key, edit)) = pending.take_up_to(next) {
            let shown = edit.filter(|_| generations.has(generations.running));
            if let Some(bytes) = shown
                && let ControlFlow::Break(value) = visit(key, &bytes, generations.running)
            {
                return Ok(ControlFlow::Break(value));
            }
            if next == Some(key) {
                blocks.skip();
            }
        }
        let Some((block, slot, key)) = item else {
            return Ok(ControlFlow::Continue(()));
        };
        if pending.last == Some(key) {
            continue;
        }
        if generations.has(block.generation())
            && let ControlFlow::Break(value) = visit(key, block.data(slot), block.generation())
        {
            return Ok(ControlFlow::Break(value));
        }
        blocks.skip();
    }
}

/// Pending edits of a key range, window by window.
struct PendingWindows<'t> {
    tree: &'t Tree,
    /// First key that no window has covered yet; `None` at the end.
    from: Option<Key>,
    to: Key,
    window: VecDeque<(Key, Edit)>,
    /// The key that was taken last.
    last: Option<Key>,
}

impl<'t> PendingWindows<'t> {
    fn new(tree: &'t Tree, from: Key, to: Key) -> Self {
        Self {
            tree,
            from: (from <= to).then_some(from),
            to,
            window: VecDeque::new(),
            last: None,
        }
    }

    /// The next edit, if its key is not above `key`; any without a key.
    fn take_up_to(&mut self, key: Option<Key>) -> Option<(Key, Edit)> {
        if self.window.is_empty() {
            self.fill();
        }
        let (first, _) = self.window.front()?;
        if key.is_some_and(|key| *first > key) {
            return None;
        }
        let taken = self.window.pop_front();
        self.last = taken.as_ref().map(|(key, _)| *key);
        taken
    }

    fn fill(&mut self) {
        let Some(from) = self.from else { return };
        let state = self.tree.state.read();
        let stripes = self.tree.active.read(&from, &self.to);
        let mut walk = PendingWalk::new(&stripes, state.frozen.as_deref(), from, self.to);
        while self.window.len() < PENDING_WINDOW
            && let Some(key) = walk.key()
        {
            self.window.push_back((key, walk.take().clone()));
        }
        let last = self.window.back().map(|(key, _)| *key);
        self.from = last
            .filter(|_| self.window.len() == PENDING_WINDOW)
            .and_then(Key::next)
            .filter(|next| *next <= self.to);
    }
}

/// Where a walk stands.
#[derive(Clone, Debug)]
enum At {
    /// Before a block that was not read.
    Block(BlockPtr),
    Item {
        block: TreeBlock,
        slot: usize,
        key: Key,
    },
}

impl At {
    /// No key from here on is lower.
    fn key(&self) -> Key {
        match self {
            At::Block(ptr) => ptr.first_key.unwrap_or(Key::MIN),
            At::Item { key, .. } => *key,
        }
    }

    /// Of the block, counted from 1; 0 for an item.
    fn level(&self) -> u8 {
        match self {
            At::Block(ptr) => ptr.level + 1,
            At::Item { .. } => 0,
        }
    }
}

/// A walk over blocks and items in key order that enters a block only when told to.
struct Blocks<'t> {
    /// `None` at the end.
    tree: Option<&'t Tree>,
    from: Key,
    to: Key,
    /// The root, before it is entered.
    root: Option<BlockPtr>,
    /// Blocks entered, with a slot in each, the root first.
    path: Vec<(TreeBlock, usize)>,
}

impl<'t> Blocks<'t> {
    fn new(tree: Option<&'t Tree>, from: Key, to: Key) -> Self {
        Self {
            tree,
            from,
            to,
            // One that no commit has written yet has nothing that could be compared.
            root: tree
                .map(Tree::root)
                .filter(|root| !root.is_unborn())
                .map(|root| root.block_ptr()),
            path: Vec::new(),
        }
    }

    /// `None` at the end.
    fn at(&mut self) -> Option<At> {
        if let Some(root) = self.root {
            return Some(At::Block(root));
        }
        loop {
            let (block, slot) = self.path.last()?;
            if *slot >= block.len() {
                self.path.pop();
                if let Some((_, slot)) = self.path.last_mut() {
                    *slot += 1;
                }
                continue;
            }
            let key = block.key(*slot);
            if key > self.to {
                self.path.clear();
                return None;
            }
            return Some(match block.is_leaf() {
                true => At::Item {
                    block: block.clone(),
                    slot: *slot,
                    key,
                },
                false => At::Block(child_ptr(block, *slot)),
            });
        }
    }

    /// Leaves out what it stands before.
    fn skip(&mut self) {
        if self.root.take().is_none()
            && let Some((_, slot)) = self.path.last_mut()
        {
            *slot += 1;
        }
    }

    /// Reads the block that it stands before, and those behind it under the same node that are
    /// wanted.
    fn enter(&mut self, ptr: &BlockPtr, is_wanted: impl Fn(&BlockPtr) -> bool) -> Result<()> {
        let Some(tree) = self.tree else { return Ok(()) };
        self.root = None;
        if let Some((above, slot)) = self.path.last() {
            tree.read_ahead(above, *slot, &self.to, is_wanted);
        }
        let block = tree.store.load(ptr, tree.id)?;
        let slot = match block.is_leaf() {
            true => block.search(&self.from).unwrap_or_else(|slot| slot),
            false => block.child_slot(&self.from),
        };
        self.path.push((block, slot));
        Ok(())
    }

    /// Blocks of a level under the node that it is in.
    fn blocks_at(&self, level: u8) -> HashSet<LogicalAddr> {
        let node = self.path.iter().find(|(block, _)| block.level() == level + 1);
        let slots = node
            .into_iter()
            .flat_map(|(node, _)| (0..node.len()).map(|slot| node.child(slot).0));
        slots.collect()
    }

    /// Enters the block at `at`, or takes the item there. `at` is where it stands. Blocks that
    /// the other tree shares are not read ahead: they are skipped.
    fn take(&mut self, at: Option<At>, other: &Blocks<'_>) -> Result<Option<(Key, Item)>> {
        match at {
            None => Ok(None),
            Some(At::Block(ptr)) => {
                // Not needed where the block is in memory.
                let shared = OnceCell::new();
                let is_shared =
                    |child: &BlockPtr| shared.get_or_init(|| other.blocks_at(ptr.level)).contains(&child.addr);
                self.enter(&ptr, |child| !is_shared(child))?;
                Ok(None)
            }
            Some(At::Item { block, slot, key }) => {
                self.skip();
                Ok(Some((key, Item::Leaf { block, slot })))
            }
        }
    }
}
