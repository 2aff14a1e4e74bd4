//! Addresses of all tree blocks.
//!
//! The extent tree has an item for each of its own blocks, the free-space tree describes what it
//! takes itself: both are counted and placed again until the count stays. Counts only grow, so that
//! this ends.

use btrfs_format::TreeId;
use btrfs_format::block::leaf_capacity_bytes;

use super::bulk::{Blocks, Counter, FirstKeys, PlacedBlocks, Sink, Writer, emit_planned};
use super::extents::DataMap;
use super::files;
use super::plan::Plan;
use super::space_trees::{OwnedBlock, emit_csums, emit_extents, sorted, unkeyed};
use crate::plan::{ChunkKind, ChunkPlanner, PlannedTree, SmallTrees, Space, TreeRoot};
use crate::{MkfsError, Settings};

const MIB: u64 = 1 << 20;
/// The system chunk. Its tree has an item of 100 bytes and more for each chunk.
const SYSTEM_BYTES: u64 = 4 * MIB;
/// The largest metadata chunk.
const METADATA_BYTES_MAX: u64 = 1 << 30;
/// What is added where the estimate was too small.
const METADATA_STEP_BYTES: u64 = MIB;
/// Room for changes, besides what is taken: a quarter of that, within these bounds. Linux needs
/// about ten MiB to change anything: it reserves the worst case of each operation.
const ROOM_BYTES_MIN: u64 = 16 * MIB;
const ROOM_BYTES_MAX: u64 = 256 * MIB;
/// Room for data, in a chunk of its own behind all others: so that small files can be changed in an
/// image that fits its contents. It is left out where it does not fit.
const DATA_ROOM_BYTES: u64 = 4 * MIB;
/// Far more than the counts can grow.
const ROUNDS_MAX: usize = 10_000;

/// All trees, with the addresses of their blocks.
#[derive(Debug)]
pub(super) struct TreeLayout {
    trees: Vec<PlacedBlocks>,
    space: Space,
    /// The last chunk is room for data.
    has_data_room: bool,
}

impl TreeLayout {
    pub fn roots(&self) -> Vec<TreeRoot> {
        self.trees.iter().map(PlacedBlocks::root).collect()
    }
    /// Bytes that blocks and data take.
    pub fn used_bytes(&self, chunks: &ChunkPlanner) -> u64 {
        chunks.chunks.iter().map(|chunk| self.space.used_bytes(chunk)).sum()
    }

    /// Takes away what no block needs, and no data: the room for changes.
    pub fn fit(&self, chunks: &mut ChunkPlanner) {
        if self.has_data_room {
            chunks.remove_unwritten_last();
        }
        let last = chunks.chunks.last();
        chunks.shrink_unwritten_last(last.map_or(0, |chunk| self.space.end(chunk) - chunk.logical.0));
    }

    fn blocks(&self) -> Vec<OwnedBlock> {
        let blocks = self.trees.iter().flat_map(|tree| {
            let levels = tree.addrs.iter().zip(0..);
            levels.flat_map(move |(addrs, level)| addrs.iter().map(move |addr| (tree.id, unkeyed(*addr, level))))
        });
        sorted(blocks.collect())
    }
}

/// What has its addresses.
pub(super) struct Made {
    pub settings: Settings,
    pub chunks: ChunkPlanner,
    pub data: DataMap,
    pub trees: TreeLayout,
    /// Bytes of the smallest device that holds it.
    pub needed_bytes: u64,
}

/// Makes the first chunk, for the chunk tree.
pub(super) fn add_system(chunks: &mut ChunkPlanner, settings: &Settings) -> Result<(), MkfsError> {
    let profile = settings.metadata_profile;
    match chunks.add_sized(ChunkKind::System, profile, SYSTEM_BYTES) {
        Some(len) if len >= SYSTEM_BYTES => Ok(()),
        _ => Err(MkfsError::NoSpace {
            what: ChunkKind::System.name(),
            profile,
        }),
    }
}

