//! Many names of one directory made in one batch: with their inodes, attributes and content, or not
//! at all.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId, hash};
use btrfs_store::refs::RefChange;
use btrfs_store::space::Budget;
use btrfs_store::tree::Item;
use cowshed_runtime::lock::{RwLockReadGuard, RwLockWriteGuard};
use cowshed_vfs::{Context, Error as Errno, FileKind, Timestamp};
use zerocopy::IntoBytes;

use super::plan::{self, NewInode, Place, Planned};
use crate::access::{Caller, may_create};
use crate::dir::{self, check_name, names};
use crate::error::{Error, Result, StoreError};
use crate::file;
use crate::files::{Files, prepare_and_join};
use crate::object::Inode;
use crate::reclaim;
use crate::staged::Staged;

/// An entry of the source, loaded.
pub(super) struct Source {
    pub(super) name: Box<[u8]>,
    pub(super) inode: Arc<Inode>,
}

/// Where the names go.
pub(super) struct Target<'a> {
    pub(super) dir: &'a Arc<Inode>,
    /// The walk has not made the directory: the caller's permissions decide.
    pub(super) is_foreign: bool,
    /// What the directory's mtime stays.
    pub(super) mtime: Option<Timestamp>,
}

/// What came of a batch.
pub(super) enum Made {
    /// So many names from the first on, with these numbers.
    Names(Vec<ObjectId>),
    /// The first cannot be cloned.
    Refused(Error),
    /// The first is a file of very many extents.
    TooManyExtents,
    /// The first has more items than there is room for.
    TooLong,
}

/// The operation lock of one inode.
enum Lock<'a> {
    Source { _guard: RwLockReadGuard<'a, ()> },
    Target { _guard: RwLockWriteGuard<'a, ()> },
}

/// The directory for writing and the files for reading, in the order of all locks of inodes.
fn lock_all<'a>(dir: &'a Arc<Inode>, sources: &'a [Source]) -> Vec<Lock<'a>> {
    let files = sources.iter().map(|s| &s.inode).filter(|inode| inode.is_regular());
    let mut all: Vec<_> = files.chain([dir]).collect();
    all.sort_by_key(|inode| inode.lock_key());
    all.dedup_by_key(|inode| inode.lock_key());
    let lock = |inode: &'a Arc<Inode>| match Arc::ptr_eq(inode, dir) {
        true => Lock::Target {
            _guard: inode.lock.write_ordered(inode.lock_key()),
        },
        false => Lock::Source {
            _guard: inode.lock.read_ordered(inode.lock_key()),
        },
    };
    all.into_iter().map(lock).collect()
}

/// Outcomes that concern one entry; all else ends the walk.
pub(super) fn concerns_entry(error: &Error) -> bool {
    match error {
        Error::Outcome(errno) => !matches!(errno, Errno::NoSpace | Errno::ReadOnly | Errno::NoMemory),
        Error::Store(error) => matches!(error, StoreError::CorruptTree { .. }),
        Error::Decompress { .. } => true,
        Error::LogReplay { .. } => false,
    }
}

/// Clones as many of `sources` as fit `room_bytes` of items. Errors: those that end the walk.
pub(super) fn make(
    files: &Files,
    ctx: &Context,
    target: &Target<'_>,
    sources: &[Source],
    room_bytes: usize,
) -> Result<Made> {
    let dir = target.dir;
    let nodesize = files.store().nodes().nodesize_bytes() as u64;
    for source in sources.iter().filter(|s| s.inode.is_regular()) {
        // Most of it before any lock is held.
        if let Err(error) = file::flush(files, &source.inode) {
            return refused(error);
        }
    }
    let space = files.reserve(Budget::cloned_names(sources.len(), room_bytes, nodesize))?;
    let _locks = lock_all(dir, sources);
    let caller = Caller {
        ctx,
        checks: target.is_foreign,
    };
    may_create(files, &caller, dir)?;
    for source in sources.iter().filter(|s| s.inode.is_regular()) {
        if let Err(error) = file::flush(files, &source.inode) {
            return refused(error);
        }
    }
    let now = files.store().env().now();
    let mut numbers = Vec::with_capacity(sources.len());
    let (join, planned) = prepare_and_join(files, |generation| {
        let at = Place {
            ctx,
            dir,
            generation,
            now,
        };
        plan_all(&at, sources, &mut numbers, room_bytes)
    })?;
    let (new, first) = planned;
    if new.is_empty() {
        return Ok(first.unwrap_or_else(|| Made::Names(Vec::new())));
    }
    let generation = join.generation();
    let mut staged = Staged::new(&dir.tree);
    let mut rest = Rest::default();
    let mut state = dir.attr.lock();
    let mut made = Vec::with_capacity(new.len());
    let mut name_bytes = 0;
    for (source, (new, item)) in sources.iter().zip(new) {
        let entry = names::NewName {
            dir: dir.ino,
            name: &source.name,
            index: dir.dir.next_index.load(Ordering::Acquire),
            location: Key::new(new.ino, KeyType::INODE_ITEM, 0),
            ty: names::file_type(source.inode.kind()),
            generation,
        };
        names::insert_into(&mut staged, &entry, item.as_deref());
        names::insert_first_ref(&mut staged, new.ino, &entry);
        dir::note_name(dir, &source.name);
        name_bytes += source.name.len();
        made.push(new.ino);
        stage(&mut staged, dir, source, *new, &mut rest);
    }
    dir::touch_dir(&mut state, generation, now, name_bytes, 0);
    if let Some(mtime) = target.mtime {
        state.attr.mtime = mtime;
    }
    staged.put(dir.key(), dir.item_bytes(&state));
    files.names().changed(staged.is_crowded());
    file::note_shared(files, &rest.noted);
    for inode in &rest.dirs {
        // Before its name can be seen.
        files.objects().inodes.insert_new(inode.clone());
    }
    let mut batch = staged.into_batch();
    rest.refs.into_iter().for_each(|change| batch.reference(change));
    join.apply(batch, space);
    drop(state);
    drop(join);
    rest.dirs.iter().for_each(|inode| reclaim::settle(files, inode));
    Ok(Made::Names(made))
}

