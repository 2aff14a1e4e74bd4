//! Many names of one directory made in one batch: with their inodes, attributes and content, or not
//! at all.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use btrfs_format::items::InodeItem;
use btrfs_format::{Key, KeyType, ObjectId, hash, view};
use btrfs_store::space::Budget;
use btrfs_store::tree::{Item, Tree};
use btrfs_store::txn::Batch;
use cowshed_runtime::lock::RwLockReadGuard;
use cowshed_vfs::{Access, Context, Error as Errno, FileKind};
use zerocopy::IntoBytes;

use super::gather::Gathered;
use super::plan::{Entry, Place, Plan, Planned};
use crate::access::{Caller, may_create};
use crate::dir::{self, check_name, names};
use crate::error::{Error, Result, StoreError};
use crate::file;
use crate::files::{Files, prepare_and_join};
use crate::object::lock::OpWriteGuard;
use crate::object::{Inode, InodeAttr, Mark, Spread, flags};
use crate::reclaim;
use crate::staged::Staged;
use crate::xattr;

/// An entry of the source.
pub(super) struct Source<'a> {
    pub(super) name: &'a [u8],
    pub(super) ino: ObjectId,
    pub(super) kind: FileKind,
    pub(super) object: Object,
}

/// What is in memory of an entry.
pub(super) enum Object {
    Loaded(Arc<Inode>),
    /// Nothing, since then.
    Absent(Mark),
}

impl Source<'_> {
    pub(super) fn loaded(&self) -> Option<&Arc<Inode>> {
        match &self.object {
            Object::Loaded(inode) => Some(inode),
            Object::Absent(_) => None,
        }
    }
}

/// Where the names go.
pub(super) struct Target<'a> {
    pub(super) dir: &'a Arc<Inode>,
    /// The tree that the sources are in, but for directories.
    pub(super) src_tree: &'a Arc<Tree>,
    /// The walk has not made the directory: the caller's permissions decide.
    pub(super) is_foreign: bool,
}

/// A name that was made.
pub(super) struct MadeName {
    pub(super) ino: ObjectId,
    pub(super) size_bytes: u64,
    /// Names of the source.
    pub(super) source_links: u32,
}

/// What came of a batch.
pub(super) enum Made {
    /// These names, from the first on.
    Names(Vec<MadeName>),
    /// Nothing: these must be loaded first.
    Load(Vec<usize>),
    /// Nothing: one of them cannot be read. They have to be made one by one.
    Split,
    /// The first is gone.
    Gone,
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
    Target { _guard: OpWriteGuard<'a> },
}

/// Inodes in memory whose items must not change: all but directories, of which attributes alone are
/// taken.
fn held<'a>(sources: &'a [Source<'a>]) -> impl Iterator<Item = &'a Arc<Inode>> {
    sources
        .iter()
        .filter_map(Source::loaded)
        .filter(|inode| !inode.is_dir())
}

/// The directory for writing and the files for reading, in the order of all locks of inodes.
fn lock_all<'a>(dir: &'a Arc<Inode>, sources: &'a [Source<'a>]) -> Vec<Lock<'a>> {
    let mut all: Vec<_> = held(sources).chain([dir]).collect();
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

