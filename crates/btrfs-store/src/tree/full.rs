//! Full leaves on their way to the disk: sealed and written a few MiB at a time while the merge
//! that made them goes on, and their memory is used again. To touch new memory takes longer than to
//! fill it.
//!
//! They are not kept. Where they are wanted again they are read, which is what a volume larger than
//! memory is used to; the page cache of the device has them as long as there is room. The last few,
//! less than one batch, go the way of all other blocks.

use btrfs_format::{Generation, LogicalAddr, TreeBlock, TreeId};

use super::store::NodeStore;
use crate::error::Result;
use cowshed_runtime::Workers;

/// The leaves of one merge after the other; the host of the merges has it.
#[derive(Debug, Default)]
pub struct FullLeaves {
    gathered: Vec<(LogicalAddr, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    written: usize,
}

impl FullLeaves {
    /// Takes a leaf whose address nothing on disk, and nothing that readers may reach, leads to. It
    /// may be written now or later.
    pub fn take(
        &mut self,
        (store, workers): (&NodeStore, &Workers),
        (transid, tree): (Generation, TreeId),
        leaf: (LogicalAddr, Vec<u8>),
    ) -> Result<()> {
        self.gathered.push(leaf);
        if self.gathered.len() * store.nodesize_bytes() < store.full_bytes_max() {
            return Ok(());
        }
        let leaves = std::mem::take(&mut self.gathered);
        self.written += leaves.len();
        self.spare = store.write_leaves(workers, leaves, transid, tree)?;
        Ok(())
    }

    /// Those that were not written: the merge is over.
    pub fn take_rest(&mut self) -> impl Iterator<Item = TreeBlock> {
        let rest = std::mem::take(&mut self.gathered);
        rest.into_iter().map(|(_, bytes)| TreeBlock::from_builder(bytes))
    }

    /// Memory of a leaf that was written.
    pub fn spare_buffer(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
    }

    /// How many were written.
    pub(crate) fn written(&self) -> usize {
        self.written
    }
}
