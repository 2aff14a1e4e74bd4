//! How much of what came before an fsync survives a power cut right behind it: ours beside the kernel's.
//!
//! A random sequence of names, links, moves, attributes and writes ([`script`]) is played on a volume of the kernel's and
//! on one of ours. At each fsync the power fails: the device is copied as it is when the call returns, and the copy is
//! replayed ([`play`]). What the replay of the kernel's log shows of the operations before the fsync, the replay of ours
//! must show, too; ours may show more, but nothing that never was ([`judge`]).
//!
//! Both copies are replayed by our engine in this process, which is fast; that the kernel's replay makes the same tree of
//! them is what `cuts`, `reverse` and the named cases show. One image in [`Options::kernel_every`] goes to the kernel here,
//! too.

mod judge;
mod play;
mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context as _, Result, bail};
use cowshed_device::MemDevice;
use cowshed_device_sim::Rng;

use crate::roads;
pub use judge::{Fault, Kind};
use play::Kernel;
pub use script::Script;

/// Sequences on one mount of the kernel's: mounting costs more than a sequence, and a volume fills up.
const SEQUENCES_PER_MOUNT: u64 = 100;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of the first sequence; the others follow.
    pub seed: u64,
    /// How many sequences.
    pub sequences: u64,
    /// One crash image of ours in so many is replayed by the kernel, too.
    pub kernel_every: u64,
    /// Go on after a sequence that fails, and count.
    pub keep_going: bool,
    /// Hold the exceptions against ours, too.
    pub without_exceptions: bool,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sequences played.
    pub sequences: u64,
    /// Crash images of either side.
    pub images: u64,
    /// Images of the kernel's and of ours that have a log.
    pub logs: [u64; 2],
    /// Sequences with each exception.
    pub exceptions: BTreeMap<Kind, u64>,
    /// Images of ours that the kernel replayed, too.
    pub by_the_kernel: u64,
    /// Sequences that failed once and did not when they were played again.
    pub not_repeated: u64,
    /// Sequences that failed, by the kind of their first fault.
    pub failed: BTreeMap<String, u64>,
}

impl Report {
    /// Counts what another run has seen.
    pub fn add(&mut self, other: Report) {
        self.sequences += other.sequences;
        self.images += other.images;
        self.logs[0] += other.logs[0];
        self.logs[1] += other.logs[1];
        for (kind, count) in other.exceptions {
            *self.exceptions.entry(kind).or_default() += count;
        }
        self.by_the_kernel += other.by_the_kernel;
        self.not_repeated += other.not_repeated;
        for (kind, count) in other.failed {
            *self.failed.entry(kind).or_default() += count;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = match self.failed.is_empty() {
            true => "ours shows what the kernel's shows".to_owned(),
            false => format!("FAILED {:?}", self.failed),
        };
        write!(
            f,
            "{} sequences, {} crash images ({} logs of the kernel's, {} of ours; {} replayed by the kernel): {result}",
            self.sequences, self.images, self.logs[0], self.logs[1], self.by_the_kernel
        )?;
        if self.not_repeated > 0 {
            write!(f, "; {} failed once only", self.not_repeated)?;
        }
        let mut exceptions = self.exceptions.iter();
        exceptions.try_for_each(|(kind, count)| write!(f, "; {kind}: {count} sequences"))
    }
}

/// Runs the sequences of these seeds. Needs root.
///
/// # Errors
/// The first sequence in which ours shows less, cut short, as a script of the named cases; and whatever keeps either
/// side from being asked.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let base = roads::base(16384)?;
    let mut kernel = Kernel::new()?;
    for seed in options.seed..options.seed + options.sequences {
        if report.sequences > 0 && report.sequences.is_multiple_of(SEQUENCES_PER_MOUNT) {
            kernel.unmount()?;
            kernel = Kernel::new()?;
        }
        report.sequences += 1;
        let script = Script::random(&mut Rng::new(seed));
        let asks_kernel = Rng::new(!seed).one_in(options.kernel_every.max(1));
        let faults = judge_one(&mut kernel, &base, &script, options, asks_kernel, &mut report)
            .with_context(|| format!("seed {seed}: {script}"))?;
        let Some(fault) = faults.first() else { continue };
        // The kernel's answer also depends on what else its volume holds: a log needs no chunk that is new.
        if judge_one(&mut kernel, &base, &script, options, false, &mut Report::default())?.is_empty() {
            report.not_repeated += 1;
            continue;
        }
        *report.failed.entry(fault.kind.to_string()).or_default() += 1;
        let short = shorten(&mut kernel, &base, script, options);
        let faults = judge_one(&mut kernel, &base, &short, options, false, &mut Report::default())?;
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        let text = format!("seed {seed}: {short}\n  {}", faults.join("\n  "));
        if !options.keep_going {
            bail!("{text}");
        }
        println!("{text}");
    }
    kernel.unmount()?;
    Ok(report)
}

fn judge_one(
    kernel: &mut Kernel,
    base: &MemDevice,
    script: &Script,
    options: &Options,
    asks_kernel: bool,
    report: &mut Report,
) -> Result<Vec<Fault>> {
    let theirs = kernel.play(script).context("the kernel's side")?;
    let ours = play::ours(base, script).context("our side")?;
    report.images += (theirs.crashes.len() + ours.crashes.len()) as u64;
    for (side, run) in [&theirs, &ours].into_iter().enumerate() {
        report.logs[side] += run.crashes.iter().filter(|crash| crash.has_log).count() as u64;
    }
    if asks_kernel && let Some(crash) = ours.crashes.last() {
        play::replay_by_kernel(crash)?;
        report.by_the_kernel += 1;
    }
    let mut faults = judge::compare(script, &theirs, &ours)?;
    if !options.without_exceptions {
        let (exceptions, others): (Vec<_>, _) = faults.into_iter().partition(|fault| fault.kind.is_exception());
        for kind in exceptions.iter().map(|fault| fault.kind).collect::<BTreeSet<_>>() {
            *report.exceptions.entry(kind).or_default() += 1;
        }
        faults = others;
    }
    Ok(faults)
}

/// Leaves out operations as long as a fault stays.
fn shorten(kernel: &mut Kernel, base: &MemDevice, mut script: Script, options: &Options) -> Script {
    let mut at = script.len();
    while at > 0 {
        at -= 1;
        let shorter = script.without(at);
        let faults = judge_one(kernel, base, &shorter, options, false, &mut Report::default());
        if faults.is_ok_and(|faults| !faults.is_empty()) {
            script = shorter;
        }
    }
    script
}
