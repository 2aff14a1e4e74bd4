//! The item changes of one operation before they are a batch, read through: a later step of the
//! same operation sees what an earlier one changed (two names of one directory may share an item).

use std::sync::Arc;

use btrfs_format::block::{ITEM_HEADER_BYTES, leaf_capacity_bytes};
use btrfs_format::{Key, TreeId};

use smallvec::SmallVec;

use crate::error::Result;
use btrfs_store::overlay::ItemBytes;
use btrfs_store::tree::{Item, Tree};
use btrfs_store::txn::Batch;

pub(crate) struct Staged<'t> {
    tree: &'t Arc<Tree>,
    batch: Batch,
    /// Items of the tree that were read before, by key; `None`: the tree has no such item.
    known: SmallVec<[(Key, Option<Item>); 2]>,
    is_crowded: bool,
}

impl<'t> Staged<'t> {
    pub(crate) fn new(tree: &'t Arc<Tree>) -> Self {
        Self {
            tree,
            batch: Batch::new(),
            known: SmallVec::new(),
            is_crowded: false,
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Option<Item>> {
        match self.batch.pending(self.tree, key) {
            Some(edit) => Ok(edit.clone().map(Item::Pending)),
            None => match self.known.iter().find(|(known, _)| known == key) {
                Some((_, item)) => Ok(item.clone()),
                None => Ok(self.tree.get(key)?),
            },
        }
    }

    /// The tree has this item under a key. The caller's locks keep other operations from changing
    /// it.
    pub(crate) fn know(&mut self, key: Key, item: Option<Item>) {
        let is_so = |there: Option<Item>| there.as_deref() == item.as_deref();
        // A read that fails proves nothing.
        debug_assert!(self.tree.get(&key).map_or(true, is_so), "{key} was changed since");
        self.known.push((key, item));
    }

    pub(crate) fn put(&mut self, key: Key, bytes: impl Into<ItemBytes>) {
        self.batch.put(self.tree, key, bytes);
    }
    pub(crate) fn delete(&mut self, key: Key) {
        self.batch.delete(self.tree, key);
    }
    /// Puts what is left of a packed item, or deletes it where nothing is.
    pub(crate) fn put_or_delete(&mut self, key: Key, bytes: Vec<u8>) {
        if bytes.is_empty() {
            self.delete(key);
        } else {
            self.put(key, bytes);
        }
    }

    /// A name came into or goes out of an item of names that share a hash. Of how many bytes it is
    /// with that name.
    pub(crate) fn note_shared(&mut self, bytes: usize) {
        self.is_crowded |= bytes > half_leaf_bytes(self.tree.store().nodesize_bytes());
    }
    /// More than half a leaf is in such an item: what the commit has in it and what a log adds may
    /// not fit one leaf together.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    pub(crate) fn tree_id(&self) -> TreeId {
        self.tree.id()
    }
    /// The largest item that a leaf of this tree holds.
    pub(crate) fn item_bytes_max(&self) -> usize {
        btrfs_format::block::item_bytes_max(self.tree.store().nodesize_bytes())
    }

    pub(crate) fn into_batch(self) -> Batch {
        self.batch
    }
}

/// The longest item of which a leaf can have two.
pub(crate) fn half_leaf_bytes(nodesize_bytes: usize) -> usize {
    leaf_capacity_bytes(nodesize_bytes) / 2 - ITEM_HEADER_BYTES
}
