//! Targets of symlinks.

use xfs_format::Owner;
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::symlink::{SYMLINK_BYTES_MAX, SYMLINK_EXTENT_BYTES_MAX, SymlinkBlock};

use crate::error::Result;
use crate::inode::Object;
use crate::volume::Volume;

/// The target of a symlink.
pub(crate) fn target(volume: &Volume, link: &Object) -> Result<Vec<u8>> {
    if let Some(Fork::Local(target)) = link.fork(ForkKind::Data) {
        return Ok(target.to_vec());
    }
    let size = link.size().min(SYMLINK_BYTES_MAX.into()) as usize;
    let (mut target, mut block) = (Vec::new(), 0);
    while target.len() < size {
        let extent = link.extent_from(volume, ForkKind::Data, block)?;
        let extent = extent.ok_or_else(|| link.damaged("symlink: its end is missing"))?;
        // Before it is read: an extent may have eight GiB.
        let extent_bytes = u64::from(extent.blocks) * u64::from(volume.geometry().block_bytes);
        if extent_bytes > SYMLINK_EXTENT_BYTES_MAX {
            return Err(link.damaged("symlink: a longer extent than its target needs"));
        }
        let parts = link.parts(volume, ForkKind::Data, extent.offset.get(), extent.blocks)?;
        let found: SymlinkBlock = volume.block_of_parts(&parts, Owner::Inode(link.ino))?;
        if found
            .offset_bytes()
            .is_some_and(|offset| offset as usize != target.len())
        {
            return Err(link.damaged("symlink: a part at another place"));
        }
        target.extend_from_slice(found.part());
        block = extent.end().get();
    }
    target.truncate(size);
    Ok(target)
}
