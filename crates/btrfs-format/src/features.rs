//! Feature bits of the superblock and other flag sets.

/// `incompat_flags`: who does not know a bit must not touch the volume.
pub mod incompat {
    pub const MIXED_BACKREF: u64 = 1 << 0;
    pub const DEFAULT_SUBVOL: u64 = 1 << 1;
    pub const MIXED_GROUPS: u64 = 1 << 2;
    pub const COMPRESS_LZO: u64 = 1 << 3;
    pub const COMPRESS_ZSTD: u64 = 1 << 4;
    pub const BIG_METADATA: u64 = 1 << 5;
    pub const EXTENDED_IREF: u64 = 1 << 6;
    pub const RAID56: u64 = 1 << 7;
    pub const SKINNY_METADATA: u64 = 1 << 8;
    pub const NO_HOLES: u64 = 1 << 9;
    pub const METADATA_UUID: u64 = 1 << 10;
    pub const RAID1C34: u64 = 1 << 11;
    pub const ZONED: u64 = 1 << 12;
    pub const EXTENT_TREE_V2: u64 = 1 << 13;
    pub const RAID_STRIPE_TREE: u64 = 1 << 14;
    pub const SIMPLE_QUOTA: u64 = 1 << 16;

    pub const NAMES: &[(u64, &str)] = &[
        (MIXED_BACKREF, "MIXED_BACKREF"),
        (DEFAULT_SUBVOL, "DEFAULT_SUBVOL"),
        (MIXED_GROUPS, "MIXED_GROUPS"),
        (COMPRESS_LZO, "COMPRESS_LZO"),
        (COMPRESS_ZSTD, "COMPRESS_ZSTD"),
        (BIG_METADATA, "BIG_METADATA"),
        (EXTENDED_IREF, "EXTENDED_IREF"),
        (RAID56, "RAID56"),
        (SKINNY_METADATA, "SKINNY_METADATA"),
        (NO_HOLES, "NO_HOLES"),
        (METADATA_UUID, "METADATA_UUID"),
        (RAID1C34, "RAID1C34"),
        (ZONED, "ZONED"),
        (EXTENT_TREE_V2, "EXTENT_TREE_V2"),
        (RAID_STRIPE_TREE, "RAID_STRIPE_TREE"),
        (SIMPLE_QUOTA, "SIMPLE_QUOTA"),
    ];
}

/// `flags` of the superblock; the low bits are those of tree block headers.
pub mod super_flags {
    pub const WRITTEN: u64 = 1 << 0;
    pub const RELOC: u64 = 1 << 1;
    pub const ERROR: u64 = 1 << 2;
    pub const SEEDING: u64 = 1 << 32;
    pub const METADUMP: u64 = 1 << 33;
    pub const METADUMP_V2: u64 = 1 << 34;
    pub const CHANGING_FSID: u64 = 1 << 35;
    pub const CHANGING_FSID_V2: u64 = 1 << 36;
    pub const CHANGING_BG_TREE: u64 = 1 << 38;
    pub const CHANGING_DATA_CSUM: u64 = 1 << 39;
    pub const CHANGING_META_CSUM: u64 = 1 << 40;

    pub const NAMES: &[(u64, &str)] = &[
        (WRITTEN, "WRITTEN"),
        (RELOC, "RELOC"),
        (ERROR, "ERROR"),
        (SEEDING, "SEEDING"),
        (METADUMP, "METADUMP"),
        (METADUMP_V2, "METADUMP_V2"),
        (CHANGING_FSID, "CHANGING_FSID"),
        (CHANGING_FSID_V2, "CHANGING_FSID_V2"),
        (CHANGING_BG_TREE, "CHANGING_BG_TREE"),
        (CHANGING_DATA_CSUM, "CHANGING_DATA_CSUM"),
        (CHANGING_META_CSUM, "CHANGING_META_CSUM"),
    ];
}

/// `compat_ro_flags`: who does not know a bit must not write.
pub mod compat_ro {
    pub const FREE_SPACE_TREE: u64 = 1 << 0;
    pub const FREE_SPACE_TREE_VALID: u64 = 1 << 1;
    pub const VERITY: u64 = 1 << 2;
    pub const BLOCK_GROUP_TREE: u64 = 1 << 3;

    pub const NAMES: &[(u64, &str)] = &[
        (FREE_SPACE_TREE, "FREE_SPACE_TREE"),
        (FREE_SPACE_TREE_VALID, "FREE_SPACE_TREE_VALID"),
        (VERITY, "VERITY"),
        (BLOCK_GROUP_TREE, "BLOCK_GROUP_TREE"),
    ];
}

