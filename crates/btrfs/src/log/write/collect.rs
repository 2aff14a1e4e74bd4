//! What has to be in the log so that an inode is as its fsync found it.
//!
//! Starting with the inodes that are synced, each object's pending edits are copied; names bring
//! further objects along: directories that a name needs and no commit has ([`Want::Names`]), new
//! inodes that a synced directory leads to, inodes that lost a name and live on
//! ([`crate::name_changes`]). Where the outcome of a replay is not certain, [`Stop::Commit`] says
//! why and the caller commits instead.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use btrfs_format::items::InodeItem;
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId, view};
use cowshed_runtime::lock::Mutex;
use zerocopy::IntoBytes;

use super::blocks::SubvolLog;
use super::{Log, LogStats, Scope};
use crate::dir::names::{Target, find, index_key};
use crate::error::{Error, StoreError};
use crate::files::Files;
use crate::name_changes::LeftNames;
use crate::name_changes::Renamed;
use crate::staged::half_leaf_bytes;
use crate::xattr;
use btrfs_store::overlay::Edit;
use btrfs_store::tree::{Change, Edits, Item, Tree};

/// Why nothing is logged.
#[derive(Debug)]
pub(super) enum Stop {
    /// A case that is the commit's.
    Commit(&'static str),
    /// A commit costs less than a log.
    Cheaper,
    Failed(Error),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) type Step<T> = Result<T, Stop>;

/// How much of an object is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Want {
    /// That it exists, with its names and attributes; of files all that is pending.
    Names,
    /// Of a directory also its entries.
    All,
}

/// Mask and value of a directory's mode.
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
/// Objects per directory entry and chain of names that one sync looks at: more is a commit.
const OBJECTS_MAX: usize = 1 << 22;

/// Replaying a directory's new place is left to the commit.
const DIR_MOVED: Stop = Stop::Commit("a directory was moved");

/// An inode that is logged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub ino: ObjectId,
    /// No commit has it.
    pub is_new: bool,
    pub is_dir: bool,
}

/// A file whose extents are logged.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    pub ino: ObjectId,
    pub is_new: bool,
    /// Its data has checksums.
    pub has_sums: bool,
    /// The log has no extents of it.
    pub is_first: bool,
    /// The first block behind the size that the log gives it.
    pub end: u64,
}

/// An extent item that changed since the last sync, or since the commit.
#[derive(Debug)]
pub(super) struct ExtentChange {
    pub key: Key,
    pub before: Option<Item>,
    pub now: Edit,
}

/// What was pending for a key before its first change.
fn before(changes: &[Change], key: &Key) -> Option<Edit> {
    let slot = changes.binary_search_by_key(key, |change| change.key).ok()?;
    changes[slot].before.clone()
}

/// One subvolume's part of a sync.
pub(super) struct Collector<'a> {
    pub files: &'a Files,
    /// Where searches are counted.
    stats: &'a Mutex<LogStats>,
    pub tree: Arc<Tree>,
    /// The tree without pending items.
    pub committed: Tree,
    pub log: &'a mut SubvolLog,
    pub left: &'a mut LeftNames,
    renamed: &'a mut Renamed,
    pub running: Generation,
    /// In the order in which they were found; the last one of a key wins.
    pub edits: Edits,

    /// What the log has in an older state is logged: Linux has done it when that changed, one thing
    /// after the other.
    pub(super) is_catching_up: bool,
    work: Vec<(ObjectId, Want)>,
    seen: HashMap<ObjectId, Want>,
}

pub(super) fn inode_key(ino: ObjectId) -> Key {
    Key::new(ino, KeyType::INODE_ITEM, 0)
}

/// An inode item of ours.
pub(super) fn inode_item(bytes: &[u8]) -> Option<&InodeItem> {
    view::fixed(bytes)
}

pub(super) fn is_dir(inode: &InodeItem) -> bool {
    inode.mode.get() & S_IFMT == S_IFDIR
}

/// Directory, index and name of each reference in an item: none in one of another type.
fn indexed_names_in<'i>(key: &Key, item: &'i [u8]) -> impl Iterator<Item = (ObjectId, u64, &'i [u8])> {
    let dir = ObjectId(key.offset);
    let (refs, extrefs) = match key.ty {
        KeyType::INODE_REF => (item, &[][..]),
        KeyType::INODE_EXTREF => (&[][..], item),
        _ => (&[][..], &[][..]),
    };
    let refs = view::inode_refs(refs).map(move |(index, name)| (dir, index, name));
    let extrefs = view::inode_extrefs(extrefs);
    refs.chain(extrefs.map(|(head, name)| (ObjectId(head.parent_objectid.get()), head.index.get(), name)))
}

