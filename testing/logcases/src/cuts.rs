//! The kernel writes on a recorded device; its crash images are cut out of the recording.
//!
//! The kernel's btrfs works at random on a [`Recorder`]. The power fails before each barrier and at
//! the end ([`cowshed_device_sim::crash`]): of the writes and discards since the last barrier any
//! may be lost, done out of order, or torn. Of each image:
//!
//! * our checker finds nothing, before the replay and after it;
//! * a read-only mount shows what a writable one shows, and writes nothing;
//! * what the run's fsyncs and syncs promised until then is there ([`History::check_linux`]);
//! * of a sample: the kernel, mounting a copy, makes the same tree of it, and where there is a log
//!   the same items.
//!
//! Which operations a run does follows from its seed; when the kernel writes what does not: images
//! that fail are kept.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::Mount;
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_crash::promise::History;
use cowshed_crash::workload::{self, Mix};
use cowshed_crash::{chosen, load_image, noted, rig};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::crash::{self, CrashImage, CrashImages};
use cowshed_device_sim::{Event, Log, Rng};
use cowshed_harness::{Keep, KernelVolume, VolumeOptions};
use cowshed_model::script::{MountPlayer, Op};
use cowshed_model::tree::{self, Tree};
use cowshed_runtime::FixedEnv;
use cowshed_vfs::{FileKind, FileSystem as _, InitInfo};

use crate::items;
use crate::recorder::Recorder;
use crate::reverse::is_safe;
use crate::roads::{self, Crash};

const DEVICE_BYTES: u64 = 256 << 20;
/// What mkfs.btrfs does by default.
const NODE_BYTES: u32 = 16384;
/// Operations before the recording, so that the volume is not quite fresh.
const FIRST_OPERATIONS: usize = 20;
/// The kernel trusts devices not to tear a superblock.
const TEAR_BYTES: u64 = 4096;

/// How much is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// Images to be judged.
    pub images: u64,
    /// Of one run, evenly chosen.
    pub per_run: u64,
    /// Operations of one run.
    pub operations: usize,
    /// One of so many images goes to the kernel, too.
    pub kernel_every: u64,
    /// Where the image of a failure is kept.
    pub keep: Keep,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Report {
    pub images: u64,
    pub logs: u64,
    pub runs: u64,
    pub barriers: u64,
    pub by_kernel: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} crash images of {} recorded runs of the kernel with {} barriers, {} with a log, {} by the kernel too: all as they must be",
            self.images, self.runs, self.barriers, self.logs, self.by_kernel
        )
    }
}

/// Makes runs and judges their images. Needs root and `/dev/fuse`.
pub fn run(options: &Options) -> Result<Report> {
    let mut rng = Rng::new(options.seed);
    let mut report = Report::default();
    while report.images < options.images {
        let seed = rng.next_u64();
        let recording = Recording::new(seed, options.operations).with_context(|| format!("run {seed}"))?;
        report.runs += 1;
        report.barriers += recording.barriers() as u64;
        for image in recording.chosen(options.per_run.min(options.images - report.images)) {
            let to_kernel = rng.one_in(options.kernel_every.max(1));
            report.images += 1;
            report.by_kernel += u64::from(to_kernel);
            let has_log = recording.judge(&image, to_kernel).map_err(|failure| {
                let told = recording.tell(&image);
                let failure = failure.context(format!("run {seed}, {}\n{image}\n{told}", recording.kind));
                options
                    .keep
                    .devices(&format!("cut-{seed}-{}", image.number), &image.devices, failure)
            })?;
            report.logs += u64::from(has_log);
        }
    }
    Ok(report)
}

/// What kind of volume, in words of mkfs.btrfs and mount.
fn kind(rng: &mut Rng) -> VolumeOptions {
    let mut options = VolumeOptions {
        size_bytes: DEVICE_BYTES,
        mount_options: "noatime,commit=300",
        ..VolumeOptions::default()
    };
    match rng.below(8) {
        0 | 1 => options.node_bytes = Some(4096),
        2 => options.features = vec!["^no-holes"],
        3 => options.mount_options = "noatime,commit=1",
        // Discards may be done early, late, or never, too.
        4 => options.mount_options = "noatime,commit=1,discard=sync",
        5 => options.mount_options = "noatime,commit=300,compress-force=zstd",
        _ => {}
    }
    options
}

/// A run of the kernel.
pub struct Recording {
    seed: u64,
    kind: String,
    base: MemDevice,
    events: Vec<Event>,
    history: History,
    /// What was done, and whether it succeeded; the state after the n-th is n.
    told: Vec<String>,
}

impl Recording {
    /// Lets the kernel do so many operations; the power fails after the last one.
    pub fn new(seed: u64, operations: usize) -> Result<Recording> {
        let mut rng = Rng::new(seed);
        let options = kind(&mut rng);
        let volume = KernelVolume::make(&options)?;
        let recorder = Recorder::new(&load_image(volume.image())?)?;
        drop(volume);
        let mount = recorder.mount(options.mount_options)?;
        play(
            mount.dir(),
            &workload::choose(&mut rng, Mix::Everything, FIRST_OPERATIONS),
            |_, _| Ok(()),
        )?;
        mount.unmount()?;
        let base = recorder.content();
        recorder.log().take();
        let mount = recorder.mount(options.mount_options)?;
        let mut history = History::new(&tree::take_mount(mount.dir())?);
        let mut ops = workload::choose(&mut rng, Mix::Syncs, operations);
        ops.retain(|op| is_safe(op, options.node_bytes.unwrap_or(NODE_BYTES)));
        let mut told = vec!["the beginning".to_owned()];
        play(mount.dir(), &ops, |op, is_done| {
            told.push(format!("`{op}`: {}", if is_done { "done" } else { "failed" }));
            note(&mut history, mount.dir(), op, is_done, recorder.log())
        })?;
        let events = recorder.log().take();
        mount.unmount()?;
        recorder.end()?;
        Ok(Recording {
            seed,
            kind: options.describe(),
            base,
            events,
            history,
            told,
        })
    }

