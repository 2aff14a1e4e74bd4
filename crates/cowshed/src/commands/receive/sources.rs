//! Other subvolumes of a mounted volume that a stream names by uuid: the parent of a snapshot,
//! sources of clones.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cowshed_vfs_ioctl::wire::SubvolumePage;

use super::select::{select, shown};
use crate::commands::btrfs::place::Place;
use crate::commands::btrfs::{calls, roots};

/// Subvolumes that are kept open for clones; more are opened again each time.
const OPEN_MAX: usize = 64;

/// A mount, and the subvolume that it shows.
pub struct Sources {
    mount: PathBuf,
    open: HashMap<[u8; 16], File>,
}

/// What tells one volume from another: its id. Errors: `Unsupported` where there is no btrfs.
fn volume_of(path: &Path) -> io::Result<[u8; 16]> {
    match Place::on_mount(File::open(path)?)? {
        Some(place) => Ok(place.facts()?.uuid),
        None => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "not on a mount of cowshed's, or of the kernel's btrfs",
        )),
    }
}

/// The topmost directory above `dir` that shows the same volume.
fn mount_above(dir: &Path) -> Result<PathBuf> {
    let mut mount = dir.canonicalize()?;
    let volume = volume_of(&mount)?;
    while let Some(above) = mount.parent() {
        match volume_of(above) {
            Ok(same) if same == volume => mount = above.to_owned(),
            _ => break,
        }
    }
    Ok(mount)
}

impl Sources {
    /// Of the volume that `dir` lies on, seen from `mount`, or from the mount that `dir` is on.
    pub fn new(dir: &Path, mount: Option<&Path>) -> Result<Self> {
        let mount = match mount {
            None => mount_above(dir)?,
            Some(mount) => {
                if volume_of(mount).with_context(|| mount.display().to_string())? != volume_of(dir)? {
                    bail!("{} is a mount of another volume", mount.display());
                }
                mount.canonicalize()?
            }
        };
        let open = HashMap::new();
        Ok(Self { mount, open })
    }

    /// The root directory of the subvolume that has this uuid or was received under it, and is not
    /// `apart`. It is read-only: else it need not be what the sending side has.
    pub fn find(&mut self, uuid: [u8; 16], apart: Option<u64>) -> Result<&File> {
        if !self.open.contains_key(&uuid) {
            let found = self.look_for(uuid, apart)?;
            if self.open.len() >= OPEN_MAX {
                self.open.clear();
            }
            self.open.insert(uuid, found);
        }
        self.open.get(&uuid).context("just opened")
    }

    fn look_for(&self, uuid: [u8; 16], apart: Option<u64>) -> Result<File> {
        let all = roots::pages(&self.mount).with_context(|| self.mount.display().to_string())?;
        self.open_page(select(&all, uuid, apart)?, &all)
    }

    /// Opens the root directory of a subvolume.
    fn open_page(&self, page: &SubvolumePage, all: &[SubvolumePage]) -> Result<File> {
        let shown_id = calls::id_of(&self.mount)
            .with_context(|| format!("{}: not the root of a subvolume", self.mount.display()))?;
        let shown_page = all.iter().find(|page| page.id.get() == shown_id);
        let above = shown_page.map_or(&[][..], calls::path_of);
        let Some(tail) = below(calls::path_of(page), above) else {
            bail!(
                "subvolume {} is not reachable: {} shows subvolume {}; mount one above both",
                shown(page),
                self.mount.display(),
                shown_page.map_or_else(|| shown_id.to_string(), shown)
            );
        };
        let path = self.mount.join(OsStr::from_bytes(tail));
        let opened = File::open(&path).with_context(|| path.display().to_string())?;
        if calls::id_of(&path).ok() != Some(page.id.get()) {
            bail!(
                "{} is not subvolume {}: something is mounted there",
                path.display(),
                page.id
            );
        }
        Ok(opened)
    }
}

/// The rest of a path below another one; both are relative to the top level.
fn below<'p>(path: &'p [u8], above: &[u8]) -> Option<&'p [u8]> {
    if above.is_empty() {
        return Some(path);
    }
    match path.strip_prefix(above)? {
        b"" => Some(b""),
        rest => rest.strip_prefix(b"/"),
    }
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn paths_are_cut_at_whole_names() {
        assert_eq!(below(b"a/b/c", b""), Some(&b"a/b/c"[..]));
        assert_eq!(below(b"a/b/c", b"a/b"), Some(&b"c"[..]));
        assert_eq!(below(b"a/b", b"a/b"), Some(&b""[..]));
        assert_eq!(below(b"a/bc", b"a/b"), None);
        assert_eq!(below(b"x", b"a"), None);
    }
}
