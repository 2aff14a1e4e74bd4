//! Chunks that are made: their items, and what the superblock says of chunks and devices.
//!
//! A new chunk is usable in memory at once; its items wait in `undelivered` for the commit. The
//! superblock's view (`Delivered`) moves only when the items are handed to the commit, so that both
//! always tell the same. Chunks that go ([`Retirement`]) are handed over together with those that
//! come; their room is free when that commit is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use btrfs_format::features::block_group;
use btrfs_format::items::{ChunkHead, DevExtent, DevItem, STRIPE_LEN_BYTES, Stripe};
use btrfs_format::superblock::SYSTEM_CHUNK_ARRAY_BYTES;
use btrfs_format::{DevId, DiskKey, Key, KeyType, LogicalAddr, ObjectId, Superblock, TreeId, U16, U32, U64, Uuid};
use zerocopy::IntoBytes;

use super::group::Group;
use super::ledger::Pool;
use super::placement::{self, Device, Placement};
use super::profile::Profile;
use super::retire::{OldChunk, Retirement};
use crate::overlay::Edit;

/// A chunk whose items no commit has taken yet.
#[derive(Debug)]
pub(super) struct NewChunk {
    pub group: Arc<Group>,
    key: Key,
    item: Vec<u8>,
    dev_extents: Vec<(Key, DevExtent)>,
}

/// What one round of a commit is given: groups that come and go, the device items that follow from
/// that.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    pub come: Vec<Arc<Group>>,
    pub gone: Vec<Arc<Group>>,
    pub devices: Vec<DevItem>,
}

/// What the trees of the commit (and so its superblock) say.
#[derive(Debug)]
struct Delivered {
    system_array: Vec<u8>,
    device_used_bytes: BTreeMap<DevId, u64>,
}

#[derive(Debug)]
pub(super) struct Chunks {
    pub devices: Vec<Device>,
    device_items: Vec<DevItem>,
    /// DATA, METADATA, SYSTEM bits of new chunks, by pool.
    type_flags: [u64; 3],
    /// Profile bits of the existing block groups, by pool.
    profile_bits: [u64; 3],
    /// Where the next chunk starts in the logical address space.
    next_logical: u64,
    sector_bytes: u32,
    chunk_tree_uuid: Uuid,
    undelivered: Vec<NewChunk>,
    pub retirement: Retirement,
    /// Bytes of the superblock's array with all chunks that exist in memory.
    system_array_bytes: usize,
    delivered: Delivered,
    /// Chunks made, handed to a commit, and on disk with a superblock.
    pub made: u64,
    handed_over: u64,
    pub durable: u64,
}

/// What loading found.
pub(super) struct ChunksInit {
    pub devices: Vec<Device>,
    pub device_items: Vec<DevItem>,
    pub mixed: bool,
    pub profile_bits: [u64; 3],
    pub next_logical: u64,
    pub sector_bytes: u32,
    pub chunk_tree_uuid: Uuid,
    pub system_array: Vec<u8>,
}

impl Chunks {
    pub(crate) fn new(init: ChunksInit) -> Self {
        let data_flags = if init.mixed {
            block_group::DATA | block_group::METADATA
        } else {
            block_group::DATA
        };
        let used = init.devices.iter().map(|d| (d.devid, d.used_bytes)).collect();
        Self {
            devices: init.devices,
            device_items: init.device_items,
            type_flags: [data_flags, block_group::METADATA, block_group::SYSTEM],
            profile_bits: init.profile_bits,
            next_logical: init.next_logical,
            sector_bytes: init.sector_bytes,
            chunk_tree_uuid: init.chunk_tree_uuid,
            undelivered: Vec::new(),
            retirement: Retirement::default(),
            system_array_bytes: init.system_array.len(),
            delivered: Delivered {
                system_array: init.system_array,
                device_used_bytes: used,
            },
            made: 0,
            handed_over: 0,
            durable: 0,
        }
    }

