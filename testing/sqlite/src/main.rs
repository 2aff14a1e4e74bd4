//! `cowshed-sqlite`: SQLite on a mount, killed and measured.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use cowshed_harness::need;
use cowshed_sqlite::database::Journal;
use cowshed_sqlite::kills::{self, Config};
use cowshed_sqlite::rate;

/// SQLite with batch atomic writes on a mount
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Kill the mount's process while SQLite commits, again and again (root, loop devices, FUSE)
    Kills {
        #[arg(long, default_value_t = 200)]
        rounds: u64,
        /// Transactions before the first kill
        #[arg(long, default_value_t = 10_000)]
        transactions: i64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The program to kill (default: `cowshed` beside this one)
        #[arg(long)]
        cowshed: Option<PathBuf>,
    },
    /// Transactions per second in a directory
    Rate {
        dir: PathBuf,
        #[arg(long, value_enum, default_value_t = Mode::Delete)]
        journal: Mode,
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Delete,
    Wal,
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Kills {
            rounds,
            transactions,
            seed,
            cowshed,
        } => {
            // Says what is missing; under CI nothing may be.
            if need::kernel_btrfs().is_none() || need::fuse().is_none() {
                return Ok(());
            }
            let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("cowshed"));
            let config = Config {
                seed,
                rounds,
                transactions,
                cowshed: cowshed.map_or_else(beside, Ok)?,
                progress: true,
            };
            let summary = kills::run(&config)?;
            println!("all {rounds} rounds passed: {summary:?}");
        }
        Command::Rate { dir, journal, seconds } => {
            let journal = match journal {
                Mode::Delete => Journal::Delete,
                Mode::Wal => Journal::Wal,
            };
            let rate = rate::transactions_per_second(&dir, journal, Duration::from_secs_f64(seconds))?;
            println!("{{\"per_second\": {rate:.1}}}");
        }
    }
    Ok(())
}
