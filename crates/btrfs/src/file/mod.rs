//! File data: extents, dirty ranges, write-back, holes, clones.

pub mod decompress;
mod lzo;

use std::sync::Arc;

use cowshed_vfs::{FallocateFlags, SeekKind};

use crate::Engine;
use crate::error::{Error, Result};
use crate::inode::Inode;

/// The unit of `st_blksize` and of allocation.
pub const BLOCK_BYTES: u32 = 4096;

/// What a file keeps in memory: its dirty ranges.
#[derive(Debug, Default)]
pub struct FileData {}

/// How a write is meant.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteCtx {
    /// To the end as it is when the write happens, whatever the offset says.
    pub append: bool,
    /// Strip set-id bits ([`cowshed_vfs::perm::perm_after_write`]).
    pub kill_suidgid: bool,
    /// Past the caches.
    pub direct: bool,
    /// Written back from a front end's cache: times stay.
    pub from_cache: bool,
}

fn missing<T>() -> Result<T> {
    Err(Error::Unsupported {
        feature: "file data".into(),
    })
}

/// Bytes of dirty ranges that no extent holds yet: they count as used.
pub fn delalloc_bytes(_inode: &Inode) -> u64 {
    0
}
pub fn read(_engine: &Engine, _inode: &Arc<Inode>, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
    missing()
}
pub fn write(_engine: &Engine, _inode: &Arc<Inode>, _offset: u64, _data: &[u8], _ctx: WriteCtx) -> Result<usize> {
    missing()
}
/// Sets the size, takes the operation lock itself.
pub fn truncate(_engine: &Engine, _inode: &Arc<Inode>, _new_size: u64) -> Result<()> {
    missing()
}
pub fn fallocate(
    _engine: &Engine,
    _inode: &Arc<Inode>,
    _mode: FallocateFlags,
    _offset: u64,
    _len_bytes: u64,
) -> Result<()> {
    missing()
}
pub fn seek(_engine: &Engine, _inode: &Arc<Inode>, _offset: u64, _what: SeekKind) -> Result<u64> {
    missing()
}
pub fn copy_range(
    _engine: &Engine,
    _src: &Arc<Inode>,
    _src_offset: u64,
    _dst: &Arc<Inode>,
    _dst_offset: u64,
    _len_bytes: u64,
) -> Result<u64> {
    missing()
}
/// All dirty data of the inode to disk, its items into the overlay.
pub fn write_back(_engine: &Engine, _inode: &Arc<Inode>) -> Result<()> {
    Ok(())
}
pub fn write_back_all(_engine: &Engine) -> Result<()> {
    Ok(())
}
/// Drops the dirty ranges and all extents of a regular file without names, step by step. Takes its locks itself.
pub fn drop_extents_of_deleted(_engine: &Engine, _inode: &Arc<Inode>) -> Result<()> {
    Ok(())
}
