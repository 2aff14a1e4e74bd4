//! What a tree says, fact by fact, and which state of a run each fact is of.
//!
//! States are numbered: S0 is what the setup's `sync` left, Sn is after the n-th operation behind
//! it. An inode is known by the order in which inodes came to have a name, not by its number, which
//! each volume chooses for itself. A *fact* is
//!
//! * what (directory, name) leads to: an inode, or nothing;
//! * of an inode that has a name: its kind with device numbers, mode, owner, modification time (not
//!   of directories: a replay changes it), size, each block of 4 KiB, and each extended attribute,
//!   there or not.
//!
//! The states in which a fact had the value that a crash left of it say how old it is. Where there
//! are several of these (a name that came, went and came back), the kernel's is taken for the
//! oldest and ours for the newest:
//!
//! * ours is *older* where the newest state of ours comes before the oldest of the kernel's;
//! * ours *never was* where there is no such state up to the crash. (Of the kernel's that is not
//!   judged: its replay leaves names in two places, and holes where data was.)
//!
//! A block agrees with what it was in a state where the shorter of both is the beginning of the
//! longer: what is missing at the end is the size's to tell. That sizes and blocks of ours are ones
//! that were is judged by our promises, which know what may be of a file that was not synced
//! ([`cowshed_crash::promise`]).
//!
//! An operation may make a file and write it, too. So a file without data and attributes also is a
//! state, right before the one in which its first name appears.
//!
//! A fact of an inode or of a directory that one of both does not have is not compared: the names
//! that lead there are. Link counts are no facts of their own; ours must be the number of names.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cowshed_model::script::short as content;
use cowshed_model::tree::{Node, Tree};
use cowshed_vfs::FileKind;

const BLOCK_BYTES: usize = 4096;

/// An inode, in the order of first appearances.
pub(crate) type Id = usize;

/// The numbers that one volume gave to the inodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids(BTreeMap<u64, Id>);

impl Ids {
    pub(crate) fn get(&self, ino: u64) -> Option<Id> {
        self.0.get(&ino).copied()
    }

    /// Of all paths of a tree that has them by the same names in both volumes.
    pub(crate) fn add(&mut self, ino: u64, id: Id) {
        self.0.insert(ino, id);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fact {
    Name(Id, String),
    Kind(Id),
    Mode(Id),
    Owner(Id),
    Mtime(Id),
    Size(Id),
    Block(Id, usize),
    Xattr(Id, String),
}

impl Fact {
    pub(crate) fn subject(&self) -> Id {
        match self {
            Fact::Name(id, _) | Fact::Block(id, _) | Fact::Xattr(id, _) => *id,
            Fact::Kind(id) | Fact::Mode(id) | Fact::Owner(id) | Fact::Mtime(id) | Fact::Size(id) => *id,
        }
    }

    pub(crate) fn sort(&self) -> &'static str {
        match self {
            Fact::Name(..) => "name",
            Fact::Kind(_) => "kind",
            Fact::Mode(_) => "mode",
            Fact::Owner(_) => "owner",
            Fact::Mtime(_) => "mtime",
            Fact::Size(_) => "size",
            Fact::Block(..) => "data",
            Fact::Xattr(..) => "xattr",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Inode(Id),
    /// An inode that had no name in any state.
    Stranger(u64),
    Numbers(u64, u64),
    Bytes(Vec<u8>),
    Kind(FileKind, (u32, u32)),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Inode(id) => write!(f, "inode {id}"),
            Value::Stranger(ino) => write!(f, "unknown inode number {ino}"),
            Value::Numbers(a, b) => write!(f, "{a}, {b}"),
            Value::Bytes(bytes) => f.write_str(&content::describe(bytes)),
            Value::Kind(kind, rdev) => write!(f, "{kind:?} {rdev:?}"),
        }
    }
}

/// All facts of one tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    values: BTreeMap<Fact, Value>,
    /// The inodes that have a name, each with one of its paths.
    inodes: BTreeMap<Id, String>,
}

