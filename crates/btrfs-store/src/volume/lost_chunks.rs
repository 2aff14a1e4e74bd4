//! The chunk map of a volume whose chunk tree is damaged: from what is sound in all of its leaves,
//! also those of earlier commits. For reading alone.
//!
//! The superblock's array says where the chunks of the chunk tree are. Where none of its leaves is
//! there, all devices are read for them. Of items with one key the newest counts, and of chunks
//! that overlap. A chunk that is gone since may be among them: a tree block says itself where it
//! belongs, and data has checksums, so that nothing is read from its place in error.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use btrfs_format::block::Header;
use btrfs_format::items::DevItem;
use btrfs_format::salvage;
use btrfs_format::{DevId, Generation, KeyType, LogicalAddr, ObjectId, TreeBlock, TreeId, Uuid, view};
use cowshed_device::BlockDevice;

use super::chunk::{Chunk, ChunkMap};
use super::{BlockPtr, Volume};

/// Bytes of a device that are read at once.
const WINDOW_BYTES: usize = 4 << 20;
/// Chunks that are kept: of a gigabyte each, those of a pebibyte.
const CHUNKS_MAX: usize = 1 << 20;

/// Items of a chunk tree, each with the generation of its leaf.
#[derive(Debug, Default)]
pub(super) struct FoundChunks {
    chunks: BTreeMap<LogicalAddr, (Generation, Chunk)>,
    devices: BTreeMap<DevId, (Generation, DevItem)>,
    tree_uuid: (Generation, Uuid),
}

impl FoundChunks {
    fn add_leaf(&mut self, leaf: &TreeBlock, generation: Generation, sectorsize_bytes: u32) {
        if generation >= self.tree_uuid.0 {
            self.tree_uuid = (generation, leaf.header().chunk_tree_uuid);
        }
        for slot in 0..leaf.len() {
            let (key, data) = leaf.item(slot);
            match (key.objectid, key.ty) {
                (ObjectId::DEV_ITEMS, KeyType::DEV_ITEM) => {
                    let item = view::fixed::<DevItem>(data).filter(|item| item.devid.get() == key.offset);
                    if let Some(item) = item {
                        newest(&mut self.devices, DevId(key.offset), generation, *item);
                    }
                }
                (ObjectId::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM) => {
                    let logical = LogicalAddr(key.offset);
                    let chunk = view::chunk(data)
                        .and_then(|(head, stripes)| Chunk::from_item(logical, head, stripes, sectorsize_bytes).ok());
                    if let Some(chunk) = chunk {
                        newest(&mut self.chunks, logical, generation, chunk);
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty() || self.devices.is_empty()
    }

    pub(super) fn tree_uuid(&self) -> Uuid {
        self.tree_uuid.1
    }

    pub(super) fn devices(&self) -> BTreeMap<DevId, DevItem> {
        let items = self.devices.iter();
        items.map(|(devid, (_, item))| (*devid, *item)).collect()
    }

    /// The newest chunks that `is_usable` and that do not overlap.
    pub(super) fn into_map(self, is_usable: impl Fn(&Chunk) -> bool) -> ChunkMap {
        let mut newest_first: Vec<_> = self.chunks.into_values().collect();
        newest_first.sort_by_key(|(generation, chunk)| (Reverse(*generation), chunk.logical()));
        let mut map = ChunkMap::default();
        for (generation, chunk) in newest_first.into_iter().filter(|(_, chunk)| is_usable(chunk)) {
            let logical = chunk.logical();
            if map.insert(chunk).is_err() {
                tracing::info!(%logical, %generation, "an older chunk is left out: newer ones are in its place");
            }
        }
        map
    }
}

fn newest<K: Ord, V>(all: &mut BTreeMap<K, (Generation, V)>, key: K, generation: Generation, value: V) {
    let is_known = all.get(&key);
    let is_newer = is_known.is_none_or(|(known, _)| *known < generation);
    if is_newer && (is_known.is_some() || all.len() < CHUNKS_MAX) {
        all.insert(key, (generation, value));
    }
}

impl Volume {
    /// What leaves of the chunk tree say, in the chunks that the map has; and where there is none,
    /// on all of the devices.
    pub(super) fn find_chunks(&self) -> FoundChunks {
        let mut found = FoundChunks::default();
        self.for_each_block(&mut |_, _| {}, &mut |header, bytes| {
            self.add_chunk_leaf(header, bytes, &mut found);
        });
        if found.is_empty() {
            tracing::warn!("no leaf of the chunk tree is where it should be: the devices are read for them");
            for device in self.members.iter().filter_map(|member| member.device.as_ref()) {
                self.scan_for_chunks(device, &mut found);
            }
        }
        found
    }

    fn add_chunk_leaf(&self, header: &Header, bytes: &[u8], found: &mut FoundChunks) {
        if TreeId::from(header.owner) != TreeId::CHUNK || header.level != 0 {
            return;
        }
        let ptr = BlockPtr {
            addr: header.bytenr.into(),
            generation: header.generation.into(),
            level: 0,
            first_key: None,
        };
        let expect = self.expect(&ptr, TreeId::CHUNK);
        let sectorsize_bytes = self.geometry.sectorsize_bytes;
        // What was not committed, or is of an earlier file system with the same uuid: all others
        // count more.
        let is_committed = ptr.generation <= self.superblock.read().generation.into();
        let generation = if is_committed { ptr.generation } else { Generation(0) };
        if let Ok(leaf) = TreeBlock::verify(bytes.to_vec(), &expect) {
            found.add_leaf(&leaf, generation, sectorsize_bytes);
            return;
        }
        // What a leaf without its checksum says may be wrong: it counts as little.
        let generation = match TreeBlock::has_checksum(bytes, &expect) {
            true => generation,
            false if self.options.rescue.ignore_meta_csums => Generation(0),
            false => return,
        };
        if let Some(left) = salvage::salvage(bytes, &expect) {
            found.add_leaf(&left.block, generation, sectorsize_bytes);
        }
    }

    /// Reads a whole device. Which logical address a place has is not known: blocks say theirs.
    fn scan_for_chunks(&self, device: &Arc<dyn BlockDevice>, found: &mut FoundChunks) {
        let nodesize = self.geometry.nodesize_bytes as usize;
        let step = self.geometry.sectorsize_bytes as usize;
        let mut window = vec![0; WINDOW_BYTES + nodesize.saturating_sub(step)];
        for at in (0..device.size_bytes()).step_by(WINDOW_BYTES) {
            let left = usize::try_from(device.size_bytes() - at).unwrap_or(usize::MAX);
            let len = left.min(window.len());
            self.read_from(device, at, &mut window[..len]);
            for bytes in (0..len)
                .step_by(step)
                .filter_map(|at| window[..len].get(at..at + nodesize))
            {
                if let Some(header) = self.header_of(bytes) {
                    self.add_chunk_leaf(header, bytes, found);
                }
            }
        }
    }

    /// What cannot be read is zeros.
    fn read_from(&self, device: &Arc<dyn BlockDevice>, at: u64, window: &mut [u8]) {
        if device.read_at(at, window).is_ok() {
            return;
        }
        let step = self.geometry.nodesize_bytes as usize;
        for (index, part) in window.chunks_mut(step).enumerate() {
            if device.read_at(at + (index * step) as u64, part).is_err() {
                part.fill(0);
            }
        }
    }
}
