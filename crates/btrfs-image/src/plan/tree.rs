//! A tree in memory: its items, the blocks they are packed into, and the bytes of those.

use std::collections::BTreeMap;

use btrfs_format::block::{ITEM_HEADER_BYTES, item_bytes_max, leaf_capacity_bytes, node_capacity_ptrs};
use btrfs_format::features::header_flags;
use btrfs_format::{
    BlockExpect, Corrupt, Generation, HeaderFields, Key, LeafBuilder, LogicalAddr, NodeBuilder, TreeBlock, TreeId,
};

use crate::Settings;

/// The transaction that a new volume says it was made in.
pub const GENERATION: Generation = Generation(1);

/// The items of a tree, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTree {
    /// The tree.
    pub id: TreeId,
    items: BTreeMap<Key, Vec<u8>>,
}

impl PlannedTree {
    /// A tree without items.
    pub fn new(id: TreeId) -> Self {
        Self {
            id,
            items: BTreeMap::new(),
        }
    }

    /// Adds an item.
    ///
    /// # Panics
    /// Where there is an item with that key already.
    pub fn insert(&mut self, key: Key, data: impl Into<Vec<u8>>) {
        let old = self.items.insert(key, data.into());
        assert!(old.is_none(), "tree {} has two items {key}", self.id);
    }

    /// Adds an item, or puts the data in place of that of the item with the key.
    pub fn replace(&mut self, key: Key, data: impl Into<Vec<u8>>) {
        self.items.insert(key, data.into());
    }

    /// The data of an item.
    pub fn get(&self, key: &Key) -> Option<&[u8]> {
        self.items.get(key).map(Vec::as_slice)
    }
    /// All items, in key order.
    pub fn items(&self) -> impl Iterator<Item = (&Key, &[u8])> {
        self.items.iter().map(|(key, data)| (key, data.as_slice()))
    }
    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// True without items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How the items are packed: each leaf, and each node above, takes as much as fits.
    pub fn shape(&self, nodesize_bytes: usize) -> TreeShape {
        let mut leaves = vec![Run {
            count: 0,
            first_key: Key::MIN,
        }];
        let mut free_bytes = leaf_capacity_bytes(nodesize_bytes);
        for (key, data) in &self.items {
            assert!(
                data.len() <= item_bytes_max(nodesize_bytes),
                "item {key} is too large for a leaf"
            );
            let bytes = data.len() + ITEM_HEADER_BYTES;
            if bytes > free_bytes {
                free_bytes = leaf_capacity_bytes(nodesize_bytes);
                leaves.push(Run {
                    count: 0,
                    first_key: *key,
                });
            }
            let leaf = leaves.last_mut().expect("there is always a leaf");
            if leaf.count == 0 {
                leaf.first_key = *key;
            }
            leaf.count += 1;
            free_bytes -= bytes;
        }
        let mut levels = vec![leaves];
        while let Some(below) = levels.last()
            && below.len() > 1
        {
            let nodes = below
                .chunks(node_capacity_ptrs(nodesize_bytes))
                .map(|children| Run {
                    count: children.len(),
                    first_key: children[0].first_key,
                })
                .collect();
            levels.push(nodes);
        }
        TreeShape { levels }
    }
}

/// A block to be: how many items or children it takes over from the level below, and its first key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Items or children.
    pub count: usize,
    /// [`Key::MIN`] where the block is empty.
    pub first_key: Key,
}

/// The blocks of a tree, level by level from the leaves up; the last level is the root alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeShape {
    /// From the leaves up.
    pub levels: Vec<Vec<Run>>,
}

impl TreeShape {
    /// Blocks of all levels.
    pub fn block_count(&self) -> usize {
        self.levels.iter().map(Vec::len).sum()
    }
}

/// Where a tree begins, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeRoot {
    /// The tree.
    pub id: TreeId,
    /// Address of the root block.
    pub addr: LogicalAddr,
    /// Level of the root block.
    pub level: u8,
    /// Blocks of all levels.
    pub block_count: u64,
}

/// A tree whose blocks have addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTree {
    /// The items.
    pub tree: PlannedTree,
    /// How they are packed.
    pub shape: TreeShape,
    /// The addresses of the shape's blocks.
    pub addrs: Vec<Vec<LogicalAddr>>,
}

impl PlacedTree {
    /// Address of the root block.
    pub fn root(&self) -> LogicalAddr {
        self.addrs
            .last()
            .and_then(|level| level.first())
            .copied()
            .expect("a placed tree has a root")
    }
    /// Level of the root block.
    pub fn level(&self) -> u8 {
        u8::try_from(self.shape.levels.len() - 1).expect("a tree has at most eight levels")
    }

    /// Where it begins, and how large it is.
    pub fn summary(&self) -> TreeRoot {
        TreeRoot {
            id: self.tree.id,
            addr: self.root(),
            level: self.level(),
            block_count: self.shape.block_count() as u64,
        }
    }

