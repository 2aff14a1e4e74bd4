//! Buffer items: which 128-byte chunks of a buffer changed, and their new contents.

use cowshed_layout::{Rule, on_disk};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::item_type::{ItemType, whole};
use super::{ByteOrder, N16, N32, N64};
use crate::corrupt::{Fault, agree, field, truncated};
use crate::ids::{BASIC_BLOCK_BYTES, Daddr};
use crate::num::to_len;
use crate::view;

on_disk!(
    /// `xfs_buf_log_format`: the fixed part; the map follows.
    /// docs/format/xfs/log.md
    BufLogHead(20) { item_type: N16, size: N16, flags: N16, len: N16, blkno: N64, map_size: N32 }
);

/// Bytes for which a bit of the map stands.
pub const BUF_CHUNK_BYTES: usize = 128;
/// The largest buffer: a directory block, or a cluster of inodes.
const BUF_BYTES_MAX: u64 = 65536;
const BITS_PER_WORD: usize = 32;

/// Flags of a buffer item; the type of the buffer is in the upper five bits.
pub mod buf_flags {
    /// Inodes: `next_unlinked` alone is replayed.
    pub const INODE: u16 = 1 << 0;
    /// Earlier images of the buffer are not replayed.
    pub const CANCEL: u16 = 1 << 1;
    /// Quotas of users.
    pub const UDQUOT: u16 = 1 << 2;
    /// Quotas of projects.
    pub const PDQUOT: u16 = 1 << 3;
    /// Quotas of groups.
    pub const GDQUOT: u16 = 1 << 4;
    /// Each bit with the format's name for it.
    pub const NAMES: &[(u64, &str)] = &[
        (0x01, "INODE"),
        (0x02, "CANCEL"),
        (0x04, "UDQUOT"),
        (0x08, "PDQUOT"),
        (0x10, "GDQUOT"),
    ];
    /// Where the type begins.
    pub(super) const TYPE_SHIFT: u32 = 11;
    pub(super) const MASK: u16 = 0x1f;
}

/// What a buffer holds: selects the verifier that recovery runs before the buffer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "the names are the format's; docs/format/xfs/log.md has a table"
)]
pub enum BufType {
    Unknown,
    Udquot,
    Pdquot,
    Gdquot,
    Btree,
    Agf,
    Agfl,
    Agi,
    Dino,
    Symlink,
    DirBlock,
    DirData,
    DirFree,
    DirLeaf1,
    DirLeafN,
    DaNode,
    AttrLeaf,
    AttrRemote,
    Super,
    RtBitmap,
    RtSummary,
}

impl BufType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 21] = [
        Self::Unknown,
        Self::Udquot,
        Self::Pdquot,
        Self::Gdquot,
        Self::Btree,
        Self::Agf,
        Self::Agfl,
        Self::Agi,
        Self::Dino,
        Self::Symlink,
        Self::DirBlock,
        Self::DirData,
        Self::DirFree,
        Self::DirLeaf1,
        Self::DirLeafN,
        Self::DaNode,
        Self::AttrLeaf,
        Self::AttrRemote,
        Self::Super,
        Self::RtBitmap,
        Self::RtSummary,
    ];

    /// From the number. `None` for one that the format does not define.
    pub fn from_raw(raw: u16) -> Option<Self> {
        Self::ALL.get(usize::from(raw)).copied()
    }
    /// The number.
    pub fn to_raw(self) -> u16 {
        let at = Self::ALL.iter().position(|ty| *ty == self);
        at.and_then(|at| u16::try_from(at).ok()).unwrap_or_default()
    }
}

/// What a buffer item is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufFormat {
    /// The buffer's address.
    pub daddr: Daddr,
    /// Its bytes.
    pub len_bytes: u32,
    /// See [`buf_flags`]; without the type.
    pub flags: u16,
    /// What it holds; `None` for a number that the format does not define.
    pub ty: Option<BufType>,
}

impl BufFormat {
    /// True where earlier images of the buffer are not replayed.
    pub fn is_cancel(&self) -> bool {
        self.flags & buf_flags::CANCEL != 0
    }
}

/// A buffer item.
#[derive(Clone, Debug, PartialEq)]
pub struct BufItem<'a> {
    /// What it is about.
    pub format: BufFormat,
    /// Places in the buffer, in bytes, with their new contents. A cancel has none.
    pub chunks: Vec<(u32, &'a [u8])>,
}

