//! Exchanging ranges of two files: each gets the other's extents, in one batch, so that a crash
//! leaves both or neither.
//!
//! The rules are those of XFS_IOC_EXCHANGE_RANGE (ioctl_xfs_exchange_range(2)). Extents move,
//! nothing is read or copied, except inline data that comes to stand elsewhere than at the start of
//! a file that it fills.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use cowshed_vfs::{Error as Outcome, Exchange, Freshness};

use super::clone::too_long_inline;
use super::items::{self, Change, NOW, Part};
use super::place::new_extent;
use super::replace::{self, Replacement};
use super::write::{First, WriteCtx, hole_replacements, touch};
use super::{csum, read, sharing, writeback};
use crate::block::{BLOCK, FILE_BYTES_MAX, round_up};
use crate::error::Result;
use crate::extent::{Extent, Kind, Walk};
use crate::files::Files;
use crate::object::lock::write_all;
use crate::object::{Inode, InodeState, flags};
use crate::pagecache::DataState;
use btrfs_store::space::Budget;

/// Extents that one exchange moves at most, of both files together: they are one batch in memory.
pub(crate) const EXTENTS_MAX: usize = 1 << 18;

/// What the file is like now.
pub(crate) fn freshness_of(inode: &Inode) -> Freshness {
    let attr = inode.attr_now();
    Freshness {
        ino: inode.ino.get(),
        mtime: attr.mtime,
        ctime: attr.ctime,
    }
}

/// Exchanges ranges of two files. Offsets are multiples of a block, and so are the ends unless they
/// are those of both files. Set-id bits of both go.
///
/// `Invalid`: misaligned, overlapping in one file, beyond an end, or only one of both has
/// checksums. `TooBig`: more than [`EXTENTS_MAX`] extents. `Busy`: see [`Exchange::fresh_b`].
#[cfg(test)]
pub(crate) fn exchange_range(files: &Files, a: &Arc<Inode>, b: &Arc<Inode>, what: &Exchange) -> Result<()> {
    exchange_as(files, [a, b], what, ([WriteCtx::STRIPPING; 2], Box::new(|| Ok(()))))
}

