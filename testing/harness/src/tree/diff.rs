//! What differs between two trees.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use super::snapshot::{BLOCK_BYTES, Content, Kind, Node, Tree};

/// What is compared. Names, types, contents, sizes, modes, symlink targets, device numbers, hard
/// links between the entries of the tree and times of modification always are.
#[derive(Clone, Debug)]
pub struct Compare {
    pub owners: bool,
    pub xattrs: bool,
    pub atime: bool,
    pub ctime: bool,
    pub btime: bool,
    /// Where SEEK_DATA and SEEK_HOLE see data.
    pub holes: bool,
    /// `st_blocks`
    pub blocks: bool,
    pub inodes: bool,
    pub directory_sizes: bool,
    pub directory_links: bool,
    /// The times of directories, which change with the entries in them.
    pub directory_times: bool,
    /// How many differences are kept in words; all are counted.
    pub report_max: usize,
}

impl Compare {
    /// The same volume, seen twice: everything.
    pub fn same_volume() -> Compare {
        Compare {
            owners: true,
            xattrs: true,
            atime: true,
            ctime: true,
            btime: true,
            holes: true,
            blocks: true,
            inodes: true,
            directory_sizes: true,
            directory_links: true,
            directory_times: true,
            report_max: 20,
        }
    }

    /// A copy: what `cp -a` would keep.
    pub fn copy() -> Compare {
        Compare {
            atime: false,
            ctime: false,
            btime: false,
            holes: false,
            blocks: false,
            inodes: false,
            directory_sizes: false,
            directory_links: false,
            ..Compare::same_volume()
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub path: OsString,
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() {
            OsStr::new(".")
        } else {
            &self.path
        };
        write!(f, "{}: {}", path.as_bytes().escape_ascii(), self.what)
    }
}

/// The result of a comparison; printed, it names left and right in this order.
#[derive(Clone, Debug, Default)]
pub struct Differences {
    pub first: Vec<Difference>,
    pub total: usize,
    report_max: usize,
}

impl Differences {
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    #[track_caller]
    pub fn assert_none(&self) {
        assert!(self.is_empty(), "{self}");
    }

    fn add(&mut self, path: &OsStr, what: impl FnOnce() -> String) {
        self.total += 1;
        if self.first.len() < self.report_max {
            self.first.push(Difference {
                path: path.to_owned(),
                what: what(),
            });
        }
    }

    fn value<T: PartialEq>(&mut self, path: &OsStr, name: &str, left: &T, right: &T, show: impl Fn(&T) -> String) {
        if left != right {
            self.add(path, || format!("{name} {} != {}", show(left), show(right)));
        }
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("the trees are the same");
        }
        writeln!(f, "the trees differ in {} places (left != right):", self.total)?;
        for difference in &self.first {
            writeln!(f, "  {difference}")?;
        }
        match self.total - self.first.len() {
            0 => Ok(()),
            more => writeln!(f, "  ... and {more} more"),
        }
    }
}

impl Tree {
    /// What differs; of a directory that one side lacks, only the directory is named.
    pub fn diff(&self, right: &Tree, options: &Compare) -> Differences {
        let mut found = Differences {
            report_max: options.report_max,
            ..Differences::default()
        };
        let mut lacking: Option<OsString> = None;
        let paths: BTreeSet<&OsString> = self.nodes.keys().chain(right.nodes.keys()).collect();
        for path in paths {
            if lacking.as_ref().is_some_and(|dir| is_below(path, dir)) {
                continue;
            }
            match (self.nodes.get(path), right.nodes.get(path)) {
                (Some(l), Some(r)) => diff_nodes(path, l, r, options, &mut found),
                (l, r) => {
                    let (side, node) = if r.is_none() { ("left", l) } else { ("right", r) };
                    let Some(node) = node else { continue };
                    found.add(path, || format!("{} only on the {side}", node.kind.name()));
                    if node.kind == Kind::Directory {
                        lacking = Some(path.clone());
                    }
                }
            }
        }
        found
    }
}

fn is_below(path: &OsStr, dir: &OsStr) -> bool {
    path.as_bytes()
        .strip_prefix(dir.as_bytes())
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}

