//! Power failures: recorded runs, their crash images, and what must hold of each.
//!
//! The states that a run committed are known by their generation. Each image must open, pass the checker, and show
//! exactly the state of the generation that its superblock names; that generation is not older than the last sync or
//! fsync that had returned. What an fsync promised of its file is compared when the state is noted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cowshed_btrfs::fs::Fs;
use cowshed_device::BlockDevice;
use cowshed_device_sim::crash::{CrashImage, CrashImages, Options};
use cowshed_device_sim::{Event, Log, Rng};
use cowshed_vfs::{FileKind, FileSystem, NodeId};

use crate::rig::{self, Devices, Layout};
use crate::tree::{self, Tree};
use crate::workload::{self, Op, Player};

/// Who works on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One thread: the run follows from its seed.
    One,
    /// One thread works, another one commits all the time.
    Committer,
    /// One thread writes and renames, another one syncs all the time: write-back, too, runs beside the operations.
    Syncer,
}

/// A run to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seed: u64,
    pub layout: Layout,
    pub nodesize_bytes: u32,
    pub threads: Threads,
    pub ops: usize,
    /// What the devices never tear. The kernel trusts them not to tear a superblock, of 4096 bytes.
    pub tear_bytes: u64,
}

/// What was recorded.
pub struct Recording {
    run: Run,
    bases: Devices,
    events: Vec<Event>,
    /// By generation. With a committer they are filled in as images show them.
    states: BTreeMap<u64, Tree>,
    history: History,
}

/// What happened in order, where another thread decides what is committed. The volume as it was before has index 0.
#[derive(Default)]
struct History {
    /// The names after each operation.
    names: Vec<Tree>,
    /// By inode number: after which operation its content became what it is.
    contents: BTreeMap<u64, Vec<(usize, Vec<u8>)>>,
}

/// Marks beside a committer: what was there after so many operations was acknowledged, all of it or its names.
const NAMES_MARK: u64 = 1 << 40;
const SYNC_MARK: u64 = 1 << 41;

/// Does the run and notes its states.
pub fn record(run: Run) -> Result<Recording> {
    let mut rng = Rng::new(run.seed);
    let bases = rig::make(run.layout, run.nodesize_bytes, 0xc5)?;
    // A first mount in which nothing is recorded: the volume is not quite fresh.
    let fs = rig::mount(rig::shared(&bases))?;
    play(&fs, &workload::choose(&mut rng, 30), |_, _| Ok(()))?;
    fs.destroy();
    drop(fs);
    let devices = rig::snapshots(&bases);
    let log = Log::new();
    let recorded: Vec<Arc<dyn BlockDevice>> = rig::shared(&devices)
        .into_iter()
        .map(|device| Arc::new(log.record(device)) as Arc<dyn BlockDevice>)
        .collect();
    let fs = rig::mount(recorded)?;
    let mut states = BTreeMap::from([(fs.engine().txn.committed().get(), cold(&devices)?.1)]);
    let mut ops = workload::choose(&mut rng, run.ops);
    let mut history = History::default();
    match run.threads {
        Threads::One => {
            let mut last = fs.engine().txn.committed().get();
            play(&fs, &ops, |op, is_done| {
                let now = fs.engine().txn.committed().get();
                if now != last {
                    last = now;
                    log.mark(now);
                    states.insert(now, noted_state(&fs, op, is_done, &devices)?);
                }
                Ok(())
            })?;
        }
        Threads::Committer => history = play_beside(&fs, &ops, &log, || fs.engine().commit())?,
        Threads::Syncer => {
            ops.retain(Op::only_adds_data);
            history = play_beside(&fs, &ops, &log, || fs.engine().sync())?;
        }
    }
    let events = log.take();
    rig::abandon(fs);
    Ok(Recording {
        run,
        bases,
        events,
        states,
        history,
    })
}

fn play(fs: &Fs, ops: &[Op], mut after: impl FnMut(&Op, bool) -> Result<()>) -> Result<()> {
    let player = Player::new(fs);
    for op in ops {
        let result = player.apply(op);
        if let Err(error) = result
            && !workload::is_outcome(error)
        {
            bail!("{op:?} on a healthy device: {error}");
        }
        after(op, result.is_ok())?;
    }
    Ok(())
}

