//! The extents of a whole file, for a new file that shares them from its beginning.

use std::sync::Arc;

use btrfs_format::{Generation, Key, LogicalAddr, ObjectId, TreeId};
use btrfs_store::overlay::ItemBytes;
use btrfs_store::refs::{DataRef, RefChange, RefKind};
use btrfs_store::tree::Item;

use super::clone::too_long_inline;
use super::replace::RefName;
use crate::block::{BLOCK, round_up};
use crate::error::Result;
use crate::extent::{Extent, extent_key};
use crate::object::{Inode, flags};

/// What the new file gets: items and references for the batch that makes it.
#[derive(Debug, Default)]
pub(crate) struct WholeFile {
    pub(crate) items: Vec<(Key, ItemBytes)>,
    pub(crate) refs: Vec<RefChange>,
    /// For [`note_shared`](super::note_shared), inside the join.
    pub(crate) noted: Vec<LogicalAddr>,
    /// Of the new inode.
    pub(crate) nbytes: u64,
    /// There is preallocated space in it.
    pub(crate) has_unwritten: bool,
}

impl WholeFile {
    /// Adds an extent item of the source, in order; what lies behind its end of file does not come
    /// along. The caller holds the source's operation lock and has written back what was dirty.
    /// Inline content is copied, as it lies.
    pub(crate) fn add(
        &mut self,
        src: &Arc<Inode>,
        size_bytes: u64,
        (key, item): (Key, Item),
        (tree, ino): (TreeId, ObjectId),
        generation: Generation,
    ) -> Result<()> {
        let extent = Extent::decode(&src.tree, &key, item)?;
        let end = round_up(size_bytes).max(BLOCK);
        if extent.start >= end || (size_bytes == 0 && !extent.is_inline()) {
            return Ok(());
        }
        if extent.is_inline() && extent.end() > BLOCK {
            return Err(too_long_inline(src));
        }
        let extent = Extent {
            generation,
            ..extent.part(&(extent.start..end))
        };
        self.nbytes += extent.nbytes();
        if let (Some(disk), Some(name)) = (extent.on_disk(), RefName::of(&extent)) {
            self.refs.push(RefChange {
                addr: name.addr,
                len_bytes: name.len_bytes,
                data_ref: DataRef {
                    root: tree,
                    ino,
                    offset: name.offset,
                },
                kind: RefKind::Add,
            });
            self.has_unwritten |= disk.is_prealloc;
            if disk.is_prealloc || src.flags() & flags::NODATACOW != 0 {
                self.noted.push(disk.addr);
            }
        }
        self.items.push((extent_key(ino, extent.start), extent.encode()));
        Ok(())
    }
}
