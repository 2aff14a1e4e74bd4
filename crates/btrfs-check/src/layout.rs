//! Chunks, devices and block groups: whether all structures that map addresses agree.

use std::collections::BTreeMap;

use btrfs_format::features::block_group as bg;
use btrfs_format::features::extent_flags;
use btrfs_format::items::{BlockGroupItem, DevExtent, DevItem, STRIPE_LEN_BYTES};
use btrfs_format::view::{chunk, fixed, system_chunks};
use btrfs_format::{Key, KeyType, ObjectId, TreeId};

use crate::block::Block;
use crate::chunks::{Chunk, ChunkMap};
use crate::extents::used_within;
use crate::finding::{FindingId as Id, Site};
use crate::util::{count, index};
use crate::volume::Volume;
use crate::walk::{Cx, Root, Shared, item_site};

/// A block group as its item states it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockGroup {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) used: u64,
    pub(crate) flags: u64,
}

/// Reads the system chunks that the superblock carries: enough to reach the chunk tree.
pub(crate) fn bootstrap(cx: &mut Cx<'_>) {
    let len = index(cx.vol.sb.sys_chunk_array_size.get().into());
    let array = cx.vol.sb.sys_chunk_array;
    let data = array.get(..len).unwrap_or_default();
    let mut taken = 0usize;
    let mut map = ChunkMap::default();
    for (key, head, stripes) in system_chunks(data) {
        let bytes = size_of::<btrfs_format::DiskKey>()
            .saturating_add(size_of_val(head))
            .saturating_add(size_of_val(stripes));
        taken = taken.saturating_add(bytes);
        let fault = match Chunk::parse(key.offset, head, stripes, cx.vol.sectorsize) {
            Err(what) => Some(what),
            Ok(_) if key.ty != KeyType::CHUNK_ITEM => Some(format!("{key} is no chunk")),
            Ok(chunk) if chunk.ty & bg::SYSTEM == 0 => Some(format!("type {:#x} is not system", chunk.ty)),
            Ok(chunk) => map
                .insert(chunk)
                .err()
                .map(|other| format!("overlaps the chunk at {other}")),
        };
        if let Some(what) = fault {
            cx.sink
                .add(Id::SysChunkArray, Site::default(), format!("{key}: {what}"));
        }
    }
    if taken != len || len == 0 {
        let what = format!("{taken} of {len} bytes could be read");
        cx.sink.add(Id::SysChunkArray, Site::default(), what);
    }
    cx.vol.chunks = map;
}

/// Walks the chunk tree and replaces the chunk map by what it says.
pub(crate) fn read_chunk_tree(cx: &mut Cx<'_>) {
    let root = chunk_root(&cx.vol);
    let mut map = ChunkMap::default();
    let mut dev_items = BTreeMap::new();
    let whole = cx.walk(&root, Shared::Skip, &mut |cx, leaf, _| {
        for (key, data) in leaf.items() {
            let site = item_site(TreeId::CHUNK, leaf, key);
            match key.ty {
                KeyType::CHUNK_ITEM => read_chunk(cx, &mut map, site, key, data),
                KeyType::DEV_ITEM => match fixed::<DevItem>(data) {
                    Some(item) if item.devid.get() == key.offset => {
                        dev_items.insert(key.offset, *item);
                    }
                    _ => cx.sink.add(
                        Id::ChunkInvalid,
                        site,
                        "a device item that is short or names another device",
                    ),
                },
                _ => cx.sink.add(Id::ItemForeign, site, "does not belong in the chunk tree"),
            }
        }
    });
    for system in cx.vol.chunks.iter() {
        if map.exact(system.start) != Some(system) && whole {
            let what = "the superblock's system chunk is not in the chunk tree, or differs there";
            cx.sink.add(Id::SysChunkMismatch, Site::addr(system.start), what);
        }
    }
    for chunk in map.iter().filter(|chunk| chunk.ty & bg::SYSTEM != 0) {
        if cx.vol.chunks.exact(chunk.start).is_none() {
            let what = "a system chunk that the superblock does not carry";
            cx.sink.add(Id::SysChunkMismatch, Site::addr(chunk.start), what);
        }
    }
    if !whole {
        for system in cx.vol.chunks.iter() {
            // An overlap only says that the chunk was read from the tree as well.
            let _ = map.insert(system.clone());
        }
    }
    cx.vol.chunks = map;
    cx.vol.dev_items = dev_items;
}

