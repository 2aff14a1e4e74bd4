//! A file of more extents than one batch takes: made without a name, filled in steps, named when it
//! is whole. A crash in between leaves an orphan, which the next mount deletes.

use std::sync::Arc;

use btrfs_store::space::Budget;
use cowshed_vfs::{Context, FileKind};

use super::batch::Target;
use super::plan::{self, Place};
use crate::access::Caller;
use crate::dir;
use crate::error::Result;
use crate::file::{self, WriteCtx};
use crate::files::{Files, prepare_and_join, touch_inode};
use crate::object::{Inode, InodeAttr};
use crate::reclaim::{self, orphan_key};
use crate::staged::Staged;

/// Clones a regular file. Errors: those of making names, and of clones.
pub(super) fn clone_file(
    files: &Files,
    ctx: &Context,
    target: &Target<'_>,
    (src, name): (&Arc<Inode>, &[u8]),
) -> Result<Arc<Inode>> {
    let (inode, attr) = make_unnamed(files, ctx, target.dir, src)?;
    let filled = fill(files, &inode, &attr, src).and_then(|()| {
        let caller = Caller {
            ctx,
            checks: target.is_foreign,
        };
        dir::link(files, &caller, &inode, target.dir, name)
    });
    // Deletes it where it has got no name.
    reclaim::settle(files, &inode);
    filled.map(|()| inode)
}

/// An empty file without a name, with all attributes but the size.
fn make_unnamed(files: &Files, ctx: &Context, dir: &Arc<Inode>, src: &Arc<Inode>) -> Result<(Arc<Inode>, InodeAttr)> {
    let ino = dir.subvol.take_ino()?;
    let now = files.store().env().now();
    let at = |generation| Place {
        ctx,
        dir,
        dir_attr: dir.attr_now(),
        generation,
        now,
    };
    let running = files.store().txn().running();
    let (_, xattr_bytes) = plan::xattrs(src, ctx, ino, running)?;
    let nodesize = files.store().nodes().nodesize_bytes() as u64;
    let space = files.reserve(Budget::cloned_names(1, 2 * xattr_bytes + 1024, nodesize))?;
    let (join, (staged, attr, inode)) = prepare_and_join(files, |generation| {
        let attr = plan::attributes(&src.attr_now(), &at(generation));
        let (xattrs, _) = plan::xattrs(src, ctx, ino, generation)?;
        let empty = InodeAttr {
            size: 0,
            nlink: 0,
            ..attr
        };
        let inode = Inode::new(&dir.subvol, ino, empty, FileKind::Regular);
        let mut staged = Staged::new(&dir.tree);
        staged.put(orphan_key(ino), []);
        staged.put(inode.key(), inode.item_bytes(&inode.attr.lock()));
        xattrs.into_iter().for_each(|(key, bytes)| staged.put(key, bytes));
        Ok((staged, attr, inode))
    })?;
    let inode = Arc::new(inode);
    inode.refs.set_linkable(true);
    files.names().made_without_name(dir, &inode);
    files.objects().inodes.insert_new(inode.clone());
    join.apply(staged.into_batch(), space);
    Ok((inode, attr))
}

/// Gives it the content of the source, at one moment, and the attributes that doing so changed.
fn fill(files: &Files, inode: &Arc<Inode>, attr: &InodeAttr, src: &Arc<Inode>) -> Result<()> {
    file::clone_as(files, (src, 0), (inode, 0), 0, WriteCtx::default())?;
    // Inline content was copied into memory.
    file::flush(files, inode)?;
    let space = files.reserve(Budget::SETATTR)?;
    let _lock = inode.lock.write();
    let (join, mut staged) = prepare_and_join(files, |_| Ok(Staged::new(&inode.tree)))?;
    let mut state = inode.attr.lock();
    (state.attr.atime, state.attr.mtime) = (attr.atime, attr.mtime);
    state.attr.mode = attr.mode;
    touch_inode(&mut state, join.generation(), attr.ctime);
    staged.put(inode.key(), inode.item_bytes(&state));
    join.apply(staged.into_batch(), space);
    Ok(())
}
