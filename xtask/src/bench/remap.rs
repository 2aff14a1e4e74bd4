//! `cargo xtask bench remap`: random 4k overwrites of a file that was cloned, and of the same file once more.
//!
//! The first pass unshares each block that it hits, the second finds it alone: what a reflink file system pays for
//! remapping, and for copy on write as such. fio, psync, O_DIRECT, one writer, an fsync at the end. The sides take turns.
//!
//! The same once more on our side, with and without the range-replace ([`effects`]): counted in trees, and timed.

mod effects;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;

use super::side::{self, Mounted, Side};
use super::table;
use crate::run;

const NAME: &str = "remap";
const PASSES: [&str; 2] = ["shared with a clone", "alone"];

#[derive(ClapArgs)]
pub struct Args {
    /// MiB of the file
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Runs of each side; the table has the medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Where the images lie
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Only what the range-replace is worth
    #[arg(long)]
    effects: bool,
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
    /// Only our side
    #[arg(long)]
    ours: bool,
}

type Results = BTreeMap<(usize, Side), Vec<f64>>;

pub fn main(args: &Args) -> Result<()> {
    if !args.effects {
        beside_the_kernel(args)?;
    }
    effects::run(args)
}

fn beside_the_kernel(args: &Args) -> Result<()> {
    super::build()?;
    let sides: &[Side] = if args.ours || !side::kernel_can() {
        &[Side::Ours]
    } else {
        &[Side::Kernel, Side::Xfs, Side::Ours]
    };
    let mut results = Results::new();
    for round in 0..args.runs {
        for turn in 0..sides.len() {
            let side = sides[(turn + round) % sides.len()];
            for (pass, iops) in one_run(args, side)?.into_iter().enumerate() {
                eprintln!("{:>12} {:<22} {iops:>9.0}/s", side.name(), PASSES[pass]);
                results.entry((pass, side)).or_default().push(iops);
            }
        }
    }
    let text = render(&results, args);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    let bars: Vec<_> = results
        .iter()
        .filter_map(|((pass, side), iops)| {
            let label = format!("{}, {}", PASSES[*pass], side.name());
            Some((label, table::median(iops)?))
        })
        .collect();
    let title = "Random 4k overwrites per second";
    std::fs::write(run::root().join("docs/remap.svg"), table::bars(title, &bars))?;
    table::store_named(NAME, &text)
}

/// Both passes on a fresh volume; writes per second.
fn one_run(args: &Args, side: Side) -> Result<[f64; 2]> {
    let mounted = Mounted::new(side, &args.dir, "")?;
    prepare(&mounted, args)?;
    let passes = [pass(&mounted, args)?, pass(&mounted, args)?];
    mounted.finish()?;
    Ok(passes)
}

/// A file, and a clone that has all of its extents.
fn prepare(mounted: &Mounted, args: &Args) -> Result<()> {
    let dir = mounted.mountpoint();
    let mut file = std::fs::File::create(dir.join("file"))?;
    let piece: Vec<u8> = (0..1 << 20_u32).map(|i| (i % 251) as u8).collect();
    for _ in 0..args.mib {
        std::io::Write::write_all(&mut file, &piece)?;
    }
    file.sync_all()?;
    drop(file);
    // copy_file_range, which shares extents on all sides.
    let before = free_bytes(&dir)?;
    std::fs::copy(dir.join("file"), dir.join("clone")).context("cloning")?;
    std::fs::File::open(dir.join("clone"))?.sync_all()?;
    let taken = before.saturating_sub(free_bytes(&dir)?);
    ensure!(taken < args.mib << 19, "the copy took {taken} bytes: it is no clone");
    Ok(())
}

fn free_bytes(dir: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bfree * stat.f_frsize)
}

fn pass(mounted: &Mounted, args: &Args) -> Result<f64> {
    let dir = mounted.mountpoint();
    let mut command = Command::new("fio");
    command.args([
        "--name=remap",
        "--ioengine=psync",
        "--rw=randwrite",
        "--bs=4k",
        "--direct=1",
    ]);
    command.args([
        "--overwrite=1",
        "--end_fsync=1",
        "--output-format=json",
        "--randrepeat=1",
    ]);
    command.arg(format!("--filename={}", dir.join("file").display()));
    command.arg(format!("--size={}m", args.mib));
    let report: serde_json::Value = serde_json::from_str(&run::output(&mut command)?)?;
    report["jobs"][0]["write"]["iops"]
        .as_f64()
        .context("fio tells its rate")
}

fn render(results: &Results, args: &Args) -> String {
    let mut text = format!(
        "File of {} MiB, medians of {} runs, writes per second.\n\n\
         | Random 4k overwrites | kernel btrfs | kernel XFS | Cowshed | to btrfs | to XFS |\n|---|---:|---:|---:|---:|---:|\n",
        args.mib, args.runs
    );
    for (number, name) in PASSES.into_iter().enumerate() {
        let of = |side| results.get(&(number, side)).and_then(|iops| table::median(iops));
        let (btrfs, xfs, ours) = (of(Side::Kernel), of(Side::Xfs), of(Side::Ours));
        let show = |rate: Option<f64>| rate.map_or("-".into(), |r| format!("{r:.0}"));
        let ratio = |theirs: Option<f64>| match (ours, theirs) {
            (Some(ours), Some(theirs)) => format!("{:.2}", ours / theirs),
            _ => "-".into(),
        };
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} |",
            show(btrfs),
            show(xfs),
            show(ours),
            ratio(btrfs),
            ratio(xfs)
        );
    }
    text
}