/// The state that a commit made, as a fresh mount sees it; and the promise of the operation that committed.
fn noted_state(fs: &Fs, op: &Op, is_done: bool, devices: &Devices) -> Result<Tree> {
    let (_, state) = cold(devices)?;
    let live = tree::take(fs)?;
    if *op == Op::Sync {
        let differences = tree::differences(&live, &state);
        ensure!(
            differences.is_empty(),
            "after a sync the disk differs from the mount:\n{differences}"
        );
    }
    ensure!(state.keys().eq(live.keys()), "{op:?}: the names on disk differ");
    if let Op::Fsync { path } = op
        && is_done
    {
        ensure!(
            state.get(path) == live.get(path),
            "fsync of {path}: the disk has something else"
        );
    }
    Ok(state)
}

/// Does something as fast as it can beside the run. What is acknowledged is marked.
fn play_beside(
    fs: &Fs,
    ops: &[Op],
    log: &Log,
    beside: impl Fn() -> cowshed_btrfs::Result<()> + Sync,
) -> Result<History> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                beside()?;
                std::thread::yield_now();
            }
            Ok::<_, cowshed_btrfs::Error>(())
        });
        let mut history = History::default();
        history.note(tree::take(fs)?);
        let played = play(fs, ops, |op, is_done| {
            let before = history.names.len() as u64 - 1;
            match op {
                Op::Sync if is_done => log.mark(SYNC_MARK + before),
                Op::Fsync { .. } if is_done => log.mark(NAMES_MARK + before),
                _ => {}
            }
            history.note(tree::take(fs)?);
            Ok(())
        });
        stop.store(true, Ordering::Release);
        let done = other.join().map_err(|_| anyhow!("the other thread panicked"))?;
        played?;
        done?;
        Ok(history)
    })
}

impl History {
    fn note(&mut self, tree: Tree) {
        let index = self.names.len();
        for node in tree.values().filter(|node| node.kind == FileKind::Regular) {
            let versions = self.contents.entry(node.ino).or_default();
            if versions.last().is_none_or(|(_, content)| *content != node.content) {
                versions.push((index, node.content.clone()));
            }
        }
        self.names.push(names_only(tree));
    }

    /// The names are those after some operation from `oldest` on.
    fn check_names(&self, found: &Tree, oldest: usize) -> Result<()> {
        let names = names_only(found.clone());
        if self.names[oldest..].contains(&names) {
            return Ok(());
        }
        let closest = self.names[oldest..]
            .iter()
            .map(|state| tree::differences(state, &names))
            .min_by_key(String::len);
        bail!(
            "no state of the names from operation {oldest} on; the closest:\n{}",
            closest.unwrap_or_default()
        )
    }

    /// Each file holds what it held at `oldest`, or something later, of which the end may not be there yet.
    fn check_contents(&self, found: &Tree, oldest: usize) -> Result<()> {
        for (path, node) in found.iter().filter(|(_, node)| node.kind == FileKind::Regular) {
            let versions = self.contents.get(&node.ino).map_or(&[][..], Vec::as_slice);
            let held = versions.partition_point(|(index, _)| *index <= oldest).checked_sub(1);
            let is_held = held.is_some_and(|held| versions[held].1 == node.content);
            let later = &versions[held.map_or(0, |held| held + 1)..];
            let is_later = later.iter().any(|(_, content)| content.starts_with(&node.content));
            ensure!(
                is_held || is_later || (held.is_none() && node.content.is_empty()),
                "{path}: {} bytes that it never held from operation {oldest} on",
                node.content.len()
            );
        }
        Ok(())
    }
}

/// What metadata alone decides: not the bytes of files, and what follows from them.
fn names_only(tree: Tree) -> Tree {
    let strip = |mut node: tree::Node| {
        if node.kind == FileKind::Regular {
            node.content.clear();
            node.size_bytes = 0;
        }
        node.mtime = cowshed_vfs::Timestamp::default();
        node
    };
    tree.into_iter().map(|(path, node)| (path, strip(node))).collect()
}

/// Opens copies of the devices: the generation they are at, and the files.
fn cold(devices: &Devices) -> Result<(u64, Tree)> {
    let copies = rig::snapshots(devices);
    let fs = rig::mount(rig::shared(&copies))?;
    let generation = fs.engine().txn.committed().get();
    let tree = tree::take(&fs)?;
    rig::abandon(fs);
    Ok((generation, tree))
}

