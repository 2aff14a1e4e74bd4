//! What all loads open and write.

use std::os::fd::{BorrowedFd, OwnedFd};

use anyhow::Result;
use cowshed_device_sim::Rng;
use rustix::fs::{Mode, OFlags};

pub const BLOCK: u64 = 4096;
/// O_DIRECT wants buffers aligned to the logical sector; a page is enough everywhere.
const ALIGN_BYTES: usize = 4096;

pub fn open(at: BorrowedFd<'_>, path: impl rustix::path::Arg, flags: OFlags) -> Result<OwnedFd> {
    Ok(rustix::fs::openat(
        at,
        path,
        flags | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o644),
    )?)
}

/// A buffer at a page's start, of bytes that do not compress.
pub fn buffer(len_bytes: usize) -> (Vec<u8>, std::ops::Range<usize>) {
    let mut bytes = vec![0; len_bytes + ALIGN_BYTES];
    Rng::new(3).fill(&mut bytes);
    let start = bytes.as_ptr().align_offset(ALIGN_BYTES);
    (bytes, start..start + len_bytes)
}
