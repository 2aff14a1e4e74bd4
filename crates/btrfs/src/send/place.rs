//! Where directories are while a receiver turns the old tree into the new one.

use std::collections::HashMap;
use std::sync::Arc;

use btrfs_format::ObjectId;

use super::side::{Result, SendError};
use crate::diff::changes::{self, Name};
use crate::diff::paths::{DEPTH_MAX, PATH_BYTES_MAX, append};
use crate::dir::names;
use crate::object::Subvol;

/// Directories whose paths are remembered.
const PATHS_MAX: usize = 1 << 16;

/// Where a directory that moves, comes or goes is now. All others are where both trees have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Under its name in the old tree.
    Old,
    /// Under this name in the root directory.
    Temporary(Vec<u8>),
    /// Under its name in the new tree.
    New,
}

/// The state of names at the receiver.
pub(super) struct Places {
    new: Arc<Subvol>,
    old: Option<Arc<Subvol>>,
    dirs: HashMap<ObjectId, Place>,
    /// Paths of directories, as they are now.
    paths: HashMap<ObjectId, Arc<[u8]>>,
}

impl Places {
    pub(super) fn new(new: Arc<Subvol>, old: Option<Arc<Subvol>>) -> Places {
        Places {
            new,
            old,
            dirs: HashMap::new(),
            paths: HashMap::new(),
        }
    }

    /// Where a directory is that does not stay; `None` where it stays, or is not there yet.
    pub(super) fn place(&self, dir: ObjectId) -> Option<&Place> {
        self.dirs.get(&dir)
    }

    /// A directory moves, comes, or is known to go.
    pub(super) fn put(&mut self, dir: ObjectId, place: Place) {
        let before = self.dirs.insert(dir, place);
        if before.is_some() {
            // Those of all that lie below it.
            self.paths.clear();
        }
    }

    /// The path of a directory, as it is now.
    pub(super) fn dir_path(&mut self, dir: ObjectId) -> Result<Arc<[u8]>> {
        let mut missing: Vec<(ObjectId, Vec<u8>)> = Vec::new();
        let mut at = dir;
        let mut path: Vec<u8> = loop {
            if at == self.new.root_ino {
                break Vec::new();
            }
            if let Some(path) = self.paths.get(&at) {
                break path.to_vec();
            }
            let subvol = match self.dirs.get(&at) {
                Some(Place::Temporary(name)) => break name.clone(),
                Some(Place::Old) => self.old.as_ref().unwrap_or(&self.new),
                Some(Place::New) | None => &self.new,
            };
            let up = crate::dir::name_of(&subvol.tree, at)?.ok_or(cowshed_vfs::Error::Corrupt)?;
            if missing.len() >= DEPTH_MAX {
                return Err(cowshed_vfs::Error::Corrupt.into());
            }
            missing.push((at, up.1));
            at = up.0;
        };
        if self.paths.len() + missing.len() > PATHS_MAX {
            self.paths.clear();
        }
        for (ino, name) in missing.into_iter().rev() {
            append(&mut path, &name);
            if path.len() > PATH_BYTES_MAX {
                return Err(SendError::PathTooLong(ino.get()));
            }
            self.paths.insert(ino, path.as_slice().into());
        }
        Ok(path.into())
    }

    /// The path of a name, as its directory is now.
    pub(super) fn path(&mut self, name: &Name) -> Result<Vec<u8>> {
        let mut path = self.dir_path(name.dir)?.to_vec();
        append(&mut path, &name.name);
        match path.len() > PATH_BYTES_MAX {
            true => Err(SendError::PathTooLong(name.dir.get())),
            false => Ok(path),
        }
    }

    /// The path of an inode in the new tree. All directories are at their new places.
    pub(super) fn new_path(&mut self, ino: ObjectId) -> Result<Vec<u8>> {
        if ino == self.new.root_ino {
            return Ok(Vec::new());
        }
        let names = changes::names(&self.new.tree, ino)?;
        self.path(names.first().ok_or(cowshed_vfs::Error::Corrupt)?)
    }

    /// A name that neither tree has in its root directory.
    pub(super) fn temporary_name(&self, ino: ObjectId, generation: u64) -> Result<Vec<u8>> {
        for n in 0_u64.. {
            let name = format!("o{ino}-{generation}-{n}").into_bytes();
            let mut is_free = true;
            for subvol in self.old.iter().chain([&self.new]) {
                is_free &= names::find(&subvol.tree, subvol.root_ino, &name)?.is_none();
            }
            if is_free {
                return Ok(name);
            }
        }
        unreachable!("a directory has fewer names than there are numbers")
    }

    /// Neither the directory nor one above it moves, comes or goes: it is where both trees have it.
    pub(super) fn stays(&self, dir: ObjectId) -> Result<bool> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == self.new.root_ino {
                return Ok(true);
            }
            if self.dirs.contains_key(&at) {
                return Ok(false);
            }
            match crate::dir::name_of(&self.new.tree, at)? {
                Some((up, _)) => at = up,
                None => return Ok(false),
            }
        }
        Err(cowshed_vfs::Error::Corrupt.into())
    }
}
