//! The n-th I/O fails, for every n of a run.
//!
//! The run is done once on a healthy device, which gives the right answers. Then once per I/O and
//! kind of fault:
//!
//! * until the first error every operation answers as on the healthy device, and so does reading
//!   everything at the end;
//! * a sync that succeeds leaves on the device what the mount shows, whatever failed before: an
//!   fsync that failed is never followed by one that pretends;
//! * a device that takes no writes or no barriers any more makes the mount read-only with the next
//!   commit, whatever failed before it; once a commit has failed no sync succeeds and nothing can
//!   be changed any more;
//! * in the end the checker finds nothing, and a fresh mount on the healthy device sees a state
//!   that was committed, not older than the last acknowledged sync, in which all holds that was
//!   promised ([`crate::promise`]), as it does after each sync that succeeds; with a log, every
//!   file that was synced is there as it was then, unless something was done to it since that can
//!   be seen.
//!
//! Of a fault that comes once, or for good, little is seen: a repetition, or a second copy, heals
//! the one, and after the other nothing succeeds any more. Therefore outages, too, of several
//! operations in a row: a sync that fails is asked for again.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use btrfs_check::{Finding, FindingId};
use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_device::BlockDevice;
use cowshed_device_sim::{Counts, Fault, FaultKind, FaultPlan, FaultyDevice, On, Repeat, Rng};
use cowshed_model::script::{Op, Scope};
use cowshed_model::tree::{self, Node, Tree};
use cowshed_vfs::{Error, FileKind, FileSystem as _, NodeId, Timestamp};

use crate::compressed;
use crate::noted;
use crate::promise::History;
use crate::rig::Player;
use crate::rig::{self, Devices, Fs, Layout, ROOT};
use crate::workload::{self, Mix};

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub counts: Counts,
    pub runs: u64,
    /// Runs in which some operation failed; in the others the fault did no harm.
    pub failing: u64,
    /// Runs that ended read-only.
    pub aborted: u64,
    /// Runs whose files could not be read any more in the end: what they promised until then is not
    /// judged in all.
    pub unseen: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            reads, writes, flushes, ..
        } = self.counts;
        write!(
            f,
            "{reads} reads, {writes} writes, {flushes} barriers: {} runs with a fault, {} with errors, {} read-only after, {} unseen",
            self.runs, self.failing, self.aborted, self.unseen
        )
    }
}

type Answer = std::result::Result<(), Error>;

/// How many operations in a row an outage hits. The engine repeats a write once; so does a second
/// copy stand in for the first.
const OUTAGES: [u64; 3] = [2, 4, 8];
/// So often a sync that fails in an outage is asked for again.
const AGAIN_MAX: usize = 4;

/// A run on a healthy device, which a faulty one is like until its fault hits.
struct Healthy {
    bases: Devices,
    ops: Vec<Op>,
    /// Fsyncs write logs.
    tree_log: bool,
    /// See [`compressed::drawn`].
    compress: Option<CompressPolicy>,
    /// After each operation.
    moments: Vec<Moment>,
    /// By generation, as a fresh mount on the device sees them; the first is from before the run.
    states: BTreeMap<u64, Tree>,
    history: History,
    end: Tree,
    counts: Counts,
}

struct Moment {
    answer: Answer,
    /// What an fsync was asked for, and then showed.
    synced: Option<Node>,
    committed: u64,
    acknowledged: u64,
}

fn faulty(devices: &Devices, plan: &FaultPlan) -> Vec<Arc<dyn BlockDevice>> {
    rig::shared(devices)
        .into_iter()
        .map(|device| Arc::new(FaultyDevice::new(device, plan.clone())) as Arc<dyn BlockDevice>)
        .collect()
}

