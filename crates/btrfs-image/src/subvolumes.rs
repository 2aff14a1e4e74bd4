//! Subvolumes that a new volume has from the start: empty ones, each with a name in the root
//! directory of another.

use std::collections::BTreeSet;

use btrfs_format::{ObjectId, TreeId, Uuid};

use crate::MkfsError;

/// The first index of an entry in a directory: two are kept for `.` and `..`.
const DIR_INDEX_FIRST: u64 = 2;
const NAME_BYTES_MAX: usize = 255;

/// A subvolume to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubvolume {
    /// The subvolume in whose root directory its name is: the top level, or one listed before it.
    pub parent: TreeId,
    /// Its name in that directory: 1 to 255 bytes, no slash.
    pub name: Vec<u8>,
}

/// A subvolume as it will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledSubvolume {
    /// Its tree.
    pub id: TreeId,
    /// The subvolume in whose root directory its name is.
    pub parent: TreeId,
    /// Its name.
    pub name: Vec<u8>,
    /// The directory in that subvolume that holds its name.
    pub dir: ObjectId,
    /// The index of its name.
    pub index: u64,
    /// Whether it may be changed.
    pub read_only: bool,
    /// Its uuid.
    pub uuid: Uuid,
    /// The uuid of the subvolume that it is a snapshot of; zero for all others.
    pub parent_uuid: Uuid,
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
            dir: ObjectId::FIRST_FREE,
            read_only: false,
            index: DIR_INDEX_FIRST + beside,
            uuid: uuid(id),
            parent_uuid: [0; 16],
        });
    }
    Ok(settled)
}
