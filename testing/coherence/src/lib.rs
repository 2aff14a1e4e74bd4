//! Coherence under concurrency: what Linux' caches hold after many processes have worked on one
//! mount at once.
//!
//! A *round* has several processes, with several threads each, do random operations on the few
//! names of a pool ([`ops`]), while another one walks over it and caches are dropped. Replies,
//! listings and invalidations of the same name cross each other. Then all stop, and the judge looks
//!
//! * through the caches: names, absent ones too, each attribute by itself, links, extended
//!   attributes, contents by read() and by mapping, and what is held open since earlier;
//! * as the file system answers: attributes that are asked for anew, direct reads;
//! * again, when Linux has dropped its caches;
//! * in the end at what the kernel's btrfs shows of the volume, which both checkers find sound.
//!
//! All of these are equal, and each is consistent in itself ([`judge`]). Which operations cross
//! follows from timing: a seed gives the same operations, not the same round. So the last
//! operations on a name that differs are part of the message, and the image is kept.

mod held;
mod judge;
mod map;
mod mounts;
mod names;
mod ops;
mod options;
mod report;
mod rounds;
mod team;
pub mod variant;
mod view;
pub mod worker;

use anyhow::Result;
use cowshed_harness::{UringOn, need};

pub use options::{Options, Report};

/// What it needs: root, FUSE, the kernel's btrfs.
pub fn can_run() -> Option<()> {
    need::kernel_btrfs()?;
    need::fuse()
}

/// Plays all rounds, the variants in turn, each on a fresh volume. Stops at the first failure.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let mut seed = options.seed;
    while report.rounds < options.rounds {
        let variant = options.variants[(seed - options.seed) as usize % options.variants.len()];
        let rounds = options.rounds_per_volume.min(options.rounds - report.rounds);
        seed += 1;
        let _switch = match variant.is_uring {
            false => None,
            true => match UringOn::new()? {
                None => continue,
                on => on,
            },
        };
        if options.is_verbose {
            println!("  {}, seed {}", variant.name, seed - 1);
        }
        rounds::play(options, variant, seed - 1, rounds, &mut report)?;
        report.volumes += 1;
    }
    Ok(report)
}
