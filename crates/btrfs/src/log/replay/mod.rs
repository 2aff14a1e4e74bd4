//! Replay of the log at mount: what fsync promised becomes part of the trees again.
//!
//! Runs while the volume is being opened, before any other operation: edits go into the overlays
//! step by step, and when one step fails, the opening fails and nothing of it was ever anywhere but
//! in memory. A writable mount then commits, which forgets the log; a read-only one keeps the
//! overlays and writes nothing. Takes no locks of its own.
//!
//! The order, and what each kind of item means, is in docs/design/log-tree.md. For each subvolume
//! that has a log:
//!
//! 1. [`blocks`]: every block of the log is read, verified and kept from being allocated until the
//!    commit.
//! 2. [`inodes`]: inode items, xattrs, the names that logged ranges of directories lack, extents
//!    beyond the end of file.
//! 3. [`names`]: names that only directory indices tell of, then the references of each inode.
//! 4. [`extents`]: file extents with their references, checksums.
//! 5. [`links`]: link counts; what has no name left becomes an orphan.

mod blocks;
mod extents;
mod inodes;
mod links;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use btrfs_format::items::InodeItem;
use btrfs_format::{Generation, Key, KeyType, LogicalAddr, ObjectId, TreeId, view};

use super::{root_key, root_of};
use crate::error::{Error, Result, StoreError};
use crate::file::replay as file;
use crate::files::Files;
use btrfs_store::tree::{RootPtr, Tree};
use btrfs_store::txn::Batch;

/// Puts everything that the volume's log holds into the overlays. False where there is no log.
///
/// # Errors
/// [`Error::LogReplay`]; the files must then be dropped: their overlays may hold half of the log.
pub(crate) fn replay(files: &Files) -> Result<bool> {
    let Some(root) = root_of(&files.store().volume().superblock()) else {
        return Ok(false);
    };
    let of_tree = |subvol| {
        move |reason: Error| Error::LogReplay {
            subvol,
            reason: Box::new(reason),
        }
    };
    let mut shared = Shared::new(files);
    let logs = load_logs(files, root, &mut shared).map_err(of_tree(TreeId::TREE_LOG))?;
    for (subvol, log) in logs {
        replay_subvolume(&mut shared, subvol, log).map_err(of_tree(subvol))?;
    }
    shared.finish().map_err(of_tree(TreeId::CSUM))?;
    Ok(true)
}

/// What the logs of all subvolumes share.
struct Shared<'e> {
    files: &'e Files,
    /// The transaction that the replay belongs to.
    generation: Generation,
    /// Nothing will be committed: space and references are not kept.
    is_read_only: bool,
    /// Extents that have no item yet, and whether a reference was queued that makes it.
    fresh: HashMap<LogicalAddr, bool>,
    /// Checksums of the extents that came from logs.
    sums: Vec<(LogicalAddr, Vec<u8>)>,
    /// Data whose inode is to be compared with the checksums that are there.
    judged_data: extents::JudgedData,
    log_blocks: Vec<LogicalAddr>,
}

impl<'e> Shared<'e> {
    fn new(files: &'e Files) -> Self {
        Self {
            files,
            generation: files.store().txn().running(),
            is_read_only: files.store().volume().is_read_only(),
            fresh: HashMap::new(),
            sums: Vec::new(),
            judged_data: extents::JudgedData::default(),
            log_blocks: Vec::new(),
        }
    }

    fn apply(&self, batch: Batch) {
        self.files.store().txn().join().apply_unreserved(batch);
    }

    fn finish(self) -> Result<()> {
        let mut batch = Batch::new();
        file::put_sums(self.files, &mut batch, self.sums)?;
        self.files.store().txn().join().apply_unreserved(batch);
        self.judged_data.judge(self.files)?;
        for addr in &self.log_blocks {
            self.files.store().nodes().forget(*addr);
        }
        Ok(())
    }
}

/// The logs that the log root tree names, all their blocks verified and claimed.
fn load_logs(files: &Files, root: RootPtr, shared: &mut Shared<'_>) -> Result<Vec<(TreeId, RootPtr)>> {
    blocks::claim(shared, root)?;
    let tree = Tree::new(TreeId::TREE_LOG, files.store().nodes().clone(), root);
    let mut logs = Vec::new();
    let mut cursor = tree.cursor_type(root_key(TreeId(0)));
    while let Some((key, item)) = cursor.next()? {
        let log = view::root_item(&item).ok_or_else(|| corrupt(format!("{key}: root item is too short")))?;
        let ptr = RootPtr {
            addr: log.bytenr.into(),
            generation: log.generation.into(),
            level: log.level,
        };
        blocks::claim(shared, ptr)?;
        logs.push((TreeId(key.offset), ptr));
    }
    Ok(logs)
}

