//! The command behind `cargo xtask crash`.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use cowshed_crash::power::{self};
use cowshed_crash::rig::Layout;
use cowshed_crash::run::Run;
use cowshed_crash::threads::Threads;
use cowshed_crash::workload::Mix;
use cowshed_crash::{compressed, discards, faults, kernel};
use cowshed_device_sim::Rng;
use cowshed_harness::Keep;
use cowshed_model::script::Counts;

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
    #[arg(long, alias = "kernel", default_value_t = 0)]
    kernel_images: u64,
    /// How many runs have each of their I/Os fail in turn
    #[arg(long, default_value_t = 0)]
    faults: u64,
    /// Operations of each run
    #[arg(long, default_value_t = 60)]
    ops: usize,
    /// Images judged of one run, evenly chosen
    #[arg(long, default_value_t = 200)]
    per_run: u64,
    /// Nearly full volumes in all runs, not in one of eight
    #[arg(long)]
    full: bool,
    /// Threads that sync shared files beside each other in all runs, not in one of eight
    #[arg(long)]
    shared: bool,
    /// Threads whose operations run beside each other and beside syncs in all runs, not in one of
    /// eight
    #[arg(long, conflicts_with_all = ["full", "shared"])]
    rounds: bool,
    /// Many names of few files in all runs, not in one of eight
    #[arg(long)]
    links: bool,
    /// Subvolumes in all runs, not in one of three
    #[arg(long)]
    subvolumes: bool,
    /// Volumes that compress what is written in all runs, not in one of three
    #[arg(long)]
    compress: bool,
    /// Runs that discard what is free in all runs, not in one of three
    #[arg(long)]
    discard: bool,
    /// A snapshot by the kernel before each run, which works on both sides (root); not on full
    /// volumes, nor with subvolumes
    #[arg(long, conflicts_with_all = ["full", "subvolumes"])]
    snapshots: bool,
    /// Over block groups that come and go on a small volume, instead of the usual runs
    #[arg(long)]
    groups: bool,
    /// Runs at a time
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Only the run of this number, as a failure names it
    #[arg(long, conflicts_with = "groups")]
    run: Option<u64>,
    /// Keep the image of a failure in this directory; otherwise in a temporary one, which is named
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// What all jobs have done.
#[derive(Default)]
struct Totals {
    runs: AtomicU64,
    images: AtomicU64,
    by_kernel: AtomicU64,
    refused: AtomicU64,
    logs: AtomicU64,
    /// Discards recorded, and images of runs that had some.
    discards: AtomicU64,
    discarded: AtomicU64,
    /// With two or more atomic groups open.
    groups_open: AtomicU64,
    groups: Mutex<Counts>,
    /// With extents that are compressed so ([`compressed::NAMES`]), and with such extents in the
    /// log.
    compressed: [AtomicU64; 4],
    compressed_logs: [AtomicU64; 4],
    /// Some job has failed.
    ends: AtomicBool,
}

impl Totals {
    fn note(&self, count: &compressed::Count) {
        for (totals, counts) in [(&self.compressed, count.all), (&self.compressed_logs, count.logged)] {
            for (total, count) in totals.iter().zip(counts) {
                total.fetch_add(u64::from(count > 0), Ordering::Relaxed);
            }
        }
    }
}

