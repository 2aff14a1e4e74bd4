//! Inode numbers and node ids that callers see.
//!
//! Each subvolume numbers its inodes from 256, so a number alone does not name an inode of the
//! volume. Node ids are a fixed function of (tree, inode) wherever 64 bits have room for both,
//! because file handles (NFS, fhandles) carry the node id and must stay good after the server has
//! forgotten the node, and after a remount:
//!
//! | bits 63, 62 | bits 61 to 0 | for |
//! |---|---|---|
//! | 0, 0 | inode (40 bits), upper 22 bits 0 | the mounted subvolume, `st_ino` unchanged |
//! | 0, 0 | tree (22 bits), inode (40 bits) | other subvolumes |
//! | 0, 1 | tree (30 bits), inode (32 bits) | subvolumes with ids of more than 22 bits |
//! | 1, - | random number of the mount (31 bits), counter (32 bits) | the rest, and stand-ins |
//!
//! The rest is a subvolume that has numbered 2^40 inodes, or a subvolume id that does not fit. Such
//! node ids are kept in memory until the mount ends. After a remount the random number differs, so
//! an old handle is stale and does not name another file. `st_ino` of the rest is a hash, which is
//! stable but may not be unique.

use std::collections::HashMap;

use btrfs_format::{Generation, ObjectId, TreeId};
use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::Mutex;
use cowshed_vfs::NodeId;

use crate::object::Inode;
use crate::object::PLACEHOLDER_INO_BIT;

/// One way to put a tree id and an inode number into 62 bits.
#[derive(Debug)]
struct Split {
    ino_bits: u32,
    tree_bits: u32,
    /// Tells it from the other one.
    mark: u64,
}

const NARROW: Split = Split {
    ino_bits: 40,
    tree_bits: 22,
    mark: 0,
};
const WIDE: Split = Split {
    ino_bits: 32,
    tree_bits: 30,
    mark: 1 << 62,
};
/// Set in numbers that do not say where they come from.
const ODD_BIT: u64 = 1 << 63;
/// Below the random number of the mount.
const ODD_COUNTER_BITS: u32 = 32;
/// What a stand-in for a subvolume shows as its number, as the kernel has it.
const PLACEHOLDER_SHOWN: u64 = ObjectId::EMPTY_SUBVOL_DIR.0;

impl Split {
    fn fold(&self, tree: TreeId, ino: ObjectId) -> Option<u64> {
        let fits = ino.0 >> self.ino_bits == 0 && tree.0 >> self.tree_bits == 0;
        fits.then_some(self.mark | tree.0 << self.ino_bits | ino.0)
    }

    fn unfold(&self, folded: u64) -> (TreeId, ObjectId) {
        let low = |bits: u32, n: u64| n & ((1 << bits) - 1);
        let tree = low(self.tree_bits, folded >> self.ino_bits);
        (TreeId(tree), ObjectId(low(self.ino_bits, folded)))
    }
}

/// Numbers of one mount.
#[derive(Debug)]
pub(crate) struct Numbering {
    mounted: TreeId,
    root_ino: ObjectId,
    /// Upper half of the node ids that are kept in memory.
    odd_base: u64,
    odd: Mutex<Odd>,
}

#[derive(Debug, Default)]
struct Odd {
    by_inode: HashMap<(TreeId, ObjectId), u64>,
    by_node: HashMap<u64, (TreeId, ObjectId)>,
}

impl Numbering {
    /// For a mount that shows directory `root_ino` of subvolume `mounted` as its root. `random`
    /// tells this mount from earlier ones.
    pub(crate) fn new(mounted: TreeId, root_ino: ObjectId, random: [u8; 4]) -> Self {
        let random = u64::from(u32::from_le_bytes(random));
        Self {
            mounted,
            root_ino,
            odd_base: ODD_BIT | random << ODD_COUNTER_BITS,
            odd: Mutex::new(LockRank::NodeIds, Odd::default()),
        }
    }

    /// The subvolume that is mounted.
    pub(crate) fn mounted(&self) -> TreeId {
        self.mounted
    }

    fn fold(&self, tree: TreeId, ino: ObjectId) -> Option<u64> {
        if tree == self.mounted {
            return NARROW.fold(TreeId(0), ino);
        }
        NARROW.fold(tree, ino).or_else(|| WIDE.fold(tree, ino))
    }

    /// `st_ino`: stable across mounts of the same subvolume.
    pub(crate) fn shown(&self, tree: TreeId, ino: ObjectId) -> u64 {
        if ino.0 >= PLACEHOLDER_INO_BIT {
            return PLACEHOLDER_SHOWN;
        }
        if tree == self.mounted {
            return ino.0;
        }
        self.fold(tree, ino)
            .unwrap_or_else(|| ODD_BIT | btrfs_format::hash::extent_data_ref_hash(tree, ino, 0))
    }

    pub(crate) fn shown_of(&self, inode: &Inode) -> u64 {
        self.shown(inode.tree.id(), inode.ino)
    }

    /// The node id of an inode.
    pub(crate) fn node(&self, inode: &Inode) -> NodeId {
        self.node_of(inode.tree.id(), inode.ino)
    }

    /// As [`Numbering::node`], of an inode that need not be in memory.
    pub(crate) fn node_of(&self, tree: TreeId, ino: ObjectId) -> NodeId {
        if tree == self.mounted && ino == self.root_ino {
            return NodeId::ROOT;
        }
        if let Some(folded) = self.fold(tree, ino) {
            return NodeId(folded);
        }
        let mut odd = self.odd.lock();
        let next = self.odd_base + odd.by_inode.len() as u64;
        let node = *odd.by_inode.entry((tree, ino)).or_insert(next);
        odd.by_node.insert(node, (tree, ino));
        NodeId(node)
    }

