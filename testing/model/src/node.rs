//! What the model holds.

use std::collections::BTreeMap;

use cowshed_vfs::{Error, FileKind, Result, Timestamp};

use crate::id::Id;
use crate::staged::Group;
use crate::{At, Content, GROUPS, Name};

/// Files that can be held open at once.
pub const SLOTS: u8 = 6;

/// What an inode is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    File(Content),
    Dir { names: BTreeMap<Name, Id>, parent: Id },
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: FileKind,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// As `chattr` has them.
    pub flags: u32,
    /// Names that lead here.
    pub nlink: u32,
    /// The root of the subvolume that it belongs to.
    pub subvolume: Id,
    /// Was made without a name, and may get its first.
    pub linkable: bool,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    pub xattrs: BTreeMap<u8, Vec<u8>>,
    pub body: Body,
}

impl Node {
    pub fn size_bytes(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.size_bytes,
            Body::Symlink(target) => target.len() as u64,
            // Each name is counted twice: once by hash, once by index.
            Body::Dir { names, .. } => names.keys().map(|n| 2 * n.bytes().len() as u64).sum(),
            Body::Special => 0,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(crate) fn strip_set_id(&mut self) {
        const SET_UID: u32 = 0o4000;
        const SET_GID: u32 = 0o2000;
        const GROUP_EXEC: u32 = 0o010;
        self.perm &= !SET_UID;
        if self.perm & GROUP_EXEC != 0 {
            self.perm &= !SET_GID;
        }
    }

    pub(crate) fn changed(&mut self, now: Timestamp) {
        (self.mtime, self.ctime) = (now, now);
    }

    /// The content of a regular file. Errors: `IsDirectory`, `Invalid`.
    pub(crate) fn content(&mut self) -> Result<&mut Content> {
        match &mut self.body {
            Body::File(content) => Ok(content),
            Body::Dir { .. } => Err(Error::IsDirectory),
            Body::Symlink(_) | Body::Special => Err(Error::Invalid),
        }
    }
}

/// Options of a mount that decide what operations do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountRules {
    /// New files are nodatacow.
    pub nodatacow: bool,
    /// The algorithm that `chattr +c` takes; zlib where the mount names none.
    pub compress: Option<&'static str>,
}

/// The whole file system. Two models are equal if no call can tell the file systems apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub(crate) nodes: BTreeMap<Id, Node>,
    pub(crate) next_id: u32,
    pub(crate) slots: [Option<Id>; SLOTS as usize],
    /// The atomic groups that are open, by number. They hold their files as slots do.
    pub(crate) groups: BTreeMap<u8, Group>,
    /// How the volume is mounted.
    pub mount: MountRules,
    /// What name and value of an extended attribute may have together, in bytes.
    pub xattr_bytes_max: usize,
    /// What a symbolic link's target may have, in bytes.
    pub target_bytes_max: usize,
}

impl Model {
    pub const ROOT: Id = Id(0);
    /// The largest file.
    pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
    pub const LINKS_MAX: u32 = 65535;

    /// A fresh volume with nodes of `node_bytes`, its root as it is (the times are the volume's).
    pub fn new(node_bytes: u32, root: Node) -> Model {
        // A leaf has a header of 101 bytes and 25 for each item; an attribute 30 before its name,
        // an inline extent 21.
        let item_bytes_max = node_bytes as usize - 101 - 25;
        Model {
            nodes: BTreeMap::from([(Self::ROOT, root)]),
            next_id: 1,
            slots: [None; SLOTS as usize],
            groups: BTreeMap::new(),
            mount: MountRules::default(),
            xattr_bytes_max: item_bytes_max - 30,
            target_bytes_max: (item_bytes_max - 21).min(4095),
        }
    }

