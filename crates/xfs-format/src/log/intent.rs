//! Intents: work that a transaction promised, and that later ones do. Recovery finishes what has no
//! "done".

use cowshed_layout::{Rule, on_disk};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::item_type::{ItemType, whole};
use super::{ByteOrder, N16, N32, N64};
use crate::corrupt::{Fault, field, mismatch, truncated};
use crate::ids::{FileBlock, FsBlock, Ino};
use crate::num::to_len;
use crate::view;

on_disk!(
    /// The fixed part of EFI, EFD, RUI, CUI and BUI; extents follow.
    /// docs/format/xfs/log.md
    IntentHead(16) { item_type: N16, size: N16, nextents: N32, id: N64 }
);
on_disk!(
    /// RUD, CUD, BUD, ATTRD, XMD, and the fixed part of EFD.
    /// docs/format/xfs/log.md
    DoneHead(16) { item_type: N16, size: N16, pad: N32, id: N64 }
);
on_disk!(
    /// `xfs_extent_64`: an extent of EFI and EFD.
    /// docs/format/xfs/log.md
    LogExtent64(16) { start: N64, len: N32, pad: N32 }
);
on_disk!(
    /// `xfs_extent_32`: the same from machines of 32 bits.
    /// docs/format/xfs/log.md
    LogExtent32(12) { start: N64, len: N32 }
);
on_disk!(
    /// `xfs_map_extent`: an extent of RUI and BUI.
    /// docs/format/xfs/log.md
    MapExtentRaw(32) { owner: N64, startblock: N64, startoff: N64, len: N32, flags: N32 }
);
on_disk!(
    /// `xfs_phys_extent`: an extent of CUI.
    /// docs/format/xfs/log.md
    PhysExtentRaw(16) { startblock: N64, len: N32, flags: N32 }
);
on_disk!(
    /// `xfs_attri_log_format`: names and values follow as regions.
    /// docs/format/xfs/log.md
    AttrIntentHead(40) {
        item_type: N16,
        size: N16,
        igen: N32,
        id: N64,
        ino: N64,
        op_flags: N32,
        name_len: N32,
        value_len: N32,
        attr_filter: N32,
    }
);
on_disk!(
    /// `xfs_xmi_log_format`.
    /// docs/format/xfs/log.md
    ExchangeIntentHead(88) {
        item_type: N16,
        size: N16,
        pad: N32,
        id: N64,
        inode1: N64,
        inode2: N64,
        igen1: N32,
        igen2: N32,
        startoff1: N64,
        startoff2: N64,
        blockcount: N64,
        flags: N64,
        isize1: N64,
        isize2: N64,
    }
);

/// Flags beside the operation in `flags` of [`MapExtentRaw`].
pub mod map_extent_flags {
    /// RUI: the attribute fork.
    pub const RMAP_ATTR_FORK: u32 = 1 << 31;
    /// RUI: a block of the fork's tree.
    pub const RMAP_BMBT_BLOCK: u32 = 1 << 30;
    /// RUI: unwritten.
    pub const RMAP_UNWRITTEN: u32 = 1 << 29;
    /// BUI: the attribute fork.
    pub const BMAP_ATTR_FORK: u32 = 1 << 31;
    /// BUI: unwritten.
    pub const BMAP_UNWRITTEN: u32 = 1 << 30;
    /// BUI: the realtime device.
    pub const BMAP_REALTIME: u32 = 1 << 29;
    /// The operation.
    pub const OPERATION_MASK: u32 = 0xff;
}

/// Flags of an exchange.
pub mod exchange_flags {
    /// The attribute forks are exchanged.
    pub const ATTR_FORK: u64 = 1 << 0;
    /// The sizes are set afterwards.
    pub const SET_SIZES: u64 = 1 << 1;
    /// Only written extents of the first file.
    pub const INO1_WRITTEN: u64 = 1 << 2;
    /// The first file shares nothing afterwards.
    pub const CLEAR_INO1_REFLINK: u64 = 1 << 3;
    /// The second file shares nothing afterwards.
    pub const CLEAR_INO2_REFLINK: u64 = 1 << 4;
}

/// Operations on mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the format's")]
pub enum MapOp {
    Map,
    MapShared,
    Unmap,
    UnmapShared,
    Convert,
    ConvertShared,
    Alloc,
    Free,
}

impl MapOp {
    const RMAP: [Self; 8] = [
        Self::Map,
        Self::MapShared,
        Self::Unmap,
        Self::UnmapShared,
        Self::Convert,
        Self::ConvertShared,
        Self::Alloc,
        Self::Free,
    ];
    const BMAP: [Self; 2] = [Self::Map, Self::Unmap];
}

