//! `cargo xtask bench snapshots`: what is done with subvolumes, beside the kernel's btrfs, on
//! volumes of the same kind, by turns.
//!
//! - [`taken`]: how long a snapshot of a large tree takes, idle and while others write;
//! - [`many`]: a thousand subvolumes are made, listed, deleted and gone;
//! - [`dropped`]: a subvolume of very many files goes, and what an fsync waits meanwhile;
//! - [`find_new`]: the extents of very many files that were written since a transaction;
//! - [`transfer`]: a tree and its changes are sent, received, and compared.

mod dropped;
mod find_new;
mod many;
mod taken;
mod transfer;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;
use cowshed_harness::limit;

use super::loads;
use super::side::{self, Mounted, Setup, Side};
use super::table::{self, Panel, ratio, show_runs};
use crate::run;

const NAME: &str = "snapshots";

#[derive(ClapArgs)]
pub struct Args {
    /// Files in the tree that snapshots are taken of, and in the subvolume that is dropped
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Snapshots of that tree
    #[arg(long, default_value_t = 200)]
    snapshots: u64,
    /// Subvolumes that are made, listed and deleted
    #[arg(long, default_value_t = 1000)]
    subvolumes: u64,
    /// The tree that is sent
    #[arg(long, default_value = "/usr/share")]
    tree: PathBuf,
    /// MiB of a file that is sent beside it
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// Runs of each side; the table has the medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Where the images lie
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Only the parts whose name contains this: taken, many, dropped, find-new, streams
    #[arg(long, default_value = "")]
    only: String,
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
    /// Only our side
    #[arg(long, requires = "dry_run")]
    ours: bool,
}

struct Part {
    name: &'static str,
    run: fn(&Rig<'_>) -> Result<Lines>,
}

/// What was measured, by name, in milliseconds.
type Lines = Vec<(String, f64)>;

const PARTS: [Part; 5] = [
    Part {
        name: "taken",
        run: taken::run,
    },
    Part {
        name: "many",
        run: many::run,
    },
    Part {
        name: "dropped",
        run: dropped::run,
    },
    Part {
        name: "find-new",
        run: find_new::run,
    },
    Part {
        name: "streams",
        run: transfer::run,
    },
];

/// A fresh volume of a side, and what a part is to do on it.
struct Rig<'a> {
    args: &'a Args,
    side: Side,
    mounted: Mounted,
}

impl Rig<'_> {
    fn mnt(&self) -> PathBuf {
        self.mounted.mountpoint()
    }

    /// A command about subvolumes: the kernel's side has btrfs-progs, ours the same words.
    fn tool(&self, words: &[&str]) -> Command {
        let mut command = match self.side {
            Side::Ours => Command::new(run::released("cowshed")),
            _ => Command::new("btrfs"),
        };
        command.args(words);
        command
    }

    /// As [`Rig::tool`], by our program on both sides: for a command of a few calls, most of which
    /// is the start of the program.
    fn same_tool(&self, words: &[&str]) -> Command {
        let mut command = Command::new(run::released("cowshed"));
        command.arg("btrfs").args(words);
        command
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.mnt())?)?)
    }

    /// Waits until all that was deleted is gone. By our program on both sides: btrfs-progs looks
    /// once a second, and without a commit, which ours makes, the kernel's cleaner sleeps on.
    fn wait_for_drops(&self) -> Result<()> {
        quietly(self.same_tool(&["subvolume", "sync"]).arg(self.mnt()))
    }

    /// A subvolume with very many empty files in a thousand directories.
    fn many_files(&self, name: &str, count: u64) -> Result<PathBuf> {
        const DIRS: u64 = 10;
        cowshed_harness::create_subvolume(&File::open(self.mnt())?, name)?;
        let top = self.mnt().join(name);
        let each = (count / DIRS).to_string();
        for number in 0..DIRS {
            let dir = top.join(format!("part-{number}"));
            std::fs::create_dir(&dir)?;
            loads::generate(&dir, &["create", &each])?;
        }
        self.sync()?;
        Ok(top)
    }
}

