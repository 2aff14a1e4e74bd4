//! Data blocks, and the block form: entries one behind the other, with free space between them.
//! Each has a tag at its end that says where it begins. The block form has the leaf entries at the
//! end of the block.

use std::mem::offset_of;

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::index::{DirLeafEntry, check_leaf_entries};
use super::{DirEntry, FileType, POSITION_BYTES};
use crate::corrupt::{Checked, Fault, agree, check_name, field, mismatch, truncated};
use crate::geometry::Geometry;
use crate::header::{Expect, Identity, Kind, Magic, OwnerField, be16, stamp, verified_block};
use crate::ids::{Ino, Uuid};
use crate::num::{count_of, round_up, to_len};
use crate::view;

on_disk!(
    /// `xfs_dir2_data_free`: a large free span of a data block.
    /// docs/format/xfs/directories.md
    DirBestFree(4) { offset: U16, length: U16 }
);
/// Spans that a header names: the largest ones, in order of size.
pub const BEST_FREE_SPANS: usize = 3;
on_disk!(
    /// `xfs_dir2_data_hdr`, on V4.
    /// docs/format/xfs/directories.md
    DirDataHeader(16) { magic: U32, bestfree: [DirBestFree; BEST_FREE_SPANS] }
);
on_disk!(
    /// `xfs_dir3_data_hdr`, on V5.
    /// docs/format/xfs/directories.md
    DirDataHeaderV5(64) {
        magic: U32,
        crc: [u8; 4],
        blkno: U64,
        lsn: U64,
        uuid: Uuid,
        owner: U64,
        bestfree: [DirBestFree; BEST_FREE_SPANS],
        pad: U32,
    }
);
on_disk!(
    /// `xfs_dir2_data_entry`: the fixed part; name, type, padding and tag follow.
    /// docs/format/xfs/directories.md
    DirDataEntryHead(9) { inumber: U64, namelen: u8 }
);
on_disk!(
    /// `xfs_dir2_data_unused`: the fixed part; the tag is at the end of the span.
    /// docs/format/xfs/directories.md
    DirUnusedHead(4) { freetag: U16, length: U16 }
);
on_disk!(
    /// `xfs_dir2_block_tail`: at the end of a block of the block form.
    /// docs/format/xfs/directories.md
    DirBlockTail(8) { count: U32, stale: U32 }
);

/// `freetag` of a free span: no inode has a number that begins so.
const FREE_TAG: u16 = 0xffff;
const TAG_BYTES: usize = 2;
/// Entries and spans begin at multiples of it.
const ALIGN_BYTES: usize = 8;

/// Bytes of a data block's header.
pub fn data_header_bytes(is_v5: bool) -> usize {
    if is_v5 {
        size_of::<DirDataHeaderV5>()
    } else {
        size_of::<DirDataHeader>()
    }
}

/// Bytes of an entry with a name of this length.
pub fn entry_bytes(name_bytes: usize, has_ftype: bool) -> usize {
    let fixed = size_of::<DirDataEntryHead>().saturating_add(TAG_BYTES);
    round_up(
        fixed.saturating_add(name_bytes).saturating_add(usize::from(has_ftype)),
        ALIGN_BYTES,
    )
}

fn kind(name: &'static str, magics: [&[u8; 4]; 2], is_v5: bool) -> Kind {
    let [v4, v5] = magics.map(|magic| u32::from_be_bytes(*magic));
    Kind {
        name,
        magic: Some(Magic::Wide(
            offset_of!(DirDataHeader, magic),
            if is_v5 { v5 } else { v4 },
        )),
        identity: is_v5.then_some(Identity {
            crc: offset_of!(DirDataHeaderV5, crc),
            uuid: offset_of!(DirDataHeaderV5, uuid),
            lsn: Some(offset_of!(DirDataHeaderV5, lsn)),
            daddr: Some(offset_of!(DirDataHeaderV5, blkno)),
            owner: Some(OwnerField::Inode(offset_of!(DirDataHeaderV5, owner))),
        }),
    }
}
fn data_kind(is_v5: bool) -> Kind {
    kind("directory data block", [b"XD2D", b"XDD3"], is_v5)
}
fn block_kind(is_v5: bool) -> Kind {
    kind("directory block", [b"XD2B", b"XDB3"], is_v5)
}
fn size(geometry: &Geometry) -> u32 {
    geometry.dir_block_bytes
}

