//! Where the live blocks of a sound volume lie: what damage is aimed at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use btrfs_format::block::{HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, KeyPtr};
use btrfs_format::superblock::{CSUM_FIELD_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_format::{ChecksumType, Key, KeyType, Superblock, view};
use cowshed_device::{BlockDevice, MemDevice};
use zerocopy::FromBytes;

/// A place on the devices: index of the device, and offset.
pub type Place = (usize, u64);

/// A tree block in use.
#[derive(Clone, Debug)]
pub struct Block {
    pub addr: u64,
    pub generation: u64,
    pub level: u8,
    pub owner: u64,
    pub copies: Vec<Place>,
}

/// A chunk whose stripes are all copies of each other.
#[derive(Clone, Debug)]
pub struct MirroredChunk {
    pub start: u64,
    pub len: u64,
    pub copies: Vec<Place>,
}

/// What is where on a volume.
#[derive(Clone, Debug)]
pub struct Layout {
    pub sb: Superblock,
    pub csum_type: ChecksumType,
    pub nodesize: usize,
    pub blocks: Vec<Block>,
    pub chunks: Vec<MirroredChunk>,
}

/// Items of a leaf, as far as they lie within it.
pub fn items_of(bytes: &[u8]) -> Vec<(Key, Vec<u8>)> {
    let mut out = Vec::new();
    for slot in 0..count_of(bytes) {
        let Some(head) = bytes.get(HEADER_BYTES + slot * ITEM_HEADER_BYTES..) else {
            break;
        };
        let Ok((head, _)) = ItemHeader::read_from_prefix(head) else {
            break;
        };
        let start = HEADER_BYTES + head.offset.get() as usize;
        if let Some(data) = bytes.get(start..start + head.size.get() as usize) {
            out.push((head.key.into(), data.to_vec()));
        }
    }
    out
}

/// Child pointers of a node.
pub fn pointers_of(bytes: &[u8]) -> Vec<KeyPtr> {
    let starts = (0..count_of(bytes)).map(|slot| HEADER_BYTES + slot * KEY_PTR_BYTES);
    starts
        .map_while(|at| KeyPtr::read_from_prefix(bytes.get(at..)?).ok().map(|(ptr, _)| ptr))
        .collect()
}

/// What the header says, cut to what a block can hold.
pub fn count_of(bytes: &[u8]) -> usize {
    header_of(bytes).nritems.get().min(4000) as usize
}

pub fn header_of(bytes: &[u8]) -> Header {
    Header::read_from_prefix(bytes).expect("a block has a header").0
}

impl Layout {
    /// Reads a sound volume.
    pub fn of(devices: &[MemDevice]) -> Layout {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        devices[0].read_at(SUPERBLOCK_OFFSETS[0], &mut bytes).expect("a device");
        let sb = Superblock::verify(&bytes, Some(SUPERBLOCK_OFFSETS[0])).expect("a sound superblock");
        let csum_type = ChecksumType::from_raw(sb.csum_type.get()).expect("a known checksum");
        let mut layout = Layout {
            sb,
            csum_type,
            nodesize: sb.nodesize.get() as usize,
            blocks: Vec::new(),
            chunks: Vec::new(),
        };
        let found = layout.scan(devices);
        layout.walk(devices, &found);
        layout
    }

    /// Everything that looks like a block of this volume, by address and generation.
    fn scan(&self, devices: &[MemDevice]) -> BTreeMap<(u64, u64), Block> {
        let mut found: BTreeMap<(u64, u64), Block> = BTreeMap::new();
        let mut bytes = vec![0; self.nodesize];
        for (index, device) in devices.iter().enumerate() {
            for offset in (1 << 20..device.size_bytes() - self.nodesize as u64).step_by(4096) {
                let mut head = [0; HEADER_BYTES];
                device.read_at(offset, &mut head).expect("a device");
                let header = header_of(&head);
                if header.fsid != self.sb.metadata_fsid() || header.bytenr == 0 {
                    continue;
                }
                device.read_at(offset, &mut bytes).expect("a device");
                let sum = self.csum_type.compute(&bytes[CSUM_FIELD_BYTES..]);
                if sum != header.csum {
                    continue;
                }
                let key = (header.bytenr.get(), header.generation.get());
                let block = found.entry(key).or_insert_with(|| Block {
                    addr: key.0,
                    generation: key.1,
                    level: header.level,
                    owner: header.owner.get(),
                    copies: Vec::new(),
                });
                block.copies.push((index, offset));
            }
        }
        found
    }

    fn walk(&mut self, devices: &[MemDevice], found: &BTreeMap<(u64, u64), Block>) {
        let sb = &self.sb;
        let mut todo = vec![
            (sb.root.get(), sb.generation.get()),
            (sb.chunk_root.get(), sb.chunk_root_generation.get()),
        ];
        if sb.log_root.get() != 0 {
            todo.push((sb.log_root.get(), sb.generation.get() + 1));
        }
        let mut seen = BTreeSet::new();
        let mut bytes = vec![0; self.nodesize];
        while let Some(key) = todo.pop() {
            let Some(block) = found.get(&key).filter(|_| seen.insert(key)) else {
                continue;
            };
            self.blocks.push(block.clone());
            let (device, offset) = block.copies[0];
            devices[device].read_at(offset, &mut bytes).expect("a device");
            if block.level > 0 {
                let children = pointers_of(&bytes);
                todo.extend(children.iter().map(|p| (p.blockptr.get(), p.generation.get())));
                continue;
            }
            for (key, data) in items_of(&bytes) {
                if key.ty == KeyType::ROOT_ITEM
                    && let Some(root) = view::root_item(&data)
                {
                    todo.push((root.bytenr.get(), root.generation.get()));
                }
                if key.ty == KeyType::CHUNK_ITEM {
                    self.add_chunk(key.offset, &data);
                }
            }
        }
    }

    fn add_chunk(&mut self, start: u64, data: &[u8]) {
        let Some((head, stripes)) = view::chunk(data) else {
            return;
        };
        // Single, DUP and RAID1: each stripe holds all of the chunk.
        let striped = (1 << 3) | (1 << 6) | (1 << 7) | (1 << 8);
        if head.ty.get() & striped != 0 {
            return;
        }
        let copies = stripes.iter().map(|s| (s.devid.get() as usize - 1, s.offset.get()));
        self.chunks.push(MirroredChunk {
            start,
            len: head.length.get(),
            copies: copies.collect(),
        });
    }

    /// Where the bytes at a logical address lie.
    pub fn places_of(&self, addr: u64) -> Vec<Place> {
        let holds = |c: &&MirroredChunk| addr >= c.start && addr - c.start < c.len;
        let Some(chunk) = self.chunks.iter().find(holds) else {
            return Vec::new();
        };
        let within = addr - chunk.start;
        chunk.copies.iter().map(|(device, at)| (*device, at + within)).collect()
    }

    /// Reads a block from its first copy.
    pub fn read(&self, devices: &[Arc<MemDevice>], block: &Block) -> Vec<u8> {
        let mut bytes = vec![0; self.nodesize];
        let (device, offset) = block.copies[0];
        devices[device].read_at(offset, &mut bytes).expect("a device");
        bytes
    }

    /// Gives a block its right checksum.
    pub fn seal(&self, bytes: &mut [u8]) {
        let sum = self.csum_type.compute(&bytes[CSUM_FIELD_BYTES..]);
        bytes[..CSUM_FIELD_BYTES].copy_from_slice(&sum);
    }
}