impl Facts {
    pub(crate) fn new(tree: &Tree, ids: &Ids) -> Facts {
        let mut facts = Facts::default();
        for (path, node) in tree {
            let id = ids.get(node.ino);
            if !path.is_empty() {
                let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
                if let Some(dir) = tree.get(dir).and_then(|dir| ids.get(dir.ino)) {
                    let value = id.map_or(Value::Stranger(node.ino), Value::Inode);
                    facts.values.insert(Fact::Name(dir, name.to_owned()), value);
                }
            }
            let Some(id) = id else { continue };
            if let Entry::Vacant(new) = facts.inodes.entry(id) {
                new.insert(path.clone());
                facts.add(id, node);
            }
        }
        facts
    }

    fn add(&mut self, id: Id, node: &Node) {
        let is_dir = node.kind == FileKind::Directory;
        let mut put = |fact, value| self.values.insert(fact, value);
        put(Fact::Kind(id), Value::Kind(node.kind, node.rdev));
        put(Fact::Mode(id), Value::Numbers(node.perm.into(), 0));
        put(Fact::Owner(id), Value::Numbers(node.uid.into(), node.gid.into()));
        if !is_dir {
            let mtime = Value::Numbers(node.mtime.secs as u64, node.mtime.nanos.into());
            put(Fact::Mtime(id), mtime);
            put(Fact::Size(id), Value::Numbers(node.content.len() as u64, 0));
        }
        for (number, block) in node.content.chunks(BLOCK_BYTES).enumerate() {
            put(Fact::Block(id, number), Value::Bytes(block.to_vec()));
        }
        for (name, value) in &node.xattrs {
            let name = String::from_utf8_lossy(name).into_owned();
            put(Fact::Xattr(id, name), Value::Bytes(value.clone()));
        }
    }

    /// `None` where its inode or directory has no name; `Some(None)` where it is not there.
    fn value(&self, fact: &Fact) -> Option<Option<&Value>> {
        self.inodes.contains_key(&fact.subject()).then(|| self.values.get(fact))
    }

    pub(crate) fn path(&self, id: Id) -> Option<&str> {
        self.inodes.get(&id).map(String::as_str)
    }

    /// All names of an inode.
    pub(crate) fn names(&self, id: Id) -> BTreeSet<&Fact> {
        let is_name = |(fact, value): &(&Fact, &Value)| matches!(fact, Fact::Name(..)) && **value == Value::Inode(id);
        self.values.iter().filter(is_name).map(|(fact, _)| fact).collect()
    }

    /// The inode at the end of a path; `.` is the root.
    pub(crate) fn id(&self, path: &str) -> Option<Id> {
        let root = self.inodes.iter().find(|(_, path)| path.is_empty()).map(|(id, _)| *id);
        let mut names = path.split('/').filter(|name| *name != ".");
        names.try_fold(root?, |dir, name| {
            match self.values.get(&Fact::Name(dir, name.to_owned())) {
                Some(Value::Inode(id)) => Some(*id),
                _ => None,
            }
        })
    }
}

/// How ours differs from the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wrong {
    /// It shows something of before what the kernel's shows.
    Older,
    NeverWas,
}

/// One fact in which ours is not what it has to be.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    pub(crate) wrong: Wrong,
    pub(crate) fact: Fact,
    /// The state of the kernel's value: the oldest one.
    pub(crate) kernel_state: usize,
    pub(crate) kernels: Option<Value>,
    pub(crate) ours: Option<Value>,
}

