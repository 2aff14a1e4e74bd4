//! Dropping dead subvolumes: every reference that the tree holds goes, inside one commit.
//!
//! A block that only this tree uses is freed with everything below it. A block that snapshots share loses this
//! tree's reference; where its references to its children are in the dead tree's name, they are first rewritten in
//! the block's own name (FULL_BACKREF), down to where another tree owns the blocks. See docs/design/references.md.

use btrfs_format::items::RootItem;
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, ObjectId, TreeBlock, TreeId};

use super::{Committer, roots};
use crate::error::Result;
use crate::forest::Forest;
use crate::refs::RefName;
use crate::store::Store;
use crate::tree::child_ptr;
use crate::volume::BlockPtr;

/// Subvolumes that were deleted and still hold space, in the order of their ids.
pub fn dead_subvolumes(forest: &Forest) -> Result<Vec<TreeId>> {
    let root_tree = forest.root_tree();
    let mut dead = Vec::new();
    let mut cursor = root_tree.cursor_type(Key::new(ObjectId::ORPHAN, KeyType::ORPHAN_ITEM, 0));
    while let Some((key, _)) = cursor.next()? {
        let id = TreeId(key.offset);
        let top = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
        let item = root_tree.floor_same_type(&top)?;
        let root = item.and_then(|(_, item)| btrfs_format::view::root_item(&item));
        if root.is_some_and(|root| root.refs.get() == 0) {
            dead.push(id);
        }
    }
    Ok(dead)
}

impl Store {
    /// Asks the next commits to drop these subvolumes, one each. They must be dead: no entry leads to them.
    pub fn queue_drops(&self, dead: Vec<TreeId>) {
        self.jobs().drops.lock().extend(dead);
    }
    /// How many dead subvolumes wait.
    pub fn queued_drops(&self) -> usize {
        self.jobs().drops.lock().len()
    }
}

/// Where a drop that was interrupted goes on: what lies before `key` is dropped already, down to `level`.
#[derive(Clone, Copy)]
struct Resume {
    key: Key,
    level: u8,
}

/// The walk over one dead tree.
struct Drop {
    id: TreeId,
    /// Blocks of this generation or older were there before the subvolume: others own them.
    origin: Generation,
}

impl Committer<'_> {
    /// Drops one dead subvolume, if one waits.
    pub(super) fn drop_next_subvolume(&mut self) -> Result<()> {
        let Some(id) = self.store.jobs().drops.lock().pop() else {
            return Ok(());
        };
        let root_tree = self.store.forest().root_tree().clone();
        let (key, item) = roots::load_root_item(&root_tree, id)?;
        if item.refs.get() != 0 {
            tracing::warn!("subvolume {id} is to be dropped but still has references: left alone");
            return Ok(());
        }
        let resume = resume_of(&item);
        // Not the item's root: this commit may have merged last changes into the tree, which its item learns of later.
        let root = self.store.forest().require(id)?.root();
        let ptr = BlockPtr {
            addr: root.addr,
            generation: root.generation,
            level: root.level,
            first_key: None,
        };
        self.drop_block(
            &Drop {
                id,
                origin: Generation(key.offset),
            },
            &ptr,
            None,
            resume,
        )?;
        let orphan = Key::new(ObjectId::ORPHAN, KeyType::ORPHAN_ITEM, id.get());
        self.merge_edits(TreeId::ROOT, vec![(orphan, None), (key, None)])?;
        self.forget_tree(id);
        tracing::info!("dropped subvolume {id}");
        Ok(())
    }

    fn drop_block(
        &mut self,
        walk: &Drop,
        ptr: &BlockPtr,
        full_parent: Option<LogicalAddr>,
        resume: Option<Resume>,
    ) -> Result<()> {
        let block = self.store.nodes().load(ptr, walk.id)?;
        let (refs, is_full) = self.sharing(&block)?;
        let name = match full_parent {
            Some(parent) => RefName::SharedBlock { parent },
            None => RefName::TreeBlock { root: walk.id },
        };
        if refs > 1 {
            if !is_full && block.owner() == walk.id {
                self.hand_over(walk, &block)?;
            }
        } else if block.is_leaf() {
            self.change_children(&block, walk.id, is_full, -1)?;
        } else {
            let first = resume.map_or(0, |r| block.child_slot(&r.key));
            for slot in first..block.len() {
                let is_half_done = slot == first && block.level() > resume.map_or(u8::MAX, |r| r.level);
                let below = resume.filter(|_| is_half_done);
                self.drop_block(walk, &child_ptr(&block, slot), is_full.then_some(block.addr()), below)?;
            }
        }
        self.drop_reference(&block, name);
        Ok(())
    }

    /// Rewrites the references that a shared block and what it owns below make, from the tree's name into their own.
    fn hand_over(&mut self, walk: &Drop, block: &TreeBlock) -> Result<()> {
        for slot in 0..if block.is_leaf() { 0 } else { block.len() } {
            let ptr = child_ptr(block, slot);
            if ptr.generation <= walk.origin {
                continue;
            }
            let child = self.store.nodes().load(&ptr, walk.id)?;
            if child.owner() == walk.id && !self.sharing(&child)?.1 {
                self.hand_over(walk, &child)?;
            }
        }
        self.change_children(block, walk.id, true, 1)?;
        self.change_children(block, walk.id, false, -1)?;
        self.set_full_backref(block);
        Ok(())
    }
}

fn resume_of(item: &RootItem) -> Option<Resume> {
    let key = Key::from(item.drop_progress);
    (key != Key::MIN).then_some(Resume {
        key,
        level: item.drop_level,
    })
}
