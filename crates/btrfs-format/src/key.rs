//! Keys: how every item of every tree is addressed and ordered.

use std::fmt;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{ObjectId, Uuid};
use cowshed_layout::on_disk;

/// The type of an item; the second part of its key.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, FromBytes, IntoBytes, Unaligned, KnownLayout, Immutable,
)]
#[repr(transparent)]
pub struct KeyType(
    /// The number on disk.
    pub u8,
);

macro_rules! key_types {
    ($($name:ident = $value:literal),+ $(,)?) => {
        impl KeyType {
            $(
                #[doc = concat!("Type ", stringify!($value), "; docs/format/keys.md.")]
                pub const $name: Self = Self($value);
            )+

            /// The format's name of the type; `None` where it has none.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

key_types! {
    UNTYPED = 0,
    INODE_ITEM = 1,
    INODE_REF = 12,
    INODE_EXTREF = 13,
    XATTR_ITEM = 24,
    VERITY_DESC_ITEM = 36,
    VERITY_MERKLE_ITEM = 37,
    ORPHAN_ITEM = 48,
    DIR_LOG_ITEM = 60,
    DIR_LOG_INDEX = 72,
    DIR_ITEM = 84,
    DIR_INDEX = 96,
    EXTENT_DATA = 108,
    CSUM_ITEM = 120,
    EXTENT_CSUM = 128,
    ROOT_ITEM = 132,
    ROOT_BACKREF = 144,
    ROOT_REF = 156,
    EXTENT_ITEM = 168,
    METADATA_ITEM = 169,
    EXTENT_OWNER_REF = 172,
    TREE_BLOCK_REF = 176,
    EXTENT_DATA_REF = 178,
    SHARED_BLOCK_REF = 182,
    SHARED_DATA_REF = 184,
    BLOCK_GROUP_ITEM = 192,
    FREE_SPACE_INFO = 198,
    FREE_SPACE_EXTENT = 199,
    FREE_SPACE_BITMAP = 200,
    DEV_EXTENT = 204,
    DEV_ITEM = 216,
    CHUNK_ITEM = 228,
    RAID_STRIPE = 230,
    QGROUP_STATUS = 240,
    QGROUP_INFO = 242,
    QGROUP_LIMIT = 244,
    QGROUP_RELATION = 246,
    TEMPORARY_ITEM = 248,
    PERSISTENT_ITEM = 249,
    DEV_REPLACE = 250,
    UUID_SUBVOL = 251,
    UUID_RECEIVED_SUBVOL = 252,
    STRING_ITEM = 253,
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "UNKNOWN.{}", self.0),
        }
    }
}

impl fmt::Debug for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key in memory. Ordered as the trees are: object id, type, offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// The object that the item belongs to.
    pub objectid: ObjectId,
    /// The type of the item.
    pub ty: KeyType,
    /// Meaning depends on the type: a file offset, a name hash, a length, a parent inode ...
    pub offset: u64,
}

impl Key {
    /// The smallest key.
    pub const MIN: Self = Self::new(ObjectId(0), KeyType(0), 0);
    /// The largest key.
    pub const MAX: Self = Self::new(ObjectId(u64::MAX), KeyType(u8::MAX), u64::MAX);

    /// A key of its three parts.
    pub const fn new(objectid: ObjectId, ty: KeyType, offset: u64) -> Self {
        Self { objectid, ty, offset }
    }

    /// Key of the uuid tree's item for a uuid, which is its first and last part: `ty` is
    /// `UUID_SUBVOL` or `UUID_RECEIVED_SUBVOL`.
    pub const fn of_uuid(uuid: &Uuid, ty: KeyType) -> Self {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *uuid;
        let objectid = ObjectId(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        Self::new(objectid, ty, u64::from_le_bytes(rest))
    }

    /// The smallest key above this one; `None` above [`Key::MAX`].
    pub fn next(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..self });
        }
        if let Some(ty) = self.ty.0.checked_add(1) {
            return Some(Self {
                ty: KeyType(ty),
                offset: 0,
                ..self
            });
        }
        let objectid = ObjectId(self.objectid.0.checked_add(1)?);
        Some(Self {
            objectid,
            ty: KeyType(0),
            offset: 0,
        })
    }

    /// The largest key below this one; `None` below [`Key::MIN`].
    pub fn prev(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_sub(1) {
            return Some(Self { offset, ..self });
        }
        if let Some(ty) = self.ty.0.checked_sub(1) {
            return Some(Self {
                ty: KeyType(ty),
                offset: u64::MAX,
                ..self
            });
        }
        let objectid = ObjectId(self.objectid.0.checked_sub(1)?);
        Some(Self {
            objectid,
            ty: KeyType(u8::MAX),
            offset: u64::MAX,
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.objectid, self.ty, self.offset)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

on_disk!(
    /// `btrfs_disk_key`.
    /// docs/format/keys.md
    #[derive(Default)]
    DiskKey(17) { objectid: U64, ty: KeyType, offset: U64 }
);

impl From<DiskKey> for Key {
    fn from(raw: DiskKey) -> Self {
        Self {
            objectid: raw.objectid.into(),
            ty: raw.ty,
            offset: raw.offset.get(),
        }
    }
}

impl From<Key> for DiskKey {
    fn from(key: Key) -> Self {
        Self {
            objectid: key.objectid.into(),
            ty: key.ty,
            offset: U64::new(key.offset),
        }
    }
}