pub(crate) fn chunk_root(vol: &Volume) -> Root {
    Root {
        tree: TreeId::CHUNK,
        addr: vol.sb.chunk_root.get(),
        level: vol.sb.chunk_root_level,
        generation: vol.sb.chunk_root_generation.get(),
        drop: None,
        is_dead: false,
        log: false,
        last_snapshot: None,
    }
}

fn read_chunk(cx: &mut Cx<'_>, map: &mut ChunkMap, site: Site, key: Key, data: &[u8]) {
    let Some((head, stripes)) = chunk(data) else {
        cx.sink.add(Id::ChunkInvalid, site, "too short");
        return;
    };
    if key.objectid != ObjectId::FIRST_CHUNK_TREE
        || size_of_val(head).saturating_add(size_of_val(stripes)) != data.len()
    {
        cx.sink.add(Id::ChunkInvalid, site.clone(), "wrong object id or length");
    }
    match Chunk::parse(key.offset, head, stripes, cx.vol.sectorsize) {
        Err(what) => cx.sink.add(Id::ChunkInvalid, site, what),
        Ok(chunk) => {
            if let Err(other) = map.insert(chunk) {
                cx.sink
                    .add(Id::ChunkOverlap, site, format!("overlaps the chunk at {other}"));
            }
        }
    }
}

/// Devices against the superblock and against what was given.
pub(crate) fn check_devices(cx: &mut Cx<'_>) {
    let sb = cx.vol.sb;
    let items = cx.vol.dev_items.clone();
    if count(items.len()) != sb.num_devices.get() {
        let what = format!("{}, the chunk tree has {}", sb.num_devices, items.len());
        cx.sink.add(Id::SuperNumDevices, Site::default(), what);
    }
    let total = items
        .values()
        .fold(0u64, |sum, item| sum.saturating_add(item.total_bytes.get()));
    if total != sb.total_bytes.get() {
        let what = format!("{}, the devices have {total}", sb.total_bytes);
        cx.sink.add(Id::SuperTotalBytes, Site::default(), what);
    }
    for (&devid, item) in &items {
        let site = Site::device(devid, 0);
        if item.fsid != sb.metadata_fsid() && item.fsid != sb.fsid {
            cx.sink
                .add(Id::SuperDevItem, site.clone(), "the item carries another volume's id");
        }
        if item.bytes_used.get() > item.total_bytes.get() {
            let what = format!("{} of {} bytes used", item.bytes_used, item.total_bytes);
            cx.sink.add(Id::DevItemBytesUsed, site.clone(), what);
        }
        let Some(device) = cx.vol.devices.get(&devid) else {
            cx.sink.add(
                Id::DeviceMissing,
                site,
                format!("device {devid} of the volume was not given"),
            );
            continue;
        };
        let size_bytes = device.size_bytes();
        if item.total_bytes.get() > size_bytes {
            let what = format!("has {size_bytes} bytes, its item says {}", item.total_bytes);
            cx.sink.add(Id::DeviceSize, site, what);
        }
    }
    let own = sb.dev_item;
    match items.get(&own.devid.get()) {
        Some(item) => {
            let is_same_device = item.uuid == own.uuid && item.total_bytes == own.total_bytes;
            if !is_same_device || item.bytes_used != own.bytes_used {
                let what = format!(
                    "the superblock says {} of {} bytes used, the chunk tree {} of {}",
                    own.bytes_used, own.total_bytes, item.bytes_used, item.total_bytes
                );
                let id = if is_same_device {
                    Id::SuperDevItemStale
                } else {
                    Id::SuperDevItem
                };
                cx.sink.add(id, Site::device(own.devid.get(), 0), what);
            }
        }
        None => {
            let what = "the chunk tree has no item of this device";
            cx.sink.add(Id::SuperDevItem, Site::device(own.devid.get(), 0), what);
        }
    }
}

/// Stripes name their device twice: by number and by uuid.
fn check_stripe_devices(cx: &mut Cx<'_>) {
    for chunk in cx.vol.chunks.iter() {
        for (&(devid, offset), uuid) in chunk.stripes.iter().zip(&chunk.dev_uuids) {
            let what = match cx.vol.dev_items.get(&devid) {
                Some(item) if item.uuid == *uuid => continue,
                Some(_) => "has another uuid",
                None => "has no item",
            };
            let what = format!("the device of a stripe of the chunk at {} {what}", chunk.start);
            cx.sink.add(Id::ChunkDevice, Site::device(devid, offset), what);
        }
    }
}

