//! Nodes by number, for file handles: the number may be of a node that was forgotten, in this mount
//! or an earlier one, or made up.
//!
//! No permission is checked here. The kernel decodes handles for callers with CAP_DAC_READ_SEARCH
//! (and for the owner of a user namespace that the mount belongs to), and checks the access to what
//! it has opened. A number reaches nothing that names below the mount's root do not reach: see
//! [`Fs::visible_subvol`].

use std::sync::Arc;

use btrfs_format::{ObjectId, TreeId};
use cowshed_vfs::{Entry, Error as Errno, NodeId};

use super::Fs;
use crate::dir;
use crate::error::Result;
use crate::object::Inode;
use crate::object::{PLACEHOLDER_INO_BIT, Subvol};
use crate::reclaim;
use crate::subvol;

/// Subvolumes above each other that are followed to the mounted one: as many as a path can have
/// names. More may be a ring, on a damaged volume.
const NESTING_MAX: usize = 4096;

impl Fs {
    /// The entry of a node by its number. Errors: `Stale` (no such inode, or it has no name any
    /// more).
    pub(super) fn entry_of_node(&self, node: NodeId) -> Result<Entry> {
        let (tree, ino) = self.numbering.inode_of(node).ok_or(Errno::Stale)?;
        let inode = self.load_visible(tree, ino)?.ok_or(Errno::Stale)?;
        // A second number for the same inode would give the kernel two nodes for it.
        if self.numbering.node(&inode) != node {
            reclaim::settle(&self.mount, &inode);
            return Err(Errno::Stale.into());
        }
        self.entry_while_named(&inode)
    }

    /// The entry of the directory above a directory; above the mount's root, the root. Errors:
    /// `NotDirectory`, `Stale` (the directory was removed).
    pub(super) fn entry_of_parent(&self, node: NodeId) -> Result<Entry> {
        let dir = self.inode(node)?;
        if !dir.is_dir() {
            return Err(Errno::NotDirectory.into());
        }
        if Arc::ptr_eq(&dir, &self.root) {
            return Ok(self.entry(&dir));
        }
        let (tree, ino) = dir::parent_of(&self.mount, &dir)?.ok_or(Errno::Stale)?;
        let parent = self.load_visible(tree, ino)?.ok_or(Errno::Stale)?;
        self.entry_while_named(&parent)
    }

    /// As [`Fs::entry`], unless the inode has lost its last name. Where it is still open, the
    /// kernel has its node and does not ask.
    fn entry_while_named(&self, inode: &Arc<Inode>) -> Result<Entry> {
        let entry = self.entry(inode);
        // Asked after the lookup was counted: an unlink that comes later finds the inode in use.
        if inode.attr_now().nlink > 0 {
            return Ok(entry);
        }
        self.give_back(inode, 1);
        Err(Errno::Stale.into())
    }

    fn load_visible(&self, tree: TreeId, ino: ObjectId) -> Result<Option<Arc<Inode>>> {
        // Stand-ins for subvolumes are on no disk; the kernel's handles of them are stale, too.
        if ino < ObjectId::FIRST_FREE || ino.0 >= PLACEHOLDER_INO_BIT {
            return Ok(None);
        }
        match self.visible_subvol(tree)? {
            Some(subvol) => self.mount.objects().inodes.load(&subvol, ino),
            None => Ok(None),
        }
    }

    /// The subvolume, if the mount shows it: the mounted one, or one that lies below. A mount of
    /// one subvolume may be shared or exported so that others stay hidden.
    fn visible_subvol(&self, tree: TreeId) -> Result<Option<Arc<Subvol>>> {
        let mut at = tree;
        for _ in 0..NESTING_MAX {
            if at == self.numbering.mounted() {
                return subvol::load(&self.mount, tree);
            }
            match subvol::parent_of_root(&self.mount, at)? {
                Some((above, _)) => at = above,
                None => break,
            }
        }
        Ok(None)
    }
}
