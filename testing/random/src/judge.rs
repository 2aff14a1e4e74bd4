//! What others say of the volume: our own checker, btrfs-progs, the kernel.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use btrfs_check::CheckOptions;
use cowshed_device::MemDevice;
use cowshed_harness::{KernelVolume, need};

use crate::subject::as_devices;

/// Our own checker finds nothing.
pub fn own_check(devices: &[Arc<MemDevice>]) -> Result<()> {
    let options = CheckOptions {
        data_csums: true,
        ..CheckOptions::default()
    };
    let report = btrfs_check::check(&as_devices(devices), &options);
    ensure!(report.is_clean(), "the checker complains:\n{report}");
    Ok(())
}

/// `btrfs check --check-data-csum` finds nothing; the kernel, where there is one, mounts the volume
/// and reads it all.
pub fn btrfs_check(devices: &[Arc<MemDevice>]) -> Result<()> {
    if need::tool("btrfs").is_none() {
        return Ok(());
    }
    let copies: Vec<MemDevice> = devices.iter().map(|d| d.snapshot()).collect();
    let volume = KernelVolume::from_memory(&copies).context("writing the image")?;
    let report = volume.check(cowshed_harness::progs::CheckOptions {
        data_csum: true,
        lowmem: false,
    })?;
    ensure!(report.clean, "btrfs check complains:\n{}", report.output);
    if need::kernel_btrfs().is_some() {
        let mounted = volume.mount()?;
        cowshed_harness::progs::scrub(mounted.dir())?;
        mounted.unmount_quietly()?;
    }
    Ok(())
}
