//! `filesystem label`.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use btrfs_format::superblock::SUPERBLOCK_OFFSETS;
use clap::Args;

use super::super::place::{Images, Place};
use super::super::say::{error, reason};
use super::super::volume::size_of_device;
use crate::block_devices::superblock;
use crate::people::is_broken_pipe;

#[derive(Args, Debug)]
pub struct LabelArgs {
    /// A directory on a mount, IMAGE:/, or a device or image that is not mounted
    target: PathBuf,
    /// The label that it shall have
    label: Option<OsString>,
}

/// Exit code of btrfs(8) for any failure.
const FAILED: u8 = 255;
/// A label has room for one byte less than its field.
const LABEL_BYTES_MAX: usize = 255;

pub fn run(args: &LabelArgs) -> Result<u8> {
    match show_or_set(args) {
        Err(failed) if !is_broken_pipe(&failed) => {
            match failed.downcast_ref::<NoVolume>() {
                // btrfs(8) prints it as it is.
                Some(no_volume) => crate::people::warn(no_volume),
                None => error(format_args!("{failed:#}")),
            }
            Ok(FAILED)
        }
        done => done.map(|()| 0),
    }
}

fn show_or_set(args: &LabelArgs) -> Result<()> {
    if let Some(label) = &args.label {
        check(label)?;
    }
    if !Images::to_read().has(&args.target)? {
        bail!("unable to access {}: No such file or directory", shown(args));
    }
    let Some(label) = &args.label else {
        let mut images = Images::to_read();
        let label = target(&mut images, args)?.label();
        let mut label = label.map_err(|error| anyhow!("unable to get label of {}: {}", shown(args), reason(&error)))?;
        label.push(b'\n');
        std::io::stdout().write_all(&label)?;
        return Ok(());
    };
    let mut images = Images::to_write();
    let place = target(&mut images, args)?;
    if let Err(error) = place.set_label(label.as_bytes()) {
        bail!("unable to set label of {}: {}", shown(args), reason(&error));
    }
    drop(place);
    images.close()
}

/// A file or device without a superblock.
#[derive(Debug, thiserror::Error)]
#[error("No valid Btrfs found on {0}")]
struct NoVolume(String);

/// Errors: it is too long.
pub fn check(label: &OsStr) -> Result<()> {
    if label.len() > LABEL_BYTES_MAX {
        bail!("label {} is too long (max {LABEL_BYTES_MAX})", label.display());
    }
    Ok(())
}

fn shown(args: &LabelArgs) -> String {
    args.target.display().to_string()
}

fn target(images: &mut Images, args: &LabelArgs) -> Result<Place> {
    if Images::is_device(&args.target) {
        need_superblock(args)?;
        return images.top_of(&args.target);
    }
    let Ok(place) = images.anything(&args.target) else {
        bail!("not mount point: '{}'", shown(args));
    };
    Ok(place)
}

/// Errors: the file or device has none at the place of the first.
fn need_superblock(args: &LabelArgs) -> Result<()> {
    if std::fs::File::open(&args.target).is_err() {
        // The way to open it says why.
        return Ok(());
    }
    let size = size_of_device(&args.target).unwrap_or(u64::MAX);
    if size <= SUPERBLOCK_OFFSETS[0] {
        let offset = SUPERBLOCK_OFFSETS[0];
        bail!("superblock bytenr {offset} is larger than device size {size}");
    }
    match superblock(&args.target) {
        Some(_) => Ok(()),
        None => Err(NoVolume(shown(args)).into()),
    }
}
