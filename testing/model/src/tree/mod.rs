//! The files of a volume as plain values, to be compared: read from a mount in this process
//! ([`take`]), through Linux ([`take_mount`]), or from a model ([`of_model`]).

mod mount;
mod of_model;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;

use cowshed_vfs::{Context, Entry, Error, FileKind, FileSystem, Handle, Ioctl, Lookup, NodeId, Result, Timestamp};
pub use mount::take_mount;
pub use of_model::of_model;

static ROOT: Context = Context::root();

/// Longer than all names, lists and values of these tests.
const BUFFER_BYTES: usize = 64 << 10;
const DEPTH_MAX: usize = 64;

/// Shared: there are many states of few files.
pub type Content = Arc<Vec<u8>>;

/// What a name leads to. Access times are left out: looking changes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub ino: u64,
    pub kind: FileKind,
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Major and minor number of a device node.
    pub rdev: (u32, u32),
    pub size_bytes: u64,
    pub mtime: Timestamp,
    /// Its data is written in place: bytes of it may be newer than the last commit.
    pub in_place: bool,
    /// Of a file its bytes, of a symbolic link its target.
    pub content: Content,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Default for Node {
    /// An empty file without an owner.
    fn default() -> Node {
        Node {
            ino: 0,
            kind: FileKind::Regular,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size_bytes: 0,
            mtime: Timestamp::default(),
            in_place: false,
            content: Arc::default(),
            xattrs: BTreeMap::new(),
        }
    }
}

/// All names, by path without a leading slash; the root is the empty path.
pub type Tree = BTreeMap<String, Node>;

/// Reads everything below the root.
pub fn take(fs: &dyn FileSystem) -> Result<Tree> {
    take_below(fs, NodeId::ROOT, "")
}

/// Reads a directory and everything below it.
pub fn take_below(fs: &dyn FileSystem, node: NodeId, path: &str) -> Result<Tree> {
    let mut tree = Tree::new();
    collect(fs, node, path, &mut tree, &mut BTreeMap::new(), 0)?;
    Ok(tree)
}

/// Files of many names are read by the first of them.
type Linked = BTreeMap<NodeId, Node>;

fn collect(
    fs: &dyn FileSystem,
    node: NodeId,
    path: &str,
    tree: &mut Tree,
    linked: &mut Linked,
    depth: usize,
) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::TooManySymlinks);
    }
    let found = match linked.get(&node) {
        Some(found) => found.clone(),
        None => load(fs, node)?,
    };
    if found.kind == FileKind::Regular && found.nlink > 1 {
        linked.insert(node, found.clone());
    }
    let is_dir = found.kind == FileKind::Directory;
    tree.insert(path.to_owned(), found);
    if !is_dir {
        return Ok(());
    }
    for name in names(fs, node)? {
        let Entry { node: child, .. } = match fs.lookup(&ROOT, node, &name)? {
            Lookup::Found(entry) => entry,
            Lookup::Absent { .. } => return Err(Error::NotFound),
        };
        let path = below(path, &String::from_utf8_lossy(&name));
        let result = collect(fs, child, &path, tree, linked, depth + 1);
        fs.forget(child, 1);
        result?;
    }
    Ok(())
}

fn below(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

/// Major and minor number of a device node.
fn device(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

/// Names of a directory but `.` and `..`.
pub fn names(fs: &dyn FileSystem, node: NodeId) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut sink = |entry: cowshed_vfs::DirEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        ControlFlow::Continue(())
    };
    fs.readdir(&ROOT, node, Handle::NONE, 0, &mut sink)?;
    Ok(names)
}

/// One node.
pub fn load(fs: &dyn FileSystem, node: NodeId) -> Result<Node> {
    let attr = fs.getattr(&ROOT, node, None)?;
    let content = match attr.kind {
        FileKind::Regular => {
            let mut content = vec![0; attr.size_bytes as usize];
            let got = fs.read(&ROOT, node, Handle::NONE, 0, &mut content)?;
            content.truncate(got);
            content
        }
        FileKind::Symlink => fs.readlink(&ROOT, node)?,
        _ => Vec::new(),
    };
    let mut buf = vec![0; BUFFER_BYTES];
    let len = fs.listxattr(&ROOT, node, &mut buf)?;
    let list: Vec<Vec<u8>> = buf[..len]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    let mut xattrs = BTreeMap::new();
    for name in list {
        let len = fs.getxattr(&ROOT, node, &name, &mut buf)?;
        xattrs.insert(name, buf[..len].to_vec());
    }
    Ok(Node {
        ino: attr.ino,
        kind: attr.kind,
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device(attr.rdev),
        size_bytes: attr.size_bytes,
        mtime: attr.mtime,
        in_place: attr.kind == FileKind::Regular && is_in_place(fs, node)?,
        content: Arc::new(content),
        xattrs,
    })
}

/// Is the file nodatacow?
fn is_in_place(fs: &dyn FileSystem, node: NodeId) -> Result<bool> {
    const GETFLAGS: u32 = 0x8008_6601;
    let call = Ioctl {
        cmd: GETFLAGS,
        arg: 0,
        compat: false,
    };
    let mut out = [0; 8];
    fs.ioctl(&ROOT, node, Handle::NONE, &call, &[], &mut out)?;
    let [a, b, c, d, ..] = out;
    Ok(u32::from_le_bytes([a, b, c, d]) & NOCOW != 0)
}

/// `FS_NOCOW_FL`.
pub const NOCOW: u32 = crate::op::chattr::NOCOW;

/// What a commit alone decides: not the bytes of files that are written in place.
pub fn committed_part(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    for node in tree.values_mut().filter(|node| node.in_place) {
        node.content = Arc::default();
    }
    tree
}

/// All differences, one each.
pub fn all_differences(expected: &Tree, found: &Tree) -> Vec<String> {
    let more = found.keys().filter(|path| !expected.contains_key(*path));
    let differs = |path: &String| match (expected.get(path), found.get(path)) {
        (Some(_), None) => Some(format!("{path}: missing")),
        (None, Some(_)) => Some(format!("{path}: should not be there")),
        (Some(a), Some(b)) if a != b => Some(format!("{path}: {}", difference(a, b))),
        _ => None,
    };
    expected.keys().chain(more).filter_map(differs).collect()
}

/// The first differences, one per line; empty where there are none.
pub fn differences(expected: &Tree, found: &Tree) -> String {
    const LINES_MAX: usize = 10;
    let mut lines = all_differences(expected, found);
    let more = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    if more > 0 {
        lines.push(format!("... and {more} more"));
    }
    lines.join("\n")
}

fn difference(a: &Node, b: &Node) -> String {
    let mut out = String::new();
    let plain = |n: &Node| Node {
        content: Arc::default(),
        xattrs: BTreeMap::new(),
        ..n.clone()
    };
    if plain(a) != plain(b) {
        let _ = write!(out, "{:?} became {:?}; ", plain(a), plain(b));
    }
    if a.xattrs != b.xattrs {
        let _ = write!(out, "xattrs {:?} became {:?}; ", a.xattrs.keys(), b.xattrs.keys());
    }
    if a.content != b.content {
        let at = a.content.iter().zip(b.content.iter()).position(|(x, y)| x != y);
        let at = at.unwrap_or(a.content.len().min(b.content.len()));
        let _ = write!(out, "content differs from byte {at} on");
    }
    out
}
