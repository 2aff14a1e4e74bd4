//! What a file system tells a front end that remembers contents and attributes.
//!
//! A call may change attributes that it does not name: a write strips set-id bits, an access list
//! sets the mode. The front end does not see that in the answer. Before the call returns, the file
//! system calls [`Caches::attributes_changed`], without a lock held, and only if there was such a
//! change. docs/design/fuse-caches.md lists them all.

use std::ops::Range;

use crate::{Error, NodeId, Result};

/// Which nodes of a subvolume a front end remembers now: those in a directory before the directory
/// where their numbers allow that. None once the file system has ended.
pub type Remembered = Box<dyn Fn() -> Vec<NodeId> + Send>;

/// What processes may use of a file system without a call that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held<T> {
    /// This, and maybe less.
    Found(T),
    /// It can be found out a moment later.
    NotNow,
    /// It cannot be found out.
    Unknown,
}

/// A front end that caches. A file system calls it when cached attributes or contents become stale
/// without a call of the front end that says so: staged data that was dropped, or that other
/// handles did not see until now.
pub trait Caches: Send + Sync {
    /// The attributes of a node have changed. Does not block.
    fn attributes_changed(&self, node: NodeId);

    /// A name came into a directory, or went, and the directory's attributes have changed. Returns
    /// when it is forgotten, or after a bounded time. The caller holds no lock.
    fn name_changed(&self, parent: NodeId, name: &[u8]) {
        let _ = (parent, name);
    }

    /// As [`Caches::name_changed`], of a subvolume that was deleted and had many nodes. They may be
    /// forgotten later, and in pieces.
    fn subvolume_gone(&self, parent: NodeId, name: &[u8], remembered: Remembered) {
        let _ = remembered;
        self.name_changed(parent, name);
    }

    /// Names in a directory have changed, which the front end may remember as a listing. For a
    /// front end that asks for names at each use.
    fn listing_changed(&self, dir: NodeId) {
        let whole = 0..u64::MAX;
        self.content_changed(dir, vec![whole]);
    }

    /// Every name that was answered until now is asked for again when it is next used. The caller
    /// holds no lock, and is no call of this front end. Errors: `NotSupported`.
    fn expire_names(&self) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// The content of a node has changed in these ranges of bytes, and its attributes. Returns when
    /// it is forgotten, or after a bounded time: the front end may need the caller's own thread
    /// first. The caller holds no lock.
    fn content_changed(&self, node: NodeId, ranges: Vec<Range<u64>>);

    /// What was written to these ranges of bytes is lost: they read as before the write. Does not
    /// block, so that the caller may hold locks; see [`Caches::settle`].
    fn content_lost(&self, node: NodeId, ranges: Vec<Range<u64>>);

    /// Returns when all that was told until now is forgotten, or after a bounded time. The caller
    /// holds no lock.
    fn settle(&self);

    /// Has the process of a call's [`crate::Context::pid`] ended? `false` where that is unknown.
    fn has_ended(&self, pid: u32) -> bool {
        let _ = pid;
        false
    }

    /// The inode number, as callers see it, of what the process of a call's
    /// [`crate::Context::pid`] has open under a descriptor. Errors: `BadHandle` (nothing),
    /// `CrossDevice` (it lies elsewhere), `NotSupported` (that cannot be found out).
    fn open_inode(&self, pid: u32, fd: i64) -> Result<u64> {
        let _ = (pid, fd);
        Err(Error::NotSupported)
    }

    /// Inode numbers, as callers see them, of what processes may use without a call that says so:
    /// working directories, open directories, descriptors that only name a file (`O_PATH`). The
    /// caller is no call of this front end.
    fn held(&self) -> Held<Vec<u64>> {
        Held::Unknown
    }

    /// The umask of a call's process ([`crate::Context::pid`]), for calls whose request does not
    /// carry it. The process waits in the call, so its number is not in use by another. `None`
    /// where the umask cannot be read.
    fn umask(&self, pid: u32) -> Option<u32> {
        let _ = pid;
        None
    }
}

/// For tests: a front end that remembers all it has looked up, for processes that hold nothing.
#[derive(Debug)]
pub struct NothingHeld;

impl Caches for NothingHeld {
    fn attributes_changed(&self, _: NodeId) {}
    fn content_changed(&self, _: NodeId, _: Vec<Range<u64>>) {}
    fn content_lost(&self, _: NodeId, _: Vec<Range<u64>>) {}
    fn settle(&self) {}
    fn held(&self) -> Held<Vec<u64>> {
        Held::Found(Vec::new())
    }
}
