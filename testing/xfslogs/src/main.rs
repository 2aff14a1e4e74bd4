//! `cowshed-xfslogs`: dirty logs of the kernel's XFS, recovered on both sides.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use cowshed_xfslogs::{Config, Focus, is_able, judge_kept, run};

/// Dirty logs of the kernel's XFS, recovered by Cowshed in memory and by the kernel (root, loop
/// devices, xfsprogs)
#[derive(Parser)]
struct Args {
    /// Images to judge
    #[arg(long, default_value_t = 100)]
    count: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Logs with flipped bits to open for each image
    #[arg(long, default_value_t = 0)]
    flips: u64,
    /// The load of all rounds; else one at random for each
    #[arg(long)]
    focus: Option<Focus>,
    /// Judge this image again, which was kept
    #[arg(long)]
    image: Option<PathBuf>,
    /// Where images of failures are kept
    #[arg(long)]
    keep: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if !is_able() {
        return Ok(());
    }
    if let Some(image) = &args.image {
        println!("{}", judge_kept(image)?);
        return Ok(());
    }
    println!("seed {}", args.seed);
    let seen = run(&Config {
        count: args.count,
        seed: args.seed,
        flips: args.flips,
        focus: args.focus,
        keep: args.keep,
        progress: true,
    })?;
    println!("{seen}");
    Ok(())
}
