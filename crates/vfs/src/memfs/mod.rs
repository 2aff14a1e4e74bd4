//! A small file system in memory: for tests of front ends, and for measuring what a transport costs
//! without a file system behind it.
//!
//! It keeps the contract of [`FileSystem`](crate::FileSystem) (lookup counts, stable cookies,
//! unlinked but open files, ACLs), not more: no limits on memory, no atime. One lock guards
//! everything; no method waits while it holds it.

mod node;
mod ops;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cowshed_runtime::{Env as _, SystemEnv};

use crate::acl::{self, Acl};
use crate::perm::{self, NewNodeAttrs, Strips};
use crate::{
    Access, Attr, Caches, Capabilities, Context, Entry, Error, FileKind, NodeId, PermissionChecks, Result, Timestamp,
};
use node::{Body, Dir, File, Node};

const NAME_BYTES_MAX: usize = 255;
/// Sizes are limited so that offsets plus lengths cannot overflow.
const FILE_BYTES_MAX: u64 = i64::MAX as u64 - (1 << 20);

/// What one call may allocate or copy.
const CALL_BYTES_MAX: u64 = 1 << 28;

/// An ioctl that waits: [`MemFs::holds_waits`].
pub const WAIT: u32 = 0x4d01;

/// How a [`MemFs`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What front ends may remember, and for how long.
    pub valid: Duration,
    pub capabilities: Capabilities,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            valid: Duration::from_secs(3600),
            capabilities: Capabilities {
                stateless_open: true,
                stateless_opendir: true,
                cache_dirs: true,
                file_handles: true,
                ..Capabilities::default()
            },
        }
    }
}

/// The file system.
#[derive(Debug)]
pub struct MemFs {
    options: Options,
    state: Mutex<State>,
    checks: AtomicBool,
    /// How often `destroy` was called.
    pub destroyed: AtomicU64,
    /// Calls of `fsync`, `fsyncdir` and `syncfs` so far.
    pub synced: AtomicU64,
    /// How long each `fsync` takes, to test that front ends serve others meanwhile.
    pub sync_takes_millis: AtomicU64,
    /// The next write is applied only after another read was served, to test what front ends make
    /// of such reads.
    pub write_waits_for_read: AtomicBool,
    /// Calls of `read` so far.
    reads: AtomicU64,
    /// The next `getattr` gives what it found only after an extended attribute was set, to test
    /// what front ends make of attributes that are old by then.
    pub getattr_waits_for_xattr: AtomicBool,
    /// Extended attributes that were set so far.
    xattrs_set: AtomicU64,
    /// While true, the ioctl [`WAIT`] waits.
    pub holds_waits: Arc<AtomicBool>,
    /// What `init` fails with, to test that front ends give up in order.
    pub init_error: Option<Error>,
    /// A name whose lookup panics, to test that front ends survive it.
    pub panic_name: Option<&'static [u8]>,
    caches: Told,
}

/// The front end that caches.
#[derive(Default)]
struct Told(OnceLock<Arc<dyn Caches>>);

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Told({})", self.0.get().is_some())
    }
}

#[derive(Debug)]
struct State {
    nodes: HashMap<u64, Node>,
    next_node: u64,
    next_handle: u64,
}

impl Default for MemFs {
    fn default() -> Self {
        MemFs::new(Options::default())
    }
}

fn now() -> Timestamp {
    SystemEnv.now()
}

/// Where that is wanted, once: waits until one more was counted.
fn wait_for_next(counted: &AtomicU64, is_wanted: &AtomicBool) {
    let before = counted.load(Ordering::SeqCst);
    if is_wanted.swap(false, Ordering::SeqCst) {
        while counted.load(Ordering::SeqCst) == before {
            SystemEnv.sleep(Duration::from_millis(1));
        }
    }
}

