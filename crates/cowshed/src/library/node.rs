//! Nodes that count their lookups, and walking paths.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::sync::Arc;

use cowshed_vfs::{Attr, Context, Entry, Error as Errno, FileKind, Lookup, NodeId, Volume};

type Result<T> = std::result::Result<T, Errno>;

/// How many symbolic links one path may cross, as on Linux.
const SYMLINKS_MAX: usize = 40;

/// The file system, alive while anything of it is in use.
#[derive(Debug)]
pub(super) struct Shared {
    pub fs: Arc<dyn Volume>,
    pub ctx: Context,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.fs.destroy();
    }
}

/// A node that is remembered as long as this value lives.
#[derive(Debug)]
pub(super) struct Node {
    shared: Arc<Shared>,
    id: NodeId,
    kind: FileKind,
    /// The directory that it was found in; the root has none.
    parent: Option<Arc<Node>>,
}

impl Node {
    pub(super) fn root(shared: Arc<Shared>) -> Arc<Node> {
        Arc::new(Node {
            shared,
            id: NodeId::ROOT,
            kind: FileKind::Directory,
            parent: None,
        })
    }

    /// Takes over the lookup that the entry counts.
    pub(super) fn of_entry(parent: &Arc<Node>, entry: &Entry) -> Arc<Node> {
        Arc::new(Node {
            shared: parent.shared.clone(),
            id: entry.node,
            kind: entry.attr.kind,
            parent: Some(parent.clone()),
        })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
    pub(super) fn fs(&self) -> &dyn Volume {
        &*self.shared.fs
    }
    pub(super) fn ctx(&self) -> &Context {
        &self.shared.ctx
    }
    pub(super) fn id(&self) -> NodeId {
        self.id
    }
    pub(super) fn kind(&self) -> FileKind {
        self.kind
    }

    pub(super) fn attr(&self) -> Result<Attr> {
        self.fs().getattr(self.ctx(), self.id, None)
    }

    pub(super) fn lookup(self: &Arc<Self>, name: &[u8]) -> Result<Option<Arc<Node>>> {
        match self.fs().lookup(self.ctx(), self.id, name)? {
            Lookup::Found(entry) => Ok(Some(Node::of_entry(self, &entry))),
            Lookup::Absent { .. } => Ok(None),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.fs().forget(self.id, 1);
    }
}

/// What a path leads to; `follow`: through a symbolic link at its end, too.
pub(super) fn resolve(from: &Arc<Node>, path: &Path, follow: bool) -> Result<Arc<Node>> {
    let mut walk = Walk {
        here: from.clone(),
        todo: VecDeque::new(),
        links: 0,
    };
    walk.prepend(path);
    // A slash at the end asks for a directory.
    let wants_dir = path.as_os_str().as_bytes().ends_with(b"/");
    while let Some(name) = walk.todo.pop_front() {
        let follow = follow || wants_dir || !walk.todo.is_empty();
        walk.step(&name, follow)?;
    }
    if wants_dir && walk.here.kind() != FileKind::Directory {
        return Err(Errno::NotDirectory);
    }
    Ok(walk.here)
}

/// The directory that a path's last name lies in, and that name.
pub(super) fn resolve_parent<'p>(from: &Arc<Node>, path: &'p Path) -> Result<(Arc<Node>, &'p [u8])> {
    let Some(Component::Normal(name)) = path.components().next_back() else {
        // The root, or a path that ends in "..": nothing that could be made or removed.
        return Err(if path.as_os_str().is_empty() {
            Errno::NotFound
        } else {
            Errno::Busy
        });
    };
    let dir = resolve(from, path.parent().unwrap_or(Path::new("")), true)?;
    if dir.kind() != FileKind::Directory {
        return Err(Errno::NotDirectory);
    }
    Ok((dir, name.as_bytes()))
}

/// A walk along a path: where it stands, and the names still to go.
struct Walk {
    here: Arc<Node>,
    todo: VecDeque<Vec<u8>>,
    links: usize,
}

impl Walk {
    /// Puts a path's names before those still to go; an absolute path starts at the root.
    fn prepend(&mut self, path: &Path) {
        let mut names = VecDeque::new();
        for component in path.components() {
            match component {
                Component::RootDir => self.here = Node::root(self.here.shared.clone()),
                Component::Normal(name) => names.push_back(name.as_bytes().to_vec()),
                Component::ParentDir => names.push_back(b"..".to_vec()),
                Component::CurDir | Component::Prefix(_) => {}
            }
        }
        names.append(&mut self.todo);
        self.todo = names;
    }

    fn step(&mut self, name: &[u8], follow: bool) -> Result<()> {
        if name == b".." {
            if self.here.kind() != FileKind::Directory {
                return Err(Errno::NotDirectory);
            }
            // Above the root is the root.
            if let Some(parent) = self.here.parent.clone() {
                self.here = parent;
            }
            return Ok(());
        }
        let node = self.here.lookup(name)?.ok_or(Errno::NotFound)?;
        if node.kind() == FileKind::Symlink && follow {
            self.links += 1;
            if self.links > SYMLINKS_MAX {
                return Err(Errno::TooManySymlinks);
            }
            let target = node.fs().readlink(node.ctx(), node.id)?;
            self.prepend(Path::new(OsStr::from_bytes(&target)));
            return Ok(());
        }
        self.here = node;
        Ok(())
    }
}
