//! File extent items, decoded and checked, and the walk over them.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use btrfs_format::items::{FileExtent, FileExtentHead, compression, file_extent_type};
use btrfs_format::view::{FileExtentView, file_extent, fixed};
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, ObjectId, TreeBlock};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result, StoreError};
use btrfs_store::overlay::ItemBytes;
use btrfs_store::tree::{Cursor, Item, Run, Tree};

/// The most data that one compressed extent holds, on disk and in memory.
pub(crate) const COMPRESSED_BYTES_MAX: u64 = 128 << 10;

/// A reference to (part of) an extent on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnDisk {
    pub addr: LogicalAddr,
    pub len_bytes: u64,
    /// Where in the (uncompressed) extent the file's part begins.
    pub offset_bytes: u64,
    pub ram_bytes: u64,
    pub compression: u8,
    /// Allocated and never written: reads as zeros.
    pub is_prealloc: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Data in the item itself, always at file offset 0.
    Inline {
        item: Item,
        ram_bytes: u64,
        compression: u8,
    },
    /// An explicit hole, as volumes without NO_HOLES have them.
    Hole,
    Disk(OnDisk),
}

/// One file extent item: `len_bytes` of the file from `start` on. Inline data counts as one block.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub start: u64,
    pub len_bytes: u64,
    pub generation: Generation,
    pub kind: Kind,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len_bytes
    }
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end()
    }
    /// What the item adds to the inode's `nbytes`.
    pub(crate) fn nbytes(&self) -> u64 {
        match &self.kind {
            Kind::Inline { ram_bytes, .. } => *ram_bytes,
            Kind::Hole => 0,
            Kind::Disk(_) => self.len_bytes,
        }
    }
    pub(crate) fn on_disk(&self) -> Option<&OnDisk> {
        match &self.kind {
            Kind::Disk(disk) => Some(disk),
            Kind::Inline { .. } | Kind::Hole => None,
        }
    }
    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.kind, Kind::Inline { .. })
    }
    /// Reads as data and not as a hole.
    pub(crate) fn is_data(&self) -> bool {
        match &self.kind {
            Kind::Inline { .. } => true,
            Kind::Hole => false,
            Kind::Disk(disk) => !disk.is_prealloc,
        }
    }

    /// The part of it in `range`, which overlaps it. Inline data has no parts.
    pub(crate) fn part(&self, range: &Range<u64>) -> Self {
        let start = self.start.max(range.start);
        let end = self.end().min(range.end);
        let mut part = Self {
            start,
            len_bytes: end - start,
            ..self.clone()
        };
        if let Kind::Disk(disk) = &mut part.kind {
            disk.offset_bytes += start - self.start;
        }
        part
    }

    /// Bytes of the item.
    pub(crate) fn encode(&self) -> ItemBytes {
        self.with_bytes(|parts| match parts {
            [one] => (*one).into(),
            parts => parts.concat().into(),
        })
    }

    /// Hands the bytes of the item to `sink`, in parts.
    pub(crate) fn with_bytes<T>(&self, sink: impl FnOnce(&[&[u8]]) -> T) -> T {
        let disk = match &self.kind {
            Kind::Inline { item, .. } => {
                let Ok((head, data)) = FileExtentHead::ref_from_prefix(item) else {
                    return sink(&[item]);
                };
                let head = FileExtentHead {
                    generation: self.generation.into(),
                    ..*head
                };
                return sink(&[head.as_bytes(), data]);
            }
            Kind::Disk(disk) => *disk,
            Kind::Hole => OnDisk {
                addr: LogicalAddr(0),
                len_bytes: 0,
                offset_bytes: 0,
                ram_bytes: self.len_bytes,
                compression: compression::NONE,
                is_prealloc: false,
            },
        };
        let ty = if disk.is_prealloc {
            file_extent_type::PREALLOC
        } else {
            file_extent_type::REG
        };
        let raw = FileExtent {
            generation: self.generation.into(),
            ram_bytes: U64::new(disk.ram_bytes),
            compression: disk.compression,
            encryption: 0,
            other_encoding: U16::ZERO,
            ty,
            disk_bytenr: disk.addr.into(),
            disk_num_bytes: U64::new(disk.len_bytes),
            offset: U64::new(disk.offset_bytes),
            num_bytes: U64::new(self.len_bytes),
        };
        sink(&[raw.as_bytes()])
    }

    /// Reads an item; everything it says is checked here.
    pub(crate) fn decode(tree: &Tree, key: &Key, item: Item) -> Result<Self> {
        let bad = |what: &str| {
            Error::Store(StoreError::CorruptTree {
                tree: tree.id(),
                what: format!("file extent {key}: {what}"),
            })
        };
        let view = file_extent(&item).ok_or_else(|| bad("is too short"))?;
        let sector = tree.sector_bytes();
        let (generation, kind, len_bytes) = match view {
            FileExtentView::Inline { head, data } => {
                let ram_bytes = head.ram_bytes.get();
                check_encoding(head.compression, head.encryption, head.other_encoding).map_err(bad)?;
                if key.offset != 0 || ram_bytes > COMPRESSED_BYTES_MAX {
                    return Err(bad("inline data of impossible size or place"));
                }
                if head.compression == compression::NONE && data.len() as u64 != ram_bytes {
                    return Err(bad("inline data of another length than it says"));
                }
                let (generation, compression) = (head.generation.into(), head.compression);
                let len_bytes = ram_bytes.next_multiple_of(sector).max(sector);
                (
                    generation,
                    Kind::Inline {
                        item,
                        ram_bytes,
                        compression,
                    },
                    len_bytes,
                )
            }
            FileExtentView::Regular(raw) => {
                check_encoding(raw.compression, raw.encryption, raw.other_encoding).map_err(bad)?;
                let (kind, len_bytes) = decode_regular(raw, sector).map_err(bad)?;
                (raw.generation.into(), kind, len_bytes)
            }
        };
        let ends_in_file = key
            .offset
            .checked_add(len_bytes)
            .is_some_and(|end| end <= i64::MAX as u64 + 1);
        if !key.offset.is_multiple_of(sector) || !ends_in_file {
            return Err(bad("lies at an impossible offset"));
        }
        Ok(Self {
            start: key.offset,
            len_bytes,
            generation,
            kind,
        })
    }
}