impl MemFs {
    /// An empty file system whose root belongs to the calling user.
    pub fn new(options: Options) -> MemFs {
        let time = now();
        let mut root = Node::new(FileKind::Directory, Body::Dir(Dir::new(NodeId::ROOT)), time);
        root.perm = 0o755;
        root.nlink = 2;
        root.lookups = 1;
        let state = State {
            nodes: HashMap::from([(NodeId::ROOT.0, root)]),
            next_node: 2,
            next_handle: 1,
        };
        MemFs {
            options,
            state: Mutex::new(state),
            checks: AtomicBool::new(false),
            destroyed: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            sync_takes_millis: AtomicU64::new(0),
            write_waits_for_read: AtomicBool::new(false),
            getattr_waits_for_xattr: AtomicBool::new(false),
            xattrs_set: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            holds_waits: Arc::default(),
            init_error: None,
            panic_name: None,
            caches: Told::default(),
        }
    }

    /// The front end to be told of attributes that change beyond what a call asked for. The first
    /// one counts.
    pub fn set_caches(&self, caches: Arc<dyn Caches>) {
        let _ = self.caches.0.set(caches);
    }

    /// Set-id bits go with a change of contents; the state is unlocked before the front end is told
    /// of it.
    fn strip(&self, mut state: MutexGuard<'_, State>, id: NodeId, strips: Strips) -> Result<()> {
        let node = state.get_mut(id)?;
        let perm = strips.apply(node.perm);
        let has_changed = std::mem::replace(&mut node.perm, perm) != perm;
        drop(state);
        if has_changed {
            self.tell(id);
        }
        Ok(())
    }

    /// No lock may be held.
    fn tell(&self, id: NodeId) {
        if let Some(caches) = self.caches.0.get() {
            caches.attributes_changed(id);
        }
    }

    /// Gives the root directory to a user.
    pub fn own_root(&self, uid: u32, gid: u32, perm: u32) {
        let mut state = self.lock();
        let root = state.nodes.get_mut(&NodeId::ROOT.0).expect("the root is never removed");
        (root.uid, root.gid, root.perm) = (uid, gid, perm);
    }

    /// How many nodes exist, the root included.
    pub fn node_count(&self) -> usize {
        self.lock().nodes.len()
    }

    /// See [`MemFs::write_waits_for_read`].
    fn wait_for_read(&self) {
        wait_for_next(&self.reads, &self.write_waits_for_read);
    }

    /// See [`MemFs::getattr_waits_for_xattr`].
    fn wait_for_xattr(&self) {
        wait_for_next(&self.xattrs_set, &self.getattr_waits_for_xattr);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock happens in tests only, before anything was changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, id: NodeId, node: &mut Node) -> Entry {
        node.lookups += 1;
        Entry {
            node: id,
            generation: 0,
            attr: node.attr(id),
            entry_valid: self.options.valid,
            attr_valid: self.options.valid,
        }
    }

    fn check(&self, ctx: &Context, id: NodeId, node: &Node, want: Access) -> Result<()> {
        if !self.checks.load(Ordering::Relaxed) {
            return Ok(());
        }
        perm::check(&ctx.creds, &node.attr(id), node.access_acl().as_ref(), want)
    }

    fn set_checks(&self, checks: PermissionChecks) {
        self.checks
            .store(checks == PermissionChecks::FileSystem, Ordering::Relaxed);
    }

    /// Creates a node and gives it a name. The name must be free.
    fn make(
        &self,
        state: &mut State,
        ctx: &Context,
        (parent, name): (NodeId, &[u8]),
        kind: FileKind,
        body: Body,
        perm: u32,
    ) -> Result<Entry> {
        let dir = state.get(parent)?;
        self.check(ctx, parent, dir, Access::WRITE | Access::EXEC)?;
        if dir.dir()?.find(name).is_some() {
            return Err(Error::Exists);
        }
        check_name(name)?;
        if dir.nlink == 0 {
            return Err(Error::NotFound);
        }
        let id = self.make_unnamed(state, ctx, parent, kind, body, perm)?;
        state.attach(parent, name, id)?;
        let node = state.get_mut(id)?;
        node.nlink = if kind == FileKind::Directory { 2 } else { 1 };
        Ok(self.entry(id, node))
    }