    /// The profile of new chunks; `None` where we make no chunks of it.
    pub(crate) fn profile(&self, pool: Pool) -> Option<Profile> {
        let count = self.devices.iter().filter(|d| d.writable).count();
        let profile = Profile::for_new_chunk(self.profile_bits[pool as usize], count);
        (!profile.has_parity()).then_some(profile)
    }

    /// Where a new chunk would go; `None` where there is no room.
    pub(crate) fn place(&self, pool: Pool) -> Option<Placement> {
        let profile = self.profile(pool)?;
        let placement = placement::place(&self.devices, self.type_flags[pool as usize], profile)?;
        let array_bytes = self.system_array_bytes + array_entry_bytes(placement.stripes.len());
        (pool != Pool::System || array_bytes <= SYSTEM_CHUNK_ARRAY_BYTES).then_some(placement)
    }

    /// Bytes that new chunks could add to a pool, after `first` was made.
    pub(crate) fn addable_bytes(&self, pool: Pool, first: Option<&Placement>) -> u64 {
        let Some(profile) = self.profile(pool) else { return 0 };
        let type_flags = self.type_flags[pool as usize];
        match first {
            None => placement::addable_bytes(&self.devices, type_flags, profile),
            Some(first) => {
                let mut devices = self.devices.clone();
                placement::take(&mut devices, first);
                placement::addable_bytes(&devices, type_flags, profile)
            }
        }
    }

    /// Logical address, flags and chunk item of a chunk at this place.
    pub(crate) fn describe(&self, pool: Pool, placement: &Placement) -> (LogicalAddr, u64, Vec<u8>) {
        let flags = self.type_flags[pool as usize] | placement.profile.bit;
        let head = ChunkHead {
            length: U64::new(placement.chunk_bytes),
            owner: U64::new(TreeId::EXTENT.get()),
            stripe_len: U64::new(STRIPE_LEN_BYTES),
            ty: U64::new(flags),
            io_align: U32::new(STRIPE_LEN_BYTES as u32),
            io_width: U32::new(STRIPE_LEN_BYTES as u32),
            sector_size: U32::new(self.sector_bytes),
            num_stripes: U16::new(placement.stripes.len() as u16),
            sub_stripes: U16::new(placement.profile.sub_stripes),
        };
        let mut item = head.as_bytes().to_vec();
        for &(device, offset) in &placement.stripes {
            let stripe = Stripe {
                devid: self.devices[device].devid.into(),
                offset: U64::new(offset),
                dev_uuid: self.devices[device].uuid,
            };
            item.extend_from_slice(stripe.as_bytes());
        }
        (LogicalAddr(self.next_logical), flags, item)
    }

    /// The chunk described exists from now on.
    pub(crate) fn commit_to(&mut self, pool: Pool, placement: &Placement, item: Vec<u8>, group: Arc<Group>) {
        placement::take(&mut self.devices, placement);
        let logical = self.next_logical;
        let dev_extents = placement
            .stripes
            .iter()
            .map(|&(device, offset)| {
                let extent = DevExtent {
                    chunk_tree: U64::new(TreeId::CHUNK.get()),
                    chunk_objectid: U64::new(ObjectId::FIRST_CHUNK_TREE.get()),
                    chunk_offset: U64::new(logical),
                    length: U64::new(placement.stripe_bytes),
                    chunk_tree_uuid: self.chunk_tree_uuid,
                };
                let devid = self.devices[device].devid;
                (Key::new(ObjectId(devid.get()), KeyType::DEV_EXTENT, offset), extent)
            })
            .collect();
        if pool == Pool::System {
            self.system_array_bytes += array_entry_bytes(placement.stripes.len());
        }
        self.profile_bits[pool as usize] |= placement.profile.bit;
        self.next_logical += placement.chunk_bytes;
        self.undelivered.push(NewChunk {
            group,
            key: Key::new(ObjectId::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, logical),
            item,
            dev_extents,
        });
        self.made += 1;
    }

