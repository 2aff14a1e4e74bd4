//! Walking trees: every block is read once with all its copies judged, and once its references are
//! counted.
//!
//! A walk ends: levels fall by one from parent to child, and the keys of a child are confined to
//! its parent's slot, so the first keys of the blocks of one level rise strictly and no block is
//! met twice in a tree.

use std::collections::HashMap;

use btrfs_format::features::block_group;
use btrfs_format::items::file_extent_type;
use btrfs_format::view::{BackRef, ExtentView, FileExtentView, file_extent};
use btrfs_format::{Key, KeyType, ObjectId, TreeId};

use crate::block::{Block, Expect, Owner};
use crate::finding::{FindingId as Id, Sink, Site, Statistics};
use crate::noted::{Packed, Quota, Suspects};
use crate::options::{CheckOptions, Phase};
use crate::references::{Extents, Use};
use crate::util::{count, index, is_aligned};
use crate::volume::{ReadFault, Volume};

/// State that all parts of a check share.
pub(crate) struct Cx<'a> {
    pub(crate) vol: Volume,
    pub(crate) sink: Sink,
    pub(crate) stats: Statistics,
    pub(crate) opts: &'a CheckOptions<'a>,
    /// Blocks read so far, with the number of their first good copy; [`NO_COPY`] where all are bad.
    pub(crate) seen: HashMap<u64, u8>,
    pub(crate) extents: Extents,
    /// Some tree could not be walked whole: what seems unused may be used there.
    pub(crate) incomplete: bool,
    /// A tree is being walked again: neither references nor faults of blocks are counted.
    pub(crate) quiet_walk: bool,
    /// Compressed extents to be read, where data is.
    pub(crate) packed: Vec<Packed>,
    /// Preallocated ranges with checksums: see [`crate::written`].
    pub(crate) summed_prealloc: Suspects,
    /// Counts for quota groups, where they are to be judged.
    pub(crate) quota: Option<Quota>,
    /// The extent tree, once it has been read as a whole.
    pub(crate) extent_root: Option<Root>,
    blocks_done: u64,
}

const NO_COPY: u8 = u8::MAX;

/// A tree to walk.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) tree: TreeId,
    pub(crate) addr: u64,
    pub(crate) level: u8,
    pub(crate) generation: u64,
    /// A subvolume in deletion: what lies before this key, from this level up, is gone already.
    pub(crate) drop: Option<(Key, u8)>,
    /// A subvolume in deletion, of which more may be gone.
    pub(crate) is_dead: bool,
    /// Blocks of the fsync log have no extent items and may be one generation ahead.
    pub(crate) log: bool,
    /// Writers take newer blocks of this tree for its own without asking; `None` where they never
    /// do or never write.
    pub(crate) last_snapshot: Option<u64>,
}

impl Root {
    pub(crate) fn owner(&self) -> Owner {
        if self.tree.is_subvolume() {
            Owner::Subvolume
        } else if self.tree == TreeId::TREE_RELOC {
            Owner::Relocated
        } else {
            Owner::Exactly(self.tree)
        }
    }
    pub(crate) fn site(&self) -> Site {
        Site {
            block: Some(btrfs_format::LogicalAddr(self.addr)),
            ..Site::tree(self.tree)
        }
    }
}

struct Frame {
    block: Block,
    slot: usize,
    below: Option<Key>,
}

/// What a walk does with blocks that another tree has led to already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    Enter,
    Skip,
}

