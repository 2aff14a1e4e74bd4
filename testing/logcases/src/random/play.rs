//! One script on two volumes, in step: the kernel's and ours. At each fsync the power fails on
//! both.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cowshed_btrfs::fs::{AtimePolicy, MountOptions};
use cowshed_crash::load_image;
use cowshed_crash::promise::{History, Promise};
use cowshed_crash::rig::{self, Devices, Fs, Player};
use cowshed_device::MemDevice;
use cowshed_harness::KernelVolume;
use cowshed_model::script::{Desk, How, MountPlayer, Op};
use cowshed_model::tree::{self, Tree};

use super::choose::SUBVOLUMES;
use super::facts::{self, Difference, Facts, Ids};
use crate::roads::{self, Crash};
use crate::table::Answer;

/// The power failed right after an fsync had returned, on both volumes.
#[derive(Debug)]
pub(crate) struct Moment {
    /// How many of the operations were done then.
    pub(crate) ops: usize,
    /// The state after them.
    pub(crate) state: usize,
    kernel: Crash,
    ours: Crash,
    /// What the kernel's fsync was, and ours.
    pub(crate) answers: [Answer; 2],
    /// The states of the last commits, the kernel's and ours.
    pub(crate) commits: [usize; 2],
}

/// A script that was played, with all that is needed to judge it.
#[derive(Debug)]
pub(crate) struct Played {
    /// Those operations that succeed.
    pub(crate) ops: Vec<Op>,
    pub(crate) moments: Vec<Moment>,
    states: Vec<Facts>,
    trees: Vec<Tree>,
    history: History,
    kernel_ids: Ids,
    our_ids: Ids,
}

/// What the crash of one moment left.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) kernels: Tree,
    pub(crate) differences: Vec<Difference>,
    /// What of ours breaks the promises of `docs/DURABILITY.md`.
    pub(crate) broken: Option<String>,
}

impl Played {
    /// Plays a script on copies of `base`. Operations that fail are left out on both sides.
    /// `no_fsyncs`: after the setup, ours is not told of them.
    pub(crate) fn new(base: &MemDevice, script: &[Op], no_fsyncs: bool) -> Result<Played> {
        // Subvolumes come first, and are the kernel's to make.
        let (subvolumes, script) = script.split_at(script.iter().take_while(|op| op.is_kernels()).count());
        let base = match subvolumes {
            [] => base.snapshot(),
            _ => roads::kernel_prepares(base, subvolumes)?,
        };
        let volume = KernelVolume::from_memory(&[base.snapshot()])?;
        let mounted = volume.mount_with(roads::KERNEL_OPTIONS)?;
        let devices: Devices = vec![Arc::new(base)];
        // To look at it changes nothing, as on the kernel's side.
        let options = MountOptions {
            atime: AtimePolicy::Never,
            ..MountOptions::default()
        };
        let fs = rig::mount_as(rig::shared(&devices), true, options)?;
        let desk = Desk::default();
        let mut pair = Pair {
            dir: mounted.dir(),
            image: volume.image(),
            device: &devices[0],
            fs: &fs,
            linux: MountPlayer::new(mounted.dir()),
            ours: Player::with_desk(&fs, &desk),
            generations: None,
            commits: [0; 2],
            next_id: 0,
            no_fsyncs,
            played: Played {
                ops: subvolumes.to_vec(),
                moments: Vec::new(),
                states: Vec::new(),
                trees: Vec::new(),
                history: History::default(),
                kernel_ids: Ids::default(),
                our_ids: Ids::default(),
            },
        };
        let result = script.iter().try_for_each(|op| pair.step(op));
        let Pair { linux, played, .. } = pair;
        drop(linux);
        rig::abandon(fs);
        let unmounted = mounted.unmount_quietly();
        result?;
        unmounted?;
        Ok(played)
    }

    /// Replays both crash images of a moment and compares. `by_kernel`: it is the kernel that
    /// replays its own.
    pub(crate) fn left(&self, moment: &Moment, by_kernel: bool) -> Result<Left> {
        let ours = roads::we_replay(&moment.ours.device, false).context("our replay of ours")?;
        let kernels = match by_kernel {
            true => kernel_shows(&moment.kernel.device).context("the kernel's replay of its own")?,
            false => roads::we_replay(&moment.kernel.device, false).context("our replay of the kernel's")?,
        };
        let states = &self.states[..=moment.state];
        let numbered = |tree: &Tree, ids| Facts::new(&numbered(tree), ids);
        let differences = facts::compare(
            states,
            &numbered(&kernels, &self.kernel_ids),
            &numbered(&ours, &self.our_ids),
        );
        let broken = self.history.until(moment.state).check(&ours, moment.state).err();
        Ok(Left {
            kernels,
            differences,
            broken: broken.map(|error| format!("{error:#}")),
        })
    }