/// Directory and name of each reference in an item.
fn names_in<'i>(key: &Key, item: &'i [u8]) -> impl Iterator<Item = (ObjectId, &'i [u8])> {
    indexed_names_in(key, item).map(|(dir, _, name)| (dir, name))
}

/// `sequence` and `transid` count changes, those of times, too.
fn is_same_but_for_times(one: &InodeItem, other: &InodeItem) -> bool {
    let mut same = *one;
    same.transid = other.transid;
    same.sequence = other.sequence;
    same.atime = other.atime;
    same.ctime = other.ctime;
    same.mtime = other.mtime;
    same.as_bytes() == other.as_bytes()
}

impl<'a> Collector<'a> {
    pub(crate) fn new(
        (files, log): (&'a Files, &'a Log),
        tree: &Arc<Tree>,
        subvol: &'a mut SubvolLog,
        (left, renamed): (&'a mut LeftNames, &'a mut Renamed),
    ) -> Self {
        Self {
            files,
            stats: &log.stats,
            committed: tree.committed_view(),
            tree: tree.clone(),
            log: subvol,
            left,
            renamed,
            running: files.store().txn().running(),
            edits: Vec::new(),
            is_catching_up: false,
            work: Vec::new(),
            seen: HashMap::new(),
        }
    }

    /// Collects all that the inodes need.
    pub(crate) fn run(&mut self, inodes: &BTreeMap<ObjectId, Scope>) -> Step<()> {
        let synced: Vec<_> = inodes.keys().copied().collect();
        self.drop_dead(&synced)?;
        self.catch_up()?;
        let id = self.tree.id();
        for (ino, scope) in inodes {
            let (is_dir, is_renamed) = (self.is_pending_dir(*ino), self.renamed.contains(id, *ino));
            if *scope == Scope::All || is_renamed || !self.only_times_changed(*ino)? {
                self.want(*ino, Want::All)?;
            } else {
                // Linux logs it.
                self.renamed.note_logged(id, *ino);
                if !is_dir {
                    continue;
                }
            }
            match is_dir {
                true => self.what_the_log_has(|_, _| true)?,
                false => self.directories_of_renamed(*ino)?,
            }
            self.beside_names(*ino)?;
        }
        self.finish()
    }

    fn finish(&mut self) -> Step<()> {
        while let Some((ino, want)) = self.work.pop() {
            self.object(ino, want)?;
        }
        Ok(())
    }

    /// What the names of a synced inode ask for though they did not change: new directories above
    /// moved ones, and for a new inode the one that had its name in the commit.
    fn beside_names(&mut self, ino: ObjectId) -> Step<()> {
        let has_moved_dirs = self.renamed.has_moved_dirs(self.tree.id());
        let is_new = self.tree.has_tracked_changes() && self.is_new(ino);
        if !has_moved_dirs && !is_new {
            return Ok(());
        }
        let tree = self.tree.clone();
        let from = Key::new(ino, KeyType::INODE_REF, 0);
        let mut names = tree.cursor(from, Key::new(ino, KeyType::INODE_EXTREF, u64::MAX));
        while let Some((key, item)) = names.next()? {
            for (dir, name) in names_in(&key, &item) {
                if has_moved_dirs {
                    self.new_directories_above(dir)?;
                }
                if is_new {
                    self.committed_holder(ino, dir, name)?;
                }
            }
        }
        Ok(())
    }

    /// What the log has in an older state, because of names that came and went.
    fn catch_up(&mut self) -> Step<()> {
        let id = self.tree.id();
        self.is_catching_up = true;
        for dir in self.renamed.take_dirs_of_stale(id) {
            if self.is_alive(dir) && self.is_new(dir) {
                self.want(dir, Want::Names)?;
            }
        }
        for (ino, left) in self.renamed.take_stale(id) {
            if self.is_alive(ino) {
                self.want(ino, Want::Names)?;
                self.directories_of_renamed(ino)?;
                continue;
            }
            // Gone, with the name that it took along out of a logged directory.
            for dir in left {
                if self.is_alive(dir) {
                    self.want(dir, Want::All)?;
                }
            }
        }
        self.finish()?;
        self.is_catching_up = false;
        Ok(())
    }

