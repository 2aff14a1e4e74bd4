//! `cowshed-coherence`: the long run, and the worker processes of it.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::{Parser, Subcommand};
use cowshed_coherence::{Options, can_run, variant, worker};
use cowshed_harness::Keep;

/// Many processes at once on one mount, then everything in Linux' caches is compared with the
/// volume (root, FUSE)
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    /// Of the first volume; the next has the next one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Kinds of mounts, which take turns; all, unless given
    #[arg(long)]
    variant: Vec<String>,
    /// Processes
    #[arg(long, default_value_t = 4)]
    workers: u64,
    /// Of each process
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Work in each round, at most: two of three are shorter
    #[arg(long, default_value_t = 300)]
    millis: u64,
    /// Rounds on one volume, before the kernel looks at it
    #[arg(long, default_value_t = 6)]
    rounds_per_volume: u64,
    /// One line a round, and the operations by their errors
    #[arg(long)]
    verbose: bool,
    /// The program under test (default: `cowshed` beside this one)
    #[arg(long)]
    cowshed: Option<PathBuf>,
    /// Keep the image of a failure in this directory; otherwise in a temporary one, which is named
    #[arg(long)]
    keep: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// A process that works on the mount
    #[command(hide = true)]
    Worker(worker::Args),
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Command::Worker(args)) = &args.command {
        return worker::main(args);
    }
    if can_run().is_none() {
        return Ok(());
    }
    let own = std::env::current_exe()?;
    let temporary = || std::env::temp_dir().join(format!("cowshed-kept-{}", std::process::id()));
    let keep_dir = args.keep.unwrap_or_else(temporary);
    let options = Options {
        variants: variant::chosen(&args.variant)?,
        seed: args.seed,
        rounds: args.rounds,
        rounds_per_volume: args.rounds_per_volume,
        workers: args.workers.max(2),
        threads: args.threads,
        millis: args.millis,
        is_verbose: args.verbose,
        cowshed: args.cowshed.unwrap_or_else(|| own.with_file_name("cowshed")),
        own,
        keep: Keep::new(Some(keep_dir.clone())),
        keep_dir,
    };
    println!("seed {}", args.seed);
    let began = Instant::now();
    let report = cowshed_coherence::run(&options)?;
    if args.verbose {
        for (what, (count, failed, errors)) in &report.operations {
            println!("{what:18} {count:8} {failed:8} {errors:?}");
        }
    }
    println!("{:.0} s: {report}; all as they must be", began.elapsed().as_secs_f64());
    Ok(())
}
