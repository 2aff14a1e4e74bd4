//! The tree of uuids: which subvolumes have a uuid, and which were received from one.

use std::sync::Arc;

use btrfs_format::{Key, KeyType, TreeId, Uuid};
use btrfs_store::tree::Tree;
use btrfs_store::txn::Batch;

use crate::error::Result;
use crate::files::Files;

/// Changes of the tree, to be added to a batch. The caller holds the lock on the names of
/// subvolumes.
pub(super) struct UuidEdits {
    /// `None`: the volume has none, and Linux makes it.
    tree: Option<Arc<Tree>>,
    edits: Vec<(Key, Vec<u8>)>,
}

impl UuidEdits {
    pub(super) fn new(files: &Files) -> Result<Self> {
        Ok(Self {
            tree: files.store().forest().load(TreeId::UUID)?,
            edits: Vec::new(),
        })
    }

    /// A subvolume has this uuid, or was received from it. Zeros are no uuid.
    pub(super) fn add(&mut self, uuid: &Uuid, ty: KeyType, id: TreeId) -> Result<()> {
        self.change(uuid, ty, |ids| {
            if !ids.contains(&id.get()) {
                ids.push(id.get());
            }
        })
    }

    /// It has not, or was not.
    pub(super) fn remove(&mut self, uuid: &Uuid, ty: KeyType, id: TreeId) -> Result<()> {
        self.change(uuid, ty, |ids| ids.retain(|other| *other != id.get()))
    }

    fn change(&mut self, uuid: &Uuid, ty: KeyType, change: impl FnOnce(&mut Vec<u64>)) -> Result<()> {
        let Some(tree) = self.tree.as_ref().filter(|_| *uuid != Uuid::default()) else {
            return Ok(());
        };
        let key = Key::of_uuid(uuid, ty);
        let staged = self.edits.iter().position(|(edited, _)| *edited == key);
        let before = match staged {
            Some(at) => self.edits.swap_remove(at).1,
            None => tree.get(&key)?.map_or_else(Vec::new, |item| item.to_vec()),
        };
        let (whole, _) = before.as_chunks();
        let mut ids: Vec<u64> = whole.iter().map(|id| u64::from_le_bytes(*id)).collect();
        change(&mut ids);
        let after = ids.into_iter().flat_map(u64::to_le_bytes).collect();
        self.edits.push((key, after));
        Ok(())
    }

    pub(super) fn add_to(self, batch: &mut Batch) {
        let Some(tree) = self.tree else { return };
        for (key, ids) in self.edits {
            match ids.is_empty() {
                true => batch.delete(&tree, key),
                false => batch.put(&tree, key, ids),
            }
        }
    }
}