    /// The inode has a name, as far as what is pending says.
    fn is_alive(&self, ino: ObjectId) -> bool {
        match self.tree.pending_edit(&inode_key(ino)) {
            Some(Some(item)) => inode_item(&item).is_some_and(|inode| inode.nlink.get() > 0),
            Some(None) => false,
            None => true,
        }
    }

    /// No commit has the inode.
    fn is_new(&self, ino: ObjectId) -> bool {
        let item = self.tree.pending_edit(&inode_key(ino)).flatten();
        let generation = item.and_then(|item| inode_item(&item).map(|inode| inode.generation));
        generation.is_some_and(|generation| Generation::from(generation) == self.running)
    }

    fn is_pending_dir(&self, ino: ObjectId) -> bool {
        let item = self.tree.pending_edit(&inode_key(ino)).flatten();
        item.is_some_and(|item| inode_item(&item).is_some_and(is_dir))
    }

    /// A synced directory brings the files and the new directories up to date that the log has
    /// already: Linux looks at all that its new names lead to, and where a file brings its
    /// directories along, at all whose names changed.
    fn what_the_log_has(&mut self, which: impl Fn(&Self, ObjectId) -> bool) -> Step<()> {
        for ino in self.tree.tracked_and_changed() {
            let is_inode = (ObjectId::FIRST_FREE.0..=ObjectId::LAST_FREE.0).contains(&ino.0);
            if is_inode && which(self, ino) && self.is_alive(ino) && (!self.is_pending_dir(ino) || self.is_new(ino)) {
                self.want(ino, Want::Names)?;
            }
        }
        Ok(())
    }

    /// A file of the commit that got or lost a name since brings the directories along that it is
    /// in now, and those that it was in, with all that changed in them. A new file, whatever it was
    /// renamed to, brings new ones alone.
    pub(super) fn directories_of_renamed(&mut self, ino: ObjectId) -> Step<()> {
        if !self.renamed.contains(self.tree.id(), ino) {
            return Ok(());
        }
        let is_new = self.is_new(ino);
        for tree in [self.tree.clone(), Arc::new(self.tree.committed_view())] {
            let from = Key::new(ino, KeyType::INODE_REF, 0);
            let mut names = tree.cursor(from, Key::new(ino, KeyType::INODE_EXTREF, u64::MAX));
            while let Some((key, item)) = names.next()? {
                for (dir, _) in names_in(&key, &item) {
                    match is_new {
                        true if self.is_new(dir) => self.want(dir, Want::Names)?,
                        false if self.is_alive(dir) => self.want(dir, Want::All)?,
                        _ => {}
                    }
                }
            }
        }
        if is_new {
            return Ok(());
        }
        self.what_the_log_has(|this, ino| this.renamed.contains(this.tree.id(), ino) || this.is_pending_dir(ino))
    }

    /// Does an inode differ in nothing but times from what the log has of it, or else the last
    /// commit?
    fn only_times_changed(&self, ino: ObjectId) -> Step<bool> {
        let key = inode_key(ino);
        let Some(Some(now)) = self.tree.pending_edit(&key) else {
            return Ok(false);
        };
        if self.tree.has_other_changes(&key) {
            return Ok(false);
        }
        let durable = match &self.log.tree {
            Some(log) if self.tree.is_tracked(ino) => log.get(&key)?,
            _ => self.committed.get(&key)?,
        };
        let (now, durable) = (inode_item(&now), durable.as_deref().and_then(inode_item));
        Ok(now
            .zip(durable)
            .is_some_and(|(now, durable)| is_same_but_for_times(now, durable)))
    }

    pub(crate) fn tree_id(&self) -> TreeId {
        self.tree.id()
    }

    /// Adds an object to the work.
    pub(crate) fn want(&mut self, ino: ObjectId, want: Want) -> Step<()> {
        if self.seen.get(&ino).is_some_and(|seen| *seen >= want) {
            return Ok(());
        }
        if self.seen.len() >= OBJECTS_MAX {
            return Err(Stop::Commit("too many objects"));
        }
        self.seen.insert(ino, want);
        self.work.push((ino, want));
        Ok(())
    }

