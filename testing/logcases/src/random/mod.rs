//! The kernel's btrfs and ours beside each other, at random: after a crash ours has what the
//! kernel's has.
//!
//! A *sequence* (`choose.rs`) is a script: a small tree, a `sync`, operations on names, links,
//! attributes and data, and fsyncs among them. It is played on two volumes in step (`play.rs`).
//! Right after each fsync the power fails on both, each image is replayed, and what they leave is
//! compared, fact by fact (`facts.rs`): where the kernel's shows what an operation before the fsync
//! did, ours shows it, too. More is allowed; what never was is not.
//!
//! What the kernel's log has is told from what its commit has: instead of a log it may commit,
//! which keeps all that was done. Which of the two made a fact durable follows from the
//! superblock's generation: all that the kernel's last commit contains is the commit's.
//!
//! Our own promises ([`cowshed_crash::promise`]) are judged as well. Deviations that are known have
//! names ([`known`]). A failing sequence is made as short as possible (`shrink.rs`) and printed as
//! a case of [`crate::table`].

mod choose;
mod facts;
pub mod known;
mod play;
mod report;
mod shrink;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context as _, Result, anyhow};
use cowshed_device::MemDevice;
use cowshed_device_sim::Rng;
use cowshed_harness::Keep;
use cowshed_model::script::Op;
use facts::{Difference, Wrong};
use play::{Left, Moment, Played};
pub use report::{Failure, Report};

use crate::roads;

/// How much is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    /// Each sequence's seed follows from it.
    pub seed: u64,
    pub sequences: u64,
    /// Instead: this one sequence, by the number that a failure names.
    pub only: Option<u64>,
    /// Instead: this script.
    pub script: Option<Vec<Op>>,
    /// One of so many crashes goes to the kernel, too: it replays its image and ours, as we do.
    pub kernel_every: u64,
    /// What the kernel has by a commit, and known deviations, are faults, too.
    pub without_exceptions: bool,
    /// Ours is not told of the fsyncs, so that it keeps nothing: does the judge find out?
    pub no_fsyncs: bool,
    /// Failing scripts are made short.
    pub shrink: bool,
    /// Ends after so many failing sequences.
    pub failures_max: u64,
    pub jobs: usize,
    pub nodesize_bytes: u32,
    pub keep: Keep,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 1,
            sequences: 1,
            only: None,
            script: None,
            kernel_every: 8,
            without_exceptions: false,
            no_fsyncs: false,
            shrink: true,
            failures_max: 1,
            jobs: 1,
            nodesize_bytes: 16384,
            keep: Keep::new(None),
        }
    }
}

/// A kind of difference, in words: shrinking keeps it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// One of both systems cannot replay a log, or they make different trees of it, or a checker
    /// finds something.
    Replay,
    /// The kernel's log has it, ours does not.
    Logged(String),
    NeverWas(String),
    /// Ours breaks a promise of ours.
    Broken,
    /// A deviation by its name, and what differs.
    Known(&'static str, String),
}

impl Kind {
    fn is_fault(&self, options: &Options) -> bool {
        match self {
            Kind::Replay | Kind::Logged(_) | Kind::NeverWas(_) | Kind::Broken => true,
            Kind::Known(..) => options.without_exceptions,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Logged(what) => write!(f, "the kernel logged, ours has less: {what}"),
            Kind::NeverWas(what) => write!(f, "ours never was so: {what}"),
            Kind::Replay => f.write_str("a log is not replayed, or not alike by both"),
            Kind::Broken => f.write_str("ours breaks a promise"),
            Kind::Known(name, what) => write!(f, "{name}: {what}"),
        }
    }
}

/// What a crash left, and what is wrong with it, by kind, each with what it looks like.
pub(crate) struct Judged {
    pub(crate) kinds: BTreeMap<Kind, String>,
    /// Nothing, where it cannot be read.
    left: Option<Left>,
}

/// Judges the crash of a moment. `by_kernel`: the kernel replays both images, too, and what it
/// makes of its own counts.
pub(crate) fn judge(played: &Played, moment: &Moment, by_kernel: bool) -> Judged {
    let agreed = if by_kernel {
        played.kernel_agrees(moment)
    } else {
        Ok(())
    };
    let left = match agreed.and_then(|()| played.left(moment, by_kernel)) {
        Ok(left) => left,
        Err(error) => {
            return Judged {
                kinds: BTreeMap::from([(Kind::Replay, format!("{error:#}"))]),
                left: None,
            };
        }
    };
    let mut kinds = BTreeMap::new();
    for difference in &left.differences {
        let text = report::describe(played, moment, difference);
        kinds.entry(kind(played, moment, difference)).or_insert(text);
    }
    if let Some(broken) = &left.broken {
        kinds.insert(Kind::Broken, broken.clone());
    }
    Judged {
        kinds,
        left: Some(left),
    }
}

