//! The system calls that the standard library does not offer. The only unsafe code of this crate:
//! each call passes pointers to memory that is borrowed for its whole duration, and keeps none.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;

// linux/fs.h: _IOR(0x12, 114, size_t), _IO(0x12, 104), _IO(0x12, 119).
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;
const BLKSSZGET: libc::Ioctl = 0x1268;
const BLKDISCARD: libc::Ioctl = 0x1277;

fn offset(offset_bytes: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset_bytes).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn count(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// preadv(2): how many bytes were read.
pub(crate) fn preadv(file: &File, bufs: &mut [IoSliceMut<'_>], offset_bytes: u64) -> io::Result<usize> {
    let bufs_count = bufs.len().min(crate::block_device::batch::VECTOR_BUFS_MAX) as libc::c_int;
    // SAFETY: `IoSliceMut` is guaranteed to have the layout of `iovec`.
    count(unsafe {
        libc::preadv(
            file.as_raw_fd(),
            bufs.as_mut_ptr().cast(),
            bufs_count,
            offset(offset_bytes)?,
        )
    })
}

/// preadv2(2) with RWF_NOWAIT: how many bytes were read of what need not be waited for. EAGAIN:
/// none; EOPNOTSUPP: the file system does not know.
pub(crate) fn preadv_nowait(file: &File, bufs: &mut [IoSliceMut<'_>], offset_bytes: u64) -> io::Result<usize> {
    let bufs_count = bufs.len().min(crate::block_device::batch::VECTOR_BUFS_MAX) as libc::c_int;
    // SAFETY: as `preadv`.
    count(unsafe {
        libc::preadv2(
            file.as_raw_fd(),
            bufs.as_mut_ptr().cast(),
            bufs_count,
            offset(offset_bytes)?,
            libc::RWF_NOWAIT,
        )
    })
}

/// pwritev(2): how many bytes were written.
pub(crate) fn pwritev(file: &File, bufs: &[IoSlice<'_>], offset_bytes: u64) -> io::Result<usize> {
    let bufs_count = bufs.len().min(crate::block_device::batch::VECTOR_BUFS_MAX) as libc::c_int;
    // SAFETY: `IoSlice` is guaranteed to have the layout of `iovec`.
    count(unsafe {
        libc::pwritev(
            file.as_raw_fd(),
            bufs.as_ptr().cast(),
            bufs_count,
            offset(offset_bytes)?,
        )
    })
}

/// posix_fadvise(2), WILLNEED: begins to read a range into the page cache. Only a hint: what is
/// wrong with the range, the read itself will tell.
pub(crate) fn will_need(file: &File, offset_bytes: u64, len_bytes: u64) {
    let (Ok(offset_bytes), Ok(len_bytes)) = (offset(offset_bytes), offset(len_bytes)) else {
        return;
    };
    // SAFETY: no memory is passed.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset_bytes, len_bytes, libc::POSIX_FADV_WILLNEED) };
}

/// posix_fadvise(2), DONTNEED: puts what is on disk of a range out of memory, mostly.
#[cfg(test)]
pub(crate) fn forget(file: &File, offset_bytes: u64, len_bytes: u64) {
    let (offset_bytes, len_bytes) = (offset_bytes as libc::off_t, len_bytes as libc::off_t);
    // SAFETY: no memory is passed.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset_bytes, len_bytes, libc::POSIX_FADV_DONTNEED) };
}

pub(crate) fn block_device_size_bytes(file: &File) -> io::Result<u64> {
    let mut size_bytes = 0u64;
    // SAFETY: BLKGETSIZE64 stores a 64-bit number.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut size_bytes) })?;
    Ok(size_bytes)
}

pub(crate) fn block_device_sector_size_bytes(file: &File) -> io::Result<u32> {
    let mut size_bytes: libc::c_int = 0;
    // SAFETY: BLKSSZGET stores an int.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET, &raw mut size_bytes) })?;
    u32::try_from(size_bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

pub(crate) fn block_device_discard(file: &File, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
    let range = [offset_bytes, len_bytes];
    // SAFETY: BLKDISCARD reads two 64-bit numbers.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) })
}

/// What sysfs says of the queue of the block device, or of the disk that the partition is on;
/// `None` where it does not discard. There is no system call to ask. Where there is no sysfs the
/// first discard will tell.
pub(crate) fn block_device_discard_granularity(rdev: u64) -> Option<u64> {
    const SECTOR_BYTES: u64 = 512;
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    let device = format!("/sys/dev/block/{major}:{minor}");
    let ask = |name: &str| -> Option<u64> {
        let own = std::fs::read_to_string(format!("{device}/queue/{name}"));
        let text = own.or_else(|_| std::fs::read_to_string(format!("{device}/../queue/{name}")));
        text.ok()?.trim().parse().ok()
    };
    match ask("discard_max_bytes") {
        Some(0) => None,
        Some(_) | None => Some(ask("discard_granularity").unwrap_or(0).max(SECTOR_BYTES)),
    }
}

pub(crate) fn punch_hole(file: &File, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset(offset_bytes)?, offset(len_bytes)?) })
}
