//! Linux and Cowshed take turns at one volume with snapshots, clones and deletions.
//!
//! A turn is recorded. The power fails in it, before any barrier and at its end, so that of the
//! writes since the last one any may be lost; or it ends as it should. The other side, or the same
//! one again, goes on with what is left: with deletions that are done in part, by either's way of
//! doing them, of trees whose blocks others share. Of each image that is judged
//!
//! * our checker finds nothing, data included, and of those that turns go on with `btrfs check`;
//! * what is there is what the turn promised ([`state::History::allows`]);
//! * the next side sees the same.
//!
//! In the end everything is deleted by one of the two, and no space may be in use.
//!
//! Where in a deletion Linux is cut short follows from its timing: images that fail are kept.

pub mod linux;
pub mod ours;
pub mod side;
pub mod state;
pub mod step;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use btrfs_check::{Finding, FindingId};
use cowshed_crash::rig::{self, Layout};
use cowshed_crash::{kernel, load_image};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::crash::{self, CrashImage, CrashImages};
use cowshed_device_sim::{Event, Rng};
use cowshed_harness::{Keep, KernelVolume, VolumeOptions, progs};

use linux::Linux;
use ours::{Ours, Seen};
use side::Side;
use state::{History, State};
use step::{Chooser, Step};

const DEVICE_BYTES: u64 = 1 << 30;
/// Linux trusts devices not to tear a superblock.
const TEAR_BYTES: u64 = 4096;
/// Of a volume without files.
const EMPTY_BYTES_MAX: u64 = 1 << 20;

/// How much is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub volumes: u64,
    /// Of each volume.
    pub turns: u64,
    /// Images of a turn that are judged. The next turn goes on with one of them.
    pub images: usize,
    /// Where the image of a failure is kept.
    pub keep: Keep,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Report {
    pub volumes: u64,
    pub turns: u64,
    pub images: u64,
    /// Of those, after turns of the kernel.
    pub of_kernel: u64,
    /// Images with a deletion that is done in part: by Linux, and by us.
    pub in_part: [u64; 2],
    /// Images in the midst of a balance.
    pub balances: u64,
    /// Images of which Linux has forgotten how far a deletion is.
    pub behind: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [by_linux, by_us] = self.in_part;
        write!(
            f,
            "{} volumes, {} turns, {} images, {} of them of the kernel's turns; in the midst of a deletion: {by_linux} by the kernel, {by_us} by us; \
             of a balance: {}; of a deletion that the kernel could not finish: {}; all as they must be",
            self.volumes, self.turns, self.images, self.of_kernel, self.balances, self.behind
        )
    }
}

/// Needs root, loop devices and `/dev/fuse`.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    for seed in options.seed..options.seed + options.volumes {
        let mut volume = Volume::new(seed, options)?;
        volume.play(&mut report).with_context(|| {
            let told = volume.told.join("\n");
            format!("volume {seed}, {}\n{told}", volume.kind)
        })?;
        report.volumes += 1;
    }
    Ok(report)
}

/// A fresh volume by mkfs.btrfs or by ours, and what kind it is. None with quota groups: Linux
/// miscounts where deletions are interrupted.
fn make(rng: &mut Rng) -> Result<(MemDevice, String)> {
    let mut options = VolumeOptions {
        size_bytes: DEVICE_BYTES,
        node_bytes: Some(4096),
        ..VolumeOptions::default()
    };
    match rng.below(10) {
        0 => options.node_bytes = Some(16384),
        // As mkfs.btrfs made them long ago.
        1 => {
            options.features = vec!["^no-holes", "^skinny-metadata", "^extref"];
            options.runtime_features = vec!["^free-space-tree"];
        }
        2 => options.runtime_features = vec!["^free-space-tree"],
        3 => options.metadata = Some("single"),
        4 => (options.mixed, options.runtime_features) = (true, vec!["^free-space-tree"]),
        5 => options.csum = Some("blake2"),
        6 | 7 => {
            let devices = rig::make_as(Layout::Dup, 4096, rig::uuid_of(rng.next_u64()))?;
            return Ok((devices[0].snapshot(), "made by us".to_owned()));
        }
        _ => {}
    }
    let made = KernelVolume::make(&options)?;
    Ok((load_image(made.image())?, options.describe()))
}

