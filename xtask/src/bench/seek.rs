//! `cargo xtask bench seek`: looking for a hole in files of very many extents.
//!
//! First as it was published: one file of zeros in 1 MiB writes with compress=lzo (an extent for
//! each 128 KiB), alone on its volume. The kernel writes one and our mount another; both sides look
//! at both, mounted read-write and read-only, by turns. The first `lseek` comes right after
//! mounting and is the uncached one.
//!
//! Then the curve: more files on the kernel's volume, which share their extents with the first;
//! mounted read-only.

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
const HOLE_BYTES: u64 = 1 << 20;
/// Cached seeks in a run; the best counts.
const SEEKS: usize = 5;
/// Of a leaf, for each extent: a little more than the item and its header.
const LEAF_BYTES_EACH: u64 = 100;
/// Bound of our side's memory where its peak is looked at: what a seek kept for each extent would
/// stand out.
const MEMORY_OPTION: &str = "max_memory=64m";
/// How the volumes are mounted to be looked at: as in the published method, and so that nothing
/// changes them.
const MODES: [&str; 2] = ["rw", "ro"];

#[derive(ClapArgs)]
pub struct Args {
    /// GiB that each side writes
    #[arg(long, default_value_t = 16)]
    gib: u64,
    /// Files of up to so many extents are looked at; those larger than what is written are made of
    /// clones
    #[arg(long, default_value_t = 10_000_000)]
    extents_max: u64,
    /// Runs of each side; the table has the medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Where the images lie
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Print the table, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
}

/// Seconds, by what is looked at, side and whether it was cached.
type Results<Of> = BTreeMap<(Of, Side, bool), Vec<f64>>;

