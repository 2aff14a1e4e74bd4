//! Changes of owners, permissions and times between the sources and the image.

use std::collections::BTreeMap;

use cowshed_source::{InodeId, Meta, Time, Tree, perm};

use super::error::{Error, Result};
use super::policy::walk;
use super::users::UserMap;

/// What is changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Edits {
    /// Applied first.
    pub(super) users: Option<UserMap>,
    pub(super) force_uid: Option<u32>,
    pub(super) force_gid: Option<u32>,
    pub(super) uid_offset: i64,
    pub(super) gid_offset: i64,
    /// Of single paths, after all else.
    pub(super) owners: Vec<(Vec<u8>, u32, u32)>,
    pub(super) modes: Vec<(Vec<u8>, u32)>,
    /// Later times become this one.
    pub(super) clamp: Option<Time>,
}

/// Changes the tree.
pub(super) fn apply(tree: &mut Tree, edits: &Edits) -> Result<()> {
    if let Some(users) = &edits.users {
        map_users(tree, users)?;
    }
    for inode in tree.inodes_mut() {
        let meta = &mut inode.meta;
        meta.uid = shifted(edits.force_uid.unwrap_or(meta.uid), edits.uid_offset)?;
        meta.gid = shifted(edits.force_gid.unwrap_or(meta.gid), edits.gid_offset)?;
        if let Some(clamp) = edits.clamp {
            meta.mtime = meta.mtime.min(clamp);
        }
        // Reading a source changes its access times: they would differ from build to build.
        meta.atime = meta.mtime;
    }
    for (path, uid, gid) in &edits.owners {
        let id = find(tree, path)?;
        (tree[id].meta.uid, tree[id].meta.gid) = (*uid, *gid);
    }
    for (path, mode) in &edits.modes {
        let id = find(tree, path)?;
        tree[id].meta.mode = mode & perm::MASK;
    }
    Ok(())
}

fn map_users(tree: &mut Tree, users: &UserMap) -> Result<()> {
    let mut wrong = None;
    let mut mapped = BTreeMap::new();
    let mut note = |path: &[u8], id: InodeId| {
        let Meta { uid, gid, .. } = tree[id].meta;
        match (users.uid(uid), users.gid(gid)) {
            (Some(uid), Some(gid)) => drop(mapped.insert(id, (uid, gid))),
            _ => drop(wrong.get_or_insert((path.to_vec(), uid, gid))),
        }
    };
    note(b"", Tree::ROOT);
    walk(tree, Tree::ROOT, Vec::new(), &mut note);
    if let Some((path, uid, gid)) = wrong {
        let path = String::from_utf8_lossy(&path);
        return Err(Error::Option(format!(
            "'/{path}': owner {uid}:{gid} has no translation"
        )));
    }
    for (id, (uid, gid)) in mapped {
        (tree[id].meta.uid, tree[id].meta.gid) = (uid, gid);
    }
    Ok(())
}

fn find(tree: &Tree, path: &[u8]) -> Result<InodeId> {
    tree.lookup(path)?.ok_or_else(|| {
        let path = String::from_utf8_lossy(path);
        Error::Option(format!("'{path}' is to be changed and is not there"))
    })
}

fn shifted(id: u32, offset: i64) -> Result<u32> {
    let sum = i64::from(id) + offset;
    // The largest number means "no change" to the system calls.
    let fits = u32::try_from(sum).ok().filter(|id| *id != u32::MAX);
    fits.ok_or_else(|| Error::Option(format!("owner {id} with offset {offset} is no user or group number")))
}
