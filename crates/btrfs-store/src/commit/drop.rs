//! Dropping dead subvolumes: every reference that the tree holds goes, in bounded steps, one in
//! each commit. Small ones go together.
//!
//! Between two steps the root item says how far the drop is, as Linux does: `drop_progress` is the
//! key of the next child, in a node of level `drop_level`. What lies before it is gone, and the
//! nodes on the way to it still point there. So a drop goes on after a crash, here or by the
//! kernel. More may be gone than the root item says: of a drop that it continues, Linux forgets the
//! place while it rewrites references. What the tree has no reference to any more is passed over.
//!
//! A block that only this tree uses is freed with everything below it. A block that snapshots share
//! loses this tree's reference; where its references to its children are in the dead tree's name,
//! they are first rewritten in the block's own name (FULL_BACKREF), down to where another tree owns
//! the blocks. See docs/design/references.md.

use std::sync::atomic::Ordering;

use btrfs_format::items::RootItem;
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, ObjectId, TreeBlock, TreeId};

use super::{Committer, roots};
use crate::error::Result;
use crate::forest::Forest;
use crate::jobs::HandedOver;
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
    /// Asks the next commits to drop these subvolumes, one each. They must be dead: no entry leads
    /// to them.
    pub fn queue_drops(&self, dead: Vec<TreeId>) {
        self.jobs().queue_drops(dead);
    }
    /// How many dead subvolumes wait.
    pub fn queued_drops(&self) -> usize {
        self.jobs().queued_drops()
    }
    /// For tests, whose trees are small: what one commit drops at most, in references.
    pub fn set_drop_step_max(&self, references: usize) {
        self.jobs().drop_step_max.store(references.max(1), Ordering::Relaxed);
    }
}

/// Where a drop that was interrupted goes on: what lies before `key` is dropped already, down to
/// `level`.
#[derive(Clone, Copy)]
struct Resume {
    key: Key,
    level: u8,
}

/// What reading a block costs, and freeing it, in references.
const BLOCK_COST: usize = 8;

/// The walk over one dead tree.
struct Drop {
    id: TreeId,
    /// Blocks of this generation or older were there before the subvolume: others own them.
    origin: Generation,
    /// What this step may still do.
    left: usize,
}

impl Drop {
    /// A block went, or was rewritten, with so many references.
    fn spend(&mut self, references: usize) {
        self.left = self.left.saturating_sub(BLOCK_COST + references);
    }
}

/// How far a step came.
enum Walked {
    Done,
    /// The next step begins here; `None`: with this block.
    Paused(Option<Resume>),
}

