//! Long runs, by seed: `cargo run --release -p cowshed-logreplay -- --from 1 --to 100`.

use anyhow::Result;
use clap::Parser;
use cowshed_harness::Keep;
use cowshed_logreplay::random::{Length, run};
use cowshed_logreplay::volumes;

#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value_t = 1)]
    from: u64,
    #[arg(long, default_value_t = 100)]
    to: u64,
    /// Crash images per run.
    #[arg(long, default_value_t = 8)]
    images: u32,
    /// Operations between two images.
    #[arg(long, default_value_t = 40)]
    steps: u32,
    /// Only this kind of volume (an index).
    #[arg(long)]
    volume: Option<usize>,
    /// Keep the images of a failure in this directory; otherwise in a temporary one, which is named.
    #[arg(long)]
    keep: Option<std::path::PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let volumes = volumes();
    let keep = Keep::new(args.keep);
    let length = Length {
        images: args.images,
        steps: args.steps,
    };
    let mut with_log = 0;
    for seed in args.from..=args.to {
        let index = args.volume.unwrap_or(seed as usize % volumes.len());
        with_log += run(seed, &volumes[index], length, &keep)?;
        println!("seed {seed}: {with_log} logs so far");
    }
    Ok(())
}
