//! Reading ahead, for callers without a kernel that does it.
//!
//! Who reads a file in order in small steps comes, every 128 KiB, to a compressed extent that nobody has decompressed yet: work for
//! one processor, while the others idle. Such a step takes some of the extents that follow along, and shares them with the helpers as
//! a large read shares its own. So nothing is under way when nobody reads, no error is seen that nobody asked for, and
//! what is kept has the bound of all [decompressed extents](super::FileShared). Plain data is left to the device's cache.

use std::ops::Range;
use std::sync::Arc;

use btrfs_format::items::compression;

use super::decompress::COMPRESSED_EXTENT_BYTES_MAX;
use super::extent::{Extent, OnDisk, Walk};
use super::shared::DECOMPRESSED_MAX;
use crate::engine::Engine;
use crate::error::Result;
use crate::inode::Inode;

/// Reads of this size and more have enough for all processors by themselves.
const STEP_BYTES: u64 = 8 * COMPRESSED_EXTENT_BYTES_MAX as u64;
/// With the one that is asked for as many extents are decompressed at a time.
const EXTENTS_MAX: usize = 8;
const _: () = assert!(
    EXTENTS_MAX <= *DECOMPRESSED_MAX.start() / 2,
    "two readers keep what each read ahead"
);

/// Where the last reader of a file is, and how many extents he is given at a time.
#[derive(Debug)]
pub(super) struct Ahead {
    /// He read up to here.
    next: u64,
    /// Extents up to here were decompressed.
    ready: u64,
    /// The next time so many, with the one that is asked for.
    extents: usize,
    /// But never more.
    extents_max: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            next: 0,
            ready: 0,
            extents: 1,
            extents_max: EXTENTS_MAX,
        }
    }
}

impl Ahead {
    /// A range is read: does it go on where the last one ended? Who begins anew begins with one extent.
    fn goes_on(&mut self, range: Range<u64>) -> bool {
        if range.start != self.next {
            *self = Self::default();
        }
        range.start == std::mem::replace(&mut self.next, range.end)
    }

    /// What begins at `start` is not decompressed: how many extents shall be now? Twice as many each time; where some were dropped
    /// before they were read, since too many are read by turns for all to be kept, half as many, and never more again.
    fn grow(&mut self, start: u64) -> usize {
        if start < self.ready {
            self.extents_max = (self.extents_max / 2).max(1);
            self.extents = 1;
            self.ready = 0;
        }
        let now = self.extents;
        self.extents = (2 * now).min(self.extents_max);
        now
    }
}

/// Notes what is read, and says whether more shall be.
pub(super) fn goes_on(engine: &Engine, inode: &Arc<Inode>, range: Range<u64>) -> bool {
    let is_wanted = engine.options.read_ahead && engine.store.workers().threads() > 1;
    is_wanted && range.end - range.start < STEP_BYTES && inode.data.ahead.lock().goes_on(range)
}

/// The compressed extents behind one that has to be decompressed now, that are to be decompressed with it. The caller holds the
/// operation lock.
pub(super) fn extents(engine: &Engine, inode: &Arc<Inode>, first: &Extent) -> Vec<(Extent, OnDisk)> {
    let count = inode.data.ahead.lock().grow(first.start) - 1;
    let mut found = Vec::new();
    // What cannot be read is for who comes to it.
    let Ok(ready) = find(engine, inode, first, count, &mut found) else {
        return Vec::new();
    };
    inode.data.ahead.lock().ready = ready;
    found
}

/// Returns where the last of them ends.
fn find(
    engine: &Engine,
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
        if !is_known && !engine.file.is_cached((disk.addr, next.generation)) {
            found.push((next, disk));
        }
    }
    Ok(ready)
}
