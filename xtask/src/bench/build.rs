//! `cargo xtask bench build`: a tree becomes an image: `cowshed build` beside `mkfs.btrfs
//! --rootdir`, `cp -a` onto a volume that the kernel mounts, and the tools of other file systems,
//! as far as they are installed.
//!
//! The sides take turns. The tree is read once before, or copied into memory, so that no disk is
//! measured. Time ends when the program does, for the kernel when the volume is unmounted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use cowshed_harness::{KernelMount, LoopDevice, limit, need};

use super::plot;
use super::table::{self, median, ratio, show_runs};
use crate::run;

const NAME: &str = "build";
const STEP_MAX: Duration = Duration::from_secs(600);
/// The kernel's volume, and targets that do not grow.
const TARGET_BYTES: u64 = 8 << 30;

#[derive(ClapArgs)]
pub struct Args {
    /// The tree; several ones are copied into one, each under its path
    #[arg(long, default_values = ["/usr/share", "/usr/include", "/usr/local", "/usr/lib/gcc"])]
    tree: Vec<PathBuf>,
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

/// What takes so many times as long as `cowshed build` is run once.
const SLOW_RATIO: f64 = 10.0;

/// A plot beside docs/performance.md.
const PLOT: &str = "docs/build.svg";

/// A way to make an image.
struct Way {
    name: &'static str,
    /// The program that must be there.
    tool: &'static str,
    /// A shell script; `$TREE`, `$TAR`, `$OCI`, `$OUT` and `$COWSHED` are set. Empty: the kernel,
    /// with these options.
    script: &'static str,
    options: &'static str,
    /// Compressed ways are compared with each other.
    is_packed: bool,
}

const fn way(name: &'static str, tool: &'static str, is_packed: bool, script: &'static str) -> Way {
    Way {
        name,
        tool,
        script,
        options: "",
        is_packed,
    }
}

const WAYS: &[Way] = &[
    way("cowshed build", "cat", false, "$COWSHED build -q --from $TREE $OUT"),
    way(
        "cowshed build, from a tar archive",
        "cat",
        false,
        "$COWSHED build -q --from $TAR $OUT",
    ),
    way(
        "cowshed build, from a container image",
        "cat",
        false,
        "$COWSHED build -q --from $OCI $OUT",
    ),
    way(
        "mkfs.btrfs --rootdir",
        "mkfs.btrfs",
        false,
        "truncate -s 8G $OUT; mkfs.btrfs -q -r $TREE $OUT >/dev/null",
    ),
    Way {
        name: "kernel: mkfs, mount, cp -a",
        tool: "mkfs.btrfs",
        script: "",
        options: "noatime",
        is_packed: false,
    },
    way(
        "mksquashfs, not compressed",
        "mksquashfs",
        false,
        "mksquashfs $TREE $OUT -noI -noD -noF -noX -quiet -no-progress",
    ),
    way("mkfs.erofs", "mkfs.erofs", false, "mkfs.erofs --quiet $OUT $TREE"),
    way("mke2fs -d", "mke2fs", false, "mke2fs -q -t ext4 -d $TREE $OUT 8G"),
    way("tar", "tar", false, "tar -cf $OUT -C $TREE ."),
    way(
        "cowshed build --compress zstd:3",
        "cat",
        true,
        "$COWSHED build -q --compress zstd:3 --from $TREE $OUT",
    ),
    way(
        "cowshed build --compress zstd:3, from tar",
        "cat",
        true,
        "$COWSHED build -q --compress zstd:3 --from $TAR $OUT",
    ),
    way(
        "cowshed build --compress zstd:3, container",
        "cat",
        true,
        "$COWSHED build -q --compress zstd:3 --from $OCI $OUT",
    ),
    Way {
        name: "kernel: the same with compress=zstd:3",
        tool: "mkfs.btrfs",
        script: "",
        options: "noatime,compress=zstd:3",
        is_packed: true,
    },
    way(
        "mksquashfs, zstd 3",
        "mksquashfs",
        true,
        "mksquashfs $TREE $OUT -comp zstd -Xcompression-level 3 -quiet -no-progress",
    ),
    way(
        "mkfs.erofs, lz4",
        "mkfs.erofs",
        true,
        "mkfs.erofs --quiet -zlz4 $OUT $TREE",
    ),
];

/// Seconds, bytes on the host, and KiB of memory at most.
#[derive(Clone, Copy)]
struct Run {
    seconds: f64,
    image_bytes: u64,
    memory_kib: Option<f64>,
}

pub fn main(args: &Args) -> Result<()> {
    super::build()?;
    let dir = args.dir.join("cowshed-bench-build");
    fs::create_dir_all(&dir)?;
    let result = measure(args, &dir);
    fs::remove_dir_all(&dir)?;
    let text = result?;
    println!("{text}");
    match args.dry_run {
        true => Ok(()),
        false => table::store_named(NAME, &text),
    }
}

/// Medians of all ways, those of each kind together.
fn plot(results: &BTreeMap<usize, Vec<Run>>) -> String {
    let mut bars = Vec::new();
    for is_packed in [false, true] {
        for (index, way) in WAYS.iter().enumerate().filter(|(_, way)| way.is_packed == is_packed) {
            let seconds: Vec<f64> = results
                .get(&index)
                .into_iter()
                .flatten()
                .map(|run| run.seconds)
                .collect();
            bars.extend(median(&seconds).map(|seconds| (way.name.to_owned(), seconds)));
        }
    }
    plot::bars("From a tree to an image", "s", "cowshed", &bars)
}

fn measure(args: &Args, dir: &Path) -> Result<String> {
    let tree = gather(&args.tree, dir)?;
    shell(
        "tar --numeric-owner -cf $TAR -C $TREE . && cat $TAR >/dev/null",
        &tree,
        dir,
    )?;
    shell(
        "$COWSHED build -q --from $TAR $OUT && $COWSHED export oci $OUT $OCI && rm $OUT",
        &tree,
        dir,
    )?;
    let (entries, bytes) = size_of(&tree)?;
    let mut results: BTreeMap<usize, Vec<Run>> = BTreeMap::new();
    for _ in 0..args.runs {
        for (index, way) in WAYS.iter().enumerate() {
            let kernel_can = need::root().is_some() && need::kernel_btrfs().is_some();
            if need::tool(way.tool).is_none() || (way.script.is_empty() && !kernel_can) {
                continue;
            }
            if is_slow(&results, index) {
                continue;
            }
            let run = one(way, &tree, dir)?;
            eprintln!("{:<40} {:>7.2} s", way.name, run.seconds);
            results.entry(index).or_default().push(run);
        }
    }
    if !args.dry_run {
        fs::write(run::root().join(PLOT), plot(&results))?;
    }
    Ok(render(args, entries, bytes, &results))
}

fn is_slow(results: &BTreeMap<usize, Vec<Run>>, index: usize) -> bool {
    let first = |index: usize| results.get(&index).and_then(|runs| runs.first()).map(|run| run.seconds);
    let ours = WAYS
        .iter()
        .position(|way| way.is_packed == WAYS[index].is_packed)
        .and_then(first);
    matches!((first(index), ours), (Some(seconds), Some(ours)) if seconds > SLOW_RATIO * ours)
}

/// One tree: where several ones are asked for, a copy that holds them all.
fn gather(trees: &[PathBuf], dir: &Path) -> Result<PathBuf> {
    if let [tree] = trees {
        return Ok(fs::canonicalize(tree)?);
    }
    let tree = dir.join("tree");
    fs::create_dir_all(&tree)?;
    let mut command = Command::new("cp");
    command
        .args(["-a", "--parents"])
        .args(trees)
        .arg(fs::canonicalize(&tree)?);
    // cp looks for the parents of absolute names there.
    command.current_dir("/");
    let output = limit::output_within(&mut command, STEP_MAX)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cp -a --parents: {said}");
    Ok(tree)
}

fn size_of(tree: &Path) -> Result<(u64, u64)> {
    let mut todo = vec![tree.to_owned()];
    let (mut entries, mut bytes) = (0, 0);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            entries += 1;
            if metadata.is_dir() {
                todo.push(entry.path());
            } else if metadata.is_file() {
                bytes += metadata.len();
            }
        }
    }
    Ok((entries, bytes))
}

