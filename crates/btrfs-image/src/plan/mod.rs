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
mod items;
mod space;
mod subvolumes;
mod superblock;
mod tree;

use btrfs_format::hash::name_hash;
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, ObjectId, TreeId, U64};
use zerocopy::IntoBytes;

pub use chunks::{ChunkKind, ChunkPlanner, PlannedChunk, PlannedDevice, PlannedStripe};
pub use contents::Contents;
pub use data::{DataExtent, DataRef};
pub use space::Space;
pub use tree::{GENERATION, PlacedTree, PlannedTree, Run, TreeShape};

use crate::{MkfsError, Settings};
use contents::put_root_dir;

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
        let settings = &self.settings;
        let mut uuid_tree = PlannedTree::new(TreeId::UUID);
        uuid_tree.insert(
            Key::of_uuid(&settings.fs_tree_uuid, KeyType::UUID_SUBVOL),
            U64::new(TreeId::FS.0).as_bytes(),
        );
        for new in &settings.subvolumes {
            uuid_tree.insert(
                Key::of_uuid(&new.uuid, KeyType::UUID_SUBVOL),
                U64::new(new.id.0).as_bytes(),
            );
        }
        let mut data_reloc = PlannedTree::new(TreeId::DATA_RELOC);
        put_root_dir(&mut data_reloc, ObjectId::FIRST_FREE, settings, 0);

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
        DERIVED
            .into_iter()
            .map(|id| match id {
                TreeId::ROOT => self.root_tree(placed),
                TreeId::EXTENT => self.extent_tree(placed, space, data),
                TreeId::CHUNK => self.chunk_tree(),
                TreeId::DEV => self.dev_tree(),
                TreeId::FREE_SPACE => self.free_space_tree(space),
                TreeId::BLOCK_GROUP => {
                    let mut tree = PlannedTree::new(TreeId::BLOCK_GROUP);
                    self.put_block_groups(&mut tree, space);
                    tree
                }
                other => unreachable!("tree {other} is not derived"),
            })
            .collect()
    }

    fn root_tree(&self, placed: &[PlacedTree]) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::ROOT);
        // The superblock says where these two are.
        let listed = placed
            .iter()
            .filter(|placed| ![TreeId::ROOT, TreeId::CHUNK].contains(&placed.tree.id));
        for placed in listed {
            let item = items::root_item(&self.settings, GENERATION, placed);
            let key = Key::new(placed.tree.id.object_id(), KeyType::ROOT_ITEM, 0);
            tree.insert(key, item.as_bytes());
        }
        // The directory whose one entry names the subvolume that is mounted by default.
        let (dir, name) = (ObjectId::ROOT_TREE_DIR, b"default");
        put_root_dir(&mut tree, dir, &self.settings, self.settings.nodesize_bytes.into());
        tree.insert(
            Key::new(dir, KeyType::DIR_ITEM, name_hash(name)),
            items::subvolume_dir_item(name, TreeId::FS, Generation(0)),
        );
        tree.insert(
            Key::new(TreeId::FS.object_id(), KeyType::INODE_REF, dir.0),
            items::inode_ref(0, name),
        );
        subvolumes::put_refs(&mut tree, &self.settings);
        tree
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
            self.put_block_groups(&mut tree, space);
        }
        tree
    }

    fn put_block_groups(&self, tree: &mut PlannedTree, space: &Space) {
        for chunk in &self.chunks.chunks {
            let (key, item) = items::block_group(chunk, space.used_bytes(chunk));
            tree.insert(key, item);
        }
    }

    fn chunk_tree(&self) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::CHUNK);
        for (index, device) in self.chunks.devices.iter().enumerate() {
            let item = items::dev_item(&self.settings, device, self.chunks.device_used_bytes(index));
            let key = Key::new(ObjectId::DEV_ITEMS, KeyType::DEV_ITEM, device.devid.0);
            tree.insert(key, item.as_bytes());
        }
        for chunk in &self.chunks.chunks {
            let (key, item) = items::chunk(&self.settings, &self.chunks.devices, chunk);
            tree.insert(key, item);
        }
        tree
    }

    fn dev_tree(&self) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::DEV);
        for chunk in &self.chunks.chunks {
            let item = items::dev_extent(&self.settings, chunk);
            for stripe in &chunk.stripes {
                let devid = self.chunks.devices[stripe.device].devid;
                let key = Key::new(ObjectId(devid.0), KeyType::DEV_EXTENT, stripe.offset_bytes);
                tree.insert(key, item.as_bytes());
            }
        }
        tree
    }

    fn free_space_tree(&self, space: &Space) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::FREE_SPACE);
        for chunk in &self.chunks.chunks {
            let free = space.free_ranges(chunk);
            let (key, item) = items::free_space_info(chunk, free.len());
            tree.insert(key, item);
            for range in free {
                let key = Key::new(
                    ObjectId(range.start),
                    KeyType::FREE_SPACE_EXTENT,
                    range.end - range.start,
                );
                tree.insert(key, []);
            }
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