/// What a data block holds, in the order of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataItem<'a> {
    /// An entry.
    Entry(DirEntry<'a>),
    /// Free space.
    Free {
        /// Where it begins, in bytes from the start of the block.
        offset_bytes: u32,
        /// Its bytes.
        len_bytes: u32,
    },
}

/// Runs through a data block. On bytes that were not verified it ends with the first fault.
#[derive(Clone, Debug)]
pub struct DataItems<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
    has_ftype: bool,
}

impl<'a> DataItems<'a> {
    fn new(bytes: &'a [u8], end: usize, geometry: &Geometry) -> Self {
        Self {
            bytes,
            at: data_header_bytes(geometry.is_v5()),
            end: end.min(bytes.len()),
            has_ftype: geometry.has_ftype(),
        }
    }

    /// The entry that begins at `offset_bytes`. `None` where none has its tag there.
    fn entry_at(mut self, offset_bytes: u32) -> Option<DirEntry<'a>> {
        let at = to_len(offset_bytes.into());
        if at < self.at || !at.is_multiple_of(ALIGN_BYTES) {
            return None;
        }
        self.at = at;
        match self.next() {
            Some(DataItem::Entry(entry)) => Some(entry),
            _ => None,
        }
    }

    /// The next item and its bytes; `None` at the end.
    fn step(&mut self) -> Result<Option<(DataItem<'a>, usize)>, Fault> {
        let left = self.end.saturating_sub(self.at);
        if left == 0 {
            return Ok(None);
        }
        let rest = self.bytes.get(self.at..self.end).unwrap_or_default();
        let offset_bytes = u32::try_from(self.at).unwrap_or(u32::MAX);
        let (item, len) = if be16(rest, 0) == Some(FREE_TAG) {
            let len = usize::from(be16(rest, offset_of!(DirUnusedHead, length)).unwrap_or_default());
            let len_bytes = u32::try_from(len).unwrap_or_default();
            field("length", len_bytes, Rule::MultipleOf(8))?;
            (
                DataItem::Free {
                    offset_bytes,
                    len_bytes,
                },
                len,
            )
        } else {
            let Some(head) = view::at::<DirDataEntryHead>(rest, 0) else {
                return Err(truncated("entry", size_of::<DirDataEntryHead>(), left));
            };
            let len = entry_bytes(head.namelen.into(), self.has_ftype);
            let behind = rest.get(size_of::<DirDataEntryHead>()..).unwrap_or_default();
            let (Some(name), true) = (behind.get(..usize::from(head.namelen)), len <= left) else {
                return Err(truncated("entry", len, left));
            };
            let file_type = self.has_ftype.then(|| behind.get(name.len()).copied()).flatten();
            let entry = DirEntry {
                offset_bytes,
                ino: Ino(head.inumber.get()),
                name,
                file_type: file_type.map(|raw| FileType::from_raw(raw).unwrap_or(FileType::Unknown)),
            };
            if let Some(raw) = file_type {
                field("ftype", raw, Rule::AtMost(FileType::Whiteout.to_raw().into()))?;
            }
            (DataItem::Entry(entry), len)
        };
        if len > left {
            return Err(truncated("free span", len, left));
        }
        let tag = be16(rest, len.saturating_sub(TAG_BYTES)).unwrap_or_default();
        field("tag", tag, Rule::Equal(offset_bytes.into()))?;
        Ok(Some((item, len)))
    }
}

impl<'a> Iterator for DataItems<'a> {
    type Item = DataItem<'a>;

    fn next(&mut self) -> Option<DataItem<'a>> {
        match self.step() {
            Ok(Some((item, len))) => {
                self.at = self.at.saturating_add(len);
                Some(item)
            }
            _ => {
                self.at = self.end;
                None
            }
        }
    }
}

