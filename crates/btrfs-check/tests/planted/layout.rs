//! Faults of superblocks, chunks, blocks and roots.

use std::fmt;
use std::mem::offset_of;
use std::sync::Arc;

use btrfs_check::FindingId as Id;
use btrfs_format::block::{HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, KeyPtr};
use btrfs_format::features::{block_group, incompat, super_flags};
use btrfs_format::items::{BlockGroupItem, ChunkHead, DevExtent, DevItem, RootItem, RootRef, Stripe};
use btrfs_format::superblock::SUPERBLOCK_OFFSETS;
use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use cowshed_device::{BlockDevice, Error, MemDevice, Op, Result, SliceDevice};
use zerocopy::{FromBytes, IntoBytes};

use crate::image::{Image, Item};
use crate::{Bases, Planted};

/// A device on which one byte cannot be read.
pub struct BadSector {
    pub inner: MemDevice,
    pub bad: u64,
}

impl fmt::Debug for BadSector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BadSector")
    }
}

impl BlockDevice for BadSector {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn sector_size_bytes(&self) -> u32 {
        self.inner.sector_size_bytes()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn is_read_only(&self) -> bool {
        true
    }
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()> {
        if (offset_bytes..offset_bytes + buf.len() as u64).contains(&self.bad) {
            let error = std::io::Error::from_raw_os_error(5);
            return Err(Error::io(self.name(), Op::Read, offset_bytes, error));
        }
        self.inner.read_at(offset_bytes, buf)
    }
    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        self.inner.write_at(offset_bytes, buf)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

pub fn of_type(ty: KeyType) -> impl Fn(&Item) -> bool {
    move |item| item.key.ty == ty
}

/// Items of user-made subvolumes: `sv` is 256, `snap` 257.
pub const SV: TreeId = TreeId(256);
pub const SNAP: TreeId = TreeId(257);

fn root_item(tree: TreeId) -> impl Fn(&Item) -> bool {
    move |item| item.key.objectid == tree.object_id() && item.key.ty == KeyType::ROOT_ITEM
}

/// The logical address and the places of the first data extent.
pub fn data_addr(image: &Image) -> u64 {
    let data = |item: &Item| item.key.ty == KeyType::EXTENT_ITEM && item.data[16] & 1 == 1;
    image.find(TreeId::EXTENT, data).key.objectid.get()
}

pub fn plant(id: Id, bases: &Bases) -> Option<Planted> {
    plant_super(id, bases)
        .or_else(|| plant_chunks(id, bases))
        .or_else(|| plant_blocks(id, bases))
        .or_else(|| plant_roots(id, bases))
}

fn plant_super(id: Id, bases: &Bases) -> Option<Planted> {
    let mut image = bases.main.snapshot();
    match id {
        Id::SuperUnreadable => {
            for offset in SUPERBLOCK_OFFSETS.iter().take(2) {
                image.device.write_at(*offset, &[0; 4096]).ok()?;
            }
        }
        Id::SuperMirror => image.edit_super_copies(&[1], |sb| sb.label[0] = b'x'),
        Id::SuperMirrorMissing => image.device.write_at(SUPERBLOCK_OFFSETS[1], &[0; 4096]).ok()?,
        Id::SuperMirrorStale => {
            image.edit_super_copies(&[1], |sb| {
                sb.generation = (sb.generation.get() - 1).into();
                // Each transaction has a root tree of its own.
                sb.root = sb.chunk_root;
            });
        }
        Id::SuperField => image.edit_super(|sb| sb.num_devices = 0.into()),
        Id::MetadataDump => image.edit_super(|sb| sb.flags = (sb.flags.get() | super_flags::METADUMP_V2).into()),
        Id::UnsupportedFeature => image.edit_super(|sb| sb.incompat_flags = (sb.incompat_flags.get() | 1 << 40).into()),
        Id::SuperBytesUsed => image.edit_super(|sb| sb.bytes_used = (sb.bytes_used.get() + 4096).into()),
        Id::SuperTotalBytes => image.edit_super(|sb| sb.total_bytes = (sb.total_bytes.get() - 4096).into()),
        Id::SuperNumDevices => image.edit_super(|sb| sb.num_devices = 2.into()),
        Id::SuperDevItem => image.edit_super(|sb| sb.dev_item.uuid = Default::default()),
        Id::SuperDevItemStale => {
            image.edit_super(|sb| sb.dev_item.bytes_used = (sb.dev_item.bytes_used.get() + 4096).into())
        }
        Id::DeviceMissing => image.edit_as(TreeId::CHUNK, of_type(KeyType::DEV_ITEM), |_: &mut DevItem| {}),
        Id::DeviceForeign => {
            let twice: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(image.device.snapshot()), Arc::new(image.device)];
            return Some(Planted::Volume(twice));
        }
        Id::DeviceSize => {
            let size = image.device.size_bytes() - (1 << 20);
            let inner: Arc<dyn BlockDevice> = Arc::new(image.device);
            let short = SliceDevice::new(inner, 0, size).ok()?;
            return Some(Planted::Volume(vec![Arc::new(short)]));
        }
        Id::LogPresent | Id::LogInvalid => image.edit_super(|sb| sb.log_root = sb.root),
        _ => return None,
    }
    if id == Id::DeviceMissing {
        // A second device that the volume names and the caller does not give.
        let item = image.find(TreeId::CHUNK, of_type(KeyType::DEV_ITEM));
        let mut second = DevItem::read_from_bytes(&item.data).ok()?;
        second.devid = 2.into();
        second.bytes_used = 0.into();
        let key = Key::new(ObjectId::DEV_ITEMS, KeyType::DEV_ITEM, 2);
        image.insert(TreeId::CHUNK, key, second.as_bytes().to_vec());
    }
    Some(image.into())
}

fn plant_chunks(id: Id, bases: &Bases) -> Option<Planted> {
    let mut image = bases.main.snapshot();
    let dev_extent = of_type(KeyType::DEV_EXTENT);
    let group = of_type(KeyType::BLOCK_GROUP_ITEM);
    match id {
        Id::DevItemBytesUsed => image.edit_as(TreeId::CHUNK, of_type(KeyType::DEV_ITEM), |item: &mut DevItem| {
            item.bytes_used = (item.bytes_used.get() + 65536).into();
        }),
        Id::SysChunkArray => {
            image.edit_super(|sb| sb.sys_chunk_array_size = (sb.sys_chunk_array_size.get() + 5).into())
        }
        Id::SysChunkMismatch => {
            let system = |item: &Item| item.key.ty == KeyType::CHUNK_ITEM && item.data[24] & 2 == 2;
            image.edit(TreeId::CHUNK, system, |item| {
                // The second copy moves by a sector.
                item.data[48 + 32 + 9] ^= 0x10;
            });
        }
        Id::ChunkInvalid => image.edit_as(TreeId::CHUNK, of_type(KeyType::CHUNK_ITEM), |head: &mut ChunkHead| {
            head.stripe_len = 4096.into();
        }),
        Id::ChunkDevice => image.edit(TreeId::CHUNK, of_type(KeyType::CHUNK_ITEM), |item| {
            item.data[size_of::<ChunkHead>() + offset_of!(Stripe, dev_uuid)] ^= 1
        }),
        Id::ChunkOverlap => image.edit_as(TreeId::CHUNK, of_type(KeyType::CHUNK_ITEM), |head: &mut ChunkHead| {
            head.length = (head.length.get() + (1 << 30)).into();
        }),
        Id::DevExtentMissing => drop(image.remove(TreeId::DEV, dev_extent)),
        Id::DevExtentOrphan => image.edit_as(TreeId::DEV, dev_extent, |item: &mut DevExtent| {
            item.chunk_offset = (item.chunk_offset.get() + 65536).into();
        }),
        Id::DevExtentOverlap => image.edit_as(TreeId::DEV, dev_extent, |item: &mut DevExtent| {
            item.length = (item.length.get() + (1 << 24)).into();
        }),
        Id::DevExtentBeyondDevice => image.edit_as(TreeId::DEV, dev_extent, |item: &mut DevExtent| {
            item.length = (1 << 40).into();
        }),
        Id::BlockGroupMissing => drop(image.remove(TreeId::EXTENT, group)),
        Id::BlockGroupOrphan => image.edit(TreeId::EXTENT, group, |item| item.key.objectid.0 += 65536),
        Id::BlockGroupMismatch => image.edit_as(TreeId::EXTENT, group, |item: &mut BlockGroupItem| {
            item.flags = (item.flags.get() ^ block_group::DUP).into();
        }),
        Id::BlockGroupUsed => image.edit_as(TreeId::EXTENT, group, |item: &mut BlockGroupItem| {
            item.used = (item.used.get() ^ 4096).into();
        }),
        _ => return None,
    }
    Some(image.into())
}

fn plant_blocks(id: Id, bases: &Bases) -> Option<Planted> {
    let mut image = bases.main.snapshot();
    let tree = TreeId::FS;
    let leaf = image.blocks(tree, 0)[1];
    let second_ptr = |edit: fn(&mut KeyPtr)| {
        move |bytes: &mut [u8]| {
            let at = HEADER_BYTES + KEY_PTR_BYTES;
            edit(KeyPtr::mut_from_prefix(&mut bytes[at..]).expect("a pointer").0);
        }
    };
    match id {
        Id::BlockUnmapped => image.edit_block(tree, 1, 0, second_ptr(|ptr| ptr.blockptr = (1u64 << 50).into())),
        Id::BlockUnreadable => {
            let bad = image.places(leaf)[1];
            let device = BadSector {
                inner: image.device,
                bad,
            };
            return Some(Planted::Volume(vec![Arc::new(device)]));
        }
        Id::BlockCsum => {
            let place = image.places(leaf)[0];
            image.device.write_at(place + 5000, &[0x5a; 16]).ok()?;
        }
        Id::BlockFsid => image.edit_header(tree, 0, 1, |header| header.fsid[0] ^= 1),
        Id::BlockBytenr => image.edit_header(tree, 0, 1, |header| header.bytenr = (header.bytenr.get() + 4096).into()),
        Id::BlockLevel => image.edit_header(tree, 0, 1, |header| header.level = 1),
        Id::BlockGeneration => {
            image.edit_header(tree, 0, 1, |header| {
                header.generation = (header.generation.get() - 1).into()
            });
        }
        Id::BlockNewerThanParent => {
            // A root that says it is older than its leaves, and a root item that agrees with it.
            let (_, top) = image.root(tree);
            image.edit_header(tree, top, 0, |header| header.generation = 1.into());
            image.edit_as(TreeId::ROOT, root_item(tree), |item: &mut RootItem| {
                item.generation = 1.into();
                item.generation_v2 = 1.into();
            });
        }
        Id::BlockFuture => image.edit_header(tree, 0, 1, |header| header.generation = (1 << 40).into()),
        Id::BlockOwner => image.edit_header(tree, 0, 1, |header| header.owner = TreeId::EXTENT.into()),
        Id::BlockItemCount => image.edit_header(tree, 0, 1, |header| header.nritems = 60_000.into()),
        Id::BlockKeyOrder => image.edit_block(tree, 0, 1, |bytes| {
            let at = HEADER_BYTES + ITEM_HEADER_BYTES;
            let head = ItemHeader::mut_from_prefix(&mut bytes[at..]).expect("an item").0;
            head.key.objectid = u64::MAX.into();
        }),
        Id::BlockFirstKey => image.edit_block(
            tree,
            1,
            0,
            second_ptr(|ptr| ptr.key.offset = (ptr.key.offset.get() + 1).into()),
        ),
        Id::BlockKeyRange => image.edit_block(tree, 0, 1, |bytes| {
            let count = Header::read_from_prefix(bytes).expect("a header").0.nritems.get() as usize;
            let at = HEADER_BYTES + (count - 1) * ITEM_HEADER_BYTES;
            ItemHeader::mut_from_prefix(&mut bytes[at..])
                .expect("an item")
                .0
                .key
                .objectid = (1 << 40).into();
        }),
        Id::BlockItemBounds => image.edit_block(tree, 0, 1, |bytes| {
            let head = ItemHeader::mut_from_prefix(&mut bytes[HEADER_BYTES..])
                .expect("an item")
                .0;
            head.offset = (head.offset.get() - 1).into();
        }),
        Id::BlockCopiesDiffer => {
            let mut bytes = image.block(leaf);
            let item = bytes.len() - 1;
            bytes[item] ^= 1;
            let second = image.places(leaf)[1];
            image.put_block_at(&[second], &bytes);
        }
        Id::ItemInvalid => image.edit(tree, of_type(KeyType::INODE_ITEM), |item| item.data.truncate(100)),
        Id::ItemForeign => image.insert(TreeId::DEV, Key::new(ObjectId(1), KeyType::INODE_ITEM, 0), vec![0; 160]),
        Id::TreeIncomplete => {
            for place in image.places(leaf) {
                image.device.write_at(place + 5000, &[0x5a; 16]).ok()?;
            }
        }
        _ => return None,
    }
    Some(image.into())
}

fn plant_roots(id: Id, bases: &Bases) -> Option<Planted> {
    let mut image = bases.main.snapshot();
    let root_ref = of_type(KeyType::ROOT_REF);
    match id {
        Id::RootMissing => drop(image.remove(TreeId::ROOT, root_item(TreeId::CSUM))),
        Id::RootItemInvalid => image.edit_as(TreeId::ROOT, root_item(SV), |item: &mut RootItem| item.level = 9),
        Id::RootBytesUsed => image.edit_as(TreeId::ROOT, root_item(TreeId::EXTENT), |item: &mut RootItem| {
            item.bytes_used = (item.bytes_used.get() + 16384).into();
        }),
        Id::RootShared => {
            let sv = image.find(TreeId::ROOT, root_item(SV));
            image.edit(TreeId::ROOT, root_item(SNAP), |item| item.data = sv.data.clone());
        }
        Id::RootLastSnapshot => image.edit_as(TreeId::ROOT, root_item(SNAP), |item: &mut RootItem| {
            item.last_snapshot = 0.into()
        }),
        Id::RootBackrefMissing => drop(image.remove(TreeId::ROOT, of_type(KeyType::ROOT_BACKREF))),
        Id::RootRefMissing => drop(image.remove(TreeId::ROOT, root_ref)),
        Id::RootRefMismatch => image.edit_as(TreeId::ROOT, root_ref, |item: &mut RootRef| {
            item.sequence = (item.sequence.get() + 1).into();
        }),
        Id::RootUnreferenced => {
            image.remove(TreeId::ROOT, root_ref);
            image.remove(TreeId::ROOT, of_type(KeyType::ROOT_BACKREF));
        }
        Id::RootRefDangling => drop(image.remove(TreeId::ROOT, root_item(SNAP))),
        Id::RootDefaultMissing => image.edit(
            TreeId::ROOT,
            |item| item.key.ty == KeyType::DIR_ITEM && item.data.ends_with(b"default"),
            |item| item.data[..8].copy_from_slice(&999u64.to_le_bytes()),
        ),
        Id::RootDirEntryMissing => {
            let entry = |item: &Item| item.key.ty == KeyType::DIR_INDEX && item.data.ends_with(b"snap");
            image.remove(TreeId::FS, entry);
        }
        Id::RootDirEntryStale => {
            let named = |item: &Item| item.data.ends_with(b"snap") && item.key.offset == SNAP.get();
            image.remove(TreeId::ROOT, |item| named(item) && item.key.ty == KeyType::ROOT_REF);
            let back = |item: &Item| item.key.ty == KeyType::ROOT_BACKREF && item.key.objectid == SNAP.object_id();
            image.remove(TreeId::ROOT, back);
        }
        Id::RootOrphanMissing => image.edit_as(TreeId::ROOT, root_item(SNAP), |item: &mut RootItem| {
            item.refs = 0.into()
        }),
        Id::RootDropBehind => {
            image.edit_as(TreeId::ROOT, root_item(SNAP), |item: &mut RootItem| {
                item.refs = 0.into()
            });
            // Its first leaf is recorded as another tree's.
            let first = image.blocks(SNAP, 0)[0];
            let is_it = |item: &Item| item.key.objectid.get() == first && item.key.ty == KeyType::METADATA_ITEM;
            let name = SNAP.get().to_le_bytes();
            image.edit(TreeId::EXTENT, is_it, |item| {
                let at = item.data.windows(8).position(|bytes| bytes == name);
                item.data[at.expect("an inline reference")] ^= 0x80;
            });
        }
        Id::UuidMissing => drop(image.remove(TreeId::UUID, |item| item.data == SNAP.get().to_le_bytes())),
        Id::UuidStale => image.edit(
            TreeId::UUID,
            |item| item.data == SNAP.get().to_le_bytes(),
            |item| item.data = 999u64.to_le_bytes().to_vec(),
        ),
        _ => return None,
    }
    assert_ne!(image.superblock().incompat_flags.get() & incompat::NO_HOLES, 0);
    Some(image.into())
}
