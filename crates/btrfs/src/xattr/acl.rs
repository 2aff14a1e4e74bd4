//! Access lists of an inode: parsed once, kept beside it.

use std::sync::Arc;

use cowshed_vfs::FileKind;
pub(crate) use cowshed_vfs::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};

use crate::error::{Error, Result, StoreError};
use crate::object::Inode;

/// The list that decides about access; `None` where the mode says it all.
pub(crate) fn access_list(inode: &Inode) -> Result<Option<Arc<Acl>>> {
    list(inode, ACCESS_NAME)
}

/// What a directory passes on.
pub(crate) fn default_list(inode: &Inode) -> Result<Option<Arc<Acl>>> {
    list(inode, DEFAULT_NAME)
}

fn list(inode: &Inode, name: &[u8]) -> Result<Option<Arc<Acl>>> {
    if inode.xattrs.is_known_empty() || inode.kind() == FileKind::Symlink {
        return Ok(None);
    }
    let is_access = name == ACCESS_NAME;
    {
        let lists = inode.xattrs.lists.0.lock();
        let known = if is_access { &lists.access } else { &lists.default };
        if let Some(known) = known {
            return Ok(known.clone());
        }
    }
    // A writer may come between reading and keeping; it forgets the lists after its change, so at
    // worst it forgets this. The lock is kept while the item is read for the same reason.
    let mut lists = inode.xattrs.lists.0.lock();
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