    pub(crate) fn has_undelivered(&self) -> bool {
        !self.undelivered.is_empty() || !self.retirement.retired.is_empty()
    }

    /// The chunk and device items of what was made, and of what went, since the last call.
    pub(crate) fn deliver(&mut self, out: &mut Vec<(TreeId, Key, Edit)>) -> Delivery {
        let mut delivery = Delivery::default();
        let mut touched: BTreeMap<DevId, i64> = BTreeMap::new();
        for chunk in std::mem::take(&mut self.undelivered) {
            for (key, extent) in &chunk.dev_extents {
                out.push((TreeId::DEV, *key, Some(extent.as_bytes().into())));
                *touched.entry(DevId(key.objectid.get())).or_default() += extent.length.get().cast_signed();
            }
            if chunk.group.is_of(block_group::SYSTEM) {
                let array = &mut self.delivered.system_array;
                array.extend_from_slice(DiskKey::from(chunk.key).as_bytes());
                array.extend_from_slice(&chunk.item);
            }
            out.push((TreeId::CHUNK, chunk.key, Some(chunk.item.into())));
            delivery.come.push(chunk.group);
            self.handed_over += 1;
        }
        for old in std::mem::take(&mut self.retirement.retired) {
            for stripe in old.chunk.stripes() {
                let device = ObjectId(stripe.at.dev.get());
                out.push((
                    TreeId::DEV,
                    Key::new(device, KeyType::DEV_EXTENT, stripe.at.offset),
                    None,
                ));
                *touched.entry(stripe.at.dev).or_default() -= old.chunk.stripe_bytes().cast_signed();
            }
            let logical = old.chunk.logical().get();
            let key = Key::new(ObjectId::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM, logical);
            out.push((TreeId::CHUNK, key, None));
            delivery.gone.push(old.group.clone());
            self.retirement.leaving.push(old);
        }
        for (devid, bytes) in touched {
            let used = self.delivered.device_used_bytes.entry(devid).or_default();
            *used = used
                .checked_add_signed(bytes)
                .expect("a device has what its chunks took of it");
            if let Some(item) = self.device_items.iter_mut().find(|i| i.devid.get() == devid.get()) {
                item.bytes_used = U64::new(*used);
                let key = Key::new(ObjectId::DEV_ITEMS, KeyType::DEV_ITEM, devid.get());
                out.push((TreeId::CHUNK, key, Some(item.as_bytes().into())));
                delivery.devices.push(*item);
            }
        }
        delivery
    }

    /// The superblock's array of system chunks and its device's bytes.
    pub(crate) fn fill_superblock(&self, sb: &mut Superblock) {
        let array = &self.delivered.system_array;
        sb.sys_chunk_array = [0; SYSTEM_CHUNK_ARRAY_BYTES];
        sb.sys_chunk_array[..array.len()].copy_from_slice(array);
        sb.sys_chunk_array_size = U32::new(array.len() as u32);
        let devid = DevId(sb.dev_item.devid.get());
        if let Some(&used) = self.delivered.device_used_bytes.get(&devid) {
            sb.dev_item.bytes_used = U64::new(used);
        }
    }

    /// A superblock went to disk. Gives the chunks that it does not know any more: from now on
    /// others may have their room.
    pub(crate) fn commit_done(&mut self) -> Vec<OldChunk> {
        self.durable = self.handed_over;
        let gone = self.retirement.commit_done();
        for old in &gone {
            placement::give_back(&mut self.devices, &old.chunk);
        }
        gone
    }

    /// The profile bits of the block groups that exist, by pool.
    pub(crate) fn note_existing(profile_bits: &mut [u64; 3], pool: Pool, flags: u64) {
        profile_bits[pool as usize] |= flags & block_group::PROFILE_MASK;
    }
}

/// Bytes of one chunk in the superblock's array.
fn array_entry_bytes(stripes: usize) -> usize {
    size_of::<DiskKey>() + size_of::<ChunkHead>() + stripes * size_of::<Stripe>()
}

