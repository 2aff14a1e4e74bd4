//! Reading space from the trees: chunks and block groups at mount, free space of a block group when
//! it is needed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use btrfs_format::features::{block_group, compat_ro, incompat};
use btrfs_format::items::{BlockGroupItem, DevItem, FREE_SPACE_USING_BITMAPS, FreeSpaceInfo};
use btrfs_format::{DevId, Key, KeyType, ObjectId, Superblock, TreeId, view};
use zerocopy::FromBytes;

use super::chunks::{Chunks, ChunksInit, pool_of};
use super::disk_view::{Shape, read_bitmap};
use super::group::{Contradiction, Group};
use super::placement::Device;
use super::profile::{Profile, superblock_ranges};
use super::ranges::RangeSet;
use crate::error::{Error, Result};
use crate::forest::Forest;
use crate::tree::Tree;
use crate::volume::Volume;

/// The trees that say where space is.
#[derive(Debug)]
pub(super) struct SpaceTrees {
    pub root: Arc<Tree>,
    pub chunk: Arc<Tree>,
    pub extent: Arc<Tree>,
    /// Where block group items are: their own tree or the extent tree.
    pub block_group: Arc<Tree>,
    /// `None`: the volume has no (valid) free-space tree; free space is what the extent tree
    /// leaves.
    pub free_space: Option<Arc<Tree>>,
}

impl SpaceTrees {
    pub(crate) fn open(sb: &Superblock, forest: &Forest) -> Result<Self> {
        let flags = sb.compat_ro_flags.get();
        let has = |bit| flags & bit != 0;
        let free_space = if has(compat_ro::FREE_SPACE_TREE) && has(compat_ro::FREE_SPACE_TREE_VALID) {
            Some(forest.require(TreeId::FREE_SPACE)?)
        } else {
            None
        };
        let block_group = if has(compat_ro::BLOCK_GROUP_TREE) {
            forest.require(TreeId::BLOCK_GROUP)?
        } else {
            forest.require(TreeId::EXTENT)?
        };
        Ok(Self {
            root: forest.root_tree().clone(),
            chunk: forest.require(TreeId::CHUNK)?,
            extent: forest.require(TreeId::EXTENT)?,
            block_group,
            free_space,
        })
    }

    /// For a volume that is only read and whose extent tree cannot be: no tree says where space is.
    pub(crate) fn blind(forest: &Forest) -> Result<Self> {
        let root = forest.root_tree().clone();
        Ok(Self {
            chunk: forest.require(TreeId::CHUNK)?,
            extent: root.clone(),
            block_group: root.clone(),
            root,
            free_space: None,
        })
    }
}

/// A volume whose free-space tree is there but not valid may be read, not written: we do not
/// rebuild it.
pub(super) fn check_writable(sb: &Superblock) -> Result<()> {
    let flags = sb.compat_ro_flags.get();
    if flags & compat_ro::FREE_SPACE_TREE != 0 && flags & compat_ro::FREE_SPACE_TREE_VALID == 0 {
        return Err(Error::Unsupported {
            feature: "writing a volume whose free-space tree is marked invalid (let Linux mount it once)".into(),
        });
    }
    if sb.incompat_flags.get() & incompat::ZONED != 0 {
        return Err(Error::Unsupported {
            feature: "writing zoned volumes".into(),
        });
    }
    Ok(())
}

pub(super) struct Loaded {
    pub groups: Vec<Arc<Group>>,
    pub chunks: Chunks,
}

fn corrupt(tree: TreeId, what: impl Into<String>) -> Error {
    Error::CorruptTree {
        tree,
        what: what.into(),
    }
}

