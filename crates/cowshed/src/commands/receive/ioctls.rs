//! Ioctls on open files and directories that receiving needs, on mounts of ours and on the kernel's
//! btrfs.

use std::fs::File;
use std::io::{ErrorKind, Result};

use cowshed_vfs_ioctl::wire::btrfs::{ReceivedSubvol, SET_RECEIVED_SUBVOL};
use rustix::fs::{OFlags, XattrFlags, fgetxattr, fsetxattr};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::beneath::Beneath;
use super::locks::{COMPRESSION, COMPRESSION_BYTES_MAX, Flagged, Inodes};
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

impl Flagged for File {
    fn chattr(&self) -> Result<u32> {
        // The number says eight bytes, four are meant.
        let mut flags = 0_u64;
        ioctl::call(self, FS_IOC_GETFLAGS, &mut flags)?;
        Ok(flags as u32)
    }
    fn set_chattr(&self, flags: u32) -> Result<()> {
        let mut flags = u64::from(flags);
        ioctl::call(self, FS_IOC_SETFLAGS, &mut flags).map(drop)
    }
    fn xflags(&self) -> Result<u32> {
        let mut call = FsXattr::new_zeroed();
        ioctl::call(self, FS_IOC_FSGETXATTR, &mut call)?;
        Ok(call.xflags)
    }
    fn set_xflags(&self, xflags: u32) -> Result<()> {
        let mut call = FsXattr::new_zeroed();
        call.xflags = xflags;
        ioctl::call(self, FS_IOC_FSSETXATTR, &mut call).map(drop)
    }
    fn property(&self) -> Option<Vec<u8>> {
        let mut value = vec![0; COMPRESSION_BYTES_MAX];
        let len = fgetxattr(self, COMPRESSION, &mut value).ok()?;
        value.truncate(len);
        Some(value)
    }
    fn set_property(&self, value: &[u8]) -> Result<()> {
        Ok(fsetxattr(self, COMPRESSION, value, XattrFlags::empty())?)
    }
}

impl Inodes for Beneath {
    type Inode = File;
    fn flagged(&self, path: &[u8]) -> Result<Option<File>> {
        match self.file(path, OFlags::RDONLY) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(None),
            opened => opened.map(Some),
        }
    }
}
