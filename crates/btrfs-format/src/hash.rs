//! The hashes that appear inside keys.

use crate::ids::{ObjectId, TreeId};

/// crc32c without the final and initial inversion that the usual function applies, from `seed`.
pub fn crc32c_raw(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// The offset of a `DIR_ITEM` or `XATTR_ITEM` key for a name.
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(crc32c_raw(!1, name))
}

/// The offset of an `INODE_EXTREF` key for a name in a parent directory.
pub fn extref_hash(parent: ObjectId, name: &[u8]) -> u64 {
    // The parent's number seeds the hash: only its low 32 bits count.
    let seed = u32::try_from(parent.0 & 0xffff_ffff).unwrap_or_default();
    u64::from(crc32c_raw(seed, name))
}

/// The offset of an `EXTENT_DATA_REF` key, and the order of keyed data references inside an extent
/// item.
pub fn extent_data_ref_hash(root: TreeId, objectid: ObjectId, offset: u64) -> u64 {
    let high = crc32c_raw(!0, &root.0.to_le_bytes());
    let low = crc32c_raw(crc32c_raw(!0, &objectid.0.to_le_bytes()), &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_default_hashes_as_on_linux_volumes() {
        // Every volume has this key in its root tree: (ROOT_TREE_DIR DIR_ITEM 2378154706).
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }
}