fn one(way: &Way, tree: &Path, dir: &Path) -> Result<Run> {
    let out = dir.join("out");
    if out.exists() {
        fs::remove_file(&out)?;
    }
    let started = Instant::now();
    let mut memory_kib = None;
    match way.script {
        "" => by_kernel(way, tree, dir, &out)?,
        script => memory_kib = shell(script, tree, dir)?,
    }
    let seconds = started.elapsed().as_secs_f64();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&out)?);
    fs::remove_file(&out)?;
    Ok(Run {
        seconds,
        image_bytes: blocks * 512,
        memory_kib,
    })
}

fn by_kernel(way: &Way, tree: &Path, dir: &Path, out: &Path) -> Result<()> {
    fs::File::create(out)?.set_len(TARGET_BYTES)?;
    shell("mkfs.btrfs -q $OUT >/dev/null", tree, dir)?;
    let device = LoopDevice::attach(out)?;
    let at = dir.join("mnt");
    fs::create_dir_all(&at)?;
    let mount = KernelMount::new("btrfs", &[device.path()], &at, way.options)?;
    shell("cp -a $TREE/. $(dirname $OUT)/mnt/", tree, dir)?;
    mount.unmount()
}

/// Runs a script; gives the memory of its largest program, where GNU time is there to tell.
fn shell(script: &str, tree: &Path, dir: &Path) -> Result<Option<f64>> {
    let time = Path::new("/usr/bin/time");
    let mut command = match time.exists() {
        true => {
            let mut command = Command::new(time);
            command.args(["-f", "%M", "bash", "-ec"]);
            command
        }
        false => {
            let mut command = Command::new("bash");
            command.arg("-ec");
            command
        }
    };
    command.arg(script);
    command
        .env("TREE", tree)
        .env("TAR", dir.join("tree.tar"))
        .env("OCI", dir.join("oci"))
        .env("OUT", dir.join("out"));
    command.env("COWSHED", run::released("cowshed"));
    let output = limit::output_within(&mut command, STEP_MAX)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{script}: {said}");
    Ok(said.lines().last().and_then(|line| line.trim().parse().ok()))
}

