//! Linux judges a crash image: btrfs check, and a mount whose files are compared.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use btrfs_format::Superblock;
use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use cowshed_device::{BlockDevice as _, MemDevice};
use cowshed_harness::{KernelVolume, progs, run_raw};
use cowshed_model::tree::{self, Tree};
use cowshed_vfs::{FileKind, Timestamp};

use crate::power::Judged;

/// Writes the image out and lets the kernel look at it. Needs root. False where the kernel cannot
/// be asked.
///
/// The kernel tells volumes apart by their uuid: no other one that is attached meanwhile may have
/// it ([`crate::rig::uuid_of`]).
pub fn judge(judged: &Judged) -> Result<bool> {
    let devices: Vec<MemDevice> = judged.devices.iter().map(|device| device.snapshot()).collect();
    let volume = KernelVolume::from_memory(&devices)?;
    let heads: Vec<Option<Superblock>> = devices.iter().map(head).collect::<Result<_>>()?;
    if heads.contains(&None) {
        // The kernel looks at the first copy alone. A torn one is for the user to mend, device by
        // device.
        let [image] = volume.images() else { return Ok(false) };
        // Its exit code tells of what it found; that all is well now, the mount tells.
        let image = image.as_os_str();
        run_raw(
            "btrfs",
            &["rescue".as_ref(), "super-recover".as_ref(), "-y".as_ref(), image],
        )?;
    }
    if !judged.has_log {
        check_volume(&volume)?;
    }
    let mounted = volume.mount_with("noatime")?;
    let found = tree::take_mount(mounted.dir())?;
    mounted.unmount()?;
    if judged.has_log {
        check_volume(&volume).context("after the kernel's replay")?;
    }
    // Of two devices one may have the superblock of a log that no fsync has acknowledged yet. The
    // kernel chooses either.
    let log_roots = heads.iter().flatten().map(|head| head.log_root.get());
    let is_open = log_roots.collect::<BTreeSet<_>>().len() > 1;
    let differences = tree::differences(
        &comparable(&judged.found, devices.len()),
        &comparable(&found, devices.len()),
    );
    ensure!(
        is_open || differences.is_empty(),
        "the kernel sees something else:\n{differences}"
    );
    Ok(!is_open)
}

/// The first copy of the superblock, if it is whole.
fn head(device: &MemDevice) -> Result<Option<Superblock>> {
    let [first, ..] = SUPERBLOCK_OFFSETS;
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    device.read_at(first, &mut bytes)?;
    Ok(Superblock::verify(&bytes, Some(first)).ok())
}

/// As [`check_clean`].
fn check_volume(volume: &KernelVolume) -> Result<()> {
    match volume.images() {
        [image] => check_clean(image),
        _ => volume.with_devices(check_clean),
    }
}

/// The bits of an inode number that the inode has for itself: our mounts put the subvolume above
/// them, the kernel has device numbers for that.
const INO_BITS: u32 = 40;

/// What both show alike. When a replay changed a directory is not promised. Of data that is written
/// in place the power may fail between one device and the other, and without checksums nothing
/// tells which copy is the newer one: the kernel reads either.
fn comparable(tree: &Tree, devices: usize) -> Tree {
    let mut tree = if devices > 1 {
        tree::committed_part(tree)
    } else {
        tree.clone()
    };
    for node in tree.values_mut() {
        node.ino &= (1 << INO_BITS) - 1;
        if node.kind == FileKind::Directory {
            node.mtime = Timestamp::default();
        }
    }
    tree
}

/// `btrfs check --check-data-csum` finds nothing.
pub fn check_clean(image: &Path) -> Result<()> {
    let options = progs::CheckOptions {
        data_csum: true,
        ..progs::CheckOptions::default()
    };
    let report = progs::check(image, options)?;
    ensure!(report.clean, "btrfs check complains:\n{}", report.output);
    Ok(())
}