/// An extent of RUI or BUI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedExtent {
    /// RUI: a number of [`crate::btree::RmapOwner`]; BUI: an inode.
    pub owner: u64,
    /// The first block.
    pub start: FsBlock,
    /// The first block of the file.
    pub offset: FileBlock,
    /// Blocks.
    pub blocks: u32,
    /// What is done.
    pub op: MapOp,
    /// See [`map_extent_flags`]; without the operation.
    pub flags: u32,
}

/// An extent of EFI or CUI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysExtent {
    /// The first block.
    pub start: FsBlock,
    /// Blocks.
    pub blocks: u32,
    /// CUI: 1 up, 2 down, 3 staged for copy on write, 4 no longer staged. EFI: 0.
    pub op: u32,
}

/// What an [`AttrIntent`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the format's")]
pub enum AttrOp {
    Set,
    Remove,
    Replace,
    ParentSet,
    ParentRemove,
    ParentReplace,
}

impl AttrOp {
    const ALL: [Self; 6] = [
        Self::Set,
        Self::Remove,
        Self::Replace,
        Self::ParentSet,
        Self::ParentRemove,
        Self::ParentReplace,
    ];
}

/// A change of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrIntent<'a> {
    /// The intent's id.
    pub id: u64,
    /// The inode.
    pub ino: Ino,
    /// The inode's generation, where it is stated.
    pub generation: u32,
    /// What is done.
    pub op: AttrOp,
    /// See [`crate::attr::attr_flags`].
    pub filter: u32,
    /// The name.
    pub name: &'a [u8],
    /// The new name, for [`AttrOp::ParentReplace`].
    pub new_name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The new value, for [`AttrOp::ParentReplace`].
    pub new_value: &'a [u8],
}

/// Work that was to follow.
#[derive(Clone, Debug, PartialEq)]
pub enum Intent<'a> {
    /// EFI: blocks become free.
    Free {
        /// EFI, or EFI_RT.
        ty: ItemType,
        /// The intent's id.
        id: u64,
        /// The blocks.
        extents: Vec<PhysExtent>,
    },
    /// RUI: changes of the rmapbt.
    Rmap {
        /// RUI, or RUI_RT.
        ty: ItemType,
        /// The intent's id.
        id: u64,
        /// The changes.
        extents: Vec<MappedExtent>,
    },
    /// CUI: changes of the refcountbt.
    Refcount {
        /// CUI, or CUI_RT.
        ty: ItemType,
        /// The intent's id.
        id: u64,
        /// The changes.
        extents: Vec<PhysExtent>,
    },
    /// BUI: changes of a file's extents.
    Bmap {
        /// The intent's id.
        id: u64,
        /// The changes.
        extents: Vec<MappedExtent>,
    },
    /// ATTRI: a change of an attribute.
    Attr(AttrIntent<'a>),
    /// XMI: an exchange of the extents of two files.
    Exchange {
        /// The intent's id.
        id: u64,
        /// The intent as it was logged.
        head: ExchangeIntentHead,
    },
}

fn extents<T: FromBytes + KnownLayout + Immutable + Unaligned>(region: &[u8], count: usize) -> Result<&[T], Fault> {
    let head = size_of::<IntentHead>();
    let needs = count.saturating_mul(size_of::<T>());
    view::slice(region, head, count).ok_or_else(|| truncated("extents", needs, region.len().saturating_sub(head)))
}

fn mapped(region: &[u8], count: usize, ops: &[MapOp], order: ByteOrder) -> Result<Vec<MappedExtent>, Fault> {
    let read = |raw: &MapExtentRaw| {
        let flags = raw.flags.get(order);
        let number = flags & map_extent_flags::OPERATION_MASK;
        let op = usize::try_from(number)
            .ok()
            .and_then(|number| ops.get(number.checked_sub(1)?));
        Ok(MappedExtent {
            owner: raw.owner.get(order),
            start: FsBlock(raw.startblock.get(order)),
            offset: FileBlock(raw.startoff.get(order)),
            blocks: raw.len.get(order),
            op: *op.ok_or_else(|| mismatch("me_flags", format_args!("{flags:#x}"), "an operation"))?,
            flags: flags & !map_extent_flags::OPERATION_MASK,
        })
    };
    extents(region, count)?.iter().map(read).collect()
}

fn freed(region: &[u8], count: usize, order: ByteOrder) -> Result<Vec<PhysExtent>, Fault> {
    let of = |start: N64, len: N32| PhysExtent {
        start: FsBlock(start.get(order)),
        blocks: len.get(order),
        op: 0,
    };
    // The region's length tells which of the two layouts it has.
    let short = count.saturating_mul(size_of::<LogExtent32>());
    if region.len() == size_of::<IntentHead>().saturating_add(short) && count > 0 {
        let raw = extents::<LogExtent32>(region, count)?;
        return Ok(raw.iter().map(|raw| of(raw.start, raw.len)).collect());
    }
    let raw = extents::<LogExtent64>(region, count)?;
    Ok(raw.iter().map(|raw| of(raw.start, raw.len)).collect())
}

