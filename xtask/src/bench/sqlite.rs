//! `cargo xtask bench sqlite`: transactions per second, each durable: through atomic groups on our
//! mount, with a rollback journal and with a write-ahead log on both sides. The sides take turns.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Args as ClapArgs;

use super::side::{self, Mounted, Side};
use super::table;
use crate::run;

const NAME: &str = "sqlite";
/// Sides and journals, with what the table calls them. On our mount SQLite takes atomic groups by
/// itself.
const WAYS: [(&str, Side, &str); 4] = [
    ("Cowshed, atomic groups", Side::Ours, "delete"),
    ("Cowshed, write-ahead log", Side::Ours, "wal"),
    ("kernel btrfs, rollback journal", Side::Kernel, "delete"),
    ("kernel btrfs, write-ahead log", Side::Kernel, "wal"),
];

#[derive(ClapArgs)]
pub struct Args {
    /// Seconds of each run
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Runs of each way; the table has the medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Where the images lie
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
}

pub fn main(args: &Args) -> Result<()> {
    super::build()?;
    run::run(
        "SQLite",
        &mut run::cargo(&["build", "--release", "--quiet", "-p", "cowshed-sqlite"]),
    )?;
    let mut results: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for round in 0..args.runs {
        for turn in 0..WAYS.len() {
            let number = (turn + round) % WAYS.len();
            let (name, side, journal) = WAYS[number];
            if side == Side::Kernel && !side::kernel_can() {
                continue;
            }
            let mounted = Mounted::new(side, &args.dir, "")?;
            let mut command = Command::new(run::released("cowshed-sqlite"));
            command.arg("rate").arg(mounted.mountpoint());
            command.args(["--journal", journal, "--seconds", &args.seconds.to_string()]);
            let line: serde_json::Value = serde_json::from_str(&run::output(&mut command)?)?;
            let rate = line["per_second"].as_f64().context("the rate")?;
            eprintln!("{name:<32} {rate:>9.0}/s");
            results.entry(number).or_default().push(rate);
            mounted.finish()?;
        }
    }
    let mut text = format!(
        "Medians of {} runs of {} s; each transaction changes 6 rows and is durable (`synchronous=full`).\n\n\
         | SQLite | transactions/s |\n|---|---:|\n",
        args.runs, args.seconds
    );
    for (number, rates) in &results {
        let median = table::median(rates).unwrap_or_default();
        let _ = writeln!(text, "| {} | {median:.0} |", WAYS[*number].0);
    }
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    table::store_named(NAME, &text)
}
