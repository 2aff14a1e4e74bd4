//! Claims of a group against its rmapbt and refcountbt, and against each other.

use xfs_format::AgBlock;
use xfs_format::features::ro_compat;

use crate::ag::Group;
use crate::claims::{Claim, Shared, differences, normalise, sweep};
use crate::finding::{FindingId, Sink, Site};
use crate::table::Table;
use crate::volume::Volume;

/// Judges the claims on a group; they are sorted by start.
pub(crate) fn judge(vol: &Volume, sink: &mut Sink, table: &Table<'_>, group: &Group, claims: &[Claim], is_whole: bool) {
    let may_share = vol.geometry.has_reflink();
    let swept = sweep(claims, vol.geometry.ag_len(group.number), may_share);
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
    if vol.geometry.has_ro_compat(ro_compat::RMAPBT)
        && let Some(rmaps) = &group.rmaps
    {
        let expected = normalise(claims.iter().filter(|claim| !claim.is_free()).copied().collect());
        let (missing, stale) = differences(&expected, &normalise(rmaps.clone()));
        for (id, claims) in [(FindingId::RmapMissing, missing), (FindingId::RmapStale, stale)] {
            for claim in claims {
                sink.add(id, Site::block(group.number, AgBlock(claim.start)), claim.describe());
            }
        }
    }
    if may_share {
        references(sink, group, &swept.shared);
        flags(sink, table, claims, &swept.shared);
    }
}

fn references(sink: &mut Sink, group: &Group, shared: &[Shared]) {
    let Some(stated) = &group.refcounts else { return };
    if stated == shared {
        return;
    }
    let mut said = |record: &Shared, what: &str| {
        let site = Site::block(group.number, AgBlock(record.start));
        let message = format!("{} blocks with {} references {what}", record.blocks, record.count);
        sink.add(FindingId::RefcountWrong, site, message);
    };
    for record in shared.iter().filter(|record| {
        stated
            .binary_search_by_key(&record.start, |other| other.start)
            .ok()
            .and_then(|at| stated.get(at))
            != Some(record)
    }) {
        said(record, "are not in the refcountbt");
    }
    for record in stated.iter().filter(|record| {
        shared
            .binary_search_by_key(&record.start, |other| other.start)
            .ok()
            .and_then(|at| shared.get(at))
            != Some(record)
    }) {
        said(record, "in the refcountbt, but not by the files");
    }
}

/// Files with shared blocks have a flag.
fn flags(sink: &mut Sink, table: &Table<'_>, claims: &[Claim], shared: &[Shared]) {
    let mut before = 0;
    for claim in claims.iter().filter(|claim| claim.is_file_data()) {
        let at = shared.partition_point(|part| part.start.saturating_add(part.blocks) <= claim.start);
        let is_shared = shared.get(at).is_some_and(|part| part.start < claim.end());
        if !is_shared || claim.owner == before {
            continue;
        }
        let ino = xfs_format::Ino(claim.owner);
        if table.get(ino).is_some_and(|info| !info.has_reflink) {
            before = claim.owner;
            let message = format!("{} are shared, flags2 lacks REFLINK", claim.describe());
            sink.add(FindingId::InodeReflink, Site::inode(ino), message);
        }
    }
}
