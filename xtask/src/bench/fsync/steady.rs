//! Loads that sync every write: how many of them in a second, and how many bytes reach the device
//! for each.
//!
//! Both sides are mounted through a loop device, whose statistics count the bytes. Commits that
//! fall into the run count, too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use anyhow::Result;

use super::super::loads::generate;
use super::super::side::{Mounted, Setup, Side};
use super::super::table::{self, ratio, show_runs};
use super::{Args, Outcome, dbench, turns};
use crate::run;

/// MiB of each database file.
const DATABASE_MIB: &str = "64";

/// A load, and how many threads do it.
#[derive(Clone, Copy)]
pub struct Work {
    pub name: &'static str,
    load: &'static str,
    threads: &'static str,
}

pub const SMALL_FILES: Work = Work {
    name: "new files of 4 KiB, 8 threads",
    load: "small-files",
    threads: "8",
};
pub const DATABASE: Work = Work {
    name: "4 KiB overwrite + fdatasync, 8 threads",
    load: "database",
    threads: "8",
};
const ALL: [Work; 4] = [
    Work {
        name: "new files of 4 KiB, 1 thread",
        threads: "1",
        ..SMALL_FILES
    },
    SMALL_FILES,
    Work {
        name: "4 KiB overwrite + fdatasync, 1 thread",
        threads: "1",
        ..DATABASE
    },
    DATABASE,
];

/// What one run says.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub per_s: f64,
    pub kib_per_sync: f64,
}

pub fn run(args: &Args, sides: &[Side]) -> Result<Outcome> {
    let mut results: BTreeMap<(&str, Side), Vec<Report>> = BTreeMap::new();
    let setup = Setup {
        mkfs: &dbench::MKFS,
        ..Setup::default()
    };
    for (_, side) in turns(args, sides) {
        for work in ALL {
            let report = one_run(args, side, &setup, work)?;
            eprintln!(
                "{:>8} {:<40} {:>7.0}/s {:>7.1} KiB",
                side.name(),
                work.name,
                report.per_s,
                report.kib_per_sync
            );
            results.entry((work.name, side)).or_default().push(report);
        }
    }
    Ok(render(args, &results))
}

/// A load on a fresh volume.
pub fn one_run(args: &Args, side: Side, setup: &Setup<'_>, work: Work) -> Result<Report> {
    let setup = Setup {
        is_on_device: true,
        ..setup.clone()
    };
    let mounted = Mounted::with(side, &args.dir, &setup)?;
    let mnt = mounted.mountpoint();
    if work.load == DATABASE.load {
        generate(&mnt, &["make-database", DATABASE_MIB, "--threads", work.threads])?;
    }
    run::output(Command::new("sync").arg("-f").arg(&mnt))?;
    let before = mounted.written_bytes()?;
    let count = args.writes.to_string();
    let seconds = generate(&mnt, &[work.load, &count, "--threads", work.threads])?;
    let written = mounted.written_bytes()? - before;
    mounted.finish()?;
    Ok(Report {
        per_s: args.writes as f64 / seconds,
        kib_per_sync: written as f64 / 1024.0 / args.writes as f64,
    })
}

fn render(args: &Args, results: &BTreeMap<(&str, Side), Vec<Report>>) -> Outcome {
    let mut text = format!(
        "{} writes, each synced; metadata and data `single`, medians of {} runs (lowest to highest). KiB: what the device was given for \
         each fsync, the 4 KiB of data included. Ratio: how many times as fast as the kernel's btrfs.\n\n\
         | Load | kernel, writes/s | Cowshed, writes/s | ratio | kernel, KiB | Cowshed, KiB |\n|---|---:|---:|---:|---:|---:|\n",
        args.writes, args.runs
    );
    let (mut rates, mut sizes) = (Vec::new(), Vec::new());
    for work in ALL {
        let of = |side, take: fn(&Report) -> f64| {
            let runs = results.get(&(work.name, side)).into_iter().flatten();
            runs.map(take).collect::<Vec<_>>()
        };
        let rate = [Side::Kernel, Side::Ours].map(|side| of(side, |r| r.per_s));
        let kib = [Side::Kernel, Side::Ours].map(|side| of(side, |r| r.kib_per_sync));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            work.name,
            show_runs(&rate[0], 0),
            show_runs(&rate[1], 0),
            ratio(table::median(&rate[1]), table::median(&rate[0])),
            show_runs(&kib[0], 1),
            show_runs(&kib[1], 1)
        );
        rates.extend(bars(work, [&rate[0], &rate[1]].map(|values| table::median(values))));
        sizes.extend(bars(work, [&kib[0], &kib[1]].map(|values| table::median(values))));
    }
    Outcome {
        text,
        picture: Some(("steady.svg", picture(rates, sizes))),
    }
}

/// Medians of the kernel and of ours.
fn bars(work: Work, medians: [Option<f64>; 2]) -> impl Iterator<Item = (String, f64)> {
    let labels = [Side::Kernel, Side::Ours].map(|side| format!("{}, {}", work.name, side.name()));
    let bars = labels.into_iter().zip(medians);
    bars.filter_map(|(label, median)| Some((label, median?)))
}

fn picture(rates: Vec<(String, f64)>, sizes: Vec<(String, f64)>) -> String {
    let panel = |title, bars| table::Panel { title, bars };
    let panels = [
        panel("writes per second", rates),
        panel("KiB written for each fsync", sizes),
    ];
    table::panels("Each write synced", &panels)
}
