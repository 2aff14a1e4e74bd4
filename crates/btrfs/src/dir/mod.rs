//! Directories: names, and every operation that makes, moves or removes one.
//!
//! All operations have one shape: reserve space; lock the inodes; prepare (look up, check, stage
//! items: may fail); join the transaction; change attributes and apply everything as one batch,
//! which cannot fail. Items carry the number of the transaction, so preparing is done once more in
//! the rare case that a commit came between (`prepare_and_join`).
//!
//! Looking up and listing take no inode lock: an item is read as a whole.

mod create;
mod link;
mod list;
mod look;
pub mod names;
mod remove;
mod rename;
pub(crate) mod subvolumes;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId, view};
use btrfs_store::tree::Tree;
use cowshed_vfs::{Error as Errno, Timestamp};

pub use create::{NewInode, create, tmpfile};
pub use link::link;
pub(crate) use link::may_extend_refs;
pub use list::{ListedEntry, list};
pub(crate) use look::load_target;
use look::{Held, NameState, find_child, find_name, know_absence};
pub use names::{Found, NAME_BYTES_MAX, Target, check_name};
pub use remove::{rmdir, unlink};
pub use rename::rename;

use crate::error::{Error, Result, StoreError};
use crate::files::{Files, touch_inode};
use crate::object::{Inode, InodeState};
use crate::subvol;

/// Entries of a directory are numbered from here: 0 and 1 stand for `.` and `..`.
pub(crate) const FIRST_INDEX: u64 = 2;
/// The last index that can be listed: cookies are one higher, and signed in the kernel's world.
pub(crate) const LAST_INDEX: u64 = i64::MAX as u64 - 1;
/// Directories on the way up that a path can have: more means that the volume's directories form a
/// ring.
const DEPTH_MAX: usize = 1 << 16;

/// The index that the next name in a directory gets. It counts as used when [`note_name`] says so.
pub(crate) fn next_index(dir: &Inode) -> Result<u64> {
    let known = dir.dir.next_index.load(Ordering::Acquire);
    if known != 0 {
        return Ok(known);
    }
    // A number that a name gave back in this transaction is not used again in it: where a log says
    // whose it is now, replay would take it from the inode that has it in the last commit.
    let (first, end) = (names::index_key(dir.ino, 0), names::index_key(dir.ino, u64::MAX));
    let next = match dir.tree.floor_key_ever(&first, &end)? {
        None => FIRST_INDEX,
        // Room for a rename's two names; and cookies have 63 bits.
        Some(key) if key.offset >= u64::MAX >> 2 => return Err(Errno::Overflow.into()),
        Some(key) => key.offset.max(FIRST_INDEX - 1) + 1,
    };
    dir.dir.next_index.store(next, Ordering::Release);
    Ok(next)
}

/// Listings show the names that there are now, and none that come later, until this is called
/// again.
pub(crate) fn begin_listing(dir: &Inode) -> Result<()> {
    let known = dir.dir.next_index.load(Ordering::Acquire);
    let end = if known != 0 {
        known
    } else {
        // The thread that finds it out sets it: no name may be made meanwhile.
        let _lock = dir.lock.read();
        match next_index(dir) {
            Ok(next) => next,
            // No name can be made any more.
            Err(Error::Outcome(Errno::Overflow)) => u64::MAX,
            Err(error) => return Err(error),
        }
    };
    dir.dir.listing_end.store(end, Ordering::Release);
    Ok(())
}

/// The index before which listings end.
fn listing_end(dir: &Inode) -> u64 {
    match dir.dir.listing_end.load(Ordering::Acquire) {
        0 => u64::MAX,
        end => end,
    }
}

/// A name comes into the directory, with the next index.
pub(crate) fn note_name(dir: &Inode, name: &[u8]) {
    dir.dir.next_index.fetch_add(1, Ordering::AcqRel);
    dir.dir.filter.add(name);
}

/// Names with these hashes come into the directory, with the next indexes.
pub(crate) fn note_names(dir: &Inode, hashes: impl ExactSizeIterator<Item = u64>) {
    dir.dir.next_index.fetch_add(hashes.len() as u64, Ordering::AcqRel);
    dir.dir.filter.add_hashes(hashes);
}

/// A directory's attributes after names of `added_bytes` came and names of `removed_bytes` went.
pub(crate) fn touch_dir(
    state: &mut InodeState,
    generation: Generation,
    now: Timestamp,
    added_bytes: usize,
    removed_bytes: usize,
) {
    let attr = &mut state.attr;
    // The format counts each name twice: once for each of its two items.
    attr.size = (attr.size + 2 * added_bytes as u64).saturating_sub(2 * removed_bytes as u64);
    state.disk_size = attr.size;
    attr.mtime = now;
    touch_inode(state, generation, now);
}

