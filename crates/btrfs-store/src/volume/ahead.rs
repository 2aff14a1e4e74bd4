//! Reading tree blocks ahead: many at once, each from one copy. What cannot be had this way is left
//! out, and read with all care ([`Volume::read_block`]) when it is really read.

use std::sync::Arc;

use btrfs_format::{TreeBlock, TreeId};
use cowshed_device::ReadOp;

use super::BlockPtr;
use super::Volume;
use super::chunk::PhysAddr;

impl Volume {
    /// Reads and verifies tree blocks in as few requests as their places allow; those that failed
    /// are missing. Faults are not counted and bad copies not repaired: these blocks were not asked
    /// for yet.
    pub(crate) fn read_blocks_ahead(&self, ptrs: &[BlockPtr], tree: TreeId) -> Vec<TreeBlock> {
        let nodesize_bytes = self.geometry.nodesize_bytes;
        let mut wanted: Vec<(PhysAddr, BlockPtr, Arc<[u8]>)> = Vec::with_capacity(ptrs.len());
        for ptr in ptrs {
            // A block that lies across two pieces is rare and not worth more code.
            let Ok(pieces) = self.map(ptr.addr, nodesize_bytes.into()) else {
                continue;
            };
            if let [piece] = &pieces[..]
                && let Some(&copy) = self.copy_order(piece).first()
            {
                let buf = std::iter::repeat_n(0, nodesize_bytes as usize).collect();
                wanted.push((piece.copies[copy], *ptr, buf));
            }
        }
        wanted.sort_unstable_by_key(|(at, ..)| (at.dev, at.offset));
        wanted
            .chunk_by_mut(|a, b| a.0.dev == b.0.dev)
            .flat_map(|of_device| self.read_ahead_from(of_device, tree))
            .collect()
    }

    /// All from one device.
    fn read_ahead_from(&self, wanted: &mut [(PhysAddr, BlockPtr, Arc<[u8]>)], tree: TreeId) -> Vec<TreeBlock> {
        let Some(member) = wanted.first().and_then(|(at, ..)| self.member(at.dev)) else {
            return Vec::new();
        };
        let mut ops: Vec<_> = wanted
            .iter_mut()
            .map(|(at, _, buf)| ReadOp {
                offset_bytes: at.offset,
                buf: Arc::get_mut(buf).expect("nobody else has the new buffer"),
            })
            .collect();
        if let Err(error) = member.reading(|device| device.read_batch(&mut ops)) {
            tracing::debug!(%tree, %error, "reading ahead failed");
            return Vec::new();
        }
        drop(ops);
        let verified = wanted
            .iter()
            .map(|(_, ptr, bytes)| TreeBlock::verify(bytes.clone(), &self.expect(ptr, tree)));
        verified.filter_map(Result::ok).collect()
    }
}
