//! Builds B-tree blocks.

use zerocopy::IntoBytes;
use zerocopy::big_endian::U16;

use super::block::{BtreeBlock, Siblings};
use super::kind::{BlockPtr as _, TreeKind, leaf_records_max, node_children_max};
use super::shape::{LongHeader, ShortHeader};
use super::verify;
use crate::header::{Expect, stamp};
use crate::num::to_len;
use crate::view::put;

impl<K: TreeKind> Siblings<K> {
    /// A block that is alone on its level.
    pub fn none() -> Self {
        Self {
            left: K::Ptr::NULL,
            right: K::Ptr::NULL,
        }
    }
}

/// What a block holds.
#[derive(Clone, Debug)]
pub enum BlockFields<'a, K: TreeKind> {
    /// Records in their order.
    Leaf(&'a [K::Record]),
    /// Children in the order of their keys.
    Node {
        /// The level, from 1.
        level: u8,
        /// A key for each child.
        keys: &'a [K::NodeKey],
        /// As many children.
        pointers: &'a [K::Ptr],
    },
}

impl<K: TreeKind> BtreeBlock<K> {
    /// Lays a block out, ready to be sealed. `None` where the contents do not fit.
    pub fn build(fields: &BlockFields<'_, K>, siblings: Siblings<K>, expect: &Expect<'_>) -> Option<Vec<u8>> {
        let geometry = expect.geometry;
        let is_v5 = geometry.is_v5();
        let header_bytes = K::TREE.header_bytes(is_v5);
        let mut bytes = vec![0; to_len(geometry.block_bytes.into())];
        let (level, count) = match fields {
            BlockFields::Leaf(records) => {
                let fits = records.len() <= leaf_records_max::<K>(geometry);
                if !fits || !put(&mut bytes, header_bytes, records.as_bytes()) {
                    return None;
                }
                (0, records.len())
            }
            BlockFields::Node { level, keys, pointers } => {
                let fits = keys.len() == pointers.len() && keys.len() <= node_children_max::<K>(geometry);
                let at = verify::pointers_at::<K>(header_bytes, bytes.len().saturating_sub(header_bytes));
                if !fits || !put(&mut bytes, header_bytes, keys.as_bytes()) || !put(&mut bytes, at, pointers.as_bytes())
                {
                    return None;
                }
                (*level, keys.len())
            }
        };
        let level = U16::new(level.into());
        let count = U16::new(u16::try_from(count).ok()?);
        let at = if K::TREE.is_long() {
            std::mem::offset_of!(LongHeader, leftsib)
        } else {
            std::mem::offset_of!(ShortHeader, leftsib)
        };
        let fits = put(&mut bytes, std::mem::offset_of!(ShortHeader, level), level.as_bytes())
            && put(&mut bytes, std::mem::offset_of!(ShortHeader, numrecs), count.as_bytes())
            && put(&mut bytes, at, [siblings.left, siblings.right].as_bytes());
        stamp(&K::TREE.kind(is_v5), &mut bytes, expect);
        fits.then_some(bytes)
    }
}