impl Committer<'_> {
    /// Drops subvolumes that were dead when the transaction ended, as far as one step goes.
    pub(super) fn drop_subvolumes(&mut self, dead: &[TreeId]) -> Result<()> {
        let mut left = self.store.jobs().drop_step_max.load(Ordering::Relaxed);
        for id in dead {
            if !self.drop_step(*id, &mut left)? {
                return Ok(());
            }
            self.store.jobs().forget_drop(*id);
            if left == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// True where nothing of the subvolume is left to be dropped. `left`: of the step.
    fn drop_step(&mut self, id: TreeId, left: &mut usize) -> Result<bool> {
        let root_tree = self.store.forest().root_tree().clone();
        let (key, mut item) = roots::load_root_item(&root_tree, id)?;
        if item.refs.get() != 0 {
            tracing::warn!("subvolume {id} is to be dropped but still has references: left alone");
            return Ok(true);
        }
        let resume = resume_of(&item);
        // Not the item's root: this commit may have merged last changes into the tree, which its
        // item learns of later.
        let root = self.store.forest().require(id)?.root();
        let ptr = BlockPtr {
            addr: root.addr,
            generation: root.generation,
            level: root.level,
            first_key: None,
        };
        let mut walk = Drop {
            id,
            origin: Generation(key.offset),
            left: *left,
        };
        if !self.hand_over_nodes(&mut walk, &ptr, resume)? {
            return Ok(false);
        }
        let walked = self.drop_block(&mut walk, &ptr, None, resume)?;
        // The tree has a root item and an orphan item, too.
        *left = walk.left.saturating_sub(BLOCK_COST);
        match walked {
            Walked::Done => {}
            Walked::Paused(progress) => {
                if let Some(progress) = progress {
                    item.drop_progress = progress.key.into();
                    item.drop_level = progress.level;
                    self.merge_edits(TreeId::ROOT, vec![(key, Some(roots::root_item_bytes(&item)))])?;
                }
                return Ok(false);
            }
        }
        let orphan = Key::new(ObjectId::ORPHAN, KeyType::ORPHAN_ITEM, id.get());
        self.merge_edits(TreeId::ROOT, vec![(orphan, None), (key, None)])?;
        self.forget_tree(id);
        tracing::info!("dropped subvolume {id}");
        Ok(true)
    }

    fn drop_block(
        &mut self,
        walk: &mut Drop,
        ptr: &BlockPtr,
        full_parent: Option<LogicalAddr>,
        resume: Option<Resume>,
    ) -> Result<Walked> {
        let name = child_name(walk.id, full_parent);
        let Some((refs, is_full)) = self.sharing_by(ptr.addr, name)? else {
            // Linux has dropped it, and lost its place: the block may be another one by now.
            walk.spend(0);
            return Ok(Walked::Done);
        };
        if refs > 1 && (ptr.level > 0 || ptr.generation <= walk.origin) {
            // It was handed over before, or others own it.
            self.drop_reference(ptr, name);
            walk.left = walk.left.saturating_sub(1);
            return Ok(Walked::Done);
        }
        // Linux forgets its place where it goes on with a shared node: none may be the next block,
        // nor the first one below it.
        if walk.left == 0 && ptr.level < 2 {
            return Ok(Walked::Paused(None));
        }
        let nodes = self.store.nodes();
        let block = match ptr.level {
            // Gone after this, or kept below. The next step reads the way to the next one again.
            0 => nodes.load_once(ptr, walk.id)?,
            _ => nodes.load(ptr, walk.id)?,
        };
        if refs > 1 {
            // Others that share it may be dropped next.
            nodes.keep(&block);
            if block.owner() == walk.id && !is_full {
                self.rewrite_references(walk, &block)?;
            }
            walk.spend(0);
        } else if block.is_leaf() {
            let references = self.change_children(&block, walk.id, is_full, -1)?;
            walk.spend(references);
        } else {
            let first = resume.map_or(0, |r| block.child_slot(&r.key));
            for slot in first..block.len() {
                let is_half_done = slot == first && block.level() > resume.map_or(u8::MAX, |r| r.level);
                let below = resume.filter(|_| is_half_done);
                let child = child_ptr(&block, slot);
                let walked = self.drop_block(walk, &child, is_full.then_some(block.addr()), below)?;
                if let Walked::Paused(at) = walked {
                    let here = Resume {
                        key: block.key(slot),
                        level: block.level(),
                    };
                    return Ok(Walked::Paused(Some(at.or(below).unwrap_or(here))));
                }
            }
        }
        self.drop_reference(ptr, name);
        Ok(Walked::Done)
    }

    /// Hands over all shared nodes of a tree before anything more of it is dropped, as far as the
    /// step goes; true where that is done.
    fn hand_over_nodes(&mut self, walk: &mut Drop, root: &BlockPtr, resume: Option<Resume>) -> Result<bool> {
        let HandedOver::Before(from) = self.store.jobs().handed_over(walk.id) else {
            return Ok(true);
        };
        let from = resume.map_or(from, |resume| from.max(resume.key));
        let block = self.store.nodes().load(root, walk.id)?;
        let paused = match self.sharing(&block)? {
            (2.., is_full) if block.owner() == walk.id => self.hand_over(walk, &block, is_full, from)?,
            (2.., _) => None,
            (_, is_full) => self.hand_over_below(walk, &block, is_full, from)?,
        };
        let handed_over = paused.map_or(HandedOver::All, HandedOver::Before);
        self.store.jobs().set_handed_over(walk.id, handed_over);
        Ok(paused.is_none())
    }

    /// Hands over the shared nodes below a block that only this tree uses, from a key on. Where the
    /// step ends before, returns the key that the next one begins with.
    fn hand_over_below(&mut self, walk: &mut Drop, block: &TreeBlock, is_full: bool, from: Key) -> Result<Option<Key>> {
        if block.level() < 2 {
            return Ok(None);
        }
        let name = child_name(walk.id, is_full.then_some(block.addr()));
        for slot in block.child_slot(&from)..block.len() {
            if walk.left == 0 {
                return Ok(Some(from.max(block.key(slot))));
            }
            let ptr = child_ptr(block, slot);
            let found = self.sharing_by(ptr.addr, name)?;
            let is_shared = matches!(found, Some((2.., _))) && ptr.generation > walk.origin;
            let is_way = matches!(found, Some((1, _))) && ptr.level > 1;
            if let Some((_, is_full)) = found
                && (is_shared || is_way)
            {
                let child = self.store.nodes().load(&ptr, walk.id)?;
                let paused = match is_shared {
                    true if child.owner() == walk.id => self.hand_over(walk, &child, is_full, from)?,
                    true => None,
                    false => self.hand_over_below(walk, &child, is_full, from)?,
                };
                if paused.is_some() {
                    return Ok(paused);
                }
                walk.spend(0);
            }
            walk.left = walk.left.saturating_sub(1);
        }
        Ok(None)
    }

    /// Rewrites the references that a shared block and what it owns below make, from the tree's
    /// name into their own, from a key on. Where the step ends before, returns the key that the
    /// next one begins with; a step that has something left gets on by one block at least.
    ///
    /// `is_done`: the block itself is rewritten already. What is below it need not be: Linux
    /// rewrites a block before those below it, and where it has moved one in a balance, the block
    /// refers to others in its own name which do not.
    fn hand_over(&mut self, walk: &mut Drop, block: &TreeBlock, is_done: bool, from: Key) -> Result<Option<Key>> {
        let slots = match block.is_leaf() {
            true => 0..0,
            false => block.child_slot(&from)..block.len(),
        };
        for slot in slots {
            let ptr = child_ptr(block, slot);
            if ptr.generation <= walk.origin {
                continue;
            }
            if walk.left == 0 {
                return Ok(Some(from.max(block.key(slot))));
            }
            let (_, is_done) = self.sharing_at(ptr.addr)?;
            if is_done && ptr.level == 0 {
                walk.left -= 1;
                continue;
            }
            let child = self.store.nodes().load(&ptr, walk.id)?;
            if child.owner() == walk.id {
                let paused = self.hand_over(walk, &child, is_done, from)?;
                if paused.is_some() {
                    return Ok(paused);
                }
            }
            walk.spend(0);
        }
        if !is_done {
            self.rewrite_references(walk, block)?;
        }
        Ok(None)
    }

    /// Rewrites the references that one block makes.
    fn rewrite_references(&mut self, walk: &mut Drop, block: &TreeBlock) -> Result<()> {
        let references = self.change_children(block, walk.id, true, 1)?;
        self.change_children(block, walk.id, false, -1)?;
        self.set_full_backref(block);
        walk.spend(2 * references);
        Ok(())
    }
}

/// How a block refers to a child: in the tree's name, or in its own where it is FULL_BACKREF.
fn child_name(tree: TreeId, full_parent: Option<LogicalAddr>) -> RefName {
    match full_parent {
        Some(parent) => RefName::SharedBlock { parent },
        None => RefName::TreeBlock { root: tree },
    }
}

fn resume_of(item: &RootItem) -> Option<Resume> {
    let key = Key::from(item.drop_progress);
    (key != Key::MIN).then_some(Resume {
        key,
        level: item.drop_level,
    })
}