/// Gives every block its address; makes the chunks for them.
pub(super) fn lay_out(
    plan: &Plan<'_, '_>,
    settings: &Settings,
    chunks: &mut ChunkPlanner,
    data: &DataMap,
) -> Result<TreeLayout, MkfsError> {
    let mut shapes = Vec::new();
    let count = |emit: &mut dyn FnMut(&mut Counter) -> Result<(), MkfsError>| {
        let mut counter = Counter::new(settings.nodesize());
        emit(&mut counter)?;
        Ok::<_, MkfsError>(counter.levels())
    };
    for subvolume in &plan.subvolumes {
        let levels = count(&mut |sink| files::emit(plan, settings, data, subvolume, sink))?;
        shapes.push((subvolume.id, levels));
    }
    shapes.push((TreeId::CSUM, count(&mut |sink| emit_csums(settings, data, sink))?));
    for id in small_ids(settings) {
        shapes.push((id, vec![1]));
    }
    shapes.push((TreeId::EXTENT, vec![1]));
    add_metadata(settings, chunks, data, &shapes);
    let mut has_data_room = add_data_room(settings, chunks);
    for _ in 0..ROUNDS_MAX {
        let Some(mut layout) = place(settings, chunks, data, &shapes) else {
            // The room stays behind all else.
            if has_data_room {
                chunks.remove_unwritten_last();
            }
            add(chunks, settings, METADATA_STEP_BYTES)?;
            has_data_room = add_data_room(settings, chunks);
            continue;
        };
        layout.has_data_room = has_data_room;
        let mut settled = true;
        for (id, levels) in &mut shapes {
            let new = if *id == TreeId::EXTENT {
                count(&mut |sink| emit_extent_tree(plan, settings, chunks, data, &layout, &layout.blocks(), sink))?
            } else if let Some(tree) = small_tree(*id, settings, chunks, &layout) {
                count(&mut |sink| emit_planned(&tree, sink))?
            } else {
                continue;
            };
            if new[0] > levels[0] {
                *levels = new;
                settled = false;
            } else {
                assert_eq!(new, *levels, "the count of tree {id} only grows");
            }
        }
        if settled {
            return Ok(layout);
        }
    }
    panic!("a layout that describes itself is reached in {ROUNDS_MAX} rounds");
}

fn small_ids(settings: &Settings) -> Vec<TreeId> {
    let mut ids = vec![
        TreeId::ROOT,
        TreeId::CHUNK,
        TreeId::DEV,
        TreeId::UUID,
        TreeId::DATA_RELOC,
    ];
    if settings.features.free_space_tree {
        ids.push(TreeId::FREE_SPACE);
    }
    if settings.features.has_block_group_tree() {
        ids.push(TreeId::BLOCK_GROUP);
    }
    ids
}

/// A small tree as it is with that layout; `None` for the others.
fn small_tree(id: TreeId, settings: &Settings, chunks: &ChunkPlanner, layout: &TreeLayout) -> Option<PlannedTree> {
    let small = SmallTrees { settings, chunks };
    Some(match id {
        TreeId::ROOT => small.root_tree(&layout.roots()),
        TreeId::CHUNK => small.chunk_tree(),
        TreeId::DEV => small.dev_tree(),
        TreeId::UUID => small.uuid_tree(),
        TreeId::DATA_RELOC => small.data_reloc_tree(),
        TreeId::FREE_SPACE => small.free_space_tree(&layout.space),
        TreeId::BLOCK_GROUP => small.block_group_tree(&layout.space),
        _ => return None,
    })
}

fn emit_extent_tree(
    plan: &Plan<'_, '_>,
    settings: &Settings,
    chunks: &ChunkPlanner,
    data: &DataMap,
    layout: &TreeLayout,
    blocks: &[OwnedBlock],
    sink: &mut dyn Sink,
) -> Result<(), MkfsError> {
    let mut groups = PlannedTree::new(TreeId::EXTENT);
    if !settings.features.has_block_group_tree() {
        SmallTrees { settings, chunks }.put_block_groups(&mut groups, &layout.space);
    }
    emit_extents(plan, settings, data, blocks, &groups, sink)
}

/// Makes the chunks for all blocks, by an estimate of the extent tree.
fn add_metadata(settings: &Settings, chunks: &mut ChunkPlanner, data: &DataMap, shapes: &[(TreeId, Vec<usize>)]) {
    /// An item of the extent tree with its header, data and blocks alike, at least.
    const EXTENT_ITEM_BYTES: usize = 78;
    let known: usize = shapes.iter().flat_map(|(_, levels)| levels).sum();
    let per_leaf = leaf_capacity_bytes(settings.nodesize()) / EXTENT_ITEM_BYTES;
    let items = data.extents.len() + known;
    let blocks = known + items.div_ceil(per_leaf.saturating_sub(2).max(1));
    let needed = blocks as u64 * u64::from(settings.nodesize_bytes);
    let room = (needed / 4).clamp(ROOM_BYTES_MIN, ROOM_BYTES_MAX);
    let mut left = needed + room;
    while left > 0 {
        // Whether what there is suffices is seen when the blocks are placed.
        let Ok(added) = add(chunks, settings, left.min(METADATA_BYTES_MAX)) else {
            break;
        };
        left = left.saturating_sub(added);
    }
}