fn check_encoding(compression: u8, encryption: u8, other: U16) -> std::result::Result<(), &'static str> {
    if encryption != 0 || other.get() != 0 {
        return Err("is encrypted or encoded in an unknown way");
    }
    if compression > compression::ZSTD {
        return Err("is compressed in an unknown way");
    }
    Ok(())
}

fn decode_regular(raw: &FileExtent, sector: u64) -> std::result::Result<(Kind, u64), &'static str> {
    let len_bytes = raw.num_bytes.get();
    let disk = OnDisk {
        addr: raw.disk_bytenr.into(),
        len_bytes: raw.disk_num_bytes.get(),
        offset_bytes: raw.offset.get(),
        ram_bytes: raw.ram_bytes.get(),
        compression: raw.compression,
        is_prealloc: raw.ty == file_extent_type::PREALLOC,
    };
    if raw.ty > file_extent_type::PREALLOC {
        return Err("has an unknown type");
    }
    if len_bytes == 0 || !len_bytes.is_multiple_of(sector) {
        return Err("has an impossible length");
    }
    if disk.addr == LogicalAddr(0) {
        return Ok((Kind::Hole, len_bytes));
    }
    let aligned = [disk.addr.get(), disk.len_bytes, disk.offset_bytes]
        .iter()
        .all(|n| n.is_multiple_of(sector));
    if !aligned || disk.len_bytes == 0 || disk.addr.checked_add(disk.len_bytes).is_none() {
        return Err("is not aligned to sectors");
    }
    let end = disk
        .offset_bytes
        .checked_add(len_bytes)
        .ok_or("reaches beyond its extent")?;
    if disk.compression == compression::NONE {
        if end > disk.len_bytes {
            return Err("reaches beyond its extent");
        }
    } else if disk.is_prealloc || disk.ram_bytes.max(disk.len_bytes) > COMPRESSED_BYTES_MAX || end > disk.ram_bytes {
        return Err("is compressed and of impossible size");
    }
    Ok((Kind::Disk(disk), len_bytes))
}

/// An inline item: the content of a small file, perhaps compressed. It adds `ram_bytes`, the length
/// of the content, to the inode's `nbytes`.
pub(crate) fn encode_inline(data: &[u8], ram_bytes: u64, compression: u8, generation: Generation) -> Vec<u8> {
    let head = FileExtentHead {
        generation: generation.into(),
        ram_bytes: U64::new(ram_bytes),
        compression,
        encryption: 0,
        other_encoding: U16::ZERO,
        ty: file_extent_type::INLINE,
    };
    [head.as_bytes(), data].concat()
}

