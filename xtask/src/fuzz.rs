//! Long runs of `cowshed-fuzz`, in the release build.

use anyhow::Result;
use clap::Args as ClapArgs;

use crate::run;

#[derive(ClapArgs)]
pub struct Args {
    /// How long
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// Which images: the same number gives the same ones
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the images of failures in this directory
    #[arg(long)]
    keep: Option<String>,
}

pub fn main(args: &Args) -> Result<()> {
    let (seconds, seed) = (args.seconds.to_string(), args.seed.to_string());
    let mut all = vec!["run", "--release", "-p", "cowshed-fuzz", "--", "image"];
    all.extend(["--seconds", &seconds, "--seed", &seed]);
    if let Some(dir) = &args.keep {
        all.extend(["--keep", dir]);
    }
    run::run("fuzzing", &mut run::cargo(&all))
}
