//! `cargo xtask bench seek`: looking for a hole in files of very many extents.
//!
//! The kernel writes one image (zeros in 1 MiB writes with compress=lzo: an extent for each 128 KiB; larger files share
//! their extents with the first), and both sides look at it by turns, mounted read-only. The first `lseek` after mounting
//! is the uncached one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;

use super::plot::{self, Series};
use super::side::{self, Removed, Side};
use super::table;
use crate::run;

const NAME: &str = "seek";
const EXTENT_BYTES: u64 = 128 << 10;
/// Cached seeks in a run; the best counts.
const SEEKS: usize = 5;
/// Of a leaf, for each extent: a little more than the item and its header.
const LEAF_BYTES_EACH: u64 = 100;
/// Bound of our side's memory where its peak is looked at: what a seek kept for each extent would stand out.
const MEMORY_OPTION: &str = "max_memory=64m";

#[derive(ClapArgs)]
pub struct Args {
    /// GiB that the kernel writes
    #[arg(long, default_value_t = 16)]
    gib: u64,
    /// Files of up to so many extents are looked at; those larger than what is written are made of clones
    #[arg(long, default_value_t = 10_000_000)]
    extents_max: u64,
    /// Runs of each side; the table has the medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Where the image lies
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
}

/// Seconds, by extents, side and whether it was cached.
type Results = BTreeMap<(u64, Side, bool), Vec<f64>>;

pub fn main(args: &Args) -> Result<()> {
    super::build()?;
    ensure!(
        side::kernel_can(),
        "the image is written by the kernel's btrfs, as root"
    );
    let bench = Bench::new(&args.dir)?;
    let counts = bench.fill(args)?;
    let mut results = Results::new();
    for round in 0..args.runs {
        let mut order = [Side::Kernel, Side::Ours];
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            bench.mount(side, "ro")?;
            for count in &counts {
                bench.seek(side, *count, &mut results)?;
            }
            bench.unmount(side)?;
        }
    }
    let text = render(&results, &bench.peaks(&counts)?, args);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    std::fs::write(run::root().join("docs/seek.svg"), picture(&results))?;
    table::store_named(NAME, &text)
}

/// The image and where it is mounted. Goes away with the value.
struct Bench {
    top: PathBuf,
}

impl Drop for Bench {
    fn drop(&mut self) {
        drop(Removed(self.top.clone()));
    }
}

impl Bench {
    fn new(dir: &Path) -> Result<Self> {
        let top = dir.join(format!("cowshed-bench-seek-{}", std::process::id()));
        let bench = Self { top };
        std::fs::create_dir_all(bench.mountpoint())?;
        File::create(bench.image())?.set_len(64 << 30)?;
        run::output(Command::new("mkfs.btrfs").arg("-q").arg(bench.image()))?;
        Ok(bench)
    }

    fn image(&self) -> PathBuf {
        self.top.join("image")
    }
    fn mountpoint(&self) -> PathBuf {
        self.top.join("mnt")
    }

    fn mount(&self, side: Side, options: &str) -> Result<()> {
        let mut command = match side {
            Side::Ours => {
                let mut command = Command::new(run::root().join("target/release/cowshed"));
                command.args(["mount", "-o", options]);
                command
            }
            Side::Kernel | Side::Xfs => {
                let mut command = Command::new("mount");
                command.args(["-o", &format!("loop,compress=lzo,{options}")]);
                command
            }
        };
        run::output(command.arg(self.image()).arg(self.mountpoint())).map(drop)
    }

    fn unmount(&self, side: Side) -> Result<()> {
        let mut command = match side {
            Side::Ours => {
                let mut command = Command::new(run::root().join("target/release/cowshed"));
                command.arg("umount");
                command
            }
            Side::Kernel | Side::Xfs => Command::new("umount"),
        };
        run::output(command.arg(self.mountpoint())).map(drop)
    }

    fn file(&self, extents: u64) -> PathBuf {
        self.mountpoint().join(extents.to_string())
    }

    /// Files by their number of extents; the numbers. Each has a hole near its end: of a file without any the kernel knows
    /// by its counters that there is nothing to look for.
    fn fill(&self, args: &Args) -> Result<Vec<u64>> {
        self.mount(Side::Kernel, "rw")?;
        let written = (args.gib << 30) / EXTENT_BYTES;
        let first = self.file(written);
        {
            let mut file = File::create(&first)?;
            let zeros = vec![0; 1 << 20];
            for _ in 0..args.gib << 10 {
                file.write_all(&zeros)?;
            }
            file.sync_all()?;
        }
        let mut counts = vec![written];
        for count in [1_000, 10_000, 1_000_000, 10_000_000] {
            if count <= args.extents_max {
                self.clone_to(&first, written, count)?;
                counts.push(count);
            }
        }
        for count in &counts {
            let hole = if *count == written { count / 16 * 15 } else { count - 1 };
            self.punch(&self.file(*count), hole * EXTENT_BYTES)?;
        }
        self.unmount(Side::Kernel)?;
        counts.sort_unstable();
        Ok(counts)
    }

