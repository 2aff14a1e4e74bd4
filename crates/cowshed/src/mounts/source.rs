//! How a mount is made, and what the kernel is told as its source.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cowshed_fuse::{MountOptions, Permissions, SessionOptions};

use crate::mount_options::Options;

/// What the kernel is told as the source of the mount.
#[derive(Debug)]
pub enum Source {
    /// A path, for show.
    Name(PathBuf),
    /// A block device of the user's.
    Device(PathBuf),
    /// A loop device on the user's image, which makes a block device mount of it: `sync` then
    /// reaches us and `umount` waits.
    Loop { image: PathBuf, device: PathBuf },
}

impl Source {
    /// For a mount of what is at a path. The kernel mounts a block device once: further mounts of
    /// it are of loop devices on it.
    pub fn choose(target: &Path, options: &Options, is_first: bool) -> Self {
        use std::os::unix::fs::FileTypeExt as _;
        let path = target.canonicalize().unwrap_or_else(|_| target.into());
        let Ok(meta) = std::fs::metadata(&path) else {
            return Self::Name(path);
        };
        if !rustix::process::geteuid().is_root() {
            return Self::Name(path);
        }
        if meta.file_type().is_block_device() && is_first {
            return Self::Device(path);
        }
        if options.no_loop {
            return Self::Name(path);
        }
        match attach_loop(&path, options.formats.read_only) {
            Ok(device) => Self::Loop { image: path, device },
            Err(error) => {
                tracing::info!(
                    "no loop device for {}: {error:#}; a plain FUSE mount it is",
                    path.display()
                );
                Self::Name(path)
            }
        }
    }

    /// Fills in how to mount it.
    pub fn fill(&self, mount: &mut MountOptions, options: &Options) {
        mount.source = self.name(options);
        mount.block_device = self.block_device();
    }

    fn name(&self, options: &Options) -> String {
        match (&options.source, self) {
            (Some(name), _) => name.clone(),
            (None, Self::Name(path) | Self::Device(path) | Self::Loop { image: path, .. }) => {
                path.display().to_string()
            }
        }
    }

    fn block_device(&self) -> Option<PathBuf> {
        match self {
            Self::Name(_) => None,
            Self::Device(device) | Self::Loop { device, .. } => Some(device.clone()),
        }
    }

    /// The loop device goes with its last user, the mount.
    pub fn release_when_unmounted(&self) {
        if let Self::Loop { device, .. } = self
            && let Err(error) = losetup(&["--detach".as_ref(), device.as_os_str()])
        {
            tracing::warn!("loop device {} stays: {error:#}", device.display());
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it hangs only where the kernel does, and a user watches"
)]
fn losetup(args: &[&std::ffi::OsStr]) -> Result<String> {
    let out = Command::new("losetup").args(args).output().context("running losetup")?;
    if !out.status.success() {
        bail!("losetup: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn attach_loop(image: &Path, read_only: bool) -> Result<PathBuf> {
    let mut args: Vec<&std::ffi::OsStr> = vec!["--find".as_ref(), "--show".as_ref()];
    if read_only {
        args.push("--read-only".as_ref());
    }
    args.push(image.as_os_str());
    Ok(PathBuf::from(losetup(&args)?))
}

/// How a mount with these options is made.
pub fn mount_options_of(options: &Options) -> SessionOptions {
    let mut mount = options.fuse.clone();
    mount.allow_other = options
        .allow_other
        .unwrap_or_else(|| rustix::process::geteuid().is_root());
    SessionOptions {
        mount,
        permissions: match options.default_permissions {
            true => Permissions::Kernel,
            false => Permissions::Auto,
        },
        skip_xattrs: options.no_xattrs,
        ..SessionOptions::default()
    }
}

/// The path as another process would name it.
pub fn absolute(path: &Path) -> PathBuf {
    path.canonicalize()
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.into())
}
