//! A tree block as the checker reads it: bounds are certain, the rest is judged piece by piece so
//! that each fault gets its own id. The format's verifier has its say as well.

use std::sync::Arc;

use btrfs_format::block::{HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, KeyPtr, LEVEL_MAX};
use btrfs_format::features::header_flags;
use btrfs_format::{BlockExpect, Key, LogicalAddr, TreeBlock, TreeId};
use zerocopy::FromBytes;

use crate::finding::FindingId as Id;
use crate::util::{count, index};
use crate::volume::Volume;

/// Which trees may own a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Exactly(TreeId),
    /// Any subvolume: snapshots share blocks. Relocation leaves blocks of its own behind.
    Subvolume,
    /// Any tree that an interrupted balance has a copy of.
    Relocated,
}

/// What is known of a block before it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expect {
    pub(crate) tree: TreeId,
    pub(crate) addr: u64,
    pub(crate) level: u8,
    pub(crate) generation: u64,
    /// The first key, from the parent.
    pub(crate) first_key: Option<Key>,
    /// All keys are below this one.
    pub(crate) below: Option<Key>,
    pub(crate) owner: Owner,
    /// No block may be newer.
    pub(crate) generation_max: u64,
}

/// What is wrong with a block.
pub(crate) type Fault = (Id, String);

/// A block with certain bounds.
#[derive(Clone)]
pub(crate) struct Block {
    bytes: Arc<[u8]>,
    pub(crate) addr: u64,
    pub(crate) level: u8,
    pub(crate) generation: u64,
    pub(crate) owner: TreeId,
    count: usize,
    /// The format's verifier refuses an item: its message.
    pub(crate) refused: Option<String>,
}

impl Block {
    /// Judges `bytes`. With `thorough` the checksum and the format's verifier too.
    pub(crate) fn judge(volume: &Volume, bytes: Vec<u8>, expect: &Expect, thorough: bool) -> Result<Self, Fault> {
        let bytes: Arc<[u8]> = bytes.into();
        let mut refused = None;
        if thorough {
            let verify = BlockExpect {
                addr: LogicalAddr(expect.addr),
                fsid: volume.metadata_fsid,
                csum_type: volume.csum,
                sectorsize_bytes: volume.sb.sectorsize.get(),
                level: None,
                generation: None,
                first_key: None,
                tree: Some(expect.tree),
            };
            if let Err(corrupt) = TreeBlock::verify(Arc::clone(&bytes), &verify) {
                let sum = volume.csum.compute(bytes.get(32..).unwrap_or_default());
                let used = volume.csum.size_bytes();
                if sum.get(..used) != bytes.get(..used) {
                    return Err((Id::BlockCsum, corrupt.kind.to_string()));
                }
                refused = Some(corrupt.to_string());
            }
        }
        let Ok((header, _)) = Header::ref_from_prefix(&bytes) else {
            return Err((Id::BlockUnreadable, "shorter than a header".into()));
        };
        judge_header(volume, header, expect)?;
        let block = Self {
            addr: expect.addr,
            level: header.level,
            generation: header.generation.get(),
            owner: header.owner.into(),
            count: index(header.nritems.get().into()),
            bytes: Arc::clone(&bytes),
            refused,
        };
        block.judge_bounds()?;
        block.judge_keys(expect)?;
        Ok(block)
    }

    fn judge_bounds(&self) -> Result<(), Fault> {
        let body = self.bytes.len().saturating_sub(HEADER_BYTES);
        let unit = if self.level == 0 {
            ITEM_HEADER_BYTES
        } else {
            KEY_PTR_BYTES
        };
        let room = body.checked_div(unit).unwrap_or(0);
        if self.count > room || (self.level > 0 && self.count == 0) {
            return Err((Id::BlockItemCount, format!("{} items, room for {room}", self.count)));
        }
        let mut end = count(body);
        let heads_end = count(self.count.saturating_mul(ITEM_HEADER_BYTES));
        for (slot, head) in self.heads().iter().enumerate() {
            let (offset, size) = (u64::from(head.offset.get()), u64::from(head.size.get()));
            if offset.saturating_add(size) != end || offset < heads_end {
                let what = format!("slot {slot}: data at {offset}, {size} bytes, expected to end at {end}");
                return Err((Id::BlockItemBounds, what));
            }
            end = offset;
        }
        Ok(())
    }

