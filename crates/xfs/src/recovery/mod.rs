//! Recovery of a dirty log: the state after it, in memory. Nothing is written to the device.
//!
//! docs/design/xfs-log.md. [`run`] replays the log into an overlay of changed pages, finishes what
//! the log promised, frees what was unlinked, and sums the counters of the superblock. A later
//! writer puts the pages of the overlay home and cleans the log.

mod buffers;
mod cancels;
mod counters;
mod disk;
mod dquots;
mod finish;
#[cfg(test)]
mod fixture;
mod inodes;
mod intents;
mod overlay;
mod replay;

use std::collections::BTreeMap;
use std::sync::Arc;

use cowshed_device::BlockDevice;
use xfs_format::{Geometry, Superblock};

use crate::error::{Error, Result};
use crate::log::{Ends, Ring};
use disk::Disk;
use overlay::Overlay;

/// What recovery did, and the pages that it changed.
#[derive(Debug)]
pub struct Recovery {
    /// Transactions that were replayed.
    pub transactions: u64,
    /// Their items, by the format's names.
    pub items: BTreeMap<&'static str, u64>,
    /// Intents without a "done", by the format's names.
    pub unfinished: BTreeMap<&'static str, u64>,
    /// Unlinked inodes that were freed.
    pub unlinked: u64,
    /// Blocks staged for copy on write that were freed.
    pub staged: u64,
    overlay: Arc<Overlay>,
}

impl Recovery {
    /// Changed pages with their addresses in bytes: what a recovery on the device would write.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.overlay.pages()
    }

    /// The device with the changed pages in front of it.
    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.overlay) as Arc<dyn BlockDevice>
    }
}

/// The volume before recovery.
pub(crate) struct Start<'a> {
    /// The superblock.
    pub superblock: &'a Superblock,
    /// Its geometry.
    pub geometry: &'a Geometry,
    /// The superblock is a copy: the first one is damaged.
    pub is_by_copy: bool,
}

/// Recovers a dirty log, and gives the superblock as it is afterwards. Errors: a log or a block
/// that is not what it should be, and what is not supported, by name.
pub(crate) fn run(
    device: Arc<dyn BlockDevice>,
    ring: &Ring<'_>,
    ends: &Ends,
    start: &Start<'_>,
) -> Result<(Recovery, Superblock)> {
    let sb = start.superblock;
    if let Some(unknown) = sb.unsupported_log_features() {
        return Err(Error::Unsupported(format!("log with {}", unknown.name)));
    }
    let log_bytes = u64::from(ring.blocks()) * 512;
    let mut disk = Disk::new(device, *start.geometry, log_bytes);
    if start.is_by_copy {
        // The log may hold parts of the first superblock alone.
        disk.write(xfs_format::Daddr(0), &sb.seal()?)?;
    }
    let replayed = replay::replay(&mut disk, ring, ends, sb)?;
    let mut unfinished = BTreeMap::new();
    for pending in &replayed.unfinished {
        if let Some(name) = pending.with(|intent| intent.ty().name()) {
            *unfinished.entry(name).or_default() += 1;
        }
    }
    disk.lsn = ends.head;
    let head = disk.read(xfs_format::Daddr(0), start.geometry.sector_bytes)?;
    let mut after = Superblock::verify(&head)?;
    // The log may have grown the volume.
    disk.geometry = Geometry::new(&after)?;
    let finished = finish::finish(&mut disk, &replayed.unfinished)?;
    if finished.has_new_attr_fork {
        let bits = after.versionnum.get() | xfs_format::features::version::ATTR as u16;
        after.versionnum.set(bits);
    }
    counters::sum(&disk, &mut after)?;
    disk.write(xfs_format::Daddr(0), &after.seal()?)?;
    let recovery = Recovery {
        transactions: replayed.transactions,
        items: replayed.items,
        unfinished,
        unlinked: finished.unlinked,
        staged: finished.staged,
        overlay: Arc::new(disk.into_overlay()),
    };
    Ok((recovery, after))
}
