//! Power failures: recorded runs, their crash images, and what must hold of each.
//!
//! Each image must open, pass the checker, and keep all promises ([`promise`]).
//!
//! The states that a run committed are known by their generation. An image without a log must show
//! exactly the state of the generation that its superblock names; that generation is not older than
//! the last commit that was known to the program. What an fsync promised of its file is compared
//! when the state is noted.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use btrfs_format::TreeId;
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::crash::{CrashImage, CrashImages, Options};
use cowshed_device_sim::{Event, Log, Rng};
use cowshed_harness::{Keep, threads};
use cowshed_model::script::{Counts, Desk, Op};
use cowshed_model::tree::{self, Tree};
use cowshed_vfs::{FileSystem, NodeId};

use crate::barriers::{self, Barrier};
use crate::beside::History;
use crate::chosen;
use crate::compressed;
use crate::discards::{self, Discards, Trims};
use crate::full;
use crate::noted::{promise, unseen};
use crate::open_groups;
use crate::promise;
use crate::rig::Player;
use crate::rig::{self, Devices, Fs, Layout};
use crate::rounds;
use crate::run::{DONE_MARK, Run, SYNC_MARK};
use crate::several;
use crate::shared;
use crate::snapshots;
use crate::threads::Threads;
use crate::workload::{self, Mix};

/// What was recorded.
pub struct Recording {
    run: Run,
    bases: Devices,
    events: Vec<Event>,
    /// By generation. With a committer they are filled in as images show them.
    states: BTreeMap<u64, Tree>,
    history: History,
    /// What each working thread did; of one thread it is the whole volume.
    promises: Vec<promise::History>,
    /// Operations that found no space.
    refused: usize,
    /// What became of atomic groups that stayed open between operations.
    groups: Counts,
}

/// Directories that [`workload`] and [`several`] use. Names that would cross from one into the
/// other stay where they are; and of what is made, removed and moved around, these stay, too.
const SUBVOLUMES: &[(TreeId, &str)] = &[
    (TreeId::FS, "q"),
    (TreeId(256), "r"),
    (TreeId::FS, "s"),
    (TreeId::FS, "thread-0"),
    (TreeId(259), "p"),
    (TreeId::FS, "thread-1"),
];

/// A mark below this is a generation that was committed.
const GENERATIONS_END: u64 = 1 << 40;
/// Marks beside a committer: what was there after so many operations was acknowledged, all of it or
/// its names.
const NAMES_MARK: u64 = 1 << 40;

/// Does the run and notes its states.
pub fn record(run: Run) -> Result<Recording> {
    record_ops(run, None)
}

