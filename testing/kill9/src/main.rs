//! `cowshed-kill9`: kills the mount's process under load, again and again.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use cowshed_harness::{Transport, need};
use cowshed_kill9::load::{self, Load};
use cowshed_kill9::{Config, run};

/// Kill the mount's process under load, again and again, and look at what is left (root, loop
/// devices, FUSE)
#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 200)]
    rounds: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of the first round, to see a failed one again: with a multiple of 25 it begins
    /// with a fresh image
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// What works on the mount
    #[arg(long, value_enum, default_value = "model")]
    load: Load,
    /// More mount options, for the loads beside `model`
    #[arg(long, default_value = "treelog")]
    options: String,
    /// How the mounts are served, uring or dev; as they choose, unless given
    #[arg(long)]
    transport: Option<String>,
    /// The program to kill (default: `cowshed` beside this one)
    #[arg(long)]
    cowshed: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    // Says what is missing; under CI nothing may be.
    if need::kernel_btrfs().is_none() || need::fuse().is_none() {
        return Ok(());
    }
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("cowshed"));
    let cowshed = args.cowshed.map_or_else(beside, Ok)?;
    let Some(transport) = Transport::new(args.transport.as_deref())? else {
        return Ok(());
    };
    let config = Config {
        transport: transport.option.clone(),
        seed: args.seed,
        rounds: args.rounds,
        from: args.from,
        cowshed,
        progress: true,
    };
    println!("seed {}", args.seed);
    if args.load != Load::Model {
        let tool = match args.load {
            Load::Sqlite => "sqlite3",
            Load::Dbench => "dbench",
            Load::Tides | Load::Model => "btrfs",
        };
        if need::tool(tool).is_none() || need::tool("stdbuf").is_none() {
            return Ok(());
        }
        println!("{}", load::run(&config, args.load, &args.options)?);
        return Ok(());
    }
    let summary = run(&config)?;
    println!("all {} rounds passed: {summary:?}", args.rounds);
    Ok(())
}
