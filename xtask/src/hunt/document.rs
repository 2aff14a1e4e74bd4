//! A Markdown document: its links, the code spans that name source files, and its headings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Directories whose files documents name in code spans.
const DIRECTORIES: [&str; 7] = ["benches", "crates", "docs", "fuzz", "scripts", "testing", "xtask"];

#[derive(Debug)]
pub(super) struct Document {
    /// From the workspace.
    pub path: PathBuf,
    /// Without fenced blocks, whose lines are empty.
    lines: Vec<String>,
    anchors: BTreeSet<String>,
}

/// A place in a document that leads somewhere.
#[derive(Debug)]
pub(super) struct Found {
    /// From 1.
    pub line: usize,
    pub kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `[text](target)`.
    Link { text: String, target: String },
    /// A code span that ends in `.rs`, or begins with a directory of the workspace.
    Path(String),
    /// A code span `Type::name`.
    Name(String),
}

impl Document {
    pub fn read(root: &Path, path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(path)).with_context(|| path.display().to_string())?;
        Ok(Self::parse(path, &text))
    }

    fn parse(path: &Path, text: &str) -> Self {
        let mut is_fenced = false;
        let mut lines = Vec::new();
        for line in text.lines() {
            let is_fence = line.trim_start().starts_with("```");
            lines.push(if is_fence || is_fenced { "" } else { line }.to_owned());
            is_fenced ^= is_fence;
        }
        Self {
            path: path.to_owned(),
            anchors: anchors(&lines),
            lines,
        }
    }

    /// Its lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines.iter().enumerate().map(|(i, line)| (i + 1, line.as_str()))
    }

    /// A heading of this name in a link.
    pub fn has_anchor(&self, anchor: &str) -> bool {
        self.anchors.contains(anchor)
    }

    /// All links, and all code spans that name a source file.
    pub fn links(&self) -> Vec<Found> {
        let mut all = Vec::new();
        let mut from = 0;
        for paragraph in self.lines.split(String::is_empty) {
            for (start, kind) in kinds(&paragraph.join("\n")) {
                let above = paragraph.join("\n")[..start].matches('\n').count();
                all.push(Found {
                    line: from + above + 1,
                    kind,
                });
            }
            from += paragraph.len() + 1;
        }
        all
    }
}

/// The links and spans of a paragraph, with where they begin.
fn kinds(text: &str) -> Vec<(usize, Kind)> {
    let mut found = Vec::new();
    let mut span_from = None;
    for (at, c) in text.char_indices() {
        match c {
            '`' => match span_from.take() {
                None => span_from = Some(at + 1),
                Some(from) => {
                    let span = &text[from..at];
                    if is_path(span) {
                        found.push((from, Kind::Path(span.to_owned())));
                    } else if is_name(span) {
                        found.push((from, Kind::Name(span.to_owned())));
                    }
                }
            },
            ']' if span_from.is_none() => found.extend(link(text, at)),
            _ => {}
        }
    }
    found
}

/// A path, without a pattern or a placeholder in it.
fn is_path(span: &str) -> bool {
    let is_plain = span.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    let is_below = |dir: &&str| span.strip_prefix(*dir).is_some_and(|rest| rest.starts_with('/'));
    is_plain && (span.ends_with(".rs") || DIRECTORIES.iter().any(is_below))
}

/// A function, constant or variant of a type.
fn is_name(span: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let parts = span.split_once("::");
    parts.is_some_and(|(of, name)| of.starts_with(char::is_uppercase) && is_word(of) && is_word(name))
}

/// The link whose text ends here.
fn link(text: &str, end: usize) -> Option<(usize, Kind)> {
    let target = text[end + 1..].strip_prefix('(')?;
    let target = &target[..target.find(')')?];
    let start = text[..end].rfind('[')?;
    let kind = Kind::Link {
        text: text[start + 1..end].split_whitespace().collect::<Vec<_>>().join(" "),
        target: target.trim().to_owned(),
    };
    Some((start, kind))
}

/// The names of headings as links have them: lower case, without punctuation, with hyphens for
/// spaces; a second one of a name gets a number.
fn anchors(lines: &[String]) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in lines.iter().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = seen.entry(name.clone()).or_default();
        anchors.insert(match *count {
            0 => name,
            count => format!("{name}-{count}"),
        });
        *count += 1;
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document::parse(Path::new("docs/A.md"), text)
    }

    #[test]
    fn links_and_spans_have_their_lines_and_fenced_ones_do_not_count() {
        let found = document(
            "# A\n\nSee `a/b.rs`, and [a\nlink](b.md#c),\n`x` `A::b` `a::b` [`f`](../f.rs).\n```\n`no.rs`\n```\n",
        );
        let found: Vec<_> = found.links().into_iter().map(|f| (f.line, f.kind)).collect();
        let link = |text: &str, target: &str| Kind::Link {
            text: text.into(),
            target: target.into(),
        };
        let expected = [
            (3, Kind::Path("a/b.rs".into())),
            (3, link("a link", "b.md#c")),
            (5, Kind::Name("A::b".into())),
            (5, link("`f`", "../f.rs")),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn headings_are_named_as_links_name_them() {
        let document = document("# Where is ...?\n## The `fsync` path\n## The `fsync` path\n");
        for anchor in ["where-is-", "the-fsync-path", "the-fsync-path-1"] {
            assert!(document.has_anchor(anchor), "{anchor}");
        }
        assert!(!document.has_anchor("where-is"));
    }
}