/// The same with these operations, which one thread does, instead of those that follow from the
/// seed.
pub fn record_ops(run: Run, ops: Option<Vec<Op>>) -> Result<Recording> {
    let mut rng = Rng::new(run.seed);
    let subvolumes = if run.subvolumes { SUBVOLUMES } else { &[] };
    let bases = rig::make_with(
        run.layout,
        run.nodesize_bytes,
        rig::uuid_of(run.seed),
        run.is_full(),
        subvolumes,
    )?;
    // A first mount in which nothing is recorded: the volume is not quite fresh.
    let fs = rig::mount_as(rig::shared(&bases), false, compressed::options(run.compress))?;
    let first = Desk::default();
    play(
        (&fs, &first),
        &workload::choose(&mut rng, Mix::Everything, 30),
        |_, _| Ok(()),
    )?;
    drop(first);
    if run.has_dirs() {
        several::prepare(&fs, &run)?;
    }
    if run.threads == Threads::Rounds {
        rounds::prepare(&fs, &mut rng, &run)?;
    }
    if run.snapshots {
        snapshots::prepare(&fs)?;
    }
    if run.is_full() {
        full::fill(&fs, &mut rng)?;
    }
    fs.destroy();
    drop(fs);
    let bases = match run.snapshots {
        true => snapshots::take(&bases).context("a snapshot by the kernel")?,
        false => bases,
    };
    let devices = rig::snapshots(&bases);
    let log = Log::new();
    let recorded: Vec<Arc<dyn BlockDevice>> = rig::shared(&devices)
        .into_iter()
        .map(|device| Arc::new(log.record(device)) as Arc<dyn BlockDevice>)
        .map(|device| if run.is_slow { rig::slow(device) } else { device })
        .collect();
    let fs = rig::mount_discarding(
        recorded,
        run.tree_log,
        compressed::options(run.compress),
        run.discards.mode,
    )?;
    discards::hasten(&fs);
    if run.threads == Threads::One {
        // Commits are the operations' own: one that makes room in the background would come at a
        // moment of its own, and the run would not follow from its seed.
        fs.mount().background().stop();
    }
    let mut states = BTreeMap::from([(fs.mount().store().txn().committed().get(), cold(&devices)?.1)]);
    let is_given = ops.is_some();
    let mut ops = ops.unwrap_or_else(|| workload::choose(&mut rng, run.mix, run.ops));
    ops.retain(|op| run.may_write_in_place() || !op.makes_in_place());
    if run.snapshots {
        snapshots::spread(&mut ops, &mut rng);
    }
    if run.has_open_groups() && !is_given {
        ops = open_groups::spread(ops, run.seed);
    }
    let desk = Desk::default();
    let mut history = History::default();
    let (mut promises, mut refused, mut groups) = (Vec::new(), 0, Counts::default());
    // One thread trims between its operations: the run follows from its seed.
    let (mut trims, beside) = match run.threads {
        Threads::One => (Trims::new(run.seed, run.discards), Discards::NONE),
        _ => (Trims::new(run.seed, Discards::NONE), run.discards),
    };
    discards::beside(&fs, beside, || {
        match run.threads {
            Threads::One => {
                let mut promised = promise::History::new(&tree::take(&fs)?);
                let mut last = fs.mount().store().txn().committed().get();
                play((&fs, &desk), &ops, |op, is_done| {
                    trims.after_op(&fs)?;
                    let now = fs.mount().store().txn().committed().get();
                    if now != last {
                        last = now;
                        log.mark(now);
                        states.insert(now, noted_state(&fs, op, is_done, &devices)?);
                    }
                    note(&mut promised, &fs, op, is_done, &log)
                })?;
                promises.push(promised);
            }
            Threads::Committer => {
                (history, promises) = play_beside((&fs, &desk), &ops, &log, || fs.mount().commit())?;
            }
            Threads::Syncer => {
                ops.retain(Op::only_adds_data);
                (history, promises) = play_beside((&fs, &desk), &ops, &log, || fs.mount().sync())?;
            }
            Threads::Shared => {
                let (names, promised) = shared::play(&fs, &mut rng, &run, &log)?;
                (history, promises) = (names, vec![promised]);
            }
            Threads::Rounds => promises = vec![rounds::play(&fs, &mut rng, &run, &log)?],
            Threads::Several | Threads::Full => {
                (promises, refused, groups) = several::play(&fs, &mut rng, &run, &log)?;
            }
        }
        Ok(())
    })?;
    groups += desk.counts();
    // What is open is lost, as in a crash.
    drop(desk);
    let events = log.take();
    rig::abandon(fs);
    Ok(Recording {
        run,
        bases,
        events,
        states,
        history,
        promises,
        refused,
        groups,
    })
}

fn play((fs, desk): (&Fs, &Desk), ops: &[Op], mut after: impl FnMut(&Op, bool) -> Result<()>) -> Result<()> {
    let player = Player::with_desk(fs, desk);
    for op in ops {
        let result = player.apply(op);
        if let Err(error) = result
            && !workload::is_outcome(error)
        {
            bail!("`{op}` on a healthy device: {error}");
        }
        after(op, result.is_ok())?;
    }
    Ok(())
}

/// Notes the state after an operation and what it has promised.
fn note(promised: &mut promise::History, fs: &Fs, op: &Op, is_done: bool, log: &Log) -> Result<()> {
    let state = tree::take(fs)?;
    let root = state[""].ino;
    let index = promised.note(&state, None);
    unseen(op, promised, index, root)?;
    promise(op, is_done, promised, index, root);
    log.mark(several::mark(0, index));
    Ok(())
}

