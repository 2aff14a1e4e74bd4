//! The end of inodes without names: what unlink leaves to the last reference, and what a crash left
//! as orphans.
//!
//! An inode that loses its last name gets an orphan item in the same batch. When nothing refers to
//! it any more, its extents go, step by step, then all other items of its number and the orphan
//! item. A crash in between leaves the orphan item; the first writable opening of the subvolume
//! starts over.

use std::sync::Arc;

use btrfs_format::{Key, KeyType, ObjectId};

use crate::error::Result;
use crate::file;
use crate::files::Files;
use crate::object::{Inode, Subvol};
use btrfs_store::space::Budget;
use btrfs_store::tree::Tree;
use btrfs_store::txn::Batch;

/// Items deleted in one batch: all in few leaves, one TRUNCATE budget's worth.
const ITEMS_PER_BATCH: usize = 64;

pub(crate) fn orphan_key(ino: ObjectId) -> Key {
    Key::new(ObjectId::ORPHAN, KeyType::ORPHAN_ITEM, ino.0)
}

/// Closes once.
pub(crate) fn close(files: &Files, inode: &Arc<Inode>) {
    inode.refs.drop_open();
    if !inode.refs.is_open() {
        inode.note_mapped_pages_came();
    }
    settle(files, inode);
}

/// The mount ends: what is unlinked and only remembered goes, rather than wait as an orphan for the
/// next mount.
pub(crate) fn forget_all(files: &Files) {
    for inode in files.objects().inodes.all() {
        if inode.attr.lock().attr.nlink == 0 {
            inode.refs.reset();
            settle(files, &inode);
        }
    }
}

/// Deletes an inode that has neither names nor references; queues an idle one for eviction.
pub(crate) fn settle(files: &Files, inode: &Arc<Inode>) {
    if !inode.refs.is_idle() {
        return;
    }
    if inode.attr.lock().attr.nlink > 0 || inode.is_placeholder() {
        files.objects().inodes.note_idle(inode);
        return;
    }
    if files.objects().is_read_only() || files.store().txn().is_aborted() || !inode.refs.begin_deleting() {
        return;
    }
    if let Err(error) = delete(files, inode) {
        // Its orphan item stays: the next mount tries again.
        tracing::warn!(tree = %inode.tree.id(), ino = %inode.ino, %error, "an unlinked inode could not be deleted");
    }
    files.objects().inodes.remove(inode);
}

/// Removes every trace of an inode without names.
fn delete(files: &Files, inode: &Arc<Inode>) -> Result<()> {
    // No lock: no other thread can reach the inode, and reservations wait for write-back, which
    // takes locks.
    if inode.is_regular() {
        file::drop_extents_of_deleted(files, inode)?;
    }
    let last = [inode.key(), orphan_key(inode.ino)];
    let holds_nothing_else = inode.xattrs.is_known_empty() && !has_own_items(inode);
    if holds_nothing_else {
        return delete_keys(files, &inode.tree, last.into_iter());
    }
    delete_items(files, &inode.tree, inode.ino, last)
}

/// Kinds of inodes that have other items than extents, xattrs and the inode item.
fn has_own_items(inode: &Inode) -> bool {
    // A symbolic link's target is an inline extent. Verity items hang on regular files alone.
    let is_link = inode.kind() == cowshed_vfs::FileKind::Symlink;
    is_link || inode.flags() & crate::object::flags::RO_VERITY != 0
}

/// Deletes all items of an object; the inode item and the orphan item (`last`) go with the last of
/// the others: a symbolic link without its target, which a commit in between would show, is no
/// sound one.
fn delete_items(files: &Files, tree: &Arc<Tree>, ino: ObjectId, last: [Key; 2]) -> Result<()> {
    loop {
        // Each round deletes what it found, so the next one finds less.
        let (keys, is_last) = next_batch(tree, ino, last)?;
        delete_keys(files, tree, keys.into_iter())?;
        if is_last {
            return Ok(());
        }
    }
}

/// The next items of an object to delete, and whether they are all.
fn next_batch(tree: &Arc<Tree>, ino: ObjectId, last: [Key; 2]) -> Result<(Vec<Key>, bool)> {
    let from = Key::new(ino, KeyType::INODE_ITEM, 1);
    let to = Key::new(ino, KeyType(u8::MAX), u64::MAX);
    let mut cursor = tree.cursor(from, to);
    let mut keys = Vec::with_capacity(ITEMS_PER_BATCH);
    while keys.len() < ITEMS_PER_BATCH
        && let Some((key, _)) = cursor.next()?
    {
        keys.push(key);
    }
    let is_last = keys.len() + last.len() <= ITEMS_PER_BATCH;
    if is_last {
        keys.extend(last);
    } else {
        // It may be the very last, which goes with the inode.
        keys.pop();
    }
    Ok((keys, is_last))
}

