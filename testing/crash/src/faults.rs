//! The n-th I/O fails, for every n of a run.
//!
//! The run is done once on a healthy device, which gives the right answers. Then once per I/O and kind of fault:
//!
//! * until the first error every operation answers as on the healthy device, and so does reading everything at the end;
//! * a sync that succeeds leaves on the device what the mount shows, whatever failed before: an fsync that failed is never
//!   followed by one that pretends;
//! * a device that takes no writes or no barriers any more makes the mount read-only with the next commit, whatever failed before
//!   it; once a commit has failed no sync succeeds and nothing can be changed any more;
//! * in the end the checker finds nothing, and a fresh mount on the healthy device sees a state that was committed, not
//!   older than the last acknowledged sync; with a log, every file that was synced is there as it was then, unless something was done
//!   to it since.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use btrfs_check::{Finding, FindingId};
use cowshed_btrfs::fs::Fs;
use cowshed_device::BlockDevice;
use cowshed_device_sim::{Counts, Fault, FaultKind, FaultPlan, FaultyDevice, On, Repeat, Rng};
use cowshed_vfs::{Error, FileKind, FileSystem as _, NodeId, Timestamp};

use crate::rig::{self, Devices, Layout, ROOT};
use crate::tree::{self, Node, Tree};
use crate::workload::{self, Mix, Op, Player, Scope};

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub counts: Counts,
    pub runs: u64,
    /// Runs in which some operation failed; in the others the fault did no harm.
    pub failing: u64,
    /// Runs that ended read-only.
    pub aborted: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            reads, writes, flushes, ..
        } = self.counts;
        write!(
            f,
            "{reads} reads, {writes} writes, {flushes} barriers: {} runs with a fault, {} with errors, {} read-only after",
            self.runs, self.failing, self.aborted
        )
    }
}

type Answer = std::result::Result<(), Error>;

/// A run on a healthy device.
struct Healthy {
    bases: Devices,
    ops: Vec<Op>,
    answers: Vec<Answer>,
    /// Fsyncs write logs.
    tree_log: bool,
    end: Tree,
    counts: Counts,
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
    let fs = rig::mount(rig::shared(&bases))?;
    let first = workload::choose(&mut rng, Mix::Everything, 40);
    for op in first.into_iter().filter(|op| !op.makes_in_place()) {
        let _ = Player::new(&fs).apply(&op);
    }
    fs.destroy();
    drop(fs);
    let mut ops = workload::choose(&mut rng, mix, count);
    // What has no checksums rots unseen, and is in part what it was and in part what it became.
    ops.retain(|op| !op.makes_in_place());
    let plan = FaultPlan::new();
    let devices = rig::snapshots(&bases);
    let tree_log = mix == Mix::Syncs;
    let fs = rig::mount_with(faulty(&devices, &plan), tree_log)?;
    let answer = |op: &Op| {
        let answer = Player::new(&fs).apply(op);
        // To look is to look at the clock, too: both runs do.
        synced_node(&fs, op);
        answer
    };
    let answers: Vec<Answer> = ops.iter().map(answer).collect();
    let end = tree::take(&fs)?;
    let counts = plan.counts();
    rig::abandon(fs);
    Ok(Healthy {
        bases,
        ops,
        answers,
        tree_log,
        end,
        counts,
    })
}

/// What an fsync was asked for.
fn synced_node(fs: &Fs, op: &Op) -> Option<Node> {
    let Op::Fsync { path } = op else { return None };
    Player::new(fs).at(path, |node| tree::load(fs, node)).ok()
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
    ];
    for (on, count, kind) in ways {
        for nth in 0..count {
            for repeat in [Repeat::Once, Repeat::Forever] {
                let fault = Fault {
                    repeat,
                    ..Fault::error(on, nth).with_kind(kind.clone())
                };
                let name = || format!("seed {seed}, {layout:?}, {ops} operations, {fault:?}");
                let outcome = one_run(&healthy, &fault).with_context(name)?;
                report.runs += 1;
                report.failing += u64::from(outcome.failed);
                report.aborted += u64::from(outcome.aborted);
            }
        }
    }
    Ok(report)
}

#[derive(Default)]
struct Outcome {
    failed: bool,
    aborted: bool,
}

/// The state of one faulty run.
struct Faulty {
    devices: Devices,
    fs: Fs,
    /// By generation, as a fresh mount on the healthy device sees them.
    states: BTreeMap<u64, Tree>,
    acknowledged: u64,
    /// Files as they were when an fsync of them succeeded, if no operation named them since.
    promised: BTreeMap<String, Node>,
    /// What the mount shows, where a sync of all made it read-only: the commit that it had begun.
    at_abort: Option<Tree>,
    failed: bool,
    tree_log: bool,
}

fn one_run(healthy: &Healthy, fault: &Fault) -> Result<Outcome> {
    let devices = rig::snapshots(&healthy.bases);
    let before = cold(&devices)?;
    let plan = FaultPlan::new();
    plan.add(fault.clone());
    let Ok(fs) = rig::mount_with(faulty(&devices, &plan), healthy.tree_log) else {
        ensure!(plan.counts().faults > 0, "the mount fails without a fault");
        let after = cold(&devices)?;
        ensure!(before.1 == after.1, "a mount that failed changed files");
        return Ok(Outcome {
            failed: true,
            aborted: false,
        });
    };
    let mut run = Faulty {
        devices,
        fs,
        acknowledged: before.0,
        states: BTreeMap::from([before]),
        promised: BTreeMap::new(),
        at_abort: None,
        failed: false,
        tree_log: healthy.tree_log,
    };
    for (op, expected) in healthy.ops.iter().zip(&healthy.answers) {
        run.step(op, *expected).with_context(|| format!("{op:?}"))?;
    }
    run.finish(&healthy.end, &plan, fault)
}

