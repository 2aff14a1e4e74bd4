//! Ioctls on open files and directories that receiving needs, on mounts of ours and on the kernel's
//! btrfs.

use std::fs::File;
use std::io::Result;

use cowshed_vfs_ioctl::wire::btrfs::{RDONLY, ReceivedSubvol, SET_RECEIVED_SUBVOL, SUBVOL_SETFLAGS};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::ioctl;

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// `struct fsxattr`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FsXattr {
    xflags: u32,
    rest: [u8; 24],
}

/// Notes the uuid of what was sent in the subvolume whose root directory this is.
pub fn set_received(root: &File, uuid: [u8; 16], ctransid: u64) -> Result<()> {
    let mut call = ReceivedSubvol::new_zeroed();
    call.uuid = uuid;
    call.stransid = ctransid.into();
    ioctl::call(root, SET_RECEIVED_SUBVOL, &mut call).map(drop)
}

/// Makes the subvolume whose root directory this is read-only.
pub fn set_read_only(root: &File) -> Result<()> {
    let mut flags = U64::new(RDONLY);
    ioctl::call(root, SUBVOL_SETFLAGS, &mut flags).map(drop)
}

/// The flags of chattr(1).
pub fn flags(file: &File) -> Result<u32> {
    // The number says eight bytes, four are meant.
    let mut flags = 0_u64;
    ioctl::call(file, FS_IOC_GETFLAGS, &mut flags)?;
    Ok(flags as u32)
}

pub fn set_flags(file: &File, flags: u32) -> Result<()> {
    let mut flags = u64::from(flags);
    ioctl::call(file, FS_IOC_SETFLAGS, &mut flags).map(drop)
}

/// The flags of FS_IOC_FSGETXATTR: changing these leaves compression alone.
pub fn xflags(file: &File) -> Result<u32> {
    let mut call = FsXattr::new_zeroed();
    ioctl::call(file, FS_IOC_FSGETXATTR, &mut call)?;
    Ok(call.xflags)
}

pub fn set_xflags(file: &File, xflags: u32) -> Result<()> {
    let mut call = FsXattr::new_zeroed();
    call.xflags = xflags;
    ioctl::call(file, FS_IOC_FSSETXATTR, &mut call).map(drop)
}