    pub(crate) fn is_wanted_whole(&self, ino: ObjectId) -> bool {
        self.seen.get(&ino) == Some(&Want::All)
    }

    /// Inodes that the log has and that lost their last name since: replay must not bring them
    /// back.
    ///
    /// Their names go with them, and may lead to another inode now that is not synced (an atomic
    /// replace under way): then the name would lead to nothing. Only the log of the directory says
    /// whose it is; without that, commit. Nor may they come back as a commit has them.
    fn drop_dead(&mut self, synced: &[ObjectId]) -> Step<()> {
        // Tracked from the first log of a transaction on: what died before is in no log.
        let Some(changes) = self.tree.track(ObjectId::ORPHAN) else {
            return Ok(());
        };
        let Some(log) = self.log.tree.clone() else {
            return Ok(());
        };
        for change in changes {
            let ino = ObjectId(change.key.offset);
            // A logged inode has its item in the log. Others are in the commit alone, like those
            // deleted before the first log.
            if log.get(&inode_key(ino))?.is_none() {
                continue;
            }
            if !self.is_alive(ino) {
                self.forget(ino, synced)?;
            }
        }
        Ok(())
    }

    /// Takes everything of an object out of the log.
    fn forget(&mut self, ino: ObjectId, synced: &[ObjectId]) -> Step<()> {
        self.committed_names_go(ino, synced)?;
        if let Some(log) = self.log.tree.clone() {
            let (from, to) = (Key::new(ino, KeyType(0), 0), Key::new(ino, KeyType(u8::MAX), u64::MAX));
            let mut cursor = log.cursor(from, to);
            while let Some((key, item)) = cursor.next()? {
                self.names_are_free(&key, &item, synced)?;
                self.drop_entries(&log, &key, &item, &HashSet::new())?;
                self.edits.push((key, None));
            }
        }
        self.tree.untrack(ino);
        Ok(())
    }

    /// Names that the log has of an inode, and that are not among those of `now`, go from the logs
    /// of their directories, which may not be synced: an entry alone would bring the name back.
    fn drop_entries(&mut self, log: &Tree, key: &Key, item: &[u8], now: &HashSet<(ObjectId, &[u8])>) -> Step<()> {
        for (dir, index, name) in indexed_names_in(key, item) {
            let entry = index_key(dir, index);
            let is_gone = !now.contains(&(dir, name)) && !matches!(self.tree.pending_edit(&entry), Some(Some(_)));
            if is_gone && log.get(&entry)?.is_some() {
                self.edits.push((entry, None));
            }
        }
        Ok(())
    }

    /// What a commit has of a dead inode stays after a crash unless its names are seen to go.
    /// Without its log that would be an older state than the one that was synced.
    fn committed_names_go(&self, ino: ObjectId, synced: &[ObjectId]) -> Step<()> {
        const OLDER: Stop = Stop::Commit("a logged file that a commit has lost its last name");
        let from = Key::new(ino, KeyType::INODE_REF, 0);
        let mut cursor = self
            .committed
            .cursor(from, Key::new(ino, KeyType::INODE_EXTREF, u64::MAX));
        while let Some((key, _)) = cursor.next()? {
            if key.ty != KeyType::INODE_REF || !synced.contains(&ObjectId(key.offset)) {
                return Err(OLDER);
            }
        }
        Ok(())
    }

