//! Numbers that callers see. In the subvolume that is mounted they are the volume's own. Each other subvolume numbers
//! its inodes from 256 too, so there the tree's id goes into the upper bits; what does not fit gets a hash.
//!
//! The same rule makes node ids, except that these must never be equal for two inodes: what does not fit is numbered
//! as it comes, which nobody sees.

use std::collections::HashMap;

use btrfs_format::{ObjectId, TreeId};
use cowshed_vfs::NodeId;
use parking_lot::Mutex;

use super::PLACEHOLDER_INO_BIT;
use crate::inode::Inode;

/// Inode numbers with room beside a tree id: a million million.
const INO_BITS: u32 = 40;
/// Tree ids that fit above: four million subvolumes.
const TREE_BITS: u32 = 22;
/// Set in numbers that do not say where they come from.
const ODD_BIT: u64 = 1 << (INO_BITS + TREE_BITS);
/// What a stand-in for a subvolume shows as its number, as the kernel has it.
const PLACEHOLDER_SHOWN: u64 = ObjectId::EMPTY_SUBVOL_DIR.0;

/// Numbers of one mount.
#[derive(Debug)]
pub struct Numbering {
    mounted: TreeId,
    root_ino: ObjectId,
    odd: Mutex<Odd>,
}

#[derive(Debug, Default)]
struct Odd {
    by_inode: HashMap<(TreeId, ObjectId), u64>,
    by_node: HashMap<u64, (TreeId, ObjectId)>,
}

impl Numbering {
    /// For a mount that shows directory `root_ino` of subvolume `mounted` as its root.
    pub fn new(mounted: TreeId, root_ino: ObjectId) -> Self {
        Self {
            mounted,
            root_ino,
            odd: Mutex::default(),
        }
    }

    fn fold(&self, tree: TreeId, ino: ObjectId) -> Option<u64> {
        if ino.0 >> INO_BITS != 0 {
            return None;
        }
        if tree == self.mounted {
            return Some(ino.0);
        }
        (tree.0 >> TREE_BITS == 0).then_some(tree.0 << INO_BITS | ino.0)
    }

    /// `st_ino`: stable across mounts of the same subvolume.
    pub fn shown(&self, tree: TreeId, ino: ObjectId) -> u64 {
        if ino.0 >= PLACEHOLDER_INO_BIT {
            return PLACEHOLDER_SHOWN;
        }
        if tree == self.mounted {
            return ino.0;
        }
        self.fold(tree, ino).unwrap_or_else(|| {
            let mixed = btrfs_format::hash::extent_data_ref_hash(tree, ino, 0);
            ODD_BIT | mixed & (ODD_BIT - 1)
        })
    }

    pub fn shown_of(&self, inode: &Inode) -> u64 {
        self.shown(inode.tree.id(), inode.ino)
    }

    /// The node id of an inode.
    pub fn node(&self, inode: &Inode) -> NodeId {
        let (tree, ino) = (inode.tree.id(), inode.ino);
        if tree == self.mounted && ino == self.root_ino {
            return NodeId::ROOT;
        }
        if let Some(folded) = self.fold(tree, ino) {
            return NodeId(folded);
        }
        let mut odd = self.odd.lock();
        let next = ODD_BIT + odd.by_inode.len() as u64;
        let node = *odd.by_inode.entry((tree, ino)).or_insert(next);
        odd.by_node.insert(node, (tree, ino));
        NodeId(node)
    }

    /// The inode of a node id that [`Numbering::node`] gave.
    pub fn inode_of(&self, node: NodeId) -> Option<(TreeId, ObjectId)> {
        if node == NodeId::ROOT {
            return Some((self.mounted, self.root_ino));
        }
        if node.0 & ODD_BIT != 0 {
            return self.odd.lock().by_node.get(&node.0).copied();
        }
        let ino = ObjectId(node.0 & ((1 << INO_BITS) - 1));
        let tree = match node.0 >> INO_BITS {
            0 => self.mounted,
            n => TreeId(n),
        };
        Some((tree, ino))
    }
}
