//! The system calls that the standard library does not offer. What Linux alone has, or has in its
//! own way, is in a module for Linux and in one for all other systems.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(all(test, target_os = "linux"))]
pub(crate) use linux::forget;
#[cfg(not(target_os = "linux"))]
use other as system;
pub(crate) use system::{
    block_device_discard, block_device_discard_granularity, block_device_sector_size_bytes, block_device_size_bytes,
    preadv_nowait, punch_hole, will_need,
};

use crate::block_device::batch::VECTOR_BUFS_MAX;

/// preadv(2): how many bytes were read.
pub(crate) fn preadv(file: &File, bufs: &mut [IoSliceMut<'_>], offset_bytes: u64) -> io::Result<usize> {
    let count = bufs.len().min(VECTOR_BUFS_MAX);
    Ok(rustix::io::preadv(file, &mut bufs[..count], offset_bytes)?)
}

/// pwritev(2): how many bytes were written.
pub(crate) fn pwritev(file: &File, bufs: &[IoSlice<'_>], offset_bytes: u64) -> io::Result<usize> {
    let count = bufs.len().min(VECTOR_BUFS_MAX);
    Ok(rustix::io::pwritev(file, &bufs[..count], offset_bytes)?)
}
