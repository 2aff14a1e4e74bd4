//! What may be done with a volume: the one place that knows which features are supported.

use super::Superblock;
use crate::features::{compat_ro, flag_names, incompat, super_flags};

/// Features by the format's names, joined by commas; unnamed bits as numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported feature: {name}")]
pub struct UnsupportedFeature {
    /// The names, as messages show them.
    pub name: String,
}

/// What may be done with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// All features are known.
    ReadWrite,
    /// A feature that does not disturb readers.
    ReadOnly {
        /// What keeps it from being written.
        why: UnsupportedFeature,
    },
    /// A feature that changes what trees mean.
    Refused {
        /// What keeps it from being opened.
        why: UnsupportedFeature,
    },
}

/// Incompatible features of volumes that are opened.
pub const SUPPORTED_INCOMPAT: u64 = incompat::MIXED_BACKREF
    | incompat::DEFAULT_SUBVOL
    | incompat::MIXED_GROUPS
    | incompat::COMPRESS_LZO
    | incompat::COMPRESS_ZSTD
    | incompat::BIG_METADATA
    | incompat::EXTENDED_IREF
    | incompat::SKINNY_METADATA
    | incompat::NO_HOLES
    | incompat::METADATA_UUID
    | incompat::RAID1C34;
/// Features of volumes that are written. Verity is missing: its files must not change, and their
/// merkle trees are not read.
pub const SUPPORTED_COMPAT_RO: u64 =
    compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID | compat_ro::BLOCK_GROUP_TREE;
/// Sectors of volumes that are written. Others, which machines with larger pages made, are read.
const WRITABLE_SECTORSIZE_BYTES: u32 = 4096;
/// A conversion that was interrupted: only the tool that began it may go on.
const REFUSED_SUPER_FLAGS: u64 = !(super_flags::WRITTEN
    | super_flags::RELOC
    | super_flags::ERROR
    | super_flags::SEEDING
    | super_flags::METADUMP
    | super_flags::METADUMP_V2);
/// A volume that failed, a seed, or a copy without file data.
const READ_ONLY_SUPER_FLAGS: u64 =
    super_flags::ERROR | super_flags::SEEDING | super_flags::METADUMP | super_flags::METADUMP_V2;

impl Superblock {
    /// Decides by the feature bits, the flags and the sector size.
    pub fn access(&self) -> Access {
        let mut refused = flag_names(self.incompat_flags.get() & !SUPPORTED_INCOMPAT, incompat::NAMES);
        refused.extend(flag_names(self.flags.get() & REFUSED_SUPER_FLAGS, super_flags::NAMES));
        if !refused.is_empty() {
            return Access::Refused { why: feature(&refused) };
        }
        let compat_ro = self.compat_ro_flags.get();
        let mut read_only = flag_names(compat_ro & !SUPPORTED_COMPAT_RO, compat_ro::NAMES);
        read_only.extend(flag_names(self.flags.get() & READ_ONLY_SUPER_FLAGS, super_flags::NAMES));
        if compat_ro & (compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID) == compat_ro::FREE_SPACE_TREE {
            read_only.push("FREE_SPACE_TREE without FREE_SPACE_TREE_VALID".to_owned());
        }
        if self.sectorsize.get() != WRITABLE_SECTORSIZE_BYTES {
            read_only.push(format!("sector size {}", self.sectorsize));
        }
        if !read_only.is_empty() {
            return Access::ReadOnly {
                why: feature(&read_only),
            };
        }
        Access::ReadWrite
    }
}

fn feature(names: &[String]) -> UnsupportedFeature {
    UnsupportedFeature { name: names.join(", ") }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn superblock() -> Superblock {
        let mut sb = Superblock::new_zeroed();
        sb.sectorsize.set(4096);
        sb.incompat_flags.set(SUPPORTED_INCOMPAT);
        sb.compat_ro_flags.set(SUPPORTED_COMPAT_RO);
        sb.flags.set(super_flags::WRITTEN);
        sb
    }
    fn refused(name: &str) -> Access {
        Access::Refused {
            why: UnsupportedFeature { name: name.to_owned() },
        }
    }
    fn read_only(name: &str) -> Access {
        Access::ReadOnly {
            why: UnsupportedFeature { name: name.to_owned() },
        }
    }

    #[test]
    fn supported_features_allow_writing() {
        assert_eq!(superblock().access(), Access::ReadWrite);
        let mut old = superblock();
        old.incompat_flags.set(incompat::MIXED_BACKREF);
        old.compat_ro_flags.set(0);
        assert_eq!(old.access(), Access::ReadWrite);
    }

    #[test]
    fn incompatible_features_are_refused_by_name() {
        let mut sb = superblock();
        sb.incompat_flags.set(incompat::RAID56 | incompat::ZONED | 1 << 40);
        assert_eq!(sb.access(), refused("RAID56, ZONED, 0x10000000000"));
        let mut sb = superblock();
        sb.flags.set(super_flags::CHANGING_FSID_V2);
        assert_eq!(sb.access(), refused("CHANGING_FSID_V2"));
    }

    #[test]
    fn unknown_compat_ro_features_allow_reading() {
        let mut sb = superblock();
        sb.compat_ro_flags
            .set(SUPPORTED_COMPAT_RO | compat_ro::VERITY | 1 << 20);
        assert_eq!(sb.access(), read_only("VERITY, 0x100000"));
        let mut sb = superblock();
        sb.sectorsize.set(65536);
        assert_eq!(sb.access(), read_only("sector size 65536"));
        let mut sb = superblock();
        sb.flags.set(super_flags::SEEDING);
        assert_eq!(sb.access(), read_only("SEEDING"));
        let mut sb = superblock();
        sb.compat_ro_flags.set(compat_ro::FREE_SPACE_TREE);
        assert_eq!(sb.access(), read_only("FREE_SPACE_TREE without FREE_SPACE_TREE_VALID"));
    }
}
