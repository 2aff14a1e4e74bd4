//! Faults of extents, back references, free space and checksums.

use btrfs_check::FindingId as Id;
use btrfs_format::features::{extent_flags, inode_flags};
use btrfs_format::items::{ExtentItem, FileExtent, FreeSpaceHeader, FreeSpaceInfo, InodeItem, compression};
use btrfs_format::view::{BackRef, ExtentView};
use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use cowshed_device::BlockDevice;
use zerocopy::{FromBytes, IntoBytes};

use crate::image::{Image, Item};
use crate::layout::{SV, data_addr, of_type};
use crate::{Bases, Planted};

const E: TreeId = TreeId::EXTENT;

fn is_data(item: &Item) -> bool {
    item.key.ty == KeyType::EXTENT_ITEM && item.data[16] & 1 == 1
}
fn is_block(item: &Item) -> bool {
    item.key.ty == KeyType::METADATA_ITEM
}
fn refs(item: &Item) -> Vec<BackRef> {
    ExtentView::new(&item.key, &item.data)
        .expect("an extent")
        .inline_refs()
        .collect()
}
/// A data extent with one reference, inline.
fn single_ref(item: &Item) -> bool {
    is_data(item) && matches!(refs(item)[..], [BackRef::ExtentData { count: 1, .. }])
}

/// A range that no extent covers, in a block group of data.
fn free_data(image: &Image) -> u64 {
    let data = image.chunks.iter().filter(|c| c.ty & 1 == 1);
    let chunk = data.max_by_key(|c| c.len).expect("a data chunk");
    chunk.start + chunk.len - (1 << 20)
}

fn new_extent(flags: u64, back: &[u8]) -> Vec<u8> {
    let head = ExtentItem {
        refs: 1.into(),
        generation: 1.into(),
        flags: flags.into(),
    };
    [head.as_bytes(), back].concat()
}

/// An inline reference by tree 5, inode 257.
fn data_ref() -> Vec<u8> {
    let mut bytes = vec![KeyType::EXTENT_DATA_REF.0];
    for word in [5u64, 257, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes());
    bytes
}

pub fn plant(id: Id, bases: &Bases) -> Option<Planted> {
    plant_extents(id, bases)
        .or_else(|| plant_places(id, bases))
        .or_else(|| plant_free_space(id, bases))
        .or_else(|| plant_csums(id, bases))
}

fn plant_extents(id: Id, bases: &Bases) -> Option<Planted> {
    let mut image = bases.main.snapshot();
    match id {
        Id::ExtentItemInvalid => image.edit_as(E, is_data, |item: &mut ExtentItem| item.flags = 0.into()),
        Id::ExtentOverlap => image.edit(E, is_data, |item| item.key.offset += 1 << 26),
        Id::ExtentMissing => drop(image.remove(E, single_ref)),
        Id::ExtentUnreferenced => {
            let at = free_data(&image);
            let key = Key::new(ObjectId(at), KeyType::EXTENT_ITEM, 4096);
            image.insert(E, key, new_extent(extent_flags::DATA, &data_ref()));
        }
        Id::ExtentRefCount => image.edit_as(E, is_data, |item: &mut ExtentItem| {
            item.refs = (item.refs.get() + 1).into()
        }),
        Id::BackrefMissing | Id::BackrefStale => {
            // The reference names another inode: the right one is missing, the wrong one stale.
            image.edit(E, single_ref, |item| item.data[24 + 1 + 8 + 2] ^= 1);
        }
        Id::BackrefCount => image.edit(E, single_ref, |item| {
            item.data[0] = 2;
            item.data[24 + 1 + 24] = 2;
        }),
        Id::BackrefMismatch => return Some(Planted::Not("says that the details overflowed their bound")),
        Id::ExtentSize => image.edit(E, is_data, |item| item.key.offset -= 4096),
        Id::ExtentFlags => image.edit_as(E, is_block, |item: &mut ExtentItem| {
            item.flags = (item.flags.get() | extent_flags::FULL_BACKREF).into();
        }),
        Id::ExtentLevel => image.edit(
            E,
            |item| is_block(item) && item.key.offset == 0,
            |item| item.key.offset = 1,
        ),
        Id::ExtentGeneration => image.edit_as(E, is_data, |item: &mut ExtentItem| item.generation = (1 << 40).into()),
        Id::ExtentOwnerLost => {
            let own = |item: &Item| {
                is_block(item) && matches!(refs(item)[..], [BackRef::TreeBlock { root }] if root == SV.get())
            };
            image.edit(E, own, |item| item.data[24 + 1] = 5);
        }
        _ => return None,
    }
    Some(image.into())
}

fn plant_places(id: Id, bases: &Bases) -> Option<Planted> {
    let mut image = bases.main.snapshot();
    match id {
        Id::ExtentOutsideBlockGroup => {
            let key = Key::new(ObjectId(1 << 50), KeyType::EXTENT_ITEM, 4096);
            image.insert(E, key, new_extent(extent_flags::DATA, &data_ref()));
        }
        Id::ExtentWrongBlockGroup | Id::ExtentCrossesStripe => {
            let metadata = image.chunks.iter().find(|c| c.ty & 4 == 4)?;
            let end = metadata.start + metadata.len;
            let (at, ty, offset, flags, back) = if id == Id::ExtentWrongBlockGroup {
                (end - 4096, KeyType::EXTENT_ITEM, 4096, extent_flags::DATA, data_ref())
            } else {
                let mut back = vec![KeyType::TREE_BLOCK_REF.0];
                back.extend(5u64.to_le_bytes());
                let at = end - 65536 - 4096;
                (at, KeyType::METADATA_ITEM, 0, extent_flags::TREE_BLOCK, back)
            };
            image.insert(E, Key::new(ObjectId(at), ty, offset), new_extent(flags, &back));
        }
        _ => return None,
    }
    Some(image.into())
}