struct Volume<'o> {
    options: &'o Options,
    rng: Rng,
    chooser: Chooser,
    kind: String,
    device: MemDevice,
    found: State,
    read_only: Vec<String>,
    can: Can,
    /// Linux has left a deletion that was done in part.
    has_linux_paused: bool,
    /// What was done, for messages.
    told: Vec<String>,
}

/// Which side can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Can {
    Both,
    /// In the midst of a balance.
    Linux,
    /// After Linux has forgotten how far a deletion was.
    Ours,
    Neither,
}

/// A turn that is over.
struct Turn {
    is_linux: bool,
    /// It began with a deletion that is further than it says, or Linux may leave one: it had begun
    /// one before.
    may_be_behind: bool,
    base: MemDevice,
    events: Vec<Event>,
    history: History,
}

impl Seen {
    fn can(&self) -> Can {
        match (self.is_balanced, self.is_behind) {
            (false, false) => Can::Both,
            (true, false) => Can::Linux,
            (false, true) => Can::Ours,
            (true, true) => Can::Neither,
        }
    }
}

impl<'o> Volume<'o> {
    fn new(seed: u64, options: &'o Options) -> Result<Self> {
        let mut rng = Rng::new(seed);
        let (device, kind) = make(&mut rng)?;
        Ok(Volume {
            options,
            chooser: Chooser::new(rng.next_u64()),
            rng,
            kind,
            device,
            found: State::new(),
            read_only: Vec::new(),
            can: Can::Both,
            has_linux_paused: false,
            told: Vec::new(),
        })
    }

    fn play(&mut self, report: &mut Report) -> Result<()> {
        for turn in 0..self.options.turns {
            let is_linux = self.is_linux();
            // Again where the power failed before it was durable.
            let steps = match self.found.len() {
                0 => self.chooser.first(),
                _ => Vec::new(),
            };
            self.turn(is_linux, steps, report)
                .with_context(|| format!("turn {turn}"))?;
            report.turns += 1;
        }
        let is_linux = self.is_linux();
        self.finish(is_linux).context("the end")
    }

    /// Which side has the next turn.
    fn is_linux(&mut self) -> bool {
        let is_linux = self.rng.one_in(2);
        match self.can {
            Can::Linux => true,
            Can::Ours => false,
            Can::Both | Can::Neither => is_linux,
        }
    }

    fn side(&mut self, is_linux: bool) -> Result<Box<dyn Side>> {
        let seed = self.rng.next_u64();
        let mut side: Box<dyn Side> = match is_linux {
            true => Box::new(Linux::new(&self.device, seed)?),
            false => Box::new(Ours::new(&self.device, seed)?),
        };
        self.told.push(format!("turn of {}", side.name()));
        if self.rng.one_in(2) {
            // Nothing is in memory yet.
            return Ok(side);
        }
        let found = side.look().with_context(|| side.name())?;
        for (name, files) in &found {
            let expected = self
                .found
                .get(name)
                .with_context(|| format!("{name} should not be there"))?;
            state::same(expected, files).with_context(|| format!("{} sees another {name}", side.name()))?;
        }
        ensure!(found.len() == self.found.len(), "{} misses subvolumes", side.name());
        Ok(side)
    }