impl<'a> BufItem<'a> {
    pub(super) fn read(first: &'a [u8], rest: &[&'a [u8]], order: ByteOrder) -> Result<Self, Fault> {
        let head: BufLogHead = whole(first)?;
        let len_bytes = u32::from(head.len.get(order)).saturating_mul(BASIC_BLOCK_BYTES);
        let raw = head.flags.get(order);
        let format = BufFormat {
            daddr: Daddr(head.blkno.get(order)),
            len_bytes,
            flags: raw & buf_flags::MASK,
            ty: BufType::from_raw(raw >> buf_flags::TYPE_SHIFT),
        };
        field(
            "blf_len",
            len_bytes,
            Rule::Between(BASIC_BLOCK_BYTES.into(), BUF_BYTES_MAX),
        )?;
        let words = to_len(head.map_size.get(order).into());
        let needed = to_len(len_bytes.into()).div_ceil(BUF_CHUNK_BYTES * BITS_PER_WORD);
        let needed = u64::try_from(needed).unwrap_or_default();
        // Writers round up, and some set a word aside more.
        field(
            "blf_map_size",
            head.map_size.get(order),
            Rule::AtMost(needed.saturating_add(1)),
        )?;
        if format.is_cancel() {
            return Ok(Self {
                format,
                chunks: Vec::new(),
            });
        }
        let map = view::slice::<N32>(first, size_of::<BufLogHead>(), words)
            .ok_or_else(|| truncated("blf_data_map", words.saturating_mul(4), first.len()))?;
        let is_dirty = |chunk: usize| {
            let word = map.get(chunk / BITS_PER_WORD).map_or(0, |word| word.get(order));
            let bit = u32::try_from(chunk % BITS_PER_WORD).unwrap_or_default();
            word.rotate_right(bit) & 1 != 0
        };
        let chunks_of_map = words.saturating_mul(BITS_PER_WORD);
        let mut chunks = Vec::new();
        let mut at = 0_usize;
        for region in rest {
            while at < chunks_of_map && !is_dirty(at) {
                at = at.saturating_add(1);
            }
            let count = region.len() / BUF_CHUNK_BYTES;
            let end = at.saturating_add(count);
            agree(
                count > 0 && region.len() % BUF_CHUNK_BYTES == 0 && (at..end).all(is_dirty),
                "a region is not what the map says",
            )?;
            let offset = at.saturating_mul(BUF_CHUNK_BYTES);
            let end_bytes = offset.saturating_add(region.len());
            field(
                "blf_data_map",
                u64::try_from(end_bytes).unwrap_or(u64::MAX),
                Rule::AtMost(len_bytes.into()),
            )?;
            chunks.push((u32::try_from(offset).unwrap_or_default(), *region));
            at = end;
        }
        agree(
            !(at..chunks_of_map).any(is_dirty),
            "the map has chunks without a region",
        )?;
        Ok(Self { format, chunks })
    }

    /// The regions of the item, to be logged.
    pub fn regions(&self, order: ByteOrder) -> Option<Vec<Vec<u8>>> {
        let len = self.format.len_bytes / BASIC_BLOCK_BYTES;
        let words = to_len(self.format.len_bytes.into()).div_ceil(BUF_CHUNK_BYTES * BITS_PER_WORD);
        let mut map = vec![0_u32; words];
        for (offset, data) in &self.chunks {
            let first = to_len((*offset).into()) / BUF_CHUNK_BYTES;
            for chunk in first..first.checked_add(data.len() / BUF_CHUNK_BYTES)? {
                let bit = u32::try_from(chunk % BITS_PER_WORD).ok()?;
                *map.get_mut(chunk / BITS_PER_WORD)? |= 1_u32.rotate_left(bit);
            }
        }
        let ty = self
            .format
            .ty
            .map_or(0, BufType::to_raw)
            .checked_shl(buf_flags::TYPE_SHIFT)?;
        let head = BufLogHead {
            item_type: N16::new(ItemType::Buf.to_raw(), order),
            size: N16::new(u16::try_from(self.chunks.len().checked_add(1)?).ok()?, order),
            flags: N16::new(self.format.flags | ty, order),
            len: N16::new(u16::try_from(len).ok()?, order),
            blkno: N64::new(self.format.daddr.get(), order),
            map_size: N32::new(u32::try_from(words).ok()?, order),
        };
        let map: Vec<N32> = map.into_iter().map(|word| N32::new(word, order)).collect();
        let mut regions = vec![[head.as_bytes(), map.as_bytes()].concat()];
        regions.extend(self.chunks.iter().map(|(_, data)| data.to_vec()));
        Some(regions)
    }
}
