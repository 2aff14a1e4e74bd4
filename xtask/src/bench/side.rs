//! The two sides: a volume in a file, mounted by the kernel or by us.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// Bytes of an image: sparse, so that only what is written takes memory.
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
    let has_mkfs = run::output(Command::new("mkfs.btrfs").arg("--version")).is_ok();
    has_btrfs && has_mkfs && std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// Sees to it that the machine has the memory that a load is about to fill. A virtual machine's
/// host takes back what is free for a while, and the next access to it waits: that says nothing
/// about a file system.
pub fn touch_memory(bytes: u64) {
    /// For what the load does not know of.
    const MORE_BYTES: u64 = 128 << 20;
    drop(std::hint::black_box(vec![1_u8; (bytes + MORE_BYTES) as usize]));
}

/// How a volume is made and mounted.
#[derive(Clone, Debug, Default)]
pub struct Setup<'a> {
    /// Options of the mount.
    pub options: &'a str,
    /// Options of mkfs that it has on both sides.
    pub mkfs: &'a [&'a str],
    /// Bytes of the image, where it is not the usual one.
    pub image_bytes: Option<u64>,
    /// So much of the image's front has its memory before the volume is made: a disk does not have
    /// to find its sectors, either.
    pub touched_bytes: u64,
    /// Through a loop device, of which [`Mounted::written_bytes`] tells. Else our side opens the
    /// image itself.
    pub is_on_device: bool,
    /// A build of ours other than the usual one, and what it finds in its environment.
    pub program: Option<&'a Path>,
    pub environment: &'a [(&'a str, &'a str)],
}

