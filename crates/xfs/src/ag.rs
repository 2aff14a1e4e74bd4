//! Allocation groups: which inodes exist, which blocks are shared.

use std::ops::ControlFlow;

use xfs_format::ag::{AgfSector, AgiSector};
use xfs_format::btree::{Inobt, Refcount};
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

/// True where the inode's chunk says that it is in use.
pub(crate) fn is_allocated(volume: &Volume, ino: Ino) -> Result<bool> {
    let geometry = volume.geometry();
    let Some((group, within)) = geometry.split_ino(ino) else {
        return Ok(false);
    };
    let sector: AgiSector = volume.block(geometry.header_daddr(group, 2), geometry.sector_bytes, Owner::Ag(group))?;
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
    let sector: AgfSector = volume.block(geometry.header_daddr(group, 1), geometry.sector_bytes, Owner::Ag(group))?;
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