fn delete_keys(files: &Files, tree: &Arc<Tree>, keys: impl Iterator<Item = Key>) -> Result<()> {
    let space = files.reserve(Budget::TRUNCATE)?;
    let mut batch = Batch::new();
    for key in keys {
        batch.delete(tree, key);
    }
    files.store().txn().join().apply(batch, space);
    Ok(())
}

/// Deletes what unlink left behind in a subvolume before the last crash. Returns how many inodes
/// went.
pub(crate) fn clean_orphans(files: &Files, subvol: &Arc<Subvol>) -> Result<usize> {
    let mut deleted = 0;
    let mut cursor = subvol.tree.cursor_type(orphan_key(ObjectId(0)));
    while let Some((key, _)) = cursor.next()? {
        let ino = ObjectId(key.offset);
        match files.objects().inodes.load(subvol, ino)? {
            Some(inode) if inode.attr_now().nlink == 0 => {
                settle(files, &inode);
                deleted += 1;
            }
            // An interrupted truncation of old kernels, or nothing at all: only the mark is left.
            other => {
                delete_keys(files, &subvol.tree, std::iter::once(key))?;
                if let Some(inode) = other {
                    settle(files, &inode);
                }
            }
        }
    }
    if deleted > 0 {
        tracing::info!(tree = %subvol.id, deleted, "deleted inodes that had lost their last name before the mount");
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use btrfs_image::{MkfsOptions, mkfs};
    use cowshed_device::{BlockDevice, MemDevice};
    use cowshed_vfs::{Context, FileSystem, NodeId, SetXattrFlags};

    use super::*;
    use crate::files::EngineOptions;
    use crate::fs::{Fs, MountOptions};
    use crate::mount::Mount;
    use btrfs_store::volume::{OpenOptions, Volume};
    use cowshed_runtime::FixedEnv;

    /// A commit may come between any two batches.
    #[test]
    fn the_target_of_a_link_goes_with_its_inode() {
        let ctx = Context::root();
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("memory", 256 << 20));
        mkfs(std::slice::from_ref(&device), &MkfsOptions::new([0x5a; 16])).unwrap();
        let volume = Volume::open(vec![device], &OpenOptions::default()).unwrap();
        let files = Mount::open(volume, Arc::new(FixedEnv::default()), EngineOptions::default()).unwrap();
        let fs = Fs::new(files, MountOptions::default()).unwrap();
        let around = |n: usize| n - 4..=n + 2;
        for xattrs in around(4)
            .chain(around(ITEMS_PER_BATCH))
            .chain(around(2 * ITEMS_PER_BATCH))
        {
            let name = format!("link with {xattrs}");
            let link = fs.symlink(&ctx, NodeId::ROOT, name.as_bytes(), b"target").unwrap();
            for n in 0..xattrs {
                let name = format!("trusted.{n}");
                fs.setxattr(&ctx, link.node, name.as_bytes(), b"value", SetXattrFlags::empty())
                    .unwrap();
            }
            let inode = fs.inode(link.node).unwrap();
            fs.unlink(&ctx, NodeId::ROOT, name.as_bytes()).unwrap();
            let last = [inode.key(), orphan_key(inode.ino)];
            loop {
                let (keys, is_last) = next_batch(&inode.tree, inode.ino, last).unwrap();
                assert!(
                    (1..=ITEMS_PER_BATCH).contains(&keys.len()),
                    "{xattrs}: {} keys",
                    keys.len()
                );
                let has_target = keys.iter().any(|key| key.ty == KeyType::EXTENT_DATA);
                assert_eq!(has_target, is_last, "{xattrs} attributes");
                assert_eq!(keys.contains(&inode.key()), is_last);
                delete_keys(fs.mount(), &inode.tree, keys.into_iter()).unwrap();
                if is_last {
                    break;
                }
            }
            assert!(
                next_batch(&inode.tree, inode.ino, last).unwrap().0.len() == last.len(),
                "nothing is left"
            );
        }
        fs.mount().store().txn().abort("the test stops here");
    }
}
