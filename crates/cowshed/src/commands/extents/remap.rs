//! Sharing and exchanging ranges of open files, on whatever they lie.

use std::fs::File;
use std::io::{Error, Result};
use std::os::unix::fs::MetadataExt as _;

use cowshed_vfs::Timestamp;
use cowshed_vfs_ioctl::wire::{self, Remap, Time, Token, flag, op};
use zerocopy::FromZeros;

use super::exchange_range::Exchange;
use super::{is_unknown, kernel};
use crate::ioctl;

/// A token for an open file or directory of a mount of ours; `None` where it lies elsewhere.
pub fn lend(file: &File) -> Result<Option<Token>> {
    let mut token = Token([0; 16]);
    match ioctl::call(file, wire::LEND, &mut token) {
        Ok(_) => Ok(Some(token)),
        Err(error) if is_unknown(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Of files that lie on a mount of ours: a call that names the first by its token. `None` where
/// they lie elsewhere.
fn ours(src: &File, dst: &File, op: u32) -> Result<Option<Remap>> {
    let Some(token) = lend(src)? else { return Ok(None) };
    // A mount shows each subvolume as a device of its own: the server knows its tokens.
    if src.metadata()?.dev() != dst.metadata()?.dev() && lend(dst)?.is_none() {
        return Err(Error::from_raw_os_error(libc::EXDEV));
    }
    ioctl::settle(src)?;
    ioctl::settle(dst)?;
    let mut call: Remap = FromZeros::new_zeroed();
    call.token = token;
    call.op = op.into();
    Ok(Some(call))
}

/// Has Linux refresh the sizes in its cache. It does so by itself before it reads or maps a file by
/// name, but not before it copies from an open one; a stat by any process refreshes it for all.
/// Errors are ignored: the operation is done.
fn tell_sizes(files: [&File; 2]) {
    for file in files {
        let _ = file.metadata();
    }
}

/// Shares a range of `src` with `dst`; a length of 0: to the end.
pub fn clone_range(src: &File, src_offset: u64, dst: &File, dst_offset: u64, len_bytes: u64) -> Result<()> {
    let Some(mut call) = ours(src, dst, op::CLONE)? else {
        return kernel::clone_range(src, src_offset, dst, dst_offset, len_bytes);
    };
    call.src_offset = src_offset.into();
    call.dst_offset = dst_offset.into();
    call.len_bytes = len_bytes.into();
    let called = ioctl::call(dst, wire::REMAP, &mut call);
    // Also where it failed: the beginning may be there.
    tell_sizes([src, dst]);
    called.map(drop)
}

/// Shares a range if both hold the same. The bytes that do: fewer than asked for where the call
/// takes no more at once; `None` where the contents differ.
pub fn dedupe_range(src: &File, src_offset: u64, dst: &File, dst_offset: u64, len_bytes: u64) -> Result<Option<u64>> {
    let Some(mut call) = ours(src, dst, op::DEDUPE)? else {
        return kernel::dedupe_range(src, src_offset, dst, dst_offset, len_bytes);
    };
    call.src_offset = src_offset.into();
    call.dst_offset = dst_offset.into();
    call.len_bytes = len_bytes.into();
    ioctl::call(dst, wire::REMAP, &mut call)?;
    Ok((call.status.get() == 0).then(|| call.done_bytes.get()))
}

/// Exchanges ranges of two files.
pub fn exchange_range(a: &File, b: &File, range: &Exchange) -> Result<()> {
    let Some(mut call) = ours(a, b, op::EXCHANGE)? else {
        return kernel::exchange_range(a, b, range);
    };
    call.src_offset = range.a_offset.into();
    call.dst_offset = range.b_offset.into();
    call.len_bytes = range.len_bytes.into();
    let to_eof = if range.to_eof { flag::TO_EOF } else { 0 };
    let only_written = if range.only_written { flag::ONLY_WRITTEN } else { 0 };
    let dry_run = if range.dry_run { flag::DRY_RUN } else { 0 };
    let sync = if range.sync { flag::SYNC } else { 0 };
    let mut flags = to_eof | only_written | dry_run | sync;
    if let Some(fresh) = &range.fresh_b {
        flags |= flag::IF_FRESH;
        call.ino = fresh.ino.into();
        call.mtime = time(fresh.mtime);
        call.ctime = time(fresh.ctime);
    }
    call.flags = flags.into();
    ioctl::call(b, wire::REMAP, &mut call)?;
    tell_sizes([a, b]);
    Ok(())
}

fn time(of: Timestamp) -> Time {
    Time {
        secs: of.secs.into(),
        nanos: of.nanos.into(),
        pad: 0.into(),
    }
}