/// As [`exchange_range`]; `ctx` says which set-id bits of each file go, and `first` is done before
/// contents change.
pub(crate) fn exchange_as(
    files: &Files,
    [a, b]: [&Arc<Inode>; 2],
    what: &Exchange,
    (ctx, first): ([WriteCtx; 2], First<'_>),
) -> Result<()> {
    files.store().txn().check_writable()?;
    let _locks = write_all(&[a, b]);
    if what.fresh_b.is_some_and(|seen| seen != freshness_of(b)) {
        return Err(Outcome::Busy.into());
    }
    let ends = check(a, b, what)?;
    if what.dry_run || (ends.a.is_empty() && ends.b.is_empty()) {
        return Ok(());
    }
    for (inode, range, other) in [(a, &ends.a, &ends.b), (b, &ends.b, &ends.a)] {
        writeback::flush(files, inode)?;
        let is_whole = what.to_eof && !what.only_written;
        let stays_inline = range.start == 0 && other.start == 0 && range.end == inode.attr_now().size && is_whole;
        if !stays_inline {
            move_out_of_item(files, inode, range)?;
        }
    }
    // What is in flight has landed, and writers are kept out: the extents stay as they are until
    // the batch is applied.
    let extents = [extents_of(a, &ends.a)?, extents_of(b, &ends.b)?];
    let count = extents[0].len() + extents[1].len();
    if count > EXTENTS_MAX {
        return Err(Outcome::TooBig.into());
    }
    let (moves, edges) = match what.only_written {
        true => written(files, &ends, &extents),
        false => (whole(files, &ends, &extents), 0),
    };
    let budget = Budget::moved_extents((count + edges) as u64, files.store().nodes().nodesize_bytes() as u64);
    let meta = files.reserve(budget)?;
    first()?;
    apply(files, [a, b], (&ends, &extents), moves, (what.to_eof, ctx), meta)
}

/// The ranges as they are after all checks; of different length only where both go to the end.
struct Ends {
    a: Range<u64>,
    b: Range<u64>,
}

fn check(a: &Arc<Inode>, b: &Arc<Inode>, what: &Exchange) -> Result<Ends> {
    let (a_size, b_size) = (a.attr_now().size, b.attr_now().size);
    if a.flags() & flags::NODATASUM != b.flags() & flags::NODATASUM {
        return Err(Outcome::Invalid.into());
    }
    let (a_len, b_len) = if what.to_eof {
        let to_end = |size: u64, from: u64| size.checked_sub(from).ok_or(Outcome::Invalid);
        (to_end(a_size, what.a_offset)?, to_end(b_size, what.b_offset)?)
    } else {
        (what.len_bytes, what.len_bytes)
    };
    let end = |from: u64, len: u64| from.checked_add(len).ok_or(Outcome::Invalid);
    let ends = Ends {
        a: what.a_offset..end(what.a_offset, a_len)?,
        b: what.b_offset..end(what.b_offset, b_len)?,
    };
    let is_inside = ends.a.end <= a_size && ends.b.end <= b_size;
    let ends_at_both = ends.a.end == a_size && ends.b.end == b_size;
    let is_aligned = (what.a_offset | what.b_offset).is_multiple_of(BLOCK)
        && (ends_at_both || (a_len | b_len).is_multiple_of(BLOCK));
    let overlaps = Arc::ptr_eq(a, b) && (what.to_eof || (ends.a.start < ends.b.end && ends.b.start < ends.a.end));
    if !is_inside || !is_aligned || overlaps {
        return Err(Outcome::Invalid.into());
    }
    let reaches = end(what.a_offset, b_len)?.max(end(what.b_offset, a_len)?);
    if reaches > FILE_BYTES_MAX {
        return Err(Outcome::FileTooBig.into());
    }
    Ok(ends)
}

/// Extents of whole blocks in a range, cut to it.
fn extents_of(inode: &Arc<Inode>, range: &Range<u64>) -> Result<Vec<Extent>> {
    let blocks = range.start..round_up(range.end);
    let mut walk = Walk::new(&inode.tree, inode.ino, blocks.clone())?;
    let mut found = Vec::new();
    while let Some(extent) = walk.next()? {
        if found.len() > EXTENTS_MAX {
            break;
        }
        match extent.kind {
            Kind::Hole => {}
            Kind::Inline { .. } if extent.start < blocks.start => return Err(too_long_inline(inode)),
            Kind::Inline { .. } => found.push(extent),
            Kind::Disk(_) => found.push(extent.part(&blocks)),
        }
    }
    Ok(found)
}

/// Writes inline data of a range into an extent of its own.
fn move_out_of_item(files: &Files, inode: &Arc<Inode>, range: &Range<u64>) -> Result<()> {
    let first = Walk::new(&inode.tree, inode.ino, 0..BLOCK)?.next()?;
    let Some(first) = first.filter(|e| e.is_inline() && range.start == 0 && !range.is_empty()) else {
        return Ok(());
    };
    if first.end() > BLOCK {
        return Err(too_long_inline(inode));
    }
    let mut space = files.store().space().reserve_data(BLOCK)?;
    let meta = files.reserve(Budget::WRITE_EXTENT)?;
    let _flush = inode.data.flush.lock();
    let mut content = vec![0; BLOCK as usize];
    read::read_range(files, inode, 0, &mut content)?;
    let existing = Walk::new(&inode.tree, inode.ino, 0..BLOCK + 1)?.collect()?;
    let (addr, len_bytes) = files.store().space().alloc_data(&mut space, BLOCK)?;
    let mut change = Change::default();
    if inode.flags() & flags::NODATASUM == 0 {
        let sums = csum::compute(files.store().volume().csum_type(), &content);
        change.sums.push((addr, sums));
    }
    if let Err(error) = files.store().volume().write(&[(addr, &content)]) {
        files.store().space().unalloc_data(addr, len_bytes);
        return Err(error.into());
    }
    let extent = Extent {
        start: 0,
        len_bytes: BLOCK,
        generation: NOW,
        kind: Kind::Disk(new_extent(addr, len_bytes, false)),
    };
    change.fresh.insert(addr);
    change.plan = replace::plan(
        &existing,
        &[Replacement {
            range: 0..BLOCK,
            extents: vec![extent],
        }],
    );
    items::apply(files, inode, change, meta, |attr, state| {
        attr.update_disk_size(state, false);
    });
    Ok(())
}

/// What a file gets: the other's extents at its own place, and holes where the volume wants them.
fn incoming(files: &Files, from: &Range<u64>, to: &Range<u64>, extents: &[Extent]) -> Vec<Extent> {
    let moved = extents.iter().map(|extent| Extent {
        start: extent.start - from.start + to.start,
        generation: NOW,
        ..extent.clone()
    });
    let mut moved: Vec<Extent> = moved.collect();
    if !files.has_no_holes() {
        let end = to.start + (round_up(from.end) - from.start);
        let holes = hole_replacements(&moved, to.start, end);
        moved.extend(holes.into_iter().flat_map(|hole| hole.extents));
        moved.sort_unstable_by_key(|e| e.start);
    }
    moved
}

/// What comes into each of the two files.
type Moves = [Vec<Replacement>; 2];

fn whole(files: &Files, ends: &Ends, extents: &[Vec<Extent>; 2]) -> Moves {
    // Where both go to the end, what the shorter range leaves behind of the longer goes, too.
    let span = |own: &Range<u64>, other: &Range<u64>| {
        let len_bytes = (own.end - own.start).max(other.end - other.start);
        own.start..own.start + round_up(len_bytes)
    };
    [
        vec![Replacement {
            range: span(&ends.a, &ends.b),
            extents: incoming(files, &ends.b, &ends.a, &extents[1]),
        }],
        vec![Replacement {
            range: span(&ends.b, &ends.a),
            extents: incoming(files, &ends.a, &ends.b, &extents[0]),
        }],
    ]
}

/// [`Exchange::only_written`]; and at how many places extents of the second file may be cut.
///
/// Where one range is longer, it has nothing but itself to give: of the first file all that is
/// there goes, which is what is written, and of the second nothing, as nothing is written opposite
/// to it.
fn written(files: &Files, ends: &Ends, extents: &[Vec<Extent>; 2]) -> (Moves, usize) {
    let [a_len, b_len] = [&ends.a, &ends.b].map(|range| round_up(range.end - range.start));
    let common = a_len.min(b_len);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for extent in extents[0].iter().filter(|e| e.is_data()) {
        let (start, end) = (extent.start - ends.a.start, (extent.end() - ends.a.start).min(common));
        match runs.last_mut() {
            _ if start >= end => {}
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    let [mut into_a, mut into_b] = Moves::default();
    for run in &runs {
        let [in_a, in_b] = [&ends.a, &ends.b].map(|range| range.start + run.start..range.start + run.end);
        into_a.push(Replacement {
            range: in_a.clone(),
            extents: incoming(files, &in_b, &in_a, &parts(&extents[1], &in_b)),
        });
        into_b.push(Replacement {
            range: in_b.clone(),
            extents: incoming(files, &in_a, &in_b, &parts(&extents[0], &in_a)),
        });
    }
    let [rest_a, rest_b] = [&ends.a, &ends.b].map(|range| range.start + common..range.start + a_len.max(b_len));
    let rest = match a_len.cmp(&b_len) {
        Ordering::Equal => None,
        Ordering::Less => Some((incoming(files, &rest_b, &rest_a, &[]), Vec::new())),
        Ordering::Greater => {
            let given = parts(&extents[0], &rest_a);
            Some((Vec::new(), incoming(files, &rest_a, &rest_b, &given)))
        }
    };
    if let Some((to_a, to_b)) = rest {
        for (moves, range, extents) in [(&mut into_a, rest_a, to_a), (&mut into_b, rest_b, to_b)] {
            moves.push(Replacement { range, extents });
        }
    }
    ([into_a, into_b], 2 * runs.len())
}

/// What of sorted extents is in a range.
fn parts(extents: &[Extent], range: &Range<u64>) -> Vec<Extent> {
    let from = extents.partition_point(|e| e.end() <= range.start);
    let inside = extents[from..].iter().take_while(|e| e.start < range.end);
    inside.map(|e| e.part(range)).collect()
}

fn apply(
    files: &Files,
    [a, b]: [&Arc<Inode>; 2],
    (ends, extents): (&Ends, &[Vec<Extent>; 2]),
    [into_a, into_b]: Moves,
    (to_eof, ctx): (bool, [WriteCtx; 2]),
    meta: btrfs_store::space::MetaReservation,
) -> Result<()> {
    let unwritten = [sharing::unwritten(&extents[0]), sharing::unwritten(&extents[1])].concat();
    let noted = extents
        .each_ref()
        .map(|e| sharing::in_place_candidates(e, [a, b]))
        .concat();
    let sizes = to_eof.then(|| {
        let len = |range: &Range<u64>| range.end - range.start;
        (ends.a.start + len(&ends.b), ends.b.start + len(&ends.a))
    });
    let is_one_file = Arc::ptr_eq(a, b);
    let update = |size: Option<u64>, ctx: WriteCtx, attr: &mut InodeState, state: &mut DataState| {
        if let Some(size) = size {
            attr.attr.size = size;
            // Everything is on disk: nothing of it is behind the item's size.
            attr.disk_size = size;
        }
        if !unwritten.is_empty() {
            attr.attr.flags |= flags::PREALLOC;
        }
        touch(files, attr, ctx);
        attr.update_disk_size(state, false);
    };
    let mut parts = Vec::with_capacity(2);
    let plans = if is_one_file {
        let mut both = [into_a, into_b].concat();
        both.sort_unstable_by_key(|r| r.range.start);
        vec![(a, both, None, ctx[0])]
    } else {
        vec![
            (a, into_a, sizes.map(|s| s.0), ctx[0]),
            (b, into_b, sizes.map(|s| s.1), ctx[1]),
        ]
    };
    let _flush = writeback::hold(&if is_one_file { vec![a] } else { vec![a, b] });
    for (inode, replacements, size, ctx) in plans {
        let existing = existing_around(inode, &replacements)?;
        let change = Change {
            plan: replace::plan_checked(&inode.tree, inode.ino, &existing, &replacements)?,
            ..Change::default()
        };
        let update = &update;
        parts.push(Part {
            inode,
            change,
            update: Box::new(move |attr, state| update(size, ctx, attr, state)),
        });
    }
    items::apply_all(files, parts, meta, || sharing::note_shared(files, &noted));
    Ok(())
}

fn existing_around(inode: &Arc<Inode>, replacements: &[Replacement]) -> Result<Vec<Extent>> {
    let mut existing: Vec<Extent> = Vec::new();
    for replacement in replacements {
        let range = &replacement.range;
        let around = range.start.saturating_sub(1)..range.end.saturating_add(1);
        let found = Walk::new(&inode.tree, inode.ino, around)?.collect()?;
        let last = existing.last().map(|e| e.start);
        existing.extend(found.into_iter().filter(|e| last.is_none_or(|last| e.start > last)));
    }
    Ok(existing)
}
