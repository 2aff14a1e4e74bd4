//! Addresses, object ids, tree ids and generations as types of their own.

use std::fmt;

/// A UUID as it lies on disk.
pub type Uuid = [u8; 16];

macro_rules! id_type {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(
            /// The plain number.
            pub u64,
        );

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
    /// The tree of roots.
    pub const ROOT: Self = Self(1);
    /// Extents and their back references.
    pub const EXTENT: Self = Self(2);
    /// Chunks: the map from logical addresses to devices.
    pub const CHUNK: Self = Self(3);
    /// Extents of the devices, and their state.
    pub const DEV: Self = Self(4);
    /// The top-level subvolume.
    pub const FS: Self = Self(5);
    /// Checksums of file data.
    pub const CSUM: Self = Self(7);
    /// Quota groups.
    pub const QUOTA: Self = Self(8);
    /// Subvolumes by uuid.
    pub const UUID: Self = Self(9);
    /// Free space of the block groups.
    pub const FREE_SPACE: Self = Self(10);
    /// Block group items, where they have a tree of their own.
    pub const BLOCK_GROUP: Self = Self(11);
    /// Stripes of data, on volumes with that feature.
    pub const RAID_STRIPE: Self = Self(12);
    /// The log of fsync: the tree of log roots, and each log tree.
    pub const TREE_LOG: Self = Self(u64::MAX - 5);
    /// Trees that exist while a balance relocates blocks.
    pub const TREE_RELOC: Self = Self(u64::MAX - 7);
    /// The subvolume that holds data while it is relocated.
    pub const DATA_RELOC: Self = Self(u64::MAX - 8);

    /// True for trees whose blocks snapshots may share: subvolumes and the data relocation tree.
    pub const fn is_subvolume(self) -> bool {
        self.0 == Self::FS.0 || (self.0 >= ObjectId::FIRST_FREE.0 && self.0 <= ObjectId::LAST_FREE.0)
    }
    /// True where the tree holds files: subvolumes and the data relocation tree.
    pub const fn is_fs_tree(self) -> bool {
        self.is_subvolume() || self.0 == Self::DATA_RELOC.0
    }
    /// As the first part of a key in the root tree.
    pub const fn object_id(self) -> ObjectId {
        ObjectId(self.0)
    }
}

impl ObjectId {
    /// Device items in the chunk tree.
    pub const DEV_ITEMS: Self = Self(1);
    /// The directory of the root tree that names the default subvolume.
    pub const ROOT_TREE_DIR: Self = Self(6);
    /// Error counters in the device tree.
    pub const DEV_STATS: Self = Self(0);
    /// Chunk items in the chunk tree.
    pub const FIRST_CHUNK_TREE: Self = Self(256);
    /// First number of ordinary objects: inodes in a subvolume, subvolumes in the root tree.
    pub const FIRST_FREE: Self = Self(256);
    /// Last number of ordinary objects.
    pub const LAST_FREE: Self = Self(u64::MAX - 255);
    /// The state of an interrupted balance.
    pub const BALANCE: Self = Self(u64::MAX - 3);
    /// Orphan items.
    pub const ORPHAN: Self = Self(u64::MAX - 4);
    /// The log.
    pub const TREE_LOG: Self = Self(u64::MAX - 5);
    /// Link counts to be mended while a log is replayed.
    pub const TREE_LOG_FIXUP: Self = Self(u64::MAX - 6);
    /// Checksums of data in the checksum tree.
    pub const EXTENT_CSUM: Self = Self(u64::MAX - 9);
    /// Headers of the version 1 space cache.
    pub const FREE_SPACE: Self = Self(u64::MAX - 10);
    /// The version 1 cache of free inode numbers.
    pub const FREE_INO: Self = Self(u64::MAX - 11);
    /// The directory above the mounted root of a subvolume, standing in where that subvolume was
    /// snapshotted over.
    pub const EMPTY_SUBVOL_DIR: Self = Self(2);
    /// Object id of the btree inode in old volumes.
    pub const BTREE_INODE: Self = Self(1);

    /// The tree that a key of the root tree is about.
    pub const fn tree_id(self) -> TreeId {
        TreeId(self.0)
    }
}
