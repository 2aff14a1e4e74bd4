//! Files of the host by paths, each operation relative to the open directory of its last name.
//!
//! A [`Host`] below a directory never leads out of it: a path goes through directories alone,
//! never through a symbolic link, whoever made it.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(test, not(target_os = "linux")))]
mod portable;
mod system;
#[cfg(test)]
mod tests;

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use cowshed::{FileKind, Timestamp};
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};

use super::side::{Create, Follow, Side, Sink, Source, Stat};
use crate::sys;
use system::System;

#[cfg(target_os = "linux")]
const NATIVE: &dyn System = &linux::Linux;
#[cfg(not(target_os = "linux"))]
const NATIVE: &dyn System = &portable::Portable;

/// Files of the host: all of them, or those below a directory.
pub struct Host {
    beneath: Option<OwnedFd>,
    system: &'static dyn System,
}

impl Host {
    pub fn anywhere() -> Host {
        Host {
            beneath: None,
            system: NATIVE,
        }
    }

    /// Paths are relative to `dir`, and stay below it.
    pub fn beneath(dir: &Path) -> Result<Host> {
        Self::beneath_by(dir, NATIVE)
    }

    fn beneath_by(dir: &Path, system: &'static dyn System) -> Result<Host> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = fs::open(dir, flags, Mode::empty())?;
        Ok(Host {
            beneath: Some(dir),
            system,
        })
    }

    /// The open directory of the last name, and that name; `.` for the root of a path.
    fn parent(&self, path: &Path) -> Result<(OwnedFd, CString)> {
        let bytes = path.as_os_str().as_bytes();
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let slash = bytes[..end]
            .iter()
            .rposition(|byte| *byte == b'/')
            .map_or(0, |at| at + 1);
        let (dir, name) = (
            &bytes[..slash.max(usize::from(end == 0 && !bytes.is_empty()))],
            &bytes[slash..end],
        );
        let name = if name.is_empty() { b"." } else { name };
        let opened = match &self.beneath {
            None => self.system.open_dir(or_here(dir))?,
            // The directory above the root is no name in it.
            Some(_) if name == b".." => return Err(Error::from_raw_os_error(libc::EXDEV)),
            Some(root) => {
                let dir = dir.strip_prefix(b"/").unwrap_or(dir);
                self.system.open_dir_beneath(root.as_fd(), or_here(dir))?
            }
        };
        Ok((opened, CString::new(name)?))
    }

    fn follow_flags(&self, follow: Follow) -> AtFlags {
        match follow {
            Follow::Yes if self.beneath.is_none() => AtFlags::empty(),
            _ => AtFlags::SYMLINK_NOFOLLOW,
        }
    }
}

fn or_here(dir: &[u8]) -> &[u8] {
    if dir.is_empty() { b"." } else { dir }
}

fn kind_of(kind: FileType) -> FileKind {
    match kind {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        _ => FileKind::Regular,
    }
}

// The widths of the fields are the platform's.
#[allow(
    clippy::unnecessary_cast,
    clippy::useless_conversion,
    clippy::unnecessary_fallible_conversions
)]
fn stat_of(stat: &fs::Stat) -> Stat {
    let time = |secs: i64, nanos: i64| Timestamp::new(secs, u32::try_from(nanos).unwrap_or(0));
    Stat {
        dev: stat.st_dev as u64,
        ino: stat.st_ino as u64,
        kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
        perm: stat.st_mode as u32 & 0o7777,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
        blocks_512: u64::try_from(stat.st_blocks).unwrap_or(0),
        device: (fs::major(stat.st_rdev), fs::minor(stat.st_rdev)),
        atime: time(stat.st_atime as i64, stat.st_atime_nsec as i64),
        mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
    }
}

impl Side for Host {
    fn identity(&self) -> usize {
        0
    }
    fn is_image(&self) -> bool {
        false
    }

    fn stat(&self, path: &Path, follow: Follow) -> Result<Stat> {
        let (dir, name) = self.parent(path)?;
        let follow = match path.as_os_str().as_bytes().ends_with(b"/") {
            true => Follow::Yes,
            false => follow,
        };
        let stat = stat_of(&fs::statat(&dir, &name, self.follow_flags(follow))?);
        match path.as_os_str().as_bytes().ends_with(b"/") && !stat.is_dir() {
            true => Err(Error::from_raw_os_error(libc::ENOTDIR)),
            false => Ok(stat),
        }
    }

