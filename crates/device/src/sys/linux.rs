//! Linux. The only unsafe code of this crate: each call passes pointers to memory that is borrowed
//! for its whole duration, and keeps none.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::block_device::batch::VECTOR_BUFS_MAX;

// linux/fs.h: _IOR(0x12, 114, size_t), _IO(0x12, 119).
const BLKGETSIZE64: libc::Ioctl = (0x8000_1272 | (size_of::<usize>() as u32) << 16) as libc::Ioctl;
const BLKDISCARD: libc::Ioctl = 0x1277;

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// preadv2(2) with RWF_NOWAIT: how many bytes were read of what need not be waited for. EAGAIN:
/// none; EOPNOTSUPP: the file system does not know.
pub(crate) fn preadv_nowait(file: &File, bufs: &mut [IoSliceMut<'_>], offset_bytes: u64) -> io::Result<usize> {
    let count = bufs.len().min(VECTOR_BUFS_MAX);
    Ok(preadv2(file, &mut bufs[..count], offset_bytes, ReadWriteFlags::NOWAIT)?)
}

/// posix_fadvise(2), WILLNEED: begins to read a range into the page cache. Only a hint: what is
/// wrong with the range, the read itself will tell.
pub(crate) fn will_need(file: &File, offset_bytes: u64, len_bytes: u64) {
    if let Some(len_bytes) = NonZeroU64::new(len_bytes) {
        let _ = fadvise(file, offset_bytes, Some(len_bytes), Advice::WillNeed);
    }
}

/// posix_fadvise(2), DONTNEED: puts what is on disk of a range out of memory, mostly. A length of
/// 0: to the end.
#[cfg(test)]
pub(crate) fn forget(file: &File, offset_bytes: u64, len_bytes: u64) {
    let _ = fadvise(file, offset_bytes, NonZeroU64::new(len_bytes), Advice::DontNeed);
}

pub(crate) fn block_device_size_bytes(file: &File) -> io::Result<u64> {
    let mut size_bytes = 0u64;
    // SAFETY: BLKGETSIZE64 stores a 64-bit number.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut size_bytes) })?;
    Ok(size_bytes)
}

pub(crate) fn block_device_sector_size_bytes(file: &File) -> io::Result<u32> {
    Ok(rustix::fs::ioctl_blksszget(file)?)
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
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, mode, offset_bytes, len_bytes)?)
}
