//! Dirty logs of the kernel's XFS, recovered by Cowshed in memory and by the kernel on a copy.
//!
//! A round makes a volume, works on it with several threads, copies its image in flight (a clone of
//! the backing file: one moment), ends with a shutdown, and judges each copy: the same names,
//! contents, metadata and counters; the same blocks but for LSN and checksum where the log promised
//! nothing; else `xfs_repair -n` is silent about what we made.

mod blocks;
mod flips;
mod focus;
mod host;
mod judge;
mod left;
mod load;
pub mod plant;
mod seen;
mod shown;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cowshed_device_sim::Rng;
use cowshed_harness::{Keep, need};

pub use focus::Focus;
use host::Host;
use load::Able;
pub use seen::Seen;

/// What is run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Images to judge.
    pub count: u64,
    /// The first round's seed.
    pub seed: u64,
    /// Damaged logs to open for each image.
    pub flips: u64,
    /// The load of all rounds. `None`: one at random for each round.
    pub focus: Option<Focus>,
    /// Where images of failures are kept.
    pub keep: Option<PathBuf>,
    /// Says what each round finds.
    pub progress: bool,
}

/// True where all is there that a run needs; says what is missing.
pub fn is_able() -> bool {
    ["mkfs.xfs", "xfs_io", "xfs_repair", "losetup", "python3"]
        .iter()
        .all(|tool| need::tool(tool).is_some())
        && need::root().is_some()
        && need::loop_devices().is_some()
        && need::kernel_fs("xfs").is_some()
}

/// Judges an image that was kept.
pub fn judge_kept(image: &Path) -> Result<Seen> {
    let mut seen = Seen::default();
    let host = Host::new()?;
    let copy = host.path("kept");
    std::fs::copy(image, &copy)?;
    seen.images = 1;
    judge::judge(&host, &copy, &mut seen)?;
    Ok(seen)
}

/// Runs until so many images were judged. Errors: the first difference, with seed and round.
pub fn run(config: &Config) -> Result<Seen> {
    let mut seen = Seen::default();
    run_into(config, &mut seen)?;
    Ok(seen)
}

/// The same; what was seen before an error is in `seen`, too.
pub fn run_into(config: &Config, seen: &mut Seen) -> Result<()> {
    let host = Host::new()?;
    let able = Able::find()?;
    let keep = Keep::new(config.keep.clone());
    let mut round = 0;
    while seen.images < config.count {
        let seed = config.seed + round;
        let mut rng = Rng::new(seed.wrapping_mul(0x1_0001));
        let images =
            load::round(&host, &able, &mut rng, config.focus).with_context(|| format!("load of seed {seed}"))?;
        for (number, image) in images.iter().enumerate() {
            if seen.images >= config.count {
                break;
            }
            seen.images += 1;
            judge::judge(&host, image, seen)
                .map_err(|error| keep.files(&format!("xfslogs-{seed}-{number}"), &[image], error))
                .with_context(|| format!("--seed {seed}, image {number}"))?;
            let bytes = Arc::new(std::fs::read(image)?);
            flips::flips(&bytes, &mut rng, config.flips)
                .map_err(|error| keep.files(&format!("xfslogs-flips-{seed}-{number}"), &[image], error))?;
            seen.flips += config.flips;
        }
        if config.progress {
            println!("seed {seed}: {} images, unfinished {:?}", seen.images, seen.unfinished);
        }
        for image in images {
            std::fs::remove_file(image)?;
        }
        round += 1;
    }
    Ok(())
}