/// The state that a commit made, as a fresh mount sees it; and the promise of the operation that
/// committed.
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
    // The name of a temporary file comes after its fsync.
    let may_lag = matches!(op, Op::Temporary { .. });
    ensure!(
        may_lag || state.keys().eq(live.keys()),
        "`{op}`: the names on disk differ"
    );
    if let Some((path, _)) = op.synced()
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
    (fs, desk): (&Fs, &Desk),
    ops: &[Op],
    log: &Log,
    beside: impl Fn() -> cowshed_btrfs::Result<()> + Sync,
) -> Result<(History, Vec<promise::History>)> {
    let other = || {
        std::thread::yield_now();
        beside()
    };
    threads::beside(other, || {
        let mut history = History::default();
        history.note(tree::take(fs)?);
        let mut promised = promise::History::new(&tree::take(fs)?);
        play((fs, desk), ops, |op, is_done| {
            let before = history.names.len() as u64 - 1;
            match op {
                Op::Sync if is_done => log.mark(SYNC_MARK + before),
                Op::Fsync { .. } | Op::Fdatasync { .. } if is_done => log.mark(NAMES_MARK + before),
                _ => {}
            }
            history.note(tree::take(fs)?);
            note(&mut promised, fs, op, is_done, log)
        })?;
        Ok((history, vec![promised]))
    })
}

/// Opens copies of the devices: the generation they are at, and the files.
fn cold(devices: &Devices) -> Result<(u64, Tree)> {
    let copies = rig::snapshots(devices);
    let fs = rig::mount(rig::shared(&copies))?;
    let generation = fs.mount().store().txn().committed().get();
    let tree = tree::take(&fs)?;
    rig::abandon(fs);
    Ok((generation, tree))
}

impl Recording {
    /// How many discards were recorded.
    pub fn discards(&self) -> u64 {
        discards::count(&self.events)
    }

    /// How many operations found no space.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// What became of atomic groups that stayed open between operations.
    pub fn groups(&self) -> Counts {
        self.groups
    }

