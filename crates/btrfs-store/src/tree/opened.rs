//! Which committed blocks the pending items of a tree lie under: those that a merge copies.

use btrfs_format::Key;

use super::{Tree, child_ptr};
use crate::error::Result;
use crate::overlay::Overlay;
use crate::volume::BlockPtr;

/// Items whose leaves were counted, and how many blocks these and their paths are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Pending items.
    pub items: u64,
    /// Committed blocks above them, each counted once.
    pub blocks: u64,
}

impl std::ops::AddAssign for Opened {
    fn add_assign(&mut self, other: Self) {
        self.items += other.items;
        self.blocks += other.blocks;
    }
}

impl Tree {
    /// Counts the committed leaves under which pending items lie, and the nodes above them, each
    /// once. `None` where there are more than `blocks_max`, or a commit is under way, whose leaves
    /// are not there yet.
    ///
    /// Reads nodes, and no leaf: its parent says where it begins and ends.
    pub fn opened_blocks(&self, blocks_max: u64) -> Result<Option<Opened>> {
        let state = self.state.read();
        if state.frozen.is_some() {
            return Ok(None);
        }
        let stripes = self.active.read_all();
        let mut walk = Walk {
            tree: self,
            heads: stripes
                .edits()
                .map(|edits| (edits, first_from(edits, Key::MIN)))
                .collect(),
            blocks: 0,
            blocks_max,
        };
        let is_whole = match walk.next_pending(Key::MIN) {
            Some(key) => walk.visit(&state.root.block_ptr(), key, None)?,
            None => true,
        };
        Ok(is_whole.then_some(Opened {
            items: stripes.edits().map(|edits| edits.len() as u64).sum(),
            blocks: walk.blocks,
        }))
    }
}

struct Walk<'a> {
    tree: &'a Tree,
    /// The stripes of the active overlay, and the first key of each that was not passed.
    heads: Vec<(&'a Overlay, Option<Key>)>,
    blocks: u64,
    blocks_max: u64,
}

fn first_from(edits: &Overlay, key: Key) -> Option<Key> {
    edits.range(key..).next().map(|(key, _)| *key)
}

impl Walk<'_> {
    /// The first pending key from this one on. It is not below that of the call before.
    fn next_pending(&mut self, from: Key) -> Option<Key> {
        for (edits, head) in &mut self.heads {
            if head.is_some_and(|head| head < from) {
                *head = first_from(edits, from);
            }
        }
        self.heads.iter().filter_map(|(_, head)| *head).min()
    }

    /// Counts a block under which the pending item `key` lies, and those below it. `upper`: where
    /// the next block begins. False where there are too many.
    fn visit(&mut self, ptr: &BlockPtr, mut key: Key, upper: Option<Key>) -> Result<bool> {
        self.blocks += 1;
        if self.blocks > self.blocks_max {
            return Ok(false);
        }
        if ptr.level == 0 {
            return Ok(true);
        }
        let block = self.tree.store.load(ptr, self.tree.id)?;
        loop {
            let slot = block.child_slot(&key);
            let next = (slot + 1 < block.len()).then(|| block.key(slot + 1));
            let end = next.or(upper);
            if !self.visit(&child_ptr(&block, slot), key, end)? {
                return Ok(false);
            }
            // Behind the last child of this block is the next block, which the caller visits.
            let Some(next) = next else { return Ok(true) };
            match self.next_pending(next) {
                Some(pending) if upper.is_none_or(|upper| pending < upper) => key = pending,
                _ => return Ok(true),
            }
        }
    }
}