fn healthy(seed: u64, layout: Layout, mix: Mix, count: usize) -> Result<Healthy> {
    let mut rng = Rng::new(seed);
    let bases = rig::make(layout, 4096, 0xfa)?;
    let compress = compressed::drawn(seed);
    let fs = rig::mount_as(rig::shared(&bases), false, compressed::options(compress))?;
    let first = workload::choose(&mut rng, Mix::Everything, 40);
    for op in first.into_iter().filter(|op| !op.makes_in_place()) {
        let _ = Player::new(&fs).apply(&op);
    }
    fs.destroy();
    drop(fs);
    let mut ops = workload::choose(&mut rng, mix, count);
    // What has no checksums rots unseen, and is in part what it was and in part what it became.
    ops.retain(|op| !op.makes_in_place());
    // Without a look at it, which would warm the caches: so many operations there are to fail.
    let plan = FaultPlan::new();
    let devices = rig::snapshots(&bases);
    let tree_log = mix == Mix::Syncs;
    let fs = rig::mount_to_watch(faulty(&devices, &plan), tree_log, compressed::options(compress))?;
    let answers: Vec<Answer> = ops.iter().map(|op| Player::new(&fs).apply(op)).collect();
    let end = tree::take(&fs)?;
    let counts = plan.counts();
    rig::abandon(fs);
    // Once more, with all eyes on it.
    let devices = rig::snapshots(&bases);
    let before = cold(&devices)?;
    let fs = rig::mount_to_watch(faulty(&devices, &plan), tree_log, compressed::options(compress))?;
    let history = History::new(&tree::take(&fs)?);
    let mut run = Faulty {
        devices,
        fs,
        plan,
        acknowledged: before.0,
        states: BTreeMap::from([before]),
        promised: BTreeMap::new(),
        history: Some(history),
        at_abort: None,
        failed: false,
        tree_log,
    };
    let mut moments = Vec::new();
    for (op, expected) in ops.iter().zip(answers) {
        run.step(op, expected)
            .with_context(|| format!("`{op}` on a healthy device"))?;
        moments.push(Moment {
            answer: expected,
            synced: run.synced_node(op),
            committed: run.fs.mount().store().txn().committed().get(),
            acknowledged: run.acknowledged,
        });
    }
    ensure!(!run.failed, "an operation fails on a healthy device");
    let differences = tree::differences(&end, &tree::take(&run.fs)?);
    ensure!(differences.is_empty(), "to look has changed something:\n{differences}");
    rig::abandon(run.fs);
    Ok(Healthy {
        bases,
        ops,
        tree_log,
        compress,
        moments,
        states: run.states,
        history: run.history.context("the files of a healthy device cannot be read")?,
        end,
        counts,
    })
}

/// Lets each I/O of a run fail, in each way.
pub fn every_io_fails(seed: u64, layout: Layout, mix: Mix, ops: usize) -> Result<Report> {
    let healthy = healthy(seed, layout, mix, ops)?;
    let mut report = Report {
        counts: healthy.counts,
        ..Report::default()
    };
    let ways = [
        (On::Read, healthy.counts.reads, FaultKind::Error),
        (On::Read, healthy.counts.reads, FaultKind::Rotten { seed }),
        (On::Write, healthy.counts.writes, FaultKind::Error),
        (
            On::Write,
            healthy.counts.writes,
            FaultKind::Torn {
                keep_bytes: 512,
                reported: true,
            },
        ),
        (On::Flush, healthy.counts.flushes, FaultKind::Error),
        (On::Discard, healthy.counts.discards, FaultKind::Error),
    ];
    for (on, count, kind) in ways {
        let has_outages = !matches!(on, On::Read | On::Discard);
        let outages = OUTAGES.map(Repeat::Times).into_iter().filter(|_| has_outages);
        let repeats: Vec<Repeat> = [Repeat::Once, Repeat::Forever].into_iter().chain(outages).collect();
        for (nth, repeat) in (0..count).flat_map(|nth| repeats.iter().map(move |repeat| (nth, *repeat))) {
            let fault = Fault {
                repeat,
                ..Fault::error(on, nth).with_kind(kind.clone())
            };
            // Looking at a device that can no longer be read fills the caches for the rest of the
            // run.
            let is_unreadable = on == On::Read && repeat == Repeat::Forever;
            for is_watched in [true, false].into_iter().filter(|watched| *watched || is_unreadable) {
                let name =
                    || format!("seed {seed}, {layout:?}, {mix:?}, {ops} operations, {fault:?}, watched: {is_watched}");
                let outcome = one_run(&healthy, &fault, is_watched).with_context(name)?;
                let is_harmless = on != On::Discard || !(outcome.failed || outcome.aborted);
                ensure!(is_harmless, "{}: a discard that fails does harm", name());
                report.runs += 1;
                report.failing += u64::from(outcome.failed);
                report.aborted += u64::from(outcome.aborted);
                report.unseen += u64::from(is_watched && !outcome.seen);
            }
        }
    }
    Ok(report)
}

