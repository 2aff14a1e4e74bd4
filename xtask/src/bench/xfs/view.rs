//! A volume that the kernel filled, and a read-only mount of it by one of the sides.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::super::loads::generate;
use super::super::switch::UringOn;
use super::Args;
use crate::run;

const IMAGE_BYTES: u64 = 32 << 30;
/// Blocks of which the file of many extents is made: two that do not lie beside each other.
const BLOCK_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    Xfs,
    Btrfs,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::Xfs => "xfs",
            Format::Btrfs => "btrfs",
        }
    }
}

/// What mounts the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    Kernel,
    Dev,
    Uring,
}

impl By {
    pub fn name(self) -> &'static str {
        match self {
            By::Kernel => "kernel",
            By::Dev => "/dev/fuse",
            By::Uring => "io_uring",
        }
    }

    pub fn possible(with_kernel: bool) -> Vec<By> {
        let mut sides = vec![By::Dev];
        if with_kernel {
            sides.insert(0, By::Kernel);
        }
        if UringOn::is_possible() {
            sides.push(By::Uring);
        }
        sides
    }
}

/// Can the kernel's side be measured here? It also fills the volumes.
pub fn kernel_can() -> bool {
    let has_xfs = std::fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.contains("xfs"));
    has_xfs && run::output(Command::new("mkfs.xfs").arg("-V")).is_ok() && rustix::process::geteuid().is_root()
}

/// A volume in a file.
pub struct Image {
    format: Format,
    path: PathBuf,
    mountpoint: PathBuf,
}

impl Image {
    /// An empty one.
    pub fn new(top: &Path, format: Format, size_bytes: u64, mkfs: &[&str]) -> Result<Image> {
        let name = format!("{}-{}", format.name(), size_bytes >> 30);
        let image = Image {
            format,
            path: top.join(&name),
            mountpoint: top.join(format!("{name}-mnt")),
        };
        std::fs::create_dir(&image.mountpoint)?;
        std::fs::File::create(&image.path)?.set_len(size_bytes)?;
        let mut command = Command::new(format!("mkfs.{}", format.name()));
        run::output(command.arg("-q").args(mkfs).arg(&image.path))?;
        Ok(image)
    }

    /// One that the kernel has filled: `d` with small files, `tree`, `large` and `extents`.
    pub fn fill(top: &Path, format: Format, args: &Args) -> Result<Image> {
        let image = Image::new(top, format, IMAGE_BYTES, &[])?;
        run::output(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image.path)
                .arg(&image.mountpoint),
        )?;
        let at = &image.mountpoint;
        generate(at, &["create-small", &args.files().to_string()])?;
        run::output(Command::new("cp").arg("-a").arg(&args.tree).arg(at.join("tree")))?;
        generate(at, &["stream-write", &(args.stream_mib() << 20).to_string()])?;
        make_extents(at, args.extents())?;
        image.unmount_kernel()?;
        Ok(image)
    }

    /// Runs a shell script in a mount of the kernel's that leaves the log dirty.
    pub fn dirty(&self, script: &str) -> Result<()> {
        let mut mount = Command::new("mount");
        run::output(mount.args(["-o", "loop"]).arg(&self.path).arg(&self.mountpoint))?;
        let done = run::output(Command::new("sh").args(["-c", script]).current_dir(&self.mountpoint));
        self.unmount_kernel()?;
        done.map(drop)
    }

    pub fn format(&self) -> Format {
        self.format
    }
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn unmount_kernel(&self) -> Result<()> {
        run::output(Command::new("umount").arg(&self.mountpoint)).map(drop)
    }
}

/// A file without holes whose extents cannot be merged, but for one hole near its end. Each of its
/// blocks is one of two that do not follow each other.
fn make_extents(top: &Path, count: u64) -> Result<()> {
    let (source, target) = (top.join("extents-source"), top.join("extents"));
    std::fs::write(&source, vec![1; 3 * BLOCK_BYTES as usize])?;
    std::fs::File::open(&source)?.sync_all()?;
    std::fs::File::create(&target)?;
    let clone = |source: &Path, from: u64, to: u64, blocks: u64| {
        let [from, to, len] = [from, to, blocks].map(|blocks| blocks * BLOCK_BYTES);
        let command = format!("reflink {} {from} {to} {len}", source.display());
        run::output(Command::new("xfs_io").args(["-c", &command]).arg(&target)).map(drop)
    };
    clone(&source, 0, 0, 1)?;
    clone(&source, 2, 1, 1)?;
    let mut made = 2;
    while made < count {
        clone(&target, 0, made, made)?;
        made *= 2;
    }
    let offset = ((count - 2) * BLOCK_BYTES).to_string();
    let mut punch = Command::new("fallocate");
    punch.args([
        "--punch-hole",
        "--length",
        &BLOCK_BYTES.to_string(),
        "--offset",
        &offset,
    ]);
    run::output(punch.arg(&target)).map(drop)
}

/// A mount of an image, read-only.
pub struct View<'a> {
    image: &'a Image,
    by: By,
}

impl View<'_> {
    pub fn mount(image: &Image, by: By) -> Result<View<'_>> {
        let _on = (by == By::Uring).then(UringOn::new).transpose()?;
        let mut command = match by {
            By::Kernel => {
                let mut command = Command::new("mount");
                command.args(["-o", "ro,loop"]);
                command
            }
            By::Dev | By::Uring => {
                let transport = if by == By::Uring { "uring" } else { "dev" };
                let mut command = ours("mount");
                command.args(["-o", &format!("ro,transport={transport}")]);
                command
            }
        };
        run::output(command.arg(&image.path).arg(&image.mountpoint))
            .with_context(|| format!("mount of {} by {}", image.format.name(), by.name()))?;
        Ok(View { image, by })
    }

    pub fn mountpoint(&self) -> &Path {
        &self.image.mountpoint
    }

    pub fn unmount(self) -> Result<()> {
        match self.by {
            By::Kernel => self.image.unmount_kernel(),
            By::Dev | By::Uring => run::output(ours("umount").arg(&self.image.mountpoint)).map(drop),
        }
    }
}

pub fn ours(subcommand: &str) -> Command {
    let mut command = Command::new(run::released("cowshed"));
    command.arg(subcommand);
    command
}
