//! The volume as a [`cowshed_vfs::Volume`]: translation only. Every change is refused.

mod flags;
mod ops;
mod space;
mod volume;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cowshed_vfs::acl::{self, Acl};
use cowshed_vfs::{Access, Context, Entry, Error as Errno, FileKind, NodeId, perm};
use xfs_format::Ino;

use crate::ag::Counters;
use crate::attr;
use crate::error::{Error, Result};
use crate::inode::Object;
use crate::volume::Volume;

/// Nothing changes.
const VALID: Duration = Duration::from_secs(86_400);

/// A volume, shown as a tree of files.
#[derive(Debug)]
pub struct Fs {
    volume: Arc<Volume>,
    /// Permissions are checked here, not by the front end.
    checks: AtomicBool,
    counters: OnceLock<Counters>,
}

impl Fs {
    /// Shows a volume. Errors: its root is no directory.
    pub fn new(volume: Arc<Volume>) -> Result<Self> {
        let fs = Self {
            volume,
            checks: AtomicBool::new(true),
            counters: OnceLock::new(),
        };
        let root = fs.object(NodeId::ROOT)?;
        if root.attr(&fs.volume).is_dir() {
            Ok(fs)
        } else {
            Err(root.damaged("root directory"))
        }
    }

    fn root(&self) -> Ino {
        Ino(self.volume.superblock().rootino.get())
    }

    /// Nodes are inode numbers, but for the root. No inode has the number of [`NodeId::ROOT`]: it
    /// would lie in the first block of the volume.
    fn node(&self, ino: Ino) -> NodeId {
        if ino == self.root() {
            NodeId::ROOT
        } else {
            NodeId(ino.get())
        }
    }

    fn object(&self, node: NodeId) -> Result<Object> {
        let ino = if node == NodeId::ROOT { self.root() } else { Ino(node.0) };
        Object::load(&self.volume, ino)
    }

    fn dir(&self, node: NodeId) -> Result<Object> {
        let dir = self.object(node)?;
        if dir.kind == FileKind::Directory {
            Ok(dir)
        } else {
            Err(Errno::NotDirectory.into())
        }
    }

    fn entry(&self, object: &Object) -> Entry {
        Entry {
            node: self.node(object.ino),
            generation: object.core.generation.get().into(),
            attr: object.attr(&self.volume),
            entry_valid: VALID,
            attr_valid: VALID,
        }
    }

    fn need(&self, ctx: &Context, object: &Object, want: Access) -> Result<()> {
        if !self.checks.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.check(ctx, object, want)
    }

    fn check(&self, ctx: &Context, object: &Object, want: Access) -> Result<()> {
        let list = attr::get(&self.volume, object, acl::ACCESS_NAME)?;
        let list = list.map(|value| Acl::parse(&value)).transpose()?.flatten();
        Ok(perm::check(
            &ctx.creds,
            &object.attr(&self.volume),
            list.as_ref(),
            want,
        )?)
    }
}

/// What callers are told. Faults of the volume and its device go to the log with all that is known.
fn errno(what: &'static str, error: Error) -> Errno {
    let outcome = outcome(&error);
    if matches!(outcome, Errno::Io | Errno::Corrupt) {
        tracing::error!(what, %error);
    }
    outcome
}

fn outcome(error: &Error) -> Errno {
    match error {
        Error::Outcome(errno) => *errno,
        Error::Corrupt(_)
        | Error::Superblock(_)
        | Error::HasCopy { .. }
        | Error::Inconsistent { .. }
        | Error::Log { .. } => Errno::Corrupt,
        Error::Unsupported(_) => Errno::NotSupported,
        Error::Device(_) | Error::Short { .. } => Errno::Io,
    }
}
