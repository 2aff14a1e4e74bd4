//! What a mount of Linux does behind the replay: it finishes intents, frees what is staged for copy
//! on write, and frees unlinked inodes.
//!
//! docs/design/xfs-log.md, L12 to L16. [`groups::Ags`] is one thing in several files: the headers
//! of groups and what they lead to.

mod attrs;
mod btree;
mod exchange;
mod files;
mod groups;
mod leaves;
mod refcount;
mod rmap;
mod space;
mod unlinked;

use xfs_format::btree::rmap_offset;
use xfs_format::inode::ForkKind;
use xfs_format::log::{ByteOrder, Intent, MapOp, MappedExtent, map_extent_flags};
use xfs_format::{Extent, Ino};

use super::disk::Disk;
use super::intents::Pending;
use crate::error::{Error, Result};
use files::File;
use groups::Ags;
use rmap::Mapping;

/// What was done.
#[derive(Default)]
pub(super) struct Finished {
    pub unlinked: u64,
    pub staged: u64,
}

/// Finishes what the log promised. Headers of groups are written at the end.
pub(super) fn finish(disk: &mut Disk, unfinished: &[Pending]) -> Result<Finished> {
    let mut ags = Ags::new(disk);
    for pending in unfinished {
        pending
            .with(|intent| apply(&mut ags, intent, pending.order))
            .unwrap_or(Ok(()))?;
    }
    let staged = ags.free_staged()?;
    let unlinked = ags.free_unlinked()?;
    ags.finish()?;
    Ok(Finished { unlinked, staged })
}

fn apply(ags: &mut Ags<'_>, intent: &Intent<'_>, order: ByteOrder) -> Result<()> {
    match intent {
        Intent::Free { extents, .. } => {
            for extent in extents {
                let (group, start) = ags.place(extent.start, extent.blocks)?;
                ags.unmap_any(group, start, extent.blocks)?;
                ags.free_in(group, start, extent.blocks)?;
            }
            Ok(())
        }
        Intent::Rmap { extents, .. } => extents.iter().try_for_each(|extent| rmap(ags, extent)),
        Intent::Refcount { extents, .. } => {
            for extent in extents {
                let (group, start) = ags.place(extent.start, extent.blocks)?;
                match extent.op {
                    1 => ags.adjust(group, start, extent.blocks, true)?,
                    2 => ags.adjust(group, start, extent.blocks, false)?,
                    op => ags.stage(group, start, extent.blocks, op == 3)?,
                }
                ags.settle(group)?;
            }
            Ok(())
        }
        Intent::Bmap { extents, .. } => extents.iter().try_for_each(|extent| bmap(ags, extent)),
        Intent::Exchange { head, .. } => exchange::exchange(ags, head, order),
        Intent::Attr(intent) => attrs::change(ags, intent),
    }
}

fn rmap(ags: &mut Ags<'_>, extent: &MappedExtent) -> Result<()> {
    let (group, start) = ags.place(extent.start, extent.blocks)?;
    let bit = |flag: u32, bit: u64| if extent.flags & flag != 0 { bit } else { 0 };
    let mapping = Mapping {
        start,
        blocks: extent.blocks,
        owner: extent.owner,
        offset: extent.offset.get()
            | bit(map_extent_flags::RMAP_ATTR_FORK, rmap_offset::ATTR_FORK)
            | bit(map_extent_flags::RMAP_BMBT_BLOCK, rmap_offset::BMBT_BLOCK)
            | bit(map_extent_flags::RMAP_UNWRITTEN, rmap_offset::UNWRITTEN),
    };
    match extent.op {
        MapOp::Map | MapOp::MapShared | MapOp::Alloc => ags.map(group, mapping)?,
        MapOp::Unmap | MapOp::UnmapShared | MapOp::Free => ags.unmap(group, mapping)?,
        MapOp::Convert | MapOp::ConvertShared => {
            // The intent states the new state.
            let old = Mapping {
                offset: mapping.offset ^ rmap_offset::UNWRITTEN,
                ..mapping
            };
            ags.unmap(group, old)?;
            ags.map(group, mapping)?;
        }
    }
    ags.settle(group)
}

fn bmap(ags: &mut Ags<'_>, extent: &MappedExtent) -> Result<()> {
    if extent.flags & map_extent_flags::BMAP_REALTIME != 0 {
        return Err(Error::Unsupported("log item BUI of a realtime device".to_owned()));
    }
    let kind = if extent.flags & map_extent_flags::BMAP_ATTR_FORK != 0 {
        ForkKind::Attr
    } else {
        ForkKind::Data
    };
    let mut file = File::load(ags, Ino(extent.owner))?;
    let mut extents = file.extents(ags, kind)?;
    let mapped = Extent {
        offset: extent.offset,
        start: extent.start,
        blocks: extent.blocks,
        is_unwritten: extent.flags & map_extent_flags::BMAP_UNWRITTEN != 0,
    };
    if extent.op == MapOp::Map {
        if !extents.list.put(mapped) {
            let found = format_args!("{mapped:?} of inode {}", extent.owner).to_string();
            return Err(ags.disk.broken("extent of a BUI", found, "a hole"));
        }
        let (group, mapping) = file.mapping(ags, kind, &mapped)?;
        ags.map(group, mapping)?;
        ags.settle(group)?;
        file.core
            .nblocks
            .set(file.core.nblocks.get() + u64::from(mapped.blocks));
    } else {
        for gone in extents.list.take(mapped.offset.get(), mapped.end().get()) {
            let (group, mapping) = file.mapping(ags, kind, &gone)?;
            ags.unmap(group, mapping)?;
            ags.settle(group)?;
            let left = file.core.nblocks.get().saturating_sub(gone.blocks.into());
            file.core.nblocks.set(left);
        }
    }
    file.set_extents(ags, kind, extents)
}
