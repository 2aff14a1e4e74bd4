//! `cargo xtask bench fsync`: fsync of ours beside the kernel's, on volumes of the same kind, by
//! turns.
//!
//! - [`names`]: a directory of a million empty files is synced, then again when every thousandth is
//!   gone;
//! - [`dbench`]: what clients of a file server wait for their flushes;
//! - [`steady`]: small files and databases, each write synced, with the bytes that reach the device
//!   for each fsync.

mod answer;
mod dbench;
mod names;
mod steady;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args as ClapArgs;

use super::side::{self, Side};
use super::table;

const NAME: &str = "fsync";

#[derive(ClapArgs)]
pub struct Args {
    /// Names in the directory that is synced
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Seconds of each run of dbench
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Synced writes of each steady run
    #[arg(long, default_value_t = 20_000)]
    writes: u64,
    /// Runs of each side; the tables have the medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Where the images lie
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Only the parts whose name contains this: names, dbench, steady
    #[arg(long, default_value = "")]
    only: String,
    /// Print the tables, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
    /// Only our side
    #[arg(long)]
    ours: bool,
}

/// A part of the comparison: measures, and says it as Markdown, and with a picture where it has
/// one.
struct Part {
    name: &'static str,
    run: fn(&Args, &[Side]) -> Result<Outcome>,
}

/// What a part found.
struct Outcome {
    text: String,
    /// File name in docs/ and contents.
    picture: Option<(&'static str, String)>,
}

const PARTS: [Part; 3] = [
    Part {
        name: "names",
        run: names::run,
    },
    Part {
        name: "dbench",
        run: dbench::run,
    },
    Part {
        name: "steady",
        run: steady::run,
    },
];

pub fn main(args: &Args) -> Result<()> {
    super::build()?;
    let sides: &[Side] = if args.ours || !side::kernel_can() {
        &[Side::Ours]
    } else {
        &[Side::Kernel, Side::Ours]
    };
    for part in PARTS.iter().filter(|part| part.name.contains(&args.only)) {
        let outcome = (part.run)(args, sides)?;
        println!("{}", outcome.text);
        if args.dry_run {
            continue;
        }
        if let Some((file, svg)) = outcome.picture {
            std::fs::write(crate::run::root().join("docs").join(file), svg)?;
        }
        table::store_named(&format!("{NAME} {}", part.name), &outcome.text)?;
    }
    Ok(())
}

/// Both sides in turn, `runs` times: the first side may find colder caches.
fn turns(args: &Args, sides: &[Side]) -> Vec<(usize, Side)> {
    let turn = |round: usize| (0..sides.len()).map(move |n| (round, sides[(n + round) % sides.len()]));
    (0..args.runs).flat_map(turn).collect()
}
