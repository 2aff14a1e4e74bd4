//! Access lists of an inode: parsed once, kept beside it.

use std::sync::Arc;

pub use cowshed_vfs::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use cowshed_vfs::{Error as Errno, FileKind, SetXattrFlags, perm};

use super::Effect;
use crate::error::{Error, Result, StoreError};
use crate::inode::Inode;
use crate::inode::access::Caller;

/// The list that decides about access; `None` where the mode says it all.
pub fn access_list(inode: &Inode) -> Result<Option<Arc<Acl>>> {
    list(inode, ACCESS_NAME)
}

/// What a directory passes on.
pub fn default_list(inode: &Inode) -> Result<Option<Arc<Acl>>> {
    list(inode, DEFAULT_NAME)
}

fn list(inode: &Inode, name: &[u8]) -> Result<Option<Arc<Acl>>> {
    if inode.xattrs.is_known_empty() || inode.kind() == FileKind::Symlink {
        return Ok(None);
    }
    let is_access = name == ACCESS_NAME;
    {
        let lists = inode.xattrs.lists.lock();
        let known = if is_access { &lists.access } else { &lists.default };
        if let Some(known) = known {
            return Ok(known.clone());
        }
    }
    // A writer may come between reading and keeping; it forgets the lists after its change, so at worst it forgets this.
    // The lock is kept while the item is read for the same reason.
    let mut lists = inode.xattrs.lists.lock();
    let parsed = match super::load(inode, name)? {
        None => None,
        Some(value) => Acl::parse(&value)
            .map_err(|_| {
                Error::Store(StoreError::CorruptTree {
                    tree: inode.tree.id(),
                    what: format!("access list of inode {} is no list", inode.ino),
                })
            })?
            .map(Arc::new),
    };
    *(if is_access {
        &mut lists.access
    } else {
        &mut lists.default
    }) = Some(parsed.clone());
    Ok(parsed)
}

/// What setting or removing a list does: the access list shares its bits with the mode, and is not stored where the mode
/// says the same.
pub(super) fn effect(
    caller: &Caller<'_>,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
    flags: SetXattrFlags,
) -> Result<Effect> {
    let list = match value {
        Some(value) => Acl::parse(value)?,
        None => None,
    };
    let mut effect = Effect {
        value: None,
        mode: None,
        flags: None,
    };
    let Some(list) = list else { return Ok(effect) };
    if name == DEFAULT_NAME {
        if !inode.is_dir() {
            return Err(Errno::AccessDenied.into());
        }
        effect.value = Some(list.to_bytes());
        return Ok(effect);
    }
    let attr = inode.attr_now();
    let mut mode = (attr.mode & !0o777) | list.mode_bits();
    if flags.contains(SetXattrFlags::KILL_SGID) {
        mode &= !perm::SET_GID;
    } else if caller.checks {
        mode = perm::perm_for_chmod(&caller.ctx.creds, mode, attr.gid);
    }
    effect.mode = Some(mode);
    effect.value = (!list.is_mode()).then(|| list.to_bytes());
    Ok(effect)
}
