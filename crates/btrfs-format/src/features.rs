//! Feature bits of the superblock and other flag sets; docs/format/superblock.md and the pages of
//! the structures that hold them.

pub use cowshed_layout::flag_names;

/// Declares the bits of a set, and `NAMES`, which messages and dumps use.
macro_rules! flags {
    ($($(#[$doc:meta])+ $name:ident = $bits:expr, $text:literal;)+) => {
        $($(#[$doc])+ pub const $name: u64 = $bits;)+

        /// Each bit with the format's name for it.
        pub const NAMES: &[(u64, &str)] = &[$(($name, $text)),+];
    };
}

/// `incompat_flags`: an implementation that does not know a bit must not touch the volume.
pub mod incompat {
    flags! {
        /// Back references of the current kind (revision 1); on every current volume.
        MIXED_BACKREF = 1 << 0, "MIXED_BACKREF";
        /// Another subvolume than the top level is mounted by default.
        DEFAULT_SUBVOL = 1 << 1, "DEFAULT_SUBVOL";
        /// Data and metadata may share block groups.
        MIXED_GROUPS = 1 << 2, "MIXED_GROUPS";
        /// Some extent may be compressed with LZO.
        COMPRESS_LZO = 1 << 3, "COMPRESS_LZO";
        /// Some extent may be compressed with zstd.
        COMPRESS_ZSTD = 1 << 4, "COMPRESS_ZSTD";
        /// Tree blocks may be larger than a page.
        BIG_METADATA = 1 << 5, "BIG_METADATA";
        /// Names that do not fit an `INODE_REF` item go to `INODE_EXTREF` items.
        EXTENDED_IREF = 1 << 6, "EXTENDED_IREF";
        /// Some chunk has the profile RAID5 or RAID6.
        RAID56 = 1 << 7, "RAID56";
        /// Tree blocks have `METADATA_ITEM`s, without a [`crate::items::TreeBlockInfo`].
        SKINNY_METADATA = 1 << 8, "SKINNY_METADATA";
        /// Holes of files have no items.
        NO_HOLES = 1 << 9, "NO_HOLES";
        /// Tree blocks carry `metadata_uuid`, not `fsid`.
        METADATA_UUID = 1 << 10, "METADATA_UUID";
        /// Some chunk has the profile RAID1C3 or RAID1C4.
        RAID1C34 = 1 << 11, "RAID1C34";
        /// The volume is written as zoned devices demand.
        ZONED = 1 << 12, "ZONED";
        /// The second version of the extent tree: in development, refused by kernels in use.
        EXTENT_TREE_V2 = 1 << 13, "EXTENT_TREE_V2";
        /// Stripes of data are mapped by a tree of their own.
        RAID_STRIPE_TREE = 1 << 14, "RAID_STRIPE_TREE";
        /// Quotas count for the subvolume that first wrote an extent.
        SIMPLE_QUOTA = 1 << 16, "SIMPLE_QUOTA";
    }
}

/// `flags` of the superblock; the low bits are those of tree block headers.
pub mod super_flags {
    flags! {
        /// The superblock was written.
        WRITTEN = 1 << 0, "WRITTEN";
        /// As in block headers.
        RELOC = 1 << 1, "RELOC";
        /// The volume failed and must not be written.
        ERROR = 1 << 2, "ERROR";
        /// A seed: other volumes grow from it, and it is only read.
        SEEDING = 1 << 32, "SEEDING";
        /// A copy of the metadata without file data, as btrfs-image makes it.
        METADUMP = 1 << 33, "METADUMP";
        /// The same, in the second version of that format.
        METADUMP_V2 = 1 << 34, "METADUMP_V2";
        /// btrfstune is rewriting the uuid in every block.
        CHANGING_FSID = 1 << 35, "CHANGING_FSID";
        /// btrfstune is moving the uuid to `metadata_uuid`.
        CHANGING_FSID_V2 = 1 << 36, "CHANGING_FSID_V2";
        /// btrfstune is moving block groups to or from their own tree.
        CHANGING_BG_TREE = 1 << 38, "CHANGING_BG_TREE";
        /// btrfstune is changing the checksum type; data comes first.
        CHANGING_DATA_CSUM = 1 << 39, "CHANGING_DATA_CSUM";
        /// btrfstune is changing the checksum type of the metadata.
        CHANGING_META_CSUM = 1 << 40, "CHANGING_META_CSUM";
    }
}

/// `compat_ro_flags`: an implementation that does not know a bit must not write.
pub mod compat_ro {
    flags! {
        /// There is a free-space tree.
        FREE_SPACE_TREE = 1 << 0, "FREE_SPACE_TREE";
        /// The free-space tree is up to date.
        FREE_SPACE_TREE_VALID = 1 << 1, "FREE_SPACE_TREE_VALID";
        /// Some file has fs-verity: it must not change.
        VERITY = 1 << 2, "VERITY";
        /// Block group items lie in a tree of their own.
        BLOCK_GROUP_TREE = 1 << 3, "BLOCK_GROUP_TREE";
    }
}

/// `type` of a chunk and `flags` of a block group.
pub mod block_group {
    flags! {
        /// File data.
        DATA = 1 << 0, "DATA";
        /// The chunk tree.
        SYSTEM = 1 << 1, "SYSTEM";
        /// All other trees.
        METADATA = 1 << 2, "METADATA";
        /// Striped over all devices, one copy.
        RAID0 = 1 << 3, "RAID0";
        /// Two copies on two devices.
        RAID1 = 1 << 4, "RAID1";
        /// Two copies on one device.
        DUP = 1 << 5, "DUP";
        /// Striped over pairs of devices, two copies.
        RAID10 = 1 << 6, "RAID10";
        /// Striped with one parity.
        RAID5 = 1 << 7, "RAID5";
        /// Striped with two parities.
        RAID6 = 1 << 8, "RAID6";
        /// Three copies on three devices.
        RAID1C3 = 1 << 9, "RAID1C3";
        /// Four copies on four devices.
        RAID1C4 = 1 << 10, "RAID1C4";
    }
    /// What the space is used for.
    pub const TYPE_MASK: u64 = DATA | SYSTEM | METADATA;
    /// How it lies on the devices; none of these bits is the profile `single`.
    pub const PROFILE_MASK: u64 = RAID0 | RAID1 | DUP | RAID10 | RAID5 | RAID6 | RAID1C3 | RAID1C4;
}

/// `flags` of an extent item.
pub mod extent_flags {
    flags! {
        /// The extent holds file data.
        DATA = 1 << 0, "DATA";
        /// The extent is a tree block.
        TREE_BLOCK = 1 << 1, "TREE_BLOCK";
        /// The block's references to its children name the block itself, not its owner tree.
        FULL_BACKREF = 1 << 8, "FULL_BACKREF";
    }
}

/// `flags` of a tree block's header.
pub mod header_flags {
    /// The block was written to disk.
    pub const WRITTEN: u64 = 1 << 0;
    /// The block was copied by relocation.
    pub const RELOC: u64 = 1 << 1;
    /// The back reference revision sits in the top byte: 1 on every current volume.
    pub const BACKREF_REV_SHIFT: u32 = 56;
    /// The current back reference revision.
    pub const MIXED_BACKREF_REV: u64 = 1;
    /// What every block of a current volume carries when it is written.
    pub const CURRENT: u64 = WRITTEN | MIXED_BACKREF_REV << BACKREF_REV_SHIFT;
}

/// `flags` of an inode item.
pub mod inode_flags {
    flags! {
        /// The file's data has no checksums.
        NODATASUM = 1 << 0, "NODATASUM";
        /// The file is overwritten in place.
        NODATACOW = 1 << 1, "NODATACOW";
        /// Defined, and not used by Linux.
        READONLY = 1 << 2, "READONLY";
        /// The file is not compressed (chattr +m, or compression did not pay).
        NOCOMPRESS = 1 << 3, "NOCOMPRESS";
        /// The file has preallocated extents.
        PREALLOC = 1 << 4, "PREALLOC";
        /// chattr +S: writes are synchronous.
        SYNC = 1 << 5, "SYNC";
        /// chattr +i: nothing of the file may change.
        IMMUTABLE = 1 << 6, "IMMUTABLE";
        /// chattr +a: the file may only grow.
        APPEND = 1 << 7, "APPEND";
        /// chattr +d: dump(8) leaves the file out.
        NODUMP = 1 << 8, "NODUMP";
        /// chattr +A: reads do not change the access time.
        NOATIME = 1 << 9, "NOATIME";
        /// chattr +D: changes of the directory are synchronous.
        DIRSYNC = 1 << 10, "DIRSYNC";
        /// chattr +c: the file is compressed.
        COMPRESS = 1 << 11, "COMPRESS";
        /// In the inode of a root item: its flags and byte limit are initialised.
        ROOT_ITEM_INIT = 1 << 31, "ROOT_ITEM_INIT";
        /// The file has fs-verity. Read-only compatible flags lie in the field's upper half.
        RO_VERITY = 1 << 32, "VERITY";
    }
    /// Every flag that the format defines.
    pub const KNOWN: u64 = 0xfff | ROOT_ITEM_INIT | RO_VERITY;
}

/// `flags` of a root item.
pub mod root_flags {
    flags! {
        /// The subvolume is read-only.
        SUBVOL_RDONLY = 1 << 0, "RDONLY";
        /// The subvolume is being deleted.
        SUBVOL_DEAD = 1 << 48, "DEAD";
    }
}