fn kind(played: &Played, moment: &Moment, difference: &Difference) -> Kind {
    let sort = difference.fact.sort();
    let what = match (&difference.kernels, &difference.ours) {
        _ if difference.wrong == Wrong::NeverWas => return Kind::NeverWas(sort.into()),
        (Some(_), None) => format!("{sort} is missing"),
        (None, Some(_)) => format!("{sort} is still there"),
        _ => format!("{sort} is an old one"),
    };
    let known = |known: &&known::Deviation| (known.is_one)(difference, moment, played);
    if let Some(known) = known::KNOWN.iter().find(known) {
        return Kind::Known(known.name, what);
    }
    Kind::Logged(what)
}

/// Plays sequences and judges their crashes. Needs root and the kernel's btrfs. An error is one of
/// the machinery; what is wrong with the engine stands in the report, and is told at once.
pub fn run(options: &Options, tell: &(dyn Fn(&Failure) + Sync)) -> Result<Report> {
    let report = Mutex::new(Report::default());
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut rng = Rng::new(options.seed);
    let seeds: Vec<u64> = match (options.only, &options.script) {
        (Some(seed), _) => vec![seed],
        (None, Some(_)) => vec![options.seed],
        (None, None) => (0..options.sequences).map(|_| rng.next_u64()).collect(),
    };
    let work = || -> Result<()> {
        let base = roads::base(options.nodesize_bytes)?;
        while !stop.load(Ordering::Relaxed) {
            let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) else {
                break;
            };
            let done = sequence(&base, seed, options).with_context(|| format!("sequence {seed}"));
            let Ok(part) = done else {
                stop.store(true, Ordering::Relaxed);
                return done.map(drop);
            };
            let mut report = report.lock().unwrap_or_else(|e| e.into_inner());
            part.failures.iter().for_each(tell);
            report.add(part);
            if report.failures.len() as u64 >= options.failures_max {
                stop.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(report.into_inner().unwrap_or_else(|e| e.into_inner()))
}

fn sequence(base: &MemDevice, seed: u64, options: &Options) -> Result<Report> {
    let mut rng = Rng::new(seed);
    let script = match &options.script {
        Some(script) => script.clone(),
        None => choose::script(&mut rng),
    };
    let told = || cowshed_model::script::script(&script);
    let played = Played::new(base, &script, options.no_fsyncs).with_context(told)?;
    let mut part = Report {
        sequences: 1,
        ..Report::default()
    };
    for moment in &played.moments {
        let to_kernel = rng.one_in(options.kernel_every.max(1));
        let is_fault = |judged: &Judged| judged.kinds.keys().any(|kind| kind.is_fault(options));
        let mut judged = judge(&played, moment, to_kernel);
        if !to_kernel && is_fault(&judged) {
            // That it is a difference between the two systems, the kernel's own replay has to
            // confirm.
            judged = judge(&played, moment, true);
        }
        part.count(moment, &judged.kinds, to_kernel);
        if let Some(kind) = judged.kinds.keys().find(|kind| kind.is_fault(options)) {
            let failure = fail(base, seed, &played.ops[..moment.ops], kind, options)?;
            part.once += u64::from(failure.is_none());
            part.failures.extend(failure);
            break;
        }
    }
    Ok(part)
}

/// What a failure looks like, as short as it can be made. Nothing, where it does not come again: a
/// sync of the whole machine makes the kernel commit at any time, and we always do the same.
fn fail(base: &MemDevice, seed: u64, ops: &[Op], kind: &Kind, options: &Options) -> Result<Option<Failure>> {
    let short = match options.shrink {
        true => shrink::shrink(base, ops, kind, options.no_fsyncs),
        false => ops.to_vec(),
    };
    let played = Played::new(base, &short, options.no_fsyncs)?;
    let moment = played.moments.last().context("no fsync")?;
    let Judged { kinds, left } = judge(&played, moment, true);
    let Some(text) = kinds.get(kind) else { return Ok(None) };
    let mut failure = Failure {
        seed,
        kind: kind.to_string(),
        text: text.clone(),
        script: cowshed_model::script::script(&short),
        case: left.map(|left| report::case(seed, &played, moment, &left)),
        whole: cowshed_model::script::script(ops),
        answers: moment.answers,
        kept: None,
    };
    if *kind == Kind::Replay {
        let name = format!("random-{seed}");
        let kept = options
            .keep
            .devices(&name, Played::images(moment), anyhow!("{failure}"));
        failure.kept = Some(kept.to_string());
    }
    Ok(Some(failure))
}