pub(crate) fn extent_key(ino: ObjectId, offset: u64) -> Key {
    Key::new(ino, KeyType::EXTENT_DATA, offset)
}

/// A forward walk over the extent items of a file that lie in a range, each once, leaf by leaf.
pub(crate) struct Walk<'t> {
    tree: &'t Arc<Tree>,
    ino: ObjectId,
    range: Range<u64>,
    first: Option<Extent>,
    cursor: Option<Cursor<'t>>,
}

impl<'t> Walk<'t> {
    pub(crate) fn new(tree: &'t Arc<Tree>, ino: ObjectId, range: Range<u64>) -> Result<Self> {
        let mut walk = Self {
            tree,
            ino,
            range,
            first: None,
            cursor: None,
        };
        if walk.range.is_empty() {
            return Ok(walk);
        }
        let mut from = walk.range.start;
        if let Some((key, item)) = tree.floor_same_type(&extent_key(ino, from))? {
            let extent = Extent::decode(tree, &key, item)?;
            if extent.end() > from {
                from = extent.end();
                walk.first = Some(extent);
            }
        }
        if from < walk.range.end {
            walk.cursor = Some(tree.cursor(extent_key(ino, from), extent_key(ino, walk.range.end - 1)));
        }
        Ok(walk)
    }

    /// The next extent, whole, although only part of it may lie in the range.
    pub(crate) fn next(&mut self) -> Result<Option<Extent>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let Some(cursor) = &mut self.cursor else {
            return Ok(None);
        };
        let Some((key, item)) = cursor.next()? else {
            return Ok(None);
        };
        debug_assert_eq!(key.objectid, self.ino);
        Extent::decode(self.tree, &key, item).map(Some)
    }

    pub(crate) fn collect(mut self) -> Result<Vec<Extent>> {
        let mut all = Vec::new();
        while let Some(extent) = self.next()? {
            all.push(extent);
        }
        Ok(all)
    }
}

/// Shows the extents of a file that lie in a range to `look`, in order, until it breaks off: which
/// bytes of the file each covers (as a whole, also beyond the range) and whether they read as data.
///
/// For walks over very many: committed items are looked at where they are, and of each no more than
/// these fields. What they say was verified with their leaf.
pub(crate) fn scan(
    tree: &Arc<Tree>,
    ino: ObjectId,
    range: Range<u64>,
    mut look: impl FnMut(Range<u64>, bool) -> ControlFlow<()>,
) -> Result<()> {
    let mut walk = Walk::new(tree, ino, range)?;
    if let Some(first) = walk.first.take()
        && look(first.range(), first.is_data()).is_break()
    {
        return Ok(());
    }
    let Some(mut cursor) = walk.cursor.take() else {
        return Ok(());
    };
    while let Some(run) = cursor.next_run()? {
        let flow = match run {
            Run::Leaf { block, slots } => scan_leaf(tree, &block, slots, &mut look)?,
            Run::Items(items) => {
                let mut flow = ControlFlow::Continue(());
                for (key, item) in items {
                    let extent = Extent::decode(tree, &key, item)?;
                    flow = look(extent.range(), extent.is_data());
                    if flow.is_break() {
                        break;
                    }
                }
                flow
            }
        };
        if flow.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

fn scan_leaf(
    tree: &Tree,
    block: &TreeBlock,
    slots: Range<usize>,
    look: &mut impl FnMut(Range<u64>, bool) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    for (slot, head) in slots.clone().zip(&block.item_headers()[slots]) {
        let start = head.key.offset.get();
        let (range, is_data) = match fixed::<FileExtent>(block.data(slot)) {
            Some(raw) if raw.ty != file_extent_type::INLINE => {
                let is_data = raw.ty == file_extent_type::REG && raw.disk_bytenr.get() != 0;
                (start..start.saturating_add(raw.num_bytes.get()), is_data)
            }
            Some(_) | None => {
                let item = Item::Leaf {
                    block: block.clone(),
                    slot,
                };
                let extent = Extent::decode(tree, &block.key(slot), item)?;
                (extent.range(), extent.is_data())
            }
        };
        if look(range, is_data).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The last extent item that begins below `end`.
pub(crate) fn last_below(tree: &Tree, ino: ObjectId, end: u64) -> Result<Option<Extent>> {
    let Some(last) = end.checked_sub(1) else {
        return Ok(None);
    };
    match tree.floor_same_type(&extent_key(ino, last))? {
        Some((key, item)) => Extent::decode(tree, &key, item).map(Some),
        None => Ok(None),
    }
}
