//! The end of inodes without names: what unlink leaves to the last reference, and what a crash left as orphans.
//!
//! An inode that loses its last name gets an orphan item in the same batch. When nobody remembers it any more, its
//! extents go, step by step, then all other items of its number and the orphan item. A crash in between leaves the
//! orphan item; the first writable opening of the subvolume starts over.

use std::sync::Arc;

use btrfs_format::{Key, KeyType, ObjectId};

use super::Inode;
use crate::Engine;
use crate::error::Result;
use crate::file;
use crate::subvol::Subvol;
use btrfs_store::space::Budget;
use btrfs_store::tree::Tree;
use btrfs_store::txn::Batch;

/// Items deleted in one batch: all in few leaves, one TRUNCATE budget's worth.
const ITEMS_PER_BATCH: usize = 64;

pub fn orphan_key(ino: ObjectId) -> Key {
    Key::new(ObjectId::ORPHAN, KeyType::ORPHAN_ITEM, ino.0)
}

/// Gives lookups back; deletes or lets go of the inode where these were the last.
pub fn forget(engine: &Engine, inode: &Arc<Inode>, lookups: u64) {
    inode.refs.drop_lookups(lookups);
    settle(engine, inode);
}

/// Closes once.
pub fn close(engine: &Engine, inode: &Arc<Inode>) {
    inode.refs.drop_open();
    if !inode.refs.is_open() {
        inode.note_mapped_pages_came();
    }
    settle(engine, inode);
}

/// The mount ends: what is unlinked and only remembered goes, rather than wait as an orphan for the next mount.
pub fn forget_all(engine: &Engine) {
    for inode in engine.objects.inodes.all() {
        if inode.attr.lock().attr.nlink == 0 {
            inode.refs.reset();
            settle(engine, &inode);
        }
    }
}

/// Deletes an inode that has neither names nor references; queues an idle one for eviction.
pub fn settle(engine: &Engine, inode: &Arc<Inode>) {
    if !inode.refs.is_idle() {
        return;
    }
    if inode.attr.lock().attr.nlink > 0 || inode.is_placeholder() {
        engine.objects.inodes.note_idle(inode);
        return;
    }
    if engine.objects.is_read_only() || engine.store.txn().is_aborted() || !inode.refs.begin_deleting() {
        return;
    }
    if let Err(error) = delete(engine, inode) {
        // Its orphan item stays: the next mount tries again.
        tracing::warn!(tree = %inode.tree.id(), ino = %inode.ino, %error, "an unlinked inode could not be deleted");
    }
    engine.objects.inodes.remove(inode);
}

/// Removes every trace of an inode without names.
fn delete(engine: &Engine, inode: &Arc<Inode>) -> Result<()> {
    // No lock: nobody can reach the inode, and reservations wait for write-back, which takes locks.
    if inode.is_regular() {
        file::drop_extents_of_deleted(engine, inode)?;
    }
    let last = [inode.key(), orphan_key(inode.ino)];
    let holds_nothing_else = inode.xattrs.is_known_empty() && !has_own_items(inode);
    if holds_nothing_else {
        return delete_keys(engine, &inode.tree, last.into_iter());
    }
    delete_items(engine, &inode.tree, inode.ino, last)
}

/// Kinds of inodes that have other items than extents, xattrs and the inode item.
fn has_own_items(inode: &Inode) -> bool {
    // A symbolic link's target is an inline extent. Verity items hang on regular files alone.
    let is_link = inode.kind() == cowshed_vfs::FileKind::Symlink;
    is_link || inode.flags() & super::flags::RO_VERITY != 0
}

/// Deletes all items of an object; the inode item and the orphan item (`last`) go with the last of the others: a symbolic
/// link without its target, which a commit in between would show, is no sound one.
fn delete_items(engine: &Engine, tree: &Arc<Tree>, ino: ObjectId, last: [Key; 2]) -> Result<()> {
    loop {
        // Each round deletes what it found, so the next one finds less.
        let (keys, is_last) = next_batch(tree, ino, last)?;
        delete_keys(engine, tree, keys.into_iter())?;
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

fn delete_keys(engine: &Engine, tree: &Arc<Tree>, keys: impl Iterator<Item = Key>) -> Result<()> {
    let space = engine.reserve(Budget::TRUNCATE)?;
    let mut batch = Batch::new();
    for key in keys {
        batch.delete(tree, key);
    }
    engine.store.txn().join().apply(batch, space);
    Ok(())
}

/// Deletes what unlink left behind in a subvolume before the last crash. Returns how many inodes went.
pub fn clean_orphans(engine: &Engine, subvol: &Arc<Subvol>) -> Result<usize> {
    let mut deleted = 0;
    let mut cursor = subvol.tree.cursor_type(orphan_key(ObjectId(0)));
    while let Some((key, _)) = cursor.next()? {
        let ino = ObjectId(key.offset);
        match engine.objects.inodes.load(subvol, ino)? {
            Some(inode) if inode.attr_now().nlink == 0 => {
                settle(engine, &inode);
                deleted += 1;
            }
            // An interrupted truncation of old kernels, or nothing at all: only the mark is left.
            other => {
                delete_keys(engine, &subvol.tree, std::iter::once(key))?;
                if let Some(inode) = other {
                    settle(engine, &inode);
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
    use crate::engine::EngineOptions;
    use crate::fs::{Fs, MountOptions};
    use btrfs_store::volume::{OpenOptions, Volume};
    use cowshed_runtime::FixedEnv;

    /// A commit may come between any two batches.
    #[test]
    fn the_target_of_a_link_goes_with_its_inode() {
        let ctx = Context::root();
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("memory", 256 << 20));
        mkfs(std::slice::from_ref(&device), &MkfsOptions::new([0x5a; 16])).unwrap();
        let volume = Volume::open(vec![device], &OpenOptions::default()).unwrap();
        let engine = Engine::open(volume, Arc::new(FixedEnv::default()), EngineOptions::default()).unwrap();
        let fs = Fs::mount(engine, MountOptions::default()).unwrap();
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
                delete_keys(fs.engine(), &inode.tree, keys.into_iter()).unwrap();
                if is_last {
                    break;
                }
            }
            assert!(
                next_batch(&inode.tree, inode.ino, last).unwrap().0.len() == last.len(),
                "nothing is left"
            );
        }
        fs.engine().store.txn().abort("the test stops here");
    }
}
