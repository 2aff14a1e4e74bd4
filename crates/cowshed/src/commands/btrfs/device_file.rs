//! A device or image by its first superblock alone.

use std::path::Path;

use btrfs_format::Superblock;
use btrfs_format::superblock::{MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use cowshed_device::{BlockDevice as _, FileDevice, Locking, OpenMode};

/// What stands there; `None` where it is no superblock.
pub fn superblock(path: &Path) -> Option<Superblock> {
    let device = FileDevice::open_with(path, OpenMode::ReadOnly, Locking::Unlocked).ok()?;
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    let offset = *SUPERBLOCK_OFFSETS.first()?;
    if offset + bytes.len() as u64 > device.size_bytes() {
        return None;
    }
    device.read_at(offset, &mut bytes).ok()?;
    btrfs_format::view::fixed::<Superblock>(&bytes)
        .filter(|sb| sb.magic == MAGIC)
        .copied()
}
