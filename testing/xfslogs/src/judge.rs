//! One image, recovered by both.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cowshed_device::{FileDevice, Locking, OpenMode};
use cowshed_harness::{KernelMount, LoopDevice, run_raw};
use cowshed_vfs::{FileSystem as _, InitInfo};
use cowshed_xfs::{Fs, OpenOptions as Options, Volume};
use xfs_format::features::incompat;

use crate::host::Host;
use crate::left::{Counters, Left};
use crate::seen::Seen;
use crate::{blocks, shown};

pub fn judge(host: &Host, image: &Path, seen: &mut Seen) -> Result<()> {
    let before = std::fs::read(image)?;
    let device = FileDevice::open_with(image, OpenMode::ReadOnly, Locking::Unlocked)?;
    let volume = match Volume::open(Arc::new(device), &Options::default()) {
        Err(cowshed_xfs::Error::Unsupported(what)) => {
            *seen.refused.entry(what).or_default() += 1;
            return Ok(());
        }
        other => Arc::new(other.context("our recovery")?),
    };
    let found = volume.recovery().map(|recovery| {
        let mkfs = volume.geometry();
        format!(
            "blocks of {}, unfinished {:?}, {} unlinked, {} staged",
            mkfs.block_bytes, recovery.unfinished, recovery.unlinked, recovery.staged
        )
    });
    both(host, image, &before, &volume, seen).with_context(|| found.unwrap_or_default())
}

/// Recovered in memory already; now by the kernel on a copy.
fn both(host: &Host, image: &Path, before: &[u8], volume: &Arc<Volume>, seen: &mut Seen) -> Result<()> {
    let mut ours = before.to_vec();
    let mut promised = false;
    if let Some(recovery) = volume.recovery() {
        for (at, page) in recovery.pages() {
            let at = usize::try_from(at)?;
            ours[at..at + page.len()].copy_from_slice(page);
        }
        for (name, count) in &recovery.items {
            *seen.items.entry(name).or_default() += count;
        }
        for (name, count) in &recovery.unfinished {
            *seen.unfinished.entry(name).or_default() += count;
            *seen.with_unfinished.entry(name).or_default() += 1;
        }
        seen.unlinked += recovery.unlinked;
        promised = !recovery.unfinished.is_empty() || recovery.unlinked > 0 || recovery.staged > 0;
    } else {
        seen.clean += 1;
    }
    let fs = Fs::new(Arc::clone(volume))?;
    fs.init(&InitInfo::TRUSTED)?;
    let found = shown::by_us(&fs).context("our tree")?;

    let has = |intent: &str| {
        let recovery = volume.recovery();
        recovery.is_some_and(|recovery| recovery.unfinished.contains_key(intent))
    };
    let slack = shown::Slack {
        since: has("ATTRI").then(shown::now),
    };
    let copy = host.copy(image, "kernel")?;
    let device = LoopDevice::attach(&copy)?;
    if promised {
        // A mount for reading alone may or may not free what was preallocated behind the ends of
        // files with an intent: it stops that work when the mount is complete. No file is looked at
        // here: one that was would lose more when it is let go of.
        let mount = KernelMount::new("xfs", &[device.path()], &host.mountpoint, "").context("the kernel's recovery")?;
        mount.unmount()?;
    }
    let mount = KernelMount::new("xfs", &[device.path()], &host.mountpoint, "ro").context("the kernel's recovery")?;
    let expected = shown::by_kernel(&host.mountpoint).context("the kernel's tree")?;
    mount.unmount()?;
    drop(device);
    shown::compare(&found, expected, &slack)?;
    let device = FileDevice::open_with(&copy, OpenMode::ReadOnly, Locking::Unlocked)?;
    let after = Volume::open(Arc::new(device), &Options::default()).context("after the kernel's recovery")?;
    ensure!(after.recovery().is_none(), "the kernel left a dirty log");
    let counters = |volume: &Volume| -> Counters {
        let sb = volume.superblock();
        (sb.fdblocks.get(), sb.icount.get(), sb.ifree.get())
    };
    let kernel = std::fs::read(&copy)?;
    let geometry = volume.geometry();
    let left = Left::find(geometry, &kernel).context("after the kernel's recovery")?;
    seen.left += left.inodes;
    let found = counters(volume);
    let expected = left.freed(geometry, counters(&after), found.1);
    ensure!(
        found == expected,
        "free blocks, inodes and free inodes {found:?}, the kernel's {expected:?}; {left:?}"
    );
    if !promised {
        blocks::compare(geometry, before, &ours, &kernel, &mut seen.blocks)?;
        seen.compared += 1;
    }
    if volume.recovery().is_some() && !geometry.has_incompat(incompat::PARENT) {
        repair(&copy, geometry, &ours, &left)?;
        seen.repaired += 1;
    }
    ensure!(std::fs::read(image)? == *before, "the image changed");
    std::fs::remove_file(copy)?;
    Ok(())
}

/// Lays our blocks over the kernel's clean volume, all but the log, and asks xfs_repair, which must
/// find no more than in the kernel's. That has attributes that were never completed, too. Where the
/// kernel left inodes, each complaint about ours must be one about the kernel's.
fn repair(copy: &Path, geometry: &xfs_format::Geometry, ours: &[u8], left: &Left) -> Result<()> {
    let expected = complaints(copy)?;
    let file = OpenOptions::new().write(true).open(copy)?;
    let log = geometry.log_start.and_then(|start| geometry.daddr(start));
    let from = log.and_then(|daddr| daddr.checked_bytes()).unwrap_or(0) as usize;
    let to = from + geometry.log_blocks as usize * geometry.block_bytes as usize;
    file.write_all_at(&ours[..from], 0)?;
    file.write_all_at(&ours[to..], to as u64)?;
    drop(file);
    let found = complaints(copy)?;
    let is_less = || found.lines().all(|line| expected.lines().any(|other| other == line));
    ensure!(
        found == expected || (left.inodes > 0 && is_less()),
        "xfs_repair -n of our recovery:\n{found}\n\nof the kernel's:\n{expected}"
    );
    Ok(())
}

/// What xfs_repair says beside its progress. Empty for a volume without a fault.
fn complaints(image: &Path) -> Result<String> {
    let output = run_raw("xfs_repair", &["-n".as_ref(), image.as_os_str()])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(String::new());
    }
    let is_progress = |line: &&str| line.trim_start().starts_with("- ") || line.starts_with("Phase");
    let lines: Vec<&str> = text.lines().filter(|line| !is_progress(line)).collect();
    Ok(lines.join("\n"))
}
