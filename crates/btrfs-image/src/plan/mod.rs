//! The plan of a volume: pure, complete, the same each time.
//!
//! A [`VolumePlanner`] places chunks and hands out data addresses; [`VolumePlanner::finish`] takes
//! the volume's contents, derives the trees that describe space, and gives every block its address.
//! The extent tree, the free-space tree and the block groups describe the blocks that they
//! themselves take, and the chunks may not suffice: the plan is made again until it describes
//! itself.

mod chunks;
mod contents;
mod data;
pub(crate) mod items;
mod small;
mod space;
mod subvolumes;
mod superblock;
mod tree;

use btrfs_format::{LogicalAddr, TreeId};

pub use chunks::{ChunkKind, ChunkPlanner, PlannedChunk, PlannedDevice, PlannedStripe};
pub use contents::Contents;
pub use data::{DataExtent, DataRef};
pub(crate) use small::SmallTrees;
pub use space::Space;
pub(crate) use superblock::Superblocks;
pub use tree::{GENERATION, PlacedTree, PlannedTree, Run, TreeRoot, TreeShape};

use crate::{MkfsError, Settings};

/// Trees whose contents follow from the chunks, the other trees and the data.
const DERIVED: [TreeId; 6] = [
    TreeId::ROOT,
    TreeId::EXTENT,
    TreeId::CHUNK,
    TreeId::DEV,
    TreeId::FREE_SPACE,
    TreeId::BLOCK_GROUP,
];

/// Each round either adds a chunk or lets the space trees grow to what the round before needed;
/// growth by one level of indirection shrinks a hundredfold each time. More rounds than this mean
/// that the plan runs in a circle.
const ROUNDS_MAX: usize = 10_000;

/// A volume in the making.
#[derive(Clone, Debug)]
pub struct VolumePlanner {
    settings: Settings,
    chunks: ChunkPlanner,
    /// Data that has its address.
    data: Space,
}

/// A volume, ready to be written.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// What the volume is.
    pub settings: Settings,
    /// Devices and chunks.
    pub chunks: ChunkPlanner,
    /// All trees.
    pub trees: Vec<PlacedTree>,
    /// What is taken of the chunks.
    pub space: Space,
}

/// The addresses of a tree's blocks, level by level from the leaves up.
pub type BlockAddrs = Vec<Vec<LogicalAddr>>;

/// A kind of chunk that is full.
struct Full(ChunkKind);

impl VolumePlanner {
    /// A volume with its first chunks. Errors: `NoSpace`.
    pub fn new(settings: Settings) -> Result<Self, MkfsError> {
        Ok(Self {
            chunks: ChunkPlanner::new(&settings)?,
            settings,
            data: Space::default(),
        })
    }

    /// What the volume will be.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes room for data, in one piece; `len_bytes` is a multiple of the sector size and no
    /// larger than the smallest data chunk can be.
    pub fn take_data(&mut self, len_bytes: u64) -> Result<LogicalAddr, MkfsError> {
        let align = u64::from(self.settings.sectorsize_bytes);
        loop {
            let taken = self
                .data
                .take(&self.chunks.chunks, ChunkKind::holds_data, len_bytes, align);
            if let Some(addr) = taken {
                return Ok(addr);
            }
            let kind = self.leaf_kind(ChunkKind::Data);
            self.chunks.add(kind, self.settings.data_profile)?;
            let added = self.chunks.chunks.last().map_or(0, |chunk| chunk.length_bytes);
            if added < len_bytes {
                return Err(MkfsError::NoSpace {
                    what: kind.name(),
                    profile: self.settings.data_profile,
                });
            }
        }
    }