    /// A name of a dead inode in the log can go with it where its directory is synced, too, or
    /// where it is free now and was free in the last commit.
    fn names_are_free(&self, key: &Key, item: &[u8], synced: &[ObjectId]) -> Step<()> {
        const TAKEN: Stop = Stop::Commit("a name of a logged file that is gone is another's");
        let is_free = |dir: ObjectId, name: &[u8]| -> Step<bool> {
            Ok(find(&self.tree, dir, name)?.is_none() && find(&self.committed, dir, name)?.is_none())
        };
        match key.ty {
            KeyType::INODE_REF => {
                let dir = ObjectId(key.offset);
                for (_, name) in view::inode_refs(item) {
                    if !synced.contains(&dir) && !is_free(dir, name)? {
                        return Err(TAKEN);
                    }
                }
            }
            KeyType::INODE_EXTREF => {
                for (head, name) in view::inode_extrefs(item) {
                    if !is_free(ObjectId(head.parent_objectid.get()), name)? {
                        return Err(TAKEN);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn object(&mut self, ino: ObjectId, want: Want) -> Step<()> {
        // Whatever changes about an inode changes its item: without a pending one all of it is
        // committed.
        let item = match self.tree.pending_edit(&inode_key(ino)) {
            Some(Some(item)) => item,
            Some(None) => return self.dead(ino),
            None => return Ok(()),
        };
        let inode = *inode_item(&item).ok_or(Stop::Commit("an inode item that is none"))?;
        let is_new = Generation::from(inode.generation) == self.running;
        if inode.nlink.get() == 0 {
            // Nothing of it is in the log. The commit that has its names must not bring it back:
            // the caller that syncs a file without a name learns that it is gone.
            if !is_new {
                return Err(Stop::Commit("a file whose last name went"));
            }
            // A file made without a name counts as logged: it is logged again once it gets one.
            self.renamed.note_logged(self.tree.id(), ino);
            return match self.renamed.dir_of_unnamed(self.tree.id(), ino) {
                Some(dir) if self.is_alive(dir) && self.is_new(dir) => self.want(dir, Want::Names),
                _ => Ok(()),
            };
        }
        let of = Subject {
            ino,
            is_new,
            is_dir: is_dir(&inode),
        };
        if of.is_dir {
            let is_whole = want == Want::All || self.tree.is_tracked(ino);
            return match is_whole {
                true => self.directory(of),
                false if is_new => {
                    self.renamed.note_logged(self.tree.id(), ino);
                    self.attributes(of, None).map(drop)
                }
                false => Err(DIR_MOVED),
            };
        }
        let changed = self.tree.track(ino);
        if changed.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let extents = self.attributes(of, changed.as_deref())?;
        let of = File {
            ino,
            is_new,
            has_sums: inode.flags.get() & crate::object::flags::NODATASUM == 0,
            is_first: changed.is_none(),
            end: inode.size.get().next_multiple_of(crate::block::BLOCK_BYTES.into()),
        };
        self.extents(of, extents)
    }

    /// An inode is gone, and a name that it had is another's, or is seen to go. Where the commit
    /// has others of it, they must not be what it has after a crash, when it never had them alone.
    fn dead(&mut self, ino: ObjectId) -> Step<()> {
        let from = Key::new(ino, KeyType::INODE_REF, 0);
        let to = Key::new(ino, KeyType::INODE_EXTREF, u64::MAX);
        let mut cursor = self.committed.cursor(from, to);
        let (mut names, mut dirs) = (0, Vec::new());
        while let Some((key, item)) = cursor.next()? {
            for (dir, _) in names_in(&key, &item) {
                names += 1;
                dirs.push(dir);
            }
        }
        if names < 2 {
            return Ok(());
        }
        dirs.dedup();
        for dir in dirs {
            if !self.is_wanted_whole(dir) && !self.tree.is_tracked(dir) {
                return Err(Stop::Commit("a file that had several names is gone"));
            }
            // The directory's own log says that the names are gone.
            self.want(dir, Want::All)?;
        }
        Ok(())
    }

    /// Logs the item, the names and the extended attributes of an inode: all that is pending, or
    /// what is in `changed`. Returns the edits of extent items.
    pub(crate) fn attributes(&mut self, of: Subject, changed: Option<&[Change]>) -> Step<Vec<ExtentChange>> {
        let Subject { ino, is_new, is_dir } = of;
        let mut found = Vec::new();
        match changed {
            None => {
                let from = inode_key(ino);
                self.tree.pending_range(
                    from,
                    Key::new(ino, KeyType(KeyType::DIR_ITEM.0 - 1), u64::MAX),
                    &mut found,
                );
                let from = Key::new(ino, KeyType(KeyType::DIR_INDEX.0 + 1), 0);
                self.tree
                    .pending_range(from, Key::new(ino, KeyType(u8::MAX), u64::MAX), &mut found);
                if !is_new {
                    self.committed_xattrs(ino)?;
                }
            }
            Some(changes) => {
                let is_entry = |key: &Key| matches!(key.ty, KeyType::DIR_ITEM | KeyType::DIR_INDEX);
                for key in changes.iter().map(|c| c.key).filter(|key| !is_entry(key)) {
                    found.extend(self.tree.pending_edit(&key).map(|edit| (key, edit)));
                }
            }
        }
        let mut extents = Vec::new();
        for (key, edit) in found {
            match key.ty {
                KeyType::INODE_ITEM => {}
                KeyType::XATTR_ITEM => self.may_grow(&key, edit.as_deref())?,
                KeyType::INODE_REF | KeyType::INODE_EXTREF if is_dir && !is_new => return Err(DIR_MOVED),
                KeyType::INODE_REF | KeyType::INODE_EXTREF => self.names(&key, edit.as_deref(), is_new)?,
                KeyType::EXTENT_DATA => {
                    let before = changed.and_then(|all| before(all, &key));
                    let before = match before {
                        Some(edit) => edit.map(Item::Pending),
                        None if is_new => None,
                        None => self.committed.get(&key)?,
                    };
                    let now = edit;
                    extents.push(ExtentChange { key, before, now });
                    continue;
                }
                _ => return Err(Stop::Commit("an item that logs do not have")),
            }
            self.edits.push((key, edit));
        }
        Ok(extents)
    }

    /// Replay removes the attributes that the log does not have, so that it must have those that no
    /// one changed, too.
    fn committed_xattrs(&mut self, ino: ObjectId) -> Step<()> {
        let known = self.files.objects().inodes.get(self.tree_id(), ino);
        if let Some(inode) = known {
            self.note_xattr_searches(u64::from(!inode.xattrs.is_known()));
            if !xattr::has_any(&inode)? {
                return Ok(());
            }
        }
        self.note_xattr_searches(1);
        let mut cursor = self.tree.cursor_type(Key::new(ino, KeyType::XATTR_ITEM, 0));
        while let Some((key, item)) = cursor.next()? {
            self.edits.push((key, Some(item[..].into())));
        }
        Ok(())
    }

    fn note_xattr_searches(&self, count: u64) {
        self.stats.lock().xattr_searches += count;
    }

    /// Replay puts such an item into the subvolume whole, where a shorter one may be already. Linux
    /// makes room for the new item beside the old one, and where one leaf cannot have both, it
    /// makes none and grows the old one all the same: a crash in a leaf that has other items. Two
    /// items of half a leaf always fit.
    fn may_grow(&self, key: &Key, item: Option<&[u8]>) -> Step<()> {
        let bytes = item.map_or(0, <[u8]>::len);
        if bytes <= half_leaf_bytes(self.files.store().nodes().nodesize_bytes()) {
            return Ok(());
        }
        // Long items of names are too rare to look what the commit has.
        let is_names = key.ty != KeyType::XATTR_ITEM;
        match is_names || self.committed.get(key)?.is_some_and(|old| old.len() < bytes) {
            true => Err(Stop::Commit("an item that may be too long to grow")),
            false => Ok(()),
        }
    }

    /// An item with names of an inode changed: what replaying it needs.
    fn names(&mut self, key: &Key, refs: Option<&[u8]>, is_new: bool) -> Step<()> {
        let ino = key.objectid;
        self.successors(key, refs.unwrap_or_default(), is_new)?;
        let Some(refs) = refs else {
            return self.lost_names(key, is_new);
        };
        self.may_grow(key, Some(refs))?;
        for (dir, name) in names_in(key, refs) {
            self.name(ino, dir, name)?;
            if key.ty == KeyType::INODE_EXTREF {
                self.plain_names(ino, dir)?;
            }
        }
        Ok(())
    }

    /// Linux, where it replays an extended name, takes from the inode what its plain names in the
    /// same directory are in the subvolume and not in the log: they come along, though they did not
    /// change.
    fn plain_names(&mut self, ino: ObjectId, dir: ObjectId) -> Step<()> {
        let key = Key::new(ino, KeyType::INODE_REF, dir.get());
        if self.tree.pending_edit(&key).is_some() {
            // Logged for its own sake, now or by an earlier sync.
            return Ok(());
        }
        if let Some(names) = self.committed.get(&key)? {
            self.may_grow(&key, Some(&names))?;
            self.edits.push((key, Some(names[..].into())));
        }
        Ok(())
    }

    fn name(&mut self, ino: ObjectId, dir: ObjectId, name: &[u8]) -> Step<()> {
        self.displaced(ino, dir, name)?;
        self.committed_holder(ino, dir, name)?;
        if let Some(Some(item)) = self.tree.pending_edit(&inode_key(dir))
            && inode_item(&item).is_some_and(|i| Generation::from(i.generation) == self.running)
        {
            self.want(dir, Want::Names)?;
        } else if self.renamed.has_moved_dirs(self.tree.id()) {
            self.new_directories_above(dir)?;
        }
        Ok(())
    }

    /// A directory of the commit may have been moved below new ones: they come along, as the next
    /// one above a new file does.
    fn new_directories_above(&mut self, dir: ObjectId) -> Step<()> {
        let mut at = dir;
        let mut passed = HashSet::new();
        while passed.insert(at) && !self.is_new(at) {
            let last = Key::new(at, KeyType::INODE_REF, u64::MAX);
            match self.tree.floor_same_type(&last)? {
                Some((key, _)) if key.offset != at.get() => at = ObjectId(key.offset),
                _ => return Ok(()),
            }
        }
        self.want(at, Want::Names)
    }

    /// The inode that has the name in the commit is brought up to date where the log has it
    /// already.
    fn committed_holder(&mut self, ino: ObjectId, dir: ObjectId, name: &[u8]) -> Step<()> {
        if !self.tree.has_tracked_changes() {
            return Ok(());
        }
        match find(&self.committed, dir, name)?.map(|found| found.target) {
            Some(Target::Inode(other)) if other != ino && self.tree.is_tracked(other) => self.want(other, Want::Names),
            _ => Ok(()),
        }
    }

    /// Inodes whose name leads to another inode now are logged with the names they have.
    pub(crate) fn displaced(&mut self, ino: ObjectId, dir: ObjectId, name: &[u8]) -> Step<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        for other in self.left.take(self.tree.id(), dir, name) {
            if other != ino {
                self.want(other, Want::Names)?;
            }
        }
        Ok(())
    }

    /// Names that an item had, in the commit or in the log, and has not any more: replay takes them
    /// from the inode. The inode that has one of them now is logged, too: a name that was there all
    /// the time must not be missing because its new holder, which took it over in a rename, was not
    /// synced.
    fn successors(&mut self, key: &Key, now: &[u8], is_new: bool) -> Step<()> {
        let committed = if is_new { None } else { self.committed.get(key)? };
        let logged = match &self.log.tree {
            Some(log) => log.get(key)?,
            None => None,
        };
        let now: HashSet<_> = names_in(key, now).collect();
        if let (Some(log), Some(names)) = (self.log.tree.clone(), &logged) {
            self.drop_entries(&log, key, names, &now)?;
        }
        for before in [committed, logged].into_iter().flatten() {
            for (dir, name) in names_in(key, &before).filter(|name| !now.contains(name)) {
                match find(&self.tree, dir, name)?.map(|found| found.target) {
                    Some(Target::Inode(other)) if other != key.objectid => self.want(other, Want::Names)?,
                    Some(Target::Subvol(_)) => return Err(Stop::Commit("a subvolume has a name that was a file's")),
                    Some(Target::Inode(_)) => {}
                    None => self.freed(key.objectid, dir, name)?,
                }
            }
        }
        Ok(())
    }

    /// A name that an inode lost is free. If the commit has it for another inode, that one must not
    /// get it back: only the log of the directory says so.
    fn freed(&mut self, ino: ObjectId, dir: ObjectId, name: &[u8]) -> Step<()> {
        match find(&self.committed, dir, name)?.map(|found| found.target) {
            None => Ok(()),
            Some(Target::Inode(other)) if other == ino => Ok(()),
            Some(_) if self.is_wanted_whole(dir) || self.tree.is_tracked(dir) => self.want(dir, Want::All),
            Some(_) => Err(Stop::Commit(
                "a name that was taken over and is free has another holder in the commit",
            )),
        }
    }

    /// All names of an inode in one directory are gone.
    fn lost_names(&mut self, key: &Key, is_new: bool) -> Step<()> {
        let is_committed = !is_new && self.committed.get(key)?.is_some();
        if key.ty != KeyType::INODE_REF {
            return match is_committed {
                true => Err(Stop::Commit("an extended name went")),
                false => Ok(()),
            };
        }
        let dir = ObjectId(key.offset);
        if self.is_wanted_whole(dir) || self.tree.is_tracked(dir) {
            // The directory's own log says that the names are gone.
            return self.want(dir, Want::All);
        }
        match is_committed {
            // Replay has no way to know: the item that would say it is not there.
            true => Err(Stop::Commit("an inode left a directory that is not logged")),
            false => Ok(()),
        }
    }
}
