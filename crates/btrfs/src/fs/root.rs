//! The directory that a mount shows as its root.

use std::sync::Arc;

use btrfs_format::TreeId;
use cowshed_vfs::Error as Errno;

use crate::dir;
use crate::error::Result;
use crate::files::Files;
use crate::object::Inode;
use crate::subvol::{default_id, load, root_of};

/// Names on the way to a subvolume that `subvol=` may have.
const PATH_COMPONENTS_MAX: usize = 4096;

/// Which subvolume a mount shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SubvolChoice {
    /// What the volume names as default.
    #[default]
    Default,
    /// The one of this tree.
    Id(TreeId),
    /// A path from the top level.
    Path(Vec<u8>),
    /// A path that must lead to the subvolume of this number.
    PathOf(Vec<u8>, TreeId),
}

/// The directory that a mount shows as its root. Errors: `NotFound`, `NotDirectory`; `Invalid`
/// where path and number differ.
pub(crate) fn resolve(files: &Files, choice: &SubvolChoice) -> Result<Arc<Inode>> {
    let id = match choice {
        SubvolChoice::Default => default_id(files)?,
        SubvolChoice::Id(id) => *id,
        SubvolChoice::Path(_) | SubvolChoice::PathOf(..) => TreeId::FS,
    };
    let subvol = load(files, id)?.ok_or(Errno::NotFound)?;
    let mut at = root_of(files, &subvol)?;
    if let SubvolChoice::Path(path) | SubvolChoice::PathOf(path, _) = choice {
        let names = path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".");
        for (depth, name) in names.enumerate() {
            if depth >= PATH_COMPONENTS_MAX {
                return Err(Errno::NameTooLong.into());
            }
            at = dir::lookup(files, &at, name)?.ok_or(Errno::NotFound)?;
        }
        if !at.is_dir() {
            return Err(Errno::NotDirectory.into());
        }
    }
    if let SubvolChoice::PathOf(_, id) = choice
        && at.tree.id() != *id
    {
        return Err(Errno::Invalid.into());
    }
    Ok(at)
}
