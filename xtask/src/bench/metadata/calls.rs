//! The system calls that are measured, in a directory of one caller, and the checks of what they
//! left.
//!
//! Calls go through a descriptor of the directory, so that no path in front of it is walked.
//! Extended attributes have no such calls, and get whole paths.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{self, AtFlags, Mode, OFlags, RawDir, Stat, XattrFlags};

/// Bytes of a small file.
pub const SMALL_BYTES: usize = 4096;
/// What glibc's readdir() asks for at once.
const LIST_BYTES: usize = 32 << 10;
const XATTR: &CStr = c"user.bench";
const VALUE: &[u8] = b"thirty-two bytes of a value: yes";
const MODE: Mode = Mode::from_raw_mode(0o644);

/// A letter for its kind and a number: `f00000012`.
pub struct Name([u8; Name::BYTES]);

impl Name {
    const BYTES: usize = 10;

    pub fn new(kind: u8, n: usize) -> Name {
        let mut name = [b'0'; Name::BYTES];
        name[0] = kind;
        name[Name::BYTES - 1] = 0;
        let mut rest = n;
        for digit in name[1..Name::BYTES - 1].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        Name(name)
    }

    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0).expect("the last byte is the only NUL")
    }
}

/// A caller's directory.
pub struct Dir {
    pub fd: OwnedFd,
    /// Of the first files, for the calls that take paths.
    paths: Vec<CString>,
}