pub(crate) type Visit<'v, 'a> = dyn FnMut(&mut Cx<'a>, &Block, bool) + 'v;

impl<'a> Cx<'a> {
    pub(crate) fn new(vol: Volume, sink: Sink, opts: &'a CheckOptions<'a>) -> Self {
        Self {
            vol,
            sink,
            stats: Statistics::default(),
            opts,
            seen: HashMap::new(),
            extents: Extents::default(),
            incomplete: false,
            quiet_walk: false,
            packed: Vec::new(),
            summed_prealloc: Suspects::new(),
            quota: None,
            extent_root: None,
            blocks_done: 0,
        }
    }

    pub(crate) fn progress(&self, phase: Phase, done: u64, total: u64) {
        if let Some(progress) = self.opts.progress {
            progress.update(phase, done, total);
        }
    }

    /// Reads a block, judging all copies if it is met for the first time. The flag says whether it
    /// is.
    pub(crate) fn load(&mut self, expect: &Expect) -> Option<(Block, bool)> {
        let known = self.seen.get(&expect.addr).copied();
        match known {
            Some(NO_COPY) => None,
            Some(copy) => self.load_again(expect, copy.into()).map(|block| (block, false)),
            None => self.load_first(expect).map(|block| (block, true)),
        }
    }

    fn block_site(expect: &Expect) -> Site {
        Site {
            tree: Some(expect.tree),
            ..Site::addr(expect.addr)
        }
    }

    fn load_again(&mut self, expect: &Expect, copy: u64) -> Option<Block> {
        let mut bytes = vec![0; index(self.vol.nodesize)];
        self.vol.read_copy(expect.addr, copy, &mut bytes).ok()?;
        match Block::judge(&self.vol, bytes, expect, false) {
            Ok(block) => Some(block),
            Err((id, what)) => {
                self.sink.add(id, Self::block_site(expect), what);
                None
            }
        }
    }

    fn load_first(&mut self, expect: &Expect) -> Option<Block> {
        let copies = self.vol.chunks.copies(expect.addr);
        let site = Self::block_site(expect);
        if copies == 0 || !is_aligned(expect.addr, self.vol.sectorsize) {
            self.sink
                .add(Id::BlockUnmapped, site, "the address is unaligned or in no chunk");
            self.seen.insert(expect.addr, NO_COPY);
            return None;
        }
        let mut good: Option<(u8, Block)> = None;
        for copy in 0..copies {
            let mut bytes = vec![0; index(self.vol.nodesize)];
            let judged = match self.vol.read_copy(expect.addr, copy, &mut bytes) {
                Ok(()) => Block::judge(&self.vol, bytes, expect, true),
                Err(ReadFault::Missing) => continue,
                Err(ReadFault::Unmapped) => Err((Id::BlockUnmapped, "reaches out of its chunk".into())),
                Err(ReadFault::Failed { message }) => Err((Id::BlockUnreadable, message)),
            };
            match (judged, &good) {
                (Ok(block), None) => good = u8::try_from(copy).ok().map(|copy| (copy, block)),
                (Ok(block), Some((_, first))) => {
                    if block.bytes() != first.bytes() {
                        let what = format!("{}: differs from the first", self.vol.copy_name(expect.addr, copy));
                        self.sink.add(Id::BlockCopiesDiffer, site.clone(), what);
                    }
                }
                (Err((id, what)), _) => {
                    let what = format!("{}: {what}", self.vol.copy_name(expect.addr, copy));
                    self.sink.add(id, site.clone(), what);
                }
            }
        }
        let Some((copy, block)) = good else {
            self.seen.insert(expect.addr, NO_COPY);
            return None;
        };
        self.seen.insert(expect.addr, copy);
        if let Some(what) = &block.refused {
            self.sink.add(Id::ItemInvalid, site, what.clone());
        }
        Some(block)
    }

    fn lost(&mut self, root: &Root, addr: u64, key: Option<Key>) {
        if self.quiet_walk {
            return;
        }
        self.incomplete = true;
        let site = Site {
            key,
            ..Site::addr(addr)
        };
        let site = Site {
            tree: Some(root.tree),
            ..site
        };
        self.sink
            .add(Id::TreeIncomplete, site, "what lies below this block was not judged");
    }

    /// What happens once to each block: it is counted, and its references are.
    /// `skip`: of its children so many are gone.
    fn first_visit(&mut self, root: &Root, block: &Block, skip: usize) {
        self.blocks_done = self.blocks_done.saturating_add(1);
        if self.blocks_done.is_multiple_of(256) {
            let done = self.blocks_done.saturating_mul(self.vol.nodesize);
            self.progress(Phase::Trees, done, 0);
        }
        if !self.sink.muted {
            self.stats.tree_blocks = self.stats.tree_blocks.saturating_add(1);
            let bytes = self.vol.nodesize;
            self.stats.tree_bytes = self.stats.tree_bytes.saturating_add(bytes);
            self.stats.tree_waste_bytes = self.stats.tree_waste_bytes.saturating_add(block.waste_bytes());
            if root.tree.is_fs_tree() {
                self.stats.fs_tree_bytes = self.stats.fs_tree_bytes.saturating_add(bytes);
            } else if root.tree == TreeId::EXTENT {
                self.stats.extent_tree_bytes = self.stats.extent_tree_bytes.saturating_add(bytes);
            }
        }
        for slot in 0..block.len() {
            let Some((_, child, generation)) = block.child(slot) else {
                break;
            };
            if generation > block.generation {
                let what = format!(
                    "generation {generation}, newer than its parent at {}, of {}",
                    block.addr, block.generation
                );
                let site = Site {
                    tree: Some(root.tree),
                    ..Site::addr(child)
                };
                self.sink.add(Id::BlockNewerThanParent, site, what);
            }
        }
        if root.log {
            let is_metadata = |chunk: &crate::chunks::Chunk| chunk.ty & block_group::METADATA != 0;
            if !self.vol.chunks.at(block.addr).is_some_and(is_metadata) {
                let what = "a block of the log lies in no chunk of metadata";
                self.sink.add(Id::LogInvalid, Site::addr(block.addr), what);
            }
            let end = block.addr.saturating_add(self.vol.nodesize);
            let other = self
                .extents
                .overlapping(block.addr, end)
                .next()
                .map(|extent| extent.addr);
            if let Some(other) = other {
                let what = format!("a block of the log lies on the extent at {other}");
                self.sink.add(Id::LogInvalid, Site::addr(block.addr), what);
            }
            return;
        }
        let full = self.extents.is_full_backref(block.addr);
        self.extents.note_block(block, self.vol.nodesize);
        let back = self.reference_to_children(block);
        for slot in skip..block.len() {
            let Some((_, child, _)) = block.child(slot) else { break };
            self.extents.note_use(
                child,
                &Use {
                    back,
                    len: self.vol.nodesize,
                    tree_block: true,
                },
            );
        }
        if block.level == 0 && (root.tree.is_fs_tree() || root.tree == TreeId::ROOT || root.tree == TreeId::TREE_RELOC)
        {
            self.note_file_extents(block, full);
        }
    }

    /// How a block refers to those below it.
    fn reference_to_children(&self, block: &Block) -> BackRef {
        match self.extents.is_full_backref(block.addr) {
            true => BackRef::SharedBlock { parent: block.addr },
            false => BackRef::TreeBlock {
                root: block.owner.get(),
            },
        }
    }

    /// Whether the extent tree has this reference to a tree block.
    fn is_recorded(&mut self, addr: u64, level: u8, back: &BackRef) -> bool {
        let Some(root) = self.extent_root.clone() else {
            return true;
        };
        let (block, nodesize) = (ObjectId(addr), self.vol.nodesize);
        let items = [
            Key::new(block, KeyType::METADATA_ITEM, level.into()),
            Key::new(block, KeyType::EXTENT_ITEM, nodesize),
        ];
        let is_inline = items.iter().any(|key| {
            let data = self.lookup(&root, key).unwrap_or_default();
            ExtentView::new(key, &data).is_some_and(|view| view.inline_refs().any(|inline| inline == *back))
        });
        let keyed = match back {
            BackRef::TreeBlock { root } => Key::new(block, KeyType::TREE_BLOCK_REF, *root),
            BackRef::SharedBlock { parent } => Key::new(block, KeyType::SHARED_BLOCK_REF, *parent),
            _ => return is_inline,
        };
        is_inline || self.lookup(&root, &keyed).is_some()
    }

    /// How many of a node's first children are gone. More than the root item says can be only at
    /// the front of what is left of a deleted subvolume: until the walk meets the first leaf or
    /// shared block. See [`Id::RootDropBehind`].
    fn gone_slots(&mut self, root: &Root, block: &Block, is_at_front: &mut bool) -> usize {
        let noted = skipped_slots(root, block);
        let is_shared = self.extents.get(block.addr).is_some_and(|extent| extent.refs > 1);
        if !*is_at_front || block.level == 0 || is_shared {
            *is_at_front = false;
            return noted;
        }
        let back = self.reference_to_children(block);
        let mut gone = noted;
        while let Some((_, child, _)) = block.child(gone) {
            if self.is_recorded(child, block.level.saturating_sub(1), &back) {
                break;
            }
            gone = gone.saturating_add(1);
        }
        if gone > noted && !self.quiet_walk {
            let count = gone.saturating_sub(noted);
            let what = format!("of {count} blocks below {} it has no reference any more", block.addr);
            self.sink.add(Id::RootDropBehind, root.site(), what);
        }
        gone
    }

    /// A block that others refer to must be old enough for its tree to ask before writing it.
    fn judge_sharing(&mut self, root: &Root, block: &Block, generation: u64) {
        let is_own = root.last_snapshot.is_some_and(|last| generation > last);
        // Of relocated blocks a writer always asks.
        if !is_own || block.is_relocated() || self.quiet_walk {
            return;
        }
        let refs = self.extents.get(block.addr).map_or(0, |extent| extent.refs);
        if refs > 1 {
            let what = format!(
                "of generation {generation}, with {refs} references; the root item says that the last snapshot was at {}",
                root.last_snapshot.unwrap_or_default()
            );
            let site = Site {
                tree: Some(root.tree),
                ..Site::addr(block.addr)
            };
            self.sink.add(Id::RootLastSnapshot, site, what);
        }
    }

    /// Notes a compressed extent.
    pub(crate) fn note_packed(&mut self, packed: &Packed) {
        if self.opts.data_csums && !self.quiet_walk && self.packed.last() != Some(packed) {
            self.packed.push(*packed);
        }
    }

    /// Counts an extent that a subvolume leads to.
    pub(crate) fn note_quota(&mut self, tree: TreeId, addr: u64) {
        if let Some(quota) = &mut self.quota
            && tree.is_subvolume()
            && !self.quiet_walk
        {
            quota.note(&self.extents, tree, addr);
        }
    }

    fn note_file_extents(&mut self, leaf: &Block, full: bool) {
        for (key, data) in leaf.items() {
            if key.ty != KeyType::EXTENT_DATA {
                continue;
            }
            let Some(FileExtentView::Regular(extent)) = file_extent(data) else {
                continue;
            };
            let addr = extent.disk_bytenr.get();
            if addr == 0 || (extent.ty != file_extent_type::REG && extent.ty != file_extent_type::PREALLOC) {
                continue;
            }
            let back = if full {
                BackRef::SharedData {
                    parent: leaf.addr,
                    count: 0,
                }
            } else {
                BackRef::ExtentData {
                    root: leaf.owner.get(),
                    objectid: key.objectid.get(),
                    offset: key.offset.wrapping_sub(extent.offset.get()),
                    count: 0,
                }
            };
            let len = extent.disk_num_bytes.get();
            if !self.sink.muted {
                let stats = &mut self.stats;
                stats.data_allocated_bytes = stats.data_allocated_bytes.saturating_add(len);
                stats.data_referenced_bytes = stats.data_referenced_bytes.saturating_add(extent.num_bytes.get());
            }
            self.extents.note_use(
                addr,
                &Use {
                    back,
                    len,
                    tree_block: false,
                },
            );
        }
    }

    /// Walks a tree in key order and shows its leaves; the flag tells a leaf's first visit. False
    /// when parts of it could not be reached.
    pub(crate) fn walk(&mut self, root: &Root, shared: Shared, visit: &mut Visit<'_, 'a>) -> bool {
        if !root.log && !self.quiet_walk {
            let back = if root.tree == TreeId::TREE_RELOC {
                BackRef::SharedBlock { parent: root.addr }
            } else {
                BackRef::TreeBlock { root: root.tree.get() }
            };
            self.extents.note_use(
                root.addr,
                &Use {
                    back,
                    len: self.vol.nodesize,
                    tree_block: true,
                },
            );
        }
        let mut complete = true;
        let mut is_at_front = root.is_dead;
        let mut stack: Vec<Frame> = Vec::new();
        let mut next = Some((self.expect_root(root), None));
        loop {
            if let Some((expect, key)) = next.take() {
                match self.load(&expect) {
                    None => {
                        self.lost(root, expect.addr, key);
                        complete = false;
                    }
                    Some((block, first)) => {
                        let skip = self.gone_slots(root, &block, &mut is_at_front);
                        if first {
                            self.first_visit(root, &block, skip);
                        }
                        if shared == Shared::Enter {
                            self.note_quota(root.tree, block.addr);
                        }
                        self.judge_sharing(root, &block, expect.generation);
                        if block.level == 0 {
                            if first || shared == Shared::Enter {
                                visit(self, &block, first);
                            }
                        } else if first || shared == Shared::Enter {
                            stack.push(Frame {
                                block,
                                slot: skip,
                                below: expect.below,
                            });
                        }
                    }
                }
            }
            let Some(frame) = stack.last_mut() else { return complete };
            let Some((key, addr, generation)) = frame.block.child(frame.slot) else {
                stack.pop();
                continue;
            };
            frame.slot = frame.slot.saturating_add(1);
            let below = frame.block.key(frame.slot).or(frame.below);
            let Some(level) = frame.block.level.checked_sub(1) else {
                continue;
            };
            let expect = Expect {
                addr,
                level,
                generation,
                first_key: Some(key),
                below,
                ..self.expect_root(root)
            };
            next = Some((expect, Some(key)));
        }
    }

    /// Walks a tree a second time, counting nothing and saying nothing of its blocks again.
    pub(crate) fn walk_quietly(&mut self, root: &Root, visit: &mut dyn FnMut(&mut Cx<'a>, &Block)) {
        let before = std::mem::replace(&mut self.quiet_walk, true);
        self.walk(root, Shared::Enter, &mut |cx, leaf, _| visit(cx, leaf));
        self.quiet_walk = before;
    }

    fn expect_root(&self, root: &Root) -> Expect {
        let newest = self.vol.sb.generation.get();
        Expect {
            tree: root.tree,
            addr: root.addr,
            level: root.level,
            generation: root.generation,
            first_key: None,
            below: None,
            owner: root.owner(),
            generation_max: if root.log { newest.saturating_add(1) } else { newest },
        }
    }

    /// The data of one item, found by descending from the root. For details after a fault; reads as
    /// few blocks as the tree has levels.
    pub(crate) fn lookup(&mut self, root: &Root, key: &Key) -> Option<Vec<u8>> {
        self.lookup_leaf(root, key)?
            .items()
            .find(|(found, _)| found == key)
            .map(|(_, data)| data.to_vec())
    }

    /// The leaf that holds `key` or would hold it.
    pub(crate) fn lookup_leaf(&mut self, root: &Root, key: &Key) -> Option<Block> {
        let muted = std::mem::replace(&mut self.sink.muted, true);
        let found = self.descend(root, key);
        self.sink.muted = muted;
        found
    }

    fn descend(&mut self, root: &Root, key: &Key) -> Option<Block> {
        let mut expect = self.expect_root(root);
        for _ in 0..=btrfs_format::block::LEVEL_MAX {
            let (block, _) = self.load(&expect)?;
            if block.level == 0 {
                return Some(block);
            }
            let slot = block.child_slot(key);
            let (first, addr, generation) = block.child(slot)?;
            expect = Expect {
                addr,
                level: block.level.checked_sub(1)?,
                generation,
                first_key: Some(first),
                below: block.key(slot.saturating_add(1)).or(expect.below),
                ..expect
            };
        }
        None
    }
}

/// How many of a node's first children are gone as the root item says: its subvolume is being
/// deleted.
fn skipped_slots(root: &Root, block: &Block) -> usize {
    match &root.drop {
        Some((key, level)) if block.level >= *level && block.level > 0 => block.child_slot(key),
        _ => 0,
    }
}

/// The sites of a leaf's items.
pub(crate) fn item_site(tree: TreeId, leaf: &Block, key: Key) -> Site {
    Site::item(tree, leaf.addr, key)
}

/// Bytes as a number, for statistics.
pub(crate) fn len_bytes(data: &[u8]) -> u64 {
    count(data.len())
}
