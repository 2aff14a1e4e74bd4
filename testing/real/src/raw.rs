//! What the exerciser asks of the system that has no safe form: mappings, and ioctls on two files.
//! Apart from `queue.rs`, the only unsafe code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

use cowshed_vfs_ioctl::wire::{self, Remap, Token};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The first bytes of a file, mapped shared, until dropped.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// `len` bytes, of which no more may be touched than the file has.
    pub fn new(file: &File, len: usize) -> Result<Mapping> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at a place that the system chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("a mapping is nowhere at 0");
        Ok(Mapping { start, len })
    }

    pub fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len, "within the mapping");
        // SAFETY: within the mapping, of which no reference exists; the file is as long, and
        // nothing cuts it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len()) }
    }

    pub fn load(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset + bytes.len() <= self.len, "within the mapping");
        // SAFETY: as for a store.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Writes what was stored.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the mapping is there until it is dropped.
        done(unsafe { libc::msync(self.start.as_ptr().cast(), self.len, libc::MS_SYNC) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing refers to it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn done(result: i32) -> Result<()> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(())
    }
}

fn call<T: FromBytes + IntoBytes>(file: &File, number: u32, arg: &mut T) -> Result<()> {
    assert_eq!((number >> 16 & 0x3fff) as usize, size_of::<T>());
    // SAFETY: plain data of the size that the number says, alive until after the call.
    done(unsafe { libc::ioctl(file.as_raw_fd(), number as _, std::ptr::from_mut(arg)) })
}

const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;

/// `struct fsxattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExtendedFlags {
    pub xflags: u32,
    pub extsize: u32,
    pub extents: u32,
    pub project: u32,
    pub cowextsize: u32,
    pad: [u8; 8],
}

/// Flags, hints and project id of a file or directory.
pub fn extended_flags(file: &File) -> Result<ExtendedFlags> {
    let mut flags = ExtendedFlags::new_zeroed();
    call(file, FS_IOC_FSGETXATTR, &mut flags)?;
    Ok(flags)
}

const FICLONERANGE: u32 = 0x4020_940d;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CloneRange {
    src_fd: i64,
    src_offset: u64,
    len_bytes: u64,
    dst_offset: u64,
}

/// A call between two files of a mount of ours ([`wire::op`]): bytes done and status. `None` where
/// the files lie elsewhere and what lies there cannot do it.
pub fn remap(
    op: u32,
    (src, src_offset): (&File, usize),
    (dst, dst_offset): (&File, usize),
    len: usize,
) -> Result<Option<(u64, i32)>> {
    let mut token = Token([0; 16]);
    let is_ours = match call(src, wire::LEND, &mut token) {
        Ok(()) => true,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EOPNOTSUPP)) => false,
        Err(error) => return Err(error),
    };
    let (src_offset, dst_offset, len) = (src_offset as u64, dst_offset as u64, len as u64);
    if !is_ours {
        if op != wire::op::CLONE {
            return Ok(None);
        }
        let src_fd = src.as_raw_fd().into();
        let mut clone = CloneRange {
            src_fd,
            src_offset,
            len_bytes: len,
            dst_offset,
        };
        return match call(dst, FICLONERANGE, &mut clone) {
            Ok(()) => Ok(Some((len, 0))),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        };
    }
    for file in [src, dst] {
        let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: no memory is passed.
        done(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, how) })?;
    }
    let mut remap: Remap = FromZeros::new_zeroed();
    remap.token = token;
    remap.op = op.into();
    remap.src_offset = src_offset.into();
    remap.dst_offset = dst_offset.into();
    remap.len_bytes = len.into();
    call(dst, wire::REMAP, &mut remap)?;
    // Linux learns of a new size when it asks for the attributes.
    src.metadata()?;
    Ok(Some((remap.done_bytes.get(), remap.status.get())))
}
