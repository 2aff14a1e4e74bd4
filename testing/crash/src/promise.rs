//! What a program may rely on after a crash, whatever the file system's means: commits, or a log.
//!
//! A run is a list of operations with the state of the files after each: S0 is what was there
//! before, all durable. An image shows that the operations up to `done` had returned, and the next
//! one may have been under way; `last` is that one. Where several are under way at a time, the next
//! state is that after all of them, and what each changes of an inode, a name or a block is there
//! or not. The *floor* of an inode is the last state in which the volume was synced, or the inode
//! by an fsync, that had returned successfully by `done`. (Of an fsync beside which others work it
//! is the state when it was called.) In the files that are found:
//!
//! * **Names.** What (directory, name) leads to, or that it leads to nothing, is what it was in
//!   some state from the directory's floor to `last`. The names of one inode, all together, are
//!   those of some state from its floor to `last`: a rename is done or not, and what fsync saw
//!   stays until it is changed.
//! * **Attributes.** Kind, mode and owner, and all extended attributes, are those of one state from
//!   the inode's floor on.
//! * **Contents.** The size lies between the smallest and the largest from the floor on (nothing,
//!   where the inode was made later); each block of 4 KiB is what it was in some state from the
//!   floor on. A file that did not change since its floor is exactly what it was, times included;
//!   but since an fdatasync the times may be older ones.
//! * A file without a name that was synced and then got one may have lost it; where it has it, its
//!   content has that floor.
//! * **Atomic operations**: the end of an atomic group, an exchange of ranges. All files that one
//!   has changed are as in states before it, or all as in states from it on. A group that has
//!   returned is durable, in all of its files.
//! * An inode that is found was there in some state, and has as many names as its link count says.
//!
//! Directories are known by their inodes, so that a directory that moved takes along what was
//! promised of its entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use cowshed_model::tree::{Node, Tree};
use cowshed_vfs::FileKind;

const BLOCK_BYTES: usize = 4096;

/// A directory's inode number and a name in it.
type Place = (u64, String);
type Names = BTreeMap<Place, u64>;
/// What an inode was: from which state on it was so; `None` while it was not there.
type Versions = Vec<(usize, Option<Arc<Node>>)>;

/// What an operation that returned has made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    Volume,
    /// One inode, by number.
    Inode(u64),
    /// The same, but a change of times alone may be lost.
    Data(u64),
    /// What the inode holds, where it is found.
    Content(u64),
}

/// Durable as in one state, as was known when another one was reached.
#[derive(Clone, Copy, Debug)]
struct Kept {
    floor: usize,
    known: usize,
    what: Promise,
}

/// A run, state by state.
#[derive(Clone, Debug, Default)]
pub struct History {
    names: Vec<Names>,
    /// By inode.
    nodes: BTreeMap<u64, Versions>,
    promises: Vec<Kept>,
    /// States behind which operations were under way already: the next one may be found, too.
    between: BTreeSet<usize>,
    /// States that an atomic operation led to, and the inodes whose contents it changed.
    atomic: Vec<(usize, Vec<u64>)>,
    /// The atomic groups that are open in the newest state: of each file the inode, and whether the
    /// commit is about it.
    groups: BTreeMap<u8, Vec<(u64, bool)>>,
    /// How many are open, from a state on.
    open: BTreeMap<usize, usize>,
}

