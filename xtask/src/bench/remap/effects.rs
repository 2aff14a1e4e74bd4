//! What changing items in place saves against deleting and inserting them: the same writes, on our side alone, with the mechanism
//! on and off. What is counted does not depend on the machine.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::super::side::{Mounted, Removed, Setup, Side};
use super::super::{switches, table};
use super::{Args, PASSES, pass, prepare};

const NAME: &str = "remap effects";
/// What is off, and how the table calls it.
const WAYS: [(&str, &str); 2] = [("", "range-replace"), ("remap", "delete and insert")];
const BLOCK_BYTES: u64 = 4096;

/// What one pass did, for each block it wrote.
#[derive(Clone, Copy, Default)]
struct Row {
    iops: f64,
    /// Edits of items, changes of references, items merged, bytes of metadata written.
    counts: [f64; 4],
}

pub fn run(args: &Args) -> Result<()> {
    let program = switches::build()?;
    let mut results = vec![Vec::new(); WAYS.len()];
    for _ in 0..args.runs {
        for (number, (off, name)) in WAYS.into_iter().enumerate() {
            let rows = one_run(args, &program, off)?;
            for (row, pass) in rows.iter().zip(PASSES) {
                eprintln!("{name:<18} {pass:<22} {:>9.0}/s, {:.2?} a block", row.iops, row.counts);
            }
            results[number].push(rows);
        }
    }
    let text = render(args, &results);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    table::store_named(NAME, &text)
}

/// A mount for each pass, as a mount's counters are told when it ends.
fn one_run(args: &Args, program: &Path, off: &str) -> Result<[Row; 2]> {
    let counters = args.dir.join(format!("cowshed-bench-{}-counters", std::process::id()));
    let counters = Removed(counters);
    let told = counters.0.to_string_lossy();
    let environment = [(switches::OFF, off), (switches::COUNTERS, &told)];
    let setup = Setup {
        program: Some(program),
        environment: &environment,
        ..Setup::default()
    };
    let mut mounted = Mounted::with(Side::Ours, &args.dir, &setup)?;
    prepare(&mounted, args)?;
    mounted.remount()?;
    let first = pass(&mounted, args)?;
    mounted.remount()?;
    let second = pass(&mounted, args)?;
    mounted.finish()?;
    let lines = std::fs::read_to_string(&counters.0).context("the counters of the mounts")?;
    let lines: Vec<&str> = lines.lines().collect();
    ensure!(
        lines.len() == 3,
        "three mounts tell their counters, not {}",
        lines.len()
    );
    let row = |iops, line: &str| {
        let blocks = ((args.mib << 20) / BLOCK_BYTES) as f64;
        let mut counts = [0.0; 4];
        for (count, word) in counts.iter_mut().zip(line.split(' ')) {
            *count = word.parse::<f64>()? / blocks;
        }
        anyhow::Ok(Row { iops, counts })
    };
    Ok([row(first, lines[1])?, row(second, lines[2])?])
}

fn render(args: &Args, results: &[Vec<[Row; 2]>]) -> String {
    let mut text = format!(
        "File of {} MiB, medians of {} runs; but for the rate, for each block written.\n\n\
         | Cowshed | pass | writes/s | edits of items | changes of references | items merged | metadata, bytes |\n\
         |---|---|---:|---:|---:|---:|---:|\n",
        args.mib, args.runs
    );
    for (pass, pass_name) in PASSES.into_iter().enumerate() {
        for (rows, (_, name)) in results.iter().zip(WAYS) {
            let median = |take: &dyn Fn(&Row) -> f64| {
                let values: Vec<f64> = rows.iter().map(|row| take(&row[pass])).collect();
                table::median(&values).unwrap_or_default()
            };
            let _ = write!(text, "| {name} | {pass_name} | {:.0} |", median(&|row| row.iops));
            for (count, decimals) in [(0, 2), (1, 2), (2, 2), (3, 0)] {
                let _ = write!(text, " {:.decimals$} |", median(&|row| row.counts[count]));
            }
            text.push('\n');
        }
    }
    text
}
