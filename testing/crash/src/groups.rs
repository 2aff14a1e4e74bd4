//! Crash images over block groups that come and go: a small volume is filled with data, emptied,
//! filled with names, emptied, and between that a few files are worked on, whose promises must hold
//! in every image.
//!
//! What fills the volume lies in a directory of its own and is not compared: the checkers judge it.
//! Each run must have removed groups, else it proves nothing.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use btrfs_image::{MkfsOptions, mkfs};
use btrfs_store::space::GroupStats;
use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::crash::{CrashImage, CrashImages, Options};
use cowshed_device_sim::{Event, Log, Rng};
use cowshed_harness::Keep;
use cowshed_model::script::{Data, Op, Prealloc};
use cowshed_model::tree::{self, Tree};
use cowshed_vfs::{Error, FileSystem as _, NodeId};

use crate::chosen;
use crate::compressed;
use crate::discards::{self, Discards};
use crate::noted;
use crate::power::Judged;
use crate::promise::History;
use crate::rig::Player;
use crate::rig::{self, Devices, Fs};
use crate::several;
use crate::threads::Threads;
use crate::workload::{self, Mix};

const DEVICE_BYTES: u64 = 128 << 20;
/// What fills the volume.
const BULK: &str = "bulk";
/// Preallocated: quick, and the groups are in use all the same.
const DATA_STEPS: [u64; 3] = [16 << 20, 1 << 20, 64 << 10];
/// Names with an attribute, which take a leaf each or a fifth of one; more of them than find room.
const NAMES_MAX: usize = 20_000;
const XATTR_BYTES: usize = 3000;
/// Operations that are compared, at a time.
const NOTED_OPS: usize = 9;

/// A run to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seed: u64,
    pub nodesize_bytes: u32,
    /// An fsync writes a log where it can.
    pub tree_log: bool,
    /// See [`compressed::drawn`].
    pub compress: Option<CompressPolicy>,
    /// See [`discards::drawn`].
    pub discards: Discards,
    /// How often data and names take turns.
    pub rounds: usize,
}

/// What was recorded.
pub struct Recording {
    run: Run,
    base: MemDevice,
    events: Vec<Event>,
    promised: History,
    /// Where fsyncs had returned when a group was new, in events.
    beside_new_groups: Vec<usize>,
    /// What became of block groups meanwhile.
    pub groups: GroupStats,
}

/// A mount at work.
struct Work<'w> {
    fs: &'w Fs,
    log: &'w Log,
    rng: Rng,
    promised: Option<History>,
    bulk: Vec<String>,
    /// Groups that went for data, and for names.
    gone: [u64; 2],
    beside_new_groups: Vec<usize>,
}

/// What is compared. The rest is thousands of names, looked at by the checkers alone.
fn take(fs: &Fs) -> Result<Tree> {
    let mut tree = Tree::from([(String::new(), tree::load(fs, NodeId::ROOT)?)]);
    for name in tree::names(fs, NodeId::ROOT)? {
        let path = String::from_utf8_lossy(&name).into_owned();
        if path != BULK {
            tree.extend(Player::new(fs).at(&path, |node| tree::take_below(fs, node, &path))?);
        }
    }
    Ok(tree)
}

