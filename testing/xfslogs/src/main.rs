//! `cowshed-xfslogs`: dirty logs of the kernel's XFS, recovered on both sides.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Parser;
use cowshed_xfslogs::{Config, Focus, Seen, is_able, judge_kept, run_into};

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
    ensure!(is_able(), "nothing was judged: a run needs what the lines above name");
    if let Some(image) = &args.image {
        println!("{}", judge_kept(image)?);
        return Ok(());
    }
    println!("seed {}", args.seed);
    let config = Config {
        count: args.count,
        seed: args.seed,
        flips: args.flips,
        focus: args.focus,
        keep: args.keep,
        progress: true,
    };
    let mut seen = Seen::default();
    let mut end = End { is_said: false };
    let done = run_into(&config, &mut seen);
    println!("{seen}");
    match &done {
        Ok(()) => println!("the run is complete"),
        Err(_) => println!("the run ended early: of {} images", args.count),
    }
    end.is_said = true;
    done
}

/// Says that a run has no end: a panic, on whichever thread, must not look like silence.
struct End {
    is_said: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.is_said {
            println!("the run was cut by a panic: there is no summary");
        }
    }
}
