//! The sides that write and that replay.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use btrfs_format::Superblock;
use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_crash::rig::{self, Devices, Layout, Player};
use cowshed_crash::{kernel, load_image};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_harness::{KernelVolume, VolumeOptions};
use cowshed_model::script::{Desk, MountPlayer, Op};
use cowshed_model::tree::{self, Tree};
use cowshed_vfs::{FileKind, FileSystem as _, NodeId, Timestamp};

use crate::{Answer, Case, expect};

/// Linux or Cowshed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Kernel,
    Cowshed,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Kernel => "kernel",
            Side::Cowshed => "cowshed",
        })
    }
}

/// What a writer left when the power failed.
#[derive(Debug)]
pub struct Crash {
    pub device: MemDevice,
    /// There is a log to be replayed; otherwise the writer has committed instead.
    pub has_log: bool,
    /// Of the last commit.
    pub generation: u64,
}

impl Crash {
    /// Looks for a log.
    pub fn new(device: MemDevice) -> Result<Crash> {
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let volume = Volume::open(vec![Arc::new(device.snapshot())], &options)?;
        let (has_log, generation) = {
            let superblock = volume.superblock();
            (superblock.log_root.get() != 0, superblock.generation.get())
        };
        Ok(Crash {
            device,
            has_log,
            generation,
        })
    }

    /// What its writer has done since the volume was of this generation.
    pub(crate) fn answer(&self, generation: u64) -> Answer {
        match (self.has_log, self.generation == generation) {
            (true, _) => Answer::Log,
            (false, false) => Answer::Commit,
            (false, true) => Answer::Nothing,
        }
    }
}

/// The bits of an inode number that the inode has for itself, `cowshed_btrfs::subvol`.
pub(crate) const SUBVOLUME_SHIFT: u32 = 40;

/// Mount options under which the kernel commits only when asked to.
pub(crate) const KERNEL_OPTIONS: &str = "noatime,commit=300";

/// A fresh volume. Each has a uuid of its own: the kernel does not like to mount two of one uuid at
/// a time.
pub fn base(nodesize_bytes: u32) -> Result<MemDevice> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut uuid = [0x1c; 16];
    uuid[..4].copy_from_slice(&std::process::id().to_le_bytes());
    uuid[4..8].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    Ok(rig::make_as(Layout::Dup, nodesize_bytes, uuid)?[0].snapshot())
}

/// The same, where holes have items of their own: volumes of before 2021.
pub fn base_with_hole_items(nodesize_bytes: u32) -> Result<MemDevice> {
    let volume = KernelVolume::make(&VolumeOptions {
        size_bytes: 256 << 20,
        node_bytes: Some(nodesize_bytes),
        features: vec!["^no-holes"],
        ..VolumeOptions::default()
    })?;
    load_image(volume.image())
}

/// The kernel runs the script; the crash follows right after.
pub fn kernel_writes(base: &MemDevice, ops: &[Op]) -> Result<Crash> {
    let volume = KernelVolume::from_memory(&[base.snapshot()])?;
    let mounted = volume.mount_with(KERNEL_OPTIONS)?;
    let mut player = MountPlayer::new(mounted.dir());
    for op in ops {
        player.apply(op).with_context(|| format!("`{op}`"))?;
    }
    let device = load_image(volume.image())?;
    drop(player);
    mounted.unmount_quietly()?;
    Crash::new(device)
}

/// Our engine runs the script, its fsyncs as logs or as commits; gives what it wrote, too. What it
/// cannot make itself must stand in the setup, which the kernel runs then.
pub fn we_write(base: &MemDevice, case: &Case, tree_log: bool) -> Result<(Crash, Answer)> {
    let (ops, setup) = (case.ops()?, case.setup_len()?);
    let (device, setup, ops) = if ops.iter().any(Op::is_kernels) {
        ensure!(!ops[setup..].iter().any(Op::is_kernels), "only the kernel can do this");
        (kernel_prepares(base, &ops[..setup])?, &ops[..0], &ops[setup..])
    } else {
        (base.snapshot(), &ops[..setup], &ops[setup..])
    };
    let devices: Devices = vec![Arc::new(device)];
    let fs = rig::mount_with(rig::shared(&devices), tree_log)?;
    let desk = Desk::default();
    let player = Player::with_desk(&fs, &desk);
    for op in setup {
        player.apply(op).with_context(|| format!("`{op}`"))?;
    }
    let generation = superblock(devices[0].as_ref())?.generation.get();
    for op in ops {
        player.apply(op).with_context(|| format!("`{op}`"))?;
    }
    let device = devices[0].snapshot();
    rig::abandon(fs);
    let crash = Crash::new(device)?;
    let answer = crash.answer(generation);
    Ok((crash, answer))
}

/// Can our engine run the script? It neither makes subvolumes nor moves them.
pub fn is_for_us(case: &Case) -> Result<bool> {
    let (ops, setup) = (case.ops()?, case.setup_len()?);
    let made: BTreeSet<&String> = ops
        .iter()
        .filter_map(|op| match op {
            Op::Subvolume { path } => Some(path),
            _ => None,
        })
        .collect();
    Ok(!ops[setup..].iter().any(|op| match op {
        op if op.is_kernels() => true,
        Op::Rename { from, .. } => made.contains(from),
        _ => false,
    }))
}

