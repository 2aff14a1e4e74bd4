//! The command behind `cargo xtask crash`.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use cowshed_crash::power::{self, Run, Threads};
use cowshed_crash::rig::Layout;
use cowshed_crash::{faults, kernel};
use cowshed_device_sim::Rng;

#[derive(Parser)]
#[command(about = "Judges crash images of recorded runs, and runs whose n-th I/O fails")]
struct Args {
    /// How many crash images to judge
    #[arg(long, default_value_t = 1000)]
    images: u64,
    /// Everything follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many of the images the kernel judges too (root)
    #[arg(long, default_value_t = 0)]
    kernel: u64,
    /// How many runs have each of their I/Os fail in turn
    #[arg(long, default_value_t = 0)]
    faults: u64,
    /// Operations of each run
    #[arg(long, default_value_t = 60)]
    ops: usize,
    /// Images judged of one run, evenly chosen
    #[arg(long, default_value_t = 200)]
    per_run: u64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.per_run > 0, "--per-run is at least 1");
    let started = Instant::now();
    let mut rng = Rng::new(args.seed);
    let (mut images, mut runs, mut by_kernel) = (0, 0, 0);
    while images < args.images {
        let run = Run {
            seed: rng.next_u64(),
            layout: if runs % 4 == 3 { Layout::Raid1 } else { Layout::Dup },
            nodesize_bytes: if rng.one_in(2) { 4096 } else { 16384 },
            threads: [Threads::One, Threads::Committer, Threads::Syncer][runs % 3],
            ops: args.ops,
            tear_bytes: if runs % 2 == 0 { 4096 } else { 512 },
        };
        runs += 1;
        let mut recording = power::record(run)?;
        let total = recording.images().count() as u64;
        let stride = total.div_ceil(args.per_run).max(1);
        let chosen: Vec<_> = recording
            .images()
            .enumerate()
            .filter(|(n, _)| *n as u64 % stride == run.seed % stride)
            .map(|(_, image)| image)
            .collect();
        for image in chosen {
            let judged = recording.judge(image)?;
            images += 1;
            if images % 16 == 0 {
                recording.go_on(&judged)?;
            }
            // Evenly over the images, as far as they may go to the kernel.
            let kernel_can = run.layout == Layout::Dup && run.tear_bytes == 4096;
            if kernel_can && by_kernel * args.images < args.kernel * images {
                kernel::judge(&judged)?;
                by_kernel += 1;
            }
            if images == args.images {
                break;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("{images} images of {runs} runs, {by_kernel} by the kernel too, {seconds:.0} s");
    }
    for n in 0..args.faults {
        let layout = if n % 2 == 0 { Layout::Dup } else { Layout::Raid1 };
        let report = faults::every_io_fails(rng.next_u64(), layout, args.ops)?;
        eprintln!("{report}");
    }
    println!("{images} crash images: all as they must be");
    Ok(())
}
