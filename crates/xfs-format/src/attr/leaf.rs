//! Leaf blocks of attributes: entries by hash at the head, names and values at the end.

use std::mem::offset_of;

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{VALUE_BYTES_MAX, attr_flags, check_attr_name, check_flags};
use crate::corrupt::{Checked, CorruptKind, Fault, agree, field, mismatch, truncated};
use crate::da::{self, DaBlockInfo, DaBlockInfoV5, hash_order, name_hash, put_siblings};
use crate::geometry::Geometry;
use crate::header::{Expect, Kind, stamp, verified_block};
use crate::ids::{DaBlock, Ino};
use crate::num::{round_up, to_len};
use crate::view;

on_disk!(
    /// `xfs_attr_leaf_map`: a free span of a leaf.
    /// docs/format/xfs/attributes.md
    AttrFreeSpan(4) { base: U16, size: U16 }
);
/// Free spans that a header names.
const FREE_SPANS: usize = 3;
on_disk!(
    /// `xfs_attr_leaf_hdr`, on V4.
    /// docs/format/xfs/attributes.md
    AttrLeafHeader(32) {
        info: DaBlockInfo,
        count: U16,
        usedbytes: U16,
        firstused: U16,
        holes: u8,
        pad1: u8,
        freemap: [AttrFreeSpan; FREE_SPANS],
    }
);
on_disk!(
    /// `xfs_attr3_leaf_hdr`, on V5.
    /// docs/format/xfs/attributes.md
    AttrLeafHeaderV5(80) {
        info: DaBlockInfoV5,
        count: U16,
        usedbytes: U16,
        firstused: U16,
        holes: u8,
        pad1: u8,
        freemap: [AttrFreeSpan; FREE_SPANS],
        pad2: U32,
    }
);
on_disk!(
    /// `xfs_attr_leaf_entry`.
    /// docs/format/xfs/attributes.md
    AttrEntryHead(8) { hashval: U32, nameidx: U16, flags: u8, pad2: u8 }
);
on_disk!(
    /// `xfs_attr_leaf_name_local`: the fixed part; name and value follow.
    /// docs/format/xfs/attributes.md
    AttrLocalHead(3) { valuelen: U16, namelen: u8 }
);
on_disk!(
    /// `xfs_attr_leaf_name_remote`: the fixed part; the name follows.
    /// docs/format/xfs/attributes.md
    AttrRemoteHead(9) { valueblk: U32, valuelen: U32, namelen: u8 }
);

/// The head fields that both headers have in one order: count to freemap.
#[derive(Clone, Copy, Debug)]
struct Head {
    count: usize,
    usedbytes: u64,
    firstused: u64,
    holes: u8,
    freemap: [AttrFreeSpan; FREE_SPANS],
}

/// Names and values begin at multiples of it.
const ALIGN_BYTES: usize = 4;
/// A value whose entry would take three quarters of a block goes to blocks of its own.
pub const LOCAL_ENTRY_SHARE: (u32, u32) = (3, 4);
/// Units of 4 bytes in the largest block.
const UNITS_MAX: usize = 65536 / ALIGN_BYTES;

fn kind(is_v5: bool) -> Kind {
    da::kind("attribute leaf", [0xfbee, 0x3bee], is_v5)
}
fn size(geometry: &Geometry) -> u32 {
    geometry.block_bytes
}
fn header_bytes(is_v5: bool) -> usize {
    if is_v5 {
        size_of::<AttrLeafHeaderV5>()
    } else {
        size_of::<AttrLeafHeader>()
    }
}
fn count_at(is_v5: bool) -> usize {
    if is_v5 {
        offset_of!(AttrLeafHeaderV5, count)
    } else {
        offset_of!(AttrLeafHeader, count)
    }
}

/// Bytes from `count` up to and with `freemap`, which is the whole rest of a V4 header.
const FIELDS_AT: usize = offset_of!(AttrLeafHeader, count);

