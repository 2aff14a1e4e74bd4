//! The items of a new volume, as bytes.

use std::collections::BTreeMap;

use btrfs_format::features::{extent_flags, root_flags};
use btrfs_format::hash::extent_data_ref_hash;
use btrfs_format::items::{
    BlockGroupItem, DevExtent, DevItem, DirItem, ExtentDataRef, ExtentItem, FreeSpaceInfo, InlineRef, InodeItem,
    InodeRef, RootItem, RootRef, Timespec, TreeBlockInfo, file_type,
};
use btrfs_format::{DiskKey, Generation, Key, KeyType, ObjectId, TreeId, U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::chunks::{PlannedChunk, PlannedDevice};
use super::data::{DataExtent, DataRef};
use super::tree::TreeRoot;
use crate::Settings;

/// `S_IFDIR` and the permissions `rwxr-xr-x`.
const DIR_MODE: u32 = 0o040_755;
/// What mkfs.btrfs puts into the size of the inode inside each root item.
const ROOT_INODE_SIZE: u64 = 3;

/// Key and data.
pub(crate) type Item = (Key, Vec<u8>);

/// The inode of an empty directory. `nbytes` is what mkfs.btrfs states for it.
pub(crate) fn dir_inode(generation: Generation, nbytes: u64, time: Timespec) -> InodeItem {
    InodeItem {
        generation: generation.into(),
        transid: generation.into(),
        nbytes: U64::new(nbytes),
        nlink: U32::new(1),
        mode: U32::new(DIR_MODE),
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::new_zeroed()
    }
}

/// An `INODE_REF` item with one name.
pub(crate) fn inode_ref(index: u64, name: &[u8]) -> Vec<u8> {
    let head = InodeRef {
        index: U64::new(index),
        name_len: name_len(name),
    };
    [head.as_bytes(), name].concat()
}

/// A `ROOT_REF` or `ROOT_BACKREF`: where the name of a subvolume is.
pub(crate) fn root_ref(dir: ObjectId, index: u64, name: &[u8]) -> Vec<u8> {
    let head = RootRef {
        dirid: dir.into(),
        sequence: U64::new(index),
        name_len: name_len(name),
    };
    [head.as_bytes(), name].concat()
}

/// A `DIR_ITEM` for a subvolume.
pub(crate) fn subvolume_dir_item(name: &[u8], tree: TreeId, generation: Generation) -> Vec<u8> {
    let head = DirItem {
        location: DiskKey::from(Key::new(tree.object_id(), KeyType::ROOT_ITEM, u64::MAX)),
        transid: generation.into(),
        data_len: U16::new(0),
        name_len: name_len(name),
        ty: file_type::DIR,
    };
    [head.as_bytes(), name].concat()
}

fn name_len(name: &[u8]) -> U16 {
    U16::new(u16::try_from(name.len()).expect("a name has at most 255 bytes"))
}

/// The root item of a tree; `uuid` and time are those of a subvolume, zero for other trees.
pub(crate) fn root_item(settings: &Settings, generation: Generation, placed: &TreeRoot) -> RootItem {
    let tree = placed.id;
    let nodesize = u64::from(settings.nodesize_bytes);
    let inode = InodeItem {
        generation: generation.into(),
        size: U64::new(ROOT_INODE_SIZE),
        nbytes: U64::new(nodesize),
        nlink: U32::new(1),
        mode: U32::new(DIR_MODE),
        ..InodeItem::new_zeroed()
    };
    let mut root = RootItem {
        inode,
        generation: generation.into(),
        bytenr: placed.addr.into(),
        bytes_used: U64::new(nodesize * placed.block_count),
        refs: U32::new(1),
        level: placed.level,
        generation_v2: generation.into(),
        ..RootItem::new_zeroed()
    };
    if tree.is_fs_tree() {
        root.root_dirid = ObjectId::FIRST_FREE.into();
    }
    if tree == TreeId::FS {
        root.uuid = settings.fs_tree_uuid;
        root.ctime = settings.time;
        root.otime = settings.time;
    }
    if let Some(new) = settings.subvolumes.iter().find(|new| new.id == tree) {
        (root.uuid, root.parent_uuid) = (new.uuid, new.parent_uuid);
        (root.ctime, root.otime) = (settings.time, settings.time);
        (root.ctransid, root.otransid) = (generation.into(), generation.into());
        if new.read_only {
            root.set_subvolume_flags(root_flags::SUBVOL_RDONLY);
        }
    }
    root
}

/// Key and data of the extent item of a tree block.
pub(crate) fn tree_block_extent(
    settings: &Settings,
    generation: Generation,
    owner: TreeId,
    (addr, level, first_key): (btrfs_format::LogicalAddr, u8, Key),
) -> (Key, Vec<u8>) {
    let head = ExtentItem {
        refs: U64::new(1),
        generation: generation.into(),
        flags: U64::new(extent_flags::TREE_BLOCK),
    };
    let back_ref = InlineRef {
        ty: KeyType::TREE_BLOCK_REF.0,
        offset: owner.into(),
    };
    let objectid = ObjectId(addr.0);
    if settings.features.skinny_metadata {
        let key = Key::new(objectid, KeyType::METADATA_ITEM, level.into());
        return (key, [head.as_bytes(), back_ref.as_bytes()].concat());
    }
    let key = Key::new(objectid, KeyType::EXTENT_ITEM, settings.nodesize_bytes.into());
    let info = TreeBlockInfo {
        key: first_key.into(),
        level,
    };
    (key, [head.as_bytes(), info.as_bytes(), back_ref.as_bytes()].concat())
}

/// Key and data of the extent item of a data extent, with all its references.
pub(crate) fn data_extent(generation: Generation, extent: &DataExtent) -> (Key, Vec<u8>) {
    let (first, _) = data_extent_items(generation, extent, usize::MAX);
    first
}

/// The extent item of a data extent with as many references as fit `inline_bytes_max`, and the
/// items of the other references in key order.
pub(crate) fn data_extent_items(
    generation: Generation,
    extent: &DataExtent,
    inline_bytes_max: usize,
) -> (Item, Vec<Item>) {
    let head = ExtentItem {
        refs: U64::new(extent.refs.iter().map(|back_ref| u64::from(back_ref.count)).sum()),
        generation: generation.into(),
        flags: U64::new(extent_flags::DATA),
    };
    let hash = |r: &DataRef| extent_data_ref_hash(r.root, r.objectid, r.offset_bytes);
    let mut refs = extent.refs.clone();
    // Inline references of one kind lie in descending order of their hash.
    refs.sort_by_key(|r| std::cmp::Reverse(hash(r)));
    let mut data = head.as_bytes().to_vec();
    let mut keyed = BTreeMap::new();
    for back_ref in refs {
        let raw = ExtentDataRef {
            root: back_ref.root.into(),
            objectid: back_ref.objectid.into(),
            offset: U64::new(back_ref.offset_bytes),
            count: U32::new(back_ref.count),
        };
        if data.len() + 1 + size_of::<ExtentDataRef>() <= inline_bytes_max {
            data.push(KeyType::EXTENT_DATA_REF.0);
            data.extend(raw.as_bytes());
            continue;
        }
        // References with the same hash get the next free key.
        let mut offset = hash(&back_ref);
        while keyed.contains_key(&offset) {
            offset = offset.wrapping_add(1);
        }
        keyed.insert(offset, raw);
    }
    let objectid = ObjectId(extent.addr.0);
    let key = Key::new(objectid, KeyType::EXTENT_ITEM, extent.len_bytes);
    let keyed = keyed.into_iter().map(|(offset, raw)| {
        let key = Key::new(objectid, KeyType::EXTENT_DATA_REF, offset);
        (key, raw.as_bytes().to_vec())
    });
    ((key, data), keyed.collect())
}

/// Key and data of a block group item.
pub(crate) fn block_group(chunk: &PlannedChunk, used_bytes: u64) -> (Key, Vec<u8>) {
    let item = BlockGroupItem {
        used: U64::new(used_bytes),
        chunk_objectid: ObjectId::FIRST_CHUNK_TREE.into(),
        flags: U64::new(chunk.flags()),
    };
    let key = Key::new(ObjectId(chunk.logical.0), KeyType::BLOCK_GROUP_ITEM, chunk.length_bytes);
    (key, item.as_bytes().to_vec())
}

/// Key and data of a chunk item.
pub(crate) fn chunk(settings: &Settings, devices: &[PlannedDevice], chunk: &PlannedChunk) -> (Key, Vec<u8>) {
    let head = chunk.head(settings.sectorsize_bytes);
    let stripes = chunk.disk_stripes(devices);
    let key = Key::new(ObjectId::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, chunk.logical.0);
    (key, [head.as_bytes(), stripes.as_bytes()].concat())
}

/// The item of a device, in the chunk tree and in its superblock.
pub(crate) fn dev_item(settings: &Settings, device: &PlannedDevice, used_bytes: u64) -> DevItem {
    DevItem {
        devid: device.devid.into(),
        total_bytes: U64::new(device.total_bytes),
        bytes_used: U64::new(used_bytes),
        io_align: U32::new(settings.sectorsize_bytes),
        io_width: U32::new(settings.sectorsize_bytes),
        sector_size: U32::new(settings.sectorsize_bytes),
        uuid: device.uuid,
        fsid: settings.uuid,
        ..DevItem::new_zeroed()
    }
}

/// The item for one stripe of a chunk in the device tree.
pub(crate) fn dev_extent(settings: &Settings, chunk: &PlannedChunk) -> DevExtent {
    DevExtent {
        chunk_tree: TreeId::CHUNK.into(),
        chunk_objectid: ObjectId::FIRST_CHUNK_TREE.into(),
        chunk_offset: chunk.logical.into(),
        length: U64::new(chunk.stripe_bytes),
        chunk_tree_uuid: settings.chunk_tree_uuid,
    }
}

/// Key and data of the free-space info of a block group with that many free extents.
pub(crate) fn free_space_info(chunk: &PlannedChunk, extents: usize) -> (Key, Vec<u8>) {
    let item = FreeSpaceInfo {
        extent_count: U32::new(u32::try_from(extents).expect("a chunk has fewer extents than 2^32")),
        flags: U32::new(0),
    };
    let key = Key::new(ObjectId(chunk.logical.0), KeyType::FREE_SPACE_INFO, chunk.length_bytes);
    (key, item.as_bytes().to_vec())
}