/// Compares what the crash after the last of the states left in both volumes.
pub(crate) fn compare(states: &[Facts], kernel: &Facts, ours: &Facts) -> Vec<Difference> {
    let facts: BTreeSet<&Fact> = states
        .iter()
        .chain([kernel, ours])
        .flat_map(|facts| facts.values.keys())
        .collect();
    facts
        .into_iter()
        .filter_map(|fact| {
            let age = |facts: &Facts| -> Vec<usize> { ages(states, fact, facts) };
            let (kernel_ages, our_ages) = (age(kernel), age(ours));
            let ours = ours.value(fact)?;
            let difference = |wrong| Difference {
                wrong,
                fact: fact.clone(),
                kernel_state: kernel_ages.first().map_or(0, |age| age.div_ceil(2)),
                kernels: kernel.value(fact).flatten().cloned(),
                ours: ours.cloned(),
            };
            let by_promises = matches!(fact, Fact::Size(_) | Fact::Block(..));
            match (kernel_ages.first(), our_ages.last()) {
                (_, None) if by_promises => None,
                (_, None) => Some(difference(Wrong::NeverWas)),
                (Some(kernel), Some(ours)) if ours < kernel => Some(difference(Wrong::Older)),
                _ => None,
            }
        })
        .collect()
}

/// When the fact was as in this tree, in order: twice the number of the state, one less for a file
/// that was just made.
fn ages(states: &[Facts], fact: &Fact, found: &Facts) -> Vec<usize> {
    let Some(value) = found.value(fact) else {
        return Vec::new();
    };
    let birth = states
        .iter()
        .position(|state| state.inodes.contains_key(&fact.subject()));
    let is_bare = match (fact, value, birth.and_then(|birth| states[birth].values.get(fact))) {
        (Fact::Size(_), value, _) => value == Some(&Value::Numbers(0, 0)),
        (Fact::Xattr(..), value, _) => value.is_none(),
        (Fact::Mtime(_), Some(Value::Numbers(secs, nanos)), Some(Value::Numbers(first_secs, first_nanos))) => {
            (secs, nanos) < (first_secs, first_nanos)
        }
        _ => false,
    };
    let bare = birth.filter(|birth| is_bare && *birth > 0).map(|birth| 2 * birth - 1);
    let had = states.iter().enumerate().filter(|(_, state)| is(state, fact, value));
    bare.into_iter().chain(had.map(|(index, _)| 2 * index)).collect()
}

