//! What the replays show, fact by fact.
//!
//! A *fact* is what a name leads to, or an attribute of an inode (its content, mode, owner, or one xattr). Over the states
//! of a run, from the last sync on, a fact has a sequence of values. A replay shows one of them; how *new* it is, is the
//! index of the state that had it. Where a value was there more than once, the kernel's counts as the first of these, ours as
//! the last: an old value that came back is held against neither.
//!
//! Rule: for each fact that ours is not older than the kernel's ([`Kind::Less`]), and that no fact has a value that it never
//! had ([`Kind::Never`]). Facts of inodes that the kernel's replay does not have under any name say nothing. Content that
//! was not synced may be on disk in part: each block has to be one that was, and the size one that was, or the end of a block.
//! What a commit of the kernel's made durable, and not its log, is told apart ([`Kind::LessThanCommit`]).
//!
//! Inodes are told apart by where they stand in the live states, which are the same on both sides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use anyhow::{Result, ensure};
use cowshed_crash::tree::{Node, Tree};
use cowshed_vfs::FileKind;

use super::play::{Cut, Run};
use super::script::Script;

/// An inode, the same on both sides: numbered as it first appears.
type Id = usize;

/// What is wrong with a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Ours is older than what the kernel's log shows.
    Less,
    /// Ours is older than what the kernel's commit shows. An exception: Linux commits where its log could not tell, which is an
    /// accident of its transaction, and all its files become durable with it.
    LessThanCommit,
    /// Ours is older than what the kernel's log shows, and an earlier fsync of ours was a commit. An exception: everything up to that
    /// commit is durable, and what Linux' log, which is older, still carries along is not known any more.
    AfterOwnCommit,
    /// Ours is what never was.
    Never,
}

impl Kind {
    /// The exceptions; docs/design/log-cases.md has their reasons.
    pub fn is_exception(self) -> bool {
        matches!(self, Kind::LessThanCommit | Kind::AfterOwnCommit)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Less => "less than the kernel's log",
            Kind::LessThanCommit => "less than the kernel's commit",
            Kind::AfterOwnCommit => "less than the kernel's log, after a commit of ours",
            Kind::Never => "what never was",
        })
    }
}

/// A fact of our replay that breaks the rule.
#[derive(Clone, Debug)]
pub struct Fault {
    /// How it breaks it.
    pub kind: Kind,
    text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

/// A fact's name, for people and as a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    /// What a name in a directory leads to.
    Name(Id, String),
    Content(Id),
    Mode(Id),
    Xattr(Id, Vec<u8>),
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fact::Name(dir, name) => write!(f, "name {name} in directory #{dir}"),
            Fact::Content(id) => write!(f, "content of #{id}"),
            Fact::Mode(id) => write!(f, "mode of #{id}"),
            Fact::Xattr(id, name) => write!(f, "xattr {} of #{id}", String::from_utf8_lossy(name)),
        }
    }
}

/// A fact's value; `None`: there is no such name, xattr or inode.
type Value = Option<Vec<u8>>;

/// What a tree says.
#[derive(Debug, Default)]
struct Facts {
    values: BTreeMap<Fact, Vec<u8>>,
    ids: BTreeSet<Id>,
}

/// Number of an inode that no live state had.
const STRANGER: Id = usize::MAX;

impl Facts {
    fn of(tree: &Tree, ids: &HashMap<u64, Id>) -> Facts {
        let id = |node: &Node| ids.get(&node.ino).copied().unwrap_or(STRANGER);
        let mut facts = Facts::default();
        for (path, node) in tree {
            let this = id(node);
            if let Some((dir, name)) = path.rsplit_once('/')
                && let Some(dir) = tree.get(dir)
            {
                let key = Fact::Name(id(dir), name.to_owned());
                facts.values.insert(key, this.to_string().into_bytes());
            }
            if !facts.ids.insert(this) {
                continue;
            }
            if node.kind != FileKind::Directory {
                facts.values.insert(Fact::Content(this), node.content.to_vec());
            }
            let mode = format!("{:?} {:o} {} {}", node.kind, node.perm, node.uid, node.gid);
            facts.values.insert(Fact::Mode(this), mode.into_bytes());
            for (name, value) in &node.xattrs {
                facts.values.insert(Fact::Xattr(this, name.clone()), value.clone());
            }
        }
        facts
    }

    fn value(&self, fact: &Fact) -> Value {
        self.values.get(fact).cloned()
    }

    /// The inode whose attribute it is has a name here.
    fn has_subject(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Name(..) => true,
            Fact::Content(id) | Fact::Mode(id) | Fact::Xattr(id, _) => self.ids.contains(id),
        }
    }
}

