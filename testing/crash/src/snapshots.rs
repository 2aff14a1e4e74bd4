//! Runs on a volume of which the kernel has made a snapshot: trees and data are shared between two
//! subvolumes, and both are worked on.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use anyhow::Result;
use cowshed_device::MemDevice;
use cowshed_device_sim::Rng;
use cowshed_harness::KernelVolume;
use cowshed_model::script::Op;

use crate::image::load_image;
use crate::rig::Player;
use crate::rig::{Devices, Fs};

const SNAPSHOT: &str = "snap";
/// Enough small ones that the tree has several leaves.
const FILES: u64 = 40;
/// Has data of its own in the snapshot, in the midst of what is shared.
const REWRITTEN: &str = "shared";

/// What is to be shared.
pub(crate) fn prepare(fs: &Fs) -> Result<()> {
    let player = Player::new(fs);
    let write = |path: String, len, fill| Op::write(path, 0, len, fill);
    player.apply(&Op::mkdir("many"))?;
    for n in 0..FILES {
        player.apply(&write(format!("many/{n}"), 100 + 37 * n as usize, n))?;
    }
    // Those that the operations of a run know.
    for (n, path) in ["a", "b", "p/a", "p/b", REWRITTEN].into_iter().enumerate() {
        let _ = player.apply(&write(path.into(), 20_000 * (n + 1), n as u64));
    }
    Ok(())
}

/// The kernel makes a snapshot of everything, and writes on both sides.
pub(crate) fn take(devices: &Devices) -> Result<Devices> {
    let copies: Vec<MemDevice> = devices.iter().map(|device| device.snapshot()).collect();
    let volume = KernelVolume::from_memory(&copies)?;
    let mounted = volume.mount_with("noatime")?;
    mounted.btrfs(&["subvolume", "snapshot", "{}", &format!("{{}}/{SNAPSHOT}")])?;
    for (dir, at) in [("", 8192), (SNAPSHOT, 16384)] {
        let path = mounted.dir().join(dir).join(REWRITTEN);
        File::options()
            .write(true)
            .open(path)?
            .write_all_at(&[b'k'; 4096], at)?;
    }
    mounted.unmount()?;
    let images = volume.images().iter();
    images.map(|image| Ok(Arc::new(load_image(image)?))).collect()
}

/// Lets the operations work on both sides by turns, and a few across.
pub(crate) fn spread(ops: &mut [Op], rng: &mut Rng) {
    let mut is_inside = false;
    for op in ops {
        is_inside ^= rng.one_in(6);
        for path in op.paths_mut() {
            if is_inside ^ rng.one_in(12) {
                *path = format!("{SNAPSHOT}/{path}");
            }
        }
    }
}
