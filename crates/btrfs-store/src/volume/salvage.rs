//! `rescue=salvage`: tree blocks without what is damaged in them, for reading alone.
//!
//! Of a block of which no copy passes the verifier, the items that do are kept. A node loses its
//! pointers to children below which nothing can be read, so that a walk goes around them: when a
//! node is read, all its children are, and of each one leaf below. So what is lost looks as if it
//! had never been there; each loss is logged.
//!
//! A volume that is opened by a root of the past is read as of its commit: a block of a later
//! generation was overwritten since, and nothing of it is used.

use std::collections::HashMap;

use btrfs_format::block::KeyPtr;
use btrfs_format::salvage::{self, Salvaged};
use btrfs_format::{BlockExpect, Key, LogicalAddr, TreeBlock, TreeId};

use super::{BlockPtr, Volume};
use crate::error::{Error, Result};

/// Blocks of which nothing can be read, with the lowest key that was asked for: from a higher one
/// on nothing can be, either. Without it, nodes of a damaged tree that all lead to the same few
/// others would take exponential time.
pub(super) type Dead = HashMap<(LogicalAddr, u8), Option<Key>>;

impl Volume {
    /// Items may be missing that others lead to.
    pub fn is_salvaging(&self) -> bool {
        self.options.rescue.salvage && self.options.read_only
    }

    /// Goes on from what reading a block gave.
    ///
    /// # Errors
    /// That of `read`, where nothing is left of the block.
    pub(super) fn salvage_block(&self, ptr: &BlockPtr, tree: TreeId, read: Result<TreeBlock>) -> Result<TreeBlock> {
        let block = self.or_what_is_left(read, ptr, tree)?;
        if block.is_leaf() {
            return Ok(block);
        }
        let expect = self.expect(ptr, tree);
        let mut dead = Dead::new();
        let is_readable = |child: &KeyPtr| self.has_anything(&child_of(&block, child), tree, &mut dead);
        let readable: Vec<bool> = block.key_ptrs().iter().map(is_readable).collect();
        if readable.iter().all(|readable| *readable) {
            return Ok(block);
        }
        let addrs = block.key_ptrs().iter().zip(readable);
        let lost: Vec<u64> = addrs.filter(|(_, is)| !is).map(|(ptr, _)| ptr.blockptr.get()).collect();
        tracing::warn!(%tree, node = %ptr.addr, ?lost, "blocks that cannot be read are left out");
        match salvage::keep_pointers(&block, &expect, |child| !lost.contains(&child.blockptr.get())) {
            Some(Salvaged { block, .. }) => Ok(block),
            None => Err(Error::CorruptTree {
                tree,
                what: format!("nothing below node {} can be read", ptr.addr),
            }),
        }
    }

    /// Can something be read of a block, or of what lies below it? Ends at the first leaf that can.
    pub(super) fn has_anything(&self, ptr: &BlockPtr, tree: TreeId, dead: &mut Dead) -> bool {
        let place = (ptr.addr, ptr.level);
        if dead.get(&place).is_some_and(|lowest| ptr.first_key >= *lowest) {
            return false;
        }
        let has_anything = self.read_what_is_left(ptr, tree).is_ok_and(|block| {
            let mut children = block.key_ptrs().iter();
            block.is_leaf() || children.any(|child| self.has_anything(&child_of(&block, child), tree, dead))
        });
        if !has_anything {
            dead.entry(place)
                .and_modify(|lowest| *lowest = ptr.first_key.min(*lowest))
                .or_insert(ptr.first_key);
        }
        has_anything
    }

    /// One block, or what is sound in it. Nothing below it is read.
    ///
    /// # Errors
    /// Nothing is left of it.
    pub(super) fn read_what_is_left(&self, ptr: &BlockPtr, tree: TreeId) -> Result<TreeBlock> {
        self.or_what_is_left(self.read_sound_block(ptr, tree), ptr, tree)
    }

    fn or_what_is_left(&self, read: Result<TreeBlock>, ptr: &BlockPtr, tree: TreeId) -> Result<TreeBlock> {
        read.or_else(|error| self.what_is_left(ptr, &self.expect(ptr, tree), tree).ok_or(error))
    }

    /// The copy of which the most is left.
    fn what_is_left(&self, ptr: &BlockPtr, expect: &BlockExpect, tree: TreeId) -> Option<TreeBlock> {
        let pieces = self.map(ptr.addr, self.geometry.nodesize_bytes.into()).ok()?;
        // Of a top level that has a root of its own, only its pointers say which commit it is of.
        let last_generation = match self.options.rescue.top_level_root {
            None => Some(self.superblock.read().generation.into()),
            Some(_) => expect.generation,
        };
        let salvaged = |copy: usize| {
            let bytes = self.read_copy(&pieces, copy).ok()?;
            let is_intact = self.options.rescue.ignore_meta_csums || TreeBlock::has_checksum(&bytes, expect);
            let is_overwritten = self.is_of_the_past && salvage::generation_of(&bytes) > last_generation;
            salvage::salvage(&bytes, expect).filter(|_| is_intact && !is_overwritten)
        };
        let copies = self.copy_order(&pieces[0]);
        let best = copies.into_iter().filter_map(salvaged).min_by_key(|found| found.lost)?;
        let Salvaged { block, lost, mended } = best;
        tracing::warn!(%tree, block = %ptr.addr, lost, mended, "a damaged block is used without its bad items");
        Some(block)
    }
}

fn child_of(block: &TreeBlock, child: &KeyPtr) -> BlockPtr {
    BlockPtr {
        addr: child.blockptr.into(),
        generation: child.generation.into(),
        level: block.level().saturating_sub(1),
        first_key: Some(child.key.into()),
    }
}