/// The names of a tree, and its inodes.
fn split(tree: &Tree) -> (Names, BTreeMap<u64, &Node>) {
    let mut names = Names::new();
    let mut nodes = BTreeMap::new();
    for (path, node) in tree {
        nodes.insert(node.ino, node);
        if path.is_empty() {
            continue;
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = tree.get(parent).map_or(0, |dir| dir.ino);
        names.insert((parent, name.to_owned()), node.ino);
    }
    (names, nodes)
}

impl History {
    /// A run that begins with this tree.
    pub fn new(tree: &Tree) -> History {
        let mut history = History::default();
        history.note(tree, None);
        history
    }

    /// The state after the next operation, and what that has promised. Gives the state's index.
    pub fn note(&mut self, tree: &Tree, promise: Option<Promise>) -> usize {
        let index = self.names.len();
        let (names, nodes) = split(tree);
        self.names.push(names);
        for (ino, node) in &nodes {
            let versions = self.nodes.entry(*ino).or_default();
            if versions.last().and_then(|(_, last)| last.as_deref()) != Some(*node) {
                versions.push((index, Some(Arc::new((*node).clone()))));
            }
        }
        for (ino, versions) in &mut self.nodes {
            if !nodes.contains_key(ino) && versions.last().is_some_and(|(_, last)| last.is_some()) {
                versions.push((index, None));
            }
        }
        self.promise(index, promise);
        index
    }

    /// The operation that led to this state has promised something.
    pub fn promise(&mut self, index: usize, promise: Option<Promise>) {
        self.promises.extend(promise.map(|what| Kept {
            floor: index,
            known: index,
            what,
        }));
    }

    /// Something was promised of an earlier state by what returned just now. Gives the index of a
    /// new state, which is as the last one: from it on the promise is known. `is_between`: the
    /// operations that lead to the next state are under way.
    pub fn promise_late(&mut self, floor: usize, what: Promise, is_between: bool) -> usize {
        let known = self.names.len();
        self.names.extend(self.names.last().cloned());
        self.promises.push(Kept { floor, known, what });
        if is_between {
            self.between.insert(known);
        }
        known
    }

    /// An inode in the newest state.
    pub fn newest_node(&self, ino: u64) -> Option<&Node> {
        self.nodes.get(&ino)?.last()?.1.as_deref()
    }

    /// In this state the inode is what it was in the state before.
    pub fn is_unchanged(&self, ino: u64, index: usize) -> bool {
        self.versions(ino, index.saturating_sub(1), index).len() == 1
    }

    /// The newest state that may be found when the operations up to `done` had returned.
    fn last(&self, done: usize) -> usize {
        let last = (done + 1..self.names.len()).find(|index| !self.between.contains(index));
        last.unwrap_or(self.newest())
    }

    /// The run until it had reached a state.
    pub fn until(&self, index: usize) -> History {
        let mut part = self.clone();
        part.names.truncate(index + 1);
        for versions in part.nodes.values_mut() {
            versions.retain(|(at, _)| *at <= index);
        }
        part.nodes.retain(|_, versions| !versions.is_empty());
        part.promises.retain(|kept| kept.known <= index);
        part.between.retain(|at| *at <= index);
        part.atomic.retain(|(at, _)| *at <= index);
        part.open.retain(|at, _| *at <= index);
        part
    }

    /// The index of the newest state.
    pub fn newest(&self) -> usize {
        self.names.len() - 1
    }

    /// The operation that led to this state has changed the contents of these inodes, all or none
    /// of them. One that exchanged nothing may leave what it found in memory.
    pub fn atomic(&mut self, index: usize, inos: Vec<u64>) {
        let content = |ino: &u64, at: usize| {
            let versions = self.versions(*ino, at, at);
            versions.first().copied().flatten().map(|node| node.content.clone())
        };
        if inos.iter().any(|ino| content(ino, index - 1) != content(ino, index)) {
            self.atomic.push((index, inos));
        }
    }

    /// A group has begun, of these inodes. The commit of a handle's group is at least an fsync.
    pub fn begin_group(&mut self, index: usize, group: u8, inos: Vec<u64>, by_handle: bool) {
        let files = inos.into_iter().map(|ino| (ino, by_handle)).collect();
        self.groups.insert(group, files);
        self.open.insert(index, self.groups.len());
    }

    /// Something is staged in one of its files.
    pub fn stage_in_group(&mut self, group: u8, file: usize) {
        let file = self.groups.get_mut(&group).and_then(|files| files.get_mut(file));
        if let Some((_, is_staged)) = file {
            *is_staged = true;
        }
    }

    /// A group has ended, as the operation that led to this state. Gives the inodes that it wrote
    /// to and that have names.
    pub fn end_group(&mut self, index: usize, group: u8) -> Vec<u64> {
        let files = self.groups.remove(&group).unwrap_or_default();
        self.open.insert(index, self.groups.len());
        let is_there = |ino: &u64| self.newest_node(*ino).is_some();
        let mut inos: Vec<u64> = files
            .into_iter()
            .filter_map(|(ino, is_staged)| is_staged.then_some(ino))
            .filter(is_there)
            .collect();
        inos.sort_unstable();
        inos.dedup();
        inos
    }

    /// How many groups were open when the operations up to `done` had returned.
    pub fn groups_open(&self, done: usize) -> usize {
        self.open.range(..=done).next_back().map_or(0, |(_, open)| *open)
    }

    /// The inode behind a path in the newest state.
    pub fn newest_ino(&self, root: u64, path: &str) -> Option<u64> {
        let names = self.names.last()?;
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(root, |dir, name| names.get(&(dir, name.to_owned())).copied())
    }

    /// Judges what was found after a crash when the operations up to `done` had returned.
    pub fn check(&self, found: &Tree, done: usize) -> Result<()> {
        let judge = Judge::new(self, found, done);
        judge.places()?;
        judge.names_of_inodes()?;
        judge.atomic(found)?;
        for (path, node) in found {
            if let Err(error) = judge.node(node) {
                bail!("{path} (inode {}), after operation {done}: {error:#}", node.ino);
            }
        }
        Ok(())
    }

    /// As [`History::check`], of a run of Linux' btrfs, which promises less of what was not synced.
    /// A rename may have happened by halves: both names lead to the file, or neither does the new
    /// one, nor to what it replaced there. In the midst of a file there may be zeros where data was
    /// written. What was synced is there: content, attributes, and the names that did not change
    /// since.
    pub fn check_linux(&self, found: &Tree, done: usize) -> Result<()> {
        let judge = Judge {
            is_linux: true,
            ..Judge::new(self, found, done)
        };
        judge.places()?;
        judge.lasting_names()?;
        for (path, node) in found {
            if let Err(error) = judge.node(node) {
                bail!("{path} (inode {}), after operation {done}: {error:#}", node.ino);
            }
        }
        Ok(())
    }

    /// What an inode was from one state to another; `None` where it was not there.
    fn versions(&self, ino: u64, from: usize, to: usize) -> Vec<Option<&Node>> {
        let all = self.nodes.get(&ino).map_or(&[][..], Vec::as_slice);
        let first = all.partition_point(|(index, _)| *index <= from);
        let mut versions = vec![first.checked_sub(1).and_then(|at| all[at].1.as_deref())];
        let later = all[first..].iter().take_while(|(index, _)| *index <= to);
        versions.extend(later.map(|(_, node)| node.as_deref()));
        versions
    }
}

/// One image and the history, seen from it.
struct Judge<'h> {
    history: &'h History,
    found: Names,
    /// The last sync of the volume.
    floor: usize,
    /// By inode, where that is later: what was synced with times and all, without times, and of
    /// contents alone.
    full: BTreeMap<u64, usize>,
    data: BTreeMap<u64, usize>,
    content: BTreeMap<u64, usize>,
    last: usize,
    /// See [`History::check_linux`].
    is_linux: bool,
}