impl Recording {
    /// The images of the run, the same each time.
    pub fn images(&self) -> CrashImages<'_> {
        let options = Options {
            seed: self.run.seed,
            exhaustive_images_max: 32,
            sampled_images: 24,
            torn_images: 8,
            tear_bytes: self.run.tear_bytes,
        };
        let bases: Vec<_> = self.bases.iter().map(|device| device.snapshot()).collect();
        CrashImages::new(&bases, &self.events, options)
    }

    /// Forgets some barriers, as if the engine had not asked for them: does the judge find out?
    pub fn keep_barriers(&mut self, keep: impl Fn(usize) -> bool) {
        let mut count = 0;
        self.events.retain(|event| {
            let is_barrier = matches!(event, Event::Barrier { .. });
            count += usize::from(is_barrier);
            !is_barrier || keep(count - 1)
        });
    }

    /// Says which run and which image, for whoever wants to see it again.
    fn name(&self, image: &CrashImage) -> String {
        format!("{:?}\n{image}", self.run)
    }

    /// Judges one image; gives what a kernel must find in it, too.
    pub fn judge(&mut self, image: CrashImage) -> Result<Judged> {
        let name = self.name(&image);
        self.judge_inner(image).with_context(|| name)
    }

    fn judge_inner(&mut self, image: CrashImage) -> Result<Judged> {
        let last_mark = image.last_mark();
        let synced = image.marks.iter().rev().find_map(|mark| mark.checked_sub(SYNC_MARK));
        let devices: Devices = image.devices.into_iter().map(Arc::new).collect();
        rig::check_clean(&rig::shared(&devices))?;
        let (generation, found) = cold(&devices)?;
        match self.run.threads {
            Threads::One => {
                let oldest = last_mark.or(self.states.keys().next().copied()).unwrap_or(0);
                ensure!(generation >= oldest, "at {generation}, but {oldest} was acknowledged");
                let expected = self
                    .states
                    .get(&generation)
                    .ok_or_else(|| anyhow!("no commit made generation {generation}"))?;
                let differences = tree::differences(expected, &found);
                ensure!(
                    differences.is_empty(),
                    "not as generation {generation} was:\n{differences}"
                );
            }
            Threads::Committer | Threads::Syncer => {
                let names = last_mark.map_or(0, |mark| mark.checked_sub(SYNC_MARK).unwrap_or(mark - NAMES_MARK));
                self.judge_by_history(generation, &found, names as usize)?;
                if self.run.threads == Threads::Syncer {
                    self.history.check_contents(&found, synced.unwrap_or(0) as usize)?;
                }
            }
        }
        Ok(Judged { devices, found })
    }

    /// All images of one generation are alike, and alike to the names after some operation, none before the last
    /// acknowledged one.
    fn judge_by_history(&mut self, generation: u64, found: &Tree, oldest: usize) -> Result<()> {
        let known = self.states.entry(generation).or_insert_with(|| found.clone());
        let differences = tree::differences(known, found);
        ensure!(
            differences.is_empty(),
            "two images of generation {generation} differ:\n{differences}"
        );
        self.history
            .check_names(found, oldest)
            .with_context(|| format!("generation {generation}"))
    }

    /// After a crash the volume can be worked on: free space is right.
    pub fn go_on(&self, judged: &Judged) -> Result<()> {
        let copies = rig::snapshots(&judged.devices);
        let fs = rig::mount(rig::shared(&copies))?;
        let before = tree::take(&fs)?;
        let player = Player::new(&fs);
        for n in 0..8 {
            let path = format!("after-{n}");
            let op = Op::Write {
                path,
                offset: 0,
                len: 100_000,
                fill: n,
            };
            player.apply(&op).map_err(|e| anyhow!("writing after the crash: {e}"))?;
        }
        fs.syncfs(&rig::ROOT, NodeId::ROOT)?;
        rig::abandon(fs);
        rig::check_clean(&rig::shared(&copies)).context("after going on")?;
        let (_, mut after) = cold(&copies)?;
        after.retain(|path, _| !path.starts_with("after-"));
        let (before, after) = (without_root(before), without_root(after));
        let differences = tree::differences(&before, &after);
        ensure!(differences.is_empty(), "going on changed other files:\n{differences}");
        Ok(())
    }
}

fn without_root(mut tree: Tree) -> Tree {
    tree.remove("");
    tree
}

/// An image that passed.
pub struct Judged {
    pub devices: Devices,
    pub found: Tree,
}