/// Inode numbers of both sides to ids; live states must have the same names.
fn identify(theirs: &Run, ours: &Run) -> Result<[HashMap<u64, Id>; 2]> {
    let mut ids = [HashMap::new(), HashMap::new()];
    let mut next = 0;
    for (number, (one, other)) in theirs.states.iter().zip(&ours.states).enumerate() {
        ensure!(
            one.keys().eq(other.keys()),
            "live states {number} differ: the kernel has {:?}, ours {:?}",
            one.keys().collect::<Vec<_>>(),
            other.keys().collect::<Vec<_>>()
        );
        for (a, b) in one.values().zip(other.values()) {
            let known = (ids[0].get(&a.ino).copied(), ids[1].get(&b.ino).copied());
            ensure!(known.0 == known.1, "live states {number} differ in what is linked");
            if known.0.is_none() {
                ids[0].insert(a.ino, next);
                ids[1].insert(b.ino, next);
                next += 1;
            }
        }
    }
    Ok(ids)
}

/// The faults of ours, exceptions included.
pub(super) fn compare(script: &Script, theirs: &Run, ours: &Run) -> Result<Vec<Fault>> {
    ensure!(
        theirs.done == ours.done,
        "steps that succeed differ: {:?} {:?}",
        theirs.done,
        ours.done
    );
    let ids = identify(theirs, ours)?;
    let states: Vec<Facts> = ours.states.iter().map(|tree| Facts::of(tree, &ids[1])).collect();
    let mut faults = Vec::new();
    for (kernels, our) in theirs.crashes.iter().zip(&ours.crashes) {
        let mut found = one_cut(kernels, our, &ids, &states);
        let steps = script.steps();
        for fault in &mut found {
            fault.text = format!(
                "after {:?} (ours: {}): {}",
                steps[our.state - 1],
                answer(our),
                fault.text
            );
        }
        faults.extend(found);
    }
    Ok(faults)
}

fn answer(cut: &Cut) -> &'static str {
    if cut.has_log { "log" } else { "no log" }
}

fn one_cut(kernels: &Cut, our: &Cut, ids: &[HashMap<u64, Id>; 2], states: &[Facts]) -> Vec<Fault> {
    let (shown, found) = (Facts::of(&kernels.found, &ids[0]), Facts::of(&our.found, &ids[1]));
    let past = &states[..=our.state];
    let facts: BTreeSet<&Fact> = past
        .iter()
        .chain([&shown, &found])
        .flat_map(|facts| facts.values.keys())
        .collect();
    let mut faults = Vec::new();
    for fact in facts {
        if !found.has_subject(fact) {
            continue;
        }
        let had = |value: &Value| {
            let has = |facts: &&Facts| facts.has_subject(fact) && facts.value(fact) == *value;
            let first = past.iter().position(|facts| has(&facts));
            first.map(|first| (first, past.iter().rposition(|facts| has(&facts)).unwrap_or(first)))
        };
        let (theirs, ours) = (shown.value(fact), found.value(fact));
        let theirs_at = if shown.has_subject(fact) { had(&theirs) } else { None };
        let describe = |value: &Value| match value {
            None => "nothing".to_owned(),
            Some(bytes) if bytes.len() > 40 => format!("{} bytes", bytes.len()),
            Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        };
        let mut fault = |kind, what: String| {
            faults.push(Fault {
                kind,
                text: format!("{fact}: {what}"),
            });
        };
        let is_mixture =
            matches!(fact, Fact::Content(_)) && ours.as_ref().is_some_and(|found| is_mixture(found, fact, past));
        match (theirs_at, had(&ours)) {
            (Some((theirs_first, _)), Some((_, ours_last))) if theirs_first > ours_last => {
                let kind = match theirs_first > kernels.committed {
                    false => Kind::LessThanCommit,
                    true if (1..our.state).contains(&our.committed) => Kind::AfterOwnCommit,
                    true => Kind::Less,
                };
                fault(
                    kind,
                    format!("the kernel's shows {}, ours {}", describe(&theirs), describe(&ours)),
                );
            }
            (Some(_), None) if !is_mixture => fault(Kind::Never, format!("ours shows {}", describe(&ours))),
            _ => {}
        }
    }
    faults
}

/// Every block of the content is that block in one of the states, or zeros.
fn is_mixture(found: &[u8], fact: &Fact, past: &[Facts]) -> bool {
    const BLOCK: usize = 4096;
    let versions: Vec<&Vec<u8>> = past.iter().filter_map(|facts| facts.values.get(fact)).collect();
    let longest = versions.iter().map(|version| version.len()).max().unwrap_or(0);
    let is_size = versions.iter().any(|version| version.len() == found.len());
    if !(is_size || found.len() <= longest && found.len().is_multiple_of(BLOCK)) {
        return false;
    }
    found.chunks(BLOCK).enumerate().all(|(number, block)| {
        let is_block = |version: &&&Vec<u8>| {
            version
                .get(number * BLOCK..)
                .is_some_and(|rest| rest.starts_with(block))
        };
        block.iter().all(|byte| *byte == 0) || versions.iter().any(|version| is_block(&version))
    })
}
