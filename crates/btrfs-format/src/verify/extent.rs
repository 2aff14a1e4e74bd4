//! Extents and their back references, inline and keyed.

use super::item::{Item, aligned_end, is_shareable};
use crate::corrupt::CorruptKind;
use crate::features::extent_flags;
use crate::hash;
use crate::header::LEVEL_MAX;
use crate::ids::{ObjectId, TreeId};
use crate::items::{ExtentDataRef, ExtentItem, InlineRef, SharedDataRef, TreeBlockInfo};
use crate::key::{Key, KeyType};
use cowshed_layout::Rule;

/// `EXTENT_ITEM` and `METADATA_ITEM`: the extent, then its inline references.
pub(super) fn check_extent_item(item: &Item<'_>, prev: Option<(Key, &[u8])>) -> Result<(), CorruptKind> {
    let ctx = item.ctx;
    let (head, mut rest): (&ExtentItem, _) = item.part("extent", item.data)?;
    item.generation("generation", head.generation.get())?;
    item.field("refs", head.refs.get(), Rule::NonZero)?;
    let flags = head.flags.get();
    let kinds = extent_flags::DATA | extent_flags::TREE_BLOCK;
    item.field("flags", flags, Rule::KnownBits(kinds | extent_flags::FULL_BACKREF))?;
    item.field("flags", flags, Rule::OneBitOf(kinds))?;
    let is_block = flags & extent_flags::TREE_BLOCK != 0;
    let mut len = item.key.offset;
    if item.key.ty == KeyType::METADATA_ITEM {
        item.field("flags", flags, Rule::OneBitOf(extent_flags::TREE_BLOCK))?;
        item.field("level", item.key.offset, Rule::AtMost(LEVEL_MAX.into()))?;
        len = ctx.nodesize_bytes;
    } else if is_block {
        item.field("length", len, Rule::Equal(ctx.nodesize_bytes))?;
        let (info, tail): (&TreeBlockInfo, _) = item.part("tree block info", rest)?;
        item.field("level", info.level.into(), Rule::AtMost(LEVEL_MAX.into()))?;
        rest = tail;
    } else {
        item.field("flags", flags, Rule::KnownBits(extent_flags::DATA))?;
        item.field("length", len, Rule::NonZero)?;
        item.field("length", len, Rule::AlignedTo(ctx.sectorsize_bytes))?;
    }
    aligned_end(item, "address", item.key.objectid.get(), len)?;
    let counted = check_inline_refs(item, rest, is_block)?;
    item.field("inline references", counted, Rule::AtMost(head.refs.get()))?;
    if let Some((prev, _)) = prev {
        let prev_len = match prev.ty {
            KeyType::EXTENT_ITEM => prev.offset,
            KeyType::METADATA_ITEM => ctx.nodesize_bytes,
            _ => return Ok(()),
        };
        let prev_end = prev.objectid.get().saturating_add(prev_len);
        item.no_overlap(prev, prev_end, item.key.objectid.get())?;
    }
    Ok(())
}

/// Checks the inline references and their order: types upwards, within a type downwards. Gives how
/// many they count.
fn check_inline_refs<'a>(item: &Item<'a>, mut rest: &'a [u8], is_block: bool) -> Result<u64, CorruptKind> {
    let mut counted = 0_u64;
    let mut prev: Option<(KeyType, u64)> = None;
    while let Some(&ty) = rest.first() {
        let ty = KeyType(ty);
        let (seq, count, tail) = match (ty, is_block) {
            (KeyType::EXTENT_DATA_REF, false) => {
                let (_, after_type) = rest.split_at_checked(1).unwrap_or_default();
                let (data_ref, tail): (&ExtentDataRef, _) = item.part("data reference", after_type)?;
                check_data_ref(item, data_ref)?;
                (data_ref_hash(data_ref), data_ref.count.get(), tail)
            }
            (KeyType::SHARED_DATA_REF, false) => {
                let (inline, tail): (&InlineRef, _) = item.part("inline reference", rest)?;
                let (shared, tail): (&SharedDataRef, _) = item.part("shared data reference", tail)?;
                check_parent(item, inline.offset.get())?;
                item.field("reference count", shared.count.get().into(), Rule::NonZero)?;
                (inline.offset.get(), shared.count.get(), tail)
            }
            (KeyType::TREE_BLOCK_REF, true) => {
                let (inline, tail): (&InlineRef, _) = item.part("inline reference", rest)?;
                item.field("reference root", inline.offset.get(), Rule::NonZero)?;
                (inline.offset.get(), 1, tail)
            }
            (KeyType::SHARED_BLOCK_REF, true) => {
                let (inline, tail): (&InlineRef, _) = item.part("inline reference", rest)?;
                check_parent(item, inline.offset.get())?;
                (inline.offset.get(), 1, tail)
            }
            (KeyType::EXTENT_OWNER_REF, false) => {
                let (inline, tail): (&InlineRef, _) = item.part("inline reference", rest)?;
                (inline.offset.get(), 0, tail)
            }
            _ => return Err(CorruptKind::InlineRefType { key: item.key, ty }),
        };
        if let Some((prev_ty, prev_seq)) = prev
            && (ty < prev_ty || (ty == prev_ty && seq > prev_seq))
        {
            return Err(CorruptKind::InlineRefOrder {
                key: item.key,
                prev_ty,
                prev_seq,
                ty,
                seq,
            });
        }
        prev = Some((ty, seq));
        counted = counted.saturating_add(count.into());
        rest = tail;
    }
    Ok(counted)
}