/// `type` of a chunk and `flags` of a block group.
pub mod block_group {
    pub const DATA: u64 = 1 << 0;
    pub const SYSTEM: u64 = 1 << 1;
    pub const METADATA: u64 = 1 << 2;
    pub const RAID0: u64 = 1 << 3;
    pub const RAID1: u64 = 1 << 4;
    pub const DUP: u64 = 1 << 5;
    pub const RAID10: u64 = 1 << 6;
    pub const RAID5: u64 = 1 << 7;
    pub const RAID6: u64 = 1 << 8;
    pub const RAID1C3: u64 = 1 << 9;
    pub const RAID1C4: u64 = 1 << 10;
    pub const TYPE_MASK: u64 = DATA | SYSTEM | METADATA;
    pub const PROFILE_MASK: u64 = RAID0 | RAID1 | DUP | RAID10 | RAID5 | RAID6 | RAID1C3 | RAID1C4;
    pub const NAMES: &[(u64, &str)] = &[
        (DATA, "DATA"),
        (SYSTEM, "SYSTEM"),
        (METADATA, "METADATA"),
        (RAID0, "RAID0"),
        (RAID1, "RAID1"),
        (DUP, "DUP"),
        (RAID10, "RAID10"),
        (RAID5, "RAID5"),
        (RAID6, "RAID6"),
        (RAID1C3, "RAID1C3"),
        (RAID1C4, "RAID1C4"),
    ];
}

/// `flags` of an extent item.
pub mod extent_flags {
    pub const DATA: u64 = 1 << 0;
    pub const TREE_BLOCK: u64 = 1 << 1;
    /// The block's references to its children name the block itself, not its owner tree.
    pub const FULL_BACKREF: u64 = 1 << 8;
    pub const NAMES: &[(u64, &str)] = &[
        (DATA, "DATA"),
        (TREE_BLOCK, "TREE_BLOCK"),
        (FULL_BACKREF, "FULL_BACKREF"),
    ];
}

/// `flags` of a tree block's header.
pub mod header_flags {
    pub const WRITTEN: u64 = 1 << 0;
    pub const RELOC: u64 = 1 << 1;
    /// The back reference revision sits in the top byte: 1 on every current volume.
    pub const BACKREF_REV_SHIFT: u32 = 56;
    pub const MIXED_BACKREF_REV: u64 = 1;
    /// What every block of a current volume carries when it is written.
    pub const CURRENT: u64 = WRITTEN | MIXED_BACKREF_REV << BACKREF_REV_SHIFT;
}

/// `flags` of an inode item.
pub mod inode_flags {
    pub const NODATASUM: u64 = 1 << 0;
    pub const NODATACOW: u64 = 1 << 1;
    pub const READONLY: u64 = 1 << 2;
    pub const NOCOMPRESS: u64 = 1 << 3;
    pub const PREALLOC: u64 = 1 << 4;
    pub const SYNC: u64 = 1 << 5;
    pub const IMMUTABLE: u64 = 1 << 6;
    pub const APPEND: u64 = 1 << 7;
    pub const NODUMP: u64 = 1 << 8;
    pub const NOATIME: u64 = 1 << 9;
    pub const DIRSYNC: u64 = 1 << 10;
    pub const COMPRESS: u64 = 1 << 11;
    pub const ROOT_ITEM_INIT: u64 = 1 << 31;
    /// Read-only compatible flags live in the upper half of the field.
    pub const RO_VERITY: u64 = 1 << 32;

    /// Every flag that the format defines.
    pub const KNOWN: u64 = 0xfff | ROOT_ITEM_INIT | RO_VERITY;
    pub const NAMES: &[(u64, &str)] = &[
        (NODATASUM, "NODATASUM"),
        (NODATACOW, "NODATACOW"),
        (READONLY, "READONLY"),
        (NOCOMPRESS, "NOCOMPRESS"),
        (PREALLOC, "PREALLOC"),
        (SYNC, "SYNC"),
        (IMMUTABLE, "IMMUTABLE"),
        (APPEND, "APPEND"),
        (NODUMP, "NODUMP"),
        (NOATIME, "NOATIME"),
        (DIRSYNC, "DIRSYNC"),
        (COMPRESS, "COMPRESS"),
        (ROOT_ITEM_INIT, "ROOT_ITEM_INIT"),
        (RO_VERITY, "VERITY"),
    ];
}

/// `flags` of a root item.
pub mod root_flags {
    pub const SUBVOL_RDONLY: u64 = 1 << 0;
    pub const SUBVOL_DEAD: u64 = 1 << 48;
    pub const NAMES: &[(u64, &str)] = &[(SUBVOL_RDONLY, "RDONLY"), (SUBVOL_DEAD, "DEAD")];
}

/// The names of the bits set in `bits`; bits without a name come as `0x..`.
pub fn flag_names(bits: u64, names: &[(u64, &str)]) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = bits;
    for (bit, name) in names {
        if rest & bit != 0 {
            out.push((*name).to_owned());
            rest &= !bit;
        }
    }
    if rest != 0 {
        out.push(format!("{rest:#x}"));
    }
    out
}