/// The n-th run of a seed: all kinds of them by turns.
fn nth_run(args: &Args, n: u64) -> Run {
    let seed = args.seed;
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n));
    let threads = [
        Threads::One,
        Threads::Several,
        Threads::Committer,
        Threads::One,
        Threads::Syncer,
        Threads::Full,
        Threads::Shared,
        Threads::Rounds,
    ];
    let seed = rng.next_u64();
    let layout = if n % 4 == 3 { Layout::Raid1 } else { Layout::Dup };
    let nodesize_bytes = if rng.one_in(2) { 4096 } else { 16384 };
    let threads = if args.snapshots && rng.one_in(2) {
        Threads::One
    } else if args.full {
        Threads::Full
    } else if args.rounds {
        Threads::Rounds
    } else if args.shared {
        Threads::Shared
    } else {
        match threads[(rng.below(threads.len() as u64)) as usize] {
            // What fills the volume would survive in the snapshot: nothing could be written after
            // the crash.
            Threads::Full if args.snapshots => Threads::Several,
            drawn => drawn,
        }
    };
    Run {
        seed,
        layout,
        nodesize_bytes,
        threads,
        discards: match args.discard {
            true => discards::always(seed, threads),
            false => discards::drawn(seed, threads),
        },
        ops: args.ops,
        mix: if args.links || rng.one_in(8) {
            Mix::Links
        } else if n % 3 == 2 {
            Mix::Everything
        } else {
            Mix::Syncs
        },
        tree_log: n % 6 != 1,
        compress: match args.compress {
            true => Some(compressed::always(seed)),
            false => compressed::drawn(seed),
        },
        snapshots: args.snapshots,
        // Inside a snapshot they are empty directories, younger each time one looks.
        subvolumes: !args.snapshots && (args.subvolumes || (n / 2) % 3 == 1),
        tear_bytes: if n % 6 == 1 { 512 } else { 4096 },
        is_slow: rng.one_in(3),
    }
}

fn job(args: &Args, totals: &Totals) -> Result<()> {
    while totals.images.load(Ordering::Relaxed) < args.images && !totals.ends.load(Ordering::Relaxed) {
        let number = args.run.unwrap_or(0) + totals.runs.fetch_add(1, Ordering::Relaxed);
        if args.run.is_some_and(|only| only != number) {
            totals.runs.fetch_sub(1, Ordering::Relaxed);
            break;
        }
        one_run(args, totals, number).with_context(|| again(args, number))?;
    }
    Ok(())
}

/// How to see the run again. What threads do to each other may differ.
fn again(args: &Args, number: u64) -> String {
    let (seed, ops, per_run) = (args.seed, args.ops, args.per_run);
    let mut line = format!("the run again: cargo xtask crash --seed {seed} --run {number} --ops {ops}");
    let images = format!(" --per-run {per_run} --images {per_run}");
    let by_kernel = format!(" --kernel-images {per_run}");
    for (is_asked, words) in [
        (true, images.as_str()),
        (args.kernel_images > 0, &by_kernel),
        (args.full, " --full"),
        (args.shared, " --shared"),
        (args.rounds, " --rounds"),
        (args.links, " --links"),
        (args.subvolumes, " --subvolumes"),
        (args.compress, " --compress"),
        (args.discard, " --discard"),
        (args.snapshots, " --snapshots"),
    ] {
        if is_asked {
            line += words;
        }
    }
    line
}