    fn turn(&mut self, is_linux: bool, mut first: Vec<Step>, report: &mut Report) -> Result<()> {
        let base = self.device.snapshot();
        let mut side = self.side(is_linux)?;
        let mut history = History::new(self.found.clone(), self.read_only.iter().cloned());
        let count = first.len() + 4 + self.rng.index(10);
        first.reverse();
        for _ in 0..count {
            let step = match first.pop() {
                Some(step) => step,
                None => self.chooser.next(&history, is_linux),
            };
            self.told.push(format!("{} {step}", history.steps() + 1));
            side.step(&step).with_context(|| format!("{step}"))?;
            note(&mut history, &step)?;
            side.mark(history.steps());
        }
        let events = side.events();
        let is_cut = !self.rng.one_in(5);
        let device = side.end()?;
        let turn = Turn {
            is_linux,
            may_be_behind: self.can == Can::Ours || (is_linux && self.has_linux_paused),
            base,
            events,
            history,
        };
        self.judge(&turn, (!is_cut).then_some(device), report)
    }

    /// Judges images of the turn, and goes on with one of them, or with how it ended.
    fn judge(&mut self, turn: &Turn, ended: Option<MemDevice>, report: &mut Report) -> Result<()> {
        let options = crash::Options {
            seed: self.rng.next_u64(),
            exhaustive_images_max: 8,
            prefix_images_max: 8,
            sampled_images: 8,
            torn_images: 2,
            tear_bytes: TEAR_BYTES,
        };
        let all = || CrashImages::new(std::slice::from_ref(&turn.base), &turn.events, options.clone());
        let total = all().outlines().count();
        let chosen: BTreeSet<usize> = (0..self.options.images).map(|_| self.rng.index(total)).collect();
        let (mut images, mut at) = (all(), 0);
        let mut judged: Vec<(CrashImage, Seen)> = Vec::new();
        for number in chosen {
            let image = images.nth(number - at).context("an image")?;
            at = number + 1;
            let seen = judge_image(turn, &image, report).map_err(|failure| {
                let (name, failure) = (format!("turn-{number}"), failure.context(format!("{image}")));
                // What the turn began with comes second.
                self.options
                    .keep
                    .devices(&name, image.devices.iter().chain([&turn.base]), failure)
            })?;
            judged.push((image, seen));
        }
        if let Some(device) = ended {
            self.told.push("it ends".to_owned());
            let seen = look(turn, &device, turn.history.steps(), report)
                .and_then(|seen| {
                    ensure!(seen.state == *turn.history.now(), "the end is not as the last step");
                    Ok(seen)
                })
                .map_err(|failure| self.options.keep.devices("turn", [&device], failure))?;
            return self.go_on(turn, &device, seen);
        }
        if judged.iter().any(|(_, seen)| seen.can() != Can::Neither) {
            judged.retain(|(_, seen)| seen.can() != Can::Neither);
        }
        // Where a deletion is done in part, if there is such a one.
        let in_part: Vec<usize> = (0..judged.len()).filter(|n| judged[*n].1.in_part > 0).collect();
        let next = match in_part.len() {
            0 => self.rng.index(judged.len()),
            some => in_part[self.rng.index(some)],
        };
        let (image, seen) = judged.swap_remove(next);
        let returned = returned(&image);
        self.told
            .push(format!("the power fails when {returned} steps had returned"));
        self.go_on(turn, &image.devices[0], seen)
    }

    /// The next turn has this, or the same as this turn, where neither side can go on.
    fn go_on(&mut self, turn: &Turn, device: &MemDevice, seen: Seen) -> Result<()> {
        if seen.can() == Can::Neither {
            self.told.push("neither side can go on: again".to_owned());
            return Ok(());
        }
        self.can = seen.can();
        self.has_linux_paused |= turn.is_linux && seen.in_part > 0;
        if !seen.is_behind {
            let volume = KernelVolume::from_memory(&[device.snapshot()])?;
            let checked = kernel::check_clean(volume.image());
            checked.map_err(|failure| self.options.keep.devices("turn", [device], failure))?;
        }
        self.read_only = turn.history.read_only_of(&seen.state).collect();
        self.found = seen.state;
        self.device = device.snapshot();
        Ok(())
    }

