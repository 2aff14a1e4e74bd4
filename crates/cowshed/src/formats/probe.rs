//! Recognising a format by its magic number.

use std::fmt;

use cowshed_device::BlockDevice;

/// The magic number of XFS, at the start of the device.
const XFS_MAGIC: &[u8; 4] = b"XFSB";
/// The magic number of btrfs, in its first superblock.
const BTRFS_MAGIC: &[u8; 8] = b"_BHRfS_M";
const BTRFS_MAGIC_OFFSET: u64 = (64 << 10) + 0x40;

/// A format that volumes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// btrfs.
    Btrfs,
    /// XFS.
    Xfs,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Btrfs => "btrfs",
            Self::Xfs => "XFS",
        })
    }
}

/// The format whose magic number is on a device.
///
/// mkfs.btrfs leaves the start of a device alone if it is forced to: where both are found it is
/// btrfs, whose magic number any other mkfs overwrites or wipes.
pub fn probe(device: &dyn BlockDevice) -> Option<Format> {
    let has = |magic: &[u8], offset| {
        let mut found = [0; 8];
        let found = &mut found[..magic.len()];
        device.read_at(offset, found).is_ok() && found == magic
    };
    if has(BTRFS_MAGIC, BTRFS_MAGIC_OFFSET) {
        return Some(Format::Btrfs);
    }
    has(XFS_MAGIC, 0).then_some(Format::Xfs)
}

#[cfg(test)]
mod tests {
    use cowshed_device::MemDevice;

    use super::*;

    #[test]
    fn magic_number_tells_the_format() {
        let device = MemDevice::new("memory", 1 << 20);
        assert_eq!(probe(&device), None);
        device.write_at(0, XFS_MAGIC).unwrap();
        assert_eq!(probe(&device), Some(Format::Xfs));
    }

    #[test]
    fn btrfs_with_traces_of_xfs_is_btrfs() {
        let device = MemDevice::new("memory", 1 << 20);
        device.write_at(0, XFS_MAGIC).unwrap();
        device.write_at(BTRFS_MAGIC_OFFSET, BTRFS_MAGIC).unwrap();
        assert_eq!(probe(&device), Some(Format::Btrfs));
    }
}