    /// The kernel replays both images, too: of each it must make what we make of it.
    pub(crate) fn kernel_agrees(&self, moment: &Moment) -> Result<()> {
        for (crash, whose) in [(&moment.kernel, "the kernel's log"), (&moment.ours, "our log")] {
            let kernels = roads::kernel_replays(&crash.device).with_context(|| format!("{whose}, by the kernel"))?;
            let ours = roads::we_replay(&crash.device, false).with_context(|| format!("{whose}, by us"))?;
            roads::same(&kernels, &ours).with_context(|| format!("{whose}, by the kernel (left) and by us"))?;
        }
        Ok(())
    }

    /// A path of the inode in the last state that has it.
    pub(crate) fn path(&self, id: facts::Id, moment: &Moment) -> &str {
        let states = self.states[..=moment.state].iter().rev();
        states.filter_map(|state| state.path(id)).next().unwrap_or("?")
    }

    /// The inode that was synced by the operation that led to a state.
    fn synced(&self, moment: &Moment, state: usize) -> Option<facts::Id> {
        let op = &self.ops[(moment.ops + state).checked_sub(moment.state + 1)?];
        match op {
            Op::Fsync { path }
            | Op::Fdatasync { path }
            | Op::Write {
                how: How::Sync | How::DataSync,
                path,
                ..
            } => self.states[state].id(path),
            _ => None,
        }
    }

    /// Was the inode synced itself, in a state from `state` on?
    pub(crate) fn was_synced_since(&self, id: facts::Id, state: usize, moment: &Moment) -> bool {
        (state..=moment.state).any(|state| self.synced(moment, state) == Some(id))
    }

    /// The kernel's last commit is younger than ours, and has other names of an inode that was
    /// synced since.
    pub(crate) fn has_younger_names(&self, moment: &Moment) -> bool {
        let [kernels, ours] = moment.commits;
        let differs = |id| self.states[kernels].names(id) != self.states[ours].names(id);
        kernels > ours && (kernels..=moment.state).any(|state| self.synced(moment, state).is_some_and(differs))
    }

    /// The files right before the crash, as ours had them.
    pub(crate) fn live(&self, moment: &Moment) -> &Tree {
        &self.trees[moment.state]
    }

    /// The files when the setup was done, likewise.
    pub(crate) fn first(&self) -> &Tree {
        &self.trees[0]
    }

    /// The crash images of a moment: the kernel's, ours.
    pub(crate) fn images(moment: &Moment) -> [&MemDevice; 2] {
        [&moment.kernel.device, &moment.ours.device]
    }
}

/// What the kernel makes of a crash image.
fn kernel_shows(device: &MemDevice) -> Result<Tree> {
    let volume = KernelVolume::from_memory(&[device.snapshot()])?;
    let mounted = volume.mount_with("noatime")?;
    let found = tree::take_mount(mounted.dir());
    mounted.unmount_quietly()?;
    found
}

/// Both volumes, at work.
struct Pair<'v> {
    dir: &'v Path,
    image: &'v Path,
    device: &'v MemDevice,
    fs: &'v Fs,
    linux: MountPlayer,
    ours: Player<'v>,
    /// Of the superblocks, kernel's and ours, when the setup was done: from then on states count.
    generations: Option<[u64; 2]>,
    commits: [usize; 2],
    next_id: facts::Id,
    no_fsyncs: bool,
    played: Played,
}

