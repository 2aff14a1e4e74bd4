//! `subvolume create` and `subvolume snapshot`.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::super::place::{Cut, Images};
use super::super::say::{Voice, error, reason};
use crate::commands::offline::image_of;
use crate::people::printable;

/// Names that Linux has.
const NAME_BYTES_MAX: usize = 255;

pub fn create(dests: &[PathBuf], parents: bool, voice: Voice) -> Result<u8> {
    let mut images = Images::to_write();
    let mut code = 0;
    for dest in dests {
        if let Err(failed) = create_one(&mut images, dest, parents, voice) {
            error(format_args!("{failed:#}"));
            code = 1;
        }
    }
    images.close()?;
    Ok(code)
}

fn create_one(images: &mut Images, dest: &Path, parents: bool, voice: Voice) -> Result<()> {
    if images.has(dest)? {
        bail!("target path already exists: {}", dest.display());
    }
    let cut = Cut::new(dest);
    let shown = dest_shown(&cut);
    check_name(&cut.name, "subvolume")?;
    if parents {
        make_dirs(images, &cut.dir)?;
    }
    let dir = images.directory(&cut.dir)?;
    voice.line(format_args!("Create subvolume '{shown}'"));
    match dir.create(&cut.name) {
        Ok(()) => Ok(()),
        Err(error) => bail!("cannot create subvolume: {}", reason(&error)),
    }
}

/// A directory and those above it, where they are missing.
fn make_dirs(images: &mut Images, dir: &Path) -> Result<()> {
    if images.is_dir(dir)? {
        return Ok(());
    }
    let made = if image_of(dir).is_some() {
        let cut = Cut::new(dir);
        make_dirs(images, &cut.dir)?;
        images.directory(&cut.dir)?.create_dir(&cut.name)
    } else {
        DirBuilder::new().recursive(true).create(dir)
    };
    match made {
        Ok(()) => Ok(()),
        Err(error) => bail!("cannot create parent directory '{}': {}", dir.display(), reason(&error)),
    }
}

pub fn snapshot(source: &Path, dest: &Path, is_read_only: bool, voice: Voice) -> Result<u8> {
    let mut images = Images::to_write();
    let (from, _) = images.subvolume(source)?;
    let cut = match images.is_dir(dest)? {
        true => Cut {
            dir: dest.to_owned(),
            shown: dest.into(),
            name: Cut::new(source).name,
        },
        false if images.has(dest)? => bail!("'{}' exists and it is not a directory", dest.display()),
        false => Cut::new(dest),
    };
    check_name(&cut.name, "snapshot")?;
    let dir = images.directory(&cut.dir)?;
    let kind = if is_read_only { "readonly snapshot" } else { "snapshot" };
    let shown = dest_shown(&cut);
    voice.line(format_args!("Create a {kind} of '{}' in '{shown}'", source.display()));
    if let Err(error) = from.snapshot_into(&dir, &cut.name, is_read_only) {
        bail!("cannot snapshot '{}': {}", source.display(), reason(&error));
    }
    drop((from, dir));
    images.close()?;
    Ok(0)
}

/// Directory and name, as btrfs(8) joins them.
fn dest_shown(cut: &Cut) -> String {
    format!("{}/{}", cut.shown.display(), printable(&cut.name))
}

fn check_name(name: &OsStr, what: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." {
        bail!("invalid {what} name '{}'", printable(name));
    }
    if name.len() > NAME_BYTES_MAX {
        bail!("{what} name too long '{}'", printable(name));
    }
    Ok(())
}