    fn judge_keys(&self, expect: &Expect) -> Result<(), Fault> {
        let mut prev: Option<Key> = None;
        for slot in 0..self.count {
            let Some(key) = self.key(slot) else { break };
            if let Some(prev) = prev.filter(|prev| *prev >= key) {
                return Err((Id::BlockKeyOrder, format!("slot {slot}: {key} after {prev}")));
            }
            prev = Some(key);
        }
        if let Some(first) = expect.first_key
            && self.key(0) != Some(first)
        {
            let found = self.key(0).map_or("nothing".into(), |k| k.to_string());
            return Err((
                Id::BlockFirstKey,
                format!("begins with {found}, its parent says {first}"),
            ));
        }
        if let (Some(last), Some(below)) = (prev, expect.below)
            && last >= below
        {
            return Err((
                Id::BlockKeyRange,
                format!("ends with {last}, the next block begins with {below}"),
            ));
        }
        Ok(())
    }

    /// Made by relocation, which shares blocks without a trace in root items.
    pub(crate) fn is_relocated(&self) -> bool {
        Header::ref_from_prefix(&self.bytes).is_ok_and(|(header, _)| header.flags.get() & header_flags::RELOC != 0)
    }
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    pub(crate) fn len(&self) -> usize {
        self.count
    }
    fn heads(&self) -> &[ItemHeader] {
        if self.level > 0 {
            return &[];
        }
        let body = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        <[ItemHeader]>::ref_from_prefix_with_elems(body, self.count).map_or(&[], |(heads, _)| heads)
    }
    fn ptrs(&self) -> &[KeyPtr] {
        if self.level == 0 {
            return &[];
        }
        let body = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        <[KeyPtr]>::ref_from_prefix_with_elems(body, self.count).map_or(&[], |(ptrs, _)| ptrs)
    }
    pub(crate) fn key(&self, slot: usize) -> Option<Key> {
        if self.level == 0 {
            self.heads().get(slot).map(|head| head.key.into())
        } else {
            self.ptrs().get(slot).map(|ptr| ptr.key.into())
        }
    }
    /// First key, address and generation of a child.
    pub(crate) fn child(&self, slot: usize) -> Option<(Key, u64, u64)> {
        let ptr = self.ptrs().get(slot)?;
        Some((ptr.key.into(), ptr.blockptr.get(), ptr.generation.get()))
    }
    /// Keys and data of a leaf.
    pub(crate) fn items(&self) -> impl Iterator<Item = (Key, &[u8])> {
        let body = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        self.heads().iter().map(move |head| {
            let start = index(head.offset.get().into());
            let end = start.saturating_add(index(head.size.get().into()));
            (head.key.into(), body.get(start..end).unwrap_or_default())
        })
    }
    /// Slot of the child that covers `key`.
    pub(crate) fn child_slot(&self, key: &Key) -> usize {
        self.ptrs()
            .partition_point(|ptr| Key::from(ptr.key) <= *key)
            .saturating_sub(1)
    }
    /// Bytes not used by items.
    pub(crate) fn waste_bytes(&self) -> u64 {
        let unit = if self.level == 0 {
            ITEM_HEADER_BYTES
        } else {
            KEY_PTR_BYTES
        };
        let data: u64 = self.heads().iter().map(|head| u64::from(head.size.get())).sum();
        let used = count(self.count.saturating_mul(unit)).saturating_add(data);
        count(self.bytes.len().saturating_sub(HEADER_BYTES)).saturating_sub(used)
    }
}

fn judge_header(volume: &Volume, header: &Header, expect: &Expect) -> Result<(), Fault> {
    let unlike =
        |id: Id, what: &str, found: u64, expected: u64| Err((id, format!("{what} {found}, expected {expected}")));
    if header.bytenr.get() != expect.addr {
        return unlike(Id::BlockBytenr, "address", header.bytenr.get(), expect.addr);
    }
    if header.fsid != volume.metadata_fsid {
        return Err((Id::BlockFsid, "the id of another volume".into()));
    }
    if header.level != expect.level || header.level > LEVEL_MAX {
        return unlike(Id::BlockLevel, "level", header.level.into(), expect.level.into());
    }
    let generation = header.generation.get();
    if generation > expect.generation_max {
        let what = format!("generation {generation}, the volume is at {}", expect.generation_max);
        return Err((Id::BlockFuture, what));
    }
    if generation != expect.generation {
        return unlike(Id::BlockGeneration, "generation", generation, expect.generation);
    }
    let owner = TreeId::from(header.owner);
    let relocated = owner == TreeId::TREE_RELOC && header.flags.get() & header_flags::RELOC != 0;
    let suits = match expect.owner {
        Owner::Exactly(tree) => owner == tree,
        Owner::Subvolume => owner.is_subvolume() || relocated,
        Owner::Relocated => owner.is_subvolume() || owner == TreeId::DATA_RELOC || relocated,
    };
    if !suits {
        return Err((Id::BlockOwner, format!("owned by tree {owner}")));
    }
    Ok(())
}
