//! What a mount of Linux does behind the replay: it finishes intents, frees what is staged for copy
//! on write, and frees unlinked inodes.
//!
//! docs/design/xfs-log.md, L12 to L16. [`groups::Ags`] is one thing in several files: the headers
//! of groups and what they lead to.

mod attrs;
mod btree;
mod ends;
mod exchange;
mod files;
mod groups;
mod leaves;
mod parts;
mod refcount;
mod rmap;
mod space;
mod unlinked;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use xfs_format::btree::rmap_offset;
use xfs_format::inode::ForkKind;
use xfs_format::log::{ByteOrder, Intent, MapOp, MappedExtent, map_extent_flags};
use xfs_format::{Extent, Ino};

use super::disk::Disk;
use super::intents::Pending;
use crate::error::{Error, Result};
use files::File;
use groups::Ags;
pub(super) use parts::Parts;
use rmap::Mapping;

/// What was done.
#[derive(Default)]
pub(super) struct Finished {
    pub unlinked: u64,
    pub staged: u64,
    /// An inode got its first attribute, which the superblock has to know.
    pub has_new_attr_fork: bool,
}

/// Finishes what the log promised. Headers of groups are written at the end.
pub(super) fn finish(disk: &mut Disk, unfinished: &[Pending]) -> Result<Finished> {
    let mut ags = Ags::new(disk);
    let mut files: BTreeMap<Ino, ends::Held> = BTreeMap::new();
    // Linux does the first step of each intent in the order of the log. For an exchange that step
    // only makes intents of extents, which are done behind all that the log has. The order does not
    // show in the extents, but in how full the leaves of their tree are.
    let is_exchange = |pending: &&Pending| {
        let found = pending.with(|intent| matches!(intent, Intent::Exchange { .. }));
        found.unwrap_or(false)
    };
    let (last, first): (Vec<&Pending>, Vec<&Pending>) = unfinished.iter().partition(is_exchange);
    for pending in first.into_iter().chain(last) {
        pending
            .with(|intent| {
                for (ino, has_extents) in inodes(intent, pending.order) {
                    let held = match files.entry(ino) {
                        Entry::Occupied(entry) => entry.into_mut(),
                        Entry::Vacant(entry) => entry.insert(ends::Held::new(&ags, ino)?),
                    };
                    held.has_extents |= has_extents;
                }
                apply(&mut ags, intent, pending.order, &mut files)
            })
            .unwrap_or(Ok(()))?;
    }
    for (ino, held) in files {
        ends::trim(&mut ags, ino, &held)?;
    }
    let staged = ags.free_staged()?;
    let unlinked = ags.free_unlinked()?;
    let has_new_attr_fork = ags.has_new_attr_fork;
    ags.finish()?;
    Ok(Finished {
        unlinked,
        staged,
        has_new_attr_fork,
    })
}

/// The inodes that an intent names, and whether it is about their extents.
fn inodes(intent: &Intent<'_>, order: ByteOrder) -> Vec<(Ino, bool)> {
    match intent {
        Intent::Bmap { extents, .. } => extents.iter().map(|extent| (Ino(extent.owner), true)).collect(),
        // Linux reads the second one's extents where it has to: the exchange says so.
        Intent::Exchange { head, .. } => [(head.inode1, true), (head.inode2, false)]
            .map(|(ino, has_extents)| (Ino(ino.get(order)), has_extents))
            .to_vec(),
        Intent::Attr(intent) => vec![(intent.ino, false)],
        Intent::Free { .. } | Intent::Rmap { .. } | Intent::Refcount { .. } => Vec::new(),
    }
}

fn apply(
    ags: &mut Ags<'_>,
    intent: &Intent<'_>,
    order: ByteOrder,
    files: &mut BTreeMap<Ino, ends::Held>,
) -> Result<()> {
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
        Intent::Exchange { head, .. } => {
            let is_read = exchange::exchange(ags, head, order)?;
            if let Some(held) = files.get_mut(&Ino(head.inode2.get(order))) {
                held.has_extents |= is_read;
            }
            Ok(())
        }
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