struct Place {
    chunk: u64,
    len: u64,
    matched: bool,
}

/// The device tree against the chunks, in both directions.
pub(crate) fn check_dev_tree(cx: &mut Cx<'_>, root: &Root) {
    check_stripe_devices(cx);
    let mut places: BTreeMap<(u64, u64), Place> = BTreeMap::new();
    for chunk in cx.vol.chunks.iter() {
        for &stripe in &chunk.stripes {
            let place = Place {
                chunk: chunk.start,
                len: chunk.stripe_len(),
                matched: false,
            };
            if let Some(other) = places.insert(stripe, place) {
                let what = format!("chunks {} and {} use the same place", other.chunk, chunk.start);
                cx.sink
                    .add(Id::DevExtentOverlap, Site::device(stripe.0, stripe.1), what);
            }
        }
    }
    let mut last: Option<(u64, u64)> = None;
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    let whole = cx.walk(root, Shared::Skip, &mut |cx, leaf, _| {
        for (key, data) in leaf.items() {
            let site = item_site(TreeId::DEV, leaf, key);
            match (key.ty, fixed::<DevExtent>(data)) {
                (KeyType::DEV_EXTENT, Some(item)) => {
                    let devid = key.objectid.get();
                    let len = item.length.get();
                    let end = key.offset.saturating_add(len);
                    let sum = used.entry(devid).or_default();
                    *sum = sum.saturating_add(len);
                    if let Some((dev, before)) = last
                        && dev == devid
                        && before > key.offset
                    {
                        let what = "begins before the end of the device extent before it";
                        cx.sink.add(Id::DevExtentOverlap, site.clone(), what);
                    }
                    last = Some((devid, end));
                    judge_dev_extent(cx, &mut places, site, (devid, key.offset), item);
                }
                (KeyType::DEV_EXTENT, None) => cx.sink.add(Id::DevExtentOrphan, site, "too short"),
                (KeyType::PERSISTENT_ITEM | KeyType::DEV_REPLACE, _) => {}
                _ => cx.sink.add(Id::ItemForeign, site, "does not belong in the device tree"),
            }
        }
    });
    if !whole {
        return;
    }
    for ((devid, offset), place) in &places {
        if !place.matched {
            let what = format!("the chunk at {} has a stripe here, but no device extent", place.chunk);
            cx.sink.add(Id::DevExtentMissing, Site::device(*devid, *offset), what);
        }
    }
    for (&devid, item) in &cx.vol.dev_items {
        let sum = used.get(&devid).copied().unwrap_or(0);
        if item.bytes_used.get() != sum {
            let what = format!("{} bytes used, the device extents have {sum}", item.bytes_used);
            cx.sink.add(Id::DevItemBytesUsed, Site::device(devid, 0), what);
        }
    }
}

fn judge_dev_extent(
    cx: &mut Cx<'_>,
    places: &mut BTreeMap<(u64, u64), Place>,
    site: Site,
    at: (u64, u64),
    item: &DevExtent,
) {
    let end = at.1.checked_add(item.length.get());
    match cx.vol.dev_items.get(&at.0) {
        Some(dev) if end.is_some_and(|end| end <= dev.total_bytes.get()) => {}
        Some(dev) => {
            let what = format!("{} bytes reach beyond the device's {}", item.length, dev.total_bytes);
            cx.sink.add(Id::DevExtentBeyondDevice, site.clone(), what);
        }
        None => cx
            .sink
            .add(Id::DevExtentOrphan, site.clone(), "on a device without an item"),
    }
    match places.get_mut(&at) {
        Some(place) if place.chunk == item.chunk_offset.get() && place.len == item.length.get() => place.matched = true,
        Some(place) => {
            place.matched = true;
            let what = format!(
                "{} bytes for the chunk at {}, the chunk at {} has a stripe of {} bytes here",
                item.length, item.chunk_offset, place.chunk, place.len
            );
            cx.sink.add(Id::DevExtentOrphan, site, what);
        }
        None => {
            let what = format!("the chunk at {} has no stripe here", item.chunk_offset);
            cx.sink.add(Id::DevExtentOrphan, site, what);
        }
    }
}