    fn small(&self) -> SmallTrees<'_> {
        SmallTrees {
            settings: &self.settings,
            chunks: &self.chunks,
        }
    }

    /// The kind of the chunks that hold `kind` on this volume.
    fn leaf_kind(&self, kind: ChunkKind) -> ChunkKind {
        if self.settings.features.mixed_bg && kind != ChunkKind::System {
            ChunkKind::Mixed
        } else {
            kind
        }
    }

    /// Makes the plan whole.
    pub fn finish(mut self, contents: Contents) -> Result<VolumePlan, MkfsError> {
        let mut trees = self.first_trees(&contents);
        for _ in 0..ROUNDS_MAX {
            trees = match self.place(&trees) {
                Ok((addrs, space)) => {
                    let placed = zip_placed(trees, addrs, self.settings.nodesize());
                    let derived = self.derive(&placed, &space, &contents.data_extents);
                    let settled = placed
                        .iter()
                        .all(|old| derived.iter().all(|new| new.id != old.tree.id || *new == old.tree));
                    if settled {
                        return Ok(VolumePlan {
                            settings: self.settings,
                            chunks: self.chunks,
                            trees: placed,
                            space,
                        });
                    }
                    with_derived(placed, derived)
                }
                Err(Full(kind)) => {
                    self.chunks.add(self.leaf_kind(kind), self.settings.metadata_profile)?;
                    trees
                }
            };
        }
        panic!("a plan that describes itself is reached in {ROUNDS_MAX} rounds");
    }

    /// All trees in the order in which they are laid down; the derived ones are empty yet.
    fn first_trees(&self, contents: &Contents) -> Vec<PlannedTree> {
        let small = self.small();
        let (settings, uuid_tree, data_reloc) = (&self.settings, small.uuid_tree(), small.data_reloc_tree());
        let mut trees = vec![
            PlannedTree::new(TreeId::CHUNK),
            PlannedTree::new(TreeId::ROOT),
            PlannedTree::new(TreeId::EXTENT),
            PlannedTree::new(TreeId::DEV),
            contents.fs_tree.clone(),
            contents.csum_tree.clone(),
            uuid_tree,
        ];
        if settings.features.free_space_tree {
            trees.push(PlannedTree::new(TreeId::FREE_SPACE));
        }
        if settings.features.has_block_group_tree() {
            trees.push(PlannedTree::new(TreeId::BLOCK_GROUP));
        }
        trees.push(data_reloc);
        trees.extend(contents.subvolumes.iter().cloned());
        trees
    }

    /// Gives every block of every tree an address.
    fn place(&self, trees: &[PlannedTree]) -> Result<(Vec<BlockAddrs>, Space), Full> {
        let nodesize = u64::from(self.settings.nodesize_bytes);
        let mut space = self.data.clone();
        let mut addrs = Vec::with_capacity(trees.len());
        for tree in trees {
            let kind = if tree.id == TreeId::CHUNK {
                ChunkKind::System
            } else {
                ChunkKind::Metadata
            };
            let holds = |candidate: ChunkKind| match kind {
                ChunkKind::System => candidate == ChunkKind::System,
                _ => candidate.holds_metadata(),
            };
            let mut levels = Vec::new();
            for runs in tree.shape(self.settings.nodesize()).levels {
                let mut level = Vec::with_capacity(runs.len());
                for _ in runs {
                    let addr = space.take(&self.chunks.chunks, holds, nodesize, nodesize);
                    level.push(addr.ok_or(Full(kind))?);
                }
                levels.push(level);
            }
            addrs.push(levels);
        }
        Ok((addrs, space))
    }

    /// The trees that describe the others.
    fn derive(&self, placed: &[PlacedTree], space: &Space, data: &[DataExtent]) -> Vec<PlannedTree> {
        let small = self.small();
        DERIVED
            .into_iter()
            .map(|id| match id {
                TreeId::ROOT => {
                    let roots: Vec<TreeRoot> = placed.iter().map(PlacedTree::summary).collect();
                    small.root_tree(&roots)
                }
                TreeId::EXTENT => self.extent_tree(placed, space, data),
                TreeId::CHUNK => small.chunk_tree(),
                TreeId::DEV => small.dev_tree(),
                TreeId::FREE_SPACE => small.free_space_tree(space),
                TreeId::BLOCK_GROUP => small.block_group_tree(space),
                other => unreachable!("tree {other} is not derived"),
            })
            .collect()
    }

    fn extent_tree(&self, placed: &[PlacedTree], space: &Space, data: &[DataExtent]) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::EXTENT);
        for placed in placed {
            for block in placed.blocks() {
                let (key, item) = items::tree_block_extent(&self.settings, GENERATION, placed.tree.id, block);
                tree.insert(key, item);
            }
        }
        for extent in data {
            let (key, item) = items::data_extent(GENERATION, extent);
            tree.insert(key, item);
        }
        if !self.settings.features.has_block_group_tree() {
            self.small().put_block_groups(&mut tree, space);
        }
        tree
    }
}

fn zip_placed(trees: Vec<PlannedTree>, addrs: Vec<BlockAddrs>, nodesize_bytes: usize) -> Vec<PlacedTree> {
    trees
        .into_iter()
        .zip(addrs)
        .map(|(tree, addrs)| PlacedTree {
            shape: tree.shape(nodesize_bytes),
            tree,
            addrs,
        })
        .collect()
}

/// The same trees, the derived ones in their new state.
fn with_derived(placed: Vec<PlacedTree>, mut derived: Vec<PlannedTree>) -> Vec<PlannedTree> {
    placed
        .into_iter()
        .map(|old| {
            let new = derived.iter().position(|new| new.id == old.tree.id);
            new.map_or(old.tree, |index| derived.swap_remove(index))
        })
        .collect()
}

impl VolumePlan {
    /// Plans an empty volume.
    pub fn empty(settings: Settings) -> Result<Self, MkfsError> {
        let contents = Contents::empty(&settings);
        VolumePlanner::new(settings)?.finish(contents)
    }

    /// A tree of the volume.
    pub fn tree(&self, id: TreeId) -> Option<&PlacedTree> {
        self.trees.iter().find(|placed| placed.tree.id == id)
    }

    /// Bytes that blocks and data take, each counted once.
    pub fn used_bytes(&self) -> u64 {
        self.chunks
            .chunks
            .iter()
            .map(|chunk| self.space.used_bytes(chunk))
            .sum()
    }
}
