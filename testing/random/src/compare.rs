//! Is the file system what the model says? Names, attributes, contents, extended attributes,
//! identities of inodes.

use std::collections::HashMap;

use anyhow::{Result, anyhow, ensure};
use cowshed_model::{At, BLOCK_BYTES, Body, Content, Id, Model, Name, Node, Op, SLOTS, XATTR_NAMES, xattr_name};
use cowshed_vfs::{Attr, Context, Error, FileKind, FileSystem, Handle, NodeId, SeekKind};

use crate::subject::Subject;

static ROOT: Context = Context::root();
const PIECE_BYTES: u64 = 64 << 10;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// All but the contents of files that are written in place: they may be newer than the last
    /// commit.
    Crashed,
    /// All but times.
    NoTimes,
    All,
}

/// Which inode number the model's nodes have on the volume.
pub type Numbers = HashMap<Id, u64>;

/// Compares everything that has a name or is held open.
pub fn everything(subject: &Subject, model: &Model, numbers: &mut Numbers, depth: Depth) -> Result<()> {
    below(subject, model, &At::Path(Vec::new()), numbers, depth)
}

/// The same for what lies below a directory, and what is held open.
pub fn below(subject: &Subject, model: &Model, top: &At, numbers: &mut Numbers, depth: Depth) -> Result<()> {
    numbers.retain(|id, _| model.exists(*id));
    let mut walk = Walk {
        subject,
        model,
        numbers,
        depth,
        seen: HashMap::new(),
    };
    let At::Path(mut path) = top.clone() else {
        return Err(anyhow!("a path is needed"));
    };
    walk.dir(&mut path)?;
    for slot in 0..SLOTS {
        if let Some(id) = model.slot(slot) {
            walk.node(&At::Slot(slot), id)?;
        }
    }
    let mut owners: HashMap<u64, Id> = HashMap::new();
    for (id, ino) in numbers.iter() {
        if let Some(other) = owners.insert(*ino, *id) {
            return Err(anyhow!("{id:?} and {other:?} have the same number {ino}"));
        }
    }
    Ok(())
}

/// Compares one node of the model with what a path leads to.
pub fn one(subject: &Subject, path: &[Name], model: &Model, id: Id) -> Result<()> {
    let mut numbers = Numbers::new();
    let mut walk = Walk {
        subject,
        model,
        numbers: &mut numbers,
        depth: Depth::All,
        seen: HashMap::new(),
    };
    walk.node(&At::Path(path.to_vec()), id)
}

/// Paths of all directories, by inode number.
pub fn directories(subject: &Subject) -> Result<HashMap<u64, Vec<Name>>> {
    let names: HashMap<Vec<u8>, Name> = (0..Name::FIRST_WIDE + Name::WIDE)
        .map(|n| (Name(n).bytes(), Name(n)))
        .collect();
    let mut found = HashMap::new();
    let mut left = vec![Vec::new()];
    while let Some(path) = left.pop() {
        let inner = subject.with(&At::Path(path.clone()), |node| {
            let attr = subject.attr(node)?;
            let inner = match attr.kind {
                FileKind::Directory => subject.names(node, 50)?,
                _ => return Ok(None),
            };
            Ok(Some((attr.ino, inner)))
        })?;
        let Some((ino, inner)) = inner else { continue };
        left.extend(
            inner
                .iter()
                .filter_map(|name| Some([&path[..], &[*names.get(name)?]].concat())),
        );
        found.insert(ino, path);
    }
    Ok(found)
}

/// Compares the attributes of what an operation touched.
pub fn attributes(subject: &Subject, model: &Model, op: &Op) -> Result<()> {
    for at in op.touched() {
        match (subject.with(&at, |node| subject.attr(node)), model.resolve(&at)) {
            (Ok(attr), Ok(id)) => {
                same_attr(&attr, model.node(id), Depth::All).map_err(|e| e.context(format!("{at:?}")))?
            }
            (Err(found), Err(expected)) => ensure!(found == expected, "{at:?}: {found:?}, expected {expected:?}"),
            (found, expected) => return Err(anyhow!("{at:?}: {found:?}, expected {expected:?}")),
        }
    }
    Ok(())
}

