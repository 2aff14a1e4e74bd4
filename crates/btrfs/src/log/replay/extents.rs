//! File extents: the plan of the files' own range-replace, with references that know which extents have an item, and
//! the checksums that came with them.

use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId};
use zerocopy::little_endian::U64;

use super::Replay;
use crate::error::Result;
use crate::file::replay::{self as file, ExtentChange};
use crate::refs::{DataRef, RefChange, RefKind};
use crate::tree::Item;
use crate::txn::Batch;

impl Replay<'_, '_> {
    /// Replays the extent items of one inode, in order.
    pub(super) fn replay_extents(&mut self, items: Vec<(Key, Item)>) -> Result<()> {
        let Some((first, _)) = items.first() else { return Ok(()) };
        let ino = first.objectid;
        let Some(inode) = self.inode(ino)?.copied() else {
            return Err(super::corrupt(format!("inode {ino} has extents and does not exist")));
        };
        let no_holes = crate::file::has_no_holes(self.shared.engine);
        let change = file::plan_extents(&self.tree, &self.log, ino, items, no_holes)?;
        if inode.flags.get() & crate::inode::flags::NODATASUM == 0 {
            for range in &change.summed {
                file::load_logged_sums(self.shared.engine, &self.log, range, &mut self.shared.sums)?;
            }
        }
        self.apply_extents(ino, change)
    }

    pub(super) fn apply_extents(&mut self, ino: ObjectId, change: ExtentChange) -> Result<()> {
        let mut batch = Batch::new();
        for (key, edit) in change.edits {
            match edit {
                Some(bytes) => batch.put(&self.tree, key, bytes),
                None => batch.delete(&self.tree, key),
            }
        }
        if !self.shared.is_read_only {
            for (data, len_bytes, offset, count) in change.refs {
                let data_ref = DataRef {
                    root: self.tree.id(),
                    ino,
                    offset,
                };
                for _ in 0..count.unsigned_abs() {
                    let kind = if count < 0 {
                        RefKind::Drop
                    } else {
                        self.kind_of_new(data, len_bytes)?
                    };
                    batch.reference(RefChange {
                        addr: data,
                        len_bytes,
                        data_ref,
                        kind,
                    });
                }
            }
        }
        if let Some(inode) = self.inode(ino)? {
            inode.nbytes = U64::new(inode.nbytes.get().saturating_add_signed(change.nbytes));
            self.touched.insert(ino);
        }
        if !batch.is_empty() {
            self.shared.apply(batch);
        }
        Ok(())
    }

    /// An extent that was allocated and only logged has no item and is free as far as the trees know: it is claimed, and
    /// the first reference makes its item.
    fn kind_of_new(&mut self, addr: LogicalAddr, len_bytes: u64) -> Result<RefKind> {
        if self.shared.fresh.contains_key(&addr) {
            return Ok(RefKind::Add);
        }
        let extents = self.shared.engine.forest.require(btrfs_format::TreeId::EXTENT)?;
        let key = Key::new(ObjectId(addr.get()), KeyType::EXTENT_ITEM, len_bytes);
        if extents.get(&key)?.is_some() {
            return Ok(RefKind::Add);
        }
        self.shared.engine.space.claim(addr, len_bytes)?;
        self.shared.fresh.insert(addr, true);
        Ok(RefKind::New)
    }
}
