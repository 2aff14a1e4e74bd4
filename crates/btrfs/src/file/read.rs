//! Reading: what memory holds, over extents on disk, over zeros.

use std::ops::Range;
use std::sync::Arc;

use btrfs_format::items::compression;
use btrfs_format::view::{FileExtentView, file_extent};
use btrfs_format::{ChecksumType, LogicalAddr};

use super::{ahead, csum};
use crate::compression::decompress;
use crate::error::{Error, Result, StoreError};
use crate::extent::{Extent, Kind, OnDisk, Walk};
use crate::files::Files;
use crate::object::{Inode, flags};

/// Unaligned reads up to this size go through one buffer; longer ones only at their two ends.
const BOUNCE_BYTES_MAX: u64 = 64 << 10;

/// Reads into `buf`; fewer bytes only at the end of the file.
pub(crate) fn read(files: &Files, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let _op = inode.lock.read();
    let size = inode.attr.lock().attr.size;
    let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
    if len > 0 {
        let goes_on = ahead::goes_on(files, inode, offset..offset + len as u64);
        read_parts(files, inode, offset, &mut buf[..len], goes_on)?;
    }
    Ok(len)
}

/// Reads a range whatever the size of the file is. The caller holds the operation lock, or the
/// flush lock.
pub(super) fn read_range(files: &Files, inode: &Arc<Inode>, at: u64, buf: &mut [u8]) -> Result<()> {
    read_parts(files, inode, at, buf, false)
}

/// Reads a range; where it goes on from what was read before, the next extents may be read ahead.
fn read_parts(files: &Files, inode: &Arc<Inode>, at: u64, buf: &mut [u8], goes_on: bool) -> Result<()> {
    // What is in memory now stays valid although it may land on disk meanwhile: the lock keeps
    // writers out.
    let end = at + buf.len() as u64;
    let whole = at..end;
    let on_disk = match inode.data.get() {
        Some(data) => data.state.lock().read(at, buf),
        None => vec![whole],
    };
    for range in on_disk {
        let part = &mut buf[(range.start - at) as usize..(range.end - at) as usize];
        let goes_on = goes_on && range.end == end;
        read_disk(files, inode, range, part, goes_on)?;
    }
    Ok(())
}

/// Plain data is read and verified in portions of this size where it is shared among workers. A
/// helper takes some ten microseconds to come: as long as crc32c of 200 KiB, or sha256 of 20 KiB.
fn portion_bytes(files: &Files) -> usize {
    match files.store().volume().csum_type() {
        ChecksumType::Crc32c | ChecksumType::Xxhash64 => 1 << 20,
        ChecksumType::Sha256 | ChecksumType::Blake2b => 128 << 10,
    }
}

/// A part of a read, with where it goes.
enum Job<'b> {
    /// Plain data, contiguous in the file and on disk.
    Plain { addr: u64, out: &'b mut [u8] },
    /// The file from `from` on, in this extent.
    Packed {
        extent: Extent,
        disk: OnDisk,
        from: u64,
        out: &'b mut [u8],
    },
    /// A compressed extent that was read ahead, to be kept.
    Ahead { extent: Extent, disk: OnDisk },
}

/// Reads what the extents hold: large plain parts and compressed extents are shared among workers.
fn read_disk(files: &Files, inode: &Arc<Inode>, range: Range<u64>, buf: &mut [u8], goes_on: bool) -> Result<()> {
    let mut jobs = read_jobs(files, inode, range, buf)?;
    if goes_on
        && let Some(Job::Packed { extent, disk, .. }) = jobs.last()
        && !files.data().is_cached((disk.addr, extent.generation))
    {
        let next = ahead::extents(files, inode, extent);
        jobs.extend(next.into_iter().map(|(extent, disk)| Job::Ahead { extent, disk }));
    }
    let read = files.store().workers().run(jobs, |job| match job {
        Job::Plain { addr, out } => read_plain(files, inode, addr, out),
        Job::Packed {
            extent,
            disk,
            from,
            out,
        } => read_packed(files, inode, &extent, &disk, from, out),
        Job::Ahead { extent, disk } => {
            // The read that asks for it gets the error.
            let _ = load_compressed(files, inode, &extent, &disk);
            Ok(())
        }
    });
    read.into_iter().collect()
}

