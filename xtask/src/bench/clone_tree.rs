//! `cargo xtask bench clone-tree`: a whole tree cloned on the volume that it is on: `cp -a
//! --reflink=auto` on the kernel's btrfs on a loop device, `cowshed clone -r` on a mount of ours.
//!
//! The sides take turns. Each clone begins with everything synced. Two times are taken: until the
//! command returns, and until a sync after it does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args as ClapArgs;

use super::side::{self, Mounted, Setup, Side};
use super::table::{self, ratio, show_runs};
use crate::run;

const NAME: &str = "clone-tree";
const STEPS: [&str; 2] = ["clone of the tree", "clone of the tree, and a sync"];
/// Files in each directory of the tree.
const FILES_PER_DIR: u64 = 30;
/// Sizes by turns: inline, one extent, several blocks.
const SIZES_BYTES: [usize; 3] = [500, 6_000, 40_000];

#[derive(ClapArgs)]
pub struct Args {
    /// Entries of the tree
    #[arg(long, default_value_t = 75_000)]
    entries: u64,
    /// Runs of each side; the table has the medians
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Where the images lie
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
}

type Results = BTreeMap<(usize, Side), Vec<f64>>;

pub fn main(args: &Args) -> Result<()> {
    super::build()?;
    ensure!(side::kernel_can(), "needs root, mkfs.btrfs and btrfs in the kernel");
    let setup = Setup {
        touched_bytes: 4 << 30,
        is_on_device: true,
        ..Setup::default()
    };
    let mounts = [
        (Side::Kernel, Mounted::with(Side::Kernel, &args.dir, &setup)?),
        (
            Side::Ours,
            Mounted::with(
                Side::Ours,
                &args.dir,
                &Setup {
                    is_on_device: false,
                    ..setup
                },
            )?,
        ),
    ];
    for (_, mounted) in &mounts {
        fill(&mounted.mountpoint().join("tree"), args.entries)?;
        sync(mounted)?;
    }
    let mut results = Results::new();
    for round in 0..args.runs {
        let [kernel, ours] = &mounts;
        // The first side may find colder caches.
        let order = if round % 2 == 0 { [kernel, ours] } else { [ours, kernel] };
        for (side, mounted) in order {
            for (step, ms) in one_run(*side, mounted, round)?.into_iter().enumerate() {
                eprintln!("{:>8} {:<32} {ms:>9.1} ms", side.name(), STEPS[step]);
                results.entry((step, *side)).or_default().push(ms);
            }
        }
    }
    for (_, mounted) in mounts {
        mounted.finish()?;
    }
    let text = render(args, &results);
    println!("{text}");
    match args.dry_run {
        true => Ok(()),
        false => table::store_named(NAME, &text),
    }
}

/// Directories of files, in fifty directories.
fn fill(top: &Path, entries: u64) -> Result<()> {
    std::fs::create_dir(top)?;
    let content: Vec<u8> = (0..*SIZES_BYTES.iter().max().unwrap_or(&0))
        .map(|n| (n * n / 7) as u8)
        .collect();
    for dir in 0..entries / (FILES_PER_DIR + 1) {
        let above = top.join(format!("part-{}", dir % 50));
        let dir = above.join(format!("dir-{dir}"));
        std::fs::create_dir_all(&dir)?;
        for n in 0..FILES_PER_DIR {
            let size = SIZES_BYTES[n as usize % SIZES_BYTES.len()];
            std::fs::write(dir.join(format!("file-{n}")), &content[..size])?;
        }
    }
    Ok(())
}

fn sync(mounted: &Mounted) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(mounted.mountpoint())?)?)
}

/// Milliseconds until the command has returned, and until a sync has.
fn one_run(side: Side, mounted: &Mounted, round: usize) -> Result<[f64; 2]> {
    let top = mounted.mountpoint();
    sync(mounted)?;
    let mut command = match side {
        Side::Ours => {
            let mut command = Command::new(run::released("cowshed"));
            command.args(["clone", "-r"]);
            command
        }
        _ => {
            let mut command = Command::new("cp");
            command.args(["-a", "--reflink=auto"]);
            command
        }
    };
    command.arg(top.join("tree")).arg(top.join(format!("clone-{round}")));
    let started = Instant::now();
    run::output(&mut command)?;
    let done = started.elapsed();
    sync(mounted)?;
    Ok([done, started.elapsed()].map(|time| time.as_secs_f64() * 1e3))
}

fn render(args: &Args, results: &Results) -> String {
    let mut text = format!(
        "A tree of {} entries, cloned on its own volume. Medians of {} runs (lowest to highest), milliseconds. Ratio: \
         how many times as fast as `cp -a --reflink=auto` on the kernel's btrfs.\n\n\
         | Step | kernel | Cowshed | ratio |\n|---|---:|---:|---:|\n",
        args.entries, args.runs
    );
    for (step, name) in STEPS.iter().enumerate() {
        let of = |side| results.get(&(step, side)).map_or(&[][..], |values| values);
        let (kernel, ours) = (of(Side::Kernel), of(Side::Ours));
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} |",
            show_runs(kernel, 0),
            show_runs(ours, 0),
            ratio(table::median(kernel), table::median(ours)),
        );
    }
    text
}