/// Had the fact this value in that state? A directory that was not there had no names.
fn is(state: &Facts, fact: &Fact, value: Option<&Value>) -> bool {
    let bytes = |value: Option<&'_ Value>| match value {
        Some(Value::Bytes(bytes)) => bytes.clone(),
        _ => Vec::new(),
    };
    match state.value(fact) {
        Some(then) if matches!(fact, Fact::Block(..)) => {
            let (then, now) = (bytes(then), bytes(value));
            then.starts_with(&now) || now.starts_with(&then)
        }
        Some(then) => then == value,
        None => value.is_none() && matches!(fact, Fact::Name(..)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u64 = 256;

    fn dir(ino: u64) -> Node {
        Node {
            ino,
            kind: FileKind::Directory,
            ..Node::default()
        }
    }

    fn file(ino: u64, content: &[u8]) -> Node {
        Node {
            ino,
            content: content.to_vec().into(),
            ..Node::default()
        }
    }

    fn tree(nodes: &[(&str, Node)]) -> Tree {
        let named = nodes.iter().map(|(path, node)| ((*path).to_owned(), node.clone()));
        named.chain([(String::new(), dir(ROOT))]).collect()
    }

    /// What is wrong where a run of these states ended in a crash that left these two trees.
    fn wrong(states: &[Tree], kernel: &Tree, ours: &Tree) -> Vec<(Wrong, Fact)> {
        let mut ids = Ids::default();
        for node in states.iter().flat_map(BTreeMap::values) {
            if ids.get(node.ino).is_none() {
                ids.add(node.ino, ids.0.len());
            }
        }
        let states: Vec<Facts> = states.iter().map(|state| Facts::new(state, &ids)).collect();
        let found = compare(&states, &Facts::new(kernel, &ids), &Facts::new(ours, &ids));
        found.into_iter().map(|found| (found.wrong, found.fact)).collect()
    }

    #[test]
    fn a_name_that_only_the_kernel_kept_is_missing_and_more_names_are_not() {
        let before = tree(&[("f", file(1, b""))]);
        let after = tree(&[("f", file(1, b"")), ("g", file(1, b""))]);
        let states = [before.clone(), after.clone()];
        assert_eq!(
            wrong(&states, &after, &before),
            [(Wrong::Older, Fact::Name(0, "g".into()))]
        );
        assert_eq!(wrong(&states, &before, &after), []);
        // And the other way round: a name that only the kernel removed.
        let states = [after.clone(), before.clone()];
        assert_eq!(
            wrong(&states, &before, &after),
            [(Wrong::Older, Fact::Name(0, "g".into()))]
        );
        assert_eq!(wrong(&states, &after, &before), []);
    }

    #[test]
    fn a_moved_directory_is_two_names_and_what_is_in_it_none() {
        let inside =
            |at: &'static str, f: &'static str| tree(&[("x", dir(1)), ("y", dir(2)), (at, dir(3)), (f, file(4, b""))]);
        let states = [inside("x/d", "x/d/f"), inside("y/d", "y/d/f")];
        let mut found = wrong(&states, &states[1], &states[0]);
        found.sort();
        // Ids go by paths here: the root, x, x/d, x/d/f, y.
        let expected = [1, 4].map(|dir| (Wrong::Older, Fact::Name(dir, "d".into())));
        assert_eq!(found, expected);
    }

    #[test]
    fn what_came_and_went_and_came_back_is_of_either_state() {
        let (without, with) = (tree(&[]), tree(&[("f", file(1, b"a"))]));
        let states = [with.clone(), without.clone(), with.clone()];
        assert_eq!(wrong(&states, &with, &without), []);
        assert_eq!(wrong(&states, &without, &with), []);
        let states = [without.clone(), with.clone(), without.clone(), with.clone()];
        assert_eq!(wrong(&states, &with, &without), []);
    }

    #[test]
    fn a_file_made_and_written_at_once_may_be_empty_and_is_older_then() {
        let (before, after) = (tree(&[]), tree(&[("f", file(1, b"a"))]));
        let empty = tree(&[("f", file(1, b""))]);
        let states = [before, after.clone()];
        assert_eq!(wrong(&states, &empty, &after), []);
        assert_eq!(wrong(&states, &empty, &empty), []);
        assert_eq!(wrong(&states, &after, &empty), [(Wrong::Older, Fact::Size(1))]);
    }

    #[test]
    fn what_never_was_is_found_in_ours_alone() {
        let with = |value: &[u8]| {
            let xattrs = BTreeMap::from([(b"user.a".to_vec(), value.to_vec())]);
            tree(&[(
                "f",
                Node {
                    xattrs,
                    ..file(1, b"a")
                },
            )])
        };
        let states = [with(b"1"), with(b"2")];
        let fact = Fact::Xattr(1, "user.a".into());
        assert_eq!(wrong(&states, &states[1], &with(b"3")), [(Wrong::NeverWas, fact)]);
        assert_eq!(wrong(&states, &with(b"3"), &states[0]), []);
        let stranger = tree(&[("f", file(7, b"a"))]);
        let fact = Fact::Name(0, "f".into());
        assert_eq!(wrong(&states, &states[1], &stranger), [(Wrong::NeverWas, fact)]);
    }

    #[test]
    fn old_data_is_found_and_a_cut_of_it_is_none() {
        let with = |content: &[u8]| tree(&[("f", file(1, content))]);
        let states = [with(b"aaa"), with(b"bbb"), with(b"b")];
        let old = [(Wrong::Older, Fact::Block(1, 0))];
        assert_eq!(wrong(&states, &states[1], &states[0]), old);
        assert_eq!(wrong(&states, &states[2], &with(b"a")), old);
        assert_eq!(wrong(&states, &states[2], &states[1]), [(Wrong::Older, Fact::Size(1))]);
        assert_eq!(wrong(&states, &states[0], &with(b"a")), []);
    }
}