fn refused(error: Error) -> Result<Made> {
    match concerns_entry(&error) {
        true => Ok(Made::Refused(error)),
        false => Err(error),
    }
}

/// A planned inode, and the item that its name shares with others.
type PlannedName = (Box<NewInode>, Option<Item>);

/// Plans from the first source on, until one does not fit; what is to be said of the first if it
/// does not.
fn plan_all(
    at: &Place<'_>,
    sources: &[Source],
    numbers: &mut Vec<ObjectId>,
    room_bytes: usize,
) -> Result<(Vec<PlannedName>, Option<Made>)> {
    let tree = Staged::new(&at.dir.tree);
    let mut planned = Vec::with_capacity(sources.len());
    let mut hashes = HashSet::new();
    let mut left_bytes = room_bytes;
    // Known from here on, under the directory's lock.
    dir::next_index(at.dir)?;
    for (n, source) in sources.iter().enumerate() {
        // Two new names of one hash share an item: the second sees it in the next batch.
        if !hashes.insert(hash::name_hash(&source.name)) {
            break;
        }
        let one = plan_one(at, source, &tree, (numbers, n), left_bytes);
        let stop = match one {
            Ok((Planned::New(new), item)) => {
                left_bytes -= new.bytes.min(left_bytes);
                planned.push((new, item));
                continue;
            }
            Ok((Planned::TooManyExtents, _)) => Made::TooManyExtents,
            Ok((Planned::TooLong, _)) => Made::TooLong,
            Err(error) if concerns_entry(&error) => Made::Refused(error),
            Err(error) => return Err(error),
        };
        return Ok((planned, (n == 0).then_some(stop)));
    }
    Ok((planned, None))
}

fn plan_one(
    at: &Place<'_>,
    source: &Source,
    tree: &Staged<'_>,
    (numbers, n): (&mut Vec<ObjectId>, usize),
    room_bytes: usize,
) -> Result<(Planned, Option<Item>)> {
    check_name(&source.name)?;
    let item = match at.dir.dir.filter.is_absent(&source.name) {
        true => None,
        false => names::check_absent(tree, at.dir.ino, &source.name)?,
    };
    // Planned once more after a commit: with the same numbers.
    let ino = match numbers.get(n) {
        Some(ino) => *ino,
        None => {
            numbers.push(at.dir.subvol.take_ino()?);
            *numbers.last().unwrap_or(&ObjectId(0))
        }
    };
    Ok((plan::plan(&source.inode, at, ino, room_bytes)?, item))
}

/// What a batch has beside items.
#[derive(Default)]
struct Rest {
    refs: Vec<RefChange>,
    noted: Vec<LogicalAddr>,
    /// Objects of new directories, which the walk goes on in.
    dirs: Vec<Arc<Inode>>,
}

fn stage(staged: &mut Staged<'_>, dir: &Arc<Inode>, source: &Source, new: NewInode, rest: &mut Rest) {
    let item = new.attr.encode(new.attr.size);
    staged.put(Key::new(new.ino, KeyType::INODE_ITEM, 0), item.as_bytes());
    let has_xattrs = !new.xattrs.is_empty();
    for (key, bytes) in new.xattrs.into_iter().chain(new.data.items) {
        staged.put(key, bytes);
    }
    rest.refs.extend(new.data.refs);
    rest.noted.extend(new.data.noted);
    if source.inode.is_dir() {
        let inode = Inode::new(&dir.subvol, new.ino, new.attr, FileKind::Directory);
        inode.dir.filter.start();
        if !has_xattrs {
            inode.xattrs.set_known_empty();
        }
        rest.dirs.push(Arc::new(inode));
    }
}
