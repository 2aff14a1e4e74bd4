//! What operations on files of the host need of the operating system.

use std::ffi::CStr;
use std::fs::File;
use std::io::Result;
use std::os::fd::{BorrowedFd, OwnedFd};

use cowshed::FileKind;
use rustix::fs::Mode;

/// The calls that systems have in different forms. A name is one entry of an open directory, and a
/// symbolic link under it is not followed.
pub trait System: Sync {
    /// A directory by any path.
    fn open_dir(&self, path: &[u8]) -> Result<OwnedFd>;
    /// A directory by a path that stays below `root` and leads through no symbolic link, whatever
    /// other processes do meanwhile.
    fn open_dir_beneath(&self, root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd>;
    /// Errors: `ELOOP` for a symbolic link.
    fn set_perm(&self, dir: &OwnedFd, name: &CStr, perm: Mode) -> Result<()>;
    fn make_node(&self, dir: &OwnedFd, name: &CStr, kind: FileKind, perm: Mode, device: (u32, u32)) -> Result<()>;
    /// Sorted by name. Values of attributes that a file system does not have are none.
    fn xattrs(&self, dir: &OwnedFd, name: &CStr) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    fn set_xattr(&self, dir: &OwnedFd, name: &CStr, attribute: &[u8], value: &[u8]) -> Result<()>;
    fn remove_xattr(&self, dir: &OwnedFd, name: &CStr, attribute: &[u8]) -> Result<()>;
    /// The next stretch of a regular file that is no hole at or after an offset: start and end.
    fn data_from(&self, file: &File, offset_bytes: u64) -> Result<Option<(u64, u64)>>;
}