    /// Address, level and first key of each block.
    pub fn blocks(&self) -> impl Iterator<Item = (LogicalAddr, u8, Key)> {
        self.addrs
            .iter()
            .zip(&self.shape.levels)
            .zip(0..)
            .flat_map(|((addrs, runs), level)| {
                addrs
                    .iter()
                    .zip(runs)
                    .map(move |(&addr, run)| (addr, level, run.first_key))
            })
    }

    /// Builds the blocks and gives each to `put`, leaves first.
    pub fn build<E: From<Corrupt>>(
        &self,
        settings: &Settings,
        generation: Generation,
        mut put: impl FnMut(TreeBlock) -> Result<(), E>,
    ) -> Result<(), E> {
        let nodesize = settings.nodesize();
        let mut items = self.tree.items.iter();
        for (level, (runs, addrs)) in self.shape.levels.iter().zip(&self.addrs).enumerate() {
            let mut children = match level.checked_sub(1) {
                Some(below) => self.shape.levels[below].iter().zip(&self.addrs[below]),
                None => [].iter().zip(&[]),
            };
            for (run, &addr) in runs.iter().zip(addrs) {
                let header = HeaderFields {
                    fsid: settings.uuid,
                    chunk_tree_uuid: settings.chunk_tree_uuid,
                    addr,
                    generation,
                    owner: self.tree.id,
                    level: u8::try_from(level).expect("a tree has at most eight levels"),
                    flags: header_flags::CURRENT,
                };
                let bytes = if level == 0 {
                    let mut leaf = LeafBuilder::new(nodesize);
                    items
                        .by_ref()
                        .take(run.count)
                        .for_each(|(key, data)| leaf.push(*key, &[data]));
                    leaf.finish(&header)
                } else {
                    let mut node = NodeBuilder::new(nodesize);
                    children
                        .by_ref()
                        .take(run.count)
                        .for_each(|(child, &at)| node.push(child.first_key, at, generation));
                    node.finish(&header)
                };
                put(TreeBlock::seal(bytes, &self.expect(settings, &header))?)?;
            }
        }
        Ok(())
    }

    fn expect(&self, settings: &Settings, header: &HeaderFields) -> BlockExpect {
        BlockExpect {
            addr: header.addr,
            fsid: header.fsid,
            csum_type: settings.csum_type,
            sectorsize_bytes: settings.sectorsize_bytes,
            level: Some(header.level),
            generation: Some(header.generation),
            first_key: None,
            tree: Some(self.tree.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use btrfs_format::{KeyType, ObjectId};

    use super::*;

    /// Keys of a type that no verifier judges.
    fn key(n: u64) -> Key {
        Key::new(ObjectId(n), KeyType::STRING_ITEM, 0)
    }

    #[test]
    fn empty_tree_is_one_empty_leaf() {
        let shape = PlannedTree::new(TreeId::CSUM).shape(4096);
        assert_eq!(
            shape.levels,
            [[Run {
                count: 0,
                first_key: Key::MIN
            }]]
        );
    }

    #[test]
    fn leaves_are_filled_to_the_last_byte() {
        // 3995 bytes of a leaf hold 47 items of 85 bytes.
        let mut tree = PlannedTree::new(TreeId::FS);
        for n in 0..94 {
            tree.insert(key(n), vec![0; 60]);
        }
        let counts = |tree: &PlannedTree| -> Vec<Vec<usize>> {
            let shape = tree.shape(4096);
            shape
                .levels
                .iter()
                .map(|runs| runs.iter().map(|run| run.count).collect())
                .collect()
        };
        assert_eq!(counts(&tree), [vec![47, 47], vec![2]]);
        tree.insert(key(94), []);
        assert_eq!(counts(&tree), [vec![47, 47, 1], vec![3]]);
    }

    #[test]
    fn tree_of_three_levels_leads_to_every_item() {
        let mut settings = crate::MkfsOptions::new([1; 16]);
        settings.nodesize_bytes = Some(4096);
        let settings = settings.settle(&[("a", 1 << 30)]).unwrap();
        let mut tree = PlannedTree::new(TreeId::FS);
        for n in 0..20_000_u64 {
            tree.insert(key(n), n.to_le_bytes());
        }
        let shape = tree.shape(4096);
        let mut next = 1 << 20;
        let addrs: Vec<Vec<LogicalAddr>> = shape
            .levels
            .iter()
            .map(|runs| {
                runs.iter()
                    .map(|_| {
                        next += 4096;
                        LogicalAddr(next)
                    })
                    .collect()
            })
            .collect();
        let placed = PlacedTree { tree, shape, addrs };
        assert_eq!(placed.level(), 2);
        let mut blocks = BTreeMap::new();
        placed
            .build::<Corrupt>(&settings, Generation(1), |block| {
                blocks.insert(block.addr(), block);
                Ok(())
            })
            .unwrap();
        for n in 0..20_000_u64 {
            let mut block = &blocks[&placed.root()];
            while !block.is_leaf() {
                block = &blocks[&block.child(block.child_slot(&key(n))).0];
            }
            let slot = block.search(&key(n)).unwrap();
            assert_eq!(block.data(slot), n.to_le_bytes());
        }
    }
}
