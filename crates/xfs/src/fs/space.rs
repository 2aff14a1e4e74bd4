//! What statfs shows: the numbers that Linux shows for the same volume.

use cowshed_vfs::StatFs;

use crate::volume::Volume;

/// Blocks of each group that are kept back for its AGFL.
const AG_SET_ASIDE_BLOCKS: u64 = 8;
const INODES_MAX: u64 = (1 << 56) - 1;

pub(super) fn stat(volume: &Volume) -> StatFs {
    let (sb, geometry) = (volume.superblock(), volume.geometry());
    let log_blocks = if sb.has_internal_log() {
        sb.logblocks.get().into()
    } else {
        0
    };
    let set_aside = AG_SET_ASIDE_BLOCKS * u64::from(geometry.ag_count);
    let free = sb.fdblocks.get().saturating_sub(set_aside);
    let inodes_in = |blocks: u64| {
        blocks
            .checked_shl(geometry.inodes_per_block_log.into())
            .unwrap_or(u64::MAX)
    };
    let (count, used) = (sb.icount.get(), sb.icount.get().saturating_sub(sb.ifree.get()));
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
