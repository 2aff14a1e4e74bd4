//! The kernel's ioctls for the same things, for files on its own file systems. Structures as in
//! `<linux/fs.h>`, `<linux/fiemap.h>` and `<xfs/xfs_fs.h>`, in the machine's byte order.

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd as _;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::exchange_range::Exchange;
use crate::ioctl;

const FICLONERANGE: u32 = 0x4020_940d;
const FIDEDUPERANGE: u32 = 0xc018_9436;
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const XFS_IOC_EXCHANGE_RANGE: u32 = 0x4028_5881;
const XFS_EXCHANGE_TO_EOF: u64 = 1;
const XFS_EXCHANGE_DSYNC: u64 = 2;
const XFS_EXCHANGE_DRY_RUN: u64 = 4;
const XFS_EXCHANGE_FILE1_WRITTEN: u64 = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CloneRange {
    src_fd: i64,
    src_offset: u64,
    len_bytes: u64,
    dst_offset: u64,
}

pub fn clone_range(src: &File, src_offset: u64, dst: &File, dst_offset: u64, len_bytes: u64) -> Result<()> {
    let mut arg = CloneRange {
        src_fd: src.as_raw_fd().into(),
        src_offset,
        len_bytes,
        dst_offset,
    };
    ioctl::call(dst, FICLONERANGE, &mut arg).map(drop)
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DedupeRange {
    src_offset: u64,
    len_bytes: u64,
    count: u16,
    reserved: [u16; 3],
    dst_fd: i64,
    dst_offset: u64,
    done_bytes: u64,
    status: i32,
    reserved_info: u32,
}

/// Bytes that are the same and shared now; `None` where they differ.
pub fn dedupe_range(src: &File, src_offset: u64, dst: &File, dst_offset: u64, len_bytes: u64) -> Result<Option<u64>> {
    let mut arg = DedupeRange {
        src_offset,
        len_bytes,
        count: 1,
        reserved: [0; 3],
        dst_fd: dst.as_raw_fd().into(),
        dst_offset,
        done_bytes: 0,
        status: 0,
        reserved_info: 0,
    };
    ioctl::call(src, FIDEDUPERANGE, &mut arg)?;
    match arg.status {
        0 => Ok(Some(arg.done_bytes)),
        1 => Ok(None),
        negative => Err(Error::from_raw_os_error(negative.saturating_neg())),
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ExchangeRange {
    first_fd: i32,
    pad: u32,
    first_offset: u64,
    second_offset: u64,
    len_bytes: u64,
    flags: u64,
}

/// XFS alone knows it. What it takes for a sign of freshness only itself can make.
pub fn exchange_range(a: &File, b: &File, range: &Exchange) -> Result<()> {
    if range.fresh_b.is_some() {
        return Err(Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let to_eof = if range.to_eof { XFS_EXCHANGE_TO_EOF } else { 0 };
    let dry_run = if range.dry_run { XFS_EXCHANGE_DRY_RUN } else { 0 };
    let only_written = if range.only_written {
        XFS_EXCHANGE_FILE1_WRITTEN
    } else {
        0
    };
    let sync = if range.sync { XFS_EXCHANGE_DSYNC } else { 0 };
    let mut arg = ExchangeRange {
        first_fd: a.as_raw_fd(),
        pad: 0,
        first_offset: range.a_offset,
        second_offset: range.b_offset,
        len_bytes: range.len_bytes,
        flags: to_eof | only_written | dry_run | sync,
    };
    ioctl::call(b, XFS_IOC_EXCHANGE_RANGE, &mut arg).map(drop)
}

/// `struct fiemap_extent`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FiemapExtent {
    pub logical: u64,
    pub physical: u64,
    pub len_bytes: u64,
    reserved64: [u64; 2],
    pub flags: u32,
    reserved: [u32; 3],
}

const FIEMAP_EXTENTS: usize = 256;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Fiemap {
    start: u64,
    len_bytes: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [FiemapExtent; FIEMAP_EXTENTS],
}

/// All extents from `start` on, some at a time.
pub fn fiemap(file: &File, mut start: u64, take: &mut dyn FnMut(&FiemapExtent)) -> Result<()> {
    const LAST: u32 = 1;
    loop {
        let mut arg: Fiemap = FromZeros::new_zeroed();
        arg.start = start;
        arg.len_bytes = u64::MAX - start;
        arg.room = FIEMAP_EXTENTS as u32;
        ioctl::call(file, FS_IOC_FIEMAP, &mut arg)?;
        let found = &arg.extents[..(arg.mapped as usize).min(FIEMAP_EXTENTS)];
        found.iter().for_each(&mut *take);
        match found.last() {
            Some(last) if last.flags & LAST == 0 => start = last.logical + last.len_bytes,
            _ => return Ok(()),
        }
    }
}