#[derive(Default)]
struct Outcome {
    failed: bool,
    aborted: bool,
    /// All of its states were seen.
    seen: bool,
}

/// The state of one faulty run.
struct Faulty {
    devices: Devices,
    fs: Fs,
    plan: FaultPlan,
    /// By generation, as a fresh mount on the healthy device sees them.
    states: BTreeMap<u64, Tree>,
    acknowledged: u64,
    /// Files as they were when an fsync of them succeeded, if no operation named them since that
    /// changes anything.
    promised: BTreeMap<String, Node>,
    /// All states, and what syncs promised of them. None in a run that is not watched, or no more:
    /// its files could not be read.
    history: Option<History>,
    /// What the mount shows, where a sync of all made it read-only: the commit that it had begun.
    at_abort: Option<Tree>,
    failed: bool,
    tree_log: bool,
}

fn one_run(healthy: &Healthy, fault: &Fault, is_watched: bool) -> Result<Outcome> {
    let devices = rig::snapshots(&healthy.bases);
    let plan = FaultPlan::new();
    plan.add(fault.clone());
    let (first, before) = healthy.states.first_key_value().context("no state before the run")?;
    let mount = compressed::options(healthy.compress);
    let Ok(fs) = rig::mount_to_watch(faulty(&devices, &plan), healthy.tree_log, mount) else {
        ensure!(plan.counts().faults > 0, "the mount fails without a fault");
        ensure!(cold(&devices)?.1 == *before, "a mount that failed changed files");
        return Ok(Outcome {
            failed: true,
            aborted: false,
            seen: true,
        });
    };
    let mut run = Faulty {
        devices,
        fs,
        plan,
        acknowledged: *first,
        states: BTreeMap::new(),
        promised: BTreeMap::new(),
        history: None,
        at_abort: None,
        failed: false,
        tree_log: healthy.tree_log,
    };
    let mut has_begun = false;
    for (index, (op, moment)) in healthy.ops.iter().zip(&healthy.moments).enumerate() {
        let was_aborted = run.fs.mount().store().txn().is_aborted();
        let answer = Player::new(&run.fs).apply(op);
        if run.plan.counts().faults == 0 {
            let expected = moment.answer;
            ensure!(answer == expected, "`{op}` answers {answer:?} instead of {expected:?}");
            continue;
        }
        if !std::mem::replace(&mut has_begun, true) {
            run.begin(healthy, index, is_watched);
        }
        run.judge(op, answer, moment.answer, was_aborted)
            .and_then(|()| match fault.repeat {
                Repeat::Times(_) if answer.is_err() => run.again(op),
                Repeat::Once | Repeat::Times(_) | Repeat::Forever => Ok(()),
            })
            .with_context(|| format!("{index}: `{op}`"))?;
    }
    if !has_begun {
        run.begin(healthy, healthy.ops.len(), is_watched);
    }
    let outcome = run.finish(&healthy.end, fault)?;
    Ok(Outcome {
        seen: outcome.seen || !is_watched,
        ..outcome
    })
}

impl Faulty {
    /// The fault hits with the operation of this number: until then all was as in the healthy run.
    fn begin(&mut self, healthy: &Healthy, index: usize, is_watched: bool) {
        let before = &healthy.moments[..index];
        for (op, moment) in healthy.ops.iter().zip(before) {
            self.note_promise(op, moment.answer, moment.synced.clone());
        }
        let first = healthy.states.keys().next().copied().unwrap_or(0);
        self.acknowledged = before.last().map_or(first, |moment| moment.acknowledged);
        let committed = before.last().map_or(first, |moment| moment.committed);
        let states = healthy.states.range(..=committed);
        self.states = states.map(|(at, tree)| (*at, tree.clone())).collect();
        self.history = is_watched.then(|| healthy.history.until(index));
    }