    fn punch(&self, file: &Path, offset_bytes: u64) -> Result<()> {
        let offset = offset_bytes.to_string();
        let mut command = Command::new("fallocate");
        command.args(["--punch-hole", "--length", "1048576", "--offset", &offset]);
        run::output(command.arg(file)).map(drop)
    }

    /// A file of `count` extents, all of them shared with the first.
    fn clone_to(&self, first: &Path, written: u64, count: u64) -> Result<()> {
        let target = self.file(count);
        File::create(&target)?;
        let mut done = 0;
        while done < count {
            let now = written.min(count - done);
            let range = format!("0:{}:{}", now * EXTENT_BYTES, done * EXTENT_BYTES);
            let mut command = Command::new(run::root().join("target/release/cowshed"));
            run::output(command.args(["clone", "--range", &range]).arg(first).arg(&target))?;
            done += now;
        }
        run::output(Command::new("sync").arg("-f").arg(&target)).map(drop)
    }

    /// The most memory that our side had after looking through each file twice, mounted anew for each, with a bound far
    /// below what the larger files' leaves take: numbers of extents and bytes.
    fn peaks(&self, counts: &[u64]) -> Result<Vec<(u64, u64)>> {
        let mut peaks = Vec::new();
        for count in counts {
            self.mount(Side::Ours, &format!("ro,{MEMORY_OPTION}"))?;
            self.seek(Side::Ours, *count, &mut Results::new())?;
            peaks.push((*count, peak_bytes(&self.image())?));
            self.unmount(Side::Ours)?;
        }
        Ok(peaks)
    }

    fn seek(&self, side: Side, count: u64, results: &mut Results) -> Result<()> {
        let file = File::open(self.file(count))?;
        let look = || -> Result<f64> {
            let started = Instant::now();
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).context("lseek")?;
            Ok(started.elapsed().as_secs_f64())
        };
        side::touch_memory(count * LEAF_BYTES_EACH);
        let uncached = look()?;
        let mut cached = f64::INFINITY;
        for _ in 0..SEEKS {
            cached = cached.min(look()?);
        }
        eprintln!(
            "{:>8} {count:>9} extents: {:>9.2} ms, then {:>9.3} ms",
            side.name(),
            uncached * 1e3,
            cached * 1e3
        );
        results.entry((count, side, false)).or_default().push(uncached);
        results.entry((count, side, true)).or_default().push(cached);
        Ok(())
    }
}

/// Peak memory of the process that has this image mounted.
fn peak_bytes(image: &Path) -> Result<u64> {
    let image = image.display().to_string();
    for process in std::fs::read_dir("/proc")? {
        let process = process?.path();
        let Ok(command) = std::fs::read_to_string(process.join("cmdline")) else {
            continue;
        };
        let mut words = command.split('\0');
        if words.next().is_some_and(|program| program.ends_with("/cowshed")) && words.any(|word| word == image) {
            let status = std::fs::read_to_string(process.join("status"))?;
            let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = kib.and_then(|kib| kib.trim().strip_suffix(" kB")).context("no VmHWM")?;
            return Ok(kib.parse::<u64>()? << 10);
        }
    }
    anyhow::bail!("nobody has {image} mounted")
}

fn of(results: &Results, count: u64, side: Side, cached: bool) -> Option<f64> {
    results.get(&(count, side, cached)).and_then(|s| table::median(s))
}

fn render(results: &Results, peaks: &[(u64, u64)], args: &Args) -> String {
    let mut text = format!(
        "{} GiB written; medians of {} runs, milliseconds, and in brackets nanoseconds for each extent. Ratio: how many times \
         as fast as the kernel's btrfs. Peak: the most memory that our process had, mounted with `{MEMORY_OPTION}`.\n\n| Extents | \
         kernel, uncached | Cowshed, uncached | ratio | kernel, cached | Cowshed, cached | ratio | peak, MiB |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|\n",
        args.gib, args.runs
    );
    for (count, peak_bytes) in peaks {
        let _ = write!(text, "| {count} ");
        for cached in [false, true] {
            let [kernel, ours] = [Side::Kernel, Side::Ours].map(|side| of(results, *count, side, cached));
            let (Some(kernel), Some(ours)) = (kernel, ours) else {
                continue;
            };
            let show = |s: f64| format!("{:.3} ({:.0})", s * 1e3, s * 1e9 / *count as f64);
            let _ = write!(text, "| {} | {} | {:.1} ", show(kernel), show(ours), kernel / ours);
        }
        let _ = writeln!(text, "| {} |", peak_bytes >> 20);
    }
    text
}

fn picture(results: &Results) -> String {
    let mut series = Vec::new();
    for (side, cached) in [
        (Side::Kernel, false),
        (Side::Ours, false),
        (Side::Kernel, true),
        (Side::Ours, true),
    ] {
        let points = results
            .keys()
            .filter(|key| (key.1, key.2) == (side, cached))
            .filter_map(|key| {
                let seconds = of(results, key.0, side, cached)?;
                Some((key.0 as f64, seconds * 1e9 / key.0 as f64))
            });
        let state = if cached { "cached" } else { "uncached" };
        series.push(Series {
            name: format!("{}, {state}", side.name()),
            points: points.collect(),
        });
    }
    plot::curves("Looking for a hole", "extents", "ns per extent", &series)
}
