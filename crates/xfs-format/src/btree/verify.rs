//! Checks a B-tree block.

use cowshed_layout::Rule;

use super::kind::{BlockPtr, TreeKind, children_in, leaf_records_max, node_children_max};
use super::shape::{BMAP_LEVELS_MAX, LongHeader, ShortHeader};
use crate::ag::AG_BTREE_LEVELS_MAX;
use crate::corrupt::{Checked, CorruptKind, Fault, field, mismatch, truncated};
use crate::header::Expect;
use crate::view;

pub(super) fn siblings<K: TreeKind>(bytes: &[u8]) -> Option<[K::Ptr; 2]> {
    let at = if K::TREE.is_long() {
        std::mem::offset_of!(LongHeader, leftsib)
    } else {
        std::mem::offset_of!(ShortHeader, leftsib)
    };
    match view::slice::<K::Ptr>(bytes, at, 2)? {
        [left, right] => Some([*left, *right]),
        _ => None,
    }
}

/// Where the pointers of a node begin: behind room for the keys of a full one.
pub(super) fn pointers_at<K: TreeKind>(header_bytes: usize, node_bytes: usize) -> usize {
    let keys = children_in::<K>(node_bytes).saturating_mul(size_of::<K::NodeKey>());
    header_bytes.saturating_add(keys)
}

pub(super) fn pointers<K: TreeKind>(bytes: &[u8], is_v5: bool, count: usize) -> Option<&[K::Ptr]> {
    let header = K::TREE.header_bytes(is_v5);
    let at = pointers_at::<K>(header, bytes.len().saturating_sub(header));
    view::slice(bytes, at, count)
}

pub(super) fn block<K: TreeKind>(bytes: &[u8], expect: &Expect<'_>, level: Option<u8>) -> Checked {
    let geometry = expect.geometry;
    let header_bytes = K::TREE.header_bytes(geometry.is_v5());
    let short = || truncated("header", header_bytes, bytes.len());
    let header = view::at::<ShortHeader>(bytes, 0).ok_or_else(short)?;
    let found = header.level.get();
    match level {
        Some(level) => field("level", found, Rule::Equal(level.into()))?,
        // A root of 9 levels has level 8; that of a file's tree lies in the inode.
        None if K::TREE.is_long() => field(
            "level",
            found,
            Rule::AtMost(u64::from(BMAP_LEVELS_MAX.saturating_sub(2))),
        )?,
        None => field("level", found, Rule::AtMost(AG_BTREE_LEVELS_MAX - 1))?,
    }
    let [left, right] = siblings::<K>(bytes).ok_or_else(short)?;
    let group = expect.group();
    for (name, sibling) in [("leftsib", left), ("rightsib", right)] {
        let own = geometry.block_at(expect.daddr);
        let is_self = own.is_some_and(|(group, block)| {
            let number = if K::TREE.is_long() {
                geometry.join(group, block).get()
            } else {
                block.get().into()
            };
            sibling.number() == number
        });
        if sibling != K::Ptr::NULL && (is_self || !sibling.is_block(geometry, group)) {
            return Err(mismatch(name, sibling.number(), "another block of the tree"));
        }
    }
    let count = usize::from(header.numrecs.get());
    let most = if found == 0 {
        leaf_records_max::<K>(geometry)
    } else {
        node_children_max::<K>(geometry)
    };
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    field("numrecs", header.numrecs.get(), Rule::AtMost(most))?;
    if found > 0 || K::TREE.is_long() || left != K::Ptr::NULL || right != K::Ptr::NULL {
        // Only the root of an empty tree is empty.
        field("numrecs", header.numrecs.get(), Rule::NonZero)?;
    }
    if found == 0 {
        let records = view::slice::<K::Record>(bytes, header_bytes, count).ok_or_else(short)?;
        return check_records::<K>(records, expect);
    }
    let keys = view::slice::<K::NodeKey>(bytes, header_bytes, count).ok_or_else(short)?;
    check_keys::<K>(keys)?;
    let pointers = pointers::<K>(bytes, geometry.is_v5(), count).ok_or_else(short)?;
    for (slot, pointer) in pointers.iter().enumerate() {
        if !pointer.is_block(geometry, group) {
            return Err(mismatch("ptr", pointer.number(), "a block of the tree").in_slot(slot));
        }
    }
    Ok(())
}

#[cold]
fn out_of_order<K: TreeKind>(prev: K::Order, found: K::Order) -> Fault {
    CorruptKind::Order {
        field: "key",
        prev: format!("{prev:?}").into(),
        found: format!("{found:?}").into(),
    }
    .into()
}

/// Checks each record, and that their keys rise.
pub(crate) fn check_records<K: TreeKind>(records: &[K::Record], expect: &Expect<'_>) -> Checked {
    let group = expect.group();
    let mut before: Option<&K::Record> = None;
    for (slot, record) in records.iter().enumerate() {
        let check = || -> Checked {
            K::check(record, expect, group).0?;
            let Some(prev) = before else { return Ok(()) };
            let (low, high) = (K::order(&K::key(prev)), K::order(&K::key(record)));
            if low >= high {
                return Err(out_of_order::<K>(low, high));
            }
            K::check_pair(prev, record, expect).0
        };
        check().map_err(|fault| fault.in_slot(slot))?;
        before = Some(record);
    }
    Ok(())
}

/// Checks that the keys of a node rise.
pub(crate) fn check_keys<K: TreeKind>(keys: &[K::NodeKey]) -> Checked {
    let orders = keys.iter().map(|key| K::order(&K::low(key)));
    let mut before: Option<K::Order> = None;
    for (slot, order) in orders.enumerate() {
        if let Some(prev) = before
            && prev >= order
        {
            return Err(out_of_order::<K>(prev, order).in_slot(slot));
        }
        before = Some(order);
    }
    Ok(())
}
