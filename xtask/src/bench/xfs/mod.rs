//! `cargo xtask bench xfs`: volumes of XFS mounted read-only by the kernel and by us, `cowshed
//! check` beside `xfs_repair -n`, and a sparse volume of 100 TiB opened.
//!
//! The kernel fills one volume of XFS, and one of btrfs with the same contents, on which the same
//! lines show what our other engine does on the same transport. Each group of lines begins with a
//! new mount; the sides take turns.

mod judges;
mod lines;
mod render;
mod view;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args as ClapArgs;

use super::side::Removed;
use super::table;
use lines::{GROUPS, Line};
use view::{By, Format, Image, View};

const NAME: &str = "xfs";

#[derive(ClapArgs)]
pub struct Args {
    /// How much of the full load: 1 is 200,000 files, 1 GiB and a million extents
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Runs of each side; the table has the medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only groups of lines whose names contain this; `judges` for check and opening
    #[arg(long, default_value = "")]
    only: String,
    /// Where the images lie
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// The tree that `ls -lR`, `find` and `grep -r` walk
    #[arg(long, default_value = "/usr/share/doc")]
    tree: PathBuf,
    /// Without the lines on btrfs
    #[arg(long)]
    no_btrfs: bool,
    /// Without the kernel's sides
    #[arg(long)]
    ours: bool,
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
}

impl Args {
    fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.scale) as u64).max(64)
    }
    fn files(&self) -> u64 {
        self.count(200_000)
    }
    fn stream_mib(&self) -> u64 {
        self.count(1024)
    }
    /// A power of two: the file is made by doubling.
    fn extents(&self) -> u64 {
        self.count(1 << 20).next_power_of_two()
    }
    fn random_reads(&self) -> u64 {
        self.count(200_000)
    }
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }
}

/// Seconds of each run.
type Results = BTreeMap<(&'static str, Format, By), Vec<f64>>;

pub fn main(args: &Args) -> Result<()> {
    super::build()?;
    ensure!(
        view::kernel_can(),
        "needs root, mkfs.xfs and XFS in the kernel, which fills the volume"
    );
    let top = args.dir.join(format!("cowshed-bench-xfs-{}", std::process::id()));
    std::fs::create_dir(&top)?;
    let _removed = Removed(top.clone());
    let mut formats = vec![Format::Xfs];
    if !args.no_btrfs && super::side::kernel_can() {
        formats.push(Format::Btrfs);
    }
    let mut results = Results::new();
    for format in formats {
        let image = Image::fill(&top, format, args)?;
        for round in 0..args.runs {
            for group in GROUPS
                .iter()
                .filter(|group| group.iter().any(|line| args.wants(line.name)))
            {
                for by in turns(args, round) {
                    run_group(group, &image, by, args, &mut results)?;
                }
            }
        }
        if format == Format::Xfs && args.wants("judges") {
            judges::check(&image, args, &mut results)?;
        }
    }
    if args.wants("judges") {
        judges::open_large(&top, args, &mut results)?;
        judges::replay(&top, args, &mut results)?;
    }
    let text = render::table(args, &results);
    println!("{text}");
    match args.dry_run {
        true => Ok(()),
        false => table::store_named(NAME, &text),
    }
}

/// The first side may find colder caches.
fn turns(args: &Args, round: usize) -> Vec<By> {
    let mut sides = By::possible(!args.ours);
    if round % 2 == 1 {
        sides.reverse();
    }
    sides
}

fn run_group(group: &[Line], image: &Image, by: By, args: &Args, results: &mut Results) -> Result<()> {
    let view = View::mount(image, by)?;
    for line in group {
        let seconds = line.run(view.mountpoint(), args)?;
        say(line.name, image.format(), by, seconds);
        results
            .entry((line.name, image.format(), by))
            .or_default()
            .push(seconds);
    }
    view.unmount()
}

fn say(name: &str, format: Format, by: By, seconds: f64) {
    eprintln!(
        "{:>5} {:>9} {name:<32} {:>10.2} ms",
        format.name(),
        by.name(),
        seconds * 1e3
    );
}