impl Work<'_> {
    /// False where there is no space.
    fn apply(&self, op: &Op) -> Result<bool> {
        match Player::new(self.fs).apply(op) {
            Ok(()) => Ok(true),
            Err(Error::NoSpace) => Ok(false),
            Err(error) if workload::is_outcome(error) => Ok(false),
            Err(error) => bail!("`{op}` on a healthy device: {error}"),
        }
    }

    fn sync(&self) -> Result<()> {
        ensure!(self.apply(&Op::Sync)?, "what was accepted has its space");
        Ok(())
    }

    /// Makes files until there is no room, each by what `grow` does with a new one.
    fn fill(&mut self, name: &str, files_max: usize, grow: impl Fn(String) -> Op) -> Result<()> {
        for _ in 0..files_max {
            let path = format!("{BULK}/{name}-{}", self.bulk.len());
            self.bulk.push(path.clone());
            let create = Op::write(path.clone(), 0, 10, 1);
            let made = self.made();
            if !self.apply(&create)? || !self.apply(&grow(path))? {
                break;
            }
            if self.made() > made {
                self.sync_beside_a_new_group()?;
            }
        }
        Ok(())
    }

    fn fill_with_data(&mut self) -> Result<()> {
        for step in DATA_STEPS {
            self.fill("data", usize::MAX, |path| Op::Fallocate {
                path,
                offset: 0,
                len: step,
                how: Prealloc::KeepSize,
            })?;
        }
        Ok(())
    }

    fn fill_with_names(&mut self) -> Result<()> {
        self.fill("name", NAMES_MAX, |path| Op::SetXattr {
            path,
            name: "user.fat".into(),
            value: Data::Fill {
                len: XATTR_BYTES,
                fill: 1,
            },
        })
    }

    /// No superblock on disk knows the group that was made just now, and it is the emptiest: data
    /// and log of an fsync must not lead there.
    fn sync_beside_a_new_group(&mut self) -> Result<()> {
        let path = format!("fresh-{}", self.rng.below(3));
        let write = Op::write(
            path.clone(),
            0,
            1 + self.rng.below(20_000) as usize,
            self.rng.next_u64(),
        );
        self.noted(&write)?;
        self.noted(&Op::fsync(path))?;
        self.beside_new_groups.push(self.log.len());
        Ok(())
    }

    fn empty(&mut self) -> Result<()> {
        for path in std::mem::take(&mut self.bulk) {
            self.apply(&Op::unlink(path))?;
        }
        if self.rng.one_in(2) {
            self.sync()?;
        }
        Ok(())
    }

    /// Works on the files that are compared.
    fn work(&mut self) -> Result<()> {
        let mix = if self.rng.one_in(3) {
            Mix::Everything
        } else {
            Mix::Syncs
        };
        let ops = workload::choose(&mut self.rng, mix, NOTED_OPS);
        ops.iter().try_for_each(|op| self.noted(op))
    }

    /// An operation whose promise is kept.
    fn noted(&mut self, op: &Op) -> Result<()> {
        let is_done = self.apply(op)?;
        let Some(promised) = &mut self.promised else {
            return Ok(());
        };
        let state = take(self.fs)?;
        let root = state[""].ino;
        let index = promised.note(&state, None);
        noted::unseen(op, promised, index, root)?;
        noted::promise(op, is_done, promised, index, root);
        self.log.mark(several::mark(0, index));
        Ok(())
    }

    fn made(&self) -> u64 {
        self.fs.mount().store().space().group_stats().made
    }

    fn retired(&self) -> u64 {
        self.fs.mount().store().space().group_stats().retired
    }

    fn round(&mut self) -> Result<()> {
        let before = self.retired();
        self.fill_with_data()?;
        self.work()?;
        let between = self.retired();
        self.empty()?;
        self.work()?;
        self.fill_with_names()?;
        let [for_data, for_names] = &mut self.gone;
        *for_data += between - before;
        *for_names += self.fs.mount().store().space().group_stats().retired - between;
        self.work()?;
        self.empty()?;
        self.work()
    }
}

/// Does the run.
pub fn record(run: Run) -> Result<Recording> {
    let mut options = MkfsOptions::new(rig::uuid_of(run.seed));
    options.nodesize_bytes = Some(run.nodesize_bytes);
    let base = Arc::new(MemDevice::new("memory", DEVICE_BYTES));
    let shared: Arc<dyn BlockDevice> = base.clone();
    mkfs(&[shared], &options).context("mkfs in memory")?;
    let log = Log::new();
    let rng = Rng::new(run.seed);
    {
        // Not recorded: metadata has had the volume to itself.
        let fs = rig::mount_as(vec![base.clone()], false, compressed::options(run.compress))?;
        let mut work = Work {
            fs: &fs,
            log: &log,
            rng: rng.clone(),
            promised: None,
            bulk: Vec::new(),
            gone: [0; 2],
            beside_new_groups: Vec::new(),
        };
        work.apply(&Op::mkdir(BULK))?;
        work.round()?;
        fs.destroy();
    }
    let device = Arc::new(base.snapshot());
    let recorded: Arc<dyn BlockDevice> = Arc::new(log.record(device));
    let fs = rig::mount_discarding(
        vec![recorded],
        run.tree_log,
        compressed::options(run.compress),
        run.discards.mode,
    )?;
    discards::hasten(&fs);
    let mut work = Work {
        fs: &fs,
        log: &log,
        rng,
        promised: Some(History::new(&take(&fs)?)),
        bulk: Vec::new(),
        gone: [0; 2],
        beside_new_groups: Vec::new(),
    };
    discards::beside(&fs, run.discards, || {
        (0..run.rounds).try_for_each(|_| work.round())?;
        work.sync()
    })?;
    let promised = work.promised.take().ok_or_else(|| anyhow!("the history is kept"))?;
    let (gone, beside_new_groups) = (work.gone, work.beside_new_groups);
    ensure!(!gone.contains(&0), "groups went for data and for names: {gone:?}");
    let groups = fs.mount().store().space().group_stats();
    rig::abandon(fs);
    Ok(Recording {
        run,
        base: base.snapshot(),
        events: log.take(),
        promised,
        beside_new_groups,
        groups,
    })
}