    fn names(&self, path: &Path) -> Result<Vec<OsString>> {
        let (dir, name) = self.parent(path)?;
        let mut flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        if self.beneath.is_some() {
            flags |= OFlags::NOFOLLOW;
        }
        let opened = fs::openat(&dir, &name, flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(opened)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn read_link(&self, path: &Path) -> Result<OsString> {
        let (dir, name) = self.parent(path)?;
        let target = fs::readlinkat(&dir, &name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    fn make_dir(&self, path: &Path, perm: u32) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(fs::mkdirat(&dir, &name, sys::mode(perm))?)
    }

    fn make_symlink(&self, target: &OsStr, path: &Path) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(fs::symlinkat(target, &dir, &name)?)
    }

    fn make_node(&self, path: &Path, kind: FileKind, perm: u32, device: (u32, u32)) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.system.make_node(&dir, &name, kind, sys::mode(perm), device)
    }

    fn link(&self, original: &Path, path: &Path) -> Result<()> {
        let (old_dir, old_name) = self.parent(original)?;
        let (dir, name) = self.parent(path)?;
        Ok(fs::linkat(&old_dir, &old_name, &dir, &name, AtFlags::empty())?)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(fs::unlinkat(&dir, &name, AtFlags::empty())?)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(fs::unlinkat(&dir, &name, AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (old_dir, old_name) = self.parent(from)?;
        let (dir, name) = self.parent(to)?;
        Ok(fs::renameat(&old_dir, &old_name, &dir, &name)?)
    }

    fn set_perm(&self, path: &Path, perm: u32) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        match self.beneath {
            Some(_) => self.system.set_perm(&dir, &name, sys::mode(perm)),
            None => Ok(fs::chmodat(&dir, &name, sys::mode(perm), AtFlags::empty())?),
        }
    }

    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>, follow: Follow) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        Ok(fs::chownat(&dir, &name, uid, gid, self.follow_flags(follow))?)
    }

    fn set_times(&self, path: &Path, atime: Option<Timestamp>, mtime: Option<Timestamp>, follow: Follow) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let time = |time: Option<Timestamp>| match time {
            Some(time) => Timespec {
                tv_sec: time.secs,
                tv_nsec: time.nanos.into(),
            },
            None => Timespec {
                tv_sec: 0,
                tv_nsec: fs::UTIME_OMIT,
            },
        };
        let times = Timestamps {
            last_access: time(atime),
            last_modification: time(mtime),
        };
        Ok(fs::utimensat(&dir, &name, &times, self.follow_flags(follow))?)
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (dir, name) = self.parent(path)?;
        self.system.xattrs(&dir, &name)
    }

    fn set_xattr(&self, path: &Path, name: &[u8], value: &[u8]) -> Result<()> {
        let (dir, file) = self.parent(path)?;
        self.system.set_xattr(&dir, &file, name, value)
    }

    fn remove_xattr(&self, path: &Path, name: &[u8]) -> Result<()> {
        let (dir, file) = self.parent(path)?;
        self.system.remove_xattr(&dir, &file, name)
    }

    fn open(&self, path: &Path) -> Result<Box<dyn Source>> {
        let (dir, name) = self.parent(path)?;
        let mut flags = OFlags::RDONLY | OFlags::CLOEXEC;
        if self.beneath.is_some() {
            flags |= OFlags::NOFOLLOW;
        }
        let file = File::from(fs::openat(&dir, &name, flags, Mode::empty())?);
        let is_stream = !file.metadata()?.is_file();
        Ok(Box::new(OpenFile {
            file,
            is_stream,
            system: self.system,
        }))
    }

    fn create(&self, path: &Path, how: Create, perm: u32) -> Result<Box<dyn Sink>> {
        let (dir, name) = self.parent(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let flags = match how {
            Create::New => flags | OFlags::EXCL,
            Create::Over if self.beneath.is_some() => flags | OFlags::TRUNC | OFlags::NOFOLLOW,
            Create::Over => flags | OFlags::TRUNC,
        };
        let file = File::from(fs::openat(&dir, &name, flags, sys::mode(perm))?);
        Ok(Box::new(OpenFile {
            file,
            is_stream: false,
            system: self.system,
        }))
    }

    fn clone_file(&self, _from: &Path, _to: &Path) -> Result<()> {
        Err(Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
}

struct OpenFile {
    file: File,
    is_stream: bool,
    system: &'static dyn System,
}

impl Source for OpenFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<usize> {
        use std::io::Read as _;
        let mut got = 0;
        while got < buf.len() {
            let read = match self.is_stream {
                true => (&self.file).read(&mut buf[got..]),
                false => self.file.read_at(&mut buf[got..], offset_bytes + got as u64),
            };
            match read {
                Ok(0) => break,
                Ok(len) => got += len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }

    fn data_from(&self, offset_bytes: u64) -> Result<Option<(u64, u64)>> {
        self.system.data_from(&self.file, offset_bytes)
    }

    fn is_stream(&self) -> bool {
        self.is_stream
    }
}

impl Sink for OpenFile {
    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, offset_bytes)
    }
    fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.file.set_len(size_bytes)
    }
}
