//! The version 1 space cache: files in the root tree that list the free space of block groups.
//!
//! The kernel trusts a cache only where the superblock's `cache_generation` is the volume's, the
//! header's generation is the inode's and the first page's, the pages' checksums hold, and the
//! bytes listed add up. A cache that passes all that and yet calls free what is in use destroys
//! data; any other cache is ignored, by the kernel and here.

use std::collections::BTreeMap;

use btrfs_format::features::compat_ro;
use btrfs_format::hash::crc32c_raw;
use btrfs_format::items::FreeSpaceHeader;

use crate::finding::{FindingId as Id, Site};
use crate::layout::BlockGroup;
use crate::roots::{CacheInode, Roots};
use crate::util::{count, index};
use crate::walk::Cx;

/// The cache is kept in pages of this size.
const PAGE_BYTES: usize = 4096;
/// Larger caches are not looked into; the kernel's take 16 KiB to a few hundred.
const CACHE_BYTES_MAX: u64 = 32 << 20;
const ENTRY_BYTES: usize = 17;
const ENTRY_EXTENT: u8 = 1;
const ENTRY_BITMAP: u8 = 2;

/// Judges all caches, if they are in use at all.
pub(crate) fn check(cx: &mut Cx<'_>, roots: &Roots, groups: &BTreeMap<u64, BlockGroup>, judge: bool) {
    let sb = cx.vol.sb;
    let active = !cx.vol.has_compat_ro(compat_ro::FREE_SPACE_TREE) && sb.cache_generation == sb.generation;
    if !active || !roots.whole {
        return;
    }
    for (start, header) in &roots.caches {
        let inode = header.location.objectid.get();
        let site = Site::addr(*start);
        let Some(group) = groups.get(start) else {
            if judge {
                cx.sink.add(
                    Id::SpaceCacheInvalid,
                    site,
                    "the cache of a block group that does not exist",
                );
            }
            continue;
        };
        let Some(file) = roots.cache_inodes.get(&inode) else {
            cx.sink
                .add(Id::SpaceCacheInvalid, site, format!("inode {inode} does not exist"));
            continue;
        };
        if header.generation.get() > sb.generation.get() {
            let what = format!("generation {}, the volume is at {}", header.generation, sb.generation);
            cx.sink.add(Id::SpaceCacheInvalid, site, what);
        } else if judge
            && header.generation.get() == file.generation
            && let Some(free) = load(cx, header, file)
        {
            compare(cx, group, &free);
        }
    }
}

/// The free ranges that a cache lists. `None` for one that the kernel would not use.
fn load(cx: &Cx<'_>, header: &FreeSpaceHeader, file: &CacheInode) -> Option<Vec<(u64, u64)>> {
    if file.size_bytes > CACHE_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0; index(file.size_bytes)];
    for &(offset, addr, len) in &file.extents {
        let start = index(offset).min(bytes.len());
        let end = start.saturating_add(index(len)).min(bytes.len());
        cx.vol.read_copy(addr, 0, bytes.get_mut(start..end)?).ok()?;
    }
    let pages: Vec<&[u8]> = bytes.chunks_exact(PAGE_BYTES).collect();
    let sums_bytes = pages.len().checked_mul(4)?;
    for (number, page) in pages.iter().enumerate() {
        let body = if number == 0 { page.get(sums_bytes..)? } else { page };
        let at = number.checked_mul(4)?;
        let stored = pages.first()?.get(at..at.checked_add(4)?)?;
        if stored != (!crc32c_raw(u32::MAX, body)).to_le_bytes() {
            return None;
        }
    }
    let generation = word(pages.first()?, sums_bytes)?;
    if generation != header.generation.get() {
        return None;
    }
    entries(cx.vol.sectorsize, header, &pages, sums_bytes.checked_add(8)?)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn entries(sectorsize: u64, header: &FreeSpaceHeader, pages: &[&[u8]], start: usize) -> Option<Vec<(u64, u64)>> {
    let mut free = Vec::new();
    let mut bitmaps = Vec::new();
    let (mut page, mut at) = (0usize, start);
    // Each entry takes room in the pages, so there are no more than fit.
    for _ in 0..header.num_entries.get() {
        if at.checked_add(ENTRY_BYTES)? > PAGE_BYTES {
            page = page.checked_add(1)?;
            at = 0;
        }
        let bytes = pages.get(page)?;
        let (offset, len) = (word(bytes, at)?, word(bytes, at.checked_add(8)?)?);
        match *bytes.get(at.checked_add(16)?)? {
            ENTRY_EXTENT => free.push((offset, offset.checked_add(len)?)),
            ENTRY_BITMAP => bitmaps.push(offset),
            _ => return None,
        }
        at = at.checked_add(ENTRY_BYTES)?;
    }
    for offset in bitmaps {
        page = page.checked_add(1)?;
        let mut place = offset;
        for byte in pages.get(page)?.iter() {
            for bit in 0..8u32 {
                let end = place.checked_add(sectorsize)?;
                if byte.checked_shr(bit)? & 1 == 1 {
                    match free.last_mut() {
                        Some(last) if last.1 == place => last.1 = end,
                        _ => free.push((place, end)),
                    }
                }
                place = end;
            }
        }
    }
    Some(free)
}

fn compare(cx: &mut Cx<'_>, group: &BlockGroup, free: &[(u64, u64)]) {
    for &(start, end) in free {
        let used = cx.extents.overlapping(start, end).next().map(|e| (e.addr, e.len));
        if let Some((addr, len)) = used {
            let what = format!(
                "the cache of block group {} calls {start} to {end} free, the extent at {addr} has {len} bytes",
                group.start
            );
            cx.sink.add(Id::SpaceCacheInUse, Site::addr(addr), what);
        }
    }
    let sum = free
        .iter()
        .fold(0u64, |sum, (start, end)| sum.saturating_add(end.saturating_sub(*start)));
    if sum > group.len {
        let what = format!(
            "{sum} bytes free in a block group of {} ({} ranges)",
            group.len,
            count(free.len())
        );
        cx.sink.add(Id::SpaceCacheInvalid, Site::addr(group.start), what);
    }
}