impl Pair<'_> {
    fn step(&mut self, op: &Op) -> Result<()> {
        let is_fsync = matches!(op, Op::Fsync { .. } | Op::Fdatasync { .. });
        let is_told = !(self.no_fsyncs && is_fsync && self.generations.is_some());
        if is_told && self.ours.apply(op).is_err() {
            return Ok(());
        }
        self.linux.apply(op).context("what succeeds here fails in the kernel")?;
        self.played.ops.push(op.clone());
        let begins = self.generations.is_none();
        if begins && *op != Op::Sync {
            return Ok(());
        }
        let tree = self.look().with_context(|| format!("after `{op}`"))?;
        let facts = Facts::new(&numbered(&tree), &self.played.our_ids);
        self.played.states.push(facts);
        self.played.trees.push(tree.clone());
        match begins {
            true => self.played.history = History::new(&tree),
            false => {
                let promised = promise(op, &tree).filter(|_| is_told);
                self.played.history.note(&tree, promised);
            }
        }
        if begins || op.is_promise() {
            self.cut(op)?;
        }
        Ok(())
    }

    /// The tree as it is now; inodes that are new in it get their ids.
    fn look(&mut self) -> Result<Tree> {
        let ours = tree::take(self.fs)?;
        let mut kernels = BTreeMap::new();
        numbers(self.dir, "", &mut kernels)?;
        ensure!(
            ours.keys().eq(kernels.keys()),
            "two trees: {:?} of the kernel, {:?}",
            kernels.keys(),
            ours.keys()
        );
        for ((path, node), kernels) in ours.iter().zip(kernels.values()) {
            let (ours, kernels) = (number(path, node.ino), number(path, *kernels));
            let ids = [self.played.kernel_ids.get(kernels), self.played.our_ids.get(ours)];
            match ids {
                [None, None] => {
                    self.played.kernel_ids.add(kernels, self.next_id);
                    self.played.our_ids.add(ours, self.next_id);
                    self.next_id += 1;
                }
                [kernels, ours] => ensure!(kernels == ours, "two trees: names lead to different inodes"),
            }
        }
        Ok(ours)
    }

    /// The power fails.
    fn cut(&mut self, op: &Op) -> Result<()> {
        let kernel = Crash::new(load_image(self.image)?)?;
        let ours = Crash::new(self.device.snapshot())?;
        let now = [kernel.generation, ours.generation];
        let state = self.played.states.len() - 1;
        let before = self.generations.replace(now).unwrap_or(now);
        for (commit, (before, now)) in self.commits.iter_mut().zip(before.into_iter().zip(now)) {
            if before != now {
                *commit = state;
            }
        }
        if *op != Op::Sync {
            self.played.moments.push(Moment {
                ops: self.played.ops.len(),
                state,
                answers: [kernel.answer(before[0]), ours.answer(before[1])],
                kernel,
                ours,
                commits: self.commits,
            });
        }
        Ok(())
    }
}

/// What an operation of ours has promised.
fn promise(op: &Op, tree: &Tree) -> Option<Promise> {
    let ino = |path: &str| tree.get(if path == "." { "" } else { path }).map(|node| node.ino);
    match op {
        Op::Sync => Some(Promise::Volume),
        Op::Fsync { path }
        | Op::Write {
            how: How::Sync, path, ..
        } => ino(path).map(Promise::Inode),
        Op::Fdatasync { path }
        | Op::Write {
            how: How::DataSync,
            path,
            ..
        } => ino(path).map(Promise::Data),
        _ => None,
    }
}

/// An inode's number that no inode of another subvolume has, by kernel or by us.
fn number(path: &str, ino: u64) -> u64 {
    let top = path.split('/').next();
    let subvolume = SUBVOLUMES.iter().position(|name| Some(*name) == top);
    let own = ino & ((1 << roads::SUBVOLUME_SHIFT) - 1);
    subvolume.map_or(0, |index| (index as u64 + 1) << roads::SUBVOLUME_SHIFT) | own
}

fn numbered(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    for (path, node) in &mut tree {
        node.ino = number(path, node.ino);
    }
    tree
}

/// The inode numbers below a directory of the kernel's, by path.
fn numbers(dir: &Path, name: &str, found: &mut BTreeMap<String, u64>) -> Result<()> {
    use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
    if name.is_empty() {
        found.insert(String::new(), std::fs::metadata(dir)?.ino());
    }
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let below = entry.file_name().to_string_lossy().into_owned();
        let below = if name.is_empty() {
            below
        } else {
            format!("{name}/{below}")
        };
        // Entries give the root of a subvolume the number that its tree has.
        let ino = match SUBVOLUMES.contains(&below.as_str()) {
            true => entry.metadata()?.ino(),
            false => entry.ino(),
        };
        found.insert(below.clone(), ino);
        if entry.file_type()?.is_dir() {
            numbers(&entry.path(), &below, found)?;
        }
    }
    Ok(())
}
