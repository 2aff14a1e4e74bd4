//! Items of many inodes read with one cursor: those of neighbouring numbers lie side by side.

use btrfs_format::{Key, KeyType, ObjectId};
use btrfs_store::tree::{Item, Run, Tree};

use super::plan::EXTENTS_MAX;
use crate::error::Result;

/// Numbers that a cursor passes over before another one begins: the items of four or five
/// neighbours are a kilobyte.
const GAP_MAX: u64 = 8;
/// Items read of one inode: more than these are not for a batch.
const ITEMS_MAX: usize = EXTENTS_MAX + 128;

/// Inode items, attributes and extents of some inodes.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    items: Vec<(Key, Item)>,
    /// Inodes that have more than [`ITEMS_MAX`].
    cut: Vec<ObjectId>,
}

impl Gathered {
    /// Reads what there is of these inodes, which ascend. The caller knows why they do not change.
    pub(super) fn read(tree: &Tree, inodes: &[ObjectId]) -> Result<Self> {
        let mut gathered = Self {
            items: Vec::with_capacity(3 * inodes.len()),
            cut: Vec::new(),
        };
        let mut left = inodes;
        while let [first, ..] = left {
            let near = left.windows(2).take_while(|pair| pair[1].0 - pair[0].0 <= GAP_MAX);
            let (group, rest) = left.split_at(near.count() + 1);
            left = rest;
            let mut from = Key::new(*first, KeyType::INODE_ITEM, 0);
            // One round, unless there are inodes of very many items.
            while let Some(next) = gathered.read_group(tree, from, group)? {
                from = next;
            }
        }
        Ok(gathered)
    }

    /// Reads on until an inode has too many items: the key where the next one begins.
    fn read_group(&mut self, tree: &Tree, from: Key, group: &[ObjectId]) -> Result<Option<Key>> {
        let Some(last) = group.last() else { return Ok(None) };
        let mut cursor = tree.cursor(from, Key::new(*last, KeyType::EXTENT_DATA, u64::MAX));
        let mut wanted = group.iter().peekable();
        let mut kept = 0;
        let mut keep = |key: Key, item: &dyn Fn() -> Item| {
            while wanted.next_if(|ino| **ino < key.objectid).is_some() {
                kept = 0;
            }
            let is_kind = matches!(key.ty, KeyType::INODE_ITEM | KeyType::XATTR_ITEM | KeyType::EXTENT_DATA);
            if is_kind && wanted.peek().is_some_and(|ino| **ino == key.objectid) {
                self.items.push((key, item()));
                kept += 1;
            }
            kept < ITEMS_MAX
        };
        while let Some(run) = cursor.next_run()? {
            match run {
                Run::Leaf { block, slots } => {
                    for slot in slots {
                        let item = || Item::Leaf {
                            block: block.clone(),
                            slot,
                        };
                        let key = block.key(slot);
                        if !keep(key, &item) {
                            return Ok(self.cut_off(key.objectid));
                        }
                    }
                }
                Run::Items(items) => {
                    for (key, item) in items {
                        if !keep(key, &|| item.clone()) {
                            return Ok(self.cut_off(key.objectid));
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    /// Notes that not all items of an inode are here. The key of the next inode.
    fn cut_off(&mut self, ino: ObjectId) -> Option<Key> {
        self.cut.push(ino);
        let next = ino.0.checked_add(1)?;
        Some(Key::new(ObjectId(next), KeyType::INODE_ITEM, 0))
    }

    /// The inode has more items than were read.
    pub(super) fn is_cut(&self, ino: ObjectId) -> bool {
        self.cut.contains(&ino)
    }

    /// The items of an inode, in order.
    pub(super) fn of(&self, ino: ObjectId) -> &[(Key, Item)] {
        let start = self.items.partition_point(|(key, _)| key.objectid < ino);
        let rest = &self.items[start..];
        let len = rest.iter().take_while(|(key, _)| key.objectid == ino).count();
        &rest[..len]
    }
}