/// The side that wrote the file, and how its volume is mounted.
type Row = (Side, &'static str);

pub fn main(args: &Args) -> Result<()> {
    super::build()?;
    ensure!(
        side::kernel_can(),
        "one of the images is written by the kernel's btrfs, as root"
    );
    let (mut text, kernels) = as_published(args)?;
    let counts = kernels.add_clones(args)?;
    let results = curve(args, &kernels, &counts)?;
    text += &render(&results, &kernels.peaks(&counts)?, args);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    std::fs::write(run::root().join("docs/seek.svg"), picture(&results))?;
    table::store_named(NAME, &text)
}

/// Both sides look at what both wrote: a table, and the kernel's image.
fn as_published(args: &Args) -> Result<(String, Image)> {
    let kernels = Image::write(args, Side::Kernel)?;
    let ours = Image::write(args, Side::Ours)?;
    let mut results = Results::<Row>::new();
    for round in 0..args.runs {
        for mode in MODES {
            for image in [&kernels, &ours] {
                for side in turns(round) {
                    side::touch_memory(image.written * LEAF_BYTES_EACH);
                    let what = format!("written by {}, mounted {mode}", image.writer.name());
                    image.mount(side, mode)?;
                    let seconds = image.look(image.written, side, &what)?;
                    image.unmount(side)?;
                    note(&mut results, (image.writer, mode), side, seconds);
                }
            }
        }
    }
    Ok((render_rows(&results, [&kernels, &ours], args)?, kernels))
}

/// Files of all sizes, one after the other in each mount.
fn curve(args: &Args, image: &Image, counts: &[u64]) -> Result<Results<u64>> {
    let mut results = Results::new();
    for round in 0..args.runs {
        for side in turns(round) {
            image.mount(side, "ro")?;
            for count in counts {
                side::touch_memory(count * LEAF_BYTES_EACH);
                let seconds = image.look(*count, side, &format!("{count} extents"))?;
                note(&mut results, *count, side, seconds);
            }
            image.unmount(side)?;
        }
    }
    Ok(results)
}

/// The first side may find colder caches.
fn turns(round: usize) -> [Side; 2] {
    let mut order = [Side::Kernel, Side::Ours];
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

fn note<Of: Ord + Copy>(results: &mut Results<Of>, of: Of, side: Side, seconds: [f64; 2]) {
    for (is_cached, seconds) in [false, true].into_iter().zip(seconds) {
        results.entry((of, side, is_cached)).or_default().push(seconds);
    }
}

/// A volume with a file of very many extents, and where it is mounted. Goes away with the value.
struct Image {
    top: PathBuf,
    writer: Side,
    /// Extents of the file before a hole is punched.
    written: u64,
}

impl Drop for Image {
    fn drop(&mut self) {
        drop(Removed(self.top.clone()));
    }
}

impl Image {
    /// The published method up to the unmounting, by one of the sides.
    fn write(args: &Args, writer: Side) -> Result<Self> {
        let name = format!("cowshed-bench-seek-{}-{}", std::process::id(), writer.name());
        let image = Self {
            top: args.dir.join(name),
            writer,
            written: (args.gib << 30) / EXTENT_BYTES,
        };
        std::fs::create_dir_all(image.mountpoint())?;
        File::create(image.path())?.set_len(64 << 30)?;
        let mut mkfs = match writer {
            Side::Ours => ours("mkfs"),
            Side::Kernel | Side::Xfs => Command::new("mkfs.btrfs"),
        };
        run::output(mkfs.arg("-q").arg(image.path()))?;
        let started = Instant::now();
        image.mount(writer, "rw")?;
        let mut file = File::create(image.file(image.written))?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..args.gib << 10 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        image.punch(image.written)?;
        drop(file);
        image.unmount(writer)?;
        image.say(&format!("{} GiB written", args.gib), started);
        Ok(image)
    }

    fn say(&self, what: &str, started: Instant) {
        eprintln!(
            "{:>8}: {what}: {:.1} s",
            self.writer.name(),
            started.elapsed().as_secs_f64()
        );
    }

    fn path(&self) -> PathBuf {
        self.top.join("image")
    }
    fn mountpoint(&self) -> PathBuf {
        self.top.join("mnt")
    }

    fn mount(&self, side: Side, options: &str) -> Result<()> {
        let options = format!("compress=lzo,{options}");
        let mut command = match side {
            Side::Ours => ours("mount"),
            Side::Kernel | Side::Xfs => {
                let mut command = Command::new("mount");
                command.args(["-o", "loop"]);
                command
            }
        };
        command.args(["-o", &options]).arg(self.path()).arg(self.mountpoint());
        run::output(&mut command).map(drop)
    }

    fn unmount(&self, side: Side) -> Result<()> {
        let mut command = match side {
            Side::Ours => ours("umount"),
            Side::Kernel | Side::Xfs => Command::new("umount"),
        };
        run::output(command.arg(self.mountpoint())).map(drop)
    }

    fn file(&self, extents: u64) -> PathBuf {
        self.mountpoint().join(extents.to_string())
    }

    /// Where the file of so many extents has its hole. Each has one near its end: of a file without
    /// any the kernel knows by its counters that there is nothing to look for.
    fn hole_bytes(&self, count: u64) -> u64 {
        let before = if count == self.written {
            count / 16 * 15
        } else {
            count - 1
        };
        before * EXTENT_BYTES
    }

    fn punch(&self, count: u64) -> Result<()> {
        let (offset, len) = (self.hole_bytes(count).to_string(), HOLE_BYTES.to_string());
        let mut command = Command::new("fallocate");
        command.args(["--punch-hole", "--length", &len, "--offset", &offset]);
        run::output(command.arg(self.file(count))).map(drop)
    }

    /// Makes the files of the curve; the numbers of their extents.
    fn add_clones(&self, args: &Args) -> Result<Vec<u64>> {
        let started = Instant::now();
        self.mount(self.writer, "rw")?;
        let mut counts = vec![self.written];
        for count in [1_000, 10_000, 1_000_000, 10_000_000] {
            if count <= args.extents_max {
                self.clone_to(count)?;
                self.punch(count)?;
                counts.push(count);
                self.say(&format!("clones of {count} extents"), started);
            }
        }
        self.unmount(self.writer)?;
        counts.sort_unstable();
        Ok(counts)
    }

    /// A file of `count` extents, all of them shared with what the first has before its hole.
    fn clone_to(&self, count: u64) -> Result<()> {
        let (first, target) = (self.file(self.written), self.file(count));
        File::create(&target)?;
        let mut done = 0;
        while done < count {
            let now = (self.hole_bytes(self.written) / EXTENT_BYTES).min(count - done);
            let range = format!("0:{}:{}", now * EXTENT_BYTES, done * EXTENT_BYTES);
            run::output(ours("clone").args(["--range", &range]).arg(&first).arg(&target))?;
            done += now;
        }
        run::output(Command::new("sync").arg("-f").arg(&target)).map(drop)
    }

    /// Extents that the file has on disk.
    fn count_extents(&self) -> Result<u64> {
        self.mount(Side::Ours, "ro")?;
        let said = run::output(ours("compsize").arg("--json").arg(self.file(self.written)))?;
        self.unmount(Side::Ours)?;
        let said: serde_json::Value = serde_json::from_str(&said)?;
        said["extents"].as_u64().context("no number of extents")
    }

    /// The most memory that our side had after looking through each file twice, mounted anew for
    /// each, with a bound far below what the larger files' leaves take: numbers of extents and
    /// bytes.
    fn peaks(&self, counts: &[u64]) -> Result<Vec<(u64, u64)>> {
        let mut peaks = Vec::new();
        for count in counts {
            side::touch_memory(count * LEAF_BYTES_EACH);
            self.mount(Side::Ours, &format!("ro,{MEMORY_OPTION}"))?;
            self.look(*count, Side::Ours, &format!("{count} extents, {MEMORY_OPTION}"))?;
            peaks.push((*count, peak_bytes(&self.path())?));
            self.unmount(Side::Ours)?;
        }
        Ok(peaks)
    }

    /// Seconds of the first look, and of the best of those after it.
    fn look(&self, count: u64, side: Side, what: &str) -> Result<[f64; 2]> {
        let file = File::open(self.file(count))?;
        let hole_bytes = self.hole_bytes(count);
        let look = || -> Result<f64> {
            let started = Instant::now();
            let found = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).context("lseek")?;
            let seconds = started.elapsed().as_secs_f64();
            ensure!(found == hole_bytes, "a hole at {found}, not at {hole_bytes}");
            Ok(seconds)
        };
        let uncached = look()?;
        let mut cached = f64::INFINITY;
        for _ in 0..SEEKS {
            cached = cached.min(look()?);
        }
        eprintln!(
            "{:>8}: {what}: {:.2} ms, then {:.3} ms",
            side.name(),
            uncached * 1e3,
            cached * 1e3
        );
        Ok([uncached, cached])
    }
}

fn ours(subcommand: &str) -> Command {
    let mut command = Command::new(run::released("cowshed"));
    command.arg(subcommand);
    command
}

/// Peak memory of the process that has this image mounted.
fn peak_bytes(image: &Path) -> Result<u64> {
    let image = image.display().to_string();
    let ours = run::released("cowshed").canonicalize()?;
    let mut youngest = None;
    for process in std::fs::read_dir("/proc")? {
        let process = process?.path();
        let read = |name: &str| std::fs::read_to_string(process.join(name));
        // It may end at any moment.
        let (Ok(command), Ok(stat), Ok(status)) = (read("cmdline"), read("stat"), read("status")) else {
            continue;
        };
        // A server has the name `cowshed`, whatever that of its file is.
        let is_ours = std::fs::read_link(process.join("exe")).is_ok_and(|program| program == ours);
        if is_ours && command.split('\0').any(|word| word == image) {
            // The process of the mount before may not be gone yet.
            let started = started_ticks(&stat).context("no start time")?;
            youngest = youngest.max(Some((started, status)));
        }
    }
    let (_, status) = youngest.with_context(|| format!("no process has {image} mounted"))?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = kib.and_then(|kib| kib.trim().strip_suffix(" kB")).context("no VmHWM")?;
    Ok(kib.parse::<u64>()? << 10)
}

/// When a process began, by /proc/PID/stat: the 22nd field, of which the second is a name in
/// brackets that may have any character.
fn started_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(19)?.parse().ok()
}

