//! `cowshed-random`: random operations on the engine and on the model, from a seed.

use std::process::ExitCode;
use std::time::Duration;

use btrfs_image::Profile;
use clap::Parser;
use cowshed_random::{Config, run, subject, threads, tides};
use cowshed_vfs::Compression;

/// Random operations on the engine, in memory, compared with a reference model
#[derive(Parser)]
struct Args {
    /// Where the dice begin
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds to run, one after the other
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    #[arg(long, default_value_t = 100_000)]
    operations: usize,
    /// At the end `btrfs check --check-data-csum`, a mount and a scrub by the kernel
    #[arg(long)]
    btrfs_check: bool,
    /// MiB of each device; below 1024 the volume may fill up
    #[arg(long, default_value_t = 8192)]
    device_mib: u64,
    /// Bytes of a tree block
    #[arg(long, default_value_t = 4096)]
    nodesize: u32,
    /// Data and metadata share block groups: volumes from 16 MiB on
    #[arg(long)]
    mixed: bool,
    /// Profile of data
    #[arg(long)]
    data: Option<Profile>,
    /// Profile of metadata
    #[arg(long)]
    metadata: Option<Profile>,
    /// A volume with explicit holes
    #[arg(long)]
    explicit_holes: bool,
    /// Compress what is written: zlib, lzo, zstd:1 ...
    #[arg(long)]
    compress: Option<Compression>,
    /// New files are nodatacow
    #[arg(long)]
    nodatacow: bool,
    /// Fsyncs write logs, there are many of them, and crashes after them
    #[arg(long)]
    treelog: bool,
    /// Subvolumes on the volume, one of them in another: about half of the work is in them, or
    /// crosses into them
    #[arg(long)]
    subvolumes: bool,
    /// Many atomic groups, several open at a time, on files that others work on
    #[arg(long)]
    groups: bool,
    /// MiB that the engine may use
    #[arg(long, default_value_t = 1024)]
    memory_mib: u64,
    #[arg(long)]
    no_remount: bool,
    /// So many threads, each in a directory of its own, and one that commits
    #[arg(long, default_value_t = 1)]
    threads: u16,
    /// Instead of random operations so many turns of tides: data until there is no room, names
    /// until there is no room, most of the data and all of the names deleted each time. For
    /// --device-mib 128 to 512
    #[arg(long, default_value_t = 0)]
    tides: usize,
    /// Seconds to cut a failing run short
    #[arg(long, default_value_t = 60)]
    shrink_s: u64,
}

fn tide(args: &Args, config: Config) -> anyhow::Result<()> {
    let (seed, turns) = (config.seed, args.tides);
    let reached = tides::run(&tides::Config {
        seed,
        turns,
        setup: config.setup,
        btrfs_check: config.btrfs_check,
    })?;
    for (turn, reach) in reached.iter().enumerate() {
        println!("seed {seed}, turn {turn}: {reach}");
    }
    Ok(())
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::ERROR)
        .init();
    let args = Args::parse();
    for seed in args.seed..args.seed + args.seeds {
        let mut config = Config::new(seed, args.operations);
        config.setup.device_bytes = args.device_mib << 20;
        config.setup.node_bytes = args.nodesize;
        config.setup.mixed = args.mixed;
        (config.setup.data, config.setup.metadata) = (args.data, args.metadata);
        config.setup.no_holes = !args.explicit_holes;
        config.setup.memory_bytes_max = args.memory_mib << 20;
        config.setup.commit_interval_s = u32::from(args.threads > 1);
        config.setup.compress = args.compress;
        (config.setup.nodatacow, config.setup.tree_log) = (args.nodatacow, args.treelog);
        (config.mix.fsyncs, config.mix.groups) = (args.treelog, args.groups);
        if args.subvolumes {
            config.setup.subvolumes = subject::Setup::some_subvolumes();
        }
        config.may_fill = args.device_mib < 1024;
        config.mix.bulky = config.may_fill;
        config.mix.no_remount = args.no_remount;
        config.btrfs_check = args.btrfs_check;
        config.shrink = Duration::from_secs(args.shrink_s);
        config.progress = true;
        if args.tides > 0 {
            if let Err(error) = tide(&args, config) {
                println!("seed {seed}: {error:#}");
                return ExitCode::FAILURE;
            }
            continue;
        }
        if args.threads > 1 {
            let config = threads::Config {
                seed,
                threads: args.threads,
                operations: args.operations / usize::from(args.threads),
                setup: config.setup,
                may_fill: config.may_fill,
            };
            if let Err(error) = threads::run(&config) {
                println!("seed {seed}: {error:#}");
                return ExitCode::FAILURE;
            }
            println!("seed {seed}: passed");
            continue;
        }
        match run(&config) {
            Ok(summary) => println!("seed {seed}: {summary:?}"),
            Err(failure) => {
                println!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