    /// Everything is deleted, and no space is in use.
    fn finish(&mut self, is_linux: bool) -> Result<()> {
        let before = self.device.snapshot();
        let mut side = self.side(is_linux)?;
        for name in self.found.keys() {
            side.step(&Step::Delete(name.clone()))?;
        }
        side.drop_all()?;
        let after = side.end()?;
        judge_empty(&after).map_err(|failure| self.options.keep.devices("end", [&after, &before], failure))
    }
}

/// How many steps had returned when the power failed.
fn returned(image: &CrashImage) -> usize {
    image.last_mark().unwrap_or(0) as usize
}

fn judge_image(turn: &Turn, image: &CrashImage, report: &mut Report) -> Result<Seen> {
    look(turn, &image.devices[0], returned(image), report)
}

/// Judges what is left where so many steps had returned.
fn look(turn: &Turn, device: &MemDevice, returned: usize, report: &mut Report) -> Result<Seen> {
    let is_behind = check(device)?;
    let seen = Seen {
        is_behind,
        ..ours::look(device).context("we")?
    };
    let is_expected = turn.may_be_behind || !seen.is_behind;
    ensure!(is_expected, "it is forgotten how far a deletion was that we began");
    ensure!(turn.is_linux || !seen.is_balanced, "we have begun no balance");
    turn.history.allows(&seen.state, returned)?;
    report.images += 1;
    report.of_kernel += u64::from(turn.is_linux);
    report.balances += u64::from(seen.is_balanced);
    report.behind += u64::from(seen.is_behind);
    report.in_part[usize::from(!turn.is_linux)] += u64::from(seen.in_part > 0);
    Ok(seen)
}

/// Our checker finds nothing, data included, but for two things that Linux leaves behind. It may
/// have forgotten how far a deletion is: then this returns true. And a subvolume that it deleted
/// while it looked through the uuid tree, after a power failure, may have its entry there still.
fn check(device: &MemDevice) -> Result<bool> {
    let devices: [Arc<dyn BlockDevice>; 1] = [Arc::new(device.snapshot())];
    let is_behind = Cell::new(false);
    let is_linux = |finding: &Finding, _: &[Finding]| {
        is_behind.set(is_behind.get() || finding.id == FindingId::RootDropBehind);
        matches!(finding.id, FindingId::RootDropBehind | FindingId::UuidStale)
    };
    rig::check_clean_but(&devices, is_linux).context("our checker")?;
    Ok(is_behind.get())
}

fn judge_empty(device: &MemDevice) -> Result<()> {
    ensure!(!check(device)?, "a deletion is not over");
    let volume = KernelVolume::from_memory(&[device.snapshot()])?;
    kernel::check_clean(volume.image())?;
    let used = progs::dump_super(volume.image())?;
    let used = used.lines().find_map(|line| line.strip_prefix("bytes_used"));
    let used: u64 = used.context("no bytes_used")?.trim().parse()?;
    ensure!(used < EMPTY_BYTES_MAX, "{used} bytes are in use on an empty volume");
    Ok(())
}

/// What a step that has returned has made, and made safe.
fn note(history: &mut History, step: &Step) -> Result<()> {
    let mut now = history.now().clone();
    let mut touched = BTreeSet::new();
    match step {
        Step::Create(name) => {
            now.insert(name.clone(), Default::default());
        }
        Step::Snapshot { source, name, .. } => {
            let files = now.get(source).with_context(|| format!("no {source}"))?.clone();
            now.insert(name.clone(), files);
        }
        Step::Delete(name) => {
            now.remove(name);
        }
        Step::Files(ops) => {
            for op in ops {
                touched.insert(state::apply(&mut now, op)?);
            }
        }
        Step::Fsync(_) | Step::Sync | Step::Rest | Step::Defragment(_) | Step::Balance { .. } => {}
    }
    history.step(now, touched);
    match step {
        Step::Snapshot {
            name,
            is_read_only: true,
            ..
        } => history.is_read_only(name.clone()),
        Step::Fsync(path) => history.fsynced(path.clone()),
        Step::Sync | Step::Rest => history.synced(),
        _ => {}
    }
    Ok(())
}
