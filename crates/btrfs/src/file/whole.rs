//! The extents of a whole file, for a new file that shares them from its beginning.

use btrfs_format::{Generation, Key, LogicalAddr, ObjectId, TreeId};
use btrfs_store::refs::{DataRef, RefChange, RefKind};
use btrfs_store::tree::{Item, Tree};

use super::clone::inline_beyond_block;
use super::replace::RefName;
use crate::block::{BLOCK, round_up};
use crate::error::Result;
use crate::extent::{Extent, extent_key};
use crate::object::flags;

/// References of new files, for the batch that makes them.
#[derive(Debug, Default)]
pub(crate) struct SharedRefs {
    pub(crate) refs: Vec<RefChange>,
    /// For [`note_shared`](super::note_shared), inside the join.
    pub(crate) noted: Vec<LogicalAddr>,
}

/// A file that shares its extents with another one.
#[derive(Debug)]
pub(crate) struct WholeFile {
    pub(crate) size_bytes: u64,
    /// Flags of the source.
    pub(crate) flags: u64,
    /// Subvolume and number of the new file.
    pub(crate) target: (TreeId, ObjectId),
    pub(crate) generation: Generation,
    /// Of the new inode.
    pub(crate) nbytes: u64,
    /// There is preallocated space in it.
    pub(crate) has_unwritten: bool,
}

impl WholeFile {
    /// The new file's item for an extent item of the source (`tree`), which come in order; `None`
    /// for what lies behind its end of file. The caller sees to it that the source has no dirty
    /// data and does not change. Inline content is copied, as it lies.
    pub(crate) fn add(
        &mut self,
        tree: &Tree,
        (key, item): (Key, Item),
        shared: &mut SharedRefs,
    ) -> Result<Option<(Key, Extent)>> {
        let extent = Extent::decode(tree, &key, item)?;
        let end = round_up(self.size_bytes).max(BLOCK);
        if extent.start >= end || (self.size_bytes == 0 && !extent.is_inline()) {
            return Ok(None);
        }
        if extent.is_inline() && extent.end() > BLOCK {
            return Err(inline_beyond_block(tree, key.objectid));
        }
        let mut extent = match extent.end() <= end {
            true => extent,
            false => extent.part(&(extent.start..end)),
        };
        extent.generation = self.generation;
        self.nbytes += extent.nbytes();
        if let (Some(disk), Some(name)) = (extent.on_disk(), RefName::of(&extent)) {
            shared.refs.push(RefChange {
                addr: name.addr,
                len_bytes: name.len_bytes,
                data_ref: DataRef {
                    root: self.target.0,
                    ino: self.target.1,
                    offset: name.offset,
                },
                kind: RefKind::Add,
            });
            self.has_unwritten |= disk.is_prealloc;
            if disk.is_prealloc || self.flags & flags::NODATACOW != 0 {
                shared.noted.push(disk.addr);
            }
        }
        Ok(Some((extent_key(self.target.1, extent.start), extent)))
    }
}
