//! Feature bits of the superblock and other flag sets, each bit with the format's name;
//! docs/format/xfs/superblock.md and the pages of the structures that hold them.

pub use cowshed_layout::flag_names;

/// Declares the bits of a set, and `NAMES`, which messages and dumps use.
macro_rules! flags {
    ($($(#[$doc:meta])+ $name:ident = $bits:expr, $text:literal;)+) => {
        $($(#[$doc])+ pub const $name: u64 = $bits;)+

        /// Each bit with the format's name for it.
        pub const NAMES: &[(u64, &str)] = &[$(($name, $text)),+];
        /// All bits that have a name.
        pub const KNOWN: u64 = $($name)|+;
    };
}

/// `versionnum`: the version in the low four bits, and features of the time before V5.
pub mod version {
    flags! {
        /// Some inode has attributes.
        ATTR = 0x10, "ATTR";
        /// Link counts of 32 bits: inodes of version 2.
        NLINK = 0x20, "NLINK";
        /// Quotas were on.
        QUOTA = 0x40, "QUOTA";
        /// Inode chunks are aligned to `inoalignmt`.
        ALIGN = 0x80, "ALIGN";
        /// `unit` and `width` are used.
        DALIGN = 0x100, "DALIGN";
        /// `shared_vn` is used: read-only volumes that hosts share.
        SHARED = 0x200, "SHARED";
        /// Records of the log have version 2.
        LOGV2 = 0x400, "LOGV2";
        /// Sectors are larger than 512 bytes.
        SECTOR = 0x800, "SECTOR";
        /// Extents may be unwritten.
        EXTFLG = 0x1000, "EXTFLG";
        /// Directories have version 2.
        DIRV2 = 0x2000, "DIRV2";
        /// Names are compared without regard to case.
        ASCII_CI = 0x4000, "ASCII_CI";
        /// `features2` is used.
        MOREBITS = 0x8000, "MOREBITS";
    }
    /// The version's number.
    pub const NUMBER_MASK: u64 = 0xf;
}

/// `features2`, where [`version::MOREBITS`] is set.
pub mod features2 {
    flags! {
        /// Counters of the superblock are written at a clean end alone.
        LAZYSBCOUNT = 0x2, "LAZYSBCOUNT";
        /// Inline attributes share the inode's space with the data fork as needed.
        ATTR2 = 0x8, "ATTR2";
        /// Parent pointers of an early design, never in use.
        PARENT = 0x10, "PARENT_V4";
        /// Project ids of 32 bits.
        PROJID32 = 0x80, "PROJID32";
        /// Metadata has checksums: set together with version 5.
        CRC = 0x100, "CRC";
        /// Directory entries hold the type of the file, on V4.
        FTYPE = 0x200, "FTYPE";
    }
}

/// `features_compat`: an implementation that does not know a bit may do as if it were not there.
pub mod compat {
    /// None is defined.
    pub const NAMES: &[(u64, &str)] = &[];
}

/// `features_ro_compat`: an implementation that does not know a bit must not write.
pub mod ro_compat {
    flags! {
        /// A B-tree of inode chunks that have free inodes.
        FINOBT = 1 << 0, "FINOBT";
        /// A B-tree of all owners of blocks.
        RMAPBT = 1 << 1, "RMAPBT";
        /// Files may share blocks; a B-tree counts references.
        REFLINK = 1 << 2, "REFLINK";
        /// The AGI counts the blocks of its trees.
        INOBTCNT = 1 << 3, "INOBTCNT";
    }
}

/// `features_incompat`: an implementation that does not know a bit must not touch the volume.
pub mod incompat {
    flags! {
        /// Directory entries hold the type of the file.
        FTYPE = 1 << 0, "FTYPE";
        /// Inode chunks may have holes.
        SPINODES = 1 << 1, "SPINODES";
        /// Metadata carries `meta_uuid`, not `uuid`.
        META_UUID = 1 << 2, "META_UUID";
        /// Times of inodes and quotas reach to the year 2486.
        BIGTIME = 1 << 3, "BIGTIME";
        /// A repair was interrupted.
        NEEDSREPAIR = 1 << 4, "NEEDSREPAIR";
        /// Counts of extents have 48 and 32 bits.
        NREXT64 = 1 << 5, "NREXT64";
        /// Mappings of two files may be exchanged, with intents in the log.
        EXCHRANGE = 1 << 6, "EXCHRANGE";
        /// Each link has a parent pointer among the file's attributes.
        PARENT = 1 << 7, "PARENT";
        /// Inodes of metadata lie in a directory tree of their own.
        METADIR = 1 << 8, "METADIR";
        /// The realtime device has zones.
        ZONED = 1 << 9, "ZONED";
        /// Zones of the realtime device have gaps behind them.
        ZONE_GAPS = 1 << 10, "ZONE_GAPS";
    }
}

/// `features_log_incompat`: an implementation that does not know a bit must not recover the log.
pub mod log_incompat {
    flags! {
        /// The log may hold intents to change attributes.
        XATTRS = 1 << 0, "XATTRS";
    }
}

/// `qflags`: the state of quotas.
pub mod quota {
    flags! {
        /// User quota is accounted.
        UQUOTA_ACCT = 1 << 0, "UQUOTA_ACCT";
        /// User quota is enforced.
        UQUOTA_ENFD = 1 << 1, "UQUOTA_ENFD";
        /// User quota was counted.
        UQUOTA_CHKD = 1 << 2, "UQUOTA_CHKD";
        /// Project quota is accounted.
        PQUOTA_ACCT = 1 << 3, "PQUOTA_ACCT";
        /// Group or project quota is enforced, on V4.
        OQUOTA_ENFD = 1 << 4, "OQUOTA_ENFD";
        /// Group or project quota was counted, on V4.
        OQUOTA_CHKD = 1 << 5, "OQUOTA_CHKD";
        /// Group quota is accounted.
        GQUOTA_ACCT = 1 << 6, "GQUOTA_ACCT";
        /// Group quota is enforced.
        GQUOTA_ENFD = 1 << 7, "GQUOTA_ENFD";
        /// Group quota was counted.
        GQUOTA_CHKD = 1 << 8, "GQUOTA_CHKD";
        /// Project quota is enforced.
        PQUOTA_ENFD = 1 << 9, "PQUOTA_ENFD";
        /// Project quota was counted.
        PQUOTA_CHKD = 1 << 10, "PQUOTA_CHKD";
    }
}

/// `flags` of the superblock.
pub mod super_flags {
    flags! {
        /// Only to be mounted for reading.
        READONLY = 1 << 0, "READONLY";
    }
}

/// `flags` of an inode.
pub mod inode_flags {
    flags! {
        /// The data lies on the realtime device.
        REALTIME = 1 << 0, "REALTIME";
        /// Blocks were allocated in advance.
        PREALLOC = 1 << 1, "PREALLOC";
        /// The bitmap inode of the realtime device has the new format.
        NEWRTBM = 1 << 2, "NEWRTBM";
        /// Cannot be changed.
        IMMUTABLE = 1 << 3, "IMMUTABLE";
        /// Writes only append.
        APPEND = 1 << 4, "APPEND";
        /// Writes are synchronous.
        SYNC = 1 << 5, "SYNC";
        /// The access time is not kept.
        NOATIME = 1 << 6, "NOATIME";
        /// Not to be dumped.
        NODUMP = 1 << 7, "NODUMP";
        /// New files below get `REALTIME`.
        RTINHERIT = 1 << 8, "RTINHERIT";
        /// New files below get the directory's project.
        PROJINHERIT = 1 << 9, "PROJINHERIT";
        /// No symlinks in this directory.
        NOSYMLINKS = 1 << 10, "NOSYMLINKS";
        /// `extsize` is used.
        EXTSIZE = 1 << 11, "EXTSIZE";
        /// New files below get `extsize`.
        EXTSZINHERIT = 1 << 12, "EXTSZINHERIT";
        /// Not to be defragmented.
        NODEFRAG = 1 << 13, "NODEFRAG";
        /// Files below are placed as streams.
        FILESTREAM = 1 << 14, "FILESTREAM";
    }
}

/// `flags2` of an inode of version 3.
pub mod inode_flags2 {
    flags! {
        /// Direct access to persistent memory.
        DAX = 1 << 0, "DAX";
        /// Some block may be shared.
        REFLINK = 1 << 1, "REFLINK";
        /// `cowextsize` is used.
        COWEXTSIZE = 1 << 2, "COWEXTSIZE";
        /// Times are counters of nanoseconds.
        BIGTIME = 1 << 3, "BIGTIME";
        /// Counts of extents have 48 and 32 bits.
        NREXT64 = 1 << 4, "NREXT64";
        /// The inode belongs to the volume's metadata.
        METADATA = 1 << 5, "METADATA";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_one_name_each() {
        for names in [
            version::NAMES,
            features2::NAMES,
            ro_compat::NAMES,
            incompat::NAMES,
            log_incompat::NAMES,
            quota::NAMES,
            inode_flags::NAMES,
            inode_flags2::NAMES,
        ] {
            let bits: u64 = names.iter().map(|(bit, _)| bit).sum();
            assert_eq!(u64::from(bits.count_ones()), names.len() as u64);
        }
        assert_eq!(incompat::KNOWN, 0x7ff);
    }
}
