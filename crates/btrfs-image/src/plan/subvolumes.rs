//! The items that give new subvolumes their names: entries in directories, references in the root
//! tree.

use btrfs_format::hash::name_hash;
use btrfs_format::items::InodeItem;
use btrfs_format::{Key, KeyType, ObjectId, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::items;
use super::tree::{GENERATION, PlannedTree};
use crate::Settings;

/// Puts the names into the root directories of a volume that holds nothing else; `trees` are the
/// top level and the subvolumes.
pub(super) fn put_names<'a>(trees: impl Iterator<Item = &'a mut PlannedTree>, settings: &Settings) {
    let dir = ObjectId::FIRST_FREE;
    for tree in trees {
        let (id, mut grown) = (tree.id, 0);
        for new in settings.subvolumes.iter().filter(|new| new.parent == id) {
            let entry = items::subvolume_dir_item(&new.name, new.id, GENERATION);
            let by_hash = Key::new(dir, KeyType::DIR_ITEM, name_hash(&new.name));
            let same_hash = tree.get(&by_hash).unwrap_or_default();
            let together = [same_hash, &entry].concat();
            tree.replace(by_hash, together);
            tree.insert(Key::new(dir, KeyType::DIR_INDEX, new.index), entry);
            grown += 2 * new.name.len() as u64;
        }
        let key = Key::new(dir, KeyType::INODE_ITEM, 0);
        let inode = tree.get(&key).expect("a root directory");
        let mut inode = InodeItem::read_from_bytes(inode).expect("an inode");
        inode.size = U64::new(grown);
        tree.replace(key, inode.as_bytes());
    }
}

/// The references between subvolumes and the directories that hold their names.
pub(super) fn put_refs(root_tree: &mut PlannedTree, settings: &Settings) {
    for new in &settings.subvolumes {
        let item = items::root_ref(new.dir, new.index, &new.name);
        let (parent, child) = (new.parent.object_id(), new.id.object_id());
        root_tree.insert(Key::new(parent, KeyType::ROOT_REF, child.0), item.clone());
        root_tree.insert(Key::new(child, KeyType::ROOT_BACKREF, parent.0), item);
    }
}
