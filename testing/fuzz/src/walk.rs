//! A walk through a volume: every name, attribute and file.

use std::collections::HashSet;
use std::ops::ControlFlow;

use cowshed_device_sim::Rng;
use cowshed_vfs::{Context, FileKind, FileSystem, Handle, Lookup, NodeId, SeekKind};

static ROOT: Context = Context::root();
const NODES_MAX: usize = 3000;
const NAMES_MAX: usize = 3000;

/// A name that was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    pub parent: NodeId,
    pub name: Vec<u8>,
    pub node: NodeId,
    pub kind: FileKind,
}

/// A walk through all that is there.
pub struct Walk<'a> {
    fs: &'a dyn FileSystem,
    pub nodes: Vec<Seen>,
    /// The first fault of the volume that was met.
    pub error: Option<String>,
}

impl<'a> Walk<'a> {
    pub fn new(fs: &'a dyn FileSystem) -> Self {
        Self {
            fs,
            nodes: Vec::new(),
            error: None,
        }
    }

    fn note<T>(&mut self, what: &str, node: NodeId, result: cowshed_vfs::Result<T>) -> Option<T> {
        result
            .inspect_err(|error| {
                if matches!(error, cowshed_vfs::Error::Io | cowshed_vfs::Error::Corrupt) {
                    self.error.get_or_insert_with(|| format!("{what} of {node:?}: {error}"));
                }
            })
            .ok()
    }

    /// Looks at all that can be reached.
    pub fn everything(&mut self, rng: &mut Rng) {
        let _ = self.fs.statfs(&ROOT, NodeId::ROOT);
        let mut seen = HashSet::from([NodeId::ROOT]);
        let mut todo = vec![(NodeId::ROOT, FileKind::Directory)];
        while let Some((node, kind)) = todo.pop() {
            self.look_at(node, kind, rng);
            if kind != FileKind::Directory {
                continue;
            }
            let first = self.nodes.len();
            self.names(node);
            for found in &self.nodes[first..] {
                if seen.len() < NODES_MAX && seen.insert(found.node) {
                    todo.push((found.node, found.kind));
                }
            }
        }
    }

    /// The names in a directory, each looked up, in pieces.
    pub fn names(&mut self, dir: NodeId) {
        let mut cookie = 0;
        let mut names = Vec::new();
        loop {
            let (before, from) = (names.len(), cookie);
            let mut sink = |entry: cowshed_vfs::DirEntry<'_>| {
                if names.len() - before >= 50 {
                    return ControlFlow::Break(());
                }
                names.push(entry.name.to_vec());
                cookie = entry.cookie;
                ControlFlow::Continue(())
            };
            let result = self.fs.readdir(&ROOT, dir, Handle::NONE, from, &mut sink);
            let went_well = self.note("readdir", dir, result).is_some();
            if !went_well || names.len() == before || names.len() > NAMES_MAX {
                break;
            }
        }
        let mut plus = |_: cowshed_vfs::DirEntry<'_>, _: Option<&cowshed_vfs::Entry>| ControlFlow::Continue(());
        let result = self
            .fs
            .readdirplus(&ROOT, dir, Handle::NONE, 0, &mut |_| true, &mut plus);
        self.note("readdirplus", dir, result);
        for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
            let result = self.fs.lookup(&ROOT, dir, &name);
            if let Some(Lookup::Found(entry)) = self.note("lookup", dir, result) {
                self.nodes.push(Seen {
                    parent: dir,
                    name,
                    node: entry.node,
                    kind: entry.attr.kind,
                });
            }
        }
    }

    fn look_at(&mut self, node: NodeId, kind: FileKind, rng: &mut Rng) {
        let attr = self.fs.getattr(&ROOT, node, None);
        let attr = self.note("getattr", node, attr);
        let mut buf = vec![0; 65536];
        let listed = self.fs.listxattr(&ROOT, node, &mut buf);
        let listed = self.note("listxattr", node, listed).unwrap_or(0);
        let names: Vec<Vec<u8>> = buf[..listed].split(|b| *b == 0).map(<[u8]>::to_vec).collect();
        for name in names.iter().filter(|n| !n.is_empty()) {
            let value = self.fs.getxattr(&ROOT, node, name, &mut buf);
            self.note("getxattr", node, value);
        }
        match kind {
            FileKind::Symlink => {
                let target = self.fs.readlink(&ROOT, node);
                self.note("readlink", node, target);
            }
            FileKind::Regular => self.read(node, attr.map_or(0, |a| a.size_bytes), &mut buf, rng),
            _ => {}
        }
    }

    /// The head, the tail and some places between; where data and holes are.
    fn read(&mut self, node: NodeId, size: u64, buf: &mut [u8], rng: &mut Rng) {
        let step = buf.len() as u64;
        let mut places: Vec<u64> = (0..8).map(|n| n * step).filter(|at| *at < size).collect();
        if size > 8 * step {
            places.extend([size - step / 2, rng.below(size)]);
        }
        for at in places {
            let result = self.fs.read(&ROOT, node, Handle::NONE, at, buf);
            self.note("read", node, result);
        }
        let mut at = 0;
        for round in 0..64 {
            let what = if round % 2 == 0 { SeekKind::Data } else { SeekKind::Hole };
            let result = self.fs.lseek(&ROOT, node, Handle::NONE, at, what);
            match self.note("lseek", node, result) {
                Some(found) => at = found,
                None => break,
            }
        }
    }
}