    /// Does an operation; gives whether it succeeded.
    fn step(&mut self, op: &Op, expected: Answer) -> Result<bool> {
        let was_aborted = self.fs.mount().store().txn().is_aborted();
        let answer = Player::new(&self.fs).apply(op);
        self.judge(op, answer, expected, was_aborted)?;
        Ok(answer.is_ok())
    }

    /// After a failed sync, asks for it again: it fails again, or does what it promises.
    fn again(&mut self, op: &Op) -> Result<()> {
        let only_syncs = matches!(op, Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Sync);
        for n in 0..AGAIN_MAX {
            if !only_syncs || !self.failed || self.step(op, Ok(())).with_context(|| format!("{n} times again"))? {
                break;
            }
        }
        Ok(())
    }

    /// Judges an operation.
    fn judge(&mut self, op: &Op, answer: Answer, expected: Answer, was_aborted: bool) -> Result<()> {
        if answer.is_err_and(|error| !workload::is_outcome(error)) {
            self.failed = true;
        } else if !self.failed {
            ensure!(answer == expected, "answers {answer:?} instead of {expected:?}");
        }
        self.note_state()?;
        self.note_promise(op, answer, self.synced_node(op));
        self.watch(op, answer)?;
        if *op == Op::Sync && !was_aborted && self.fs.mount().store().txn().is_aborted() {
            self.at_abort = self.look(|| tree::take(&self.fs)).ok();
        }
        let syncs = op.synced().is_some() || matches!(op, Op::Sync | Op::Group { commit: true, .. });
        if !syncs || answer.is_err() {
            return Ok(());
        }
        ensure!(!was_aborted, "succeeds although a commit failed before");
        self.acknowledged = self.fs.mount().store().txn().committed().get();
        // Reading may fail; what it shows must be on the device.
        let (_, disk) = cold(&self.devices)?;
        self.check_promises(&disk)?;
        match (op.synced(), op) {
            (Some((path, scope)), _) => self.compare_one(path, scope, &disk),
            (None, Op::Group { writes, .. }) => writes
                .iter()
                .try_for_each(|write| self.compare_one(&write.path, Scope::All, &disk)),
            _ => self.compare_live(&disk),
        }
    }

    /// In a run that is watched, no fault hits the reads of the judge.
    fn look<T>(&self, look: impl FnOnce() -> T) -> T {
        match self.history {
            Some(_) => self.plan.aside(look),
            None => look(),
        }
    }

    /// What an fsync was asked for.
    fn synced_node(&self, op: &Op) -> Option<Node> {
        let Op::Fsync { path } = op else { return None };
        let load = |node| tree::load(&self.fs, node);
        self.look(|| Player::new(&self.fs).at(path, load)).ok()
    }

    /// Notes the state after an operation and what that has promised.
    fn watch(&mut self, op: &Op, answer: Answer) -> Result<()> {
        let seen = self.look(|| tree::take(&self.fs));
        let Some((mut history, seen)) = self.history.take().zip(seen.ok()) else {
            return Ok(());
        };
        let root = seen[""].ino;
        let index = history.note(&seen, None);
        if answer.is_ok() {
            noted::unseen(op, &history, index, root)?;
            noted::promise(op, true, &mut history, index, root);
        }
        self.history = Some(history);
        Ok(())
    }

    /// What a fresh mount shows keeps all that was promised until now.
    fn check_promises(&self, disk: &Tree) -> Result<()> {
        match &self.history {
            Some(history) => history.check(disk, history.newest()),
            None => Ok(()),
        }
    }

    fn compare_one(&self, path: &str, scope: Scope, disk: &Tree) -> Result<()> {
        let load = |node| tree::load(&self.fs, node);
        let live = self.look(|| Player::new(&self.fs).at(path, load));
        if let Ok(mut live) = live {
            let there = disk.get(path);
            if scope == Scope::Data {
                live.mtime = there.map_or(live.mtime, |there| there.mtime);
            }
            ensure!(
                there == Some(&live),
                "{path}: the device has something else than the mount shows"
            );
        }
        Ok(())
    }

