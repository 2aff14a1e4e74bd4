//! Labels of SELinux, by the rules of file_contexts(5).

use std::collections::HashSet;

use cowshed_source::{Body, Tree, Xattr};
use regex::bytes::Regex;

use super::error::{Error, Result};
use super::policy::walk;

const ATTRIBUTE: &[u8] = b"security.selinux";
const NO_LABEL: &str = "<<none>>";
/// Characters that mean something in a regular expression.
const SPECIAL: &[char] = &['.', '^', '$', '?', '*', '+', '|', '[', '(', '{', '\\'];

/// What kind of file a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Dir,
    Char,
    Block,
    Socket,
    Fifo,
    Symlink,
}

#[derive(Clone, Debug)]
struct Rule {
    /// What paths begin with that match.
    prefix: Box<str>,
    /// `None`: the prefix is the whole path.
    regex: Option<Regex>,
    kind: Option<Kind>,
    /// `None`: no label.
    context: Option<Box<str>>,
}

impl Rule {
    fn matches(&self, path: &[u8], kind: Kind) -> bool {
        let fits = self.kind.is_none_or(|own| own == kind) && path.starts_with(self.prefix.as_bytes());
        fits && match &self.regex {
            Some(regex) => regex.is_match(path),
            None => path.len() == self.prefix.len(),
        }
    }
}

/// Rules, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct FileContexts {
    rules: Vec<Rule>,
}

impl FileContexts {
    /// Adds the rules of a file.
    pub(super) fn add(&mut self, text: &str) -> Result<()> {
        for (line, number) in text.lines().zip(1..) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            let rule = rule(&words).map_err(|what| Error::Option(format!("file contexts, line {number}: {what}")))?;
            self.rules.push(rule);
        }
        Ok(())
    }

    /// Rules for one path alone come first, then the last rule that matches.
    fn label(&self, path: &[u8], kind: Kind) -> Option<&str> {
        let matching = || self.rules.iter().rev().filter(|rule| rule.matches(path, kind));
        let exact = matching().find(|rule| rule.regex.is_none());
        exact.or_else(|| matching().next())?.context.as_deref()
    }
}

fn rule(words: &[&str]) -> std::result::Result<Rule, String> {
    let (path, kind, context) = match words {
        [path, context] => (path, None, context),
        [path, kind, context] => {
            let kind = match *kind {
                "--" => Kind::File,
                "-d" => Kind::Dir,
                "-c" => Kind::Char,
                "-b" => Kind::Block,
                "-s" => Kind::Socket,
                "-p" => Kind::Fifo,
                "-l" => Kind::Symlink,
                other => return Err(format!("{other:?} is no kind of file")),
            };
            (path, Some(kind), context)
        }
        _ => return Err("not PATH [KIND] CONTEXT".into()),
    };
    let (prefix, is_whole) = literal(path);
    let regex = match is_whole {
        true => None,
        false => {
            let anchored = format!("(?s-u)^(?:{path})$");
            // Of PCRE, what can be matched in linear time: no back references, no look-around.
            Some(Regex::new(&anchored).map_err(|error| error.to_string())?)
        }
    };
    Ok(Rule {
        prefix: prefix.into(),
        regex,
        kind,
        context: (*context != NO_LABEL).then(|| (*context).into()),
    })
}

/// What everything that matches begins with, and whether that is all of it.
fn literal(pattern: &str) -> (String, bool) {
    // Alternatives need not begin with the same.
    if pattern.contains('|') && !pattern.contains('(') {
        return (String::new(), false);
    }
    let mut prefix = String::new();
    let mut rest = pattern.chars().peekable();
    while let Some(mut char) = rest.next() {
        match (char, rest.peek()) {
            ('\\', Some(escaped)) if escaped.is_ascii_punctuation() => {
                char = *escaped;
                rest.next();
            }
            (special, _) if SPECIAL.contains(&special) => return (prefix, false),
            _ => {}
        }
        // It may be there no times.
        if matches!(rest.peek(), Some('?' | '*' | '{')) {
            return (prefix, false);
        }
        prefix.push(char);
    }
    (prefix, true)
}

/// Labels everything that a rule is about. An inode with several names is labelled by the first.
pub(super) fn apply(tree: &mut Tree, contexts: &FileContexts) {
    let mut labels = Vec::new();
    let mut seen = HashSet::new();
    let mut note = |path: &[u8], id| {
        if !seen.insert(id) {
            return;
        }
        let kind = match &tree[id].body {
            Body::Dir(_) => Kind::Dir,
            Body::File(_) => Kind::File,
            Body::Symlink(_) => Kind::Symlink,
            Body::Char { .. } => Kind::Char,
            Body::Block { .. } => Kind::Block,
            Body::Fifo => Kind::Fifo,
            Body::Socket => Kind::Socket,
        };
        let path = [b"/", path].concat();
        labels.push((id, contexts.label(&path, kind).map(str::to_owned)));
    };
    note(b"", Tree::ROOT);
    walk(tree, Tree::ROOT, Vec::new(), &mut note);
    for (id, label) in labels {
        let xattrs = &mut tree[id].meta.xattrs;
        xattrs.retain(|xattr| *xattr.name != *ATTRIBUTE);
        if let Some(label) = label {
            // With the zero that ends strings of C: as setfiles(8) stores it.
            xattrs.push(Xattr {
                name: ATTRIBUTE.into(),
                value: [label.as_bytes(), b"\0"].concat().into(),
            });
            xattrs.sort_unstable();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_paths_come_first_then_the_last_rule_that_matches() {
        let mut contexts = FileContexts::default();
        let rules = "# rules\n/.*  default\n/etc(/.*)?  etc\n/etc/shadow.*  --  shadow\n/etc/mtab -l <<none>>\n\
                     /etc/.*\\.conf  conf\n/etc/a\\.conf  exact\n/etc/z.*  last\n/colou?r  colour\n";
        contexts.add(rules).unwrap();
        for (path, kind, expected) in [
            ("/usr", Kind::Dir, Some("default")),
            ("/etc", Kind::Dir, Some("etc")),
            ("/etc/shadow-", Kind::File, Some("shadow")),
            ("/etc/shadow", Kind::Dir, Some("etc")),
            ("/etc/mtab", Kind::Symlink, None),
            ("/etc/b.conf", Kind::File, Some("conf")),
            ("/etc/a.conf", Kind::File, Some("exact")),
            ("/etc/z.conf", Kind::File, Some("last")),
            ("/etcetera", Kind::File, Some("default")),
            ("/color", Kind::File, Some("colour")),
        ] {
            assert_eq!(contexts.label(path.as_bytes(), kind), expected, "{path}");
        }
        for wrong in ["/a", "/a -x c", "/(a c", "/a(?=b) c"] {
            assert!(
                FileContexts::default()
                    .add(wrong)
                    .unwrap_err()
                    .to_string()
                    .contains("line 1"),
                "{wrong}"
            );
        }
    }
}
