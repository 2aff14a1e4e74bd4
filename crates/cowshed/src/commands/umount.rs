//! `cowshed umount`: takes the mount away and waits until its process has let go of the volume.
//!
//! umount(2) does not tell whether the last commit came to be. So everything is synced first, and
//! that tells.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use cowshed_device::{FileDevice, OpenMode};
use cowshed_fuse::Mountpoint;

use crate::commands::mount_table::{self, Mount};
use crate::commands::sync;
use crate::mounts::join;

#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Mount points
    #[arg(required = true)]
    pub mountpoints: Vec<PathBuf>,
    /// Take it out of the tree now; it ends when no program uses it any more
    #[arg(short, long)]
    pub lazy: bool,
}

/// How long the serving process may take to write what is left. Slow disks and large memories need
/// minutes.
const WAIT_MAX: Duration = Duration::from_secs(600);
const WAIT_STEP: Duration = Duration::from_millis(5);
/// After so long it is said why nothing seems to happen.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: &UmountArgs) -> Result<u8> {
    for mountpoint in &args.mountpoints {
        one(mountpoint, args.lazy).with_context(|| mountpoint.display().to_string())?;
    }
    Ok(0)
}

fn one(mountpoint: &Path, lazy: bool) -> Result<()> {
    let mountpoint = mountpoint.canonicalize().unwrap_or_else(|_| mountpoint.into());
    let Some(entry) = mount_table::on(&mountpoint).context("the mount table")? else {
        bail!("not mounted")
    };
    if !entry.is_ours() {
        bail!(
            "{} is mounted there, not a file system of ours: use umount(8)",
            entry.kind
        );
    }
    // Looked at before: its number may be that of a new mount right after.
    let elsewhere = mount_table::elsewhere(&entry).context("the mount table")?;
    // A loop device that the mount attached goes with it.
    let backing = entry.backing_file();
    let synced = match lazy {
        true => Ok(()),
        false => sync_what_answers(&mountpoint),
    };
    let unmounted = Mountpoint::existing(mountpoint).unmount(lazy).map_err(Into::into);
    let ended = match (lazy, entry.is_read_only) {
        (true, _) => unmounted,
        (false, true) => {
            unmounted.and_then(|()| wait_for_session(backing.as_deref().unwrap_or(&entry.source), &entry.number))
        }
        (false, false) => unmounted.and_then(|()| wait_for_process(&entry, &elsewhere, backing.as_deref())),
    };
    match (synced, ended) {
        (Err(lost), Ok(())) => Err(lost).context("unmounted, but not everything could be written"),
        (Err(lost), Err(error)) => {
            // An error of write-back is reported once: it must not get lost behind the other one.
            crate::people::warn(format_args!("cowshed: not everything could be written: {lost:#}"));
            Err(error)
        }
        (Ok(()), ended) => ended,
    }
}

/// Returns when what was mounted is free for others. `backing`: what its device, if it had one, was
/// made of. `elsewhere`: its other mounts, before.
fn wait_for_process(entry: &Mount, elsewhere: &[Mount], backing: Option<&Path>) -> Result<()> {
    let number = &entry.number;
    let left = match elsewhere {
        [] => Vec::new(),
        _ => mount_table::elsewhere(entry).context("the mount table")?,
    };
    let is_left = |before: &&Mount| left.iter().any(|mount| mount.id == before.id);
    if let Some(other) = elsewhere.iter().find(is_left) {
        bail!(
            "unmounted here, but the volume is still mounted on {}",
            other.target.display()
        );
    }
    if let Some(image) = backing {
        wait_until_free(image, number)?;
    }
    // A loop device that we attached goes with the mount, and its number may be in use again by
    // now. One that still has the same backing file is the user's own, and then the process held
    // it.
    let source = &entry.source;
    if source.is_absolute() && source.exists() && entry.backing_file().as_deref() == backing {
        wait_until_free(source, number)?;
    }
    Ok(())
}

/// Waits until no process says that it serves the mount whose device had this number. For a
/// read-only mount: other processes may have the volume open for reading, so that the lock tells
/// nothing.
fn wait_for_session(image: &Path, number: &str) -> Result<()> {
    let started = Instant::now();
    while is_served(image, number) == Some(true) {
        if started.elapsed() >= WAIT_MAX {
            bail!("unmounted, but its process still serves it");
        }
        std::thread::sleep(WAIT_STEP);
    }
    Ok(())
}

/// Does the process that serves mounts of this volume serve the one whose device had this number?
/// `None`: there is no such process.
fn is_served(image: &Path, number: &str) -> Option<bool> {
    let served = join::sessions(image).filter(|served| !served.is_empty())?;
    Some(served.iter().any(|other| other == number))
}

/// Waits until no process holds the volume: the mount's process is gone, and its data is on disk.
/// Or until a process says that it serves other mounts of the volume, and not this one, whose
/// device had this number.
fn wait_until_free(image: &Path, number: &str) -> Result<()> {
    let started = Instant::now();
    let mut has_said_why = false;
    loop {
        match is_served(image, number) {
            Some(false) => return Ok(()),
            // It is ending: no need to wait for the lock.
            Some(true) if started.elapsed() < WAIT_MAX => {
                std::thread::sleep(WAIT_STEP);
                continue;
            }
            Some(true) | None => {}
        }
        match FileDevice::open(image, OpenMode::ReadWrite) {
            Err(cowshed_device::Error::Busy { .. }) if started.elapsed() < WAIT_MAX => {
                std::thread::sleep(WAIT_STEP);
                if !has_said_why && started.elapsed() > PATIENCE {
                    crate::people::warn(format_args!(
                        "cowshed: {}: unmounted; waiting for its process, which writes what is left, or serves \
                         another name space's mount",
                        image.display()
                    ));
                    has_said_why = true;
                }
            }
            Err(error @ cowshed_device::Error::Busy { .. }) => {
                return Err(error).context("unmounted, but its process still holds the volume");
            }
            // Gone, or not ours to open: there is nothing to wait for.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}

/// A mount whose process is gone, or that lets only its owner in, cannot be asked: nothing is known
/// of it, then.
fn sync_what_answers(mountpoint: &Path) -> std::io::Result<()> {
    match sync::mount_of(mountpoint) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOTCONN)) => Ok(()),
        synced => synced,
    }
}