fn counted(region: &[u8], count: usize, order: ByteOrder) -> Result<Vec<PhysExtent>, Fault> {
    let read = |raw: &PhysExtentRaw| {
        let flags = raw.flags.get(order);
        field("pe_flags", flags, Rule::Between(1, 4))?;
        Ok(PhysExtent {
            start: FsBlock(raw.startblock.get(order)),
            blocks: raw.len.get(order),
            op: flags,
        })
    };
    extents(region, count)?.iter().map(read).collect()
}

fn attr<'a>(first: &'a [u8], rest: &[&'a [u8]], order: ByteOrder) -> Result<AttrIntent<'a>, Fault> {
    let head: AttrIntentHead = whole(first)?;
    let raw_op = head.op_flags.get(order) & 0xff;
    let op = usize::try_from(raw_op)
        .ok()
        .and_then(|op| AttrOp::ALL.get(op.checked_sub(1)?));
    let op = *op.ok_or_else(|| mismatch("alfi_op_flags", raw_op, "1 to 6"))?;
    // A replacement of a parent pointer has two lengths of 16 bits in the field.
    let (name_len, new_name_len, value_len, new_value_len) = if op == AttrOp::ParentReplace {
        let halves = N16::read_from_prefix(head.name_len.as_bytes())
            .ok()
            .and_then(|(old, rest)| Some((old, N16::read_from_bytes(rest).ok()?)));
        let (old, new) = halves.map_or((0, 0), |(old, new)| (old.get(order), new.get(order)));
        let value = head.value_len.get(order);
        (u32::from(old), u32::from(new), value, value)
    } else {
        (head.name_len.get(order), 0, head.value_len.get(order), 0)
    };
    let mut regions = rest.iter().copied();
    // Regions are multiples of four bytes.
    let mut take = |len: u32, name: &'static str| -> Result<&'a [u8], Fault> {
        if len == 0 {
            return Ok(&[]);
        }
        let region = regions.next().unwrap_or_default();
        let len = to_len(len.into());
        region.get(..len).ok_or_else(|| truncated(name, len, region.len()))
    };
    Ok(AttrIntent {
        id: head.id.get(order),
        ino: Ino(head.ino.get(order)),
        generation: head.igen.get(order),
        op,
        filter: head.attr_filter.get(order),
        name: take(name_len, "name")?,
        new_name: take(new_name_len, "new name")?,
        value: take(value_len, "value")?,
        new_value: take(new_value_len, "new value")?,
    })
}

impl<'a> Intent<'a> {
    pub(super) fn read(ty: ItemType, first: &'a [u8], rest: &[&'a [u8]], order: ByteOrder) -> Result<Self, Fault> {
        if ty == ItemType::Attri {
            return Ok(Self::Attr(attr(first, rest, order)?));
        }
        let head: IntentHead = whole(first)?;
        let (id, count) = (head.id.get(order), to_len(head.nextents.get(order).into()));
        Ok(match ty {
            ItemType::Rui | ItemType::RuiRt => Self::Rmap {
                ty,
                id,
                extents: mapped(first, count, &MapOp::RMAP, order)?,
            },
            ItemType::Cui | ItemType::CuiRt => Self::Refcount {
                ty,
                id,
                extents: counted(first, count, order)?,
            },
            ItemType::Bui => Self::Bmap {
                id,
                extents: mapped(first, count, &MapOp::BMAP, order)?,
            },
            ItemType::Xmi => Self::Exchange {
                id,
                head: whole(first)?,
            },
            _ => Self::Free {
                ty,
                id,
                extents: freed(first, count, order)?,
            },
        })
    }

    /// The type of the item.
    pub fn ty(&self) -> ItemType {
        match self {
            Self::Free { ty, .. } | Self::Rmap { ty, .. } | Self::Refcount { ty, .. } => *ty,
            Self::Bmap { .. } => ItemType::Bui,
            Self::Attr(_) => ItemType::Attri,
            Self::Exchange { .. } => ItemType::Xmi,
        }
    }
    /// What binds it to its "done".
    pub fn id(&self) -> u64 {
        match self {
            Self::Free { id, .. }
            | Self::Rmap { id, .. }
            | Self::Refcount { id, .. }
            | Self::Bmap { id, .. }
            | Self::Exchange { id, .. } => *id,
            Self::Attr(intent) => intent.id,
        }
    }
}