    /// The operations around an image.
    fn tell(&self, image: &CrashImage) -> String {
        const BEFORE: usize = 30;
        let done = Self::done(image);
        let numbered = self.told.iter().enumerate().skip(done.saturating_sub(BEFORE));
        let lines: Vec<String> = numbered
            .take_while(|(n, _)| *n <= done + 1)
            .map(|(n, op)| format!("{n} {op}"))
            .collect();
        lines.join("\n")
    }

    pub fn barriers(&self) -> usize {
        let is_barrier = |event: &&Event| matches!(event, Event::Barrier { .. });
        self.events.iter().filter(is_barrier).count()
    }

    /// The images of the run, the same each time.
    pub fn images(&self) -> CrashImages<'_> {
        let options = crash::Options {
            seed: self.seed,
            exhaustive_images_max: 16,
            prefix_images_max: 16,
            sampled_images: 16,
            torn_images: 6,
            tear_bytes: TEAR_BYTES,
        };
        CrashImages::new(std::slice::from_ref(&self.base), &self.events, options)
    }

    /// At most so many images, evenly over the run. See [`chosen::evenly`].
    pub fn chosen(&self, images_max: u64) -> impl Iterator<Item = CrashImage> {
        chosen::evenly(|| self.images(), &[], self.seed, images_max as usize)
    }

    /// Forgets the barriers, as if the kernel had not asked for them: does the judge find out?
    pub fn forget_barriers(&mut self) {
        self.events.retain(|event| !matches!(event, Event::Barrier { .. }));
    }

    /// How many operations the program had seen return.
    pub fn done(image: &CrashImage) -> usize {
        image.last_mark().map_or(0, |mark| mark as usize)
    }

    /// Judges an image; true where it has a log.
    pub fn judge(&self, image: &CrashImage, to_kernel: bool) -> Result<bool> {
        let device = &image.devices[0];
        let has_log = Crash::new(device.snapshot())?.has_log;
        let ours = replayed(device).with_context(|| format!("log: {has_log}"))?;
        self.keeps(&ours, Self::done(image))?;
        if to_kernel {
            let kernels = roads::kernel_replays(device).context("the kernel")?;
            roads::same(&kernels, &ours).context("the kernel (left) and we")?;
            items::judge::judge(&KernelVolume::from_memory(&[device.snapshot()])?).context("item by item")?;
        }
        Ok(has_log)
    }

    /// What was promised when so many operations had returned is there.
    pub fn keeps(&self, found: &Tree, done: usize) -> Result<()> {
        self.history.check_linux(&roads::numbered_by_subvolume(found), done)
    }
}

/// What we make of an image, looking and replaying alike.
pub fn replayed(device: &MemDevice) -> Result<Tree> {
    rig::check_clean(&[Arc::new(device.snapshot())]).context("before the replay")?;
    let seen = look(device).context("read-only")?;
    let ours = roads::we_replay(device, false).context("we")?;
    let differences = tree::differences(&seen, &ours);
    ensure!(differences.is_empty(), "read-only (left) and replayed:\n{differences}");
    Ok(ours)
}

/// What a read-only mount shows. It writes nothing.
fn look(device: &MemDevice) -> Result<Tree> {
    let log = Log::new();
    let recorded: Arc<dyn BlockDevice> = Arc::new(log.record(Arc::new(device.snapshot())));
    let open = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let engine_options = EngineOptions {
        commit_interval_s: 0,
        ..EngineOptions::default()
    };
    let engine = Mount::open(
        Volume::open(vec![recorded], &open)?,
        Arc::new(FixedEnv::default()),
        engine_options,
    )?;
    let mount = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let fs = rig::front(Fs::new(engine, mount)?);
    fs.init(&InitInfo::TRUSTED)?;
    let found = tree::take(&fs)?;
    fs.destroy();
    ensure!(log.is_empty(), "a read-only mount has written");
    Ok(found)
}

fn play(dir: &Path, ops: &[Op], mut after: impl FnMut(&Op, bool) -> Result<()>) -> Result<()> {
    let mut player = MountPlayer::new(dir);
    for op in ops {
        // Random names: that an operation fails is an answer, too.
        let is_done = player.apply(op).is_ok();
        after(op, is_done)?;
    }
    Ok(())
}

/// Notes the state after an operation and what it has promised.
fn note(history: &mut History, dir: &Path, op: &Op, is_done: bool, log: &Log) -> Result<()> {
    let state = tree::take_mount(dir)?;
    let index = history.note(&state, None);
    // System calls follow symbolic links.
    let is_link = |path: &str| state.get(path).is_some_and(|node| node.kind == FileKind::Symlink);
    let is_another = op.synced().is_some_and(|(path, _)| is_link(path));
    noted::promise(op, is_done && !is_another, history, index, state[""].ino);
    log.mark(index as u64);
    Ok(())
}