    /// A file that an fsync was acknowledged for; files that the operation names, or a directory
    /// above them, may have changed.
    fn note_promise(&mut self, op: &Op, answer: Answer, synced: Option<Node>) {
        match op {
            Op::Sync | Op::Defrag { .. } | Op::Dedupe { .. } => {}
            Op::Fsync { path } => {
                if let (Some(node), Ok(())) = (synced, answer)
                    // Another name might lead to it, which says nothing when it is used.
                    && (node.kind, node.nlink) == (FileKind::Regular, 1)
                {
                    self.promised.insert(path.clone(), node);
                }
            }
            other => {
                let text = format!("{other:?}");
                let names = |path: &str| text.contains(&format!("{path:?}"));
                self.promised.retain(|path, _| {
                    let above = path.match_indices('/').map(|(end, _)| &path[..end]);
                    !above.chain([path.as_str()]).any(names)
                });
            }
        }
    }

    /// The device takes no writes, or no barriers, any more: the mount must become read-only over
    /// it.
    fn must_abort(&mut self) -> Result<()> {
        let was_aborted = self.fs.mount().store().txn().is_aborted();
        let made = self.mkdir("last")?;
        ensure!(
            made.is_ok() != was_aborted,
            "a change before the last sync gives {made:?}"
        );
        let synced = self.fs.syncfs(&ROOT, NodeId::ROOT);
        self.watch(&Op::Sync, synced)?;
        ensure!(synced.is_err(), "a sync succeeds on a device that fails");
        ensure!(
            self.fs.mount().store().txn().is_aborted(),
            "the mount goes on after a commit that failed"
        );
        self.failed = true;
        let after = self.mkdir("more")?;
        ensure!(after == Err(Error::ReadOnly), "a change after an abort gives {after:?}");
        self.note_state()
    }

    fn mkdir(&mut self, name: &str) -> Result<Answer> {
        let op = Op::mkdir(name);
        let made = Player::new(&self.fs).apply(&op);
        self.watch(&op, made)?;
        Ok(made)
    }

    fn note_state(&mut self) -> Result<()> {
        let generation = self.fs.mount().store().txn().committed().get();
        if !self.states.contains_key(&generation) {
            let (found, tree) = cold(&self.devices)?;
            ensure!(
                found == generation,
                "committed {generation}, but the device is at {found}"
            );
            self.states.insert(generation, tree);
        }
        Ok(())
    }

    fn compare_live(&self, disk: &Tree) -> Result<()> {
        if let Ok(live) = self.look(|| tree::take(&self.fs)) {
            let differences = tree::differences(&live, disk);
            ensure!(
                differences.is_empty(),
                "the device differs from what the mount shows:\n{differences}"
            );
        }
        Ok(())
    }

