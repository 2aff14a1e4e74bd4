//! Lays out tree blocks: items or child pointers are pushed in key order, one pass, one buffer.
//!
//! What a builder is given is ours, so a wrong order or an overfull block is an assertion, not an
//! error. The result has no checksum yet: [`TreeBlock::seal`] verifies it and stores one.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "our own bytes: each push asserts that it fits a buffer whose offsets fit 32 bits"
)]

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::block::{
    HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, KeyPtr, LEVEL_MAX, TreeBlock,
    leaf_capacity_bytes, node_capacity_ptrs,
};
use crate::ids::Uuid;
use crate::ids::{Generation, LogicalAddr, TreeId};
use crate::key::Key;

/// What a block says about itself, besides its contents.
#[derive(Clone, Debug)]
pub struct HeaderFields {
    /// The uuid that tree blocks carry: [`crate::Superblock::metadata_fsid`].
    pub fsid: Uuid,
    /// The uuid of the chunk tree, the same in all blocks of a volume.
    pub chunk_tree_uuid: Uuid,
    /// The logical address at which the block will lie.
    pub addr: LogicalAddr,
    /// The transaction that writes the block.
    pub generation: Generation,
    /// The tree that the block belongs to.
    pub owner: TreeId,
    /// 0 for a leaf.
    pub level: u8,
    /// Usually [`crate::features::header_flags::CURRENT`].
    pub flags: u64,
}

