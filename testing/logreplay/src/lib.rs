//! Logs that the kernel left behind, replayed by the kernel and by us, compared item by item.
//!
//! * [`Crash`]: a volume that the kernel has mounted, and copies of its image at any moment: what a crash would leave.
//! * [`judge`]: the kernel replays one copy, we another; the trees must be the same, and everybody content with ours.
//! * [`state`]: a subvolume's tree in a form that does not depend on who wrote it.
//! * [`writer`]: random operations with fsyncs, by seed.

pub mod judge;
pub mod random;
pub mod state;
pub mod writer;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cowshed_harness::{KernelVolume, Mounted, VolumeOptions, run};

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
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Commits.
    pub fn commit(&self) -> Result<()> {
        run("sync", &["-f".as_ref(), self.dir().as_os_str()]).map(drop)
    }

    /// fsync of a file or a directory.
    pub fn fsync(&self, name: &str) -> Result<()> {
        let file = std::fs::File::open(self.path(name)).with_context(|| format!("cannot open {name}"))?;
        file.sync_all().with_context(|| format!("fsync of {name}"))
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
