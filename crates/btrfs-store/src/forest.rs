//! All open trees of a volume.

use std::collections::HashMap;
use std::sync::Arc;

use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use cowshed_runtime::lock::RwLock;

use crate::error::{Error, Result};
use crate::rank::LockRank;
use crate::tree::{NodeStore, RootPtr, Tree};

/// All trees that are open, by id.
#[derive(Debug)]
pub struct Forest {
    store: Arc<NodeStore>,
    root_tree: Arc<Tree>,
    trees: RwLock<HashMap<TreeId, Arc<Tree>>>,
}

impl Forest {
    /// Starts with the root tree and the chunk tree, whose roots the superblock names, and with the
    /// top level, where that is opened by a root of its own. Errors: at that root there is no block
    /// of the volume.
    pub(crate) fn new(store: Arc<NodeStore>) -> Result<Self> {
        let sb = store.volume().superblock();
        let root = RootPtr {
            addr: sb.root.into(),
            generation: sb.generation.into(),
            level: sb.root_level,
        };
        let chunk_root = RootPtr {
            addr: sb.chunk_root.into(),
            generation: sb.chunk_root_generation.into(),
            level: sb.chunk_root_level,
        };
        let root_tree = Arc::new(Tree::new(TreeId::ROOT, store.clone(), root));
        let chunk_tree = Arc::new(Tree::new(TreeId::CHUNK, store.clone(), chunk_root));
        let mut trees = HashMap::from([(TreeId::ROOT, root_tree.clone()), (TreeId::CHUNK, chunk_tree)]);
        if let Some(addr) = store.volume().options().rescue.top_level_root {
            let block = store.volume().block_at(addr, TreeId::FS)?;
            let root = RootPtr {
                addr,
                generation: block.generation,
                level: block.level,
            };
            trees.insert(TreeId::FS, Arc::new(Tree::new(TreeId::FS, store.clone(), root)));
        }
        Ok(Self {
            store,
            root_tree,
            trees: RwLock::new(LockRank::OpenTrees, trees),
        })
    }

    /// The tree of tree roots (tree 1).
    pub fn root_tree(&self) -> &Arc<Tree> {
        &self.root_tree
    }

    /// Opens a tree; `None` where the root tree has no item for it.
    pub fn load(&self, id: TreeId) -> Result<Option<Arc<Tree>>> {
        if let Some(tree) = self.trees.read().get(&id) {
            return Ok(Some(tree.clone()));
        }
        let key = Key::new(id.object_id(), KeyType::ROOT_ITEM, u64::MAX);
        let Some((_, item)) = self.root_tree.floor_same_type(&key)? else {
            return Ok(None);
        };
        let root = btrfs_format::view::root_item(&item).ok_or_else(|| Error::CorruptTree {
            tree: TreeId::ROOT,
            what: format!("root item of tree {id} is too short"),
        })?;
        let ptr = RootPtr {
            addr: root.bytenr.into(),
            generation: root.generation.into(),
            level: root.level,
        };
        if ptr.is_unborn() {
            return Err(Error::CorruptTree {
                tree: TreeId::ROOT,
                what: format!("root item of tree {id} names no block"),
            });
        }
        let mut trees = self.trees.write();
        let tree = trees
            .entry(id)
            .or_insert_with(|| Arc::new(Tree::new(id, self.store.clone(), ptr)));
        Ok(Some(tree.clone()))
    }

    /// Opens a tree that must be there.
    pub fn require(&self, id: TreeId) -> Result<Arc<Tree>> {
        self.load(id)?.ok_or_else(|| Error::CorruptTree {
            tree: id,
            what: "has no root item".into(),
        })
    }

    /// Every open tree.
    pub(crate) fn open_trees(&self) -> Vec<Arc<Tree>> {
        let mut all: Vec<_> = self.trees.read().values().cloned().collect();
        all.sort_by_key(|t| t.id());
        all
    }
    /// Adds an empty tree that the next commit writes for the first time, if anything is in it
    /// then. The caller has joined the transaction, and the batch that it applies puts the tree's
    /// root item ([`crate::jobs::root_item_of_new`]) and its first items.
    pub fn add_unborn(&self, id: TreeId) -> Arc<Tree> {
        let tree = Arc::new(Tree::new(id, self.store.clone(), RootPtr::UNBORN));
        self.insert(tree.clone());
        tree
    }

    /// Adds a tree that was just made.
    pub(crate) fn insert(&self, tree: Arc<Tree>) {
        self.trees.write().insert(tree.id(), tree);
    }
    /// Drops a tree that is gone.
    pub(crate) fn remove(&self, id: TreeId) {
        self.trees.write().remove(&id);
    }

    /// Object id of the last subvolume or other object in the root tree.
    ///
    /// # Errors
    /// Those of reading the root tree.
    pub fn last_subvolume_id(&self) -> Result<ObjectId> {
        let key = Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX);
        Ok(self.root_tree.floor(&key)?.map_or(ObjectId(0), |(k, _)| k.objectid))
    }
}
