//! What a node holds: sparse content, or names.

use std::collections::BTreeMap;

use crate::acl::{self, Acl};
use crate::{Attr, Error, FileKind, NodeId, Result, SeekKind, Timestamp};

pub(super) const BLOCK_BYTES: u64 = 4096;
const BLOCK: usize = BLOCK_BYTES as usize;

#[derive(Debug)]
pub(super) struct Node {
    pub kind: FileKind,
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub atime: Timestamp,
    pub btime: Timestamp,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// FS_IOC_SETFLAGS.
    pub flags: u32,
    pub lookups: u64,
    pub opens: u64,
    pub body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    File(File),
    Dir(Dir),
    Symlink(Vec<u8>),
    Special,
}

impl Node {
    pub(crate) fn new(kind: FileKind, body: Body, time: Timestamp) -> Node {
        Node {
            kind,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            mtime: time,
            ctime: time,
            atime: time,
            btime: time,
            xattrs: BTreeMap::new(),
            flags: 0,
            lookups: 0,
            opens: 0,
            body,
        }
    }

    pub(crate) fn attr(&self, id: NodeId) -> Attr {
        let (size_bytes, blocks_512) = match &self.body {
            Body::File(f) => (f.size, f.blocks.len() as u64 * (BLOCK_BYTES / 512)),
            Body::Dir(d) => (d.names.len() as u64 * 32, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Special => (0, 0),
        };
        Attr {
            ino: id.0,
            size_bytes,
            blocks_512,
            is_estimate: false,
            blksize: BLOCK_BYTES as u32,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
        }
    }

    pub(crate) fn access_acl(&self) -> Option<Acl> {
        self.xattrs
            .get(acl::ACCESS_NAME)
            .and_then(|v| Acl::parse(v).ok().flatten())
    }

    pub(crate) fn dir(&self) -> Result<&Dir> {
        if let Body::Dir(d) = &self.body {
            Ok(d)
        } else {
            Err(Error::NotDirectory)
        }
    }

    pub(crate) fn dir_mut(&mut self) -> Result<&mut Dir> {
        if let Body::Dir(d) = &mut self.body {
            Ok(d)
        } else {
            Err(Error::NotDirectory)
        }
    }

    pub(crate) fn file(&self) -> Result<&File> {
        match &self.body {
            Body::File(f) => Ok(f),
            Body::Dir(_) => Err(Error::IsDirectory),
            Body::Symlink(_) | Body::Special => Err(Error::Invalid),
        }
    }

    pub(crate) fn content(&mut self) -> Result<&mut File> {
        match &mut self.body {
            Body::File(f) => Ok(f),
            Body::Dir(_) => Err(Error::IsDirectory),
            Body::Symlink(_) | Body::Special => Err(Error::Invalid),
        }
    }
}

/// Names by name and by cookie. A cookie is given once and never again in this directory, so it
/// survives every change around it.
#[derive(Debug)]
pub(super) struct Dir {
    pub parent: NodeId,
    pub names: BTreeMap<Vec<u8>, u64>,
    pub by_cookie: BTreeMap<u64, (Vec<u8>, NodeId, FileKind)>,
    next_cookie: u64,
}

impl Dir {
    /// Cookies 1 and 2 are those of `.` and `..`.
    pub(crate) const FIRST_COOKIE: u64 = 3;

    pub(crate) fn new(parent: NodeId) -> Dir {
        Dir {
            parent,
            names: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: Dir::FIRST_COOKIE,
        }
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<NodeId> {
        self.names.get(name).and_then(|c| self.by_cookie.get(c)).map(|e| e.1)
    }

    pub(crate) fn insert(&mut self, name: &[u8], child: NodeId, kind: FileKind) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.by_cookie.insert(cookie, (name.to_vec(), child, kind));
        let old = self.names.insert(name.to_vec(), cookie);
        assert!(old.is_none(), "callers look before they insert");
    }

    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<(NodeId, FileKind)> {
        let cookie = self.names.remove(name)?;
        self.by_cookie.remove(&cookie).map(|(_, child, kind)| (child, kind))
    }
}

/// Sparse content: a block that is absent is a hole.
#[derive(Debug, Default)]
pub(super) struct File {
    pub size: u64,
    pub blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

/// The pieces of a byte range: block, offset in the block, length.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, end) = (offset, offset + len);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let inside = at % BLOCK_BYTES;
        let n = (BLOCK_BYTES - inside).min(end - at);
        let piece = (at / BLOCK_BYTES, inside as usize, n as usize);
        at += n;
        Some(piece)
    })
}

impl File {
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64);
        let mut done = 0;
        for (block, at, n) in pieces(offset, len) {
            let out = &mut buf[done..done + n];
            match self.blocks.get(&block) {
                Some(data) => out.copy_from_slice(&data[at..at + n]),
                None => out.fill(0),
            }
            done += n;
        }
        done
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        for (block, at, n) in pieces(offset, data.len() as u64) {
            let dst = self.blocks.entry(block).or_insert_with(|| Box::new([0; BLOCK]));
            dst[at..at + n].copy_from_slice(&data[done..done + n]);
            done += n;
        }
        self.size = self.size.max(offset + data.len() as u64);
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.punch(size, self.size.next_multiple_of(BLOCK_BYTES) - size);
        }
        self.size = size;
    }

    /// Makes a hole; zeroes where it covers a block in part.
    pub(crate) fn punch(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let (first, last) = (offset.div_ceil(BLOCK_BYTES), end / BLOCK_BYTES);
        let inner: Vec<u64> = self.blocks.range(first..last.max(first)).map(|e| *e.0).collect();
        for block in inner {
            self.blocks.remove(&block);
        }
        let head_end = end.min(first * BLOCK_BYTES);
        let tail_start = (last * BLOCK_BYTES).max(head_end);
        for (from, to) in [(offset, head_end), (tail_start, end)] {
            for (block, at, n) in pieces(from, to.saturating_sub(from)) {
                if let Some(data) = self.blocks.get_mut(&block) {
                    data[at..at + n].fill(0);
                }
            }
        }
    }

    pub(crate) fn allocate(&mut self, offset: u64, len: u64) {
        for (block, _, _) in pieces(offset, len) {
            self.blocks.entry(block).or_insert_with(|| Box::new([0; BLOCK]));
        }
    }

    pub(crate) fn seek(&self, offset: u64, what: SeekKind) -> Result<u64> {
        if offset >= self.size {
            return Err(Error::NoSuchDevice);
        }
        let first = offset / BLOCK_BYTES;
        let found = match what {
            SeekKind::Data => *self.blocks.range(first..).next().ok_or(Error::NoSuchDevice)?.0,
            SeekKind::Hole => {
                let run = self
                    .blocks
                    .range(first..)
                    .zip(first..)
                    .take_while(|((have, _), want)| *have == want);
                first + run.count() as u64
            }
        };
        match (found * BLOCK_BYTES).max(offset) {
            at if at < self.size => Ok(at),
            _ if what == SeekKind::Hole => Ok(self.size),
            _ => Err(Error::NoSuchDevice),
        }
    }
}