    /// The inode of a node id that [`Numbering::node`] gave. Other ids may give an inode, too; its
    /// own node id differs.
    pub(crate) fn inode_of(&self, node: NodeId) -> Option<(TreeId, ObjectId)> {
        if node == NodeId::ROOT {
            return Some((self.mounted, self.root_ino));
        }
        if node.0 & ODD_BIT != 0 {
            return self.odd.lock().by_node.get(&node.0).copied();
        }
        if node.0 & WIDE.mark != 0 {
            return Some(WIDE.unfold(node.0));
        }
        match NARROW.unfold(node.0) {
            (TreeId(0), ino) => Some((self.mounted, ino)),
            other => Some(other),
        }
    }

    /// The subvolume of an inode by the number that it shows. `None` where the number does not say.
    pub(crate) fn tree_of_shown(&self, shown: u64) -> Option<TreeId> {
        // The kernel's own, until it has asked for attributes.
        if shown == NodeId::ROOT.0 {
            return Some(self.mounted);
        }
        let says_tree = shown >= ObjectId::FIRST_FREE.0 && shown & ODD_BIT == 0;
        says_tree.then(|| self.inode_of(NodeId(shown)).map(|(tree, _)| tree))?
    }

    /// The generation that goes with a node id in file handles. The kernel keeps 32 bits of it, and
    /// has 0 for the root. The tree is part of it: a snapshot has the inode numbers and generations
    /// of its source, and when it is mounted in the source's place a handle must not go from one to
    /// the other.
    pub(crate) fn generation(&self, tree: TreeId, ino: ObjectId, generation: Generation) -> u64 {
        /// Odd, so that different trees (below 2^32) give different products.
        const SPREAD: u32 = 0x9e37_79b1;
        if tree == self.mounted && ino == self.root_ino {
            return 0;
        }
        u64::from(generation.get() as u32 ^ (tree.0 as u32).wrapping_mul(SPREAD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTED: TreeId = TreeId(5);

    fn numbering(random: u8) -> Numbering {
        Numbering::new(MOUNTED, ObjectId::FIRST_FREE, [random; 4])
    }

    #[test]
    fn node_ids_that_fit_are_the_same_in_every_mount() {
        let (first, second) = (numbering(1), numbering(2));
        for (tree, ino, node) in [
            (5, 256, NodeId::ROOT.0),
            (5, 257, 257),
            (5, (1 << 40) - 1, (1 << 40) - 1),
            (256, 256, 256 << 40 | 256),
            ((1 << 22) - 1, (1 << 40) - 1, (1 << 62) - 1),
            (1 << 22, 256, 1 << 62 | 1 << 54 | 256),
            ((1 << 30) - 1, (1 << 32) - 1, (1 << 63) - 1),
        ] {
            let inode = (TreeId(tree), ObjectId(ino));
            assert_eq!(first.node_of(inode.0, inode.1), NodeId(node), "{inode:?}");
            assert_eq!(first.inode_of(NodeId(node)), Some(inode));
            assert_eq!(second.inode_of(NodeId(node)), Some(inode));
        }
    }

    #[test]
    fn node_ids_that_do_not_fit_end_with_their_mount() {
        let (first, second) = (numbering(1), numbering(2));
        for (tree, ino) in [
            (5, 1 << 40),
            (1 << 22, 1 << 32),
            (1 << 30, 256),
            (256, PLACEHOLDER_INO_BIT | 7),
        ] {
            let inode = (TreeId(tree), ObjectId(ino));
            let node = first.node_of(inode.0, inode.1);
            assert_ne!(second.node_of(inode.0, inode.1), node, "{inode:?}");
            assert_eq!(first.node_of(inode.0, inode.1), node);
            assert_eq!(first.inode_of(node), Some(inode));
            assert_eq!(second.inode_of(node), None);
        }
    }

    #[test]
    fn shown_numbers_differ_between_subvolumes() {
        let numbering = numbering(1);
        let mut seen = std::collections::BTreeSet::new();
        for tree in [5, 256, 257, 1 << 22, 1 << 29, 1 << 40] {
            for ino in [256, 257, 1 << 31, 1 << 39, 1 << 50] {
                assert!(
                    seen.insert(numbering.shown(TreeId(tree), ObjectId(ino))),
                    "{tree} {ino}"
                );
            }
        }
    }

    #[test]
    fn shown_numbers_say_their_subvolume_or_nothing() {
        let numbering = numbering(1);
        assert_eq!(numbering.tree_of_shown(NodeId::ROOT.0), Some(MOUNTED));
        for tree in [5, 256, (1 << 22) - 1, 1 << 22, (1 << 30) - 1, 1 << 30, 1 << 40] {
            for ino in [256, (1 << 32) - 1, 1 << 32, (1 << 40) - 1, PLACEHOLDER_INO_BIT | 1] {
                let shown = numbering.shown(TreeId(tree), ObjectId(ino));
                let said = numbering.tree_of_shown(shown);
                let is_plain = ino < PLACEHOLDER_INO_BIT && (tree < 1 << 22 || tree < 1 << 30 && ino < 1 << 32);
                assert_eq!(said, is_plain.then_some(TreeId(tree)), "{tree} {ino}");
            }
        }
    }

    #[test]
    fn generation_tells_a_snapshot_from_its_source() {
        let generation = |tree: u64| numbering(1).generation(TreeId(tree), ObjectId(300), Generation(77));
        assert_ne!(generation(5), generation(256));
        assert_ne!(generation(256), generation(257));
        assert!(generation(256) <= u64::from(u32::MAX));
        let root = numbering(1).generation(MOUNTED, ObjectId::FIRST_FREE, Generation(77));
        assert_eq!(root, 0, "the kernel's own");
    }
}