fn data_ref_hash(data_ref: &ExtentDataRef) -> u64 {
    hash::extent_data_ref_hash(data_ref.root.into(), data_ref.objectid.into(), data_ref.offset.get())
}

/// The leaf or node that holds a shared reference.
fn check_parent(item: &Item<'_>, parent: u64) -> Result<(), CorruptKind> {
    item.field("reference parent", parent, Rule::NonZero)?;
    item.field("reference parent", parent, Rule::AlignedTo(item.ctx.sectorsize_bytes))
}

/// A file's reference to data. The version 1 caches of free space are files of the root tree, those
/// of free inode numbers have a number of their own.
fn check_data_ref(item: &Item<'_>, data_ref: &ExtentDataRef) -> Result<(), CorruptKind> {
    let root = TreeId::from(data_ref.root);
    if !is_shareable(root) && root != TreeId::ROOT && root != TreeId::DATA_RELOC {
        let rule = Rule::AtLeast(ObjectId::FIRST_FREE.get());
        return Err(item.field_error("reference root", root.get(), rule));
    }
    let inode = ObjectId::from(data_ref.objectid);
    if !super::inode::is_inode_number(inode) || inode == ObjectId::ROOT_TREE_DIR {
        let rule = Rule::Between(ObjectId::FIRST_FREE.get(), ObjectId::LAST_FREE.get());
        return Err(item.field_error("reference inode", inode.get(), rule));
    }
    // The file offset minus the offset into the extent: it may wrap below zero, but stays aligned.
    let aligned = Rule::AlignedTo(item.ctx.sectorsize_bytes);
    item.field("reference offset", data_ref.offset.get(), aligned)?;
    item.field("reference count", data_ref.count.get().into(), Rule::NonZero)
}

fn check_address(item: &Item<'_>) -> Result<(), CorruptKind> {
    let aligned = Rule::AlignedTo(item.ctx.sectorsize_bytes);
    item.field("address", item.key.objectid.get(), aligned)
}

/// `TREE_BLOCK_REF` and `SHARED_BLOCK_REF` as items: all is in the key.
pub(super) fn check_keyed_block_ref(item: &Item<'_>) -> Result<(), CorruptKind> {
    item.size(Rule::Equal(0))?;
    check_address(item)?;
    if item.key.ty == KeyType::SHARED_BLOCK_REF {
        return check_parent(item, item.key.offset);
    }
    item.field("reference root", item.key.offset, Rule::NonZero)
}

pub(super) fn check_keyed_shared_data_ref(item: &Item<'_>) -> Result<(), CorruptKind> {
    let shared: &SharedDataRef = item.exact()?;
    check_address(item)?;
    check_parent(item, item.key.offset)?;
    item.field("reference count", shared.count.get().into(), Rule::NonZero)
}

/// `EXTENT_DATA_REF` as an item. The key's offset is the hash or, after collisions, a number above
/// it: not judged.
pub(super) fn check_keyed_data_ref(item: &Item<'_>) -> Result<(), CorruptKind> {
    let data_ref: &ExtentDataRef = item.exact()?;
    check_address(item)?;
    check_data_ref(item, data_ref)
}
