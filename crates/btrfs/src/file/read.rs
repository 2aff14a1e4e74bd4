//! Reading: what memory holds, over extents on disk, over zeros.

use std::ops::Range;
use std::sync::Arc;

use btrfs_format::LogicalAddr;
use btrfs_format::items::compression;
use btrfs_format::view::{FileExtentView, file_extent};

use super::extent::{Extent, Kind, OnDisk, Walk};
use super::{BLOCK, csum, decompress, round_down, round_up};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::inode::{Inode, flags};

/// Unaligned reads up to this size go through one buffer; longer ones only at their two ends.
const BOUNCE_BYTES_MAX: u64 = 64 << 10;

/// Bytes of dirty ranges that no extent holds yet, as far as can be told without looking: they count as used.
pub fn delalloc_bytes(inode: &Inode) -> u64 {
    let pending = inode.data.pending_bytes();
    if pending == 0 {
        return 0;
    }
    let state = inode.attr.lock();
    pending.min(round_up(state.attr.size).saturating_sub(state.attr.nbytes))
}

/// Reads into `buf`; fewer bytes only at the end of the file.
pub fn read(engine: &Engine, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let _op = inode.lock.read();
    let size = inode.attr.lock().attr.size;
    let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
    if len > 0 {
        read_range(engine, inode, offset, &mut buf[..len])?;
    }
    Ok(len)
}

/// Reads a range whatever the size of the file is. The caller holds the operation lock, or the flush lock.
pub(super) fn read_range(engine: &Engine, inode: &Arc<Inode>, at: u64, buf: &mut [u8]) -> Result<()> {
    // What is in memory now stays valid although it may land on disk meanwhile: nobody writes while we hold the lock.
    let on_disk = inode.data.state.lock().read(at, buf);
    for range in on_disk {
        let part = &mut buf[(range.start - at) as usize..(range.end - at) as usize];
        read_disk(engine, inode, range, part)?;
    }
    Ok(())
}

/// A piece of plain data on disk that continues in the file and on disk.
struct Piece {
    addr: u64,
    range: Range<u64>,
}

/// Reads what the extents hold.
fn read_disk(engine: &Engine, inode: &Arc<Inode>, range: Range<u64>, buf: &mut [u8]) -> Result<()> {
    let mut walk = Walk::new(&inode.tree, inode.ino, range.clone())?;
    let mut pos = range.start;
    let mut piece: Option<Piece> = None;
    let at = |from: u64, to: u64| (from - range.start) as usize..(to - range.start) as usize;
    while let Some(extent) = walk.next()? {
        let (from, to) = (extent.start.max(pos), extent.end().min(range.end));
        if from >= to {
            continue;
        }
        buf[at(pos, from)].fill(0);
        pos = to;
        if let Kind::Disk(disk) = &extent.kind
            && disk.compression == compression::NONE
            && !disk.is_prealloc
        {
            let addr = disk.addr.get() + disk.offset_bytes + (from - extent.start);
            match &mut piece {
                Some(p) if p.range.end == from && p.addr + (from - p.range.start) == addr => p.range.end = to,
                _ => {
                    let before = piece.replace(Piece { addr, range: from..to });
                    if let Some(p) = before {
                        read_plain(engine, inode, p.addr, &mut buf[at(p.range.start, p.range.end)])?;
                    }
                }
            }
            continue;
        }
        read_special(engine, inode, &extent, from, &mut buf[at(from, to)])?;
    }
    if let Some(p) = piece {
        read_plain(engine, inode, p.addr, &mut buf[at(p.range.start, p.range.end)])?;
    }
    buf[at(pos, range.end)].fill(0);
    Ok(())
}