fn best_free(bytes: &[u8], is_v5: bool) -> Option<&[DirBestFree; BEST_FREE_SPANS]> {
    if is_v5 {
        view::at::<DirDataHeaderV5>(bytes, 0).map(|header| &header.bestfree)
    } else {
        view::at::<DirDataHeader>(bytes, 0).map(|header| &header.bestfree)
    }
}

/// Tail and leaf entries of the block form, and where the data ends.
fn tail(bytes: &[u8]) -> Option<(&DirBlockTail, &[DirLeafEntry], usize)> {
    let tail_at = bytes.len().checked_sub(size_of::<DirBlockTail>())?;
    let tail = view::at::<DirBlockTail>(bytes, tail_at)?;
    let count = to_len(tail.count.get().into());
    let leaf_at = tail_at.checked_sub(count.checked_mul(size_of::<DirLeafEntry>())?)?;
    Some((tail, view::slice(bytes, leaf_at, count)?, leaf_at))
}

fn check_data(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    check_items(bytes, bytes.len(), expect.geometry, |_| Ok(())).map(|_| ())
}

fn check_block(bytes: &[u8], expect: &Expect<'_>) -> Checked {
    let geometry = expect.geometry;
    let most = count_of::<DirLeafEntry>(bytes.len().saturating_sub(data_header_bytes(geometry.is_v5())));
    let Some((tail, leaf, end)) = tail(bytes) else {
        let count = view::at::<DirBlockTail>(bytes, bytes.len().saturating_sub(size_of::<DirBlockTail>()));
        let count = count.map_or(0, |tail| tail.count.get());
        return field(
            "tail.count",
            count,
            Rule::AtMost(u64::try_from(most).unwrap_or_default()),
        );
    };
    field(
        "tail.count",
        tail.count.get(),
        Rule::AtMost(u64::try_from(most).unwrap_or_default()),
    )?;
    check_leaf_entries(leaf, tail.stale.get())?;
    let entries = check_items(bytes, end, geometry, |entry| {
        let address = entry.offset_bytes / POSITION_BYTES;
        let hash = geometry.dir_name_hash(entry.name);
        let first = leaf.partition_point(|leaf| leaf.hashval.get() < hash);
        let mut same = leaf.iter().skip(first).take_while(|leaf| leaf.hashval.get() == hash);
        if same.any(|leaf| leaf.address.get() == address) {
            return Ok(());
        }
        Err(mismatch(
            "hashval",
            "of no leaf entry",
            format_args!("{hash:#x} for {address}"),
        ))
    })?;
    let live = tail.count.get().saturating_sub(tail.stale.get());
    field("tail.count", live, Rule::Equal(entries.into()))
}

