//! A volume that the kernel works on.

use std::path::Path;

use anyhow::{Context, Result};
use cowshed_harness::{KernelVolume, Mounted, VolumeOptions};
use cowshed_model::script::{MountPlayer, Op};

/// A volume under the kernel's hands.
#[derive(Debug)]
pub struct Crash {
    mounted: Mounted,
    volume: KernelVolume,
}

impl Crash {
    /// Makes and mounts a volume.
    pub fn new(options: &VolumeOptions) -> Result<Crash> {
        let volume = KernelVolume::make(options)?;
        let mounted = volume.mount()?;
        Ok(Crash { mounted, volume })
    }

    pub fn dir(&self) -> &Path {
        self.mounted.dir()
    }

    /// Plays a script in it.
    pub fn play(&self, ops: &[Op]) -> Result<()> {
        let mut player = MountPlayer::new(self.dir());
        ops.iter()
            .try_for_each(|op| player.apply(op).with_context(|| format!("`{op}`")))
    }

    /// The volume as a crash would leave it now.
    pub fn image(&self) -> Result<KernelVolume> {
        KernelVolume::copy_of(self.volume.images())
    }

    pub fn mounted(&self) -> &Mounted {
        &self.mounted
    }
}

/// The kinds of volumes that logs differ on.
pub fn volumes() -> Vec<VolumeOptions> {
    let plain = VolumeOptions {
        size_bytes: 256 << 20,
        mount_options: "noatime,commit=300",
        ..VolumeOptions::default()
    };
    let with = |change: &dyn Fn(&mut VolumeOptions)| {
        let mut options = plain.clone();
        change(&mut options);
        options
    };
    vec![
        plain.clone(),
        with(&|o| o.node_bytes = Some(4096)),
        with(&|o| o.node_bytes = Some(65536)),
        with(&|o| o.features = vec!["^no-holes"]),
        with(&|o| o.mount_options = "noatime,commit=300,compress-force=zstd"),
        with(&|o| o.mount_options = "noatime,commit=300,nodatasum"),
        with(&|o| o.csum = Some("sha256")),
        with(&|o| o.features = vec!["^extref", "^skinny-metadata"]),
        with(&|o| {
            o.devices = 2;
            o.data = Some("raid1");
            o.metadata = Some("raid1");
        }),
        with(&|o| {
            o.mixed = true;
            o.node_bytes = Some(4096);
        }),
    ]
}
