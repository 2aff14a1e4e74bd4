//! Walks over committed blocks that leave out what need not be read: the difference of two trees,
//! and what changed since a transaction.
//!
//! Two trees that grew out of one share blocks. A block at the same address and of the same
//! generation holds the same items in both, so it is skipped with all that lies below it: comparing
//! costs what differs, not what there is.
//!
//! Pending items are not looked at. The caller keeps the blocks from being replaced meanwhile: the
//! trees are those of read-only subvolumes, the volume is open for reading alone, or commits are
//! held.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::ControlFlow;

use btrfs_format::{Generation, Key, LogicalAddr, TreeBlock};

use super::{Item, Tree, child_ptr};
use crate::error::{Error, Result};
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

/// Shows the items of leaves that were written in the transactions from `since` to `until`, in the
/// keys from `from` to `to`, in key order, each with its leaf's transaction.
pub fn search<B>(
    tree: &Tree,
    (from, to): (Key, Key),
    (since, until): (Generation, Generation),
    mut visit: impl FnMut(Key, &[u8], Generation) -> ControlFlow<B>,
) -> Result<ControlFlow<B>> {
    let mut blocks = Blocks::new(Some(tree), from, to);
    while let Some(at) = blocks.at() {
        match at {
            // Each change of a block copies those above it: nothing below is younger.
            At::Block(ptr) if ptr.generation < since => blocks.skip(),
            At::Block(ptr) => blocks.enter(&ptr, |child| child.generation >= since)?,
            At::Item { block, slot, key } => {
                if block.generation() <= until
                    && let ControlFlow::Break(value) = visit(key, block.data(slot), block.generation())
                {
                    return Ok(ControlFlow::Break(value));
                }
                blocks.skip();
            }
        }
    }
    Ok(ControlFlow::Continue(()))
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