fn replay_subvolume(shared: &mut Shared<'_>, id: TreeId, log: RootPtr) -> Result<()> {
    let Some(tree) = live_subvolume(shared.files, id)? else {
        tracing::info!(subvolume = %id, "the log of a deleted subvolume goes with it");
        return Ok(());
    };
    let log = Arc::new(Tree::new(TreeId::TREE_LOG, shared.files.store().nodes().clone(), log));
    let mut replay = Replay {
        shared,
        tree,
        log,
        inodes: HashMap::new(),
        ignored: HashSet::new(),
        flipped: BTreeSet::new(),
        touched: BTreeSet::new(),
        named_dirs: BTreeSet::new(),
    };
    replay.inodes()?;
    replay.names_of_directories()?;
    replay.rest()?;
    replay.note_flipped()?;
    replay.link_counts()?;
    replay.check_ways_up()?;
    replay.put_inodes();
    Ok(())
}

/// The tree of a subvolume that exists and is not being deleted.
fn live_subvolume(files: &Files, id: TreeId) -> Result<Option<Arc<Tree>>> {
    if !id.is_subvolume() {
        return Err(corrupt(format!("the log names tree {id}, which holds no files")));
    }
    let key = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
    let root = files.store().forest().root_tree().floor_same_type(&key)?;
    let is_live = root
        .and_then(|(_, item)| view::root_item(&item))
        .is_some_and(|root| root.refs.get() > 0);
    if is_live {
        Ok(files.store().forest().load(id)?)
    } else {
        Ok(None)
    }
}

/// The replay of one subvolume's log.
struct Replay<'r, 'e> {
    shared: &'r mut Shared<'e>,
    tree: Arc<Tree>,
    log: Arc<Tree>,
    /// Inode items as they will be; `None`: there is no such inode. Written at the end.
    inodes: HashMap<ObjectId, Option<InodeItem>>,
    /// Inodes that were logged without a name: their items mean nothing.
    ignored: HashSet<ObjectId>,
    /// Inodes of the subvolume whose data had checksums and shall have none, or the reverse.
    flipped: BTreeSet<ObjectId>,
    /// Inodes whose names may have changed.
    touched: BTreeSet<ObjectId>,
    /// Directories that got a name.
    named_dirs: BTreeSet<ObjectId>,
}

impl Replay<'_, '_> {
    /// The inode as it is by now.
    fn inode(&mut self, ino: ObjectId) -> Result<Option<&mut InodeItem>> {
        if !self.inodes.contains_key(&ino) {
            let item = self.tree.get(&Key::new(ino, KeyType::INODE_ITEM, 0))?;
            let inode = match item {
                Some(item) => Some(
                    *view::fixed::<InodeItem>(&item)
                        .ok_or_else(|| self.corrupt(format!("inode item of {ino} is too short")))?,
                ),
                None => None,
            };
            self.inodes.insert(ino, inode);
        }
        Ok(self.inodes.get_mut(&ino).and_then(Option::as_mut))
    }

    /// References, xattrs are done; what is left are the references of inodes and the file extents,
    /// inode by inode.
    fn rest(&mut self) -> Result<()> {
        let log = self.log.clone();
        let mut cursor = log.cursor(Key::MIN, Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX));
        let mut extents: Vec<(Key, btrfs_store::tree::Item)> = Vec::new();
        while let Some((key, item)) = cursor.next()? {
            if extents.first().is_some_and(|(k, _)| k.objectid != key.objectid) {
                self.replay_extents(std::mem::take(&mut extents))?;
            }
            if self.ignored.contains(&key.objectid) {
                continue;
            }
            match key.ty {
                KeyType::INODE_REF => self.replay_refs(key, &item)?,
                KeyType::INODE_EXTREF => self.replay_extrefs(key, &item)?,
                KeyType::EXTENT_DATA => extents.push((key, item)),
                _ => {}
            }
        }
        self.replay_extents(extents)
    }

    /// Writes the inode items.
    fn put_inodes(&mut self) {
        let mut inodes: Vec<_> = self
            .inodes
            .drain()
            .filter_map(|(ino, inode)| Some((ino, inode?)))
            .collect();
        inodes.sort_unstable_by_key(|(ino, _)| *ino);
        let mut batch = Batch::new();
        for (ino, mut inode) in inodes {
            if !self.touched.contains(&ino) {
                continue;
            }
            inode.transid = self.shared.generation.into();
            batch.put(
                &self.tree,
                Key::new(ino, KeyType::INODE_ITEM, 0),
                zerocopy::IntoBytes::as_bytes(&inode),
            );
        }
        self.shared.apply(batch);
    }

    fn corrupt(&self, what: String) -> Error {
        Error::Store(StoreError::CorruptTree {
            tree: self.tree.id(),
            what,
        })
    }
}

/// The log says what cannot be.
fn corrupt(what: String) -> Error {
    Error::Store(StoreError::CorruptTree {
        tree: TreeId::TREE_LOG,
        what,
    })
}