/// What can be said where no tree says where space is: each chunk of the volume's map is a block
/// group, and full.
pub(super) fn load_blind(volume: &Volume) -> Result<Loaded> {
    let sb = volume.superblock();
    let sector_bytes = sb.sectorsize.get();
    let mut groups = Vec::new();
    let mut profile_bits = [0; 3];
    let mut next_logical = 0;
    for chunk in volume.chunks().iter() {
        let (start, len_bytes, flags) = (chunk.logical().get(), chunk.length_bytes(), chunk.flags());
        next_logical = chunk.end().get();
        let pool = pool_of(flags)
            .ok_or_else(|| corrupt(TreeId::CHUNK, format!("{start}: chunk type {flags:#x} does not exist")))?;
        Chunks::note_existing(&mut profile_bits, pool, flags);
        let shape = Shape {
            start,
            len_bytes,
            sector_bytes: sector_bytes.into(),
        };
        let physical: Vec<u64> = chunk.stripes().iter().map(|stripe| stripe.at.offset).collect();
        let excluded = superblock_ranges(start..next_logical, flags, &physical);
        let full = Group::existing(shape, flags, excluded.clone(), 0).usable_bytes();
        groups.push(Arc::new(Group::existing(shape, flags, excluded, full)));
    }
    let known = volume.devices();
    let devices = known.iter().map(|info| Device {
        devid: info.devid,
        uuid: info.uuid,
        total_bytes: info.total_bytes,
        used_bytes: info.bytes_used,
        writable: info.device.is_some(),
        taken: RangeSet::default(),
    });
    Ok(Loaded {
        groups,
        chunks: Chunks::new(ChunksInit {
            devices: devices.collect(),
            device_items: known.iter().map(|info| info.item).collect(),
            mixed: sb.incompat_flags.get() & incompat::MIXED_GROUPS != 0,
            profile_bits,
            next_logical,
            sector_bytes,
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            system_array: system_array(&sb),
        }),
    })
}

fn system_array(sb: &Superblock) -> Vec<u8> {
    let used_bytes = (sb.sys_chunk_array_size.get() as usize).min(sb.sys_chunk_array.len());
    sb.sys_chunk_array[..used_bytes].to_vec()
}

/// Reads chunk tree and block group items.
pub(super) fn load(volume: &Volume, trees: &SpaceTrees) -> Result<Loaded> {
    let sb = volume.superblock();
    let mixed = sb.incompat_flags.get() & incompat::MIXED_GROUPS != 0;
    let sector_bytes = sb.sectorsize.get();
    let (device_items, mut devices) = load_devices(&trees.chunk)?;
    for info in volume.devices() {
        if let Some(device) = devices.iter_mut().find(|d| d.devid == info.devid) {
            device.writable = info.device.is_some();
        }
    }
    let mut groups = Vec::new();
    let mut profile_bits = [0; 3];
    let mut next_logical = 0;
    let from = Key::new(ObjectId::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, 0);
    let mut cursor = trees.chunk.cursor_type(from);
    while let Some((key, item)) = cursor.next()? {
        let (head, stripes) =
            view::chunk(&item).ok_or_else(|| corrupt(TreeId::CHUNK, format!("{key}: chunk item is too short")))?;
        let (start, len, flags) = (key.offset, head.length.get(), head.ty.get());
        let end = start
            .checked_add(len)
            .filter(|_| start >= next_logical && len > 0)
            .ok_or_else(|| corrupt(TreeId::CHUNK, format!("{key}: chunk overlaps or has no length")))?;
        next_logical = end;
        let (profile, count) = (Profile::of(flags), stripes.len() as u64);
        if count <= profile.parity || profile.data_stripes(count) == 0 {
            return Err(corrupt(TreeId::CHUNK, format!("{key}: {count} stripes are too few")));
        }
        let stripe_bytes = len / profile.data_stripes(count);
        for stripe in stripes {
            note_dev_extent(
                &mut devices,
                DevId(stripe.devid.get()),
                stripe.offset.get(),
                stripe_bytes,
            )?;
        }
        let physical: Vec<u64> = stripes.iter().map(|s| s.offset.get()).collect();
        let pool = pool_of(flags)
            .ok_or_else(|| corrupt(TreeId::CHUNK, format!("{key}: chunk type {flags:#x} does not exist")))?;
        Chunks::note_existing(&mut profile_bits, pool, flags);
        let shape = Shape {
            start,
            len_bytes: len,
            sector_bytes: sector_bytes.into(),
        };
        let excluded = superblock_ranges(start..end, flags, &physical);
        groups.push(load_group(&trees.block_group, shape, flags, excluded)?);
    }
    Ok(Loaded {
        groups,
        chunks: Chunks::new(ChunksInit {
            devices,
            device_items,
            mixed,
            profile_bits,
            next_logical,
            sector_bytes,
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            system_array: system_array(&sb),
        }),
    })
}

