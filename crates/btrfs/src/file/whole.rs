//! The extents of a whole file, for a new file that shares them from its beginning.

use btrfs_format::{Generation, Key, LogicalAddr, ObjectId, TreeId};
use btrfs_store::refs::{DataRef, RefChange, RefKind};
use btrfs_store::tree::{Item, Tree};

use super::clone::inline_beyond_block;
use super::replace::RefName;
use crate::block::{BLOCK, round_up};
use crate::error::{Error, Result, StoreError};
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
    /// The end of the source's last extent.
    pub(crate) last_end: u64,
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
        // The verifier sees one leaf of the source at a time, and these items may become one.
        if extent.start < self.last_end {
            return Err(Error::Store(StoreError::CorruptTree {
                tree: tree.id(),
                what: format!("file extent {key}: begins in the one before"),
            }));
        }
        self.last_end = extent.end();
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

#[cfg(test)]
mod tests {
    use btrfs_format::items::compression;

    use super::*;
    use crate::extent::{Kind, OnDisk};
    use crate::file::tests::{Bench, plain};
    use crate::fs::MountOptions;

    #[test]
    fn extents_of_the_source_that_overlap_are_refused() {
        let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
        bench.create();
        let inode = bench.inode(0);
        let extent = |start: u64, blocks: u64| Extent {
            start: start * BLOCK,
            len_bytes: blocks * BLOCK,
            generation: Generation(1),
            kind: Kind::Disk(OnDisk {
                addr: LogicalAddr(1 << 30),
                len_bytes: blocks * BLOCK,
                offset_bytes: 0,
                ram_bytes: blocks * BLOCK,
                compression: compression::NONE,
                is_prealloc: false,
            }),
        };
        let mut file = WholeFile {
            size_bytes: 20 * BLOCK,
            flags: 0,
            target: (inode.tree.id(), ObjectId(1000)),
            generation: Generation(2),
            nbytes: 0,
            has_unwritten: false,
            last_end: 0,
        };
        let mut shared = SharedRefs::default();
        let mut add = |extent: Extent| {
            let found = (extent_key(inode.ino, extent.start), Item::Pending(extent.encode()));
            file.add(&inode.tree, found, &mut shared)
        };
        for (start, blocks) in [(0, 1), (1, 3), (6, 2)] {
            assert!(add(extent(start, blocks)).unwrap().is_some());
        }
        let error = add(extent(7, 1)).unwrap_err();
        assert!(
            matches!(&error, Error::Store(StoreError::CorruptTree { .. })),
            "{error}"
        );
        assert_eq!(shared.refs.len(), 3);
    }
}