fn same_attr(attr: &Attr, node: &Node, depth: Depth) -> Result<()> {
    let mut found = Attr {
        ino: 0,
        blocks_512: 0,
        is_estimate: false,
        blksize: 0,
        ..*attr
    };
    if depth == Depth::NoTimes {
        (found.atime, found.mtime, found.ctime, found.btime) = (node.atime, node.mtime, node.ctime, node.btime);
    }
    let expected = Attr {
        ino: 0,
        size_bytes: node.size_bytes(),
        blocks_512: 0,
        is_estimate: false,
        blksize: 0,
        kind: node.kind,
        perm: node.perm,
        nlink: node.nlink,
        uid: node.uid,
        gid: node.gid,
        rdev: node.rdev,
        atime: node.atime,
        mtime: node.mtime,
        ctime: node.ctime,
        btime: node.btime,
    };
    ensure!(
        found == expected,
        "attributes\n   found    {found:?}\n   expected {expected:?}"
    );
    Ok(())
}

struct Walk<'a> {
    subject: &'a Subject,
    model: &'a Model,
    numbers: &'a mut Numbers,
    depth: Depth,
    seen: HashMap<Id, ()>,
}

impl Walk<'_> {
    fn dir(&mut self, path: &mut Vec<Name>) -> Result<()> {
        let at = At::Path(path.clone());
        let id = self.model.resolve(&at).expect("walks the model");
        self.node(&at, id)?;
        let Ok(names) = self.model.names(id) else { return Ok(()) };
        for name in names.keys() {
            path.push(*name);
            self.dir(path)?;
            path.pop();
        }
        Ok(())
    }

    /// Everything about one node, once.
    fn node(&mut self, at: &At, id: Id) -> Result<()> {
        let first = self.seen.insert(id, ()).is_none();
        let (subject, model, depth) = (self.subject, self.model, self.depth);
        let judge = |node| -> Result<u64> {
            let attr = subject.attr(node)?;
            if first {
                same_node(subject, model, node, &attr, model.node(id), depth)?;
            }
            Ok(attr.ino)
        };
        let mut verdict = Ok(0);
        subject
            .with(at, |node| {
                verdict = judge(node);
                Ok(())
            })
            .map_err(|e| anyhow!("{at:?} ({id:?}): {e}"))?;
        let ino = verdict.map_err(|e| e.context(format!("{at:?} ({id:?}, {:?})", model.node(id).kind)))?;
        let known = *self.numbers.entry(id).or_insert(ino);
        ensure!(known == ino, "{at:?} ({id:?}): number {ino}, was {known}");
        Ok(())
    }
}

fn same_node(subject: &Subject, model: &Model, node: NodeId, attr: &Attr, expected: &Node, depth: Depth) -> Result<()> {
    let in_place = depth == Depth::Crashed && expected.flags & Op::NOCOW != 0 && !expected.is_dir();
    same_attr(attr, expected, depth)?;
    let flags = subject.flags(node)?;
    ensure!(
        flags == expected.flags,
        "flags {flags:#x}, expected {:#x}",
        expected.flags
    );
    same_xattrs(subject, node, expected)?;
    match &expected.body {
        Body::Dir { names, .. } => {
            let mut found = subject.names(node, 50)?;
            found.sort();
            let mut wanted: Vec<_> = names.keys().map(|n| n.bytes()).collect();
            wanted.sort();
            ensure!(
                found == wanted,
                "names\n   found    {}\n   expected {}",
                show(&found),
                show(&wanted)
            );
        }
        Body::Symlink(target) => {
            let found = subject.fs.readlink(&ROOT, node)?;
            ensure!(
                found == *target,
                "target of {} bytes, expected {}",
                found.len(),
                target.len()
            );
        }
        Body::File(content) if !in_place => same_content(subject, node, content)?,
        Body::File(_) | Body::Special => {}
    }
    let _ = model;
    Ok(())
}

