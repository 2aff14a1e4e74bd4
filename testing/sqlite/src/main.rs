//! `cowshed-sqlite`: SQLite on a mount, killed and measured.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use cowshed_harness::need;
use cowshed_sqlite::database::Journal;
use cowshed_sqlite::place::{Programs, Rounds};
use cowshed_sqlite::{full, grown, kills, large, rate};

/// SQLite with batch atomic writes on a mount
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Kill the mount's process, or the program that runs SQLite, while SQLite commits, again and
    /// again (root, loop devices, FUSE)
    Kills {
        #[arg(long, default_value_t = 200)]
        rounds: u64,
        /// More rounds, on volumes that are full [default: one for ten]
        #[arg(long)]
        full_rounds: Option<u64>,
        /// More rounds, with transactions that are too large for an atomic group [default: one for
        /// ten]
        #[arg(long)]
        large_rounds: Option<u64>,
        /// More rounds, with transactions of 300 MiB (3 GiB of memory) [default: one for forty]
        #[arg(long)]
        huge_rounds: Option<u64>,
        /// Transactions before the first kill
        #[arg(long, default_value_t = 10_000)]
        transactions: i64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The program to kill (default: `cowshed` beside this one)
        #[arg(long)]
        cowshed: Option<PathBuf>,
    },
    /// What is killed: SQLite in a process of its own, which says what it does
    #[command(hide = true)]
    Work {
        #[arg(value_enum)]
        what: Work,
        database: PathBuf,
        /// The number of the first transaction
        #[arg(long)]
        from: i64,
        #[arg(long)]
        huge: bool,
        #[arg(long)]
        small_cache: bool,
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
enum Work {
    Commits,
    Grow,
    Large,
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
            full_rounds,
            large_rounds,
            huge_rounds,
            transactions,
            seed,
            cowshed,
        } => {
            // Says what is missing; under CI nothing may be.
            if need::kernel_btrfs().is_none() || need::fuse().is_none() {
                return Ok(());
            }
            let this = std::env::current_exe()?;
            let programs = Programs {
                cowshed: cowshed.unwrap_or_else(|| this.with_file_name("cowshed")),
                this,
            };
            let of = |count| Rounds {
                seed,
                count,
                programs: programs.clone(),
                progress: true,
            };
            if rounds > 0 {
                let summary = kills::run(&of(rounds), transactions)?;
                println!("all {rounds} rounds passed: {summary:?}");
            }
            let full_rounds = full_rounds.unwrap_or(rounds / 10);
            if full_rounds > 0 {
                let summary = full::run(&of(full_rounds))?;
                println!("all {full_rounds} rounds on full volumes passed: {summary:?}");
            }
            let large = [
                (large_rounds.unwrap_or(rounds / 10), false),
                (huge_rounds.unwrap_or(rounds / 40), true),
            ];
            for (rounds, is_huge) in large.into_iter().filter(|(rounds, _)| *rounds > 0) {
                let summary = large::run(&of(rounds), is_huge)?;
                println!("all {rounds} rounds of large transactions (huge: {is_huge}) passed: {summary:?}");
            }
        }
        Command::Work {
            what,
            database,
            from,
            huge,
            small_cache,
        } => match what {
            Work::Commits => kills::work(&database, from)?,
            Work::Grow => grown::work(&database, from)?,
            Work::Large => large::work(&database, from, huge, small_cache)?,
        },
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
