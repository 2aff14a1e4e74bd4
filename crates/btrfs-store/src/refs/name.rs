//! Names of back references.

use btrfs_format::hash::extent_data_ref_hash;
use btrfs_format::view::BackRef;
use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId, TreeId};

/// The name of a back reference, without its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefName {
    /// `TREE_BLOCK_REF`: of a tree block, keyed by tree.
    TreeBlock {
        /// The tree that the block belongs to.
        root: TreeId,
    },
    /// `SHARED_BLOCK_REF`: of a tree block, by the block that points to it.
    SharedBlock {
        /// Address of the node that points to it.
        parent: LogicalAddr,
    },
    /// `EXTENT_DATA_REF`: of a data extent, keyed by tree.
    ExtentData {
        /// Subvolume of the file extent item.
        root: TreeId,
        /// Inode of the file extent item.
        ino: ObjectId,
        /// As [`super::DataRef::offset`].
        offset: u64,
    },
    /// `SHARED_DATA_REF`: of a data extent, by the leaf that points to it.
    SharedData {
        /// Address of the leaf.
        parent: LogicalAddr,
    },
}

impl RefName {
    /// Name and count of a reference found on disk; `None` for the owner references of simple
    /// quotas.
    pub fn from_disk(found: BackRef) -> Option<(Self, u32)> {
        Some(match found {
            BackRef::TreeBlock { root } => (Self::TreeBlock { root: TreeId(root) }, 1),
            BackRef::SharedBlock { parent } => (
                Self::SharedBlock {
                    parent: LogicalAddr(parent),
                },
                1,
            ),
            BackRef::ExtentData {
                root,
                objectid,
                offset,
                count,
            } => (
                Self::ExtentData {
                    root: TreeId(root),
                    ino: ObjectId(objectid),
                    offset,
                },
                count,
            ),
            BackRef::SharedData { parent, count } => (
                Self::SharedData {
                    parent: LogicalAddr(parent),
                },
                count,
            ),
            BackRef::Owner { .. } => return None,
        })
    }

    pub(crate) fn key_type(&self) -> KeyType {
        match self {
            Self::TreeBlock { .. } => KeyType::TREE_BLOCK_REF,
            Self::SharedBlock { .. } => KeyType::SHARED_BLOCK_REF,
            Self::ExtentData { .. } => KeyType::EXTENT_DATA_REF,
            Self::SharedData { .. } => KeyType::SHARED_DATA_REF,
        }
    }

    /// The offset of the reference's own item; inside an extent item, references of a type stand in
    /// its reverse order.
    pub(crate) fn sequence(&self) -> u64 {
        match self {
            Self::TreeBlock { root } => root.get(),
            Self::SharedBlock { parent } | Self::SharedData { parent } => parent.get(),
            Self::ExtentData { root, ino, offset } => extent_data_ref_hash(*root, *ino, *offset),
        }
    }

    /// Where the reference stands when it has an item of its own (hash collisions apart).
    pub(crate) fn key(&self, extent: LogicalAddr) -> Key {
        Key::new(ObjectId(extent.get()), self.key_type(), self.sequence())
    }
}