pub(crate) fn kernel_prepares(base: &MemDevice, ops: &[Op]) -> Result<MemDevice> {
    let volume = KernelVolume::from_memory(&[base.snapshot()])?;
    let mounted = volume.mount_with(KERNEL_OPTIONS)?;
    let mut player = MountPlayer::new(mounted.dir());
    for op in ops {
        player.apply(op).with_context(|| format!("`{op}`"))?;
    }
    drop(player);
    mounted.unmount_quietly()?;
    load_image(volume.image())
}

/// The kernel mounts the volume, and shows this. Both checkers find nothing afterwards.
pub fn kernel_replays(device: &MemDevice) -> Result<Tree> {
    let volume = KernelVolume::from_memory(&[device.snapshot()])?;
    let mounted = volume.mount_with("noatime")?;
    let found = tree::take_mount(mounted.dir());
    mounted.unmount_quietly()?;
    let found = found?;
    check_both(volume.image())?;
    Ok(found)
}

fn check_both(image: &Path) -> Result<()> {
    kernel::check_clean(image)?;
    rig::check_clean(&[Arc::new(load_image(image)?)])
}

/// We mount the volume, and show this. Our checker finds nothing afterwards; if asked to, the
/// kernel mounts the result, too: it sees the same, and its checker finds nothing.
pub fn we_replay(device: &MemDevice, and_the_kernel: bool) -> Result<Tree> {
    let devices: Devices = vec![Arc::new(device.snapshot())];
    let fs = rig::mount(rig::shared(&devices))?;
    let found = tree::take(&fs)?;
    fs.syncfs(&rig::ROOT, NodeId::ROOT)?;
    fs.destroy();
    drop(fs);
    rig::check_clean(&rig::shared(&devices)).context("after our replay")?;
    if !and_the_kernel {
        return Ok(found);
    }
    let after = kernel_replays(&devices[0]).context("in the kernel, after our replay")?;
    same(&found, &after).context("we (left) and the kernel, of what we replayed")?;
    Ok(found)
}

/// A tree with the inode numbers that its subvolumes have for themselves.
pub fn numbered_by_subvolume(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    for node in tree.values_mut() {
        node.ino &= (1 << SUBVOLUME_SHIFT) - 1;
    }
    tree
}

/// Two trees of one crash image. Replay changes directories, and when it did so is not promised;
/// inode numbers of subvolumes carry the subvolume in our mounts ([`SUBVOLUME_SHIFT`]).
pub fn same(left: &Tree, right: &Tree) -> Result<()> {
    let plain = |tree: &Tree| {
        let mut tree = numbered_by_subvolume(tree);
        for node in tree.values_mut() {
            if node.kind == FileKind::Directory {
                node.mtime = Timestamp::default();
            }
        }
        tree
    };
    let differences = tree::differences(&plain(left), &plain(right));
    ensure!(differences.is_empty(), "{differences}");
    Ok(())
}

/// What came of a case.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sides that wrote a log, where the others have committed.
    pub logged: BTreeSet<Side>,
    /// What we wrote, where we were among the writers.
    pub ours: Option<Answer>,
}

/// Names of one file that fill half a leaf: Linux 6.18 may come to a stop where it replays them
/// (docs/design/log-tree.md, "Long items").
fn may_go_to_the_kernel(case: &Case, nodesize_bytes: u32) -> bool {
    nodesize_bytes >= 16384 || !case.script.contains("manylinks")
}

/// The first one, as it is on the device now.
fn superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSETS[0], &mut bytes)?;
    Ok(Superblock::verify(&bytes, Some(SUPERBLOCK_OFFSETS[0]))?)
}

/// Runs a case: each writer's crash image is replayed by each replayer.
///
/// `tree_log`: our fsyncs write logs, not commits; then each does what the case says.
pub fn run(case: &Case, base: &MemDevice, tree_log: bool, writers: &[Side], replayers: &[Side]) -> Result<Report> {
    let mut report = Report::default();
    let nodesize_bytes = superblock(base)?.nodesize.get();
    for &writer in writers {
        if writer == Side::Cowshed && !is_for_us(case)? {
            continue;
        }
        let name = || format!("case {}, written by {writer}", case.name);
        let crash = match writer {
            Side::Kernel => kernel_writes(base, &case.ops()?).map(|crash| (crash, None)),
            Side::Cowshed => we_write(base, case, tree_log).map(|(crash, answer)| (crash, Some(answer))),
        };
        let (crash, answer) = crash.with_context(name)?;
        if let Some(answer) = answer {
            let expected = case.answer(nodesize_bytes);
            ensure!(!tree_log || answer == expected, "{}: {answer}, not {expected}", name());
            report.ours = Some(answer);
        }
        if crash.has_log {
            report.logged.insert(writer);
        }
        let mut first: Option<(Side, Tree)> = None;
        let is_safe = may_go_to_the_kernel(case, nodesize_bytes);
        for &replayer in replayers.iter().filter(|side| is_safe || **side != Side::Kernel) {
            let name = || format!("{}, replayed by {replayer}", name());
            let found = match replayer {
                Side::Kernel => kernel_replays(&crash.device),
                Side::Cowshed => we_replay(&crash.device, replayers.contains(&Side::Kernel)),
            }
            .with_context(name)?;
            let mut expected = case.expect.to_vec();
            if writer == Side::Kernel {
                expected.extend(case.linux);
            }
            expect::check(&expected, &found).with_context(name)?;
            match &first {
                None => first = Some((replayer, found)),
                Some((other, tree)) => {
                    same(tree, &found).map_err(|e| anyhow!("{} differs from the replay by {other}: {e:#}", name()))?
                }
            }
        }
    }
    Ok(report)
}
