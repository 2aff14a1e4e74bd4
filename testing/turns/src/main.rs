//! Linux and Cowshed take turns: the long run.

use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use cowshed_harness::Keep;
use cowshed_turns::Options;

#[derive(Parser)]
#[command(about = "The kernel and Cowshed take turns at volumes of snapshots, cut short by power failures (root)")]
struct Args {
    /// Of the first volume; the next has the next one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 20)]
    volumes: u64,
    /// Of each volume
    #[arg(long, default_value_t = 10)]
    turns: u64,
    /// Images of a turn that are judged; the next turn goes on with one of them
    #[arg(long, default_value_t = 6)]
    images: usize,
    /// Keep the image of a failure in this directory; otherwise in a temporary one, which is named
    #[arg(long)]
    keep: Option<std::path::PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let started = Instant::now();
    for seed in args.seed..args.seed + args.volumes {
        let options = Options {
            seed,
            volumes: 1,
            turns: args.turns,
            images: args.images,
            keep: Keep::new(args.keep.clone()),
        };
        let report = cowshed_turns::run(&options)?;
        println!("{:.0} s, seed {seed}: {report}", started.elapsed().as_secs_f64());
    }
    Ok(())
}
