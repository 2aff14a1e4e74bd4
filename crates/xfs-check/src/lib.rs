//! An independent checker of XFS volumes: the second opinion.
//!
//! It reads devices through [`xfs_format`] alone and shares no code with the engine, so that a
//! mistake there cannot hide here. It only reads. Whatever the bytes, it ends, does not panic, and
//! stays within bounds; docs/design/xfs-check.md says how.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use cowshed_device::{BlockDevice, FileDevice, OpenMode};
//! let image = FileDevice::open("volume.img", OpenMode::ReadOnly)?;
//! let report = xfs_check::check(Arc::new(image), &xfs_check::CheckOptions::default());
//! print!("{report}");
//! assert!(report.is_clean());
//! # Ok::<(), cowshed_device::Error>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod ag;
mod attr;
mod claims;
mod dir;
mod finding;
mod fork;
mod hash_tree;
mod inodes;
mod links;
mod log;
mod open;
mod options;
mod owners;
mod quota;
mod scan;
mod supers;
mod table;
mod tree;
mod usage;
mod volume;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;

use cowshed_device::BlockDevice;
use xfs_format::features::incompat;

pub use finding::{Finding, FindingId, Report, Severity, Site, Statistics};
pub use options::{CheckOptions, Phase, Progress, Replay};

use ag::Group;
use claims::Claim;
use finding::Sink;
use scan::Scan;
use table::{Entry, Table};
use volume::Volume;

/// Checks the volume on a device.
pub fn check(device: Arc<dyn BlockDevice>, options: &CheckOptions<'_>) -> Report {
    let mut sink = Sink::new(options.kept_per_id_max);
    if let Some(vol) = open::open(device, options, &mut sink) {
        sink.report.statistics.was_checked = true;
        check_volume(&vol, options, &mut sink);
    }
    if sink.is_incomplete && sink.report.statistics.was_checked {
        let message = "what depends on the parts that could not be read was not compared";
        sink.add(FindingId::Incomplete, Site::default(), message);
    }
    sink.report
}

fn check_volume(vol: &Volume, options: &CheckOptions<'_>, sink: &mut Sink) {
    let stats = &mut sink.report.statistics;
    stats.groups = vol.geometry.ag_count.into();
    stats.total_bytes = vol.geometry.blocks.saturating_mul(vol.geometry.block_bytes.into());
    supers::copies(vol, sink);
    let numbers: Vec<_> = vol.groups().collect();
    let mut groups = Vec::with_capacity(numbers.len());
    let all = workers::run(
        options,
        Phase::Groups,
        &numbers,
        count_of(numbers.len()),
        &|number, step| {
            let mut sink = Sink::new(options.kept_per_id_max);
            let group = ag::read(vol, &mut sink, *number);
            step();
            (group, sink)
        },
    );
    for (group, found) in all {
        groups.push(group);
        sink.join(found);
    }
    supers::counters(vol, sink, &groups);
    let (claims, entries, mut table, usage) = read_inodes(vol, options, sink, &groups);
    links::unlinked(sink, &mut table);
    links::count_names(sink, &mut table, &entries);
    let is_whole = !sink.is_incomplete;
    links::judge(vol, sink, &mut table, is_whole);
    if is_whole && vol.geometry.has_incompat(incompat::PARENT) {
        links::parents(sink, &table, &entries);
    }
    drop(entries);
    judge_claims(vol, options, sink, &table, claims, is_whole);
    if is_whole {
        usage::judge(&vol.superblock, sink, &usage);
    }
}

type Inodes<'a> = (Vec<Claim>, Vec<Entry>, Table<'a>, BTreeMap<(u8, u32), usage::Usage>);

/// Reads all inodes with what hangs on them.
fn read_inodes<'a>(vol: &'a Volume, options: &CheckOptions<'_>, sink: &mut Sink, groups: &'a [Group]) -> Inodes<'a> {
    let chunks: usize = groups.iter().map(|group| group.chunks.len()).sum();
    let mut claims: Vec<Claim> = groups.iter().flat_map(|group| group.claims.iter().copied()).collect();
    claims.extend(supers::log_claim(vol));
    let (mut entries, mut infos, mut usage) = (Vec::new(), Vec::new(), BTreeMap::<_, usage::Usage>::new());
    let all = workers::run(options, Phase::Inodes, groups, count_of(chunks), &|group, step| {
        let mut scan = Scan::new(vol, options.kept_per_id_max);
        scan.group(group, step);
        scan
    });
    for scan in all {
        sink.join(scan.sink);
        claims.extend(scan.claims);
        entries.extend(scan.entries);
        infos.push(scan.infos);
        for (key, part) in scan.usage {
            usage.entry(key).or_default().join(&part);
        }
    }
    let table = Table {
        geometry: &vol.geometry,
        groups,
        infos,
    };
    (claims, entries, table, usage)
}

fn judge_claims(
    vol: &Volume,
    options: &CheckOptions<'_>,
    sink: &mut Sink,
    table: &Table<'_>,
    mut claims: Vec<Claim>,
    is_whole: bool,
) {
    claims.sort_unstable_by_key(|claim| (claim.group, claim.start, claim.blocks));
    let parts: Vec<(&Group, &[Claim])> = table
        .groups
        .iter()
        .map(|group| {
            let first = claims.partition_point(|claim| claim.group < group.number.get());
            let end = claims.partition_point(|claim| claim.group <= group.number.get());
            (group, claims.get(first..end).unwrap_or_default())
        })
        .collect();
    let all = workers::run(
        options,
        Phase::Claims,
        &parts,
        count_of(parts.len()),
        &|(group, claims), step| {
            let mut sink = Sink::new(options.kept_per_id_max);
            owners::judge(vol, &mut sink, table, group, claims, is_whole);
            step();
            sink
        },
    );
    for found in all {
        sink.join(found);
    }
}

fn count_of(len: usize) -> u64 {
    volume::count(len)
}
