//! The two sides that a path may lie on, behind one set of calls: the host, and an open image.
//! Errors are those of system calls.

use std::ffi::{OsStr, OsString};
use std::io::Result;
use std::path::{Path, PathBuf};

use cowshed::{FileKind, Timestamp};

/// Symbolic links that one path may lead through.
pub const SYMLINKS_MAX: usize = 40;
/// Bytes that are read or written at once.
pub const STEP_BYTES: usize = 1 << 20;

/// What is known of a file.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// With `ino` it tells one file from another on its side: device or subvolume.
    pub dev: u64,
    pub ino: u64,
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits.
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub blocks_512: u64,
    /// Major and minor number of a device node.
    pub device: (u32, u32),
    pub atime: Timestamp,
    pub mtime: Timestamp,
}

impl Stat {
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
    pub fn is_symlink(&self) -> bool {
        self.kind == FileKind::Symlink
    }
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Yes,
    No,
}

/// How a file is opened to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// It must not be there.
    New,
    /// It is emptied; a symbolic link is followed.
    Over,
}

/// Contents that are read.
pub trait Source {
    /// Fewer bytes only at the end.
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<usize>;
    /// The next stretch that is no hole at or after an offset: start and end. `None`: no more.
    fn data_from(&self, offset_bytes: u64) -> Result<Option<(u64, u64)>>;
    /// It has no end that is known, and no offsets: a pipe or device.
    fn is_stream(&self) -> bool {
        false
    }
}

/// A file that is written.
pub trait Sink {
    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> Result<()>;
    fn set_len(&self, size_bytes: u64) -> Result<()>;
}

/// A file system by paths. Unless a call says otherwise, a symbolic link at the end of a path is
/// not followed.
pub trait Side {
    /// Two sides with one identity are one.
    fn identity(&self) -> usize;
    /// In an image, not on the host.
    fn is_image(&self) -> bool;
    fn stat(&self, path: &Path, follow: Follow) -> Result<Stat>;
    /// Sorted, without `.` and `..`.
    fn names(&self, path: &Path) -> Result<Vec<OsString>>;
    fn read_link(&self, path: &Path) -> Result<OsString>;
    fn make_dir(&self, path: &Path, perm: u32) -> Result<()>;
    fn make_symlink(&self, target: &OsStr, path: &Path) -> Result<()>;
    fn make_node(&self, path: &Path, kind: FileKind, perm: u32, device: (u32, u32)) -> Result<()>;
    /// Where the symbolic links at the end of a path lead; nothing need be there.
    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        let mut path = path.to_owned();
        for _ in 0..SYMLINKS_MAX {
            match self.stat(&path, Follow::No) {
                Ok(stat) if stat.is_symlink() => {}
                Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
                _ => return Ok(path),
            }
            let target = self.read_link(&path)?;
            path.pop();
            path.push(target);
        }
        Err(std::io::Error::from_raw_os_error(libc::ELOOP))
    }
    fn link(&self, original: &Path, path: &Path) -> Result<()>;
    fn unlink(&self, path: &Path) -> Result<()>;
    fn remove_dir(&self, path: &Path) -> Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Follows.
    fn set_perm(&self, path: &Path, perm: u32) -> Result<()>;
    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>, follow: Follow) -> Result<()>;
    /// `None`: as it is.
    fn set_times(&self, path: &Path, atime: Option<Timestamp>, mtime: Option<Timestamp>, follow: Follow) -> Result<()>;
    /// Sorted by name.
    fn xattrs(&self, path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    fn set_xattr(&self, path: &Path, name: &[u8], value: &[u8]) -> Result<()>;
    fn remove_xattr(&self, path: &Path, name: &[u8]) -> Result<()>;
    /// Follows.
    fn open(&self, path: &Path) -> Result<Box<dyn Source>>;
    fn create(&self, path: &Path, how: Create, perm: u32) -> Result<Box<dyn Sink>>;
    /// Has a file share the contents of another of the same side. Errors: where it cannot, the
    /// caller copies.
    fn clone_file(&self, from: &Path, to: &Path) -> Result<()>;
}