/// Writes the header into the head of `bytes`; the checksum stays zero.
fn put_header(bytes: &mut [u8], fields: &HeaderFields, nritems: u32) {
    let mut header = Header::new_zeroed();
    header.fsid = fields.fsid;
    header.bytenr = fields.addr.into();
    header.flags = U64::new(fields.flags);
    header.chunk_tree_uuid = fields.chunk_tree_uuid;
    header.generation = fields.generation.into();
    header.owner = fields.owner.into();
    header.nritems = U32::new(nritems);
    header.level = fields.level;
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// Builds one leaf.
#[derive(Clone, Debug)]
pub struct LeafBuilder {
    bytes: Vec<u8>,
    /// Where the next item header goes.
    heads_end: usize,
    /// Where the data of the last item starts; the next item's data ends here.
    data_start: usize,
    count: u32,
    last_key: Option<Key>,
}

impl LeafBuilder {
    /// An empty leaf of a block of that many bytes.
    pub fn new(nodesize_bytes: usize) -> Self {
        Self::over(vec![0; nodesize_bytes])
    }

    /// Builds in the memory of an earlier block.
    pub fn in_buffer(mut bytes: Vec<u8>) -> Self {
        bytes.fill(0);
        Self::over(bytes)
    }

    fn over(bytes: Vec<u8>) -> Self {
        assert!(bytes.len() > HEADER_BYTES, "a leaf holds at least its header");
        Self {
            heads_end: HEADER_BYTES,
            data_start: bytes.len(),
            bytes,
            count: 0,
            last_key: None,
        }
    }

    /// Bytes left for items with their headers.
    pub fn free_bytes(&self) -> usize {
        self.data_start - self.heads_end
    }
    /// True where an item of `len` bytes of data still fits.
    pub fn fits(&self, len: usize) -> bool {
        len.saturating_add(ITEM_HEADER_BYTES) <= self.free_bytes()
    }
    /// Bytes taken by items with their headers.
    pub fn used_bytes(&self) -> usize {
        leaf_capacity_bytes(self.bytes.len()) - self.free_bytes()
    }
    /// Number of items.
    pub fn len(&self) -> usize {
        self.count as usize
    }
    /// True before the first item.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// The last key pushed.
    pub fn last_key(&self) -> Option<Key> {
        self.last_key
    }

    /// Appends an item whose data is the concatenation of `parts`.
    ///
    /// # Panics
    /// Where the key is not above the last one, or the item does not fit.
    pub fn push(&mut self, key: Key, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut at = self.push_space(key, len);
        for part in parts {
            self.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// Appends an item of `len` zero bytes and gives them to be filled.
    ///
    /// # Panics
    /// As [`LeafBuilder::push`].
    pub fn push_zeroed(&mut self, key: Key, len: usize) -> &mut [u8] {
        let at = self.push_space(key, len);
        &mut self.bytes[at..at + len]
    }

    fn push_space(&mut self, key: Key, len: usize) -> usize {
        assert!(self.fits(len), "an item of {len} bytes does not fit the leaf");
        assert!(
            self.last_key.is_none_or(|last| last < key),
            "items are pushed in key order"
        );
        self.data_start -= len;
        self.put_head(key, self.data_start - HEADER_BYTES, len);
        self.data_start
    }

    fn put_head(&mut self, key: Key, offset: usize, len: usize) {
        let head = ItemHeader {
            key: key.into(),
            offset: U32::new(offset as u32),
            size: U32::new(len as u32),
        };
        self.bytes[self.heads_end..self.heads_end + ITEM_HEADER_BYTES].copy_from_slice(head.as_bytes());
        self.heads_end += ITEM_HEADER_BYTES;
        self.count += 1;
        self.last_key = Some(key);
    }

    /// Bytes that `slots` of a leaf take, with their headers.
    pub fn run_bytes(leaf: &TreeBlock, slots: Range<usize>) -> usize {
        let heads = &leaf.item_headers()[slots];
        let (Some(first), Some(last)) = (heads.first(), heads.last()) else {
            return 0;
        };
        let data = first.offset.get() + first.size.get() - last.offset.get();
        data as usize + heads.len() * ITEM_HEADER_BYTES
    }

    /// Appends the items in `slots` of a verified leaf: their data lies together, so it is copied
    /// at once.
    ///
    /// # Panics
    /// Where the first key is not above the last one pushed, or [`LeafBuilder::run_bytes`] is above
    /// [`LeafBuilder::free_bytes`].
    pub fn push_run(&mut self, leaf: &TreeBlock, slots: Range<usize>) {
        assert!(
            Self::run_bytes(leaf, slots.clone()) <= self.free_bytes(),
            "a run does not fit the leaf"
        );
        let heads = &leaf.item_headers()[slots];
        let (Some(first), Some(last)) = (heads.first(), heads.last()) else {
            return;
        };
        assert!(
            self.last_key.is_none_or(|key| key < first.key.into()),
            "runs are pushed in key order"
        );
        let start = HEADER_BYTES + last.offset.get() as usize;
        let end = HEADER_BYTES + (first.offset.get() + first.size.get()) as usize;
        let to = self.data_start - (end - start);
        self.bytes[to..self.data_start].copy_from_slice(&leaf.bytes()[start..end]);
        let heads_end = self.heads_end + heads.len() * ITEM_HEADER_BYTES;
        let copies = &mut self.bytes[self.heads_end..heads_end];
        copies.copy_from_slice(heads.as_bytes());
        if to != start {
            let copies = <[ItemHeader]>::mut_from_bytes(copies).expect("as many bytes as the heads have");
            for head in copies {
                head.offset = U32::new((head.offset.get() as usize + to - start) as u32);
            }
        }
        self.heads_end = heads_end;
        self.count += heads.len() as u32;
        self.last_key = Some(last.key.into());
        self.data_start = to;
    }

    /// The finished block, without checksum.
    pub fn finish(mut self, header: &HeaderFields) -> Vec<u8> {
        assert_eq!(header.level, 0, "a leaf is level 0");
        put_header(&mut self.bytes, header, self.count);
        self.bytes
    }
}

/// Builds one node.
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    bytes: Vec<u8>,
    count: usize,
    last_key: Option<Key>,
}

impl NodeBuilder {
    /// An empty node of a block of that many bytes.
    pub fn new(nodesize_bytes: usize) -> Self {
        assert!(
            nodesize_bytes >= HEADER_BYTES + KEY_PTR_BYTES,
            "a node holds at least one pointer"
        );
        Self {
            bytes: vec![0; nodesize_bytes],
            count: 0,
            last_key: None,
        }
    }

    /// Number of pointers.
    pub fn len(&self) -> usize {
        self.count
    }
    /// True before the first child.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// True where no further child fits.
    pub fn is_full(&self) -> bool {
        self.count == node_capacity_ptrs(self.bytes.len())
    }
    /// The last key pushed.
    pub fn last_key(&self) -> Option<Key> {
        self.last_key
    }

    /// Appends a child.
    ///
    /// # Panics
    /// Where the key is not above the last one, or the node is full.
    pub fn push(&mut self, key: Key, child: LogicalAddr, generation: Generation) {
        assert!(!self.is_full(), "a pointer does not fit the node");
        assert!(
            self.last_key.is_none_or(|last| last < key),
            "pointers are pushed in key order"
        );
        let ptr = KeyPtr {
            key: key.into(),
            blockptr: child.into(),
            generation: generation.into(),
        };
        let at = HEADER_BYTES + self.count * KEY_PTR_BYTES;
        self.bytes[at..at + KEY_PTR_BYTES].copy_from_slice(ptr.as_bytes());
        self.count += 1;
        self.last_key = Some(key);
    }

    /// The finished block, without checksum.
    pub fn finish(mut self, header: &HeaderFields) -> Vec<u8> {
        assert!(
            (1..=LEVEL_MAX).contains(&header.level),
            "a node is of level 1 to {LEVEL_MAX}"
        );
        let count = u32::try_from(self.count).expect("a node's capacity fits 32 bits");
        put_header(&mut self.bytes, header, count);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockExpect;
    use crate::csum::ChecksumType;
    use crate::features::header_flags;
    use crate::ids::ObjectId;
    use crate::key::KeyType;

    const NODESIZE: usize = 4096;

    fn header(level: u8) -> HeaderFields {
        HeaderFields {
            fsid: [7; 16],
            chunk_tree_uuid: [9; 16],
            addr: LogicalAddr(1 << 20),
            generation: Generation(5),
            owner: TreeId::FS,
            level,
            flags: header_flags::CURRENT,
        }
    }
    fn expect(level: u8) -> BlockExpect {
        BlockExpect {
            addr: LogicalAddr(1 << 20),
            fsid: [7; 16],
            csum_type: ChecksumType::Crc32c,
            sectorsize_bytes: 4096,
            level: Some(level),
            generation: Some(Generation(5)),
            first_key: None,
            tree: None,
        }
    }
    /// Keys of a type that no verifier judges, so that any data will do.
    fn key(n: u64) -> Key {
        Key::new(ObjectId(n), KeyType::STRING_ITEM, 0)
    }

    #[test]
    fn full_leaf_reads_back_as_pushed() {
        let mut leaf = LeafBuilder::new(NODESIZE);
        let mut n = 0_usize;
        while leaf.fits(n % 50) {
            let data = vec![n as u8; n % 50];
            let (a, b) = data.split_at(data.len() / 3);
            leaf.push(key(n as u64), &[a, b]);
            n += 1;
        }
        let rest = leaf.free_bytes() - ITEM_HEADER_BYTES;
        leaf.push_zeroed(key(1000), rest).fill(3);
        assert_eq!(leaf.free_bytes(), 0);
        let block = TreeBlock::seal(leaf.finish(&header(0)), &expect(0)).unwrap();
        assert_eq!(block.len(), n + 1);
        assert_eq!(block.used_bytes(), leaf_capacity_bytes(NODESIZE));
        for slot in 0..n {
            assert_eq!(
                block.item(slot),
                (key(slot as u64), vec![slot as u8; slot % 50].as_slice())
            );
        }
        assert!(TreeBlock::verify(block.bytes(), &expect(0)).is_ok());
    }

    #[test]
    fn copied_runs_equal_pushed_items() {
        let mut source = LeafBuilder::new(NODESIZE);
        for n in 0..20_u64 {
            source.push(key(n * 10), &[&vec![n as u8; n as usize]]);
        }
        let source = TreeBlock::seal(source.finish(&header(0)), &expect(0)).unwrap();
        let mut leaf = LeafBuilder::new(NODESIZE);
        leaf.push_run(&source, 0..0);
        leaf.push_run(&source, 0..7);
        leaf.push(key(61), &[b"between"]);
        assert_eq!(
            LeafBuilder::run_bytes(&source, 8..20),
            (8..20).sum::<usize>() + 12 * ITEM_HEADER_BYTES
        );
        leaf.push_run(&source, 8..20);
        let block = TreeBlock::seal(leaf.finish(&header(0)), &expect(0)).unwrap();
        assert_eq!(block.len(), 20);
        for slot in 0..20 {
            if slot == 7 {
                assert_eq!(block.item(7), (key(61), b"between".as_slice()));
            } else {
                assert_eq!(block.item(slot), source.item(slot));
            }
        }
    }

    #[test]
    fn full_node_reads_back_as_pushed() {
        let mut node = NodeBuilder::new(NODESIZE);
        while !node.is_full() {
            let n = node.len() as u64;
            node.push(key(n), LogicalAddr((n + 1) << 16), Generation(n % 5));
        }
        assert_eq!(node.len(), node_capacity_ptrs(NODESIZE));
        let block = TreeBlock::seal(node.finish(&header(1)), &expect(1)).unwrap();
        assert_eq!(block.child(3), (LogicalAddr(4 << 16), Generation(3)));
        assert_eq!(block.child_slot(&key(17).next().unwrap()), 17);
    }

    #[test]
    #[should_panic(expected = "key order")]
    fn items_out_of_order_panic() {
        let mut leaf = LeafBuilder::new(NODESIZE);
        leaf.push(key(1), &[]);
        leaf.push(key(1), &[]);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn item_over_capacity_panics() {
        LeafBuilder::new(NODESIZE).push(key(1), &[&[0; NODESIZE]]);
    }
}
