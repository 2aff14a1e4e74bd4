//! dbench: throughput, and how long its clients wait for a flush. One copy of metadata and of data
//! on both sides.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::super::side::{Mounted, Setup, Side};
use super::super::table::{self, ratio, show_runs};
use super::{Args, Outcome, turns};
use crate::run;

const CLIENTS: &str = "8";
pub const MKFS: [&str; 4] = ["-m", "single", "-d", "single"];

/// What one run says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    pub mb_per_s: f64,
    pub flush_average_ms: f64,
    pub flush_max_ms: f64,
}

/// Name, decimals, which number.
type Column = (&'static str, usize, fn(&Report) -> f64);
const COLUMNS: [Column; 3] = [
    ("throughput, MB/s", 0, |r| r.mb_per_s),
    ("Flush, average ms", 3, |r| r.flush_average_ms),
    ("Flush, longest ms", 1, |r| r.flush_max_ms),
];

pub fn run(args: &Args, sides: &[Side]) -> Result<Outcome> {
    let mut results: BTreeMap<Side, Vec<Report>> = BTreeMap::new();
    let setup = Setup {
        mkfs: &MKFS,
        ..Setup::default()
    };
    for (_, side) in turns(args, sides) {
        let report = one_run(args, side, &setup, args.seconds)?;
        eprintln!("{:>8} dbench {report:?}", side.name());
        results.entry(side).or_default().push(report);
    }
    Ok(render(args, &results))
}

/// dbench on a fresh volume.
pub fn one_run(args: &Args, side: Side, setup: &Setup<'_>, seconds: u64) -> Result<Report> {
    let mounted = Mounted::with(side, &args.dir, setup)?;
    let mut command = Command::new("dbench");
    command.arg("-D").arg(mounted.mountpoint());
    command.args(["-t", &seconds.to_string(), CLIENTS]);
    let report = parse(&run::output(&mut command)?).context("dbench says what it measured")?;
    mounted.finish()?;
    Ok(report)
}

/// Takes the lines ` Flush COUNT AVERAGE LONGEST` and `Throughput N MB/sec ...` out of what dbench
/// prints.
fn parse(text: &str) -> Option<Report> {
    let words = |first: &str| {
        let mut lines = text
            .lines()
            .rev()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|words| words.first() == Some(&first))
    };
    let (flush, throughput) = (words("Flush")?, words("Throughput")?);
    let number = |words: &[&str], n: usize| words.get(n)?.parse().ok();
    Some(Report {
        mb_per_s: number(&throughput, 1)?,
        flush_average_ms: number(&flush, 2)?,
        flush_max_ms: number(&flush, 3)?,
    })
}

fn render(args: &Args, results: &BTreeMap<Side, Vec<Report>>) -> Outcome {
    let mut text = format!(
        "`dbench -t {} {CLIENTS}`, metadata and data `single`, medians of {} runs (lowest to highest).\n\n\
         | dbench | kernel | Cowshed | Cowshed / kernel |\n|---|---:|---:|---:|\n",
        args.seconds, args.runs
    );
    let mut panels = Vec::new();
    for (name, decimals, take) in COLUMNS {
        let of = |side| results.get(&side).into_iter().flatten().map(take).collect::<Vec<_>>();
        let (kernel, ours) = (of(Side::Kernel), of(Side::Ours));
        let medians = [&kernel, &ours].map(|values| table::median(values));
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} |",
            show_runs(&kernel, decimals),
            show_runs(&ours, decimals),
            ratio(medians[1], medians[0])
        );
        panels.push(panel(name, medians));
    }
    let title = format!("dbench, {CLIENTS} clients");
    Outcome {
        text,
        picture: Some(("dbench.svg", table::panels(&title, &panels))),
    }
}

/// Medians of the kernel and of ours.
fn panel(title: &'static str, medians: [Option<f64>; 2]) -> table::Panel<'static> {
    let sides = [Side::Kernel, Side::Ours].map(|side| side.name().to_owned());
    let bars = sides.into_iter().zip(medians);
    table::Panel {
        title,
        bars: bars.filter_map(|(side, median)| Some((side, median?))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_count() {
        let text = "   8      9000   400.00 MB/sec  execute   1 sec\n\n Operation      Count    AvgLat    MaxLat\n \
                    Flush           7276     0.441    53.505\n\nThroughput 325.698 MB/sec  8 clients  8 procs  \
                    max_latency=64.334 ms\n";
        let expected = Report {
            mb_per_s: 325.698,
            flush_average_ms: 0.441,
            flush_max_ms: 53.505,
        };
        assert_eq!(parse(text), Some(expected));
        assert_eq!(parse("dbench version 4.00\n"), None);
    }
}