/// Reads from an extent that is not plain data on disk; `out` is its part from file offset `from` on.
fn read_special(engine: &Engine, inode: &Arc<Inode>, extent: &Extent, from: u64, out: &mut [u8]) -> Result<()> {
    match &extent.kind {
        Kind::Hole => out.fill(0),
        Kind::Disk(disk) if disk.is_prealloc => out.fill(0),
        Kind::Inline {
            item,
            ram_bytes,
            compression: how,
        } => {
            let bad = || Error::CorruptTree {
                tree: inode.tree.id(),
                what: "an inline extent is malformed".into(),
            };
            let Some(FileExtentView::Inline { data, .. }) = file_extent(item) else {
                return Err(bad());
            };
            if *how == compression::NONE {
                copy_at(data, from, out);
            } else {
                let found = decompress::decompress(*how, data, *ram_bytes);
                copy_at(&found.map_err(|e| undecodable(LogicalAddr(0), &e))?, from, out);
            }
        }
        Kind::Disk(disk) => {
            let data = load_compressed(engine, inode, extent, disk)?;
            copy_at(&data, disk.offset_bytes + (from - extent.start), out);
        }
    }
    Ok(())
}

/// Copies from `data` at `from` on; what it does not reach is zero.
fn copy_at(data: &[u8], from: u64, out: &mut [u8]) {
    let source = usize::try_from(from)
        .ok()
        .and_then(|from| data.get(from..))
        .unwrap_or(&[]);
    let len = source.len().min(out.len());
    out[..len].copy_from_slice(&source[..len]);
    out[len..].fill(0);
}

fn load_compressed(engine: &Engine, inode: &Arc<Inode>, extent: &Extent, disk: &OnDisk) -> Result<Arc<Vec<u8>>> {
    let id = (disk.addr, extent.generation);
    if let Some(data) = engine.file.cached(id) {
        return Ok(data);
    }
    // Sizes were bounded when the item was decoded.
    let mut raw = vec![0; disk.len_bytes as usize];
    read_blocks(engine, inode, disk.addr.get(), &mut raw)?;
    let data = decompress::decompress(disk.compression, &raw, disk.ram_bytes);
    let data = Arc::new(data.map_err(|e| undecodable(disk.addr, &e))?);
    engine.file.cache(id, data.clone());
    Ok(data)
}

/// Inline data has address 0.
fn undecodable(addr: LogicalAddr, error: &decompress::DecompressError) -> Error {
    Error::Decompress {
        addr,
        what: error.to_string(),
    }
}

/// Reads plain data from any byte address; blocks that are wanted in part go through a buffer.
fn read_plain(engine: &Engine, inode: &Arc<Inode>, addr: u64, out: &mut [u8]) -> Result<()> {
    let end = addr + out.len() as u64;
    let (first, last) = (round_down(addr), round_up(end));
    if first == addr && last == end {
        return read_blocks(engine, inode, addr, out);
    }
    if last - first <= BOUNCE_BYTES_MAX {
        let mut bounce = vec![0; (last - first) as usize];
        read_blocks(engine, inode, first, &mut bounce)?;
        let skip = (addr - first) as usize;
        out.copy_from_slice(&bounce[skip..skip + out.len()]);
        return Ok(());
    }
    let (inner, inner_end) = (round_up(addr), round_down(end));
    let mut bounce = [0; BLOCK as usize];
    if inner > addr {
        read_blocks(engine, inode, first, &mut bounce)?;
        out[..(inner - addr) as usize].copy_from_slice(&bounce[(addr - first) as usize..]);
    }
    read_blocks(
        engine,
        inode,
        inner,
        &mut out[(inner - addr) as usize..(inner_end - addr) as usize],
    )?;
    if inner_end < end {
        read_blocks(engine, inode, inner_end, &mut bounce)?;
        out[(inner_end - addr) as usize..].copy_from_slice(&bounce[..(end - inner_end) as usize]);
    }
    Ok(())
}

/// Reads whole blocks and checks them.
fn read_blocks(engine: &Engine, inode: &Arc<Inode>, addr: u64, out: &mut [u8]) -> Result<()> {
    let addr = LogicalAddr(addr);
    if inode.flags() & flags::NODATASUM != 0 {
        return engine.volume.read_data(addr, out, None);
    }
    let sums = csum::load(engine, addr, out.len() as u64)?;
    engine.volume.read_data(addr, out, Some(&sums))
}
