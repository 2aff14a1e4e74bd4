//! Linux: openat2(2), descriptors of places (`O_PATH`), and paths of descriptors in /proc.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use cowshed::FileKind;
use rustix::fs::{self, CWD, FileType, Mode, OFlags, ResolveFlags, XattrFlags};

use super::system::System;

pub struct Linux;

const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// A path of a name that leads through no other name: extended attributes have no calls relative to
/// a directory.
fn by_descriptor(dir: &OwnedFd, name: &CStr) -> PathBuf {
    let dir = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    dir.join(OsStr::from_bytes(name.to_bytes()))
}

impl System for Linux {
    fn open_dir(&self, path: &[u8]) -> Result<OwnedFd> {
        Ok(fs::openat(CWD, path, DIR, Mode::empty())?)
    }

    fn open_dir_beneath(&self, root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
        Ok(fs::openat2(root, path, DIR, Mode::empty(), BENEATH)?)
    }

    fn set_perm(&self, dir: &OwnedFd, name: &CStr, perm: Mode) -> Result<()> {
        // chmod(2) would follow a link that took the place of the file.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(dir, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fs::fstat(&file)?.st_mode) == FileType::Symlink {
            return Err(Error::from_raw_os_error(libc::ELOOP));
        }
        Ok(fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), perm)?)
    }

    fn make_node(&self, dir: &OwnedFd, name: &CStr, kind: FileKind, perm: Mode, device: (u32, u32)) -> Result<()> {
        let kind = FileType::from_raw_mode(kind.mode_bits());
        let device = fs::makedev(device.0, device.1);
        Ok(fs::mknodat(dir, name, kind, perm, device)?)
    }

    fn xattrs(&self, dir: &OwnedFd, name: &CStr) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = by_descriptor(dir, name);
        let mut buf = vec![0_u8; 64 << 10];
        let len = match fs::llistxattr(&path, &mut buf[..]) {
            Err(rustix::io::Errno::NOTSUP) => return Ok(Vec::new()),
            len => len?,
        };
        let mut names: Vec<Vec<u8>> = buf[..len].split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        names.retain(|name| !name.is_empty());
        names.sort_unstable();
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            match fs::lgetxattr(&path, OsStr::from_bytes(&name), &mut buf[..]) {
                Ok(len) => found.push((name, buf[..len].to_vec())),
                Err(rustix::io::Errno::NODATA) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    fn set_xattr(&self, dir: &OwnedFd, name: &CStr, attribute: &[u8], value: &[u8]) -> Result<()> {
        let path = by_descriptor(dir, name);
        Ok(fs::lsetxattr(path, attribute, value, XattrFlags::empty())?)
    }

    fn remove_xattr(&self, dir: &OwnedFd, name: &CStr, attribute: &[u8]) -> Result<()> {
        Ok(fs::lremovexattr(by_descriptor(dir, name), attribute)?)
    }

    fn data_from(&self, file: &File, offset_bytes: u64) -> Result<Option<(u64, u64)>> {
        let start = match fs::seek(file, fs::SeekFrom::Data(offset_bytes)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            // A file system that does not know: all of it is data.
            Err(rustix::io::Errno::INVAL) => offset_bytes,
            Err(error) => return Err(error.into()),
        };
        let end = fs::seek(file, fs::SeekFrom::Hole(start));
        let end = end.or_else(|_| file.metadata().map(|metadata| metadata.len()));
        let end = end?;
        Ok((end > start).then_some((start, end)))
    }
}
