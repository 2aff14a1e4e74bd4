//! Plays a script on either side, with a power cut at each fsync.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cowshed_crash::rig::{self, Devices};
use cowshed_crash::tree::{self, Tree};
use cowshed_crash::{kernel, load_image};
use cowshed_device::MemDevice;
use cowshed_harness::{KernelVolume, Mounted};
use cowshed_vfs::FileKind;

use super::script::{Script, TOP};
use crate::linux::Linux;
use crate::op::Op;
use crate::ours::Ours;
use crate::roads::{self, Crash, KERNEL_OPTIONS};

/// A power cut right after an fsync.
#[derive(Debug)]
pub(super) struct Cut {
    /// The states up to this one had been when the power failed: an index of [`Run::states`].
    pub state: usize,
    /// The fsync wrote a log; else it committed, or had nothing to write.
    pub has_log: bool,
    /// The last state that a commit had made durable, as far as fsyncs and syncs tell.
    pub committed: usize,
    /// What the next mount shows.
    pub found: Tree,
    pub device: MemDevice,
}

/// What one side did with a script.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Whether each step succeeded.
    pub done: Vec<bool>,
    /// What the live mount showed: after the setup, then after each step.
    pub states: Vec<Tree>,
    pub crashes: Vec<Cut>,
}

impl Run {
    /// Plays the steps of a script; `look` shows the mount, `cut` copies the device.
    fn of(
        script: &Script,
        mut apply: impl FnMut(&Op) -> Result<()>,
        look: impl Fn() -> Result<Tree>,
        cut: impl Fn() -> Result<MemDevice>,
        prefix: &str,
    ) -> Result<Run> {
        // A line of the setup may lack what another line, left out, would have made.
        for op in script.setup() {
            let _ = apply(&op);
        }
        apply(&Op::Sync)?;
        let mut run = Run {
            states: vec![look()?],
            ..Run::default()
        };
        let mut committed = 0;
        let mut generation = Crash::new(cut()?)?.generation;
        for op in script.steps() {
            let is_done = is_fair(&op, run.states.last().expect("one is there")) && apply(&op).is_ok();
            run.done.push(is_done);
            run.states.push(look()?);
            if is_done && op.is_promise() {
                let crash = Crash::new(cut()?)?;
                let state = run.states.len() - 1;
                if crash.generation > generation {
                    (generation, committed) = (crash.generation, state);
                }
                run.crashes.push(Cut {
                    state,
                    committed,
                    has_log: crash.has_log,
                    found: below(&replayed(&crash.device)?, prefix),
                    device: crash.device,
                });
            }
        }
        Ok(run)
    }
}

/// Both sides take the operation for the same: paths of ours are nodes, those of system calls are opened or followed, which
/// differs for what is neither a file nor a directory.
fn is_fair(op: &Op, state: &Tree) -> bool {
    match op {
        Op::Create(path)
        | Op::Fsync(path)
        | Op::Fdatasync(path)
        | Op::Write(_, path, ..)
        | Op::Truncate(path, _)
        | Op::Fallocate(_, path, ..)
        | Op::Chmod(path, _)
        | Op::SetXattr(path, ..)
        | Op::RemoveXattr(path, _) => state
            .get(path)
            .is_none_or(|node| matches!(node.kind, FileKind::Regular | FileKind::Directory)),
        _ => true,
    }
}

/// What the next mount of ours shows.
fn replayed(device: &MemDevice) -> Result<Tree> {
    let devices: Devices = vec![Arc::new(device.snapshot())];
    let fs = rig::mount(rig::shared(&devices)).context("replaying")?;
    let found = tree::take(&fs)?;
    rig::abandon(fs);
    Ok(found)
}

/// The part of a tree below a directory.
fn below(tree: &Tree, prefix: &str) -> Tree {
    let inside = |path: &String| Some(path.strip_prefix(prefix)?.to_owned());
    let all = tree
        .iter()
        .filter_map(|(path, node)| Some((inside(path)?, node.clone())));
    all.filter(|(path, _)| path.starts_with(TOP)).collect()
}

/// Plays the script on a fresh volume of ours.
pub(super) fn ours(base: &MemDevice, script: &Script) -> Result<Run> {
    let devices: Devices = vec![Arc::new(base.snapshot())];
    let fs = rig::mount_with(rig::shared(&devices), true)?;
    let mut player = Ours::new(&fs);
    let look = || Ok(below(&tree::take(&fs)?, ""));
    let run = Run::of(script, |op| player.apply(op), look, || Ok(devices[0].snapshot()), "");
    drop(player);
    rig::abandon(fs);
    run
}

/// The kernel finds in a crash image of ours what we find, and its checker nothing afterwards.
pub(super) fn replay_by_kernel(crash: &Cut) -> Result<()> {
    let theirs = roads::kernel_replays(&crash.device).context("the kernel replays our log")?;
    roads::same(&crash.found, &below(&theirs, "")).context("we (left) and the kernel, of our log")
}

/// A volume of the kernel's, on which scripts are played one after the other, each in a directory of its own.
pub(super) struct Kernel {
    volume: KernelVolume,
    mounted: Mounted,
    count: u64,
}

impl Kernel {
    pub fn new() -> Result<Kernel> {
        let volume = KernelVolume::from_memory(&[roads::base(16384)?])?;
        let mounted = volume.mount_with(KERNEL_OPTIONS)?;
        Ok(Kernel {
            volume,
            mounted,
            count: 0,
        })
    }

    pub fn play(&mut self, script: &Script) -> Result<Run> {
        self.count += 1;
        let prefix = format!("r{}/", self.count);
        let dir = self.mounted.dir().join(&prefix);
        std::fs::create_dir(&dir)?;
        let mut player = Linux::new(&dir);
        let look = || Ok(below(&kernel::collect_mount(&dir)?, ""));
        let cut = || load_image(self.volume.image());
        let run = Run::of(script, |op| player.apply(op), look, cut, &prefix);
        drop(player);
        std::fs::remove_dir_all(&dir)?;
        run
    }

    pub fn unmount(self) -> Result<()> {
        self.mounted.unmount_quietly()?;
        ensure!(self.count > 0, "a mount without a script");
        Ok(())
    }
}
