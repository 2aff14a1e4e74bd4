//! What statfs shows: the numbers that Linux shows for the same volume.

use cowshed_vfs::StatFs;

use crate::ag::{self, Counters};
use crate::volume::Volume;

/// Blocks of each group that are kept back for its AGFL.
const AG_SET_ASIDE_BLOCKS: u64 = 8;
const INODES_MAX: u64 = (1 << 56) - 1;

/// The counters that statfs is made of, once for a volume: nothing changes. Where groups cannot be
/// read they are those of the superblock.
pub(super) fn counters(volume: &Volume) -> Counters {
    let sb = volume.superblock();
    let said = Counters {
        free_blocks: sb.fdblocks.get(),
        inodes: sb.icount.get(),
        free_inodes: sb.ifree.get(),
        alloc_tree_blocks: 0,
    };
    match ag::counters(volume) {
        // The superblock is written at a clean end alone, and its copies by mkfs.
        Ok(found) if volume.lacks_counters() => found,
        Ok(found) => Counters {
            alloc_tree_blocks: found.alloc_tree_blocks,
            ..said
        },
        Err(error) => {
            tracing::warn!(%error, "statfs does without the counters of the groups");
            said
        }
    }
}

pub(super) fn stat(volume: &Volume, counters: &Counters) -> StatFs {
    let (sb, geometry) = (volume.superblock(), volume.geometry());
    let log_blocks = if sb.has_internal_log() {
        sb.logblocks.get().into()
    } else {
        0
    };
    let set_aside = AG_SET_ASIDE_BLOCKS * u64::from(geometry.ag_count);
    let free = counters
        .free_blocks
        .saturating_sub(set_aside)
        .saturating_sub(counters.alloc_tree_blocks);
    let inodes_in = |blocks: u64| {
        blocks
            .checked_shl(geometry.inodes_per_block_log.into())
            .unwrap_or(u64::MAX)
    };
    let (count, used) = (counters.inodes, counters.inodes.saturating_sub(counters.free_inodes));
    let mut files = count.saturating_add(inodes_in(free)).min(INODES_MAX);
    if sb.imax_pct != 0 {
        // Whole chunks, each of at least one block.
        let blocks =
            geometry.blocks / 100 * u64::from(sb.imax_pct) + geometry.blocks % 100 * u64::from(sb.imax_pct) / 100;
        let chunk = u64::from(xfs_format::CHUNK_INODES >> geometry.inodes_per_block_log.min(6)).max(1);
        files = files.min(inodes_in(blocks / chunk * chunk));
    }
    files = files.max(count);
    StatFs {
        blocks: geometry.blocks.saturating_sub(log_blocks),
        blocks_free: free,
        blocks_available: free,
        files,
        files_free: files.saturating_sub(used),
        bsize: geometry.block_bytes,
        frsize: geometry.block_bytes,
        name_bytes_max: xfs_format::dir::NAME_BYTES_MAX as u32,
    }
}