fn plant_free_space(id: Id, bases: &Bases) -> Option<Planted> {
    let tree = TreeId::FREE_SPACE;
    let mut image = bases.main.snapshot();
    let starts: Vec<u64> = image.chunks.iter().map(|c| c.start).collect();
    let info = |item: &Item| item.key.ty == KeyType::FREE_SPACE_INFO && starts.contains(&item.key.objectid.get());
    let last = image
        .items(tree)
        .into_iter()
        .rfind(|item| item.key.ty == KeyType::FREE_SPACE_EXTENT)?;
    let is_last = |item: &Item| item.key == last.key;
    match id {
        Id::FreeSpaceInfoMissing => drop(image.remove(tree, info)),
        Id::FreeSpaceInfoCount => image.edit_as(tree, info, |item: &mut FreeSpaceInfo| {
            item.extent_count = (item.extent_count.get() + 1).into();
        }),
        Id::FreeSpaceInvalid => image.edit(tree, is_last, |item| item.key.offset -= 100),
        Id::FreeSpaceInUse => image.edit(tree, is_last, |item| {
            item.key.objectid.0 -= 4096;
            item.key.offset += 4096;
        }),
        Id::FreeSpaceLost => image.edit(tree, is_last, |item| item.key.offset -= 4096),
        Id::FreeSpaceStale => image.insert(
            tree,
            Key::new(ObjectId(16384), KeyType::FREE_SPACE_INFO, 4096),
            vec![0; 8],
        ),
        Id::FreeSpaceOrphan => {
            let start = image.chunks.iter().find(|c| c.ty & 1 == 1)?.start;
            let key = Key::new(ObjectId(start + 4096), KeyType::FREE_SPACE_INFO, 65536);
            image.insert(tree, key, vec![0; 8]);
        }
        Id::SpaceCacheInvalid => {
            image = bases.old.snapshot();
            image.edit_super(|sb| sb.cache_generation = sb.generation);
            let header = |item: &Item| item.key.objectid == ObjectId::FREE_SPACE;
            image.edit_as(TreeId::ROOT, header, |item: &mut FreeSpaceHeader| {
                item.location.objectid = 99_999.into()
            });
        }
        Id::SpaceCacheInUse => {
            // The cache stays as it is, and an extent appears where it says that nothing is.
            image = bases.old.snapshot();
            image.edit_super(|sb| sb.cache_generation = sb.generation);
            let key = Key::new(ObjectId(free_data(&image)), KeyType::EXTENT_ITEM, 4096);
            image.insert(E, key, new_extent(extent_flags::DATA, &data_ref()));
        }
        Id::QuotaCount | Id::QuotaMissing => {
            image = bases.quota.snapshot();
            let info = |item: &Item| item.key.ty == KeyType::QGROUP_INFO && item.key.offset == SV.get();
            if id == Id::QuotaCount {
                image.edit(TreeId::QUOTA, info, |item| item.data[9] ^= 0x40);
            } else {
                image.remove(TreeId::QUOTA, info);
            }
        }
        _ => return None,
    }
    Some(image.into())
}

fn plant_csums(id: Id, bases: &Bases) -> Option<Planted> {
    let tree = TreeId::CSUM;
    let mut image = bases.main.snapshot();
    let csum = of_type(KeyType::EXTENT_CSUM);
    match id {
        Id::CsumItemInvalid => image.edit(tree, csum, |item| item.data.truncate(item.data.len() - 1)),
        Id::CsumOrphan => {
            let key = Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, free_data(&image));
            image.insert(tree, key, vec![0; 8]);
        }
        Id::CsumMissing => image.edit(tree, csum, |item| {
            let len = item.data.len();
            item.data.truncate(len - 4);
        }),
        Id::CsumUnexpected => {
            let files = image.items(TreeId::FS);
            let prealloc = files
                .iter()
                .find(|item| item.key.ty == KeyType::EXTENT_DATA && item.data[20] == 2)?;
            let addr = u64::from_le_bytes(prealloc.data[21..29].try_into().ok()?);
            image.insert(
                tree,
                Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, addr),
                vec![0; 4],
            );
        }
        Id::CompressedUnsummed => {
            let files = image.items(TreeId::FS);
            // `packed/file`, compressed with zstd.
            let is_packed =
                |item: &&Item| item.key.ty == KeyType::EXTENT_DATA && item.data[16] == 3 && item.data[20] == 1;
            let packed = files.iter().find(is_packed)?.key.objectid;
            let is_inode = |item: &Item| item.key.objectid == packed && item.key.ty == KeyType::INODE_ITEM;
            image.edit_as(TreeId::FS, is_inode, |inode: &mut InodeItem| {
                inode.flags = (inode.flags.get() | inode_flags::NODATASUM).into();
            });
        }
        Id::DataCsum => {
            let place = image.places(data_addr(&image))[0];
            image.device.write_at(place + 1000, &[0x5a]).ok()?;
        }
        Id::DataUndecodable => {
            let is_zstd = |item: &Item| {
                item.key.ty == KeyType::EXTENT_DATA
                    && FileExtent::ref_from_prefix(&item.data).is_ok_and(|(e, _)| e.compression == compression::ZSTD)
            };
            image.edit_as(TreeId::FS, is_zstd, |extent: &mut FileExtent| {
                extent.compression = compression::LZO;
            });
        }
        Id::DataUnreadable => {
            let bad = image.places(data_addr(&image))[0];
            let device = crate::layout::BadSector {
                inner: image.device,
                bad,
            };
            return Some(Planted::Volume(vec![std::sync::Arc::new(device)]));
        }
        _ => return None,
    }
    Some(image.into())
}