/// Writes back what is dirty of the sources. Where nothing is dirty on the whole volume, nothing is
/// of a source either whose lock the caller holds: data is counted under its file's lock.
fn flush_all(files: &Files, sources: &[Source<'_>]) -> Result<()> {
    if files.data().dirty_bytes() == 0 {
        return Ok(());
    }
    for inode in held(sources).filter(|inode| inode.is_regular()) {
        file::flush(files, inode)?;
    }
    Ok(())
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

/// What to say of an error that one of the sources has.
fn refused(error: Error, sources: &[Source<'_>]) -> Result<Made> {
    match concerns_entry(&error) {
        true if sources.len() > 1 => Ok(Made::Split),
        true => Ok(Made::Refused(error)),
        false => Err(error),
    }
}

/// Clones as many of `sources` as fit `room_bytes` of items. Errors: those that end the walk.
pub(super) fn make(
    files: &Files,
    ctx: &Context,
    target: &Target<'_>,
    sources: &[Source<'_>],
    room_bytes: usize,
) -> Result<Made> {
    let dir = target.dir;
    let nodesize = files.store().nodes().nodesize_bytes() as u64;
    // Most of it before any lock is held.
    if let Err(error) = flush_all(files, sources) {
        return refused(error, sources);
    }
    let space = files.reserve(Budget::cloned_names(sources.len(), room_bytes, nodesize))?;
    let _locks = lock_all(dir, sources);
    let caller = Caller {
        ctx,
        checks: target.is_foreign,
    };
    may_create(files, &caller, dir)?;
    if let Err(error) = flush_all(files, sources) {
        return refused(error, sources);
    }
    let now = files.store().env().now();
    let mut numbers = Vec::with_capacity(sources.len());
    let (join, planned) = prepare_and_join(files, |generation| {
        let at = Place {
            ctx,
            dir,
            dir_attr: dir.attr_now(),
            generation,
            now,
        };
        plan_all(&at, (target.src_tree, sources), &mut numbers, room_bytes)
    })?;
    let (plan, first) = planned;
    if plan.new.is_empty() {
        return Ok(first.unwrap_or_else(|| Made::Names(Vec::new())));
    }
    let changed = changed_since(files, target.src_tree, &sources[..plan.new.len()]);
    if !changed.is_empty() {
        return Ok(Made::Load(changed));
    }
    let mut state = dir.attr.lock();
    dir::touch_dir(&mut state, join.generation(), now, plan.name_bytes, 0);
    dir::note_names(dir, plan.new.iter().map(|new| new.name_hash));
    files.names().changed(plan.is_crowded);
    file::note_shared(files, &plan.shared.noted);
    let (made, dirs) = (made_names(&plan), new_dirs(dir, sources, &plan));
    for inode in &dirs {
        // Before its name can be seen.
        files.objects().inodes.insert_new(inode.clone());
    }
    let item = state.attr.encode(state.disk_size);
    let (run, refs) = plan.into_run(dir.key(), item.as_bytes());
    join.apply(Batch::of_run(&dir.tree, run, refs), space);
    drop(state);
    drop(join);
    dirs.iter().for_each(|inode| reclaim::settle(files, inode));
    Ok(Made::Names(made))
}

/// Which sources were in memory for some time since they were marked. The others have not changed
/// until now, and the caller has joined the transaction that has been running since they were read:
/// an extent that one of them drops from now on is dropped and shared in one transaction, and
/// stays.
fn changed_since(files: &Files, tree: &Tree, sources: &[Source<'_>]) -> Vec<usize> {
    let inodes = &files.objects().inodes;
    let has_changed = |source: &Source<'_>| match source.object {
        Object::Loaded(_) => false,
        Object::Absent(mark) => !inodes.is_absent_since(tree.id(), source.ino, mark),
    };
    let all = sources.iter().enumerate();
    all.filter(|(_, source)| has_changed(source)).map(|(n, _)| n).collect()
}

fn made_names(plan: &Plan) -> Vec<MadeName> {
    let name = |new: &super::plan::New| MadeName {
        ino: new.ino,
        size_bytes: new.attr.size,
        source_links: new.source_links,
    };
    plan.new.iter().map(name).collect()
}

/// Objects of new directories, which the walk goes on in.
fn new_dirs(dir: &Arc<Inode>, sources: &[Source<'_>], plan: &Plan) -> Vec<Arc<Inode>> {
    let all = sources.iter().zip(&plan.new);
    let dirs = all.filter(|(source, _)| source.kind == FileKind::Directory);
    let object = |new: &super::plan::New| {
        let inode = Inode::new(&dir.subvol, new.ino, new.attr, FileKind::Directory);
        inode.dir.filter.start();
        if !new.has_xattrs {
            inode.xattrs.set_known_empty();
        }
        Arc::new(inode)
    };
    dirs.map(|(_, new)| object(new)).collect()
}

/// Reads the items of all sources but directories.
fn gather(tree: &Tree, sources: &[Source<'_>]) -> Result<Gathered> {
    let files = sources.iter().filter(|source| source.kind != FileKind::Directory);
    let mut inodes: Vec<_> = files.map(|source| source.ino).collect();
    inodes.sort_unstable();
    inodes.dedup();
    Gathered::read(tree, &inodes)
}

/// The attributes of an inode that is not in memory, if it can be cloned as it lies: the caller may
/// read it, it has one name, and nothing of it is written in place.
fn attr_of_absent(at: &Place<'_>, source: &Source<'_>, gathered: &Gathered) -> Option<InodeAttr> {
    let found = gathered.of(source.ino);
    let (_, item) = found.first().filter(|(key, _)| key.ty == KeyType::INODE_ITEM)?;
    let attr = InodeAttr::decode(view::fixed::<InodeItem>(item)?);
    let is_plain = attr.kind() == Some(source.kind)
        && attr.nlink == 1
        && attr.flags & (flags::NODATACOW | flags::PREALLOC) == 0
        && !gathered.is_cut(source.ino);
    let caller = Caller {
        ctx: at.ctx,
        checks: true,
    };
    let may_read = match source.kind {
        FileKind::Regular if at.ctx.creds.is_privileged() => true,
        FileKind::Regular => {
            let list = hash::name_hash(xattr::acl::ACCESS_NAME);
            let has_list = found
                .iter()
                .any(|(key, _)| key.ty == KeyType::XATTR_ITEM && key.offset == list);
            !has_list && caller.need_by_mode(&attr, source.kind, Access::READ).is_ok()
        }
        kind => caller.need_node(kind, attr.rdev).is_ok(),
    };
    (is_plain && may_read).then_some(attr)
}

type Hashes = HashSet<u32, BuildHasherDefault<Spread>>;

/// Plans from the first source on, until one does not fit; what is to be said of the first if it
/// does not.
fn plan_all(
    at: &Place<'_>,
    (src_tree, sources): (&Tree, &[Source<'_>]),
    numbers: &mut Vec<ObjectId>,
    room_bytes: usize,
) -> Result<(Plan, Option<Made>)> {
    let mut plan = Plan::default();
    let gathered = match gather(src_tree, sources) {
        Ok(gathered) => gathered,
        Err(error) => return Ok((plan, Some(refused(error, sources)?))),
    };
    let attrs: Vec<_> = sources
        .iter()
        .map(|source| match &source.object {
            Object::Loaded(inode) => Some(inode.attr_now()),
            Object::Absent(_) => attr_of_absent(at, source, &gathered),
        })
        .collect();
    let unfit = attrs.iter().enumerate().filter(|(_, attr)| attr.is_none());
    let unfit: Vec<_> = unfit.map(|(n, _)| n).collect();
    if !unfit.is_empty() {
        return Ok((plan, Some(Made::Load(unfit))));
    }
    let tree = Staged::new(&at.dir.tree);
    let mut hashes = Hashes::default();
    let mut left_bytes = room_bytes;
    // Known from here on, under the directory's lock.
    let first_index = dir::next_index(at.dir)?;
    for (n, (source, attr)) in sources.iter().zip(attrs.into_iter().flatten()).enumerate() {
        let name_hash = hash::name_hash(source.name);
        // Two new names of one hash share an item: the second sees it in the next batch.
        if !hashes.insert(name_hash as u32) {
            break;
        }
        let is_gone = source.kind != FileKind::Directory && attr.nlink == 0;
        let stop = if is_gone {
            Made::Gone
        } else if gathered.is_cut(source.ino) {
            Made::TooManyExtents
        } else {
            let entry = entry(at, source, &tree, name_hash);
            let added = entry.and_then(|item| {
                let entry = Entry {
                    source,
                    src_tree,
                    name_hash,
                    item,
                    attr,
                    found: gathered.of(source.ino),
                    ino: number(at, numbers, n)?,
                    index: first_index + n as u64,
                };
                plan.add(at, &entry, left_bytes)
            });
            match added {
                Ok((Planned::New, bytes)) => {
                    left_bytes -= bytes.min(left_bytes);
                    continue;
                }
                Ok((Planned::TooManyExtents, _)) => Made::TooManyExtents,
                Ok((Planned::TooLong, _)) => Made::TooLong,
                Ok((Planned::Unlocked, _)) => Made::Load(vec![n]),
                Err(error) if concerns_entry(&error) => Made::Refused(error),
                Err(error) => return Err(error),
            }
        };
        return Ok((plan, (n == 0).then_some(stop)));
    }
    Ok((plan, None))
}

/// The item that the source's name will share with others. Errors: as for making the name.
fn entry(at: &Place<'_>, source: &Source<'_>, tree: &Staged<'_>, name_hash: u64) -> Result<Option<Item>> {
    check_name(source.name)?;
    match at.dir.dir.filter.is_hash_absent(name_hash) {
        true => Ok(None),
        false => {
            let key = Key::new(at.dir.ino, KeyType::DIR_ITEM, name_hash);
            names::check_absent_from(tree, key, source.name)
        }
    }
}

/// The number of the copy of a source. Planned once more after a commit: the same.
fn number(at: &Place<'_>, numbers: &mut Vec<ObjectId>, n: usize) -> Result<ObjectId> {
    if let Some(ino) = numbers.get(n) {
        return Ok(*ino);
    }
    let ino = at.dir.subvol.take_ino()?;
    numbers.push(ino);
    Ok(ino)
}