fn one_run(args: &Args, totals: &Totals, number: u64) -> Result<()> {
    let run = nth_run(args, number);
    let keep = Keep::new(args.keep.clone());
    let mut recording = power::record(run).with_context(|| format!("{run:?}"))?;
    *totals.groups.lock().unwrap_or_else(|e| e.into_inner()) += recording.groups();
    totals.refused.fetch_add(recording.refused() as u64, Ordering::Relaxed);
    let discards = recording.discards();
    totals.discards.fetch_add(discards, Ordering::Relaxed);
    for image in recording.chosen(args.per_run as usize) {
        let count = totals.images.fetch_add(1, Ordering::Relaxed) + 1;
        totals.discarded.fetch_add(u64::from(discards > 0), Ordering::Relaxed);
        // Evenly over the images, as far as they may go to the kernel.
        let done = totals.by_kernel.load(Ordering::Relaxed);
        let to_kernel = done * args.images < args.kernel_images * count;
        recording.judge_or_keep(image, &keep, |recording, judged| {
            totals.logs.fetch_add(u64::from(judged.has_log), Ordering::Relaxed);
            totals
                .groups_open
                .fetch_add(u64::from(judged.groups_open > 1), Ordering::Relaxed);
            if let Some(count) = recording.compressed(judged)? {
                totals.note(&count);
            }
            if count.is_multiple_of(16) {
                recording.go_on(judged)?;
            }
            if to_kernel {
                let is_judged = kernel::judge(judged)?;
                totals.by_kernel.fetch_add(u64::from(is_judged), Ordering::Relaxed);
            }
            Ok(())
        })?;
        if count >= args.images || totals.ends.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

fn report(totals: &Totals, started: Instant) {
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (images, seconds) = (get(&totals.images), started.elapsed().as_secs_f64());
    eprintln!(
        "{images} images of {} runs, {} operations without space, {} with a log, {} by the kernel too, {seconds:.0} s, {:.0} images/s",
        get(&totals.runs),
        get(&totals.refused),
        get(&totals.logs),
        get(&totals.by_kernel),
        images as f64 / seconds
    );
    eprintln!(
        "images of runs that discard: {}; {} discards recorded",
        get(&totals.discarded),
        get(&totals.discards)
    );
    let named = |counts: &[AtomicU64; 4]| -> String {
        let named = compressed::NAMES.iter().zip(counts).skip(1);
        let words: Vec<_> = named.map(|(name, count)| format!("{name} {}", get(count))).collect();
        words.join(", ")
    };
    let (all, logged) = (named(&totals.compressed), named(&totals.compressed_logs));
    eprintln!("images with compressed extents: {all}; with some in the log: {logged}");
    let groups = totals.groups.lock().unwrap_or_else(|e| e.into_inner());
    eprintln!(
        "images with two atomic groups or more open: {}; {groups:?}",
        get(&totals.groups_open)
    );
}

fn groups(args: &Args) -> Result<()> {
    let (per_run, by_kernel) = (args.per_run as usize, args.kernel_images);
    let keep = Keep::new(args.keep.clone());
    let judged = cowshed_crash::groups::judge_runs(args.seed, args.images, per_run, by_kernel, &keep);
    let (images, stats) = judged.with_context(|| format!("seed {}", args.seed))?;
    println!("{images} crash images over {stats:?}: all as they must be");
    Ok(())
}

fn main() -> Result<()> {
    const REPORT_S: u64 = 10;
    let args = Args::parse();
    ensure!(args.per_run > 0 && args.jobs > 0, "--per-run and --jobs are at least 1");
    let started = Instant::now();
    if args.groups {
        return groups(&args);
    }
    let totals = Totals::default();
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..args.jobs)
            .map(|_| {
                scope.spawn(|| {
                    if let Err(error) = job(&args, &totals) {
                        totals.ends.store(true, Ordering::Relaxed);
                        failures.lock().unwrap_or_else(|e| e.into_inner()).push(error);
                    }
                })
            })
            .collect();
        let mut next = REPORT_S;
        while !jobs.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(std::time::Duration::from_millis(50));
            if started.elapsed().as_secs() >= next {
                next += REPORT_S;
                report(&totals, started);
            }
        }
    });
    if let Some(error) = failures
        .into_inner()
        .unwrap_or_else(|e| e.into_inner())
        .into_iter()
        .next()
    {
        return Err(error.context(format!("seed {}", args.seed)));
    }
    report(&totals, started);
    let mut rng = Rng::new(args.seed);
    for n in 0..args.faults {
        let layout = [Layout::Dup, Layout::Raid1, Layout::Single][n as usize % 3];
        let mix = if n % 4 < 2 { Mix::Syncs } else { Mix::Everything };
        let report = faults::every_io_fails(rng.next_u64(), layout, mix, args.ops)?;
        eprintln!("{report}");
    }
    println!("{} crash images: all as they must be", totals.images.into_inner());
    Ok(())
}
