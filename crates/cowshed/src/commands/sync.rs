//! `cowshed sync`: everything of a mount onto its disk, also where Linux does not tell a file
//! system in user space of sync(1) and syncfs(2): on mounts of ordinary users.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use cowshed_vfs_ioctl::wire;

use crate::commands::extents::is_unknown;
use crate::ioctl;
use crate::sys;

#[derive(Args, Debug)]
pub struct SyncArgs {
    /// Mount points, or files on mounts
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &SyncArgs) -> Result<u8> {
    for path in &args.paths {
        mount_of(path).with_context(|| path.display().to_string())?;
    }
    Ok(0)
}

/// Syncs the file system that a file or directory lies on.
pub fn mount_of(path: &Path) -> io::Result<()> {
    // Opening a pipe must not wait for a process at its other end.
    mount_of_open(&File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?)
}

/// Syncs the file system of an open file or directory.
pub fn mount_of_open(file: &File) -> io::Result<()> {
    // What programs have written into mapped files lies with the kernel, and comes to us by this.
    sys::sync_file_system(file)?;
    match ioctl::call(file, wire::SYNC, &mut ()) {
        Ok(_) => Ok(()),
        // A file system of the kernel's: it has heard of it.
        Err(error) if is_unknown(&error) => Ok(()),
        Err(error) => Err(error),
    }
}
