//! From paths to nodes of a mount in this process.

use std::cell::RefCell;
use std::collections::BTreeMap;

use cowshed_vfs::{
    Context, Entry, Error, FileSystem as _, Handle, Lookup, NodeId, OpenFlags, OpenRequest, Result, Volume,
};
use cowshed_vfs_ioctl::Front;

pub(super) static ROOT: Context = Context::root();
pub(super) const READ_WRITE: OpenRequest = OpenRequest {
    flags: OpenFlags::READ.union(OpenFlags::WRITE),
    kill_suidgid: false,
};

/// The files that a script holds open, by name.
pub(super) type Slots = RefCell<BTreeMap<String, (NodeId, Handle)>>;

/// Finds nodes below a directory.
pub(super) struct Walk<'f, V: Volume + 'static> {
    pub(super) fs: &'f Front<V>,
    pub(super) root: NodeId,
    pub(super) slots: Option<&'f Slots>,
}

impl<V: Volume + 'static> Clone for Walk<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: Volume + 'static> Copy for Walk<'_, V> {}

/// A node that is looked up and not given back yet.
pub(super) struct Held<'f, V: Volume + 'static> {
    fs: &'f Front<V>,
    pub(super) entry: Entry,
}

impl<V: Volume + 'static> Drop for Held<'_, V> {
    fn drop(&mut self) {
        self.fs.forget(self.entry.node, 1);
    }
}

impl<'f, V: Volume + 'static> Walk<'f, V> {
    pub(super) fn hold(&self, entry: Entry) -> Held<'f, V> {
        Held { fs: self.fs, entry }
    }

    /// The file that a slot holds.
    pub(super) fn slot(&self, name: &str) -> Option<NodeId> {
        Some(self.slots?.borrow().get(name)?.0)
    }

    /// `None`: the directory itself.
    pub(super) fn held(&self, path: &str) -> Result<Option<Held<'f, V>>> {
        let mut held: Option<Held<'f, V>> = None;
        for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
            let parent = held.as_ref().map_or(self.root, |held| held.entry.node);
            held = match self.fs.lookup(&ROOT, parent, name.as_bytes())? {
                Lookup::Found(entry) => Some(self.hold(entry)),
                Lookup::Absent { .. } => return Err(Error::NotFound),
            };
        }
        Ok(held)
    }

    /// Does something with the node behind a path.
    pub(super) fn at<T>(&self, path: &str, what: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        if let Some(node) = self.slot(path) {
            return what(node);
        }
        let held = self.held(path)?;
        what(held.as_ref().map_or(self.root, |held| held.entry.node))
    }

    /// Does something with the directory and the last name of a path.
    pub(super) fn name<T>(&self, path: &str, what: impl FnOnce(NodeId, &[u8]) -> Result<T>) -> Result<T> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.at(parent, |dir| what(dir, name.as_bytes()))
    }

    /// The file, made where it is missing.
    pub(super) fn file<T>(&self, path: &str, what: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        let request = OpenRequest {
            flags: READ_WRITE.flags | OpenFlags::CREATE,
            ..READ_WRITE
        };
        if let Some(node) = self.slot(path) {
            return what(node);
        }
        match self.held(path) {
            Err(Error::NotFound) => {}
            other => return what(other?.map_or(self.root, |held| held.entry.node)),
        }
        self.name(path, |dir, name| {
            let (entry, opened) = self.fs.create(&ROOT, dir, name, 0o644, &request)?;
            let held = self.hold(entry);
            let result = what(held.entry.node);
            self.fs.release(held.entry.node, opened.handle);
            result
        })
    }
}