impl Faulty {
    fn step(&mut self, op: &Op, expected: Answer) -> Result<()> {
        let was_aborted = self.fs.engine().txn.is_aborted();
        let answer = Player::new(&self.fs).apply(op);
        if answer.is_err_and(|error| !workload::is_outcome(error)) {
            self.failed = true;
        } else if !self.failed {
            ensure!(answer == expected, "answers {answer:?} instead of {expected:?}");
        }
        self.note_state()?;
        self.note_promise(op, answer);
        if *op == Op::Sync && !was_aborted && self.fs.engine().txn.is_aborted() {
            self.at_abort = tree::take(&self.fs).ok();
        }
        let syncs = op.synced().is_some() || matches!(op, Op::Sync | Op::Group { commit: true, .. });
        if !syncs || answer.is_err() {
            return Ok(());
        }
        ensure!(!was_aborted, "succeeds although a commit failed before");
        self.acknowledged = self.fs.engine().txn.committed().get();
        if !self.failed && !self.tree_log {
            return Ok(());
        }
        // Reading may fail; what it shows must be on the device.
        let (_, disk) = cold(&self.devices)?;
        match (op.synced(), op) {
            (Some((path, scope)), _) => self.compare_one(path, scope, &disk),
            (None, Op::Group { writes, .. }) => writes
                .iter()
                .try_for_each(|write| self.compare_one(&write.path, Scope::All, &disk)),
            _ => self.compare_live(&disk),
        }
    }

    fn compare_one(&self, path: &str, scope: Scope, disk: &Tree) -> Result<()> {
        let live = Player::new(&self.fs).at(path, |node| tree::load(&self.fs, node));
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

    /// A file that an fsync was acknowledged for; files that the operation names, or a directory above them, may have changed.
    fn note_promise(&mut self, op: &Op, answer: Answer) {
        match op {
            Op::Sync => {}
            Op::Fsync { path } => {
                if let (Some(node), Ok(())) = (synced_node(&self.fs, op), answer)
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

    /// The device takes no writes, or no barriers, any more: the mount must become read-only over it.
    fn must_abort(&mut self) -> Result<()> {
        let player = Player::new(&self.fs);
        let mkdir = |name: &str| player.apply(&Op::Mkdir { path: name.into() });
        let was_aborted = self.fs.engine().txn.is_aborted();
        let made = mkdir("last");
        ensure!(
            made.is_ok() != was_aborted,
            "a change before the last sync gives {made:?}"
        );
        ensure!(
            self.fs.syncfs(&ROOT, NodeId::ROOT).is_err(),
            "a sync succeeds on a device that fails"
        );
        ensure!(
            self.fs.engine().txn.is_aborted(),
            "the mount goes on after a commit that failed"
        );
        self.failed = true;
        let after = mkdir("more");
        ensure!(after == Err(Error::ReadOnly), "a change after an abort gives {after:?}");
        self.note_state()
    }

    fn note_state(&mut self) -> Result<()> {
        let generation = self.fs.engine().txn.committed().get();
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
        if let Ok(live) = tree::take(&self.fs) {
            let differences = tree::differences(&live, disk);
            ensure!(
                differences.is_empty(),
                "the device differs from what the mount shows:\n{differences}"
            );
        }
        Ok(())
    }

    fn finish(mut self, end: &Tree, plan: &FaultPlan, fault: &Fault) -> Result<Outcome> {
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
            Err(error) => ensure!(plan.counts().faults > 0, "{error} without a fault"),
        }
        let is_for_good = fault.repeat == Repeat::Forever && matches!(fault.on, On::Write | On::Flush);
        if is_for_good && plan.counts().faults > 0 {
            self.must_abort()?;
        }
        plan.clear();
        let was_aborted = self.fs.engine().txn.is_aborted();
        let synced = self.fs.syncfs(&ROOT, NodeId::ROOT);
        self.note_state()?;
        if synced.is_ok() {
            ensure!(!was_aborted, "a sync succeeds although a commit failed before");
            self.acknowledged = self.fs.engine().txn.committed().get();
            let (_, disk) = cold(&self.devices)?;
            self.compare_live(&disk).context("after the last sync")?;
        }
        let aborted = self.fs.engine().txn.is_aborted();
        rig::abandon(self.fs);
        let (_, has_log) = rig::state(rig::shared(&self.devices))?;
        // What lies behind a checksum in its field is not covered by it: rot there passes into a repaired copy.
        let is_rotten = matches!(fault.kind, FaultKind::Rotten { .. });
        let allowed = |found: &Finding| is_rotten && found.id == FindingId::BlockCopiesDiffer;
        rig::check_clean_but(&rig::shared(&self.devices), allowed)?;
        let (generation, tree) = cold(&self.devices)?;
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
        })
    }
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
