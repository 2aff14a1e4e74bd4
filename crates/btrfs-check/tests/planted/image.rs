//! A volume's image in memory that can be edited block by block, checksums set right again.

use std::sync::Arc;

use btrfs_format::block::{HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, KeyPtr};
use btrfs_format::items::RootItem;
use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_format::view::{chunk, system_chunks};
use btrfs_format::{ChecksumType, Key, KeyType, Superblock, TreeId, U32};
use cowshed_device::{BlockDevice, MemDevice};
use zerocopy::{FromBytes, IntoBytes};

#[derive(Clone, Debug)]
pub struct Item {
    pub key: Key,
    pub data: Vec<u8>,
}

/// Start, length and the offset of each copy on the device.
#[derive(Clone, Debug)]
pub struct Mapped {
    pub start: u64,
    pub len: u64,
    pub ty: u64,
    pub offsets: Vec<u64>,
}

/// A volume on one device, all chunks single or dup.
pub struct Image {
    pub device: MemDevice,
    pub chunks: Vec<Mapped>,
}

/// A block on the way to a leaf, and the slot taken there.
type Path = Vec<(u64, usize)>;

impl Image {
    pub fn new(device: MemDevice) -> Self {
        let mut image = Self {
            device,
            chunks: Vec::new(),
        };
        let sb = image.superblock();
        let array = &sb.sys_chunk_array[..sb.sys_chunk_array_size.get() as usize];
        image.chunks = system_chunks(array)
            .map(|(key, head, stripes)| Mapped {
                start: key.offset,
                len: head.length.get(),
                ty: head.ty.get(),
                offsets: stripes.iter().map(|s| s.offset.get()).collect(),
            })
            .collect();
        let items = image.items(TreeId::CHUNK);
        image.chunks = items
            .iter()
            .filter(|item| item.key.ty == KeyType::CHUNK_ITEM)
            .map(|item| {
                let (head, stripes) = chunk(&item.data).expect("a sound chunk");
                Mapped {
                    start: item.key.offset,
                    len: head.length.get(),
                    ty: head.ty.get(),
                    offsets: stripes.iter().map(|s| s.offset.get()).collect(),
                }
            })
            .collect();
        image
    }

    pub fn snapshot(&self) -> Self {
        Self {
            device: self.device.snapshot(),
            chunks: self.chunks.clone(),
        }
    }

    pub fn superblock(&self) -> Superblock {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        self.device
            .read_at(SUPERBLOCK_OFFSETS[0], &mut bytes)
            .expect("a superblock");
        Superblock::read_from_bytes(&bytes).expect("a superblock")
    }
    fn csum(&self) -> ChecksumType {
        ChecksumType::from_raw(self.superblock().csum_type.get()).expect("a known type")
    }
    pub fn nodesize(&self) -> usize {
        self.superblock().nodesize.get() as usize
    }

    /// Edits the superblock in all its copies.
    pub fn edit_super(&mut self, edit: impl Fn(&mut Superblock)) {
        self.edit_super_copies(&[0, 1, 2], edit);
    }
    pub fn edit_super_copies(&mut self, copies: &[usize], edit: impl Fn(&mut Superblock)) {
        let ty = self.csum();
        for &copy in copies {
            let offset = SUPERBLOCK_OFFSETS[copy];
            if offset + SUPERBLOCK_BYTES as u64 > self.device.size_bytes() {
                continue;
            }
            let mut sb = self.superblock();
            edit(&mut sb);
            if copy > 0 {
                sb.bytenr = offset.into();
            }
            sb.seal(ty);
            self.device.write_at(offset, sb.as_bytes()).expect("written");
        }
    }

