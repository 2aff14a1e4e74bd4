//! `subvolume get-default` and `subvolume set-default`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Result, anyhow, bail};

use super::super::place::Images;
use super::super::roots::{Roots, TOP_LEVEL, default_id};
use super::super::say::{number, print, reason};
use crate::people::printable;

pub fn show(path: &Path) -> Result<u8> {
    let failed = |error| anyhow!("Could not search B-tree: {}", reason(&error));
    let mut images = Images::to_read();
    let place = images.directory(path)?;
    let id = default_id(&place).map_err(failed)?;
    if id == TOP_LEVEL {
        print(format_args!("ID 5 (FS_TREE)"))?;
        return Ok(0);
    }
    let roots = Roots::load(&place).map_err(failed)?;
    let Some(root) = roots.find(id) else {
        bail!("Subvolume not found: No such file or directory");
    };
    let path = roots.path(root, 0).map_err(failed)?;
    print(format_args!(
        "ID {id} gen {} top level {} path {}",
        root.item.generation,
        root.parent(),
        printable(OsStr::from_bytes(&path))
    ))?;
    Ok(0)
}

pub fn set(subvolume: &Path, path: Option<&Path>) -> Result<u8> {
    let mut images = Images::to_write();
    let (place, id) = match path {
        Some(path) => {
            let id = number(&subvolume.to_string_lossy())?;
            (images.anything(path)?, id)
        }
        None if !images.has(subvolume)? => bail!("Could not open: No such file or directory"),
        None => images.subvolume(subvolume)?,
    };
    if let Err(error) = place.set_default(id) {
        bail!("Could not set default subvolume: {}", reason(&error));
    }
    drop(place);
    images.close()?;
    Ok(0)
}
