//! An extent item with its inline references, decoded, changed and encoded again.

use btrfs_format::block::leaf_capacity_bytes;
use btrfs_format::features::extent_flags;
use btrfs_format::items::{ExtentDataRef, ExtentItem, InlineRef, SharedDataRef, TreeBlockInfo};
use btrfs_format::view::ExtentView;
use btrfs_format::{Generation, Key, KeyType};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::RefName;

/// An `EXTENT_ITEM` or `METADATA_ITEM`.
#[derive(Clone, Debug)]
pub struct ExtentRecord {
    pub(crate) refs: u64,
    pub(crate) generation: Generation,
    pub(crate) flags: u64,
    pub(crate) block_info: Option<TreeBlockInfo>,
    pub(crate) inline: Vec<(RefName, u32)>,
}

/// What a change of a reference did to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InlineChange {
    Done,
    /// The reference is not inline (and, for an addition, there is no room for it).
    NotInline,
    /// It would count below zero.
    Underflow,
}

impl ExtentRecord {
    pub(crate) fn decode(key: &Key, data: &[u8]) -> Option<Self> {
        let view = ExtentView::new(key, data)?;
        let inline = view.inline_refs().map(RefName::from_disk).collect::<Option<Vec<_>>>()?;
        Some(Self {
            refs: view.head.refs.get(),
            generation: view.head.generation.into(),
            flags: view.head.flags.get(),
            block_info: view.block_info.copied(),
            inline,
        })
    }

    pub(crate) fn is_full_backref(&self) -> bool {
        self.flags & extent_flags::FULL_BACKREF != 0
    }

    /// Changes the count of an inline reference; adds it where it is missing and fits.
    pub(crate) fn change_inline(&mut self, name: RefName, delta: i64, item_bytes_max: usize) -> InlineChange {
        if let Some(at) = self.inline.iter().position(|(n, _)| *n == name) {
            let Ok(count) = u32::try_from(i64::from(self.inline[at].1) + delta) else {
                return InlineChange::Underflow;
            };
            if count == 0 {
                self.inline.remove(at);
            } else {
                self.inline[at].1 = count;
            }
            return InlineChange::Done;
        }
        let Ok(count) = u32::try_from(delta) else {
            return InlineChange::NotInline;
        };
        if self.encoded_bytes() + inline_bytes(&name) > item_bytes_max {
            return InlineChange::NotInline;
        }
        self.inline.push((name, count));
        InlineChange::Done
    }

    /// The size above which the kernel makes references items of their own: a sixteenth of a leaf.
    pub(crate) fn item_bytes_max(nodesize_bytes: usize) -> usize {
        leaf_capacity_bytes(nodesize_bytes) / 16 - btrfs_format::block::ITEM_HEADER_BYTES
    }

    fn encoded_bytes(&self) -> usize {
        let info = if self.block_info.is_some() {
            size_of::<TreeBlockInfo>()
        } else {
            0
        };
        size_of::<ExtentItem>() + info + self.inline.iter().map(|(n, _)| inline_bytes(n)).sum::<usize>()
    }

    /// The item's bytes: inline references by type, and within a type by descending sequence.
    pub(crate) fn encode(&mut self) -> Vec<u8> {
        self.inline
            .sort_by_key(|(name, _)| (name.key_type(), std::cmp::Reverse(name.sequence())));
        let mut out = Vec::with_capacity(self.encoded_bytes());
        let head = ExtentItem {
            refs: U64::new(self.refs),
            generation: self.generation.into(),
            flags: U64::new(self.flags),
        };
        out.extend_from_slice(head.as_bytes());
        if let Some(info) = &self.block_info {
            out.extend_from_slice(info.as_bytes());
        }
        for (name, count) in &self.inline {
            encode_inline(&mut out, name, *count);
        }
        out
    }
}

fn inline_bytes(name: &RefName) -> usize {
    match name {
        RefName::TreeBlock { .. } | RefName::SharedBlock { .. } => size_of::<InlineRef>(),
        RefName::ExtentData { .. } => size_of::<KeyType>() + size_of::<ExtentDataRef>(),
        RefName::SharedData { .. } => size_of::<InlineRef>() + size_of::<SharedDataRef>(),
    }
}

fn encode_inline(out: &mut Vec<u8>, name: &RefName, count: u32) {
    let ty = name.key_type().0;
    match name {
        RefName::TreeBlock { .. } | RefName::SharedBlock { .. } => {
            out.extend_from_slice(
                InlineRef {
                    ty,
                    offset: U64::new(name.sequence()),
                }
                .as_bytes(),
            );
        }
        RefName::ExtentData { .. } => {
            out.push(ty);
            out.extend_from_slice(&keyed_ref_bytes(name, count));
        }
        RefName::SharedData { parent } => {
            out.extend_from_slice(
                InlineRef {
                    ty,
                    offset: U64::new(parent.get()),
                }
                .as_bytes(),
            );
            out.extend_from_slice(SharedDataRef { count: U32::new(count) }.as_bytes());
        }
    }
}

/// The data of a reference's own item.
pub(crate) fn keyed_ref_bytes(name: &RefName, count: u32) -> Vec<u8> {
    match name {
        RefName::TreeBlock { .. } | RefName::SharedBlock { .. } => Vec::new(),
        RefName::ExtentData { root, ino, offset } => ExtentDataRef {
            root: (*root).into(),
            objectid: (*ino).into(),
            offset: U64::new(*offset),
            count: U32::new(count),
        }
        .as_bytes()
        .to_vec(),
        RefName::SharedData { .. } => SharedDataRef { count: U32::new(count) }.as_bytes().to_vec(),
    }
}