fn load_devices(chunk_tree: &Tree) -> Result<(Vec<DevItem>, Vec<Device>)> {
    let mut items = Vec::new();
    let mut devices = Vec::new();
    let mut cursor = chunk_tree.cursor_type(Key::new(ObjectId::DEV_ITEMS, KeyType::DEV_ITEM, 0));
    while let Some((key, item)) = cursor.next()? {
        let (item, _) = DevItem::read_from_prefix(&item)
            .map_err(|_| corrupt(TreeId::CHUNK, format!("{key}: device item is too short")))?;
        items.push(item);
        devices.push(Device {
            devid: DevId(key.offset),
            uuid: item.uuid,
            total_bytes: item.total_bytes.get(),
            used_bytes: item.bytes_used.get(),
            writable: true,
            taken: RangeSet::default(),
        });
    }
    Ok((items, devices))
}

fn note_dev_extent(devices: &mut [Device], devid: DevId, offset: u64, len: u64) -> Result<()> {
    let device = devices.iter_mut().find(|d| d.devid == devid).ok_or_else(|| {
        corrupt(
            TreeId::CHUNK,
            format!("a stripe lies on device {devid}, which has no item"),
        )
    })?;
    let end = offset.checked_add(len).filter(|end| *end <= device.total_bytes);
    let is_new = end.is_some_and(|end| device.taken.insert(offset..end, |_| {}) == len);
    if is_new {
        return Ok(());
    }
    Err(corrupt(
        TreeId::CHUNK,
        format!("the stripe at {offset}+{len} of device {devid} overlaps another or leaves the device"),
    ))
}

fn load_group(tree: &Tree, shape: Shape, flags: u64, excluded: Vec<Range<u64>>) -> Result<Arc<Group>> {
    let group = Group::existing(shape, flags, excluded.clone(), 0);
    let key = group.item_key();
    let item = tree.get(&key)?.ok_or_else(|| {
        corrupt(
            tree.id(),
            format!("chunk {} has no block group item {key}", shape.start),
        )
    })?;
    let (item, _) = BlockGroupItem::read_from_prefix(&item)
        .map_err(|_| corrupt(tree.id(), format!("{key}: block group item is too short")))?;
    if item.flags.get() != flags {
        return Err(corrupt(
            tree.id(),
            format!("{key}: block group flags {:#x}, its chunk says {flags:#x}", item.flags),
        ));
    }
    let used = item.used.get();
    if used > group.usable_bytes() {
        return Err(corrupt(
            tree.id(),
            format!("{key}: {used} bytes used of {}", group.usable_bytes()),
        ));
    }
    Ok(Arc::new(Group::existing(shape, flags, excluded, used)))
}

/// Loads the free space of a group from the free-space tree or, where there is none, from the
/// extent tree.
pub(super) fn load_free_space(trees: &SpaceTrees, group: &Group, nodesize_bytes: u64) -> Result<()> {
    let _loading = group.load_lock.lock();
    if group.is_loaded() {
        return Ok(());
    }
    let (tree, free, bitmaps) = match &trees.free_space {
        Some(tree) => {
            let (free, bitmaps) = read_free_space_tree(tree, group)?;
            (TreeId::FREE_SPACE, free, bitmaps)
        }
        None => (
            TreeId::EXTENT,
            scan_extent_tree(&trees.extent, group, nodesize_bytes)?,
            false,
        ),
    };
    group
        .install(free, bitmaps)
        .map_err(|Contradiction(what)| corrupt(tree, what))
}