impl<'h> Judge<'h> {
    fn new(history: &'h History, found: &Tree, done: usize) -> Judge<'h> {
        let mut judge = Judge {
            history,
            found: split(found).0,
            floor: 0,
            full: BTreeMap::new(),
            data: BTreeMap::new(),
            content: BTreeMap::new(),
            last: history.last(done),
            is_linux: false,
        };
        for kept in history.promises.iter().filter(|kept| kept.known <= done) {
            let floor = match kept.what {
                Promise::Volume => &mut judge.floor,
                Promise::Inode(ino) => judge.full.entry(ino).or_default(),
                Promise::Data(ino) => judge.data.entry(ino).or_default(),
                Promise::Content(ino) => judge.content.entry(ino).or_default(),
            };
            *floor = kept.floor.max(*floor);
        }
        judge
    }

    /// Where times count, too.
    fn full_floor(&self, ino: u64) -> usize {
        self.full.get(&ino).copied().unwrap_or(0).max(self.floor)
    }

    fn floor(&self, ino: u64) -> usize {
        self.data.get(&ino).copied().unwrap_or(0).max(self.full_floor(ino))
    }

    fn content_floor(&self, ino: u64) -> usize {
        self.content.get(&ino).copied().unwrap_or(0).max(self.floor(ino))
    }

    fn states(&self, from: usize) -> &'h [Names] {
        &self.history.names[from..=self.last]
    }

