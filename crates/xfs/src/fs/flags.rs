//! Flags of inodes in the encodings of Linux.

use cowshed_vfs::{ExtendedFlags, InodeFlags};
use xfs_format::features::{inode_flags, inode_flags2};
use xfs_format::inode::{ForkKind, InodeCore};

use crate::error::Result;
use crate::inode::Object;
use crate::volume::Volume;

/// `FS_XFLAG_*` that have other numbers than the format's flags.
const XFLAG_DAX: u32 = 0x8000;
const XFLAG_COWEXTSIZE: u32 = 0x1_0000;
const XFLAG_HASATTR: u32 = 0x8000_0000;
/// `FS_XFLAG_*` and the `FS_*_FL` for the same.
const ATTRIBUTES: [(u32, u32); 7] = [
    (0x08, 0x10),
    (0x10, 0x20),
    (0x20, 0x08),
    (0x40, 0x80),
    (0x80, 0x40),
    (XFLAG_DAX, 0x200_0000),
    (0x200, 0x2000_0000),
];

fn xflags(core: &InodeCore, has_attrs: bool) -> u32 {
    // The flags of the core have the numbers of `FS_XFLAG_*`, but for one that is not shown.
    let mut flags = u32::from(core.flags.get()) & !(inode_flags::NEWRTBM as u32) & 0x7fff;
    for (is_set, flag) in [
        (core.has_flag2(inode_flags2::DAX), XFLAG_DAX),
        (core.has_flag2(inode_flags2::COWEXTSIZE), XFLAG_COWEXTSIZE),
        (has_attrs, XFLAG_HASATTR),
    ] {
        if is_set {
            flags |= flag;
        }
    }
    flags
}

pub(super) fn of(volume: &Volume, object: &Object) -> Result<InodeFlags> {
    let core = &object.core;
    let xflags = xflags(core, object.fork(ForkKind::Attr).is_some());
    let block_bytes = volume.geometry().block_bytes;
    let attributes = ATTRIBUTES.iter().filter(|(xflag, _)| xflags & xflag != 0);
    Ok(InodeFlags {
        attributes: attributes.fold(0, |all, (_, attribute)| all | attribute),
        extended: ExtendedFlags {
            xflags,
            extent_size_bytes: core.extsize.get().saturating_mul(block_bytes),
            extents: u32::try_from(core.data_extents()).unwrap_or(u32::MAX),
            project_id: core.project_id(),
            cow_extent_size_bytes: if core.version >= 3 {
                core.cowextsize.get().saturating_mul(block_bytes)
            } else {
                0
            },
        },
    })
}