/// Checks all items up to `end`, and that the header names the largest free spans. Gives the number
/// of entries.
fn check_items(
    bytes: &[u8],
    end: usize,
    geometry: &Geometry,
    mut entry_check: impl FnMut(&DirEntry<'_>) -> Checked,
) -> Result<u32, Fault> {
    let header_bytes = data_header_bytes(geometry.is_v5());
    let Some(best) = best_free(bytes, geometry.is_v5()) else {
        return Err(truncated("header", header_bytes, bytes.len()));
    };
    let [first, second, third] = best.map(|span| u64::from(span.length.get()));
    agree(first >= second && second >= third, "bestfree is not in order of size")?;
    let mut items = DataItems::new(bytes, end, geometry);
    let (mut entries, mut named, mut was_free) = (0_u32, 0_usize, false);
    while let Some((item, len)) = items.step().map_err(|fault| slot(fault, entries))? {
        match item {
            DataItem::Free {
                offset_bytes,
                len_bytes,
            } => {
                agree(!was_free, "two free spans beside each other").map_err(|fault| slot(fault, entries))?;
                let is_named = best.iter().any(|span| {
                    u32::from(span.offset.get()) == offset_bytes && u32::from(span.length.get()) == len_bytes
                });
                named = named.saturating_add(usize::from(is_named));
                agree(
                    is_named || u64::from(len_bytes) <= third,
                    "bestfree lacks the largest free span",
                )
                .map_err(|fault| slot(fault, entries))?;
                was_free = true;
            }
            DataItem::Entry(entry) => {
                let check = || -> Checked {
                    check_name(entry.name)?;
                    if !geometry.is_inode(entry.ino) {
                        return Err(mismatch("inumber", entry.ino, "an inode of the volume"));
                    }
                    Ok(())
                };
                check()
                    .and_then(|()| entry_check(&entry))
                    .map_err(|fault| slot(fault, entries))?;
                entries = entries.saturating_add(1);
                was_free = false;
            }
        }
        items.at = items.at.saturating_add(len);
    }
    let in_table = best.iter().filter(|span| span.length.get() != 0).count();
    agree(named == in_table, "bestfree names a span that is not free")?;
    Ok(entries)
}

fn slot(fault: Fault, entries: u32) -> Fault {
    fault.in_slot(to_len(entries.into()))
}

verified_block!(
    /// A verified directory of the block form: all entries and their hashes in one block.
    DirBlock { kind: block_kind, size: size, check: check_block }
);
verified_block!(
    /// A verified data block of a directory with leaves.
    DirDataBlock { kind: data_kind, size: size, check: check_data }
);

impl DirBlock {
    /// Entries and free space in their order. `geometry` is that of the volume.
    pub fn items(&self, geometry: &Geometry) -> DataItems<'_> {
        let end = tail(&self.bytes).map_or(0, |(_, _, end)| end);
        DataItems::new(&self.bytes, end, geometry)
    }
    /// The entry that begins at `offset_bytes` of the block, where a leaf entry says it does.
    /// `None` where none begins there.
    pub fn entry_at(&self, geometry: &Geometry, offset_bytes: u32) -> Option<DirEntry<'_>> {
        self.items(geometry).entry_at(offset_bytes)
    }
    /// Leaf entries by hash, stale ones among them.
    pub fn leaf_entries(&self) -> &[DirLeafEntry] {
        tail(&self.bytes).map_or(&[], |(_, leaf, _)| leaf)
    }
    /// The largest free spans.
    pub fn best_free(&self) -> &[DirBestFree] {
        best_free(&self.bytes, self.is_v5).map_or(&[], |spans| spans)
    }
    /// Lays a block out, ready to be sealed. `None` where items do not follow each other from the
    /// header to the leaf entries, or do not fit.
    pub fn build(items: &[DataItem<'_>], leaf: &[DirLeafEntry], expect: &Expect<'_>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; to_len(expect.geometry.dir_block_bytes.into())];
        let stale = leaf.iter().filter(|entry| entry.is_stale()).count();
        let tail = DirBlockTail {
            count: U32::new(u32::try_from(leaf.len()).ok()?),
            stale: U32::new(u32::try_from(stale).ok()?),
        };
        let tail_at = bytes.len().checked_sub(size_of::<DirBlockTail>())?;
        let end = tail_at.checked_sub(size_of_val(leaf))?;
        let fits = view::put(&mut bytes, tail_at, tail.as_bytes()) && view::put(&mut bytes, end, leaf.as_bytes());
        let fits = fits && put_items(&mut bytes, items, end, expect.geometry).is_some();
        stamp(&block_kind(expect.geometry.is_v5()), &mut bytes, expect);
        fits.then_some(bytes)
    }
}

impl DirDataBlock {
    /// Entries and free space in their order. `geometry` is that of the volume.
    pub fn items(&self, geometry: &Geometry) -> DataItems<'_> {
        DataItems::new(&self.bytes, self.bytes.len(), geometry)
    }
    /// The entry that begins at `offset_bytes` of the block, where a leaf entry says it does.
    /// `None` where none begins there.
    pub fn entry_at(&self, geometry: &Geometry, offset_bytes: u32) -> Option<DirEntry<'_>> {
        self.items(geometry).entry_at(offset_bytes)
    }
    /// The largest free spans.
    pub fn best_free(&self) -> &[DirBestFree] {
        best_free(&self.bytes, self.is_v5).map_or(&[], |spans| spans)
    }
    /// Lays a block out, ready to be sealed. `None` where items do not follow each other from the
    /// header to the end, or do not fit.
    pub fn build(items: &[DataItem<'_>], expect: &Expect<'_>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; to_len(expect.geometry.dir_block_bytes.into())];
        let end = bytes.len();
        let fits = put_items(&mut bytes, items, end, expect.geometry).is_some();
        stamp(&data_kind(expect.geometry.is_v5()), &mut bytes, expect);
        fits.then_some(bytes)
    }
}

