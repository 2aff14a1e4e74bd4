//! Runs cases of the table and says what came of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use cowshed_harness::Keep;
use cowshed_logcases::random::{self, known};
use cowshed_logcases::roads::{self, Side};
use cowshed_logcases::{Case, cuts, doc, items, reverse, table};

#[derive(Parser)]
#[command(
    about = "What a crash after fsync leaves: named cases, on every road (root, loop devices, the kernel's btrfs)"
)]
struct Args {
    /// Only cases whose name contains this
    #[arg(default_value = "")]
    name: String,
    /// Print the table of docs/design/log-cases.md
    #[arg(long)]
    doc: bool,
    /// Print the table of known deviations of docs/design/log-cases.md
    #[arg(long)]
    doc_deviations: bool,
    /// The side that writes: k, c, or both
    #[arg(long, default_value = "kc")]
    writers: String,
    /// The side that replays: k, c, or both
    #[arg(long, default_value = "kc")]
    replayers: String,
    /// Our fsyncs commit, they write no logs
    #[arg(long)]
    commits: bool,
    /// Bytes of a node
    #[arg(long, default_value_t = 16384)]
    nodesize: u32,
    /// On volumes whose holes have items of their own
    #[arg(long)]
    hole_items: bool,
    /// Instead: cut so many crash images out of random runs of the kernel, and compare the replays
    #[arg(long)]
    reverse: Option<u64>,
    /// Instead: judge so many crash images of runs of the kernel on a recorded device, cut at its
    /// barriers
    #[arg(long)]
    cuts: Option<u64>,
    /// Instead: so many random runs of the kernel with fsyncs; both replay what crashes leave, and
    /// the results are compared item by item
    #[arg(long)]
    items: Option<u64>,
    /// Of those: on this kind of volume alone, by its index
    #[arg(long)]
    volume: Option<usize>,
    /// With --random: the exceptions of docs/design/log-cases.md count, too
    #[arg(long)]
    without_exceptions: bool,
    /// Of those images, from one run
    #[arg(long, default_value_t = 60)]
    per_run: u64,
    /// Operations of one such run
    #[arg(long, default_value_t = 60)]
    operations: usize,
    /// One of so many of those images goes to the kernel, too
    #[arg(long, default_value_t = 20)]
    kernel_every: u64,
    /// Instead: play so many random sequences on a volume of the kernel's and on one of ours; after
    /// a crash at each fsync ours must have what the kernel's has
    #[arg(long)]
    random: Option<u64>,
    /// Of those: this one alone, by the number that a failure names
    #[arg(long)]
    sequence: Option<u64>,
    /// Instead of random ones: this script, in the words of the table
    #[arg(long)]
    script: Option<String>,
    /// Make failing sequences as short as possible
    #[arg(long)]
    shrink: bool,
    /// End after so many failing sequences
    #[arg(long, default_value_t = 10)]
    failures_max: u64,
    /// Keep the image of a failure in this directory; otherwise in a temporary one, which is named
    #[arg(long)]
    keep: Option<std::path::PathBuf>,
    /// Of those runs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// One line per case
    #[arg(long, short)]
    verbose: bool,
}

fn sides(letters: &str) -> Vec<Side> {
    let all = [('k', Side::Kernel), ('c', Side::Cowshed)];
    all.into_iter()
        .filter(|(letter, _)| letters.contains(*letter))
        .map(|(_, who)| who)
        .collect()
}

/// The kernel's logs, item by item.
fn replay_items(args: &Args, runs: u64) -> Result<()> {
    let (volumes, keep) = (items::volumes(), Keep::new(args.keep.clone()));
    let length = items::random::Length { images: 8, steps: 40 };
    let mut with_log = 0;
    for seed in args.seed..args.seed + runs {
        let index = args.volume.unwrap_or(seed as usize % volumes.len());
        with_log += items::random::run(seed, &volumes[index], length, &keep)?;
        println!("seed {seed}: {with_log} logs so far");
    }
    Ok(())
}

/// The random sequences.
fn play_random(args: &Args, started: Instant) -> Result<()> {
    let options = random::Options {
        seed: args.seed,
        sequences: args.random.unwrap_or(1),
        only: args.sequence,
        script: args.script.as_deref().map(table::parse).transpose()?,
        kernel_every: args.kernel_every,
        without_exceptions: args.without_exceptions,
        no_fsyncs: false,
        shrink: args.shrink,
        failures_max: args.failures_max,
        jobs: args.jobs,
        nodesize_bytes: args.nodesize,
        keep: Keep::new(args.keep.clone()),
    };
    let report = random::run(&options, &|failure| println!("{failure}\n"))?;
    println!("{report}, {:.0} s", started.elapsed().as_secs_f64());
    ensure!(report.failures.is_empty(), "{} sequences failed", report.failures.len());
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.doc_deviations {
        print!("{}", known::table());
        return Ok(());
    }
    if args.doc {
        print!("{}", doc::table());
        return Ok(());
    }
    let started = Instant::now();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if let Some(runs) = args.items {
        return replay_items(&args, runs);
    }
    if let Some(images) = args.reverse {
        println!("{}", reverse::run(args.seed, images, &Keep::new(args.keep))?);
        return Ok(());
    }
    if let Some(images) = args.cuts {
        let options = cuts::Options {
            seed: args.seed,
            images,
            per_run: args.per_run,
            operations: args.operations,
            kernel_every: args.kernel_every,
            keep: Keep::new(args.keep),
        };
        println!("{}, {:.0} s", cuts::run(&options)?, started.elapsed().as_secs_f64());
        return Ok(());
    }
    if args.random.is_some() || args.sequence.is_some() || args.script.is_some() {
        return play_random(&args, started);
    }
    let (writers, replayers) = (sides(&args.writers), sides(&args.replayers));
    let cases: Vec<Case> = table::all().filter(|case| case.name.contains(&args.name)).collect();
    let bases = (0..args.jobs)
        .map(|_| match args.hole_items {
            true => roads::base_with_hole_items(args.nodesize),
            false => roads::base(args.nodesize),
        })
        .collect::<Result<Vec<_>>>()?;
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let logged = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (cases, next, failed, logged, args) = (&cases, &next, &failed, &logged, &args);
        let (writers, replayers) = (&writers, &replayers);
        for base in &bases {
            scope.spawn(move || {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match roads::run(case, base, !args.commits, writers, replayers) {
                        Ok(report) => {
                            logged.fetch_add(report.logged.len(), Ordering::Relaxed);
                            if args.verbose {
                                let ours = report
                                    .ours
                                    .map_or("nothing was asked of us".into(), |ours| format!("ours: {ours}"));
                                println!("{}: log written by {:?}; {ours}", case.name, report.logged);
                            }
                        }
                        Err(error) => {
                            eprintln!("FAILED {error:#}\n  script: {}\n", case.script);
                            failed.lock().unwrap_or_else(|e| e.into_inner()).push(case.name);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|e| e.into_inner());
    println!(
        "{} cases, {} logs among the crash images, {} failed, {:.1} s",
        cases.len(),
        logged.into_inner(),
        failed.len(),
        started.elapsed().as_secs_f64()
    );
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}
