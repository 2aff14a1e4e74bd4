//! Files of one subvolume, by path: no path leads out of it, over symbolic links or into another
//! subvolume, whatever other processes do meanwhile.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// Symbolic links in the middle of a path are an error; at its end the link itself is meant.
/// Nothing is mounted in between.
const CONFINED: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A subvolume that is open, and its directory that was used last.
pub struct Beneath {
    root: File,
    /// Path and descriptor of a directory below the root.
    last: Option<(Vec<u8>, OwnedFd)>,
}

/// The directory of a path, and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// Opens a path below a directory.
pub fn open_beneath(dir: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let path = match path {
        b"" => OsStr::new("."),
        path => OsStr::from_bytes(path),
    };
    Ok(openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), CONFINED)?)
}

/// A name of an open file that system calls without a variant for descriptors take.
pub fn name_of(node: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", node.as_raw_fd()))
}

impl Beneath {
    pub fn new(root: File) -> Self {
        Self { root, last: None }
    }

    /// The root directory.
    pub fn root(&self) -> &File {
        &self.root
    }

    /// Directories may have moved: none is remembered.
    pub fn forget(&mut self) {
        self.last = None;
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        open_beneath(&self.root, path, flags)
    }

    /// The directory that a path is in, and its name there.
    pub fn place<'p>(&mut self, path: &'p [u8]) -> Result<(BorrowedFd<'_>, &'p OsStr)> {
        let (dir, name) = split(path);
        let name = OsStr::from_bytes(name);
        if dir.is_empty() {
            return Ok((self.root.as_fd(), name));
        }
        if self.last.as_ref().is_none_or(|(last, _)| last != dir) {
            let opened = self.open(dir, OFlags::PATH | OFlags::DIRECTORY)?;
            self.last = Some((dir.to_owned(), opened));
        }
        let dir = self.last.as_ref().map_or(self.root.as_fd(), |(_, dir)| dir.as_fd());
        Ok((dir, name))
    }

    /// The directory that a path is in as a descriptor of its own, and its name there.
    pub fn own_place<'p>(&mut self, path: &'p [u8]) -> Result<(OwnedFd, &'p OsStr)> {
        let (dir, name) = self.place(path)?;
        Ok((dir.try_clone_to_owned()?, name))
    }

    /// Any inode, without opening it: a descriptor that only names it.
    pub fn node(&self, path: &[u8]) -> Result<OwnedFd> {
        self.open(path, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// A regular file or a directory. Others are not opened: a device would act.
    pub fn file(&self, path: &[u8], flags: OFlags) -> Result<File> {
        let node = self.node(path)?;
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode);
        if !(kind.is_file() || kind.is_dir()) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        // The inode that was looked at, whatever stands under its name by now.
        let opened = rustix::fs::open(
            name_of(&node),
            flags | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(File::from(opened))
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_path_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("in");
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::write(dir.path().join("secret"), "").unwrap();
        std::fs::write(inside.join("file"), "").unwrap();
        symlink("..", inside.join("up")).unwrap();
        symlink("sub", inside.join("down")).unwrap();
        let mut beneath = Beneath::new(File::open(&inside).unwrap());
        let read = OFlags::RDONLY;
        for path in ["../secret", "up/secret", "/etc/passwd", "sub/../../secret"] {
            assert!(beneath.file(path.as_bytes(), read).is_err(), "{path}");
            assert!(beneath.node(path.as_bytes()).is_err(), "{path}");
        }
        for path in ["up/x", "down/x", "../x", "missing/x"] {
            assert!(beneath.place(path.as_bytes()).is_err(), "{path}");
        }
        beneath.node(b"up").unwrap();
        assert_eq!(beneath.file(b"up", read).unwrap_err().kind(), ErrorKind::InvalidInput);
        beneath.file(b"file", read).unwrap();
        beneath.file(b"", read).unwrap();
        let (_, name) = beneath.place(b"sub/x").unwrap();
        assert_eq!(name, "x");
    }
}
