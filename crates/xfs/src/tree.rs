//! Records of a B-tree in their order, from a key on: one implementation for all trees.

use std::ops::ControlFlow;

use xfs_format::btree::{BlockPtr, BtreeBlock, TreeKind};
use xfs_format::{AgBlock, Daddr, FsBlock, Owner};

use crate::error::{Error, Result};
use crate::volume::Volume;

/// A tree, or what is below a root that lies in an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub owner: Owner,
    /// The block, as pointers of this tree say it.
    pub block: u64,
    pub level: u8,
}

fn place(volume: &Volume, owner: Owner, number: u64) -> Option<Daddr> {
    let geometry = volume.geometry();
    match owner {
        Owner::Ag(group) => Some(geometry.ag_daddr(group, AgBlock(u32::try_from(number).ok()?))),
        Owner::Inode(_) => geometry.daddr(FsBlock(number)),
    }
}

fn damaged(owner: Owner) -> Error {
    Error::Inconsistent {
        what: "B-tree",
        ino: match owner {
            Owner::Ag(group) => group.get().into(),
            Owner::Inode(ino) => ino.get(),
        },
    }
}

fn load<K: TreeKind>(volume: &Volume, owner: Owner, number: u64, level: u8) -> Result<BtreeBlock<K>>
where
    BtreeBlock<K>: Send + Sync,
{
    let daddr = place(volume, owner, number).ok_or_else(|| damaged(owner))?;
    let block: BtreeBlock<K> = volume.block(daddr, volume.geometry().block_bytes, owner)?;
    if block.level() != level {
        return Err(damaged(owner));
    }
    Ok(block)
}

/// Visits records from the last one at or before `from`, in order.
///
/// The walk is bounded: leaves that follow each other must hold rising keys, so a ring is an error.
pub(crate) fn visit<K: TreeKind>(
    volume: &Volume,
    root: Root,
    from: K::Order,
    visit: &mut dyn FnMut(&K::Record) -> ControlFlow<()>,
) -> Result<()>
where
    BtreeBlock<K>: Send + Sync,
{
    let mut block = load::<K>(volume, root.owner, root.block, root.level)?;
    while block.level() > 0 {
        let slot = block.keys().partition_point(|key| K::order(&K::low(key)) <= from);
        let child = block
            .pointers()
            .get(slot.saturating_sub(1))
            .ok_or_else(|| damaged(root.owner))?;
        block = load::<K>(volume, root.owner, child.number(), block.level() - 1)?;
    }
    let before = block
        .records()
        .partition_point(|record| K::order(&K::key(record)) <= from);
    let mut first = before.saturating_sub(1);
    let mut last: Option<K::Order> = None;
    loop {
        for record in block.records().iter().skip(first) {
            let order = K::order(&K::key(record));
            if last.is_some_and(|last| last >= order) {
                return Err(damaged(root.owner));
            }
            last = Some(order);
            if visit(record).is_break() {
                return Ok(());
            }
        }
        let right = block.siblings().right;
        // Only an empty tree has a leaf without records: without one the walk would not be bounded.
        if right == K::Ptr::NULL || block.is_empty() {
            return Ok(());
        }
        first = 0;
        block = load::<K>(volume, root.owner, right.number(), 0)?;
    }
}
