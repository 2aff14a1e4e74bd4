//! `cargo xtask bench`: a mount of ours against the kernel's btrfs, in one run, and the table that
//! says how they compare.
//!
//! Both sides get a volume of the same size in a file on the same tmpfs, made anew for each group
//! of loads, and take turns. What is compared is the median of the runs. Needs root (to mount the
//! kernel's side), mkfs.btrfs and btrfs in the kernel; without them only our side is measured.

mod build;
mod clone_tree;
mod codecs;
mod fsync;
mod loads;
mod metadata;
mod plot;
mod remap;
mod reserved;
mod seek;
mod side;
mod snapshots;
mod sqlite;
mod stream;
mod switch;
mod table;
mod xfs;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args as ClapArgs, Subcommand};

use crate::run;
use loads::{GROUPS, Group, Scale, Step};
use side::{Mounted, Side};

#[derive(Subcommand)]
enum Special {
    /// A tree that becomes an image: cowshed build beside mkfs.btrfs --rootdir, the kernel and
    /// other tools
    Build(build::Args),
    /// A whole tree, cloned: cowshed clone -r beside cp -a --reflink=auto on the kernel's btrfs
    CloneTree(clone_tree::Args),
    /// fsync beside the kernel's: of a directory of a million names, under dbench, of small files
    /// and of a database
    Fsync(fsync::Args),
    /// Names through a mount: the kernel's btrfs, ours over io_uring and over /dev/fuse, and an
    /// empty server
    Metadata(Box<metadata::Args>),
    /// Random overwrites of cloned and of unshared files, beside the kernel's btrfs and XFS
    Remap(remap::Args),
    /// Metadata held for pending items while files are made, beside a leaf for each item
    Reserved(reserved::Args),
    /// Looking for a hole in files of very many extents, on images that both sides wrote, beside
    /// the kernel's btrfs
    Seek(seek::Args),
    /// Subvolumes and snapshots, send, receive and diff, beside the kernel's btrfs
    Snapshots(snapshots::Args),
    /// SQLite's transactions: atomic groups, rollback journal, write-ahead log
    Sqlite(sqlite::Args),
    /// Streams of text, half and noise under each compression
    Stream(stream::Args),
    /// Volumes of XFS mounted read-only beside the kernel's XFS, and checked beside xfs_repair -n
    Xfs(xfs::Args),
}

#[derive(ClapArgs)]
pub struct Args {
    /// A comparison of its own, instead of the loads
    #[command(subcommand)]
    special: Option<Special>,
    /// How much of the full load: 1 is a million files and 2 GiB
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Runs of each side; the table has the medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only the groups or loads whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Where the images lie: memory, so that no disk is measured
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// The tree that `cp -a` copies
    #[arg(long, default_value = "/usr/share/doc")]
    tree: PathBuf,
    /// Mount options of our side
    #[arg(long, default_value = "")]
    options: String,
    /// Only our side
    #[arg(long)]
    ours: bool,
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
    /// Also run the in-process benchmarks
    #[arg(long)]
    in_process: bool,
}

/// Seconds of each run, by load and side.
pub type Results = BTreeMap<(&'static str, Side), Vec<f64>>;

/// The programs that are measured.
fn build() -> Result<()> {
    let packages = [
        "build",
        "--release",
        "--quiet",
        "-p",
        "cowshed",
        "-p",
        "cowshed-benches",
    ];
    run::run("release build", &mut run::cargo(&packages))
}

pub fn main(args: &Args) -> Result<()> {
    match &args.special {
        Some(Special::Build(args)) => return build::main(args),
        Some(Special::CloneTree(args)) => return clone_tree::main(args),
        Some(Special::Fsync(args)) => return fsync::main(args),
        Some(Special::Metadata(args)) => return metadata::main(args),
        Some(Special::Remap(args)) => return remap::main(args),
        Some(Special::Reserved(args)) => return reserved::main(args),
        Some(Special::Seek(args)) => return seek::main(args),
        Some(Special::Snapshots(args)) => return snapshots::main(args),
        Some(Special::Sqlite(args)) => return sqlite::main(args),
        Some(Special::Stream(args)) => return stream::main(args),
        Some(Special::Xfs(args)) => return xfs::main(args),
        None => {}
    }
    build()?;
    if args.in_process {
        let count = ((1e6 * args.scale) as u64).to_string();
        let mut command = run::command("target/release/cowshed-bench-inprocess", &["--count", &count]);
        run::run("in one process", &mut command)?;
    }
    let scale = Scale {
        factor: args.scale,
        tree: args.tree.clone(),
    };
    let mut sides = vec![Side::Ours];
    if !args.ours && side::kernel_can() {
        sides.insert(0, Side::Kernel);
    }
    let mut results = Results::new();
    for group in GROUPS.iter().filter(|g| g.is_wanted(&args.only)) {
        for round in 0..args.runs {
            // The first side may find colder caches: take turns.
            let mut order = sides.clone();
            if round % 2 == 1 {
                order.reverse();
            }
            for side in order {
                run_group(group, side, args, &scale, &mut results)?;
            }
        }
    }
    let text = table::render(&results, &scale, args.runs);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    table::store(&text)
}

fn run_group(group: &Group, side: Side, args: &Args, scale: &Scale, results: &mut Results) -> Result<()> {
    // The options are those of our side.
    let options = if side == Side::Ours { &args.options[..] } else { "" };
    let mut mounted = Mounted::new(side, &args.dir, options)?;
    for step in group.steps {
        match step {
            Step::Remount => mounted.remount()?,
            Step::Load(load) => {
                let seconds = load.run(mounted.mountpoint(), scale)?;
                eprintln!("{:>8} {:<28} {seconds:>9.3} s", side.name(), load.name);
                results.entry((load.name, side)).or_default().push(seconds);
            }
        }
    }
    mounted.finish()
}
