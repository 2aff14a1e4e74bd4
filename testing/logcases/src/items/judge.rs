//! One crash image, replayed by the kernel and by us.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_btrfs::{EngineOptions, Mount};
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_harness::progs::CheckOptions;
use cowshed_harness::tree::{Compare, snapshot};
use cowshed_harness::{KernelVolume, tree};
use cowshed_runtime::SystemEnv;

use super::state::{self, Subvolume};

fn devices(images: &[PathBuf], mode: OpenMode) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let open = |image: &PathBuf| Ok(Arc::new(FileDevice::open(image, mode)?) as Arc<dyn BlockDevice>);
    images.iter().map(open).collect()
}

/// Opens the images of a volume with our engine.
pub fn open(images: &[PathBuf], options: &OpenOptions) -> Result<Arc<Mount>> {
    let mode = if options.read_only {
        OpenMode::ReadOnly
    } else {
        OpenMode::ReadWrite
    };
    let volume = Volume::open(devices(images, mode)?, options)?;
    let engine_options = EngineOptions {
        commit_interval_s: 0,
        ..EngineOptions::default()
    };
    Ok(Mount::open(volume, Arc::new(SystemEnv), engine_options)?)
}

fn read_only() -> OpenOptions {
    OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    }
}

/// What our engine sees of a volume without writing to it.
pub fn state_of(images: &[PathBuf]) -> Result<BTreeMap<u64, Subvolume>> {
    let engine = open(images, &read_only())?;
    state::of(&engine)
}

/// Does the volume have a log at all?
pub fn has_log(images: &[PathBuf]) -> Result<bool> {
    Ok(Volume::open(devices(images, OpenMode::ReadOnly)?, &read_only())?.has_log())
}

fn ensure_same(left: &BTreeMap<u64, Subvolume>, right: &BTreeMap<u64, Subvolume>, what: &str) -> Result<()> {
    let found = state::differences(left, right);
    ensure!(
        found.is_empty(),
        "{what}: {} differences\n{}",
        found.len(),
        found[..found.len().min(20)].join("\n")
    );
    Ok(())
}

/// The kernel's replay: what it then has, as a tree of files and as items.
fn by_kernel(crash: &KernelVolume) -> Result<(tree::Tree, BTreeMap<u64, Subvolume>)> {
    let volume = KernelVolume::copy_of(crash.images())?;
    let files = files_of(&volume).context("the kernel replays")?;
    Ok((files, state_of(volume.images()).context("what the kernel made of it")?))
}

/// The files as the kernel shows them, with nothing changed by looking.
fn files_of(volume: &KernelVolume) -> Result<tree::Tree> {
    let mounted = volume.mount_with("noatime")?;
    let files = snapshot(mounted.dir())?;
    mounted.unmount_quietly()?;
    Ok(files)
}

/// Compares our replay of a crash image with the kernel's, and runs all checks on what we wrote.
/// False where the image has no log (a commit came instead).
pub fn judge(crash: &KernelVolume) -> Result<bool> {
    if !has_log(crash.images())? {
        return Ok(false);
    }
    let (kernel_files, kernel) = by_kernel(crash)?;
    let seen = state_of(crash.images()).context("we look at the volume read-only")?;
    ensure_same(&kernel, &seen, "kernel (left) and our read-only view")?;
    let ours = KernelVolume::copy_of(crash.images())?;
    {
        let engine = open(ours.images(), &OpenOptions::default()).context("we replay")?;
        ensure!(!engine.store().volume().has_log(), "the log is gone after the replay");
        // Deletes the orphans.
        let fs = Fs::new(engine.clone(), MountOptions::default())?;
        engine.close()?;
        drop(fs);
    }
    ensure_same(&kernel, &state_of(ours.images())?, "kernel (left) and our replay")?;
    check(&ours)?;
    let files = files_of(&ours).context("the kernel mounts our replay")?;
    let compare = Compare {
        ctime: false,
        ..Compare::same_volume()
    };
    let found = kernel_files.diff(&files, &compare);
    ensure!(
        found.is_empty(),
        "the kernel sees, after its replay and after ours: {found}"
    );
    Ok(true)
}

/// btrfs-progs and our own checker.
pub fn check(volume: &KernelVolume) -> Result<()> {
    let report = volume.check(CheckOptions {
        data_csum: true,
        lowmem: false,
    })?;
    ensure!(report.clean, "btrfs check complains:\n{}", report.output);
    let options = btrfs_check::CheckOptions {
        data_csums: true,
        ..btrfs_check::CheckOptions::default()
    };
    let report = btrfs_check::check(&devices(volume.images(), OpenMode::ReadOnly)?, &options);
    ensure!(report.is_clean(), "the checker complains:\n{report}");
    Ok(())
}
