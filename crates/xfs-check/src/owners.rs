//! Claims of a group against its rmapbt and refcountbt, and against each other.

use xfs_format::AgBlock;

use crate::ag::Group;
use crate::claims::{Claim, Shared, add, differences, in_order, normalise, sweep};
use crate::finding::{FindingId, Sink, Site};
use crate::ledger::{Ledger, Which};
use crate::table::Unshared;
use crate::volume::Volume;

/// Blocks of a group that are judged together.
pub(crate) struct Slice<'a> {
    pub(crate) group: &'a Group,
    /// The first block, and one behind the last one.
    pub(crate) range: (u32, u32),
}

/// The slices of all groups.
pub(crate) fn slices<'a>(vol: &Volume, ledger: &Ledger, groups: &'a [Group]) -> Vec<Slice<'a>> {
    let of = |group: &'a Group| {
        let ranges = ledger.ranges(vol.geometry.ag_len(group.number));
        ranges.map(move |range| Slice { group, range })
    };
    groups.iter().flat_map(of).collect()
}

/// Judges the claims on a slice. `is_whole`: what claims blocks could all be read.
pub(crate) fn judge(
    vol: &Volume,
    sink: &mut Sink,
    ledger: &Ledger,
    unshared: &Unshared<'_>,
    is_whole: bool,
    slice: &Slice<'_>,
) {
    let (group, range) = (slice.group, slice.range);
    let may_share = vol.geometry.has_reflink();
    let Some(claims) = ledger.take(sink, group.number, range.0, Which::Claims) else {
        return;
    };
    let mut claims = in_order(claims, range);
    let swept = sweep(&claims, range, may_share);
    for (one, other) in &swept.clashes {
        let id = if one.is_free() != other.is_free() {
            FindingId::FreeSpaceInUse
        } else {
            FindingId::BlockTwice
        };
        let site = Site::block(group.number, AgBlock(other.start));
        sink.add(id, site, format!("{}; {}", one.describe(), other.describe()));
    }
    if !is_whole {
        return;
    }
    for (start, blocks) in &swept.lost {
        let site = Site::block(group.number, AgBlock(*start));
        sink.add(
            FindingId::BlockLost,
            site,
            format!("{blocks} blocks are neither free nor in use"),
        );
    }
    if may_share {
        if group.has_refcounts
            && let Some(stated) = ledger.take(sink, group.number, range.0, Which::Refcounts)
        {
            references(sink, group, stated, &swept.shared);
        }
        flags(sink, unshared, &claims, &swept.shared);
    }
    if group.has_rmaps
        && let Some(rmaps) = ledger.take(sink, group.number, range.0, Which::Rmaps)
    {
        claims.retain(|claim| !claim.is_free());
        let (missing, stale) = differences(&normalise(claims), &normalise(rmaps));
        for (id, claims) in [(FindingId::RmapMissing, missing), (FindingId::RmapStale, stale)] {
            for claim in claims {
                sink.add(id, Site::block(group.number, AgBlock(claim.start)), claim.describe());
            }
        }
    }
}

fn references(sink: &mut Sink, group: &Group, mut records: Vec<Claim>, shared: &[Shared]) {
    records.sort_by_key(|record| record.start);
    let mut stated = Vec::new();
    for record in records {
        let count = u32::try_from(record.offset).unwrap_or(u32::MAX);
        add(&mut stated, record.start, record.blocks, count);
    }
    if stated == shared {
        return;
    }
    let mut said = |record: &Shared, what: &str| {
        let site = Site::block(group.number, AgBlock(record.start));
        let message = format!("{} blocks with {} references {what}", record.blocks, record.count);
        sink.add(FindingId::RefcountWrong, site, message);
    };
    let lacks = |all: &[Shared], record: &Shared| {
        let at = all.binary_search_by_key(&record.start, |other| other.start);
        at.ok().and_then(|at| all.get(at)) != Some(record)
    };
    for record in shared.iter().filter(|record| lacks(&stated, record)) {
        said(record, "are not in the refcountbt");
    }
    for record in stated.iter().filter(|record| lacks(shared, record)) {
        said(record, "in the refcountbt, but not by the files");
    }
}

/// Files with shared blocks have a flag.
fn flags(sink: &mut Sink, unshared: &Unshared<'_>, claims: &[Claim], shared: &[Shared]) {
    let (mut asked, mut said) = (0, 0);
    for claim in claims.iter().filter(|claim| claim.is_file_data()) {
        let at = shared.partition_point(|part| part.start.saturating_add(part.blocks) <= claim.start);
        let is_shared = shared.get(at).is_some_and(|part| part.start < claim.end());
        if !is_shared || claim.owner == asked {
            continue;
        }
        asked = claim.owner;
        let ino = xfs_format::Ino(claim.owner);
        if claim.owner != said && unshared.has(ino) {
            said = claim.owner;
            let message = format!("{} are shared, flags2 lacks REFLINK", claim.describe());
            sink.add(FindingId::InodeReflink, Site::inode(ino), message);
        }
    }
}
