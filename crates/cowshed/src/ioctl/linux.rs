//! Linux. Unsafe: system calls that take the address of a structure.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};

use zerocopy::{FromBytes, IntoBytes};

/// Calls `cmd` with a structure that the kernel or a file system of ours reads and fills; the
/// result, not negative.
///
/// `cmd` is one whose number says the size of the structure, or the size of the head of one that
/// says in its head how long the rest is (FIEMAP, FIDEDUPERANGE): the caller has set that to what
/// `arg` has.
pub fn call<T: FromBytes + IntoBytes>(fd: impl AsFd, cmd: u32, arg: &mut T) -> Result<i32> {
    let size = (cmd >> 16 & 0x3fff) as usize;
    assert!(size <= size_of::<T>(), "the structure is as long as the command says");
    // SAFETY: `arg` is plain data in which every byte pattern is valid, and lives until after the
    // call. What is written is as long as the number says, or as the head says; both were checked,
    // here or by the caller.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), cmd as _, std::ptr::from_mut(arg)) };
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Hands what was stored through mappings of a file to its file system, which need not be durable
/// after it: Linux does so before the calls of its own that look at extents, but not before an
/// ioctl that it only passes on.
pub fn settle(file: &File) -> Result<()> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: no memory is passed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, how) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}
