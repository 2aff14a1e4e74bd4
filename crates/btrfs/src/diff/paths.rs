//! Paths of inodes in trees that do not change.

use std::collections::HashMap;
use std::sync::Arc;

use btrfs_format::ObjectId;
use cowshed_vfs::Error as Errno;

use super::changes::{self, Name};
use crate::dir::name_of;
use crate::error::Result;
use crate::object::Subvol;

/// Bytes of a path, the terminating zero left out.
pub(crate) const PATH_BYTES_MAX: usize = 4095;
/// Directories above an inode: more means that they form a ring.
pub(crate) const DEPTH_MAX: usize = 4096;
/// Directories whose paths are remembered.
const PATHS_MAX: usize = 1 << 16;

/// Adds a name to a path.
pub(crate) fn append(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// The path of an inode that is no directory's, by its first name; `None` where it has none, or
/// where it is longer than Linux takes.
pub(crate) fn path_in(subvol: &Arc<Subvol>, ino: ObjectId) -> Result<Option<Vec<u8>>> {
    let Some(first) = changes::names(&subvol.tree, ino)?.into_iter().next() else {
        return Ok(None);
    };
    let path = Paths::new(subvol.clone()).path(&first)?;
    Ok(path.filter(|path| path.len() <= PATH_BYTES_MAX))
}

/// Paths in a subvolume.
pub(crate) struct Paths {
    subvol: Arc<Subvol>,
    dirs: HashMap<ObjectId, Arc<[u8]>>,
}

impl Paths {
    pub(crate) fn new(subvol: Arc<Subvol>) -> Self {
        Self {
            subvol,
            dirs: HashMap::new(),
        }
    }

    /// The path of a name from the subvolume's root; `None` where its directory has none.
    pub(crate) fn path(&mut self, name: &Name) -> Result<Option<Vec<u8>>> {
        let Some(dir) = self.dir(name.dir)? else {
            return Ok(None);
        };
        let mut path = dir.to_vec();
        append(&mut path, &name.name);
        Ok(Some(path))
    }

    fn dir(&mut self, dir: ObjectId) -> Result<Option<Arc<[u8]>>> {
        let mut missing = Vec::new();
        let mut at = dir;
        let mut path: Vec<u8> = loop {
            if at == self.subvol.root_ino {
                break Vec::new();
            }
            if let Some(path) = self.dirs.get(&at) {
                break path.to_vec();
            }
            let Some((up, name)) = name_of(&self.subvol.tree, at)? else {
                return Ok(None);
            };
            if missing.len() >= DEPTH_MAX {
                return Err(Errno::Corrupt.into());
            }
            missing.push((at, name));
            at = up;
        };
        if self.dirs.len() + missing.len() > PATHS_MAX {
            self.dirs.clear();
        }
        for (ino, name) in missing.into_iter().rev() {
            append(&mut path, &name);
            self.dirs.insert(ino, path.as_slice().into());
        }
        Ok(Some(path.into()))
    }
}
