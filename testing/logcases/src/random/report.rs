//! What came of many sequences, and failures as cases of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cowshed_model::script::short as content;
use cowshed_model::tree::{Node, Tree};
use cowshed_vfs::FileKind;

use super::Kind;
use super::facts::{Difference, Fact, Value, Wrong};
use super::play::{Left, Moment, Played};
use crate::table::Answer;

/// What was done, and what came of it.
#[derive(Debug, Default)]
pub struct Report {
    pub sequences: u64,
    /// Crashes judged.
    pub crashes: u64,
    /// Of those, by the kernel, too.
    pub by_kernel: u64,
    /// How the kernel answered the fsync, and how we did.
    pub answers: BTreeMap<(String, String), u64>,
    /// Crashes that show a kind of difference.
    pub differences: BTreeMap<String, u64>,
    pub failures: Vec<Failure>,
    /// Sequences that failed and did not when they were played again: the kernel committed of its
    /// own accord.
    pub once: u64,
}

/// One failing sequence.
#[derive(Debug)]
pub struct Failure {
    /// Of the sequence.
    pub seed: u64,
    pub kind: String,
    pub text: String,
    /// Made short.
    pub script: String,
    /// As a case of the table; what is expected is what the kernel left. Nothing where that cannot
    /// be told.
    pub case: Option<String>,
    /// The sequence until the crash.
    pub whole: String,
    pub answers: [Answer; 2],
    /// Where the images are, if the failure is about one of them, and not about both.
    pub kept: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kernels, ours] = self.answers;
        writeln!(f, "sequence {}: {}", self.seed, self.kind)?;
        writeln!(f, "  {}", self.text)?;
        writeln!(f, "  whole: {}", self.whole)?;
        writeln!(f, "  short: {} (the kernel: {kernels}, ours: {ours})", self.script)?;
        let more: Vec<&str> = self.kept.iter().chain(&self.case).map(String::as_str).collect();
        f.write_str(&more.join("\n"))
    }
}

impl Report {
    pub(super) fn count(&mut self, moment: &Moment, kinds: &BTreeMap<Kind, String>, by_kernel: bool) {
        self.crashes += 1;
        self.by_kernel += u64::from(by_kernel);
        let [kernels, ours] = moment.answers.map(|answer| answer.to_string());
        *self.answers.entry((kernels, ours)).or_default() += 1;
        for kind in kinds.keys() {
            *self.differences.entry(kind.to_string()).or_default() += 1;
        }
    }

    pub(super) fn add(&mut self, other: Report) {
        self.sequences += other.sequences;
        self.crashes += other.crashes;
        self.by_kernel += other.by_kernel;
        for (key, count) in other.answers {
            *self.answers.entry(key).or_default() += count;
        }
        for (key, count) in other.differences {
            *self.differences.entry(key).or_default() += count;
        }
        self.failures.extend(other.failures);
        self.once += other.once;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((kernels, ours), count) in &self.answers {
            writeln!(f, "{count:>8}  fsyncs: the kernel {kernels}, ours {ours}")?;
        }
        for (kind, count) in &self.differences {
            writeln!(f, "{count:>8}  crashes: {kind}")?;
        }
        write!(
            f,
            "{} sequences, {} crashes of each, {} by the kernel too, {} sequences failed, {} more only once",
            self.sequences,
            self.crashes,
            self.by_kernel,
            self.failures.len(),
            self.once
        )
    }
}

/// A difference in words.
pub(super) fn describe(played: &Played, moment: &Moment, difference: &Difference) -> String {
    let subject = played.path(difference.fact.subject(), moment);
    let fact = match &difference.fact {
        Fact::Name(_, name) if subject.is_empty() => format!("name {name}"),
        Fact::Name(_, name) => format!("name {subject}/{name}"),
        Fact::Block(_, number) => format!("{subject}, block {number}"),
        Fact::Xattr(_, name) => format!("{subject}, {name}"),
        fact => format!("{subject}, {}", fact.sort()),
    };
    let show = |value: &Option<Value>| match value {
        Some(Value::Inode(id)) => format!("leads to inode {id} ({})", played.path(*id, moment)),
        Some(value) => value.to_string(),
        None => "not there".into(),
    };
    let (kernels, ours) = (show(&difference.kernels), show(&difference.ours));
    match difference.wrong {
        Wrong::NeverWas => format!("{fact}: {ours} was never so"),
        Wrong::Older => format!("{fact}: {kernels} with the kernel, older here: {ours}"),
    }
}

/// The script as a case, which expects what the kernel left, or anything newer.
pub(super) fn case(seed: u64, played: &Played, moment: &Moment, left: &Left) -> String {
    let script = cowshed_model::script::script(&played.ops[..moment.ops]);
    let expected = expectation(&left.kernels, played.live(moment), played.first());
    format!("    case(\n        \"random_{seed}\",\n        \"{script}\",\n        &[\"{expected}\"],\n    ),")
}

/// Lines of [`crate::expect`].
fn expectation(kernels: &Tree, live: &Tree, first: &Tree) -> String {
    let paths: BTreeSet<&String> = kernels.keys().chain(live.keys()).chain(first.keys()).collect();
    let mut lines = Vec::new();
    for path in paths.into_iter().filter(|path| !path.is_empty()) {
        match (kernels.get(path), live.get(path)) {
            (None, None) => lines.push(format!("!{path}")),
            (Some(node), None) | (None, Some(node)) => lines.push(format!("?{}", name(path, node, None))),
            (Some(node), Some(newer)) => lines.push(name(path, node, Some(newer))),
        }
    }
    for (path, node) in kernels.iter().filter(|(path, _)| live.contains_key(*path)) {
        let other = kernels
            .range(..path.clone())
            .find(|(_, other)| other.ino == node.ino && node.kind != FileKind::Directory);
        lines.extend(other.map(|(other, _)| format!("{other} == {path}")));
        attributes(path, node, first.get(path), &mut lines);
    }
    lines.join("; ")
}

fn name(path: &str, node: &Node, newer: Option<&Node>) -> String {
    match node.kind {
        FileKind::Directory => format!("{path}/"),
        FileKind::Symlink => format!("{path} -> {}", String::from_utf8_lossy(&node.content)),
        FileKind::Regular => {
            let newer = newer.filter(|newer| newer.content != node.content && newer.kind == node.kind);
            let newer = newer.map(|newer| format!(" | {}", content::describe(&newer.content)));
            let content = content::describe(&node.content);
            format!("{path} = {content}{}", newer.unwrap_or_default())
        }
        FileKind::Fifo => format!("{path} fifo"),
        FileKind::Socket => format!("{path} socket"),
        FileKind::CharDevice if node.rdev == (0, 0) => format!("{path} whiteout"),
        _ => format!("{path} char"),
    }
}

/// What differs from the beginning.
fn attributes(path: &str, node: &Node, first: Option<&Node>, lines: &mut Vec<String>) {
    let Some(first) = first.filter(|first| first.kind == node.kind) else {
        return;
    };
    if node.perm != first.perm {
        lines.push(format!("{path} mode {:o}", node.perm));
    }
    if node.uid != first.uid {
        lines.push(format!("{path} owner {}", node.uid));
    }
    let names: BTreeSet<_> = node.xattrs.keys().chain(first.xattrs.keys()).collect();
    for name in names {
        let text = String::from_utf8_lossy(name);
        match node.xattrs.get(name) {
            None => lines.push(format!("{path} !x {text}")),
            Some(value) if first.xattrs.get(name) != Some(value) => {
                lines.push(format!("{path} x {text}=={}", content::describe(value)));
            }
            Some(_) => {}
        }
    }
}