/// Collects the block groups of a leaf, of the extent tree or the block-group tree.
pub(crate) fn read_block_groups(cx: &mut Cx<'_>, tree: TreeId, leaf: &Block, groups: &mut BTreeMap<u64, BlockGroup>) {
    for (key, data) in leaf.items() {
        if key.ty != KeyType::BLOCK_GROUP_ITEM {
            if tree == TreeId::BLOCK_GROUP {
                let what = "does not belong in the block-group tree";
                cx.sink.add(Id::ItemForeign, item_site(tree, leaf, key), what);
            }
            continue;
        }
        let site = item_site(tree, leaf, key);
        let Some(item) = fixed::<BlockGroupItem>(data) else {
            cx.sink.add(Id::BlockGroupMismatch, site, "too short");
            continue;
        };
        let group = BlockGroup {
            start: key.objectid.get(),
            len: key.offset,
            used: item.used.get(),
            flags: item.flags.get(),
        };
        match cx.vol.chunks.exact(group.start) {
            None => cx.sink.add(Id::BlockGroupOrphan, site, "no chunk begins here"),
            Some(chunk) if chunk.len != group.len || chunk.ty != group.flags => {
                let what = format!(
                    "{} bytes of type {:#x}, its chunk has {} bytes of type {:#x}",
                    group.len, group.flags, chunk.len, chunk.ty
                );
                cx.sink.add(Id::BlockGroupMismatch, site, what);
            }
            Some(_) => {}
        }
        groups.insert(group.start, group);
    }
}

/// Block groups against chunks and extents, and the superblock's sum.
pub(crate) fn check_block_groups(
    cx: &mut Cx<'_>,
    groups: &BTreeMap<u64, BlockGroup>,
    groups_whole: bool,
    extents_whole: bool,
) {
    if groups_whole {
        let missing: Vec<u64> = cx
            .vol
            .chunks
            .iter()
            .map(|chunk| chunk.start)
            .filter(|start| !groups.contains_key(start))
            .collect();
        for start in missing {
            cx.sink
                .add(Id::BlockGroupMissing, Site::addr(start), "the chunk has no block group");
        }
    }
    if !extents_whole {
        return;
    }
    for group in groups.values() {
        let used = used_within(cx, group.start, group.start.saturating_add(group.len));
        if used != group.used {
            let what = format!("{} bytes used, the extents have {used}", group.used);
            cx.sink.add(Id::BlockGroupUsed, Site::addr(group.start), what);
        }
    }
    let sum = used_within(cx, 0, u64::MAX);
    cx.stats.bytes_used = sum;
    cx.stats.extents = count(cx.extents.list.len());
    if sum != cx.vol.sb.bytes_used.get() {
        let what = format!("{} bytes used, the extents have {sum}", cx.vol.sb.bytes_used);
        cx.sink.add(Id::SuperBytesUsed, Site::default(), what);
    }
    if groups_whole {
        check_extent_places(cx, groups);
    }
}

/// Each extent lies in one block group, of its kind.
fn check_extent_places(cx: &mut Cx<'_>, groups: &BTreeMap<u64, BlockGroup>) {
    for extent in &cx.extents.list {
        let site = Site::addr(extent.addr);
        let group = groups
            .range(..=extent.addr)
            .next_back()
            .map(|(_, group)| group)
            .filter(|group| extent.end() <= group.start.saturating_add(group.len));
        let Some(group) = group else {
            cx.sink.add(
                Id::ExtentOutsideBlockGroup,
                site,
                format!("{} bytes, not within one block group", extent.len),
            );
            continue;
        };
        let wanted = if extent.is_data() {
            bg::DATA
        } else {
            bg::METADATA | bg::SYSTEM
        };
        if group.flags & wanted == 0 {
            let kind = if extent.is_data() { "data" } else { "a tree block" };
            let what = format!("{kind} in a block group of type {:#x}", group.flags);
            cx.sink.add(Id::ExtentWrongBlockGroup, site, what);
        } else if extent.flags & extent_flags::TREE_BLOCK != 0 {
            let within = extent.addr.checked_rem(STRIPE_LEN_BYTES).unwrap_or(0);
            if within.saturating_add(extent.len) > STRIPE_LEN_BYTES {
                cx.sink
                    .add(Id::ExtentCrossesStripe, site, "a tree block that straddles a stripe");
            }
        }
    }
}