    /// Where the copies of an address lie.
    pub fn places(&self, addr: u64) -> Vec<u64> {
        let chunk = self
            .chunks
            .iter()
            .find(|c| addr >= c.start && addr < c.start + c.len)
            .expect("a mapped address");
        chunk
            .offsets
            .iter()
            .map(|offset| offset + (addr - chunk.start))
            .collect()
    }
    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.device.read_at(self.places(addr)[0], &mut bytes).expect("read");
        bytes
    }
    pub fn block(&self, addr: u64) -> Vec<u8> {
        self.read(addr, self.nodesize())
    }
    /// Writes all copies of a block, its checksum set.
    pub fn put_block(&mut self, addr: u64, bytes: &[u8]) {
        let places = self.places(addr);
        self.put_block_at(&places, bytes);
    }
    pub fn put_block_at(&mut self, places: &[u64], bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let sum = self.csum().compute(&bytes[32..]);
        bytes[..32].copy_from_slice(&sum);
        for &place in places {
            self.device.write_at(place, &bytes).expect("written");
        }
    }

    fn header(bytes: &[u8]) -> Header {
        Header::read_from_prefix(bytes).expect("a header").0
    }
    fn ptrs(bytes: &[u8]) -> Vec<KeyPtr> {
        let count = Self::header(bytes).nritems.get() as usize;
        let (ptrs, _) = <[KeyPtr]>::ref_from_prefix_with_elems(&bytes[HEADER_BYTES..], count).expect("pointers");
        ptrs.to_vec()
    }
    pub fn leaf_items(bytes: &[u8]) -> Vec<Item> {
        let count = Self::header(bytes).nritems.get() as usize;
        let (heads, _) = <[ItemHeader]>::ref_from_prefix_with_elems(&bytes[HEADER_BYTES..], count).expect("items");
        heads
            .iter()
            .map(|head| {
                let start = HEADER_BYTES + head.offset.get() as usize;
                Item {
                    key: head.key.into(),
                    data: bytes[start..start + head.size.get() as usize].to_vec(),
                }
            })
            .collect()
    }

    /// Address and level of a tree's root.
    pub fn root(&self, tree: TreeId) -> (u64, u8) {
        let sb = self.superblock();
        match tree {
            TreeId::ROOT => (sb.root.get(), sb.root_level),
            TreeId::CHUNK => (sb.chunk_root.get(), sb.chunk_root_level),
            _ => {
                let item = self
                    .items(TreeId::ROOT)
                    .into_iter()
                    .find(|item| item.key.objectid == tree.object_id() && item.key.ty == KeyType::ROOT_ITEM)
                    .unwrap_or_else(|| panic!("tree {tree} has a root"));
                let root = RootItem::read_from_prefix(&item.data).expect("a root item").0;
                (root.bytenr.get(), root.level)
            }
        }
    }

    /// The ways to all blocks of one level, in key order.
    pub fn paths(&self, tree: TreeId, level: u8) -> Vec<Path> {
        let (addr, top) = self.root(tree);
        assert!(level <= top, "tree {tree} has no level {level}");
        let mut paths: Vec<Path> = vec![vec![(addr, 0)]];
        for _ in level..top {
            paths = paths
                .into_iter()
                .flat_map(|path| {
                    let (addr, _) = *path.last().expect("a block");
                    let ptrs = Self::ptrs(&self.block(addr));
                    ptrs.into_iter().enumerate().map(move |(slot, ptr)| {
                        let mut path = path.clone();
                        path.last_mut().expect("a block").1 = slot;
                        path.push((ptr.blockptr.get(), 0));
                        path
                    })
                })
                .collect();
        }
        paths
    }
    /// The addresses of all blocks of one level, in key order.
    pub fn blocks(&self, tree: TreeId, level: u8) -> Vec<u64> {
        self.paths(tree, level)
            .into_iter()
            .map(|path| path.last().expect("a block").0)
            .collect()
    }
    pub fn items(&self, tree: TreeId) -> Vec<Item> {
        self.blocks(tree, 0)
            .into_iter()
            .flat_map(|addr| Self::leaf_items(&self.block(addr)))
            .collect()
    }
    pub fn find(&self, tree: TreeId, wanted: impl Fn(&Item) -> bool) -> Item {
        self.items(tree).into_iter().find(wanted).expect("such an item")
    }

    /// Shows the leaves in order until `edit` says that it changed one, which is then packed and
    /// written.
    pub fn edit_leaf(&mut self, tree: TreeId, mut edit: impl FnMut(&mut Vec<Item>) -> bool) {
        for path in self.paths(tree, 0) {
            let (addr, _) = *path.last().expect("a leaf");
            let bytes = self.block(addr);
            let mut items = Self::leaf_items(&bytes);
            let first = items.first().map(|item| item.key);
            if !edit(&mut items) {
                continue;
            }
            let bytes = Self::pack(&bytes, &items);
            self.put_block(addr, &bytes);
            if items.first().map(|item| item.key) != first {
                self.fix_parents(&path, items[0].key);
            }
            return;
        }
        panic!("tree {tree} has nothing to edit");
    }

    fn fix_parents(&mut self, path: &Path, key: Key) {
        for &(addr, slot) in path.iter().rev().skip(1) {
            let mut bytes = self.block(addr);
            let at = HEADER_BYTES + slot * KEY_PTR_BYTES;
            bytes[at..at + 17].copy_from_slice(btrfs_format::DiskKey::from(key).as_bytes());
            self.put_block(addr, &bytes);
            if slot > 0 {
                break;
            }
        }
    }

    fn pack(bytes: &[u8], items: &[Item]) -> Vec<u8> {
        let mut out = vec![0; bytes.len()];
        out[..HEADER_BYTES].copy_from_slice(&bytes[..HEADER_BYTES]);
        let (header, _) = Header::mut_from_prefix(&mut out).expect("a header");
        header.nritems = U32::new(items.len() as u32);
        let mut end = bytes.len();
        for (slot, item) in items.iter().enumerate() {
            let start = end - item.data.len();
            out[start..end].copy_from_slice(&item.data);
            let head = ItemHeader {
                key: item.key.into(),
                offset: U32::new((start - HEADER_BYTES) as u32),
                size: U32::new(item.data.len() as u32),
            };
            let at = HEADER_BYTES + slot * ITEM_HEADER_BYTES;
            assert!(at + ITEM_HEADER_BYTES <= start, "the leaf is too full for this edit");
            out[at..at + ITEM_HEADER_BYTES].copy_from_slice(head.as_bytes());
            end = start;
        }
        out
    }

    /// Edits the first item that `wanted` accepts.
    pub fn edit(&mut self, tree: TreeId, wanted: impl Fn(&Item) -> bool, edit: impl Fn(&mut Item)) {
        self.edit_leaf(tree, |items| match items.iter_mut().find(|item| wanted(item)) {
            Some(item) => {
                edit(item);
                true
            }
            None => false,
        });
    }
    /// Edits the head of an item as the structure `T`.
    pub fn edit_as<T>(&mut self, tree: TreeId, wanted: impl Fn(&Item) -> bool, edit: impl Fn(&mut T))
    where
        T: FromBytes + IntoBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
    {
        self.edit(tree, wanted, |item| {
            edit(T::mut_from_prefix(&mut item.data).expect("long enough").0);
        });
    }
    pub fn remove(&mut self, tree: TreeId, wanted: impl Fn(&Item) -> bool) -> Item {
        let mut removed = None;
        self.edit_leaf(tree, |items| {
            if let Some(slot) = items.iter().position(&wanted) {
                removed = Some(items.remove(slot));
            }
            removed.is_some()
        });
        removed.expect("such an item")
    }
    /// Puts an item where it belongs.
    pub fn insert(&mut self, tree: TreeId, key: Key, data: Vec<u8>) {
        let mut item = Some(Item { key, data });
        let paths = self.paths(tree, 0);
        let last = paths.len() - 1;
        let mut number = 0;
        self.edit_leaf(tree, |items| {
            let here = number == last || items.last().is_some_and(|item| item.key > key);
            number += 1;
            if here {
                items.push(item.take().expect("inserted once"));
                items.sort_by_key(|item| item.key);
            }
            here
        });
    }

    /// Edits the bytes of the `number`th block of a level.
    pub fn edit_block(&mut self, tree: TreeId, level: u8, number: usize, edit: impl Fn(&mut [u8])) {
        let addr = self.blocks(tree, level)[number];
        let mut bytes = self.block(addr);
        edit(&mut bytes);
        self.put_block(addr, &bytes);
    }
    pub fn edit_header(&mut self, tree: TreeId, level: u8, number: usize, edit: impl Fn(&mut Header)) {
        self.edit_block(tree, level, number, |bytes| {
            edit(Header::mut_from_prefix(bytes).expect("a header").0)
        });
    }

    pub fn into_devices(self) -> Vec<Arc<dyn BlockDevice>> {
        vec![Arc::new(self.device)]
    }
}
