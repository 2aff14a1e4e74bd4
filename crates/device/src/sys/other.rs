//! Systems other than Linux: files only.

use std::fs::File;
use std::io::{self, IoSliceMut};

fn unsupported() -> io::Error {
    rustix::io::Errno::OPNOTSUPP.into()
}

/// No such read: all reads are waited for.
pub(crate) fn preadv_nowait(_: &File, _: &mut [IoSliceMut<'_>], _offset_bytes: u64) -> io::Result<usize> {
    Err(unsupported())
}

/// No hint is given.
pub(crate) fn will_need(_: &File, _offset_bytes: u64, _len_bytes: u64) {}

pub(crate) fn block_device_size_bytes(_: &File) -> io::Result<u64> {
    Err(unsupported())
}

pub(crate) fn block_device_sector_size_bytes(_: &File) -> io::Result<u32> {
    Err(unsupported())
}

pub(crate) fn block_device_discard(_: &File, _offset_bytes: u64, _len_bytes: u64) -> io::Result<()> {
    Err(unsupported())
}

pub(crate) fn block_device_discard_granularity(_rdev: u64) -> Option<u64> {
    None
}

/// Files keep the space that they have.
pub(crate) fn punch_hole(_: &File, _offset_bytes: u64, _len_bytes: u64) -> io::Result<()> {
    Err(unsupported())
}