/// Leaf entries of a block's entries, by hash. `block` is the number of the data block.
pub fn leaf_entries<'a>(
    items: impl Iterator<Item = DataItem<'a>>,
    block: u32,
    geometry: &Geometry,
) -> Vec<DirLeafEntry> {
    let first = u64::from(block).saturating_mul(geometry.dir_block_bytes.into());
    let mut found: Vec<_> = items
        .filter_map(|item| match item {
            DataItem::Entry(entry) => {
                let position = first.saturating_add(entry.offset_bytes.into()) >> POSITION_BYTES.trailing_zeros();
                Some(DirLeafEntry {
                    hashval: U32::new(geometry.dir_name_hash(entry.name)),
                    address: U32::new(u32::try_from(position).ok()?),
                })
            }
            DataItem::Free { .. } => None,
        })
        .collect();
    found.sort_by_key(|entry| (entry.hashval.get(), entry.address.get()));
    found
}

fn put_items(bytes: &mut [u8], items: &[DataItem<'_>], end: usize, geometry: &Geometry) -> Option<()> {
    let mut at = data_header_bytes(geometry.is_v5());
    let mut free: Vec<(u32, u32)> = Vec::new();
    for item in items {
        let (offset, len) = match item {
            DataItem::Entry(entry) => (entry.offset_bytes, entry_bytes(entry.name.len(), geometry.has_ftype())),
            DataItem::Free {
                offset_bytes,
                len_bytes,
            } => (*offset_bytes, to_len((*len_bytes).into())),
        };
        let behind = at.checked_add(len).filter(|behind| *behind <= end)?;
        let tag = U16::new(u16::try_from(at).ok()?);
        let fits = to_len(offset.into()) == at
            && view::put(bytes, behind.checked_sub(TAG_BYTES)?, tag.as_bytes())
            && match item {
                DataItem::Entry(entry) => put_entry(bytes, at, entry, geometry)?,
                DataItem::Free { len_bytes, .. } => {
                    free.push((offset, *len_bytes));
                    let head = DirUnusedHead {
                        freetag: U16::new(FREE_TAG),
                        length: U16::new(u16::try_from(*len_bytes).ok()?),
                    };
                    view::put(bytes, at, head.as_bytes())
                }
            };
        if !fits {
            return None;
        }
        at = behind;
    }
    free.sort_by_key(|(offset, len)| (std::cmp::Reverse(*len), *offset));
    let mut best = [DirBestFree {
        offset: U16::new(0),
        length: U16::new(0),
    }; BEST_FREE_SPANS];
    for (span, (offset, len)) in best.iter_mut().zip(free) {
        span.offset.set(u16::try_from(offset).ok()?);
        span.length.set(u16::try_from(len).ok()?);
    }
    let best_at = if geometry.is_v5() {
        offset_of!(DirDataHeaderV5, bestfree)
    } else {
        offset_of!(DirDataHeader, bestfree)
    };
    (at == end && view::put(bytes, best_at, best.as_bytes())).then_some(())
}

fn put_entry(bytes: &mut [u8], at: usize, entry: &DirEntry<'_>, geometry: &Geometry) -> Option<bool> {
    let head = DirDataEntryHead {
        inumber: U64::new(entry.ino.get()),
        namelen: u8::try_from(entry.name.len()).ok()?,
    };
    let name_at = at.checked_add(size_of::<DirDataEntryHead>())?;
    let type_at = name_at.checked_add(entry.name.len())?;
    let ty = entry.file_type.unwrap_or(FileType::Unknown).to_raw();
    Some(
        view::put(bytes, at, head.as_bytes())
            && view::put(bytes, name_at, entry.name)
            && (!geometry.has_ftype() || view::put(bytes, type_at, &[ty])),
    )
}
