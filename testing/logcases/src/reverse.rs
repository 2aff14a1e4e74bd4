//! The kernel writes, at random; crash images are cut out of its run at many moments; the kernel
//! and we replay each.
//!
//! The image lies on a btrfs of the kernel's own, whose reflinks make a copy of one moment: between
//! two operations, and, by another thread, in the midst of operations, commits and log writes. Of
//! each copy both must make the same tree, and both checkers must find nothing afterwards.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use cowshed_crash::load_image;
use cowshed_crash::workload::{self, Mix};
use cowshed_device_sim::Rng;
use cowshed_harness::{Keep, KernelMount, KernelVolume, LoopDevice, VolumeOptions, threads};
use cowshed_model::script::{MountPlayer, Op};

use crate::roads::{self, Crash};

const OPERATIONS: usize = 80;
/// A cut after one of so many operations.
const CUT_EVERY: u64 = 6;
/// Cuts kept of one run.
const CUTS_MAX: u64 = 40;

/// What was done.
#[derive(Debug, Default)]
pub struct Report {
    pub images: u64,
    pub logs: u64,
    pub runs: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} crash images of {} runs of the kernel, {} with a log: the kernel and we agree",
            self.images, self.runs, self.logs
        )
    }
}

/// Judges so many images. Needs root.
pub fn run(seed: u64, images: u64, keep: &Keep) -> Result<Report> {
    let mut rng = Rng::new(seed);
    let mut report = Report::default();
    while report.images < images {
        let seed = rng.next_u64();
        one_run(seed, images, keep, &mut report).with_context(|| format!("run {seed}"))?;
        report.runs += 1;
    }
    Ok(report)
}

fn one_run(seed: u64, images: u64, keep: &Keep, report: &mut Report) -> Result<()> {
    let mut rng = Rng::new(seed);
    let options = VolumeOptions {
        size_bytes: 2 << 30,
        ..VolumeOptions::default()
    };
    let host = KernelVolume::make(&options)?;
    let mounted = host.mount_with("noatime")?;
    let image = mounted.dir().join("image");
    let node_bytes = if rng.one_in(2) { 4096 } else { 16384 };
    roads::base(node_bytes)?.save(&image)?;
    let mut ops = workload::choose(&mut rng, Mix::Syncs, OPERATIONS);
    ops.retain(|op| is_safe(op, node_bytes));
    let cuts = write_and_cut(&image, mounted.dir(), &ops, &mut rng)?;
    for cut in cuts.iter().take((images - report.images) as usize) {
        let crash = Crash::new(load_image(cut)?)?;
        report.images += 1;
        report.logs += u64::from(crash.has_log);
        let judge = || {
            let kernels = roads::kernel_replays(&crash.device).context("the kernel")?;
            let ours = roads::we_replay(&crash.device, false).context("we")?;
            roads::same(&kernels, &ours).context("the kernel (left) and we")
        };
        judge().map_err(|failure| {
            let failure = failure.context(format!("log: {}", crash.has_log));
            keep.devices(&format!("reverse-{seed}-{}", report.images), [&crash.device], failure)
        })?;
    }
    mounted.unmount_quietly()
}

/// The kernel works on the image; gives the copies that were made meanwhile.
fn write_and_cut(image: &Path, dir: &Path, ops: &[Op], rng: &mut Rng) -> Result<Vec<PathBuf>> {
    let inner = dir.parent().context("no parent")?.join("inner");
    std::fs::create_dir(&inner)?;
    let device = LoopDevice::attach(image)?;
    let mount = KernelMount::new("btrfs", &[device.path()], &inner, "noatime,commit=1")?;
    let count = AtomicU64::new(0);
    let cut = || -> Result<()> {
        let number = count.fetch_add(1, Ordering::Relaxed);
        if number < CUTS_MAX {
            let copy = File::create(dir.join(format!("cut-{number}")))?;
            rustix::fs::ioctl_ficlone(&copy, File::open(image)?)?;
        }
        Ok(())
    };
    // Cuts at arbitrary moments.
    let cut_blindly = || {
        cut()?;
        std::thread::sleep(std::time::Duration::from_millis(7));
        anyhow::Ok(())
    };
    threads::beside(cut_blindly, || {
        let mut player = MountPlayer::new(&inner);
        for op in ops {
            // Random names: that an operation fails is an answer, too.
            let _ = player.apply(op);
            if op.is_promise() && rng.below(CUT_EVERY) == 0 {
                cut()?;
            }
        }
        Ok(())
    })?;
    mount.unmount()?;
    let made = count.into_inner().min(CUTS_MAX);
    Ok((0..made).map(|n| dir.join(format!("cut-{n}"))).collect())
}

/// Replaying an item of names that is longer than half a leaf can hang the kernel
/// (docs/design/log-tree.md, Long items): so long names are few, and none in small leaves.
pub(crate) fn is_safe(op: &Op, node_bytes: u32) -> bool {
    const LONG_BYTES: usize = 100;
    const LONG_NAMES_MAX: u64 = 12;
    let is_fine = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        let number = || name.get(1..).and_then(|number| number.parse::<u64>().ok());
        name.len() <= LONG_BYTES || node_bytes >= 16384 && number().is_some_and(|n| n < LONG_NAMES_MAX)
    };
    op.paths().iter().all(is_fine)
}

#[cfg(test)]
mod tests {
    use cowshed_harness::need;
    use cowshed_model::script;

    use super::*;

    /// What the kernel makes of random operations that are several system calls, or calls of ioctl.
    #[test]
    fn temporary_files_and_flags_are_the_kernels_too() {
        if need::kernel_btrfs().is_none() {
            return;
        }
        let volume = KernelVolume::make(&VolumeOptions::default()).unwrap();
        let mounted = volume.mount_with("noatime").unwrap();
        let mut player = MountPlayer::new(mounted.dir());
        let lines = [
            "mkdir d",
            "create e",
            "create c",
            "temporary d/ f ~5000:7 fsync",
            "temporary d/ d/g ~5000:7 -",
            "flags e 800000",
            "flags c 4",
        ];
        for line in lines {
            player.apply(&Op::parse(line).unwrap()).unwrap();
        }
        let tree = cowshed_model::tree::take_mount(mounted.dir()).unwrap();
        for name in ["f", "d/g"] {
            let node = &tree[name];
            assert_eq!((node.nlink, &**node.content), (1, &*script::bytes(7, 5000)), "{name}");
        }
        assert!(tree["e"].in_place);
        assert_eq!(tree["c"].xattrs[&b"btrfs.compression"[..]], b"zlib");
        mounted.unmount_quietly().unwrap();
    }
}