    /// An empty directory, for a root.
    pub fn empty_root(perm: u32, time: Timestamp) -> Node {
        Node {
            kind: FileKind::Directory,
            perm,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            nlink: 1,
            subvolume: Self::ROOT,
            linkable: false,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            xattrs: BTreeMap::new(),
            body: Body::Dir {
                names: BTreeMap::new(),
                parent: Self::ROOT,
            },
        }
    }

    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    pub(crate) fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("ids are never dangling")
    }

    pub fn slot(&self, slot: u8) -> Option<Id> {
        self.slots[usize::from(slot)]
    }

    pub fn exists(&self, id: Id) -> bool {
        self.nodes.contains_key(&id)
    }

    pub fn ids(&self) -> impl Iterator<Item = Id> {
        self.nodes.keys().copied()
    }

    /// Replaces what a file holds, where that is known from elsewhere.
    pub fn set_content(&mut self, id: Id, content: Content) {
        if let Body::File(held) = &mut self.node_mut(id).body {
            *held = content;
        }
    }

    /// Sets the times of a change, where they are known from elsewhere.
    pub fn set_changed(&mut self, id: Id, (mtime, ctime): (Timestamp, Timestamp)) {
        let node = self.node_mut(id);
        (node.mtime, node.ctime) = (mtime, ctime);
    }

    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The names of a directory.
    pub fn names(&self, id: Id) -> Result<&BTreeMap<Name, Id>> {
        match &self.node(id).body {
            Body::Dir { names, .. } => Ok(names),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(crate) fn names_mut(&mut self, id: Id) -> &mut BTreeMap<Name, Id> {
        match &mut self.node_mut(id).body {
            Body::Dir { names, .. } => names,
            _ => unreachable!("looked at before"),
        }
    }

    pub(crate) fn parent(&self, id: Id) -> Id {
        match &self.node(id).body {
            Body::Dir { parent, .. } => *parent,
            _ => unreachable!("only directories are asked"),
        }
    }

    /// The node under a name. Errors: `NotDirectory`, `NameTooLong`.
    pub fn child(&self, dir: Id, name: Name) -> Result<Option<Id>> {
        let names = self.names(dir)?;
        if name == Name::TOO_LONG {
            return Err(Error::NameTooLong);
        }
        Ok(names.get(&name).copied())
    }

    /// Errors: `NotDirectory`, `NotFound`, `NameTooLong`; `BadHandle` for an empty slot.
    pub fn resolve(&self, at: &At) -> Result<Id> {
        match at {
            At::Slot(slot) => self.slot(*slot).ok_or(Error::BadHandle),
            At::Path(path) => path
                .iter()
                .try_fold(Self::ROOT, |dir, name| self.child(dir, *name)?.ok_or(Error::NotFound)),
        }
    }

    /// All paths that lead to a node.
    pub fn paths(&self, id: Id) -> Vec<Vec<Name>> {
        let mut found = Vec::new();
        let mut left = vec![(Self::ROOT, Vec::new())];
        while let Some((here, path)) = left.pop() {
            if here == id {
                found.push(path.clone());
            }
            let names = self.names(here).into_iter().flatten();
            left.extend(names.map(|(name, child)| (*child, [&path[..], &[*name]].concat())));
        }
        found
    }

    /// Is `id` the directory `inside`, or above it?
    pub(crate) fn is_above(&self, id: Id, mut inside: Id) -> bool {
        loop {
            if id == inside {
                return true;
            }
            if inside == Self::ROOT || self.node(inside).nlink == 0 {
                return false;
            }
            inside = self.parent(inside);
        }
    }

    /// A node without names lives as long as a slot holds it.
    pub(crate) fn reap(&mut self, id: Id) {
        let is_staged = self.groups.values().any(|group| group.holds(id));
        if self.node(id).nlink == 0 && !is_staged && !self.slots.contains(&Some(id)) {
            self.nodes.remove(&id);
        }
    }

    /// What is left after a restart: nothing is open.
    pub fn close_all(&mut self) {
        for group in 0..GROUPS {
            self.drop_group(group);
        }
        for slot in 0..self.slots.len() {
            if let Some(id) = self.slots[slot].take() {
                self.reap(id);
            }
        }
    }
}
