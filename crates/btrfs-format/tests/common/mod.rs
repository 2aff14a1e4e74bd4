//! Walks a volume's devices through the chunk map and verifies every tree block. For tests alone:
//! no mirrors, no repair.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use btrfs_format::block::BlockExpect;
use btrfs_format::features::block_group;
use btrfs_format::items::{ChunkHead, STRIPE_LEN_BYTES, Stripe};
use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, Superblock, TreeBlock, TreeId, view};

pub struct Volume {
    pub superblock: Superblock,
    devices: BTreeMap<u64, File>,
    chunks: BTreeMap<u64, (ChunkHead, Vec<Stripe>)>,
}

/// What a walk found.
#[derive(Default)]
pub struct Found {
    pub blocks: Vec<TreeBlock>,
    /// Items by type.
    pub items: BTreeMap<KeyType, usize>,
}

impl Volume {
    /// Opens all devices of one volume and verifies their superblocks, copies included.
    pub fn open(paths: &[&Path]) -> Self {
        let mut devices = BTreeMap::new();
        let mut newest: Option<Superblock> = None;
        for path in paths {
            let file = File::open(path).unwrap();
            let len = file.metadata().unwrap().len();
            for offset in SUPERBLOCK_OFFSETS {
                if offset + SUPERBLOCK_BYTES as u64 > len {
                    continue;
                }
                let mut bytes = [0; SUPERBLOCK_BYTES];
                file.read_exact_at(&mut bytes, offset).unwrap();
                let sb = Superblock::verify(&bytes, Some(offset)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
                if newest.as_ref().is_none_or(|n| n.generation.get() < sb.generation.get()) {
                    newest = Some(sb);
                }
                devices
                    .entry(sb.dev_item.devid.get())
                    .or_insert_with(|| file.try_clone().unwrap());
            }
        }
        let superblock = newest.expect("a superblock");
        let mut volume = Self {
            superblock,
            devices,
            chunks: BTreeMap::new(),
        };
        let system: Vec<_> = view::system_chunks(superblock.system_chunk_bytes())
            .map(|(key, head, stripes)| (key.offset, (*head, stripes.to_vec())))
            .collect();
        assert!(!system.is_empty());
        volume.chunks.extend(system);
        let mut found = Found::default();
        volume.walk_chunk_tree(&mut found);
        for block in &found.blocks {
            for slot in 0..block.item_headers().len() {
                let (key, data) = block.item(slot);
                if key.ty == KeyType::CHUNK_ITEM {
                    let (head, stripes) = view::chunk(data).unwrap();
                    volume.chunks.insert(key.offset, (*head, stripes.to_vec()));
                }
            }
        }
        volume
    }

    fn device_and_offset(&self, addr: u64) -> (u64, u64) {
        let (start, (head, stripes)) = self.chunks.range(..=addr).next_back().expect("a chunk");
        let delta = addr - start;
        assert!(delta < head.length.get(), "address {addr} lies in no chunk");
        let stripe_nr = delta / STRIPE_LEN_BYTES;
        let width = stripes.len() as u64;
        let (index, row) = match head.ty.get() & block_group::PROFILE_MASK {
            block_group::RAID0 => (stripe_nr % width, Some(stripe_nr / width)),
            block_group::RAID10 => {
                let pairs = width / 2;
                (stripe_nr % pairs * 2, Some(stripe_nr / pairs))
            }
            block_group::RAID5 | block_group::RAID6 => panic!("the tests make no volumes with parity"),
            _ => (0, None),
        };
        let within = row.map_or(delta, |row| row * STRIPE_LEN_BYTES + delta % STRIPE_LEN_BYTES);
        let stripe = &stripes[index as usize];
        (stripe.devid.get(), stripe.offset.get() + within)
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let (devid, offset) = self.device_and_offset(addr);
        let mut bytes = vec![0; len];
        self.devices[&devid].read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    pub fn expect(&self, addr: u64) -> BlockExpect {
        BlockExpect {
            addr: LogicalAddr(addr),
            fsid: self.superblock.metadata_fsid(),
            csum_type: self.superblock.checksum_type().unwrap(),
            sectorsize_bytes: self.superblock.sectorsize.get(),
            level: None,
            generation: None,
            first_key: None,
            tree: None,
        }
    }

    /// Verifies a tree from its root downwards.
    pub fn walk(&self, found: &mut Found, expect: &BlockExpect) {
        let bytes = self.read(expect.addr.get(), self.superblock.nodesize.get() as usize);
        let block = TreeBlock::verify(bytes, expect).unwrap_or_else(|e| panic!("{e}"));
        for slot in 0..block.key_ptrs().len() {
            let (addr, generation) = block.child(slot);
            let child = BlockExpect {
                addr,
                level: Some(block.level() - 1),
                generation: Some(generation),
                first_key: Some(block.key(slot)),
                ..expect.clone()
            };
            self.walk(found, &child);
        }
        for head in block.item_headers() {
            *found.items.entry(head.key.ty).or_default() += 1;
        }
        found.blocks.push(block);
    }

    fn walk_root(&self, found: &mut Found, addr: u64, level: u8, generation: u64, tree: TreeId) {
        let expect = BlockExpect {
            level: Some(level),
            generation: (generation != 0).then_some(Generation(generation)),
            tree: Some(tree),
            ..self.expect(addr)
        };
        self.walk(found, &expect);
    }

    fn walk_chunk_tree(&self, found: &mut Found) {
        let sb = &self.superblock;
        self.walk_root(
            found,
            sb.chunk_root.get(),
            sb.chunk_root_level,
            sb.chunk_root_generation.get(),
            TreeId::CHUNK,
        );
    }

    fn walk_roots_of(&self, found: &mut Found, roots: &[TreeBlock]) {
        for block in roots {
            for slot in 0..block.item_headers().len() {
                let (key, data) = block.item(slot);
                if key.ty == KeyType::ROOT_ITEM {
                    let root = view::root_item(data).unwrap();
                    let tree = key.objectid.tree_id();
                    self.walk_root(found, root.bytenr.get(), root.level, root.generation.get(), tree);
                }
            }
        }
    }

    /// Verifies every block that the superblock leads to, the log included.
    pub fn walk_all(&self) -> Found {
        let sb = &self.superblock;
        let mut found = Found::default();
        self.walk_chunk_tree(&mut found);
        let mut roots = Found::default();
        self.walk_root(
            &mut roots,
            sb.root.get(),
            sb.root_level,
            sb.generation.get(),
            TreeId::ROOT,
        );
        self.walk_roots_of(&mut found, &roots.blocks);
        if sb.log_root.get() != 0 {
            let mut logs = Found::default();
            self.walk_root(&mut logs, sb.log_root.get(), sb.log_root_level, 0, TreeId::TREE_LOG);
            self.walk_roots_of(&mut found, &logs.blocks);
            found.absorb(logs);
        }
        found.absorb(roots);
        found
    }
}

impl Found {
    fn absorb(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
        for (ty, count) in other.items {
            *self.items.entry(ty).or_default() += count;
        }
    }

    /// True where an item of this type was verified.
    pub fn has(&self, ty: KeyType) -> bool {
        self.items.contains_key(&ty)
    }

    pub fn items_under(&self, key: Key) -> usize {
        self.blocks
            .iter()
            .filter(|b| b.item_headers().iter().any(|h| Key::from(h.key) == key))
            .count()
    }
}
