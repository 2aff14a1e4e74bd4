//! What a volume holds, besides what describes its space.

use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use zerocopy::IntoBytes;

use super::data::DataExtent;
use super::tree::{GENERATION, PlannedTree};
use super::{items, subvolumes};
use crate::Settings;

/// What a volume holds, besides what describes its space.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The top-level subvolume.
    pub fs_tree: PlannedTree,
    /// The others.
    pub subvolumes: Vec<PlannedTree>,
    /// The checksums of the data.
    pub csum_tree: PlannedTree,
    /// The data.
    pub data_extents: Vec<DataExtent>,
}

impl Contents {
    /// A root directory, and those of the subvolumes that the settings name.
    pub fn empty(settings: &Settings) -> Self {
        let subvolume = |id| {
            let mut tree = PlannedTree::new(id);
            let nbytes = settings.nodesize_bytes.into();
            put_root_dir(&mut tree, ObjectId::FIRST_FREE, settings, nbytes);
            tree
        };
        let mut fs_tree = subvolume(TreeId::FS);
        let mut others: Vec<_> = settings.subvolumes.iter().map(|new| subvolume(new.id)).collect();
        subvolumes::put_names(std::iter::once(&mut fs_tree).chain(&mut others), settings);
        Self {
            fs_tree,
            subvolumes: others,
            csum_tree: PlannedTree::new(TreeId::CSUM),
            data_extents: Vec::new(),
        }
    }
}

/// A directory that is its own parent.
pub(super) fn put_root_dir(tree: &mut PlannedTree, dir: ObjectId, settings: &Settings, nbytes: u64) {
    let inode = items::dir_inode(GENERATION, nbytes, settings.time);
    tree.insert(Key::new(dir, KeyType::INODE_ITEM, 0), inode.as_bytes());
    tree.insert(Key::new(dir, KeyType::INODE_REF, dir.0), items::inode_ref(0, b".."));
}