/// Fills in what needs no reading; the rest is left to do.
fn read_jobs<'b>(files: &Files, inode: &Arc<Inode>, range: Range<u64>, buf: &'b mut [u8]) -> Result<Vec<Job<'b>>> {
    let mut walk = Walk::new(&inode.tree, inode.ino, range.clone())?;
    let portions = (portion_bytes(files), files.sector_bytes());
    let mut jobs = Vec::new();
    let (mut pos, mut rest) = (range.start, buf);
    // The plain data before `pos`: its address and how long it is.
    let mut plain = (0, 0);
    while let Some(extent) = walk.next()? {
        let (from, to) = (extent.start.max(pos), extent.end().min(range.end));
        if from >= to {
            continue;
        }
        let disk = extent.on_disk().filter(|disk| !disk.is_prealloc).copied();
        let addr = disk
            .filter(|disk| disk.compression == compression::NONE)
            .map(|disk| disk.addr.get() + disk.offset_bytes + (from - extent.start));
        let continues = from == pos && addr == Some(plain.0 + plain.1);
        if !continues {
            rest = put_plain(&mut jobs, &mut plain, rest, portions);
        }
        if from > pos {
            let gap;
            (gap, rest) = rest.split_at_mut((from - pos) as usize);
            gap.fill(0);
        }
        pos = to;
        if let Some(addr) = addr {
            plain = if continues {
                (plain.0, plain.1 + to - from)
            } else {
                (addr, to - from)
            };
            continue;
        }
        let out;
        (out, rest) = rest.split_at_mut((to - from) as usize);
        match disk {
            Some(disk) => jobs.push(Job::Packed {
                extent,
                disk,
                from,
                out,
            }),
            None => read_special(files, inode, &extent, from, out)?,
        }
    }
    put_plain(&mut jobs, &mut plain, rest, portions).fill(0);
    Ok(jobs)
}

/// Makes jobs of plain data at the start of `rest`; returns what comes after it.
fn put_plain<'b>(
    jobs: &mut Vec<Job<'b>>,
    plain: &mut (u64, u64),
    rest: &'b mut [u8],
    (portion, sector): (usize, u64),
) -> &'b mut [u8] {
    let (mut addr, len) = std::mem::take(plain);
    let (mut out, rest) = rest.split_at_mut(len as usize);
    while !out.is_empty() {
        // Portions end where sectors do; a short last one is not worth a job.
        let aligned = portion - (addr % sector) as usize;
        let now;
        (now, out) = out.split_at_mut(if out.len() < 2 * portion { out.len() } else { aligned });
        let next = addr + now.len() as u64;
        jobs.push(Job::Plain { addr, out: now });
        addr = next;
    }
    rest
}

/// Reads part of a compressed extent. One that is wanted whole is decompressed in place.
fn read_packed(
    files: &Files,
    inode: &Arc<Inode>,
    extent: &Extent,
    disk: &OnDisk,
    from: u64,
    out: &mut [u8],
) -> Result<()> {
    let skip = disk.offset_bytes + (from - extent.start);
    if skip > 0 || out.len() as u64 != disk.ram_bytes {
        let data = load_compressed(files, inode, extent, disk)?;
        copy_at(&data, skip, out);
        return Ok(());
    }
    if let Some(data) = files.data().cached((disk.addr, extent.generation)) {
        // On a damaged volume another item may say another length of the same extent.
        copy_at(&data, 0, out);
        return Ok(());
    }
    decompress_extent(files, inode, disk, out)
}

/// Reads and decompresses a whole extent.
fn decompress_extent(files: &Files, inode: &Arc<Inode>, disk: &OnDisk, out: &mut [u8]) -> Result<()> {
    #[cfg(test)]
    let _ = files
        .data()
        .decompressions
        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    files.data().decoders.with(|decoder| {
        // Sizes were bounded when the item was decoded.
        read_blocks(files, inode, disk.addr.get(), decoder.raw(disk.len_bytes))?;
        let done = decoder.decompress_raw(disk.compression, disk.len_bytes, out);
        done.map_err(|e| undecodable(disk.addr, &e))
    })
}

