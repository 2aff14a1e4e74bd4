//! `filesystem label`.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;

use super::super::place::{Images, Place};
use super::super::say::{error, reason};

#[derive(Args, Debug)]
pub struct LabelArgs {
    /// A directory on a mount, IMAGE:/, or a device or image that is not mounted
    target: PathBuf,
    /// The label that it shall have
    label: Option<OsString>,
}

/// Exit code of btrfs(8) where there is nothing at the path.
const NO_TARGET: u8 = 255;
/// A label has room for one byte less than its field.
const LABEL_BYTES_MAX: usize = 255;

pub fn run(args: &LabelArgs) -> Result<u8> {
    if !Images::to_read().has(&args.target)? {
        error(format_args!(
            "unable to access {}: No such file or directory",
            shown(args)
        ));
        return Ok(NO_TARGET);
    }
    let Some(label) = &args.label else {
        let mut images = Images::to_read();
        let label = target(&mut images, args)?.label();
        let mut label = label.map_err(|error| anyhow!("unable to get label of {}: {}", shown(args), reason(&error)))?;
        label.push(b'\n');
        std::io::stdout().write_all(&label)?;
        return Ok(0);
    };
    check(label)?;
    let mut images = Images::to_write();
    let place = target(&mut images, args)?;
    if let Err(error) = place.set_label(label.as_bytes()) {
        bail!("unable to set label of {}: {}", shown(args), reason(&error));
    }
    drop(place);
    images.close()?;
    Ok(0)
}

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
        return images.top_of(&args.target);
    }
    let Ok(place) = images.anything(&args.target) else {
        bail!("not mount point: '{}'", shown(args));
    };
    Ok(place)
}