/// Milliseconds that a step takes.
fn timed<T>(step: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let started = Instant::now();
    let value = step()?;
    Ok((started.elapsed().as_secs_f64() * 1e3, value))
}

/// Runs it; what it printed on its standard output is dropped.
fn quietly(command: &mut Command) -> Result<()> {
    command.stdout(std::process::Stdio::null());
    let status = limit::status_within(command, Duration::MAX)?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// The value below which so many of a hundred lie.
fn percentile(values: &mut [f64], percent: usize) -> Result<f64> {
    values.sort_by(f64::total_cmp);
    let at = (values.len() * percent / 100).min(values.len().saturating_sub(1));
    values.get(at).copied().context("nothing was measured")
}

pub fn main(args: &Args) -> Result<()> {
    super::build()?;
    ensure!(
        args.ours || side::kernel_can(),
        "needs root, mkfs.btrfs and btrfs in the kernel"
    );
    let mut results = BTreeMap::<(String, Side), Vec<f64>>::new();
    let mut order = Vec::new();
    for part in PARTS.iter().filter(|part| part.name.contains(&args.only)) {
        for round in 0..args.runs {
            for side in turns(round)
                .into_iter()
                .filter(|side| !args.ours || *side == Side::Ours)
            {
                let lines = on_a_volume(args, side, part)?;
                for (name, ms) in lines {
                    eprintln!("{:>8} {name:<60} {ms:>10.2} ms", side.name());
                    if !order.contains(&name) {
                        order.push(name.clone());
                    }
                    results.entry((name, side)).or_default().push(ms);
                }
            }
        }
    }
    let (text, picture) = render(args, &order, &results);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    std::fs::write(run::root().join("docs/snapshots.svg"), picture)?;
    table::store_named(NAME, &text)
}

/// The first side may find colder caches.
fn turns(round: usize) -> [Side; 2] {
    let mut order = [Side::Kernel, Side::Ours];
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

fn on_a_volume(args: &Args, side: Side, part: &Part) -> Result<Lines> {
    let setup = Setup {
        mkfs: &["-K"],
        touched_bytes: 4 << 30,
        ..Setup::default()
    };
    let mounted = Mounted::with(side, &args.dir, &setup)?;
    let rig = Rig { args, side, mounted };
    let lines = (part.run)(&rig).with_context(|| format!("{}, {}", part.name, side.name()))?;
    rig.mounted.finish()?;
    Ok(lines)
}

fn render(args: &Args, order: &[String], results: &BTreeMap<(String, Side), Vec<f64>>) -> (String, String) {
    let mut text = format!(
        "{} files in the tree of the snapshots and of the drop; {} and {} MiB are sent. Medians of {} runs (lowest to \
         highest), milliseconds. Ratio: how many times as fast as the kernel's btrfs.\n\n\
         | Step | kernel | Cowshed | ratio |\n|---|---:|---:|---:|\n",
        args.files,
        args.tree.display(),
        args.mib,
        args.runs
    );
    let mut panels = Vec::new();
    for name in order {
        let of = |side| results.get(&(name.clone(), side)).map_or(&[][..], |values| values);
        let (kernel, ours) = (of(Side::Kernel), of(Side::Ours));
        let medians = [table::median(kernel), table::median(ours)];
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} |",
            show_runs(kernel, 2),
            show_runs(ours, 2),
            ratio(medians[0], medians[1]),
        );
        let bars = [Side::Kernel, Side::Ours].into_iter().zip(medians);
        let bars = bars.filter_map(|(side, value)| Some((side.name().to_owned(), value?)));
        panels.push(Panel {
            title: name,
            bars: bars.collect(),
        });
    }
    let picture = table::panels("Subvolumes, snapshots and streams, ms", &panels);
    (text, picture)
}

/// Where a part's own files are.
fn open_dir(path: &Path) -> Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}