fn head(bytes: &[u8], is_v5: bool) -> Option<Head> {
    // Both headers have the same fields behind the block info.
    let at = count_at(is_v5).checked_sub(FIELDS_AT)?;
    let raw = view::at::<AttrLeafHeader>(bytes, at)?;
    let block_bytes = u64::try_from(bytes.len()).ok()?;
    Some(Head {
        count: raw.count.get().into(),
        usedbytes: raw.usedbytes.get().into(),
        // The size of a 64 KiB block does not fit 16 bits: zero stands for it.
        firstused: match u64::from(raw.firstused.get()) {
            0 => block_bytes,
            at => at,
        },
        holes: raw.holes,
        freemap: raw.freemap,
    })
}

/// The value of an attribute in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrValueView<'a> {
    /// Beside its name.
    Local(&'a [u8]),
    /// In blocks of the attribute fork.
    Remote {
        /// The first block; 0 where the attribute is not finished.
        block: DaBlock,
        /// Bytes of the value.
        len_bytes: u32,
    },
}

/// An attribute in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrEntryView<'a> {
    /// The hash of the name.
    pub hash: u32,
    /// See [`attr_flags`].
    pub flags: u8,
    /// The name, without its namespace.
    pub name: &'a [u8],
    /// The value, or where it is.
    pub value: AttrValueView<'a>,
}

/// Reads an entry's name and value; gives their bytes with padding, too.
fn read<'a>(bytes: &'a [u8], entry: &AttrEntryHead) -> Option<(AttrEntryView<'a>, usize)> {
    let rest = bytes.get(usize::from(entry.nameidx.get())..)?;
    let (name, value, len) = if entry.flags & attr_flags::LOCAL != 0 {
        let (head, rest) = AttrLocalHead::ref_from_prefix(rest).ok()?;
        let (name, rest) = rest.split_at_checked(head.namelen.into())?;
        let value = rest.get(..usize::from(head.valuelen.get()))?;
        let len = size_of::<AttrLocalHead>()
            .checked_add(name.len())?
            .checked_add(value.len())?;
        (name, AttrValueView::Local(value), len)
    } else {
        let (head, rest) = AttrRemoteHead::ref_from_prefix(rest).ok()?;
        let name = rest.get(..usize::from(head.namelen))?;
        let value = AttrValueView::Remote {
            block: DaBlock(head.valueblk.get()),
            len_bytes: head.valuelen.get(),
        };
        (name, value, size_of::<AttrRemoteHead>().checked_add(name.len())?)
    };
    let view = AttrEntryView {
        hash: entry.hashval.get(),
        flags: entry.flags,
        name,
        value,
    };
    Some((view, round_up(len, ALIGN_BYTES)))
}

/// The spaces of a leaf that names and values take, in units of 4 bytes: each one once.
struct Taken([u64; UNITS_MAX / 64]);

impl Taken {
    fn take(&mut self, at: usize, len: usize) -> bool {
        let units = at / ALIGN_BYTES..at.saturating_add(len) / ALIGN_BYTES;
        for unit in units {
            let Some(word) = self.0.get_mut(unit / 64) else {
                return false;
            };
            let bit = 1_u64.rotate_left(u32::try_from(unit % 64).unwrap_or_default());
            if *word & bit != 0 {
                return false;
            }
            *word |= bit;
        }
        true
    }
}

fn check_entry(bytes: &[u8], entry: &AttrEntryHead, head: &Head, expect: &Expect<'_>) -> Result<usize, Fault> {
    let geometry = expect.geometry;
    check_flags(entry.flags, geometry)?;
    let at = u64::from(entry.nameidx.get());
    field("nameidx", at, Rule::AlignedTo(4))?;
    field("nameidx", at, Rule::AtLeast(head.firstused))?;
    let left = bytes.len().saturating_sub(usize::from(entry.nameidx.get()));
    let Some((view, len)) = read(bytes, entry) else {
        return Err(truncated("name and value", left, left));
    };
    if len > left {
        return Err(truncated("name and value", len, left));
    }
    let value = match view.value {
        AttrValueView::Local(value) => Some(value),
        AttrValueView::Remote { block, len_bytes } => {
            field("valuelen", len_bytes, Rule::AtMost(VALUE_BYTES_MAX.into()))?;
            let is_unfinished = entry.flags & attr_flags::INCOMPLETE != 0;
            agree(
                block.get() != 0 || is_unfinished,
                "valueblk is 0 in a finished attribute",
            )?;
            None
        }
    };
    check_attr_name(view.name, entry.flags, value, geometry)?;
    let hash = match value.and_then(super::ParentPointer::read) {
        Some(parent) if entry.flags & attr_flags::PARENT != 0 => super::parent_hash(view.name, parent.ino, geometry),
        _ => name_hash(view.name),
    };
    if hash != view.hash {
        return Err(mismatch(
            "hashval",
            format_args!("{:#x}", view.hash),
            format_args!("{hash:#x}"),
        ));
    }
    Ok(len)
}

