//! `cargo xtask bench remap`: random 4k overwrites of a file that was cloned, and of the same file
//! once more.
//!
//! The first pass unshares each block that it hits, the second finds it alone: what a reflink file
//! system pays for remapping, and for copy on write as such. fio, psync, O_DIRECT, one writer, an
//! fsync at the end. The sides take turns.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;

use super::side::{self, Mounted, Setup, Side};
use super::table::{self, show_runs};
use crate::run;

const NAME: &str = "remap";
const PASSES: [&str; 2] = ["shared with a clone", "alone"];
/// What both passes write, and the file: memory that is touched for the first time takes now
/// longer, now shorter.
const TOUCHED_BYTES: u64 = 4 << 30;

/// The writer and its medium: the kernel needs a loop device for an image, and ours can do without
/// one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Column {
    side: Side,
    is_on_device: bool,
}

impl Column {
    const ALL: [Self; 4] = [
        Self::new(Side::Kernel, true),
        Self::new(Side::Xfs, true),
        Self::new(Side::Ours, false),
        Self::new(Side::Ours, true),
    ];

    const fn new(side: Side, is_on_device: bool) -> Self {
        Self { side, is_on_device }
    }

    fn name(self) -> String {
        match self.side {
            Side::Ours if self.is_on_device => format!("{} on a loop device", self.side.name()),
            side => side.name().into(),
        }
    }
}

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
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
    /// Only our side
    #[arg(long)]
    ours: bool,
}

type Results = BTreeMap<(usize, Column), Vec<f64>>;

pub fn main(args: &Args) -> Result<()> {
    beside_the_kernel(args)
}

fn beside_the_kernel(args: &Args) -> Result<()> {
    super::build()?;
    let columns: Vec<_> = Column::ALL
        .into_iter()
        .filter(|column| match column.side {
            Side::Ours => !column.is_on_device || side::kernel_can(),
            _ => !args.ours && side::kernel_can(),
        })
        .collect();
    let mut results = Results::new();
    for round in 0..args.runs {
        for turn in 0..columns.len() {
            let column = columns[(turn + round) % columns.len()];
            for (pass, iops) in one_run(args, column)?.into_iter().enumerate() {
                eprintln!("{:>24} {:<22} {iops:>9.0}/s", column.name(), PASSES[pass]);
                results.entry((pass, column)).or_default().push(iops);
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
        .filter_map(|((pass, column), iops)| {
            let label = format!("{}, {}", PASSES[*pass], column.name());
            Some((label, table::median(iops)?))
        })
        .collect();
    let title = "Random 4k overwrites per second";
    std::fs::write(run::root().join("docs/remap.svg"), table::bars(title, &bars))?;
    table::store_named(NAME, &text)
}

/// Both passes on a fresh volume; writes per second.
fn one_run(args: &Args, column: Column) -> Result<[f64; 2]> {
    let setup = Setup {
        is_on_device: column.is_on_device,
        touched_bytes: TOUCHED_BYTES,
        ..Setup::default()
    };
    let mounted = Mounted::with(column.side, &args.dir, &setup)?;
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
        "File of {} MiB, medians of {} runs (lowest to highest), writes per second. Ratios: Cowshed, which opens the image itself, and in brackets on a loop \
         device as the kernel's.\n\n\
         | Random 4k overwrites | kernel btrfs | kernel XFS | Cowshed | Cowshed on a loop device | to btrfs | to XFS |\n\
         |---|---:|---:|---:|---:|---:|---:|\n",
        args.mib, args.runs
    );
    for (number, name) in PASSES.into_iter().enumerate() {
        let [btrfs, xfs, ours, on_device] =
            Column::ALL.map(|column| results.get(&(number, column)).map_or(&[][..], |iops| iops));
        let ratio = |theirs| {
            let [image, device] = [ours, on_device].map(|ours| match (table::median(ours), table::median(theirs)) {
                (Some(ours), Some(theirs)) => format!("{:.2}", ours / theirs),
                _ => "-".into(),
            });
            format!("{image} ({device})")
        };
        let [btrfs_shown, xfs_shown, ours_shown, device_shown] =
            [btrfs, xfs, ours, on_device].map(|iops| show_runs(iops, 0));
        let (to_btrfs, to_xfs) = (ratio(btrfs), ratio(xfs));
        let _ = writeln!(
            text,
            "| {name} | {btrfs_shown} | {xfs_shown} | {ours_shown} | {device_shown} | {to_btrfs} | {to_xfs} |"
        );
    }
    text
}
