//! The small trees of a volume, which follow from its settings, its chunks and where the other
//! trees are.

use btrfs_format::hash::name_hash;
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId, U64};
use zerocopy::IntoBytes;

use super::chunks::ChunkPlanner;
use super::contents::put_root_dir;
use super::space::Space;
use super::tree::{GENERATION, PlannedTree, TreeRoot};
use super::{items, subvolumes};
use crate::Settings;

/// Makes the small trees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallTrees<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) chunks: &'a ChunkPlanner,
}

impl SmallTrees<'_> {
    pub(crate) fn uuid_tree(&self) -> PlannedTree {
        let settings = self.settings;
        let mut tree = PlannedTree::new(TreeId::UUID);
        tree.insert(
            Key::of_uuid(&settings.fs_tree_uuid, KeyType::UUID_SUBVOL),
            U64::new(TreeId::FS.0).as_bytes(),
        );
        for new in &settings.subvolumes {
            tree.insert(
                Key::of_uuid(&new.uuid, KeyType::UUID_SUBVOL),
                U64::new(new.id.0).as_bytes(),
            );
        }
        tree
    }

    pub(crate) fn data_reloc_tree(&self) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::DATA_RELOC);
        put_root_dir(&mut tree, ObjectId::FIRST_FREE, self.settings, 0);
        tree
    }

    /// `roots` are those of all trees.
    pub(crate) fn root_tree(&self, roots: &[TreeRoot]) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::ROOT);
        // The superblock says where these two are.
        let listed = roots
            .iter()
            .filter(|root| ![TreeId::ROOT, TreeId::CHUNK].contains(&root.id));
        for root in listed {
            let item = items::root_item(self.settings, GENERATION, root);
            let key = Key::new(root.id.object_id(), KeyType::ROOT_ITEM, 0);
            tree.insert(key, item.as_bytes());
        }
        // The directory whose one entry names the subvolume that is mounted by default.
        let (dir, name) = (ObjectId::ROOT_TREE_DIR, b"default");
        put_root_dir(&mut tree, dir, self.settings, self.settings.nodesize_bytes.into());
        tree.insert(
            Key::new(dir, KeyType::DIR_ITEM, name_hash(name)),
            items::subvolume_dir_item(name, self.settings.default_subvolume, Generation(0)),
        );
        tree.insert(
            Key::new(TreeId::FS.object_id(), KeyType::INODE_REF, dir.0),
            items::inode_ref(0, name),
        );
        subvolumes::put_refs(&mut tree, self.settings);
        tree
    }

    pub(crate) fn block_group_tree(&self, space: &Space) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::BLOCK_GROUP);
        self.put_block_groups(&mut tree, space);
        tree
    }

    pub(crate) fn put_block_groups(&self, tree: &mut PlannedTree, space: &Space) {
        for chunk in &self.chunks.chunks {
            let (key, item) = items::block_group(chunk, space.used_bytes(chunk));
            tree.insert(key, item);
        }
    }

    pub(crate) fn chunk_tree(&self) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::CHUNK);
        for (index, device) in self.chunks.devices.iter().enumerate() {
            let item = items::dev_item(self.settings, device, self.chunks.device_used_bytes(index));
            let key = Key::new(ObjectId::DEV_ITEMS, KeyType::DEV_ITEM, device.devid.0);
            tree.insert(key, item.as_bytes());
        }
        for chunk in &self.chunks.chunks {
            let (key, item) = items::chunk(self.settings, &self.chunks.devices, chunk);
            tree.insert(key, item);
        }
        tree
    }

    pub(crate) fn dev_tree(&self) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::DEV);
        for chunk in &self.chunks.chunks {
            let item = items::dev_extent(self.settings, chunk);
            for stripe in &chunk.stripes {
                let devid = self.chunks.devices[stripe.device].devid;
                let key = Key::new(ObjectId(devid.0), KeyType::DEV_EXTENT, stripe.offset_bytes);
                tree.insert(key, item.as_bytes());
            }
        }
        tree
    }

    pub(crate) fn free_space_tree(&self, space: &Space) -> PlannedTree {
        let mut tree = PlannedTree::new(TreeId::FREE_SPACE);
        for chunk in &self.chunks.chunks {
            let free = space.free_ranges(chunk);
            let (key, item) = items::free_space_info(chunk, free.len());
            tree.insert(key, item);
            for range in free {
                let key = Key::new(
                    ObjectId(range.start),
                    KeyType::FREE_SPACE_EXTENT,
                    range.end - range.start,
                );
                tree.insert(key, []);
            }
        }
        tree
    }
}
