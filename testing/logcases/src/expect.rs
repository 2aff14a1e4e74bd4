//! What must be there after the crash.
//!
//! An expectation is one or several alternatives, each a list of lines that must all hold; every
//! name that is found must be spoken of by some line.
//!
//! | Line | Says |
//! |---|---|
//! | `f = a8k` | a file of this content; `f = a8k \| b8k`: of one of these |
//! | `f` | is there, whatever it holds |
//! | `d/` | a directory |
//! | `l -> target`, `p fifo`, `p char`, `p socket` | a link, a special file |
//! | `p whiteout`, `f in-place` | what a whiteout rename leaves; a nodatacow file |
//! | `!f` | is not there |
//! | `?` before any of these | if it is there, then so |
//! | `f == g` | two names of one file |
//! | `f links 2`, `f mode 600`, `f owner 7`, `f mtime 5` | the attribute |
//! | `f x name=value`, `f !x name` | has the extended attribute, does not have it |
//! | `one f g` | exactly one of the names is there |
//! | `d/f* count 5` | so many names begin so |

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_model::script::short as content;
use cowshed_model::tree::{Node, Tree};
use cowshed_vfs::FileKind;

/// Nothing where the tree is as one of the alternatives says, else why each is not met.
pub fn check(alternatives: &[&str], found: &Tree) -> Result<()> {
    let mut complaints = Vec::new();
    for text in alternatives {
        let wrong = judge(text, found).with_context(|| format!("expectation `{text}`"))?;
        if wrong.is_empty() {
            return Ok(());
        }
        complaints.push(wrong.join("; "));
    }
    bail!(
        "not as expected: {}\nfound: {}",
        complaints.join("\n  nor: "),
        describe(found)
    )
}

/// Can the alternatives be understood?
pub fn is_understood(alternatives: &[&str]) -> Result<()> {
    // Every name is there, so that every word of its line is looked at.
    let words = alternatives.iter().flat_map(|text| text.split([';', ' ']));
    let names = words.map(|word| word.trim_start_matches('?').trim_end_matches('/').to_owned());
    let found: Tree = names.map(|name| (name, Node::default())).collect();
    alternatives.iter().try_for_each(|text| judge(text, &found).map(drop))
}

fn judge(text: &str, found: &Tree) -> Result<Vec<String>> {
    let mut spoken: BTreeSet<String> = BTreeSet::from([String::new()]);
    let mut wrong = Vec::new();
    for line in text.split(';').map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(complaint) = judge_line(line, found, &mut spoken).with_context(|| format!("`{line}`"))? {
            wrong.push(format!("{line}: {complaint}"));
        }
    }
    wrong.extend(
        found
            .keys()
            .filter(|path| !spoken.contains(*path))
            .map(|path| format!("{path} should not be there")),
    );
    Ok(wrong)
}

type Complaint = Option<String>;

fn judge_line(line: &str, found: &Tree, spoken: &mut BTreeSet<String>) -> Result<Complaint> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words[0] == "one" {
        spoken.extend(words[1..].iter().map(|path| (*path).to_owned()));
        let count = words[1..].iter().filter(|path| found.contains_key(**path)).count();
        return Ok((count != 1).then(|| format!("{count} are there")));
    }
    if let Some(path) = line.strip_prefix('!') {
        return Ok(found.get(path).map(|node| format!("is there, {}", show(node))));
    }
    let (optional, first) = match words[0].strip_prefix('?') {
        Some(path) => (true, path),
        None => (false, words[0]),
    };
    if let (Some(prefix), ["count", count]) = (first.strip_suffix('*'), &words[1..]) {
        let names: Vec<&String> = found.keys().filter(|path| path.starts_with(prefix)).collect();
        spoken.extend(names.iter().map(|name| (*name).clone()));
        let expected = content::count(count)? as usize;
        return Ok((names.len() != expected).then(|| format!("{} are there", names.len())));
    }
    let path = first.strip_suffix('/').unwrap_or(first);
    spoken.insert(path.to_owned());
    let Some(node) = found.get(if path == "." { "" } else { path }) else {
        return Ok((!optional).then(|| "is not there".into()));
    };
    if first.ends_with('/') {
        ensure!(words.len() == 1, "words after a directory");
        return Ok((node.kind != FileKind::Directory).then(|| show(node)));
    }
    if let ["==", other] = &words[1..] {
        spoken.insert((*other).to_owned());
    }
    judge_node(&words[1..], line, node, found)
}

fn judge_node(words: &[&str], line: &str, node: &Node, found: &Tree) -> Result<Complaint> {
    let unless = |is_so: bool, what: String| Ok((!is_so).then_some(what));
    match words {
        [] => Ok(None),
        ["=", ..] => {
            let (_, wanted) = line.split_once('=').context("an `=`")?;
            let mut any = false;
            for text in wanted.split('|') {
                any |= content::bytes(text.trim())? == *node.content;
            }
            unless(any && node.kind == FileKind::Regular, show(node))
        }
        ["->", target] => unless(
            node.kind == FileKind::Symlink && *node.content == target.as_bytes(),
            show(node),
        ),
        ["==", other] => unless(
            found.get(*other).is_some_and(|other| other.ino == node.ino),
            "are not one file".into(),
        ),
        ["links", count] => unless(u64::from(node.nlink) == content::count(count)?, node.nlink.to_string()),
        ["mode", mode] => unless(node.perm == u32::from_str_radix(mode, 8)?, format!("{:o}", node.perm)),
        ["owner", id] => unless(
            [u64::from(node.uid), u64::from(node.gid)] == [content::count(id)?; 2],
            format!("{}:{}", node.uid, node.gid),
        ),
        ["mtime", secs] => unless(
            node.mtime.secs as u64 == content::count(secs)?,
            format!("{:?}", node.mtime),
        ),
        ["fifo"] => unless(node.kind == FileKind::Fifo, show(node)),
        ["char"] => unless(node.kind == FileKind::CharDevice && node.rdev == (1, 3), show(node)),
        ["whiteout"] => unless(node.kind == FileKind::CharDevice && node.rdev == (0, 0), show(node)),
        ["in-place"] => unless(node.in_place, "is not".into()),
        ["socket"] => unless(node.kind == FileKind::Socket, show(node)),
        ["x", pair] => {
            let (name, value) = pair.split_once('=').context("name=value")?;
            let value = match value.strip_prefix('=') {
                Some(short) => content::bytes(short)?,
                None => value.into(),
            };
            let has = node.xattrs.get(name.as_bytes());
            unless(has == Some(&value), format!("{:?}", has.map(Vec::len)))
        }
        ["!x", name] => unless(!node.xattrs.contains_key(name.as_bytes()), "has it".into()),
        _ => bail!("cannot be understood"),
    }
}

fn show(node: &Node) -> String {
    match node.kind {
        FileKind::Regular => content::describe(&node.content),
        FileKind::Symlink => format!("-> {}", String::from_utf8_lossy(&node.content)),
        kind => format!("{kind:?}"),
    }
}

/// The tree in one line.
pub fn describe(tree: &Tree) -> String {
    const NAMES_MAX: usize = 24;
    let mut text: Vec<String> = tree
        .iter()
        .filter(|(path, _)| !path.is_empty())
        .take(NAMES_MAX)
        .map(|(path, node)| format!("{path} ({}) {} links {}", node.ino, show(node), node.nlink))
        .collect();
    if tree.len() > NAMES_MAX {
        text.push(format!("... {} in all", tree.len()));
    }
    text.join("; ")
}
