//! Reading ahead, for callers without a kernel that does it.
//!
//! Sequential small reads come, every 128 KiB, to a compressed extent that is not decompressed yet:
//! work for one processor, while the others idle. Such a step takes some of the extents that follow
//! along, and shares them with the helpers as a large read shares its own. So nothing is under way
//! without a reader, no error is seen that no read asked for, and what is kept has the bound of all
//! decompressed extents. Plain data is left to the device's cache.

use std::ops::Range;
use std::sync::Arc;

use btrfs_format::items::compression;

use crate::compression::decompress::COMPRESSED_EXTENT_BYTES_MAX;
use crate::error::Result;
use crate::extent::{Extent, OnDisk, Walk};
use crate::files::Files;
use crate::object::DECOMPRESSED_MAX;
use crate::object::Inode;
use crate::pagecache::EXTENTS_MAX;

/// Reads of this size and more have enough for all processors by themselves.
const STEP_BYTES: u64 = 8 * COMPRESSED_EXTENT_BYTES_MAX as u64;
const _: () = assert!(
    EXTENTS_MAX <= *DECOMPRESSED_MAX.start() / 2,
    "two readers keep what each read ahead"
);

/// Notes what is read, and says whether more shall be.
pub(super) fn goes_on(files: &Files, inode: &Arc<Inode>, range: Range<u64>) -> bool {
    let is_wanted = files.options().read_ahead && files.store().workers().threads() > 1;
    is_wanted && range.end - range.start < STEP_BYTES && inode.data.ahead.lock().goes_on(range)
}

/// The compressed extents behind one that has to be decompressed now, that are to be decompressed
/// with it. The caller holds the operation lock.
pub(super) fn extents(files: &Files, inode: &Arc<Inode>, first: &Extent) -> Vec<(Extent, OnDisk)> {
    let count = inode.data.ahead.lock().grow(first.start) - 1;
    let mut found = Vec::new();
    // An error is left to the read that comes to it.
    let Ok(ready) = find(files, inode, first, count, &mut found) else {
        return Vec::new();
    };
    inode.data.ahead.lock().ready = ready;
    found
}

/// Returns where the last of them ends.
fn find(
    files: &Files,
    inode: &Arc<Inode>,
    first: &Extent,
    count: usize,
    found: &mut Vec<(Extent, OnDisk)>,
) -> Result<u64> {
    let mut ready = first.end();
    let reach = ready.saturating_add((count * COMPRESSED_EXTENT_BYTES_MAX) as u64);
    let mut walk = Walk::new(&inode.tree, inode.ino, ready..reach)?;
    // Parts of one extent may lie on both sides of what was written over it.
    let mut last = first.on_disk().map(|disk| disk.addr);
    while found.len() < count
        && let Some(next) = walk.next()?
    {
        let packed = next.on_disk().filter(|disk| disk.compression != compression::NONE);
        let Some(disk) = packed.copied() else { break };
        ready = next.end();
        let is_known = last.replace(disk.addr) == Some(disk.addr);
        if !is_known && !files.data().is_cached((disk.addr, next.generation)) {
            found.push((next, disk));
        }
    }
    Ok(ready)
}
