//! Allocation groups: which inodes exist, which blocks are shared.

use std::ops::ControlFlow;

use xfs_format::ag::{AgfSector, AgiSector};
use xfs_format::btree::{Inobt, Refcount};
use xfs_format::features::ro_compat;
use xfs_format::{AgIno, AgNumber, FsBlock, Ino, Owner};

use crate::error::Result;
use crate::tree::{self, Root};
use crate::volume::Volume;

fn root(group: AgNumber, block: u32, levels: u32) -> Root {
    Root {
        owner: Owner::Ag(group),
        block: block.into(),
        // The verifier has seen that there is at least one level.
        level: u8::try_from(levels.saturating_sub(1)).unwrap_or(u8::MAX),
    }
}

/// Counters of all groups.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Blocks that are free, or spare, or in the trees of free space.
    pub free_blocks: u64,
    /// Inodes that have a place.
    pub inodes: u64,
    /// Those that are free.
    pub free_inodes: u64,
    /// Blocks of the trees of free space without their roots, which cannot be given to files.
    pub alloc_tree_blocks: u64,
}

fn agf(volume: &Volume, group: AgNumber) -> Result<AgfSector> {
    let geometry = volume.geometry();
    volume.block(geometry.header_daddr(group, 1), geometry.sector_bytes, Owner::Ag(group))
}

fn agi(volume: &Volume, group: AgNumber) -> Result<AgiSector> {
    let geometry = volume.geometry();
    volume.block(geometry.header_daddr(group, 2), geometry.sector_bytes, Owner::Ag(group))
}

/// Sums the counters of all groups, which the log keeps right while those of the superblock are
/// not.
pub(crate) fn counters(volume: &Volume) -> Result<Counters> {
    let has_rmap = volume.geometry().has_ro_compat(ro_compat::RMAPBT);
    let mut sum = Counters::default();
    for group in (0..volume.geometry().ag_count).map(AgNumber) {
        let (agf, agi) = (agf(volume, group)?, agi(volume, group)?);
        let (agf, agi) = (agf.agf(), agi.agi());
        sum.free_blocks +=
            u64::from(agf.freeblks.get()) + u64::from(agf.flcount.get()) + u64::from(agf.btreeblks.get());
        sum.inodes += u64::from(agi.count.get());
        sum.free_inodes += u64::from(agi.freecount.get());
        // The count of tree blocks has those of the tree of owners, but for its root, in it.
        let of_owners = if has_rmap {
            agf.rmapblocks.get().saturating_sub(1)
        } else {
            0
        };
        sum.alloc_tree_blocks += u64::from(agf.btreeblks.get().saturating_sub(of_owners));
    }
    Ok(sum)
}

/// True where the inode's chunk says that it is in use.
pub(crate) fn is_allocated(volume: &Volume, ino: Ino) -> Result<bool> {
    let geometry = volume.geometry();
    let Some((group, within)) = geometry.split_ino(ino) else {
        return Ok(false);
    };
    let sector = agi(volume, group)?;
    let agi = sector.agi();
    let mut is_used = false;
    tree::visit::<Inobt>(
        volume,
        root(group, agi.root.get(), agi.level.get()),
        within.get(),
        &mut |record| {
            let start = AgIno(record.startino.get());
            if let Some(index @ 0..64) = within.get().checked_sub(start.get()) {
                let bit = 1_u64 << index;
                is_used = record.allocated_mask(geometry) & bit != 0 && record.free.get() & bit == 0;
            }
            ControlFlow::Break(())
        },
    )?;
    Ok(is_used)
}

/// Cuts blocks into runs that are shared, or not, from the first one on.
pub(crate) fn shared_runs(
    volume: &Volume,
    start: FsBlock,
    blocks: u64,
    take: &mut dyn FnMut(u64, bool) -> ControlFlow<()>,
) -> Result<()> {
    let geometry = volume.geometry();
    let Some((group, first)) = geometry.split(start).filter(|_| geometry.has_reflink()) else {
        let _ = take(blocks, false);
        return Ok(());
    };
    let sector = agf(volume, group)?;
    let agf = sector.agf();
    let end = u64::from(first.get()) + blocks;
    let mut at = u64::from(first.get());
    let mut flow = ControlFlow::Continue(());
    let tree = root(group, agf.refcntroot.get(), agf.refcntlevel.get());
    tree::visit::<Refcount>(volume, tree, first.get(), &mut |record| {
        let from = u64::from(record.start().get());
        let to = from + u64::from(record.blockcount.get());
        if record.is_cow_staging() || from >= end {
            return ControlFlow::Break(());
        }
        if to <= at {
            return ControlFlow::Continue(());
        }
        if from > at {
            flow = take(from - at, false);
            at = from;
        }
        if flow.is_continue() {
            flow = take(to.min(end) - at, true);
            at = to.min(end);
        }
        flow
    })?;
    if flow.is_continue() && at < end {
        let _ = take(end - at, false);
    }
    Ok(())
}