impl Dir {
    /// Makes it where it is missing.
    pub fn open(path: &Path, files: usize) -> Result<Dir> {
        std::fs::create_dir_all(path)?;
        let open = fs::open(
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let path_of = |n| {
            let mut bytes = path.as_os_str().as_bytes().to_vec();
            bytes.push(b'/');
            bytes.extend(Name::new(b'f', n).as_c_str().to_bytes());
            CString::new(bytes)
        };
        Ok(Dir {
            fd: open.with_context(|| path.display().to_string())?,
            paths: (0..files).map(path_of).collect::<Result<_, _>>()?,
        })
    }

    /// Names that begin with this letter.
    pub fn count(&self, kind: u8) -> Result<usize> {
        let mut count = 0;
        let list = fs::openat(
            &self.fd,
            c".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut buffer = [MaybeUninit::uninit(); LIST_BYTES];
        let mut entries = RawDir::new(list, &mut buffer);
        while let Some(entry) = entries.next() {
            count += usize::from(entry?.file_name().to_bytes().first() == Some(&kind));
        }
        Ok(count)
    }

    pub fn expect_count(&self, kind: u8, expected: usize) -> Result<()> {
        let count = self.count(kind)?;
        ensure!(
            count == expected,
            "{count} names of kind {}, not {expected}",
            char::from(kind)
        );
        Ok(())
    }

    pub fn stat(&self, kind: u8, n: usize) -> Result<Stat> {
        Ok(fs::statat(
            &self.fd,
            Name::new(kind, n).as_c_str(),
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    fn open_small(&self, n: usize, flags: OFlags) -> Result<OwnedFd> {
        Ok(fs::openat(&self.fd, Name::new(b'w', n).as_c_str(), flags, MODE)?)
    }
}

pub fn create(dir: &Dir, n: usize) -> Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    drop(fs::openat(&dir.fd, Name::new(b'f', n).as_c_str(), flags, MODE)?);
    Ok(())
}

pub fn stat(dir: &Dir, n: usize) -> Result<()> {
    ensure!(dir.stat(b'f', n)?.st_size == 0, "an empty file has a size");
    Ok(())
}

pub fn chmod(dir: &Dir, n: usize) -> Result<()> {
    let mode = Mode::from_raw_mode(0o600);
    Ok(fs::chmodat(
        &dir.fd,
        Name::new(b'f', n).as_c_str(),
        mode,
        AtFlags::empty(),
    )?)
}

pub fn set_xattr(dir: &Dir, n: usize) -> Result<()> {
    Ok(fs::setxattr(&dir.paths[n], XATTR, VALUE, XattrFlags::empty())?)
}

pub fn get_xattr(dir: &Dir, n: usize) -> Result<()> {
    let mut value = [0; 64];
    let length = fs::getxattr(&dir.paths[n], XATTR, &mut value)?;
    ensure!(&value[..length] == VALUE, "another value");
    Ok(())
}

pub fn link(dir: &Dir, n: usize) -> Result<()> {
    let (old, new) = (Name::new(b'f', n), Name::new(b'l', n));
    Ok(fs::linkat(
        &dir.fd,
        old.as_c_str(),
        &dir.fd,
        new.as_c_str(),
        AtFlags::empty(),
    )?)
}

pub fn rename(dir: &Dir, n: usize) -> Result<()> {
    let (old, new) = (Name::new(b'l', n), Name::new(b'r', n));
    Ok(fs::renameat(&dir.fd, old.as_c_str(), &dir.fd, new.as_c_str())?)
}

pub fn unlink_renamed(dir: &Dir, n: usize) -> Result<()> {
    Ok(fs::unlinkat(&dir.fd, Name::new(b'r', n).as_c_str(), AtFlags::empty())?)
}

pub fn unlink(dir: &Dir, n: usize) -> Result<()> {
    Ok(fs::unlinkat(&dir.fd, Name::new(b'f', n).as_c_str(), AtFlags::empty())?)
}

pub fn symlink(dir: &Dir, n: usize) -> Result<()> {
    let (target, name) = (Name::new(b'f', n), Name::new(b's', n));
    Ok(fs::symlinkat(target.as_c_str(), &dir.fd, name.as_c_str())?)
}

pub fn readlink(dir: &Dir, n: usize) -> Result<()> {
    let target = fs::readlinkat(&dir.fd, Name::new(b's', n).as_c_str(), Vec::with_capacity(64))?;
    ensure!(target.as_c_str() == Name::new(b'f', n).as_c_str(), "another target");
    Ok(())
}

pub fn mkdir(dir: &Dir, n: usize) -> Result<()> {
    let mode = Mode::from_raw_mode(0o755);
    Ok(fs::mkdirat(&dir.fd, Name::new(b'd', n).as_c_str(), mode)?)
}

pub fn rmdir(dir: &Dir, n: usize) -> Result<()> {
    Ok(fs::unlinkat(
        &dir.fd,
        Name::new(b'd', n).as_c_str(),
        AtFlags::REMOVEDIR,
    )?)
}

/// What the n-th small file has.
fn small(n: usize) -> [u8; SMALL_BYTES] {
    let mut bytes = [b'x'; SMALL_BYTES];
    bytes[..size_of::<usize>()].copy_from_slice(&n.to_le_bytes());
    bytes
}

pub fn write_small(dir: &Dir, n: usize) -> Result<()> {
    let file = dir.open_small(n, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?;
    ensure!(rustix::io::write(&file, &small(n))? == SMALL_BYTES, "a short write");
    Ok(())
}

/// Reads the whole file and the end of it, as programs do that do not know its size.
pub fn read_small(dir: &Dir, n: usize) -> Result<()> {
    let file = dir.open_small(n, OFlags::RDONLY)?;
    let mut bytes = [0; SMALL_BYTES + 1];
    let length = rustix::io::read(&file, &mut bytes)?;
    ensure!(bytes[..length] == small(n), "other bytes than were written");
    Ok(())
}

/// Lists the directory once. Names, and nanoseconds of each call for more of them.
pub fn list(dir: &Path) -> Result<(usize, Vec<u32>)> {
    let list = fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); LIST_BYTES];
    let mut entries = RawDir::new(list, &mut buffer);
    let (mut names, mut nanos) = (0, Vec::new());
    loop {
        let started = entries.is_buffer_empty().then(std::time::Instant::now);
        let Some(entry) = entries.next() else { break };
        if let Some(started) = started {
            nanos.push(u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        names += usize::from(!matches!(entry?.file_name().to_bytes(), b"." | b".."));
    }
    Ok((names, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_kind_and_a_number() {
        assert_eq!(Name::new(b'f', 1234).as_c_str(), c"f00001234");
    }

    #[test]
    fn calls_pass_their_own_checks() {
        let scratch = cowshed_harness::scratch_dir().unwrap();
        let dir = Dir::open(scratch.path(), 2).unwrap();
        for call in [
            create,
            stat,
            chmod,
            link,
            rename,
            unlink_renamed,
            symlink,
            readlink,
            mkdir,
        ] {
            (0..2).for_each(|n| call(&dir, n).unwrap());
        }
        for call in [write_small, read_small] {
            (0..2).for_each(|n| call(&dir, n).unwrap());
        }
        // 2 each of files, symbolic links, directories and small files.
        assert_eq!(list(scratch.path()).unwrap().0, 8);
        dir.expect_count(b'd', 2).unwrap();
        assert!(dir.expect_count(b'l', 2).is_err());
    }
}