fn add(chunks: &mut ChunkPlanner, settings: &Settings, len_bytes: u64) -> Result<u64, MkfsError> {
    let kind = match settings.features.mixed_bg {
        true => ChunkKind::Mixed,
        false => ChunkKind::Metadata,
    };
    let profile = settings.metadata_profile;
    chunks.add_sized(kind, profile, len_bytes).ok_or(MkfsError::NoSpace {
        what: kind.name(),
        profile,
    })
}

/// False: there is no room for it, or data may go where metadata has room.
fn add_data_room(settings: &Settings, chunks: &mut ChunkPlanner) -> bool {
    if settings.features.mixed_bg {
        return false;
    }
    let added = chunks.add_sized(ChunkKind::Data, settings.data_profile, DATA_ROOM_BYTES);
    if added.is_some_and(|added| added < DATA_ROOM_BYTES) {
        chunks.remove_unwritten_last();
    }
    added.is_some_and(|added| added >= DATA_ROOM_BYTES)
}

/// `None`: there is not enough room in the chunks.
fn place(
    settings: &Settings,
    chunks: &ChunkPlanner,
    data: &DataMap,
    shapes: &[(TreeId, Vec<usize>)],
) -> Option<TreeLayout> {
    let nodesize = u64::from(settings.nodesize_bytes);
    let mut space = data.space.clone();
    let mut trees = Vec::with_capacity(shapes.len());
    for (id, levels) in shapes {
        let holds = |kind: ChunkKind| match *id {
            TreeId::CHUNK => kind == ChunkKind::System,
            _ => kind.holds_metadata(),
        };
        let mut addrs = Vec::with_capacity(levels.len());
        for count in levels {
            let mut level = Vec::with_capacity(*count);
            for _ in 0..*count {
                level.push(space.take(&chunks.chunks, holds, nodesize, nodesize)?);
            }
            addrs.push(level);
        }
        trees.push(PlacedBlocks { id: *id, addrs });
    }
    Some(TreeLayout {
        trees,
        space,
        has_data_room: false,
    })
}

/// Writes all blocks.
pub(super) fn write_all(plan: &Plan<'_, '_>, made: &Made, out: &mut Blocks<'_>) -> Result<(), MkfsError> {
    let Made {
        settings,
        trees: layout,
        ..
    } = made;
    let blocks = match settings.features.skinny_metadata {
        true => layout.blocks(),
        false => keyed_blocks(plan, made)?,
    };
    for placed in &layout.trees {
        let mut writer = Writer::new(settings, placed, out);
        emit_tree(plan, made, placed.id, &blocks, &mut writer)?;
        writer.finish()?;
    }
    Ok(())
}

fn emit_tree(
    plan: &Plan<'_, '_>,
    made: &Made,
    id: TreeId,
    blocks: &[OwnedBlock],
    sink: &mut dyn Sink,
) -> Result<(), MkfsError> {
    let Made {
        settings,
        chunks,
        data,
        trees: layout,
        ..
    } = made;
    if let Some(tree) = small_tree(id, settings, chunks, layout) {
        return emit_planned(&tree, sink);
    }
    match plan.subvolumes.iter().find(|subvolume| subvolume.id == id) {
        Some(subvolume) => files::emit(plan, settings, data, subvolume, sink),
        None if id == TreeId::CSUM => emit_csums(settings, data, sink),
        None => emit_extent_tree(plan, settings, chunks, data, layout, blocks, sink),
    }
}

/// All blocks with their first keys, which items of blocks state that are not skinny. Keys do not
/// depend on what the items say, so that the extent tree's own are known before.
fn keyed_blocks(plan: &Plan<'_, '_>, made: &Made) -> Result<Vec<OwnedBlock>, MkfsError> {
    let unkeyed = made.trees.blocks();
    let mut blocks = Vec::with_capacity(unkeyed.len());
    for placed in &made.trees.trees {
        let mut keys = FirstKeys::new(made.settings.nodesize(), placed);
        emit_tree(plan, made, placed.id, &unkeyed, &mut keys)?;
        blocks.extend(keys.blocks().into_iter().map(|block| (placed.id, block)));
    }
    Ok(sorted(blocks))
}