fn diff_nodes(path: &OsStr, left: &Node, right: &Node, options: &Compare, found: &mut Differences) {
    diff_kinds(path, left, right, options, found);
    let directory = left.kind == Kind::Directory;
    let number = |n: &u64| n.to_string();
    found.value(path, "mode", &left.mode, &right.mode, |m| format!("{m:04o}"));
    if options.owners {
        let owner = |node: &Node| (node.uid, node.gid);
        found.value(path, "owner", &owner(left), &owner(right), |(uid, gid)| {
            format!("{uid}:{gid}")
        });
    }
    if !directory || options.directory_sizes {
        found.value(path, "size", &left.size_bytes, &right.size_bytes, number);
    }
    if !directory || options.directory_links {
        found.value(path, "links", &left.links, &right.links, u32::to_string);
    }
    found.value(path, "is the inode of", &left.first_link, &right.first_link, |p| {
        p.display().to_string()
    });
    if options.blocks {
        found.value(path, "blocks", &left.blocks, &right.blocks, number);
    }
    if options.inodes {
        found.value(path, "inode", &left.inode, &right.inode, number);
    }
    if !directory || options.directory_times {
        found.value(path, "mtime", &left.mtime, &right.mtime, ToString::to_string);
        if options.ctime {
            found.value(path, "ctime", &left.ctime, &right.ctime, ToString::to_string);
        }
    }
    if options.atime {
        found.value(path, "atime", &left.atime, &right.atime, ToString::to_string);
    }
    if options.btime {
        let show = |time: &Option<super::Time>| time.map_or("none".to_string(), |time| time.to_string());
        found.value(path, "btime", &left.btime, &right.btime, show);
    }
    if options.xattrs {
        diff_xattrs(path, left, right, found);
    }
}

fn diff_kinds(path: &OsStr, left: &Node, right: &Node, options: &Compare, found: &mut Differences) {
    match (&left.kind, &right.kind) {
        (Kind::File(l), Kind::File(r)) => diff_contents(path, l, r, options, found),
        (Kind::Symlink(l), Kind::Symlink(r)) => {
            found.value(path, "target", l, r, |target| target.display().to_string());
        }
        (l, r) if l.name() != r.name() => found.add(path, || format!("{} != {}", l.name(), r.name())),
        (l, r) => found.value(path, "device number", l, r, |kind| format!("{kind:?}")),
    }
}

fn diff_contents(path: &OsStr, left: &Content, right: &Content, options: &Compare, found: &mut Differences) {
    if left.blocks != right.blocks {
        let (l, r): (BTreeSet<_>, BTreeSet<_>) = (
            left.blocks.iter().copied().collect(),
            right.blocks.iter().copied().collect(),
        );
        let numbers: BTreeSet<u64> = l.symmetric_difference(&r).map(|(number, _)| *number).collect();
        found.add(path, || {
            let first = numbers.first().copied().unwrap_or_default() * BLOCK_BYTES as u64;
            let zero =
                |blocks: &BTreeSet<(u64, u64)>| !blocks.iter().any(|(number, _)| number * BLOCK_BYTES as u64 == first);
            let note = match (zero(&l), zero(&r)) {
                (true, _) => " (zeros on the left)",
                (_, true) => " (zeros on the right)",
                (false, false) => "",
            };
            let count = numbers.len();
            format!("contents differ in {count} block(s) of {BLOCK_BYTES}, first at byte {first}{note}")
        });
    }
    if options.holes {
        found.value(path, "data ranges", &left.data, &right.data, |ranges| {
            let shown: Vec<String> = ranges
                .iter()
                .take(8)
                .map(|r| format!("{}..{}", r.start, r.end))
                .collect();
            format!("[{}{}]", shown.join(" "), if ranges.len() > 8 { " ..." } else { "" })
        });
    }
}

fn diff_xattrs(path: &OsStr, left: &Node, right: &Node, found: &mut Differences) {
    let names: BTreeSet<&OsString> = left.xattrs.keys().chain(right.xattrs.keys()).collect();
    for name in names {
        let show = |value: &Option<&Vec<u8>>| match value {
            None => "none".to_string(),
            Some(value) if value.len() <= 32 => format!("\"{}\"", value.escape_ascii()),
            Some(value) => format!("\"{}\"... of {} bytes", value[..32].escape_ascii(), value.len()),
        };
        let label = format!("xattr {}", name.display());
        found.value(path, &label, &left.xattrs.get(name), &right.xattrs.get(name), show);
    }
}
