//! Clones of trees as the contract has them. Callers' permissions are checked here: Linux passes
//! these calls on without any check.

use std::sync::Arc;

use cowshed_vfs::{Context, NodeId, TreeClone, TreeCloneProgress, TreeCloneStep};

use super::{Fs, errno};
use crate::tree_clone::{Told, Walk};

type VfsResult<T> = cowshed_vfs::Result<T>;

/// A walk, and the view that it was begun in.
pub(super) struct Cloning {
    fs: Arc<Fs>,
    walk: Walk,
}

impl Cloning {
    pub(super) fn new(fs: Arc<Fs>, ctx: &Context, src: NodeId, (parent, name): (NodeId, &[u8])) -> VfsResult<Self> {
        let begin = || {
            fs.check_view_writable()?;
            Walk::new(&fs.mount, ctx, &fs.inode(src)?, &fs.inode(parent)?, name)
        };
        let walk = begin().map_err(|e| errno("clone a tree", e))?;
        Ok(Self { fs, walk })
    }

    /// Front ends that remember the directory forget that it has not had these names.
    fn tell(&self, told: &Told) {
        for name in &told.names {
            self.fs.name_came(&told.dir, name);
        }
        if let Some(linked) = &told.linked
            && let Some(caches) = self.fs.caches()
        {
            caches.attributes_changed(self.fs.numbering.node(linked));
        }
    }
}

impl Drop for Cloning {
    fn drop(&mut self) {
        self.walk.end(&self.fs.mount);
    }
}

impl TreeClone for Cloning {
    fn step(&mut self, ctx: &Context) -> VfsResult<TreeCloneStep> {
        let step = self.walk.step(&self.fs.mount, ctx);
        let step = step.map_err(|e| errno("clone a tree", e))?;
        if let Some(told) = &step.told {
            self.tell(told);
        }
        if let Some(finished) = &step.finished {
            drop(self.fs.telling(finished));
        }
        Ok(match (step.is_done, step.refused) {
            (true, _) => TreeCloneStep::Done,
            (false, Some(refused)) => TreeCloneStep::Without(refused),
            (false, None) => TreeCloneStep::More,
        })
    }

    fn progress(&self) -> TreeCloneProgress {
        self.walk.progress()
    }

    fn path(&self) -> Vec<u8> {
        self.walk.path().to_vec()
    }
}
