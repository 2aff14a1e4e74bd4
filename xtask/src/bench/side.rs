//! The two sides: a volume in a file, mounted by the kernel or by us.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// Bytes of each image: sparse, so that only what is written takes memory.
const IMAGE_BYTES: u64 = 16 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Kernel,
    /// The kernel's other reflink file system.
    Xfs,
    Ours,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Kernel => "kernel",
            Side::Xfs => "kernel XFS",
            Side::Ours => "cowshed",
        }
    }
}

/// Can the kernel's side be measured here?
pub fn kernel_can() -> bool {
    let has_btrfs = std::fs::read_to_string("/proc/filesystems").is_ok_and(|l| l.contains("btrfs"));
    let has_mkfs = Command::new("mkfs.btrfs").arg("--version").output().is_ok();
    has_btrfs && has_mkfs && std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// A mounted volume. Goes away with everything it made, also where a load fails.
pub struct Mounted {
    side: Side,
    top: PathBuf,
    options: String,
    is_mounted: bool,
}

impl Mounted {
    pub fn new(side: Side, dir: &Path, options: &str) -> Result<Self> {
        let top = dir.join(format!(
            "cowshed-bench-{}-{}",
            std::process::id(),
            side.name().replace(' ', "-")
        ));
        std::fs::create_dir(&top).with_context(|| top.display().to_string())?;
        let mut mounted = Self {
            side,
            top,
            options: options.into(),
            is_mounted: false,
        };
        std::fs::create_dir(mounted.mountpoint_path())?;
        std::fs::File::create(mounted.image())?.set_len(IMAGE_BYTES)?;
        match side {
            Side::Kernel => quiet(Command::new("mkfs.btrfs").arg("-q").arg(mounted.image()))?,
            Side::Xfs => quiet(Command::new("mkfs.xfs").arg("-q").arg(mounted.image()))?,
            Side::Ours => quiet(ours().args(["mkfs", "-q"]).arg(mounted.image()))?,
        }
        mounted.mount()?;
        Ok(mounted)
    }

    fn image(&self) -> PathBuf {
        self.top.join("image")
    }
    fn mountpoint_path(&self) -> PathBuf {
        self.top.join("mnt")
    }
    pub fn mountpoint(&self) -> PathBuf {
        self.mountpoint_path()
    }

    fn mount(&mut self) -> Result<()> {
        let (image, mountpoint) = (self.image(), self.mountpoint_path());
        match self.side {
            Side::Kernel | Side::Xfs => {
                let options = match &self.options[..] {
                    "" => "loop".into(),
                    more => format!("loop,{more}"),
                };
                quiet(Command::new("mount").args(["-o", &options]).arg(image).arg(mountpoint))?;
            }
            Side::Ours => {
                let mut command = ours();
                command.arg("mount").arg(image).arg(mountpoint);
                if !self.options.is_empty() {
                    command.args(["-o", &self.options]);
                }
                quiet(&mut command)?;
            }
        }
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        let mountpoint = self.mountpoint_path();
        match self.side {
            Side::Kernel | Side::Xfs => quiet(Command::new("umount").arg(mountpoint))?,
            Side::Ours => quiet(ours().arg("umount").arg(mountpoint))?,
        }
        self.is_mounted = false;
        Ok(())
    }

    /// Unmounts and mounts again: nothing is cached afterwards.
    pub fn remount(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    pub fn finish(mut self) -> Result<()> {
        self.unmount()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = self.unmount()
        {
            eprintln!("left behind: {}: {error:#}", self.top.display());
            return;
        }
        let _ = std::fs::remove_dir_all(&self.top);
    }
}

fn ours() -> Command {
    Command::new(run::root().join("target/release/cowshed"))
}

/// Runs it; what it printed is told only where it fails.
fn quiet(command: &mut Command) -> Result<()> {
    run::output(command).map(drop)
}