fn render(args: &Args, entries: u64, bytes: u64, results: &BTreeMap<usize, Vec<Run>>) -> String {
    let of = |index: usize, value: fn(&Run) -> Option<f64>| -> Vec<f64> {
        results.get(&index).into_iter().flatten().filter_map(value).collect()
    };
    let seconds = |index: usize| of(index, |run| Some(run.seconds));
    let ours = |is_packed: bool| {
        let index = WAYS.iter().position(|way| way.is_packed == is_packed);
        index.and_then(|index| median(&seconds(index)))
    };
    let mut text = format!(
        "{entries} entries with {:.2} GB; medians of {} runs (lowest to highest; what takes ten times as long is run once). \
         Ratio: how many times as long as `cowshed build` with or without compression.\n\n\
         | Way | seconds | ratio | image, MB | memory, MiB |\n|---|---:|---:|---:|---:|\n",
        bytes as f64 / 1e9,
        args.runs
    );
    for (index, way) in WAYS.iter().enumerate() {
        let own = seconds(index);
        let image = median(&of(index, |run| Some(run.image_bytes as f64 / 1e6)));
        let memory = median(&of(index, |run| run.memory_kib)).map(|kib| kib / 1024.0);
        let show = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            way.name,
            match own.is_empty() {
                true => "not installed".into(),
                false => show_runs(&own, 2),
            },
            ratio(median(&own), ours(way.is_packed)),
            show(image),
            show(memory)
        );
    }
    text
}