fn check(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let is_v5 = expect.geometry.is_v5();
    let header_bytes = header_bytes(is_v5);
    let short = || truncated("header", header_bytes, bytes.len());
    let head = head(bytes, is_v5).ok_or_else(short)?;
    let block_bytes = u64::try_from(bytes.len()).unwrap_or_default();
    let entries_end = head
        .count
        .saturating_mul(size_of::<AttrEntryHead>())
        .saturating_add(header_bytes);
    let entries_end = u64::try_from(entries_end).unwrap_or(u64::MAX);
    field("firstused", head.firstused, Rule::Between(entries_end, block_bytes))?;
    field(
        "usedbytes",
        head.usedbytes,
        Rule::AtMost(block_bytes.saturating_sub(head.firstused)),
    )?;
    for span in &head.freemap {
        let end = u64::from(span.base.get()).saturating_add(span.size.get().into());
        field("freemap.base", span.base.get(), Rule::AlignedTo(4))?;
        field("freemap.size", span.size.get(), Rule::AlignedTo(4))?;
        field("freemap.base", end, Rule::AtMost(block_bytes))?;
    }
    let entries = view::slice::<AttrEntryHead>(bytes, header_bytes, head.count).ok_or_else(short)?;
    let mut taken = Taken([0; UNITS_MAX / 64]);
    let (mut before, mut used) = (0, 0_u64);
    for (slot, entry) in entries.iter().enumerate() {
        let check = || -> Result<usize, Fault> {
            hash_order(before, entry.hashval.get())?;
            check_entry(bytes, entry, &head, expect)
        };
        let len = check().map_err(|fault| fault.in_slot(slot))?;
        if !taken.take(entry.nameidx.get().into(), len) {
            return Err(Fault::from(CorruptKind::Contradiction("names and values overlap")).in_slot(slot));
        }
        before = entry.hashval.get();
        used = used.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
    }
    // Watched on Linux 6.18: after attributes were removed and leaves joined, it may count too much.
    field("usedbytes", head.usedbytes, Rule::AtLeast(used))
}

verified_block!(
    /// A verified leaf of attributes.
    AttrLeafBlock { kind: kind, size: size, check: check }
);

/// An attribute for a leaf under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrNew<'a> {
    /// See [`attr_flags`]; [`attr_flags::LOCAL`] is set by the value.
    pub flags: u8,
    /// The name, without its namespace.
    pub name: &'a [u8],
    /// The value, or where it is.
    pub value: AttrValueView<'a>,
}

impl AttrNew<'_> {
    /// The hash under which a leaf has it.
    pub fn hash(&self, geometry: &Geometry) -> u32 {
        match self.value {
            AttrValueView::Local(value) if self.flags & attr_flags::PARENT != 0 => {
                let parent = super::ParentPointer::read(value).map_or(Ino(0), |parent| parent.ino);
                super::parent_hash(self.name, parent, geometry)
            }
            _ => name_hash(self.name),
        }
    }
    fn bytes(&self) -> Option<Vec<u8>> {
        let namelen = u8::try_from(self.name.len()).ok()?;
        let mut bytes = match self.value {
            AttrValueView::Local(value) => {
                let valuelen = U16::new(u16::try_from(value.len()).ok()?);
                [AttrLocalHead { valuelen, namelen }.as_bytes(), self.name, value].concat()
            }
            AttrValueView::Remote { block, len_bytes } => {
                let head = AttrRemoteHead {
                    valueblk: U32::new(block.get()),
                    valuelen: U32::new(len_bytes),
                    namelen,
                };
                [head.as_bytes(), self.name].concat()
            }
        };
        bytes.resize(round_up(bytes.len(), ALIGN_BYTES), 0);
        Some(bytes)
    }
}

