//! Blocks that were preallocated behind the end of a file. Linux lets go of an inode when it has
//! finished its intent, and frees such blocks then, as for a file that is closed.

use xfs_format::Ino;
use xfs_format::features::{inode_flags, inode_flags2};
use xfs_format::inode::{Fork, ForkKind, mode};

use super::files::File;
use super::groups::Ags;
use crate::error::Result;

/// An inode that Linux holds while it finishes intents.
pub(super) struct Held {
    /// An intent is about its extents, so that Linux has read a list that lies in a tree.
    pub has_extents: bool,
    /// The size before an exchange. Linux keeps the size in memory when an exchange sets that on
    /// disk, and frees what lies behind it: less, where the file gets shorter.
    size_bytes: u64,
}

impl Held {
    pub(super) fn new(ags: &Ags<'_>, ino: Ino) -> Result<Self> {
        Ok(Self {
            has_extents: false,
            size_bytes: File::load(ags, ino)?.core.size.get(),
        })
    }
}

/// Frees the blocks behind the end of a file with an intent.
pub(super) fn trim(ags: &mut Ags<'_>, ino: Ino, held: &Held) -> Result<()> {
    let mut file = File::load(ags, ino)?;
    let is_kept = file.core.file_type() != mode::REGULAR
        || file.core.nlink.get() == 0
        || file.core.size.get() == 0
        || file.core.has_flag(inode_flags::PREALLOC | inode_flags::APPEND)
        || file.core.is_realtime();
    let is_read = held.has_extents || matches!(file.fork(ForkKind::Data), Some(Fork::Extents(_)));
    if is_kept || !is_read {
        return Ok(());
    }
    let size_bytes = file.core.size.get().max(held.size_bytes);
    let end = size_bytes.div_ceil(ags.disk.geometry.block_bytes.into());
    let mut extents = file.extents(ags, ForkKind::Data)?;
    // From the end, as Linux does: the leaves keep its shape.
    let mut behind = Vec::new();
    while let Some(last) = extents.list.last().filter(|last| last.end().get() > end) {
        behind.extend(extents.list.take(last.offset.get().max(end), last.end().get()));
    }
    if behind.is_empty() {
        return Ok(());
    }
    let may_share = file.core.has_flag2(inode_flags2::REFLINK);
    for extent in behind {
        let (group, mapping) = file.mapping(ags, ForkKind::Data, &extent)?;
        ags.unmap(group, mapping)?;
        if may_share {
            ags.adjust(group, mapping.start, mapping.blocks, false)?;
        } else {
            ags.free_in(group, mapping.start, mapping.blocks)?;
        }
        ags.settle(group)?;
        let left = file.core.nblocks.get().saturating_sub(mapping.blocks.into());
        file.core.nblocks.set(left);
    }
    file.set_extents(ags, ForkKind::Data, extents)
}
