//! The account of space as the contract has it.

use btrfs_store::space::{Purpose, Space};
use cowshed_vfs::{PendingAccount, PoolAccount, PurposeAccount, SpaceAccount};

pub(super) fn account(space: &Space, block_bytes: u64, is_mixed: bool) -> SpaceAccount {
    let n = space.account();
    let names = [if is_mixed { "mixed" } else { "data" }, "metadata", "system"];
    let pools = names.into_iter().zip(n.pools).map(|(name, bytes)| PoolAccount {
        name,
        total_bytes: bytes.total,
        free_bytes: bytes.free,
        pinned_bytes: bytes.pinned,
        addable_bytes: bytes.addable,
    });
    let purposes = Purpose::ALL.into_iter().zip(n.purposes);
    let purposes = purposes.map(|(purpose, counts)| PurposeAccount {
        name: purpose.name(),
        held_bytes: counts.held_blocks * block_bytes,
        peak_bytes: counts.peak_blocks * block_bytes,
        granted: counts.granted,
        refused: counts.refused,
        items: counts.growth.items,
        bytes: counts.growth.bytes,
    });
    SpaceAccount {
        block_bytes,
        pools: pools.filter(|pool| pool.total_bytes > 0).collect(),
        data_reserved_bytes: n.data_reserved_bytes,
        metadata_reserved_bytes: n.meta_reserved_blocks * block_bytes,
        deletion_reserve_bytes: n.global_reserve_bytes,
        pending: PendingAccount {
            items: n.pending.items,
            bytes: n.pending.bytes,
            counted_items: n.opened.items,
            held_bytes: n.pending_blocks * block_bytes,
            held_by_items_bytes: n.pending_blocks_by_items * block_bytes,
        },
        purposes: purposes.collect(),
    }
}