/// Reads from an extent that has nothing to be read on disk; `out` is its part from file offset
/// `from` on.
fn read_special(files: &Files, inode: &Arc<Inode>, extent: &Extent, from: u64, out: &mut [u8]) -> Result<()> {
    match &extent.kind {
        Kind::Hole | Kind::Disk(_) => out.fill(0),
        Kind::Inline {
            item,
            ram_bytes,
            compression: how,
        } => {
            let bad = || {
                Error::Store(StoreError::CorruptTree {
                    tree: inode.tree.id(),
                    what: "an inline extent is malformed".into(),
                })
            };
            let Some(FileExtentView::Inline { data, .. }) = file_extent(item) else {
                return Err(bad());
            };
            if *how == compression::NONE {
                copy_at(data, from, out);
            } else {
                // Bounded when the item was decoded.
                let mut all = vec![0; *ram_bytes as usize];
                let done = files.data().decoders.with(|d| d.decompress(*how, data, &mut all));
                done.map_err(|e| undecodable(LogicalAddr(0), &e))?;
                copy_at(&all, from, out);
            }
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

fn load_compressed(files: &Files, inode: &Arc<Inode>, extent: &Extent, disk: &OnDisk) -> Result<Arc<Vec<u8>>> {
    let id = (disk.addr, extent.generation);
    if let Some(data) = files.data().cached(id) {
        return Ok(data);
    }
    let mut data = vec![0; disk.ram_bytes as usize];
    decompress_extent(files, inode, disk, &mut data)?;
    let data = Arc::new(data);
    files.data().cache(id, data.clone());
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
fn read_plain(files: &Files, inode: &Arc<Inode>, addr: u64, out: &mut [u8]) -> Result<()> {
    let end = addr + out.len() as u64;
    // Checksums are those of whole sectors.
    let sector = files.sector_bytes();
    let (start_of, end_of) = (|n: u64| n - n % sector, |n: u64| n.next_multiple_of(sector));
    let (first, last) = (start_of(addr), end_of(end));
    if first == addr && last == end {
        return read_blocks(files, inode, addr, out);
    }
    if last - first <= BOUNCE_BYTES_MAX {
        let mut bounce = vec![0; (last - first) as usize];
        read_blocks(files, inode, first, &mut bounce)?;
        let skip = (addr - first) as usize;
        out.copy_from_slice(&bounce[skip..skip + out.len()]);
        return Ok(());
    }
    let (inner, inner_end) = (end_of(addr), start_of(end));
    let mut bounce = vec![0; sector as usize];
    if inner > addr {
        read_blocks(files, inode, first, &mut bounce)?;
        out[..(inner - addr) as usize].copy_from_slice(&bounce[(addr - first) as usize..]);
    }
    if inner < inner_end {
        let whole = &mut out[(inner - addr) as usize..(inner_end - addr) as usize];
        read_blocks(files, inode, inner, whole)?;
    }
    if inner_end < end {
        read_blocks(files, inode, inner_end, &mut bounce)?;
        out[(inner_end - addr) as usize..].copy_from_slice(&bounce[..(end - inner_end) as usize]);
    }
    Ok(())
}

/// Reads whole blocks of an extent of the inode as they lie on disk, and checks them.
pub(crate) fn read_as_it_lies(files: &Files, inode: &Arc<Inode>, addr: LogicalAddr, out: &mut [u8]) -> Result<()> {
    read_blocks(files, inode, addr.get(), out)
}

/// Reads whole blocks and checks them.
fn read_blocks(files: &Files, inode: &Arc<Inode>, addr: u64, out: &mut [u8]) -> Result<()> {
    let addr = LogicalAddr(addr);
    if inode.flags() & flags::NODATASUM != 0 || !files.has_data_csums() {
        return Ok(files.store().volume().read_data(addr, out, None)?);
    }
    let sums = csum::load(files, addr, out.len() as u64)?;
    Ok(files.store().volume().read_data(addr, out, Some(&sums))?)
}