impl Recording {
    fn images(&self) -> CrashImages<'_> {
        let options = Options {
            seed: self.run.seed,
            exhaustive_images_max: 16,
            prefix_images_max: 64,
            sampled_images: 12,
            torn_images: 4,
            tear_bytes: 4096,
        };
        CrashImages::new(&[self.base.snapshot()], &self.events, options)
    }

    /// At most so many images, evenly over the run. See [`chosen::evenly`].
    pub fn chosen(&self, images_max: usize) -> impl Iterator<Item = CrashImage> {
        chosen::evenly(|| self.images(), &self.beside_new_groups, self.run.seed, images_max)
    }

    /// Judges one image; gives what a kernel must find in it, if it is asked.
    pub fn judge(&self, image: CrashImage, for_kernel: bool) -> Result<Judged> {
        let name = format!("{:?}\n{image}", self.run);
        self.judge_inner(image, name.clone(), for_kernel).context(name)
    }

    fn judge_inner(&self, image: CrashImage, name: String, for_kernel: bool) -> Result<Judged> {
        let done = several::done(&image.marks, 0);
        let devices: Devices = image.devices.into_iter().map(Arc::new).collect();
        rig::check_clean(&rig::shared(&devices))?;
        let (_, has_log) = rig::state(rig::shared(&devices))?;
        let copies = rig::snapshots(&devices);
        let fs = rig::mount_as(rig::shared(&copies), false, compressed::options(self.run.compress))?;
        let before = take(&fs)?;
        self.promised
            .check(&before, done)
            .with_context(|| format!("log: {has_log}"))?;
        let found = if for_kernel { tree::take(&fs)? } else { Tree::new() };
        // The accounts of space are right: data and tree blocks find a place, and overwrite
        // nothing.
        for n in 0..4 {
            let op = Op::write(format!("{BULK}/after-{n}"), 0, 200_000, n);
            match Player::new(&fs).apply(&op) {
                Ok(()) | Err(Error::NoSpace) => {}
                Err(error) => bail!("writing after the crash: {error}"),
            }
        }
        fs.mount().sync()?;
        let after = tree::differences(&before, &take(&fs)?);
        ensure!(after.is_empty(), "going on changed other files:\n{after}");
        rig::abandon(fs);
        rig::check_clean(&rig::shared(&copies)).context("after going on")?;
        Ok(Judged {
            devices,
            found,
            has_log,
            groups_open: 0,
            name,
        })
    }
}

/// Judges images of runs from a seed, so many in all. Gives how many, and the groups that went
/// meanwhile.
pub fn judge_runs(
    seed: u64,
    images: u64,
    per_run: usize,
    kernel_images: u64,
    keep: &Keep,
) -> Result<(u64, GroupStats)> {
    let mut rng = Rng::new(seed);
    let (mut count, mut by_kernel, mut n) = (0, 0, 0);
    let mut groups = GroupStats::default();
    while count < images {
        let seed = rng.next_u64();
        let run = Run {
            seed,
            nodesize_bytes: if n % 3 == 2 { 16384 } else { 4096 },
            tree_log: n % 4 != 3,
            compress: compressed::drawn(seed),
            discards: discards::drawn(seed, Threads::Several),
            rounds: 1 + n % 2,
        };
        n += 1;
        let recording = record(run).with_context(|| format!("{run:?}"))?;
        groups.made += recording.groups.made;
        groups.retired += recording.groups.retired;
        for image in recording.chosen(per_run) {
            let for_kernel = by_kernel * images < kernel_images * (count + 1);
            let name = format!("groups-{}-{}", run.seed, image.number);
            let devices: Vec<_> = image.devices.iter().map(MemDevice::snapshot).collect();
            let judge = || {
                let judged = recording.judge(image, for_kernel)?;
                match for_kernel {
                    true => crate::kernel::judge(&judged).with_context(|| judged.name.clone()),
                    false => Ok(false),
                }
            };
            by_kernel += u64::from(judge().map_err(|failure| keep.devices(&name, &devices, failure))?);
            count += 1;
            if count >= images {
                break;
            }
        }
    }
    Ok((count, groups))
}