    fn finish(mut self, end: &Tree, fault: &Fault) -> Result<Outcome> {
        match tree::take(&self.fs) {
            Ok(live) if !self.failed => {
                // A log that fails becomes a commit, which looks at the clock once more.
                let timeless = |tree: &Tree| {
                    let mut tree = tree.clone();
                    let clocks = tree.values_mut().filter(|_| self.tree_log);
                    clocks.for_each(|node| node.mtime = Timestamp::default());
                    tree
                };
                let differences = tree::differences(&timeless(end), &timeless(&live));
                ensure!(differences.is_empty(), "wrong answers without an error:\n{differences}");
            }
            Ok(_) => {}
            Err(error) => ensure!(self.plan.counts().faults > 0, "{error} without a fault"),
        }
        let is_for_good = fault.repeat == Repeat::Forever && matches!(fault.on, On::Write | On::Flush);
        if is_for_good && self.plan.counts().faults > 0 {
            self.must_abort()?;
        }
        self.plan.clear();
        let was_aborted = self.fs.mount().store().txn().is_aborted();
        let synced = self.fs.syncfs(&ROOT, NodeId::ROOT);
        self.watch(&Op::Sync, synced)?;
        self.note_state()?;
        if synced.is_ok() {
            ensure!(!was_aborted, "a sync succeeds although a commit failed before");
            self.acknowledged = self.fs.mount().store().txn().committed().get();
            let (_, disk) = cold(&self.devices)?;
            self.compare_live(&disk).context("after the last sync")?;
        }
        let aborted = self.fs.mount().store().txn().is_aborted();
        rig::abandon(self.fs);
        let (_, has_log) = rig::state(rig::shared(&self.devices))?;
        // What lies behind a checksum in its field is not covered by it: rot there passes into a
        // repaired copy.
        let is_rotten = matches!(fault.kind, FaultKind::Rotten { .. });
        let refused = self.plan.refused();
        let allowed = |found: &Finding, all: &[Finding]| {
            is_rotten && found.id == FindingId::BlockCopiesDiffer || is_refused_copy(found, all, &refused)
        };
        rig::check_clean_but(&rig::shared(&self.devices), allowed)?;
        let (generation, tree) = cold(&self.devices)?;
        if let Some(history) = &self.history {
            history.check(&tree, history.newest()).context("at the end")?;
        }
        let newest = self.states.keys().next_back().copied().unwrap_or(0);
        ensure!(
            generation >= self.acknowledged,
            "{generation} is older than what was acknowledged"
        );
        let mut broken = self
            .promised
            .iter()
            .filter(|(path, node)| tree.get(*path) != Some(*node));
        if let Some((path, node)) = broken.next() {
            let differences = tree::differences(&Tree::from([(path.clone(), node.clone())]), &tree);
            return Err(anyhow!("{path} was synced and is not as it was then:\n{differences}"));
        }
        match self.states.get(&generation) {
            // Older by what was synced since.
            _ if has_log => {}
            Some(state) => {
                let differences = tree::differences(state, &tree);
                ensure!(
                    differences.is_empty(),
                    "not as generation {generation} was:\n{differences}"
                );
            }
            // The superblock got there, but the commit could not be sure of it.
            None if aborted && generation == newest + 1 => {
                let differences = self
                    .at_abort
                    .map(|live| tree::differences(&live, &tree))
                    .unwrap_or_default();
                ensure!(
                    differences.is_empty(),
                    "not as the commit that could not be sure was:\n{differences}"
                );
            }
            None => return Err(anyhow!("no commit made generation {generation}")),
        }
        Ok(Outcome {
            failed: self.failed,
            aborted,
            seen: self.history.is_some(),
        })
    }
}

/// A copy that a device did not take, and another one is whole: so much a write may lose.
fn is_refused_copy(found: &Finding, all: &[Finding], refused: &[Range<u64>]) -> bool {
    let Some((number, copies, at)) = copy_of(found) else {
        return false;
    };
    let of_same = all.iter().filter(|other| other.site.block == found.site.block);
    let mut bad: Vec<u64> = of_same.filter_map(copy_of).map(|copy| copy.0).collect();
    bad.push(number);
    bad.sort_unstable();
    bad.dedup();
    (bad.len() as u64) < copies && refused.iter().any(|range| range.contains(&at))
}

/// What the checker finds of one copy, "copy 1 of 2, device 1 byte 39108608: ...": which, of how
/// many, and where on its device.
fn copy_of(found: &Finding) -> Option<(u64, u64, u64)> {
    let (number, rest) = found.message.strip_prefix("copy ")?.split_once(" of ")?;
    let (copies, rest) = rest.split_once(", device ")?;
    let (at, _) = rest.split_once(" byte ")?.1.split_once(':')?;
    Some((number.parse().ok()?, copies.parse().ok()?, at.parse().ok()?))
}

/// Opens copies of the devices: the generation that their superblocks name, and the files.
fn cold(devices: &Devices) -> Result<(u64, Tree)> {
    let copies = rig::snapshots(devices);
    let (generation, _) = rig::state(rig::shared(&copies))?;
    let fs = rig::mount(rig::shared(&copies))?;
    let tree = tree::take(&fs)?;
    rig::abandon(fs);
    Ok((generation, tree))
}