/// The pool of a block group; `None` for a type that does not exist.
pub(super) fn pool_of(flags: u64) -> Option<Pool> {
    match flags & block_group::TYPE_MASK {
        block_group::DATA => Some(Pool::Data),
        block_group::METADATA => Some(Pool::Metadata),
        block_group::SYSTEM => Some(Pool::System),
        mixed if mixed == block_group::DATA | block_group::METADATA => Some(Pool::Data),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use btrfs_format::view;
    use zerocopy::FromZeros;

    use super::*;
    use crate::space::ranges::RangeSet;

    fn chunks(system_array: Vec<u8>) -> Chunks {
        let device = |devid| Device {
            devid: DevId(devid),
            uuid: [devid as u8; 16],
            total_bytes: 4 << 30,
            used_bytes: 0,
            writable: true,
            taken: RangeSet::default(),
        };
        let item = |devid| {
            let mut item = DevItem::new_zeroed();
            item.devid = U64::new(devid);
            item
        };
        Chunks::new(ChunksInit {
            devices: vec![device(1), device(2)],
            device_items: vec![item(1), item(2)],
            mixed: false,
            profile_bits: [0, 0, block_group::RAID1],
            next_logical: 1 << 30,
            sector_bytes: 4096,
            chunk_tree_uuid: [9; 16],
            system_array,
        })
    }

    #[test]
    fn system_chunks_end_with_the_superblocks_array() {
        let entry = array_entry_bytes(2);
        let room = chunks(vec![0; SYSTEM_CHUNK_ARRAY_BYTES - entry]);
        assert!(room.place(Pool::System).is_some());
        let full = chunks(vec![0; SYSTEM_CHUNK_ARRAY_BYTES - entry + 1]);
        assert!(full.place(Pool::System).is_none());
        assert!(full.place(Pool::Data).is_some(), "only system chunks lie in the array");
    }

    #[test]
    fn the_superblock_learns_of_a_chunk_with_its_items() {
        let mut chunks = chunks(Vec::new());
        let placement = chunks.place(Pool::System).unwrap();
        let (logical, flags, item) = chunks.describe(Pool::System, &placement);
        let shape = crate::space::disk_view::Shape {
            start: logical.get(),
            len_bytes: placement.chunk_bytes,
            sector_bytes: 4096,
        };
        let group = Arc::new(Group::newborn(shape, flags, Vec::new()));
        chunks.commit_to(Pool::System, &placement, item, group);
        let mut sb = Superblock::new_zeroed();
        sb.dev_item.devid = U64::new(2);
        chunks.fill_superblock(&mut sb);
        assert_eq!((sb.sys_chunk_array_size.get(), sb.dev_item.bytes_used.get()), (0, 0));

        let mut edits = Vec::new();
        let delivery = chunks.deliver(&mut edits);
        assert_eq!((delivery.come.len(), delivery.devices.len()), (1, 2));
        let trees: Vec<_> = edits.iter().map(|(tree, key, _)| (*tree, key.ty)).collect();
        let dev_extent = (TreeId::DEV, KeyType::DEV_EXTENT);
        let dev_item = (TreeId::CHUNK, KeyType::DEV_ITEM);
        let chunk_item = (TreeId::CHUNK, KeyType::CHUNK_ITEM);
        assert_eq!(trees, [dev_extent, dev_extent, chunk_item, dev_item, dev_item]);
        chunks.fill_superblock(&mut sb);
        assert_eq!(sb.dev_item.bytes_used.get(), 32 << 20);
        let array = &sb.sys_chunk_array[..sb.sys_chunk_array_size.get() as usize];
        let found: Vec<_> = view::system_chunks(array).collect();
        assert_eq!((found.len(), found[0].0.offset, found[0].2.len()), (1, 1 << 30, 2));
        assert!(chunks.durable < chunks.made);
        assert!(chunks.commit_done().is_empty());
        assert_eq!(chunks.durable, chunks.made);
    }
}
