//! File extents: the plan of the files' own range-replace, with references that know which extents
//! have an item, and the checksums that came with them.

use btrfs_format::features::block_group;
use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId};
use zerocopy::little_endian::U64;

use cowshed_vfs::FileKind;

use super::inodes::kind_of;
use super::{Replay, corrupt};
use crate::error::Result;
use crate::file::replay::{self as file, ExtentChange};
use crate::files::Files;
use crate::object::flags::NODATASUM;
use btrfs_store::refs::{DataRef, RefChange, RefKind};
use btrfs_store::tree::Item;
use btrfs_store::txn::Batch;

impl Replay<'_, '_> {
    /// Replays the extent items of one inode, in order.
    pub(super) fn replay_extents(&mut self, items: Vec<(Key, Item)>) -> Result<()> {
        let Some((first, _)) = items.first() else { return Ok(()) };
        let ino = first.objectid;
        let Some(inode) = self.inode(ino)?.copied() else {
            return Err(corrupt(format!("inode {ino} has extents and does not exist")));
        };
        if !matches!(kind_of(&inode), Some(FileKind::Regular | FileKind::Symlink)) {
            return Err(corrupt(format!("inode {ino} has extents and is no file")));
        }
        let no_holes = self.shared.files.has_no_holes();
        let change = file::plan_extents(&self.tree, &self.log, ino, items, no_holes)?;
        if inode.flags.get() & NODATASUM == 0 {
            for range in &change.summed {
                file::load_logged_sums(self.shared.files, &self.log, range, &mut self.shared.sums)?;
            }
        } else {
            let mut sums = Vec::new();
            for range in &change.summed {
                file::load_logged_sums(self.shared.files, &self.log, range, &mut sums)?;
            }
            if !sums.is_empty() {
                return Err(has_sums_and_may_not(ino));
            }
            self.shared.judged_data.note(ino, false, change.summed.iter().copied());
        }
        self.apply_extents(ino, change)
    }

    /// Data that stays while its inode begins, or ceases, to say that it has checksums.
    pub(super) fn note_flipped(&mut self) -> Result<()> {
        for ino in std::mem::take(&mut self.flipped) {
            let Some(inode) = self.inode(ino)?.copied() else {
                continue;
            };
            let wants_sums = inode.flags.get() & NODATASUM == 0;
            let data = file::data_of_file(&self.tree, ino)?;
            self.shared.judged_data.note(ino, wants_sums, data);
        }
        Ok(())
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

    /// An extent that was allocated and only logged has no item and is free as far as the trees
    /// know: it is claimed, and the first reference makes its item.
    fn kind_of_new(&mut self, addr: LogicalAddr, len_bytes: u64) -> Result<RefKind> {
        if self.shared.fresh.contains_key(&addr) {
            return Ok(RefKind::Add);
        }
        let extents = self
            .shared
            .files
            .store()
            .forest()
            .require(btrfs_format::TreeId::EXTENT)?;
        let key = Key::new(ObjectId(addr.get()), KeyType::EXTENT_ITEM, len_bytes);
        if extents.get(&key)?.is_some() {
            return Ok(RefKind::Add);
        }
        self.shared
            .files
            .store()
            .space()
            .claim(addr, len_bytes, block_group::DATA)?;
        self.shared.fresh.insert(addr, true);
        Ok(RefKind::New)
    }
}

/// Data of which a log says in one place that it has checksums and in another that it has none.
/// Such a log is refused: the kernel takes it over as it stands, and `btrfs check` then finds the
/// volume damaged.
#[derive(Default)]
pub(super) struct JudgedData {
    /// Inode, whether it says that its data has checksums, address and bytes of the data.
    ranges: Vec<(ObjectId, bool, (LogicalAddr, u64))>,
}

impl JudgedData {
    fn note(&mut self, ino: ObjectId, wants_sums: bool, data: impl IntoIterator<Item = (LogicalAddr, u64)>) {
        self.ranges
            .extend(data.into_iter().map(|range| (ino, wants_sums, range)));
    }

    /// Compares with the checksum tree, which has those of all logs by now.
    pub(super) fn judge(&self, files: &Files) -> Result<()> {
        for (ino, wants_sums, (addr, len_bytes)) in &self.ranges {
            if *wants_sums {
                file::require_sums(files, *addr, *len_bytes)?;
            } else if file::has_any_sum(files, *addr, *len_bytes)? {
                return Err(has_sums_and_may_not(*ino));
            }
        }
        Ok(())
    }
}

fn has_sums_and_may_not(ino: ObjectId) -> crate::error::Error {
    corrupt(format!(
        "inode {ino} says that its data has no checksums, and there are some"
    ))
}
