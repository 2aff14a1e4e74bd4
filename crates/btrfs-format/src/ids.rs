//! Addresses, object ids, tree ids and generations as types of their own.

use std::fmt;

/// A UUID as it lies on disk.
pub type Uuid = [u8; 16];

macro_rules! id_type {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The plain number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl From<zerocopy::little_endian::U64> for $name {
            fn from(raw: zerocopy::little_endian::U64) -> Self {
                Self(raw.get())
            }
        }

        impl From<$name> for zerocopy::little_endian::U64 {
            fn from(id: $name) -> Self {
                Self::new(id.0)
            }
        }
    };
}

id_type!(
    /// A byte address in the volume's logical address space; the chunk tree maps it to devices.
    LogicalAddr
);
id_type!(
    /// The first part of a key: an inode number, a tree id, or one of the reserved ids.
    ObjectId
);
id_type!(
    /// A transaction number.
    Generation
);
id_type!(
    /// The object id of a tree.
    TreeId
);
id_type!(
    /// A device's number within its volume, from 1.
    DevId
);

impl LogicalAddr {
    /// The address `len_bytes` further on; `None` on overflow.
    pub fn checked_add(self, len_bytes: u64) -> Option<Self> {
        self.0.checked_add(len_bytes).map(Self)
    }
}

impl Generation {
    /// The transaction after this one.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl TreeId {
    pub const ROOT: Self = Self(1);
    pub const EXTENT: Self = Self(2);
    pub const CHUNK: Self = Self(3);
    pub const DEV: Self = Self(4);
    /// The top-level subvolume.
    pub const FS: Self = Self(5);
    pub const CSUM: Self = Self(7);
    pub const QUOTA: Self = Self(8);
    pub const UUID: Self = Self(9);
    pub const FREE_SPACE: Self = Self(10);
    pub const BLOCK_GROUP: Self = Self(11);
    pub const RAID_STRIPE: Self = Self(12);
    pub const TREE_LOG: Self = Self(u64::MAX - 5);
    pub const TREE_RELOC: Self = Self(u64::MAX - 7);
    pub const DATA_RELOC: Self = Self(u64::MAX - 8);

    /// True for trees whose blocks snapshots may share: subvolumes and the data relocation tree.
    pub const fn is_subvolume(self) -> bool {
        self.0 == Self::FS.0 || (self.0 >= ObjectId::FIRST_FREE.0 && self.0 <= ObjectId::LAST_FREE.0)
    }
    /// True where the tree holds files: subvolumes and the data relocation tree.
    pub const fn is_fs_tree(self) -> bool {
        self.is_subvolume() || self.0 == Self::DATA_RELOC.0
    }
    pub const fn object_id(self) -> ObjectId {
        ObjectId(self.0)
    }
}

impl ObjectId {
    pub const DEV_ITEMS: Self = Self(1);
    pub const ROOT_TREE_DIR: Self = Self(6);
    pub const DEV_STATS: Self = Self(0);
    pub const FIRST_CHUNK_TREE: Self = Self(256);
    /// First number of ordinary objects: inodes in a subvolume, subvolumes in the root tree.
    pub const FIRST_FREE: Self = Self(256);
    pub const LAST_FREE: Self = Self(u64::MAX - 255);
    pub const BALANCE: Self = Self(u64::MAX - 3);
    pub const ORPHAN: Self = Self(u64::MAX - 4);
    pub const TREE_LOG: Self = Self(u64::MAX - 5);
    pub const TREE_LOG_FIXUP: Self = Self(u64::MAX - 6);
    pub const EXTENT_CSUM: Self = Self(u64::MAX - 9);
    pub const FREE_SPACE: Self = Self(u64::MAX - 10);
    pub const FREE_INO: Self = Self(u64::MAX - 11);
    /// The directory above the mounted root of a subvolume, standing in where that subvolume was snapshotted over.
    pub const EMPTY_SUBVOL_DIR: Self = Self(2);
    /// Object id of the btree inode in old volumes.
    pub const BTREE_INODE: Self = Self(1);

    pub const fn tree_id(self) -> TreeId {
        TreeId(self.0)
    }
}