pub(super) fn read_free_space_tree(tree: &Tree, group: &Group) -> Result<(RangeSet, bool)> {
    let range = group.range();
    let bad = |key: Key, what: &str| corrupt(TreeId::FREE_SPACE, format!("{key}: {what}"));
    let info_key = group.shape.info_key();
    let info = tree
        .get(&info_key)?
        .ok_or_else(|| bad(info_key, "block group has no free space info"))?;
    let (info, _) =
        FreeSpaceInfo::read_from_prefix(&info).map_err(|_| bad(info_key, "free space info is too short"))?;
    let bitmaps = info.flags.get() & FREE_SPACE_USING_BITMAPS != 0;
    let mut free = RangeSet::default();
    let from = Key::new(ObjectId(range.start), KeyType::FREE_SPACE_EXTENT, 0);
    let to = Key::new(ObjectId(range.end - 1), KeyType(u8::MAX), u64::MAX);
    let mut cursor = tree.cursor(from, to);
    while let Some((key, item)) = cursor.next()? {
        let start = key.objectid.get();
        let end = start
            .checked_add(key.offset)
            .filter(|end| start >= range.start && *end <= range.end && start < *end)
            .ok_or_else(|| bad(key, "leaves its block group"))?;
        match key.ty {
            KeyType::FREE_SPACE_EXTENT if !bitmaps => {
                if free.insert(start..end, |_| {}) != key.offset {
                    return Err(bad(key, "overlaps another free extent"));
                }
            }
            KeyType::FREE_SPACE_BITMAP if bitmaps => {
                read_bitmap(start..end, group.shape.sector_bytes, &item, &mut free)
                    .ok_or_else(|| bad(key, "bitmap of a wrong size"))?;
            }
            _ => return Err(bad(key, "does not belong into this block group")),
        }
    }
    Ok((free, bitmaps))
}

pub(super) fn scan_extent_tree(tree: &Tree, group: &Group, nodesize_bytes: u64) -> Result<RangeSet> {
    let range = group.range();
    let mut free = RangeSet::default();
    free.insert(range.clone(), |_| {});
    let from = Key::new(ObjectId(range.start), KeyType(0), 0);
    let to = Key::new(ObjectId(range.end - 1), KeyType(u8::MAX), u64::MAX);
    let mut cursor = tree.cursor(from, to);
    while let Some((key, _)) = cursor.next()? {
        let len = match key.ty {
            KeyType::EXTENT_ITEM => key.offset,
            KeyType::METADATA_ITEM => nodesize_bytes,
            _ => continue,
        };
        let start = key.objectid.get();
        let end = start.checked_add(len).filter(|end| *end <= range.end);
        if end.is_none_or(|end| free.remove(start..end, |_| {}) != len) {
            return Err(corrupt(
                TreeId::EXTENT,
                format!("{key}: extent overlaps another, or leaves its block group"),
            ));
        }
    }
    Ok(free)
}

/// Bytes of the trees whose copies the global reserve has to cover.
pub(super) fn reserve_trees_bytes(root_tree: &Tree) -> Result<BTreeMap<TreeId, u64>> {
    let ids = [
        TreeId::EXTENT,
        TreeId::CSUM,
        TreeId::FREE_SPACE,
        TreeId::BLOCK_GROUP,
        TreeId::DEV,
    ];
    let mut all = BTreeMap::new();
    for id in ids {
        let key = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
        if let Some((_, item)) = root_tree.floor_same_type(&key)?
            && let Some(root) = view::root_item(&item)
        {
            all.insert(id, root.bytes_used.get());
        }
    }
    Ok(all)
}

/// True for a group whose profile we can write.
pub(super) fn is_allocatable(group: &Group) -> bool {
    group.flags & (block_group::RAID5 | block_group::RAID6) == 0
}