    /// The images of the run, the same each time.
    pub fn images(&self) -> CrashImages<'_> {
        let options = Options {
            seed: self.run.seed,
            exhaustive_images_max: 32,
            prefix_images_max: 64,
            sampled_images: 24,
            torn_images: 8,
            tear_bytes: self.run.tear_bytes,
        };
        let bases: Vec<_> = self.bases.iter().map(|device| device.snapshot()).collect();
        CrashImages::new(&bases, &self.events, options)
    }

    /// At most so many images, evenly over the run. See [`chosen::evenly`].
    pub fn chosen(&self, images_max: usize) -> Vec<CrashImage> {
        chosen::evenly(|| self.images(), &[], self.run.seed, images_max).collect()
    }

    /// Forgets the barriers of a kind, as if the engine had not asked for them: does the judge find
    /// out? Gives their number.
    pub fn forget_barriers(&mut self, kind: Barrier) -> usize {
        let mut kinds = barriers::kinds(&self.events).into_iter();
        let before = self.events.len();
        self.events
            .retain(|event| !matches!(event, Event::Barrier { .. }) || kinds.next() != Some(kind));
        before - self.events.len()
    }

    /// Names the run and the image, so that it can be repeated.
    fn name(&self, image: &CrashImage) -> String {
        format!("{:?}\n{image}", self.run)
    }

    /// Judges one image; gives what a kernel must find in it, too.
    pub fn judge(&mut self, image: CrashImage) -> Result<Judged> {
        let name = self.name(&image);
        let judged = self.judge_inner(image).with_context(|| name.clone())?;
        Ok(Judged { name, ..judged })
    }

    /// As [`Recording::judge`], with more to be found out about the image; if any of it fails, the
    /// image is kept.
    pub fn judge_or_keep<T>(
        &mut self,
        image: CrashImage,
        keep: &Keep,
        more: impl FnOnce(&Recording, &Judged) -> Result<T>,
    ) -> Result<T> {
        let kept_as = format!("crash-{}-{}", self.run.seed, image.number);
        let devices: Vec<_> = image.devices.iter().map(MemDevice::snapshot).collect();
        let judged = self.judge(image);
        judged
            .and_then(|judged| more(self, &judged).with_context(|| judged.name))
            .map_err(|failure| keep.devices(&kept_as, &devices, failure))
    }

    fn judge_inner(&mut self, image: CrashImage) -> Result<Judged> {
        let devices: Devices = image.devices.into_iter().map(Arc::new).collect();
        let shared = rig::shared(&devices);
        rig::check_clean(&shared)?;
        let (superblock, has_log) = rig::state(shared)?;
        let (generation, found) = cold(&devices)?;
        let mut groups_open = 0;
        for (thread, promised) in self.promises.iter().enumerate() {
            let done = several::done(&image.marks, thread);
            groups_open = promised.groups_open(done).max(groups_open);
            let found = match self.run.has_dirs() {
                true => &several::below(&found, thread),
                false => &found,
            };
            promised
                .check(found, done)
                .with_context(|| format!("thread {thread}; generation {superblock}, log: {has_log}"))?;
        }
        let known = image.marks.iter().rev().find(|mark| **mark < GENERATIONS_END);
        let oldest = known.or(self.states.keys().next()).copied().unwrap_or(0);
        ensure!(superblock >= oldest, "at {superblock}, but {oldest} was committed");
        if has_log {
            ensure!(
                generation >= superblock,
                "after the replay at {generation}, before at {superblock}"
            );
        } else {
            self.judge_commit(generation, &found, &image.marks)?;
        }
        Ok(Judged {
            devices,
            found,
            has_log,
            groups_open,
            name: String::new(),
        })
    }

    /// Without a log the files are those of a commit.
    fn judge_commit(&mut self, generation: u64, found: &Tree, marks: &[u64]) -> Result<()> {
        if self.run.threads == Threads::One {
            let expected = self
                .states
                .get(&generation)
                .ok_or_else(|| anyhow!("no commit made generation {generation}"))?;
            let differences = tree::differences(&tree::committed_part(expected), &tree::committed_part(found));
            ensure!(
                differences.is_empty(),
                "not as generation {generation} was:\n{differences}"
            );
            return Ok(());
        }
        let known = self.states.entry(generation).or_insert_with(|| found.clone());
        let differences = tree::differences(&tree::committed_part(known), &tree::committed_part(found));
        ensure!(
            differences.is_empty(),
            "two images of generation {generation} differ:\n{differences}"
        );
        // What others had done of their round is not noted.
        if self.run.has_dirs() || self.run.threads == Threads::Rounds {
            return Ok(());
        }
        let synced = |mark: &u64| mark.checked_sub(SYNC_MARK);
        // What a commit for one file makes durable is more than a log does.
        let is_commit = !self.run.tree_log;
        let names = |mark: &u64| synced(mark).or(mark.checked_sub(NAMES_MARK).filter(|_| is_commit));
        let marks = || marks.iter().rev().filter(|mark| **mark < DONE_MARK);
        let oldest = marks().find_map(names).unwrap_or(0) as usize;
        self.history
            .check_names(found, oldest)
            .with_context(|| format!("generation {generation}"))?;
        if self.run.threads == Threads::Syncer {
            let oldest = marks().find_map(synced).unwrap_or(0) as usize;
            self.history.check_contents(found, oldest)?;
        }
        Ok(())
    }

    /// How much of an image is compressed, where the run compresses at all.
    pub fn compressed(&self, judged: &Judged) -> Result<Option<compressed::Count>> {
        let count = || compressed::Count::of(&judged.devices, judged.has_log);
        self.run.compress.map(|_| count()).transpose()
    }

    /// After a crash the volume can be worked on: free space is right.
    pub fn go_on(&self, judged: &Judged) -> Result<()> {
        let copies = rig::snapshots(&judged.devices);
        let fs = rig::mount_as(rig::shared(&copies), false, compressed::options(self.run.compress))?;
        let player = Player::new(&fs);
        if self.run.is_full() {
            full::make_room(&player)?;
        }
        let before = tree::take(&fs)?;
        for n in 0..8 {
            let path = format!("after-{n}");
            let op = Op::write(path, 0, 100_000, n);
            player.apply(&op).map_err(|e| anyhow!("writing after the crash: {e}"))?;
        }
        fs.syncfs(&rig::ROOT, NodeId::ROOT)?;
        rig::abandon(fs);
        rig::check_clean(&rig::shared(&copies)).context("after going on")?;
        let (_, mut after) = cold(&copies)?;
        after.retain(|path, _| !path.starts_with("after-"));
        let (mut before, mut after) = (without_root(before), without_root(after));
        // What was being overwritten in place may differ from copy to copy, and a read takes
        // either.
        if self.run.layout == Layout::Raid1 {
            (before, after) = (tree::committed_part(&before), tree::committed_part(&after));
        }
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
    /// It had a log, which was replayed.
    pub has_log: bool,
    /// So many atomic groups were open, of the thread that had most.
    pub groups_open: usize,
    /// Which run and which image.
    pub name: String,
}
