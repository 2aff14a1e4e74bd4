//! Which ranges of a file are made of something else in another tree.

use std::ops::{ControlFlow, Range};

use btrfs_format::{Key, KeyType, ObjectId};
use btrfs_store::tree::Item;
use btrfs_store::tree::compare::compare;

use crate::error::{Error, Result};
use crate::extent::{Extent, Kind, OnDisk, Walk};
use crate::object::Subvol;

/// The subvolume that was, if the file was in it, and that which is.
pub(crate) type Sides<'a> = (Option<&'a Subvol>, &'a Subvol);

/// What a range of a file is made of.
#[derive(Clone, Debug)]
pub(crate) enum Map {
    /// Nothing: it reads as zeros.
    Zeros,
    /// From `offset_bytes` on of an extent.
    Disk(OnDisk),
    /// Data in the item.
    Inline(Item),
}

impl Map {
    fn is_same(&self, other: &Map) -> bool {
        match (self, other) {
            (Map::Zeros, Map::Zeros) => true,
            (Map::Disk(a), Map::Disk(b)) => a == b,
            (Map::Inline(a), Map::Inline(b)) => **a == **b,
            _ => false,
        }
    }
}

/// A range of a file, and what it is made of.
pub(crate) type Piece = (Range<u64>, Map);

/// The rest of the last sector of a file that has grown, where it is made of something now. Both
/// trees may say that it is the same: what lies behind the end of a file in its last sector may be
/// anything, and is not seen.
pub(crate) fn uncovered(new: &Subvol, ino: ObjectId, (old_size, new_size): (u64, u64)) -> Result<Option<Range<u64>>> {
    let sector = new.tree.sector_bytes();
    let last = old_size - old_size % sector..old_size.next_multiple_of(sector);
    let tail = old_size..last.end.min(new_size);
    if tail.is_empty() {
        return Ok(None);
    }
    let made_of = pieces(new, ino, &last)?;
    let is_zeros = made_of.iter().all(|(_, map)| matches!(map, Map::Zeros));
    Ok((!is_zeros).then_some(tail))
}

/// Ranges of a file whose items differ, in order, without overlap.
pub(crate) fn touched((old, new): Sides<'_>, ino: ObjectId) -> Result<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let Some(old) = old else {
        ranges.push(0..u64::MAX);
        return Ok(ranges);
    };
    let (old, new) = (&old.tree, &new.tree);
    let keys = [0, u64::MAX].map(|offset| Key::new(ino, KeyType::EXTENT_DATA, offset));
    let _: ControlFlow<()> = compare(Some(old), new, keys.into(), |found| {
        for (tree, item) in [(old, found.old), (new, found.new)] {
            let Some(item) = item else { continue };
            let range = Extent::decode(tree, &found.key, item)?.range();
            match ranges.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        Ok::<_, Error>(ControlFlow::Continue(()))
    })?;
    Ok(ranges)
}

/// The parts of a range that are made of something else than before.
pub(crate) fn differing((old, new): Sides<'_>, ino: ObjectId, range: Range<u64>) -> Result<Vec<Piece>> {
    let new = pieces(new, ino, &range)?;
    let old = match old {
        Some(old) => pieces(old, ino, &range)?,
        None => vec![(range, Map::Zeros)],
    };
    let mut old = old.into_iter().peekable();
    let mut out = Vec::new();
    for (whole, map) in new {
        let mut range = whole.clone();
        while !range.is_empty() {
            while old.next_if(|(before, _)| before.end <= range.start).is_some() {}
            let Some((before, old_map)) = old.peek() else { break };
            let part = range.start..range.end.min(before.end);
            let (here, there) = (cut(&map, &whole, &part), cut(old_map, before, &part));
            range.start = part.end;
            if !here.is_same(&there) {
                out.push((part, here));
            }
        }
    }
    Ok(out)
}

/// What a range of a file is made of, without gaps.
fn pieces(subvol: &Subvol, ino: ObjectId, range: &Range<u64>) -> Result<Vec<Piece>> {
    let mut out = Vec::new();
    let mut pos = range.start;
    let mut walk = Walk::new(&subvol.tree, ino, range.clone())?;
    while let Some(extent) = walk.next()? {
        let part = extent.start.max(pos)..extent.end().min(range.end);
        if part.is_empty() {
            continue;
        }
        if part.start > pos {
            out.push((pos..part.start, Map::Zeros));
        }
        pos = part.end;
        let cut = extent.part(&part);
        let map = match cut.kind {
            Kind::Disk(disk) if !disk.is_prealloc => Map::Disk(disk),
            Kind::Inline { item, .. } => Map::Inline(item),
            Kind::Disk(_) | Kind::Hole => Map::Zeros,
        };
        out.push((part, map));
    }
    if pos < range.end {
        out.push((pos..range.end, Map::Zeros));
    }
    Ok(out)
}

/// The part of what a range is made of.
fn cut(map: &Map, range: &Range<u64>, part: &Range<u64>) -> Map {
    match map {
        Map::Disk(disk) => Map::Disk(OnDisk {
            offset_bytes: disk.offset_bytes + (part.start - range.start),
            ..*disk
        }),
        other => other.clone(),
    }
}
