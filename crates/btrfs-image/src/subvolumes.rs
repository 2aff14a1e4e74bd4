//! Subvolumes that a new volume has from the start: empty ones, each with a name in the root directory of another.

use std::collections::BTreeSet;

use btrfs_format::hash::name_hash;
use btrfs_format::items::InodeItem;
use btrfs_format::{Key, KeyType, ObjectId, TreeId, U64, Uuid};
use zerocopy::{FromBytes, IntoBytes};

use crate::plan::{GENERATION, PlannedTree};
use crate::{MkfsError, Settings, items};

/// The first index of an entry in a directory: two are kept for `.` and `..`.
const DIR_INDEX_FIRST: u64 = 2;
const NAME_BYTES_MAX: usize = 255;

/// A subvolume to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubvolume {
    /// In whose root directory its name is: the top level, or a subvolume that comes before it.
    pub parent: TreeId,
    pub name: Vec<u8>,
}

/// A subvolume as it will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledSubvolume {
    pub id: TreeId,
    pub parent: TreeId,
    pub name: Vec<u8>,
    /// The index of its name.
    pub index: u64,
    pub uuid: Uuid,
}

/// The id of the n-th new subvolume.
fn nth_id(n: usize) -> TreeId {
    TreeId(ObjectId::FIRST_FREE.0 + n as u64)
}

/// Numbers them. Errors: `SubvolumeName`, `SubvolumeParent`.
pub(crate) fn settle(new: &[NewSubvolume], uuid: impl Fn(TreeId) -> Uuid) -> Result<Vec<SettledSubvolume>, MkfsError> {
    let mut names = BTreeSet::new();
    let mut settled: Vec<SettledSubvolume> = Vec::with_capacity(new.len());
    for (n, NewSubvolume { parent, name }) in new.iter().enumerate() {
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.iter().any(|b| matches!(b, b'/' | 0));
        if !is_name || name == b"." || name == b".." || !names.insert((*parent, name)) {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(MkfsError::SubvolumeName { name });
        }
        let beside = settled.iter().filter(|other| other.parent == *parent).count() as u64;
        if *parent != TreeId::FS && !settled.iter().any(|other| other.id == *parent) {
            return Err(MkfsError::SubvolumeParent { parent: *parent });
        }
        let id = nth_id(n);
        settled.push(SettledSubvolume {
            id,
            parent: *parent,
            name: name.clone(),
            index: DIR_INDEX_FIRST + beside,
            uuid: uuid(id),
        });
    }
    Ok(settled)
}

/// Puts the names into the root directories of a volume that holds nothing else; `trees` are the top level and the
/// subvolumes.
pub(crate) fn put_names<'a>(trees: impl Iterator<Item = &'a mut PlannedTree>, settings: &Settings) {
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

/// What the root tree says of who is where.
pub(crate) fn put_refs(root_tree: &mut PlannedTree, settings: &Settings) {
    for new in &settings.subvolumes {
        let item = items::root_ref(ObjectId::FIRST_FREE, new.index, &new.name);
        let (parent, child) = (new.parent.object_id(), new.id.object_id());
        root_tree.insert(Key::new(parent, KeyType::ROOT_REF, child.0), item.clone());
        root_tree.insert(Key::new(child, KeyType::ROOT_BACKREF, parent.0), item);
    }
}
