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
mod entry;
mod finding;
mod fork;
mod hash_tree;
mod inodes;
mod ledger;
mod links;
mod log;
mod open;
mod options;
mod owners;
mod pile;
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

use ag::{Chunk, Group};
use finding::Sink;
use ledger::{Gather, Ledger, Which};
use scan::Scan;
use table::{Info, Table};
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
    let ledger = Ledger::new(&vol.geometry, options.memory_bytes);
    let groups = read_groups(vol, options, sink, &ledger);
    supers::counters(vol, sink, &groups);
    let (mut table, usage) = read_inodes(vol, options, sink, &ledger, &groups);
    links::unlinked(sink, &mut table);
    let is_whole = !sink.is_incomplete;
    let unshared = table.unshared();
    // Names and claims have nothing to do with each other.
    let mut judge_names = || {
        let mut sink = Sink::new(options.kept_per_id_max);
        links::count_names(&mut sink, &mut table, &ledger);
        table.is_whole = is_whole && !sink.is_incomplete;
        links::judge(vol, &mut sink, &mut table);
        if table.is_whole && vol.geometry.has_incompat(incompat::PARENT) {
            links::parents(&mut sink, &table, &ledger);
        }
        sink
    };
    let judge_claims = || judge_claims(vol, options, &ledger, &groups, &unshared, is_whole);
    let (names, claims) = if options.threads > 1 {
        std::thread::scope(|scope| {
            let names = scope.spawn(&mut judge_names);
            let claims = judge_claims();
            (names.join(), claims)
        })
    } else {
        (Ok(judge_names()), judge_claims())
    };
    match names {
        Ok(names) => sink.join(names),
        Err(panic) => std::panic::resume_unwind(panic),
    }
    for found in claims {
        sink.join(found);
    }
    if table.is_whole {
        usage::judge(&vol.superblock, sink, &usage);
    }
}

fn judge_claims(
    vol: &Volume,
    options: &CheckOptions<'_>,
    ledger: &Ledger,
    groups: &[Group],
    unshared: &table::Unshared<'_>,
    is_whole: bool,
) -> Vec<Sink> {
    let slices = owners::slices(vol, ledger, groups);
    workers::run(
        options,
        Phase::Claims,
        &slices,
        count_of(slices.len()),
        &|slice, step| {
            let mut sink = Sink::new(options.kept_per_id_max);
            owners::judge(vol, &mut sink, ledger, unshared, is_whole, slice);
            step();
            sink
        },
    )
}

fn read_groups(vol: &Volume, options: &CheckOptions<'_>, sink: &mut Sink, ledger: &Ledger) -> Vec<Group> {
    let numbers: Vec<_> = vol.groups().collect();
    let mut groups = Vec::with_capacity(numbers.len());
    let all = workers::run(
        options,
        Phase::Groups,
        &numbers,
        count_of(numbers.len()),
        &|number, step| {
            let mut sink = Sink::new(options.kept_per_id_max);
            let group = ag::read(vol, &mut sink, ledger, *number);
            step();
            (group, sink)
        },
    );
    for (group, found) in all {
        groups.push(group);
        sink.join(found);
    }
    if let Some((group, claim)) = supers::log_claim(vol) {
        Gather::new(ledger, Which::Claims).push(group, claim);
    }
    groups
}

/// Chunks of inodes that a thread reads before it takes others.
const PART_CHUNKS: usize = 64;

/// Reads all inodes with what hangs on them.
fn read_inodes<'a>(
    vol: &'a Volume,
    options: &CheckOptions<'_>,
    sink: &mut Sink,
    ledger: &Ledger,
    groups: &'a [Group],
) -> (Table<'a>, BTreeMap<(u8, u32), usage::Usage>) {
    let places = |group: &Group| Vec::with_capacity(group.chunks.len().saturating_mul(64));
    let mut infos: Vec<Vec<Info>> = groups.iter().map(places).collect();
    let mut usage = BTreeMap::<_, usage::Usage>::new();
    // The files of a directory lie in one group: it is for several threads, too.
    let parts: Vec<(usize, &Group, &[Chunk])> = groups
        .iter()
        .enumerate()
        .flat_map(|(at, group)| group.chunks.chunks(PART_CHUNKS).map(move |part| (at, group, part)))
        .collect();
    let chunks: usize = groups.iter().map(|group| group.chunks.len()).sum();
    let all = workers::run(
        options,
        Phase::Inodes,
        &parts,
        count_of(chunks),
        &|(_, group, part), step| {
            let mut scan = Scan::new(vol, ledger, group, options.kept_per_id_max);
            scan.chunks(group, part, step);
            scan.finish()
        },
    );
    for ((at, ..), found) in parts.iter().zip(all) {
        sink.join(found.sink);
        if let Some(infos) = infos.get_mut(*at) {
            infos.extend(found.infos);
        }
        for (key, part) in found.usage {
            usage.entry(key).or_default().join(&part);
        }
    }
    let table = Table {
        geometry: &vol.geometry,
        groups,
        infos,
        is_whole: false,
    };
    (table, usage)
}

fn count_of(len: usize) -> u64 {
    volume::count(len)
}