fn of<Of: Ord + Copy>(results: &Results<Of>, of: Of, side: Side, cached: bool) -> Option<f64> {
    results.get(&(of, side, cached)).and_then(|s| table::median(s))
}

const COLUMNS: &str = "kernel, uncached | Cowshed, uncached | ratio | kernel, cached | Cowshed, cached | ratio";

/// What was measured of `what`, under [`COLUMNS`].
fn cells<Of: Ord + Copy>(results: &Results<Of>, what: Of, count: u64) -> String {
    let mut text = String::new();
    for cached in [false, true] {
        let [kernel, ours] = [Side::Kernel, Side::Ours].map(|side| of(results, what, side, cached));
        let (Some(kernel), Some(ours)) = (kernel, ours) else {
            continue;
        };
        let show = |s: f64| format!("{:.3} ({:.0})", s * 1e3, s * 1e9 / count as f64);
        let _ = write!(text, " {} | {} | {:.1} |", show(kernel), show(ours), kernel / ours);
    }
    text
}

fn render_rows(results: &Results<Row>, images: [&Image; 2], args: &Args) -> Result<String> {
    let mut text = format!(
        "{} GiB written by each side; medians of {} runs, milliseconds, and in brackets nanoseconds for each extent. Ratio: how \
         many times as fast as the kernel's btrfs. Right after mounting:\n\n| Written by | mounted | extents | {COLUMNS} |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|\n",
        args.gib, args.runs
    );
    for image in images {
        let extents = image.count_extents()?;
        for mode in MODES {
            let cells = cells(results, (image.writer, mode), image.written);
            let _ = writeln!(text, "| {} | {mode} | {extents} |{cells}", image.writer.name());
        }
    }
    Ok(text)
}

fn render(results: &Results<u64>, peaks: &[(u64, u64)], args: &Args) -> String {
    let mut text = format!(
        "\nThe curve: on what the kernel wrote, mounted read-only; medians of {} runs. Peak: the most memory that our process had, \
         mounted with `{MEMORY_OPTION}`.\n\n| Extents | {COLUMNS} | peak, MiB |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|\n",
        args.runs
    );
    for (count, peak_bytes) in peaks {
        let cells = cells(results, *count, *count);
        let _ = writeln!(text, "| {count} |{cells} {} |", peak_bytes >> 20);
    }
    text
}

fn picture(results: &Results<u64>) -> String {
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