    fn make_unnamed(
        &self,
        state: &mut State,
        ctx: &Context,
        parent: NodeId,
        kind: FileKind,
        body: Body,
        perm: u32,
    ) -> Result<NodeId> {
        let dir = state.get(parent)?;
        dir.dir()?;
        let parent_default = dir
            .xattrs
            .get(acl::DEFAULT_NAME)
            .and_then(|v| Acl::parse(v).ok().flatten());
        let new = perm::new_node(ctx, &dir.attr(parent), parent_default.as_ref(), kind, perm);
        let id = NodeId(state.next_node);
        state.next_node += 1;
        let mut node = Node::new(kind, body, now());
        apply_new(&mut node, new);
        state.nodes.insert(id.0, node);
        Ok(id)
    }
}

fn apply_new(node: &mut Node, new: NewNodeAttrs) {
    (node.uid, node.gid, node.perm) = (new.uid, new.gid, new.perm);
    for (name, list) in [(acl::ACCESS_NAME, new.access), (acl::DEFAULT_NAME, new.default)] {
        if let Some(list) = list {
            node.xattrs.insert(name.to_vec(), list.to_bytes());
        }
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        Err(Error::NameTooLong)
    } else {
        Ok(())
    }
}

impl State {
    fn get(&self, id: NodeId) -> Result<&Node> {
        self.nodes.get(&id.0).ok_or(Error::Stale)
    }

    fn get_mut(&mut self, id: NodeId) -> Result<&mut Node> {
        self.nodes.get_mut(&id.0).ok_or(Error::Stale)
    }

    fn child(&self, parent: NodeId, name: &[u8]) -> Result<NodeId> {
        check_name(name)?;
        self.get(parent)?.dir()?.find(name).ok_or(Error::NotFound)
    }

    /// Puts a free name into a directory.
    fn attach(&mut self, parent: NodeId, name: &[u8], child: NodeId) -> Result<()> {
        let (kind, time) = (self.get(child)?.kind, now());
        let dir = self.get_mut(parent)?;
        dir.dir_mut()?.insert(name, child, kind);
        dir.nlink += u32::from(kind == FileKind::Directory);
        (dir.mtime, dir.ctime) = (time, time);
        if kind == FileKind::Directory {
            self.get_mut(child)?.dir_mut()?.parent = parent;
        }
        Ok(())
    }

    /// Takes a name out of a directory. The child's link count is the caller's affair.
    fn detach(&mut self, parent: NodeId, name: &[u8]) -> Result<NodeId> {
        let time = now();
        let dir = self.get_mut(parent)?;
        let (child, kind) = dir.dir_mut()?.remove(name).ok_or(Error::NotFound)?;
        dir.nlink -= u32::from(kind == FileKind::Directory);
        (dir.mtime, dir.ctime) = (time, time);
        Ok(child)
    }

    /// One name less. Without names, the node goes with its last lookup and its last opening.
    fn drop_link(&mut self, id: NodeId) -> Result<()> {
        let node = self.get_mut(id)?;
        node.nlink = if node.kind == FileKind::Directory {
            0
        } else {
            node.nlink - 1
        };
        node.ctime = now();
        self.reap(id);
        Ok(())
    }

    fn reap(&mut self, id: NodeId) {
        if self
            .nodes
            .get(&id.0)
            .is_some_and(|n| n.nlink == 0 && n.lookups == 0 && n.opens == 0)
        {
            self.nodes.remove(&id.0);
        }
    }

    fn file(&self, id: NodeId) -> Result<&File> {
        self.get(id)?.file()
    }

    fn file_mut(&mut self, id: NodeId) -> Result<(&mut Node, Timestamp)> {
        let node = self.get_mut(id)?;
        node.file()?;
        Ok((node, now()))
    }

    /// Is `id` the directory `inside` or one of those above it?
    fn is_above(&self, id: NodeId, mut inside: NodeId) -> Result<bool> {
        // The tree has no cycles, so the walk ends at the root.
        loop {
            if id == inside {
                return Ok(true);
            }
            if inside == NodeId::ROOT {
                return Ok(false);
            }
            inside = self.get(inside)?.dir()?.parent;
        }
    }

    fn attr(&self, id: NodeId) -> Result<Attr> {
        Ok(self.get(id)?.attr(id))
    }
}