/// The inode under a name. Errors: `NotDirectory`, `NameTooLong`.
pub(crate) fn lookup(files: &Files, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
    if !dir.is_dir() {
        return Err(Errno::NotDirectory.into());
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::NameTooLong.into());
    }
    if dir.dir.filter.is_absent(name) {
        return Ok(None);
    }
    let mut found = names::find(&dir.tree, dir.ino, name)?;
    if found.is_none() && files.store().volume().is_salvaging() {
        found = names::find_by_index(&dir.tree, dir.ino, name)?;
    }
    let Some(found) = found else {
        return Ok(None);
    };
    if let Some(inode) = load_target(files, dir, name, &found)? {
        return Ok(Some(inode));
    }
    // Gone between two looks, or never there: then the name must be gone too.
    match names::find(&dir.tree, dir.ino, name)? {
        Some(again) if again == found => Err(Error::Store(StoreError::CorruptTree {
            tree: dir.tree.id(),
            what: format!(
                "directory {} has a name for {}, which does not exist",
                dir.ino, found.location
            ),
        })),
        Some(again) => load_target(files, dir, name, &again),
        None => Ok(None),
    }
}

/// The directory above a directory, in its own subvolume or above its root; `None` above the top
/// level.
pub(crate) fn parent_of(files: &Files, dir: &Inode) -> Result<Option<(TreeId, ObjectId)>> {
    if let Some(parent) = dir.dir.placeholder_parent.get() {
        return Ok(Some((dir.tree.id(), *parent)));
    }
    if dir.ino == dir.subvol.root_ino {
        return subvol::parent_of_root(files, dir.tree.id());
    }
    let key = Key::new(dir.ino, KeyType::INODE_REF, u64::MAX);
    let found = dir.tree.floor_same_type(&key)?;
    Ok(found.map(|(key, _)| (dir.tree.id(), ObjectId(key.offset))))
}

/// The directory above a directory of a subvolume, and its name there. `None` where it has none.
pub(crate) fn name_of(tree: &Tree, ino: ObjectId) -> Result<Option<(ObjectId, Vec<u8>)>> {
    let key = Key::new(ino, KeyType::INODE_REF, u64::MAX);
    let Some((key, item)) = tree.floor_same_type(&key)? else {
        return Ok(None);
    };
    let first = view::inode_refs(&item).next();
    Ok(first.map(|(_, name)| (ObjectId(key.offset), name.to_vec())))
}

/// Is `dir` the directory `above`, or below it, across subvolumes?
pub(crate) fn is_inside(files: &Files, dir: &Inode, above: &Inode) -> Result<bool> {
    let (mut subvol, mut ino) = (dir.subvol.clone(), dir.ino);
    for _ in 0..DEPTH_MAX {
        if (subvol.id, ino) == (above.tree.id(), above.ino) {
            return Ok(true);
        }
        if ino == subvol.root_ino {
            let Some((tree, up)) = subvol::parent_of_root(files, subvol.id)? else {
                return Ok(false);
            };
            subvol = subvol::load(files, tree)?.ok_or(Errno::NotFound)?;
            ino = up;
            continue;
        }
        match subvol
            .tree
            .floor_same_type(&Key::new(ino, KeyType::INODE_REF, u64::MAX))?
        {
            Some((key, _)) => ino = ObjectId(key.offset),
            None => return Ok(false),
        }
    }
    Err(Errno::TooManySymlinks.into())
}

/// Is `above` the directory `below` or above it, in their subvolume?
fn is_above(above: &Inode, below: &Arc<Inode>) -> Result<bool> {
    if above.tree.id() != below.tree.id() {
        return Ok(false);
    }
    let mut at = below.ino;
    for _ in 0..DEPTH_MAX {
        if at == above.ino {
            return Ok(true);
        }
        if at == below.subvol.root_ino {
            return Ok(false);
        }
        let key = Key::new(at, KeyType::INODE_REF, u64::MAX);
        match below.tree.floor_same_type(&key)? {
            Some((key, _)) => at = ObjectId(key.offset),
            None => return Ok(false),
        }
    }
    Err(Error::Store(StoreError::CorruptTree {
        tree: below.tree.id(),
        what: format!("directory {} lies below itself", below.ino),
    }))
}