    fn places(&self) -> Result<()> {
        let mut places: BTreeSet<&Place> = self.found.keys().collect();
        places.extend(self.states(self.floor).iter().flat_map(BTreeMap::keys));
        for place in places {
            let from = self.floor(place.0);
            let found = self.found.get(place);
            let states = self.states(from);
            let is_replaced = || states.iter().any(|names| names.get(place) != states[0].get(place));
            let is_missing = self.is_linux && found.is_none() && is_replaced();
            ensure!(
                is_missing || states.iter().any(|names| names.get(place) == found),
                "{} in directory {} leads to {found:?}, which it did in no state from {from} to {}",
                place.1,
                place.0,
                self.last
            );
        }
        Ok(())
    }

    /// Names that led to an inode in all states since it was synced lead there.
    fn lasting_names(&self) -> Result<()> {
        let volume = self.history.names[self.floor].values().map(|ino| (*ino, self.floor));
        let synced: BTreeMap<u64, usize> = volume
            .chain(
                self.full
                    .keys()
                    .chain(self.data.keys())
                    .map(|ino| (*ino, self.floor(*ino))),
            )
            .collect();
        for (ino, floor) in synced {
            let from = floor.max(self.floor);
            let states = self.states(from);
            for (place, _) in states[0].iter().filter(|(_, leads_to)| **leads_to == ino) {
                let lasts = states.iter().all(|names| names.get(place) == Some(&ino));
                ensure!(
                    !lasts || self.found.get(place) == Some(&ino),
                    "{} in directory {} led to inode {ino} since {from}, when that was synced, and leads to {:?}",
                    place.1,
                    place.0,
                    self.found.get(place)
                );
            }
        }
        Ok(())
    }

    fn names_of_inodes(&self) -> Result<()> {
        let found = by_inode(&self.found);
        let states: Vec<_> = self.states(self.floor).iter().map(by_inode).collect();
        let inos: BTreeSet<u64> = found
            .keys()
            .chain(states.iter().flat_map(BTreeMap::keys))
            .copied()
            .collect();
        for ino in inos {
            let from = self.floor(ino);
            ensure!(
                states[from - self.floor..]
                    .iter()
                    .any(|state| state.get(&ino) == found.get(&ino)),
                "inode {ino} has the names {:?}, as in no state from {from} to {}, where it had {:?}",
                found.get(&ino),
                self.last,
                states[from - self.floor..]
                    .iter()
                    .map(|state| state.get(&ino))
                    .collect::<BTreeSet<_>>()
            );
        }
        Ok(())
    }

    /// All files of an atomic operation are as before it, or all as after it.
    fn atomic(&self, found: &Tree) -> Result<()> {
        let by_ino: BTreeMap<u64, &Node> = found.values().map(|node| (node.ino, node)).collect();
        for (index, inos) in self.history.atomic.iter().filter(|(index, _)| *index <= self.last) {
            let fits = |from: usize, to: usize| {
                for ino in inos {
                    let from = from.max(self.content_floor(*ino));
                    let Some(node) = by_ino.get(ino) else { continue };
                    ensure!(from <= to, "inode {ino} was synced after it");
                    content(node, &self.history.versions(*ino, from, to), false)?;
                }
                Ok(())
            };
            let (before, after) = (fits(0, index - 1), fits(*index, self.last));
            if let (Err(before), Err(after)) = (before, after) {
                bail!("the atomic operation {index} on {inos:?} is there in part: {before:#}; {after:#}");
            }
        }
        Ok(())
    }

