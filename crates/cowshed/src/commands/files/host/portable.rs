//! Systems other than Linux, by calls of POSIX: a path below a directory is walked name by name.
//! Also compiled for the tests on Linux.
//!
//! Directories are opened for reading, since not all of these systems have descriptors of places:
//! one that can be entered and not be read is out of reach.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{BorrowedFd, OwnedFd};

use cowshed::FileKind;
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::system::System;
use crate::sys::xattr;

pub struct Portable;

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Extended attributes of Linux' namespace `user` keep their names. Others are no matter of the
/// host: attributes of its own (`com.apple.*`) cannot be in an image, and those of Linux' other
/// namespaces mean nothing to it.
const NAMESPACE: &[u8] = b"user.";

impl System for Portable {
    fn open_dir(&self, path: &[u8]) -> Result<OwnedFd> {
        Ok(fs::openat(CWD, path, DIR, Mode::empty())?)
    }

    /// `..` is refused: a path that is joined of names has none.
    fn open_dir_beneath(&self, root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
        let mut here = fs::openat(root, ".", DIR, Mode::empty())?;
        for name in path.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => return Err(Error::from_raw_os_error(libc::EXDEV)),
                name => here = fs::openat(&here, name, DIR | OFlags::NOFOLLOW, Mode::empty())?,
            }
        }
        Ok(here)
    }

    fn set_perm(&self, dir: &OwnedFd, name: &CStr, perm: Mode) -> Result<()> {
        if kind_of(dir, name)? == FileType::Symlink {
            return Err(Error::from_raw_os_error(libc::ELOOP));
        }
        // A link that took the place of the file meanwhile gets the mode itself.
        match fs::chmodat(dir, name, perm, AtFlags::SYMLINK_NOFOLLOW) {
            Err(error) if is_unsupported(error) => Ok(fs::fchmod(open_node(dir, name)?, perm)?),
            set => Ok(set?),
        }
    }

    /// Errors: always. Nodes are of Linux' kind, and only root could make those of devices.
    fn make_node(&self, _: &OwnedFd, _: &CStr, _: FileKind, _: Mode, _: (u32, u32)) -> Result<()> {
        Err(Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn xattrs(&self, dir: &OwnedFd, name: &CStr) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if !matches!(kind_of(dir, name)?, FileType::RegularFile | FileType::Directory) {
            return Ok(Vec::new());
        }
        let node = open_node(dir, name)?;
        let mut buf = vec![0_u8; 64 << 10];
        let len = match xattr::list(&node, &mut buf) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
            len => len?,
        };
        let names = buf[..len].split(|byte| *byte == 0);
        let mut names: Vec<_> = names
            .filter(|name| name.starts_with(NAMESPACE))
            .map(<[u8]>::to_vec)
            .collect();
        names.sort_unstable();
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            match xattr::get(&node, &name, &mut buf) {
                Ok(len) => found.push((name, buf[..len].to_vec())),
                Err(error) if xattr::is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn set_xattr(&self, dir: &OwnedFd, name: &CStr, attribute: &[u8], value: &[u8]) -> Result<()> {
        xattr::set(with_xattrs(dir, name, attribute)?, attribute, value)
    }

    fn remove_xattr(&self, dir: &OwnedFd, name: &CStr, attribute: &[u8]) -> Result<()> {
        xattr::remove(with_xattrs(dir, name, attribute)?, attribute)
    }

    /// All of a file is data: APFS has told of holes where data was, so that copies lost it (bug
    /// 61386 of GNU coreutils).
    fn data_from(&self, file: &File, offset_bytes: u64) -> Result<Option<(u64, u64)>> {
        let end = file.metadata()?.len();
        Ok((end > offset_bytes).then_some((offset_bytes, end)))
    }
}

/// The system has two numbers for it, or one.
fn is_unsupported(error: Errno) -> bool {
    error == Errno::NOTSUP || error == Errno::OPNOTSUPP
}

fn kind_of(dir: &OwnedFd, name: &CStr) -> Result<FileType> {
    let stat = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// A file or directory, for its attributes. A pipe does not wait for another process.
fn open_node(dir: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match fs::openat(dir, name, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => Ok(fs::openat(dir, name, flags | OFlags::WRONLY, Mode::empty())?),
        opened => Ok(opened?),
    }
}

/// As [`open_node`], where it can have an attribute of that name. Errors: `EOPNOTSUPP`.
fn with_xattrs(dir: &OwnedFd, name: &CStr, attribute: &[u8]) -> Result<OwnedFd> {
    let is_any = matches!(kind_of(dir, name)?, FileType::RegularFile | FileType::Directory);
    match is_any && attribute.starts_with(NAMESPACE) {
        true => open_node(dir, name),
        false => Err(Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}