/// A file, or a directory with all that is in it and what is mounted there, that goes with this
/// value: images of many GiB in memory must not stay behind where a load or a judge fails.
pub struct Removed(pub PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        unmount_lazily(&self.0);
        // What is mounted is not ours to remove.
        if let Some(mount) = mounts(&self.0).first() {
            eprintln!("left behind: {}", mount.display());
        } else if self.0.is_dir() {
            let _ = std::fs::remove_dir_all(&self.0);
        } else {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Processes that still use the mounts can go on; what they have goes with the last of them.
fn unmount_lazily(dir: &Path) {
    for mount in mounts(dir) {
        let _ = run::output(Command::new("umount").arg("-l").arg(mount));
    }
}

/// What is mounted on a directory and below it, the newest first.
fn mounts(dir: &Path) -> Vec<PathBuf> {
    // As the table writes it, but for odd characters, which names of ours have not.
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let paths = table.lines().rev().filter_map(|line| line.split(' ').nth(1));
    paths.map(PathBuf::from).filter(|path| path.starts_with(dir)).collect()
}

/// A mounted volume. Goes away with everything it made, also where a load fails.
pub struct Mounted {
    side: Side,
    top: PathBuf,
    options: String,
    program: PathBuf,
    environment: Vec<(String, String)>,
    /// The loop device, where it is ours to detach.
    device: Option<PathBuf>,
    is_mounted: bool,
}

impl Mounted {
    pub fn new(side: Side, dir: &Path, options: &str) -> Result<Self> {
        let setup = Setup {
            options,
            ..Setup::default()
        };
        Self::with(side, dir, &setup)
    }

    pub fn with(side: Side, dir: &Path, setup: &Setup<'_>) -> Result<Self> {
        let top = dir.join(format!(
            "cowshed-bench-{}-{}",
            std::process::id(),
            side.name().replace(' ', "-")
        ));
        std::fs::create_dir(&top).with_context(|| top.display().to_string())?;
        let mut mounted = Self {
            side,
            top,
            options: setup.options.into(),
            program: setup.program.map_or_else(ours, Path::to_path_buf),
            environment: own(setup.environment),
            device: None,
            is_mounted: false,
        };
        std::fs::create_dir(mounted.mountpoint_path())?;
        let mut image = std::fs::File::create(mounted.image())?;
        image.set_len(setup.image_bytes.unwrap_or(IMAGE_BYTES))?;
        std::io::copy(&mut std::io::repeat(0).take(setup.touched_bytes), &mut image)?;
        drop(image);
        let mut mkfs = match side {
            Side::Kernel => Command::new("mkfs.btrfs"),
            Side::Xfs => Command::new("mkfs.xfs"),
            Side::Ours => mounted.ours("mkfs"),
        };
        quiet(mkfs.arg("-q").args(setup.mkfs).arg(mounted.image()))?;
        if setup.is_on_device {
            let name = run::output(Command::new("losetup").args(["-f", "--show"]).arg(mounted.image()))?;
            mounted.device = Some(name.trim_end().into());
        }
        mounted.mount()?;
        Ok(mounted)
    }

    fn ours(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(subcommand);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn image(&self) -> PathBuf {
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
        let source = self.device.as_ref().unwrap_or(&image);
        match self.side {
            Side::Kernel | Side::Xfs => {
                let how = if self.device.is_some() { "defaults" } else { "loop" };
                let options = match &self.options[..] {
                    "" => how.into(),
                    more => format!("{how},{more}"),
                };
                quiet(Command::new("mount").args(["-o", &options]).arg(source).arg(mountpoint))?;
            }
            Side::Ours => {
                let mut command = self.ours("mount");
                command.arg(source).arg(mountpoint);
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
            Side::Ours => quiet(self.ours("umount").arg(mountpoint))?,
        }
        self.is_mounted = false;
        Ok(())
    }

    /// Bytes written so far to the loop device, on any side.
    pub fn written_bytes(&self) -> Result<u64> {
        /// What Documentation/block/stat.rst counts in, whatever the device's blocks.
        const SECTOR_BYTES: u64 = 512;
        const WRITE_SECTORS: usize = 6;
        let device = self.device.as_ref().and_then(|device| device.file_name());
        let device = device.context("the volume is on no device of its own")?;
        let stat = std::fs::read_to_string(Path::new("/sys/block").join(device).join("stat"))?;
        let sectors = stat.split_whitespace().nth(WRITE_SECTORS);
        Ok(sectors.context("a line of numbers")?.parse::<u64>()? * SECTOR_BYTES)
    }

    /// Unmounts and mounts again: nothing is cached afterwards.
    pub fn remount(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    pub fn finish(mut self) -> Result<()> {
        self.unmount()?;
        self.detach()
    }

    fn detach(&mut self) -> Result<()> {
        match self.device.take() {
            Some(device) => quiet(Command::new("losetup").arg("-d").arg(device)),
            None => Ok(()),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = self.unmount()
        {
            // Busy, where a load was cut.
            eprintln!("{}: {error:#}", self.top.display());
            unmount_lazily(&self.top);
        }
        if let Err(error) = self.detach() {
            eprintln!("left behind: {error:#}");
        }
        drop(Removed(self.top.clone()));
    }
}

fn ours() -> PathBuf {
    run::released("cowshed")
}

fn own(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
    pairs.iter().map(own).collect()
}

/// Runs it; what it printed is told only where it fails.
fn quiet(command: &mut Command) -> Result<()> {
    run::output(command).map(drop)
}

#[cfg(test)]
mod tests {
    use cowshed_harness::{need, run, scratch_dir};

    use super::*;

    #[test]
    fn what_is_made_goes_with_what_is_mounted_on_it() {
        let Some(()) = need::root() else { return };
        let scratch = scratch_dir().unwrap();
        let (file, dir) = (scratch.path().join("file"), scratch.path().join("dir"));
        let none = Removed(scratch.path().join("none"));
        let (of_file, of_dir) = (Removed(file.clone()), Removed(dir.clone()));
        std::fs::write(&file, b"x").unwrap();
        let mount = dir.join("mount");
        std::fs::create_dir_all(&mount).unwrap();
        run(
            "mount",
            &["-t".as_ref(), "tmpfs".as_ref(), "none".as_ref(), mount.as_os_str()],
        )
        .unwrap();
        // It is busy.
        let open = std::fs::File::create(mount.join("open")).unwrap();
        drop((none, of_file, of_dir));
        assert!(!file.exists() && !dir.exists() && mounts(&dir).is_empty());
        drop(open);
    }
}
