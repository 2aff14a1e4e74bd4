//! XMI: the extents of two files change places.

use xfs_format::features::inode_flags2;
use xfs_format::inode::ForkKind;
use xfs_format::log::{ByteOrder, ExchangeIntentHead, exchange_flags};
use xfs_format::{Extent, FileBlock, FsBlock, Ino};

use super::files::{Extents, File};
use super::groups::Ags;
use crate::error::Result;

/// Moves extents from one file to the same place of the other one, in the rmapbt and in the counts
/// of blocks.
fn give(ags: &mut Ags<'_>, kind: ForkKind, from: &mut File, to: &mut File, extent: &Extent, at: u64) -> Result<Extent> {
    let moved = Extent {
        offset: FileBlock(at),
        ..*extent
    };
    let (group, old) = from.mapping(ags, kind, extent)?;
    let (_, new) = to.mapping(ags, kind, &moved)?;
    ags.unmap(group, old)?;
    ags.map(group, new)?;
    ags.settle(group)?;
    let blocks = u64::from(extent.blocks);
    from.core.nblocks.set(from.core.nblocks.get().saturating_sub(blocks));
    to.core.nblocks.set(to.core.nblocks.get() + blocks);
    Ok(moved)
}

/// One step: what lies at the start of both ranges, as far as each is one extent or a hole.
struct Step {
    blocks: u64,
    one: Option<Extent>,
    other: Option<Extent>,
    /// The first one is not written, and nothing moves.
    is_skipped: bool,
}

/// The extent that begins here, cut at `blocks`, or the length of the hole.
fn from(extents: &Extents, start: u64, blocks: u64) -> (u64, Option<Extent>) {
    match extents.list.ending_behind(start) {
        Some(extent) if extent.offset.get() <= start => {
            let skipped = start - extent.offset.get();
            let blocks = blocks.min(u64::from(extent.blocks) - skipped);
            let part = Extent {
                offset: FileBlock(start),
                start: FsBlock(extent.start.get() + skipped),
                blocks: blocks as u32,
                is_unwritten: extent.is_unwritten,
            };
            (blocks, Some(part))
        }
        Some(extent) => (blocks.min(extent.offset.get() - start), None),
        None => (blocks, None),
    }
}

fn step(extents1: &Extents, extents2: &Extents, start1: u64, start2: u64, blocks: u64, written_alone: bool) -> Step {
    let (blocks, one) = from(extents1, start1, blocks);
    if written_alone && one.is_none_or(|extent| extent.is_unwritten) {
        return Step {
            blocks,
            one: None,
            other: None,
            is_skipped: true,
        };
    }
    let (blocks, other) = from(extents2, start2, blocks);
    let start = |extent: Option<Extent>| extent.map(|extent| extent.start);
    if start(one) == start(other) {
        // One block in both files, or no block in either.
        return Step {
            blocks,
            one: None,
            other: None,
            is_skipped: false,
        };
    }
    let cut = |extent: Extent| Extent {
        blocks: blocks as u32,
        ..extent
    };
    Step {
        blocks,
        one: one.map(cut),
        other,
        is_skipped: false,
    }
}

/// Finishes an exchange. False where the extents of the second file did not count.
pub(super) fn exchange(ags: &mut Ags<'_>, head: &ExchangeIntentHead, order: ByteOrder) -> Result<bool> {
    let flags = head.flags.get(order);
    let has = |flag: u64| flags & flag != 0;
    let kind = if has(exchange_flags::ATTR_FORK) {
        ForkKind::Attr
    } else {
        ForkKind::Data
    };
    let mut one = File::load(ags, Ino(head.inode1.get(order)))?;
    let mut other = File::load(ags, Ino(head.inode2.get(order)))?;
    let (mut start1, mut start2) = (head.startoff1.get(order), head.startoff2.get(order));
    let (mut extents1, mut extents2) = (one.extents(ags, kind)?, other.extents(ags, kind)?);
    let written_alone = has(exchange_flags::INO1_WRITTEN);
    let mut left = head.blockcount.get(order);
    let mut is_read = false;
    // Step by step as in Linux, so that trees keep its shape.
    while left > 0 {
        let step = step(&extents1, &extents2, start1, start2, left, written_alone);
        let mut fits = true;
        is_read |= !step.is_skipped;
        if step.one.is_some() {
            let _ = extents1.list.take(start1, start1.saturating_add(step.blocks));
        }
        if step.other.is_some() {
            let _ = extents2.list.take(start2, start2.saturating_add(step.blocks));
        }
        if let Some(extent) = &step.other {
            let moved = give(ags, kind, &mut other, &mut one, extent, start1)?;
            fits &= extents1.list.put(moved);
        }
        if let Some(extent) = &step.one {
            let moved = give(ags, kind, &mut one, &mut other, extent, start2)?;
            fits &= extents2.list.put(moved);
        }
        if !fits || step.blocks == 0 {
            return Err(ags.disk.broken("extents of an XMI", one.ino, "holes"));
        }
        start1 = start1.saturating_add(step.blocks);
        start2 = start2.saturating_add(step.blocks);
        left -= step.blocks.min(left);
    }
    if has(exchange_flags::SET_SIZES) {
        one.core.size.set(head.isize1.get(order));
        other.core.size.set(head.isize2.get(order));
    }
    for (file, flag) in [
        (&mut one, exchange_flags::CLEAR_INO1_REFLINK),
        (&mut other, exchange_flags::CLEAR_INO2_REFLINK),
    ] {
        if flags & flag != 0 {
            let kept = file.core.flags2.get() & !inode_flags2::REFLINK;
            file.core.flags2.set(kept);
        }
    }
    one.set_extents(ags, kind, extents1)?;
    other.set_extents(ags, kind, extents2)?;
    Ok(is_read)
}