impl AttrLeafBlock {
    /// The attributes by hash.
    pub fn entries(&self) -> impl Iterator<Item = AttrEntryView<'_>> {
        self.heads()
            .iter()
            .filter_map(|entry| read(&self.bytes, entry).map(|(view, _)| view))
    }
    /// The entries as they lie on disk.
    pub fn heads(&self) -> &[AttrEntryHead] {
        let count = head(&self.bytes, self.is_v5).map_or(0, |head| head.count);
        view::slice(&self.bytes, header_bytes(self.is_v5), count).unwrap_or_default()
    }
    /// The leaves before and behind; 0 is none.
    pub fn siblings(&self) -> (DaBlock, DaBlock) {
        da::siblings(&self.bytes)
    }
    /// True where free space lies between names.
    pub fn has_holes(&self) -> bool {
        head(&self.bytes, self.is_v5).is_some_and(|head| head.holes != 0)
    }
    /// The free spans that the header names.
    pub fn free_spans(&self) -> [AttrFreeSpan; 3] {
        let none = AttrFreeSpan {
            base: U16::new(0),
            size: U16::new(0),
        };
        head(&self.bytes, self.is_v5).map_or([none; FREE_SPANS], |head| head.freemap)
    }
    /// Where the names begin, in bytes from the start of the block.
    pub fn first_used(&self) -> u32 {
        let first = head(&self.bytes, self.is_v5).map_or(0, |head| head.firstused);
        u32::try_from(first).unwrap_or_default()
    }

    /// Lays a leaf out without holes, ready to be sealed: attributes in the order of their hashes,
    /// names from the end of the block downwards. `None` where they do not fit.
    pub fn build(attrs: &[AttrNew<'_>], (back, forw): (DaBlock, DaBlock), expect: &Expect<'_>) -> Option<Vec<u8>> {
        let geometry = expect.geometry;
        let is_v5 = geometry.is_v5();
        let mut bytes = vec![0; to_len(size(geometry).into())];
        let (mut entry_at, mut name_at) = (header_bytes(is_v5), bytes.len());
        for attr in attrs {
            let name = attr.bytes()?;
            name_at = name_at.checked_sub(name.len())?;
            let local = match attr.value {
                AttrValueView::Local(_) => attr_flags::LOCAL,
                AttrValueView::Remote { .. } => 0,
            };
            let entry = AttrEntryHead {
                hashval: U32::new(attr.hash(geometry)),
                nameidx: U16::new(u16::try_from(name_at).ok()?),
                flags: attr.flags & !attr_flags::LOCAL | local,
                pad2: 0,
            };
            let fits = view::put(&mut bytes, name_at, &name) && view::put(&mut bytes, entry_at, entry.as_bytes());
            entry_at = entry_at.checked_add(size_of::<AttrEntryHead>())?;
            if !fits || entry_at > name_at {
                return None;
            }
        }
        let short = |n: usize| u16::try_from(n).ok().map(U16::new);
        let none = AttrFreeSpan {
            base: U16::new(0),
            size: U16::new(0),
        };
        let free = AttrFreeSpan {
            base: short(entry_at)?,
            size: short(name_at.checked_sub(entry_at)?)?,
        };
        let mut fields = [0; size_of::<AttrLeafHeader>()];
        let fits = view::put(&mut fields, offset_of!(AttrLeafHeader, count), short(attrs.len())?.as_bytes())
            && view::put(
                &mut fields,
                offset_of!(AttrLeafHeader, usedbytes),
                short(bytes.len().checked_sub(name_at)?)?.as_bytes(),
            )
            // An empty leaf of 64 KiB has zero here.
            && view::put(
                &mut fields,
                offset_of!(AttrLeafHeader, firstused),
                short(name_at).unwrap_or_default().as_bytes(),
            )
            && view::put(&mut fields, offset_of!(AttrLeafHeader, freemap), [free, none, none].as_bytes())
            && view::put(&mut bytes, count_at(is_v5), fields.get(FIELDS_AT..)?)
            && put_siblings(&mut bytes, back, forw);
        stamp(&kind(is_v5), &mut bytes, expect);
        fits.then_some(bytes)
    }
}
