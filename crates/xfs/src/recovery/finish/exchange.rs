//! XMI: the extents of two files change places.

use xfs_format::features::inode_flags2;
use xfs_format::inode::ForkKind;
use xfs_format::log::{ByteOrder, ExchangeIntentHead, exchange_flags};
use xfs_format::{Extent, FileBlock, Ino};

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

/// What is exchanged: ranges of the first file.
fn ranges(extents: &Extents, start: u64, blocks: u64, written_alone: bool) -> Vec<(u64, u64)> {
    let end = start.saturating_add(blocks);
    if !written_alone {
        return vec![(start, end)];
    }
    let written = extents.list.iter().filter(|extent| !extent.is_unwritten);
    let cut = written.map(|extent| (extent.offset.get().max(start), extent.end().get().min(end)));
    cut.filter(|(from, to)| from < to).collect()
}

pub(super) fn exchange(ags: &mut Ags<'_>, head: &ExchangeIntentHead, order: ByteOrder) -> Result<()> {
    let flags = head.flags.get(order);
    let has = |flag: u64| flags & flag != 0;
    let kind = if has(exchange_flags::ATTR_FORK) {
        ForkKind::Attr
    } else {
        ForkKind::Data
    };
    let mut one = File::load(ags, Ino(head.inode1.get(order)))?;
    let mut other = File::load(ags, Ino(head.inode2.get(order)))?;
    let (start1, start2) = (head.startoff1.get(order), head.startoff2.get(order));
    let (mut extents1, mut extents2) = (one.extents(ags, kind)?, other.extents(ags, kind)?);
    let written_alone = has(exchange_flags::INO1_WRITTEN);
    for (from, to) in ranges(&extents1, start1, head.blockcount.get(order), written_alone) {
        let there = |at: u64| at.wrapping_sub(start1).wrapping_add(start2);
        let (taken1, taken2) = (extents1.list.take(from, to), extents2.list.take(there(from), there(to)));
        let mut fits = true;
        for extent in &taken1 {
            let moved = give(ags, kind, &mut one, &mut other, extent, there(extent.offset.get()))?;
            fits &= extents2.list.put(moved);
        }
        for extent in &taken2 {
            let at = extent.offset.get().wrapping_sub(start2).wrapping_add(start1);
            let moved = give(ags, kind, &mut other, &mut one, extent, at)?;
            fits &= extents1.list.put(moved);
        }
        if !fits {
            return Err(ags.disk.broken("extents of an XMI", one.ino, "holes"));
        }
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
    other.set_extents(ags, kind, extents2)
}
