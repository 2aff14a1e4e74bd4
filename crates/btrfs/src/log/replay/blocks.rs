//! The blocks of a log: all are looked at before anything is replayed, and none may be allocated
//! before the commit that makes the log unnecessary - until then a crash must find it whole.

use btrfs_format::features::block_group;
use btrfs_format::{Key, LogicalAddr, TreeId};

use super::{Shared, corrupt};
use crate::error::Result;
use btrfs_store::tree::{RootPtr, child_ptr};
use btrfs_store::volume::BlockPtr;

/// Reads and verifies a log tree, and takes its blocks out of free space until the next commit is
/// done.
///
/// The walk ends: each level is lower than the one above, and the keys of a block stay between
/// those of its parent's pointers, so that no block can be met twice on a level.
pub(super) fn claim(shared: &mut Shared<'_>, root: RootPtr) -> Result<()> {
    let root = BlockPtr {
        addr: root.addr,
        generation: root.generation,
        level: root.level,
        first_key: None,
    };
    let mut todo: Vec<(BlockPtr, Option<Key>)> = vec![(root, None)];
    while let Some((ptr, limit)) = todo.pop() {
        let block = shared.files.store().nodes().load(&ptr, TreeId::TREE_LOG)?;
        claim_block(shared, ptr.addr)?;
        let last = block.len().checked_sub(1).map(|slot| block.key(slot));
        if let (Some(limit), Some(last)) = (limit, last)
            && last >= limit
        {
            return Err(corrupt(format!(
                "block {}: last key {last} is not below {limit}",
                ptr.addr
            )));
        }
        for slot in (0..if block.is_leaf() { 0 } else { block.len() }).rev() {
            let next = if slot + 1 < block.len() {
                Some(block.key(slot + 1))
            } else {
                limit
            };
            todo.push((child_ptr(&block, slot), next));
        }
    }
    Ok(())
}

fn claim_block(shared: &mut Shared<'_>, addr: LogicalAddr) -> Result<()> {
    shared.log_blocks.push(addr);
    if shared.is_read_only {
        return Ok(());
    }
    let (space, len) = (
        &shared.files.store().space(),
        shared.files.store().volume().nodesize_bytes().into(),
    );
    space.claim(addr, len, block_group::METADATA)?;
    space.pin(addr, len);
    Ok(())
}