    fn node(&self, found: &Node) -> Result<()> {
        let from = self.floor(found.ino);
        let versions = self.history.versions(found.ino, from, self.last);
        let there: Vec<&Node> = versions.iter().flatten().copied().collect();
        ensure!(!there.is_empty(), "was there in no state from {from} to {}", self.last);
        let is_dir = found.kind == FileKind::Directory;
        let full_from = self.full_floor(found.ino);
        if let ([Some(only)], false) = (&versions[..], is_dir) {
            // Since an fdatasync alone the times may be older ones.
            let times_count = self.history.versions(found.ino, full_from, self.last).len() == 1;
            let expected = Node {
                nlink: if self.is_linux { found.nlink } else { only.nlink },
                mtime: if times_count { only.mtime } else { found.mtime },
                ..(*only).clone()
            };
            ensure!(
                expected == *found,
                "unchanged since {from}, but {}",
                how(&expected, found)
            );
            return self.link_count(found);
        }
        let fixed = |n: &Node| (n.kind, n.perm, n.uid, n.gid, n.rdev, n.in_place);
        ensure!(
            there.iter().any(|version| fixed(version) == fixed(found)),
            "kind, mode or owner were never so: {:?}",
            fixed(found)
        );
        ensure!(
            there.iter().any(|version| version.xattrs == found.xattrs) || self.is_bare(found, &versions),
            "the extended attributes were never so: {:?}",
            found.xattrs.keys()
        );
        if is_dir {
            return Ok(());
        }
        self.link_count(found)?;
        match found.kind {
            FileKind::Regular => {
                let from = self.content_floor(found.ino);
                let versions = self.history.versions(found.ino, from, self.last);
                content(found, &versions, self.is_linux)
            }
            _ => {
                let same = there.iter().any(|version| version.content == found.content);
                ensure!(same, "leads to where it never did");
                Ok(())
            }
        }
    }

    fn link_count(&self, found: &Node) -> Result<()> {
        let names = self.found.values().filter(|ino| **ino == found.ino).count();
        ensure!(
            names == found.nlink as usize,
            "{names} names, link count {}",
            found.nlink
        );
        Ok(())
    }

    /// Made since the floor, and there by name alone.
    fn is_bare(&self, found: &Node, versions: &[Option<&Node>]) -> bool {
        versions.contains(&None) && found.xattrs.is_empty()
    }
}

fn by_inode(names: &Names) -> BTreeMap<u64, BTreeSet<&Place>> {
    let mut inodes: BTreeMap<u64, BTreeSet<&Place>> = BTreeMap::new();
    for (place, ino) in names {
        inodes.entry(*ino).or_default().insert(place);
    }
    inodes
}

/// `may_lack`: zeros may stand where data was written, until it is synced.
fn content(found: &Node, versions: &[Option<&Node>], may_lack: bool) -> Result<()> {
    let len = |version: &Option<&Node>| version.map_or(0, |node| node.content.len());
    let (min, max) = (versions.iter().map(len).min(), versions.iter().map(len).max());
    let size = found.content.len();
    ensure!(
        min <= Some(size) && Some(size) <= max,
        "{size} bytes, but from {min:?} to {max:?} since its floor"
    );
    for (number, block) in found.content.chunks(BLOCK_BYTES).enumerate() {
        let at = number * BLOCK_BYTES;
        let was = |version: &Node| {
            let there = version.content.get(at..).unwrap_or_default();
            let (kept, gone) = block.split_at(there.len().min(block.len()));
            // What is written in place goes before the size does: of a file that was cut, the block
            // at its new end is zero from there on when the size on disk is still the old one. So
            // it is on Linux' btrfs.
            let is_cut_in_place = found.in_place && !kept.is_empty() && gone.iter().all(|byte| *byte == 0);
            there.starts_with(kept) && (gone.is_empty() || is_cut_in_place)
        };
        let part = |version: &Option<&Node>| {
            version.and_then(|node| {
                node.content
                    .get(at..(at + block.len()).min(node.content.len()))
                    .map(<[u8]>::to_vec)
            })
        };
        let lacks = || {
            let first = versions.first().map(part);
            may_lack && block.iter().all(|byte| *byte == 0) && versions.iter().any(|v| Some(part(v)) != first)
        };
        ensure!(
            versions.iter().flatten().any(|version| was(version)) || lacks(),
            "the block at {at} was never so, {} versions",
            versions.len()
        );
    }
    Ok(())
}

fn how(expected: &Node, found: &Node) -> String {
    let tree = |node: &Node| Tree::from([(String::new(), node.clone())]);
    cowshed_model::tree::differences(&tree(expected), &tree(found))
}