fn show(names: &[Vec<u8>]) -> String {
    names
        .iter()
        .map(|n| String::from_utf8_lossy(&n[..n.len().min(12)]).into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

fn same_xattrs(subject: &Subject, node: NodeId, expected: &Node) -> Result<()> {
    let fs = &subject.fs;
    let mut list = vec![0; 4096];
    let len = fs.listxattr(&ROOT, node, &mut list)?;
    let mut names: Vec<_> = list[..len]
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    names.sort();
    let mut wanted: Vec<_> = expected.xattrs.keys().map(|n| xattr_name(*n)).collect();
    wanted.sort();
    ensure!(names == wanted, "xattrs {}, expected {}", show(&names), show(&wanted));
    let mut buf = vec![0; 70_000];
    for number in 0..XATTR_NAMES {
        let found = fs
            .getxattr(&ROOT, node, &xattr_name(number), &mut buf)
            .map(|len| &buf[..len]);
        let wanted = expected.xattrs.get(&number).map(Vec::as_slice).ok_or(Error::NoData);
        ensure!(
            found == wanted,
            "xattr {number}: {:?}, expected {:?}",
            found.map(<[u8]>::len),
            wanted.map(<[u8]>::len)
        );
    }
    Ok(())
}

/// Data where the file system says there is some, and where the model has blocks; the rest is holes
/// on both sides.
fn same_content(subject: &Subject, node: NodeId, expected: &Content) -> Result<()> {
    let fs = &subject.fs;
    let mut at = 0;
    let mut holes_from = 0;
    let mut sought = Vec::new();
    while at < expected.size_bytes {
        let from = match fs.lseek(&ROOT, node, Handle::NONE, at, SeekKind::Data) {
            Ok(from) => from,
            Err(Error::NoSuchDevice) => break,
            Err(other) => return Err(other.into()),
        };
        let to = fs.lseek(&ROOT, node, Handle::NONE, from, SeekKind::Hole)?;
        ensure!(
            at <= from && from < to && to <= expected.size_bytes,
            "data at {from}..{to}, looked from {at}"
        );
        ensure!(
            expected.is_zero(holes_from, from),
            "a hole at {holes_from}..{from} that holds data"
        );
        same_bytes(subject, node, expected, from, to)?;
        sought.extend(from / BLOCK_BYTES..to.div_ceil(BLOCK_BYTES));
        (at, holes_from) = (to, to);
    }
    // What is allocated behind the end is not sought.
    let mut mapped = subject.blocks(node)?;
    mapped.retain(|block| block * BLOCK_BYTES < expected.size_bytes);
    ensure!(
        mapped == sought,
        "the map shows data in blocks {mapped:?}, seeking in {sought:?}"
    );
    ensure!(
        expected.is_zero(holes_from, expected.size_bytes),
        "a hole from {holes_from} on that holds data"
    );
    // What is called a hole reads as zeros.
    for hole in [
        0,
        expected.size_bytes / 2,
        expected.size_bytes.saturating_sub(BLOCK_BYTES),
    ] {
        same_bytes(
            subject,
            node,
            expected,
            hole,
            (hole + BLOCK_BYTES).min(expected.size_bytes),
        )?;
    }
    Ok(())
}

fn same_bytes(subject: &Subject, node: NodeId, expected: &Content, from: u64, to: u64) -> Result<()> {
    let mut buf = vec![0; PIECE_BYTES as usize];
    let mut at = from;
    while at < to {
        let want = (to - at).min(PIECE_BYTES);
        let buf = &mut buf[..want as usize];
        buf.fill(0xee);
        let got = subject.fs.read(&ROOT, node, Handle::NONE, at, buf)?;
        ensure!(got as u64 == want, "read {got} bytes at {at}, expected {want}");
        let wanted = expected.read(at, want);
        if let Some(n) = buf.iter().zip(&wanted).position(|(a, b)| a != b) {
            let wrong = buf.iter().zip(&wanted).filter(|(a, b)| a != b).count();
            let (place, found, wanted) = (at + n as u64, buf[n], wanted[n]);
            return Err(anyhow!(
                "byte {place} is {found:#x}, expected {wanted:#x}; {wrong} of {want} bytes differ"
            ));
        }
        at += want;
    }
    Ok(())
}
