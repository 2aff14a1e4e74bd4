//! The root tree: which trees there are, and how subvolumes hang together.

use std::collections::{BTreeMap, BTreeSet};

use btrfs_format::features::compat_ro;
use btrfs_format::items::{FreeSpaceHeader, InodeItem, RootItem};
use btrfs_format::view::{FileExtentView, dir_entries, file_extent, fixed, root_item, root_ref};
use btrfs_format::{Key, KeyType, ObjectId, TreeId, Uuid};

use crate::block::Block;
use crate::finding::{FindingId as Id, Site};
use crate::util::{count, is_aligned};
use crate::volume::Volume;
use crate::walk::{Cx, Root, Shared, item_site};

/// Of the root tree's own directory: the subvolume that is mounted where no other is asked for.
const DEFAULT_NAME: &[u8] = b"default";

/// Where a subvolume hangs: one side of the pair of references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    pub(crate) dirid: u64,
    pub(crate) index: u64,
    pub(crate) name: Vec<u8>,
}

/// A pair of references between a parent tree and a subvolume.
#[derive(Clone, Debug, Default)]
pub(crate) struct RootLink {
    pub(crate) forward: Option<Hook>,
    pub(crate) back: Option<Hook>,
    /// The directory entries were seen.
    pub(crate) item_seen: bool,
    pub(crate) index_seen: bool,
}

/// A root item, in what matters here.
#[derive(Clone, Debug)]
pub(crate) struct TreeRoot {
    pub(crate) root: Root,
    pub(crate) refs: u32,
    pub(crate) bytes_used: u64,
    pub(crate) uuid: Uuid,
    pub(crate) received_uuid: Uuid,
    pub(crate) is_snapshot: bool,
    pub(crate) root_dirid: u64,
}

/// A file of the root tree, which holds a space cache.
#[derive(Debug, Default)]
pub(crate) struct CacheInode {
    pub(crate) generation: u64,
    pub(crate) size_bytes: u64,
    /// Offset in the file, address, length.
    pub(crate) extents: Vec<(u64, u64, u64)>,
}

/// What the root tree holds.
#[derive(Default)]
pub(crate) struct Roots {
    /// By tree id and key offset (the latter tells relocation trees apart).
    pub(crate) trees: BTreeMap<(u64, u64), TreeRoot>,
    /// By parent and subvolume.
    pub(crate) links: BTreeMap<(u64, u64), RootLink>,
    pub(crate) orphans: BTreeSet<u64>,
    /// The subvolume that is mounted by default, where an item says so.
    default: Option<(TreeId, Site)>,
    pub(crate) whole: bool,
    /// Version 1 space caches by the start of their block group.
    pub(crate) caches: Vec<(u64, FreeSpaceHeader)>,
    pub(crate) cache_inodes: BTreeMap<u64, CacheInode>,
}

impl Roots {
    pub(crate) fn get(&self, tree: TreeId) -> Option<&TreeRoot> {
        self.trees
            .range((tree.get(), 0)..=(tree.get(), u64::MAX))
            .next()
            .map(|(_, root)| root)
    }
}

pub(crate) fn root_tree(vol: &Volume) -> Root {
    Root {
        tree: TreeId::ROOT,
        addr: vol.sb.root.get(),
        level: vol.sb.root_level,
        generation: vol.sb.generation.get(),
        drop: None,
        is_dead: false,
        log: false,
        last_snapshot: None,
    }
}

/// Walks the root tree.
pub(crate) fn read(cx: &mut Cx<'_>) -> Roots {
    let mut roots = Roots::default();
    let root = root_tree(&cx.vol);
    let whole = cx.walk(&root, Shared::Skip, &mut |cx, leaf, _| {
        for (key, data) in leaf.items() {
            read_item(cx, &mut roots, leaf, key, data);
        }
    });
    roots.whole = whole;
    roots
}

fn read_item(cx: &mut Cx<'_>, roots: &mut Roots, leaf: &Block, key: Key, data: &[u8]) {
    let site = item_site(TreeId::ROOT, leaf, key);
    match key.ty {
        KeyType::ROOT_ITEM => {
            if key.objectid.tree_id() == TreeId::TREE_LOG {
                return;
            }
            match root_item(data)
                .ok_or("too short".to_owned())
                .and_then(|item| parse(cx, key, &item))
            {
                Ok(root) => {
                    if root.root.generation > leaf.generation {
                        let what = format!(
                            "its root block is of generation {}, newer than this leaf, of {}",
                            root.root.generation, leaf.generation
                        );
                        cx.sink.add(Id::BlockNewerThanParent, site, what);
                    }
                    roots.trees.insert((key.objectid.get(), key.offset), root);
                }
                Err(what) => cx.sink.add(Id::RootItemInvalid, site, what),
            }
        }
        KeyType::ROOT_REF | KeyType::ROOT_BACKREF => {
            let Some((head, name)) = root_ref(data) else {
                cx.sink.add(Id::RootRefMismatch, site, "too short");
                return;
            };
            let hook = Hook {
                dirid: head.dirid.get(),
                index: head.sequence.get(),
                name: name.to_vec(),
            };
            if key.ty == KeyType::ROOT_REF {
                roots.links.entry((key.objectid.get(), key.offset)).or_default().forward = Some(hook);
            } else {
                roots.links.entry((key.offset, key.objectid.get())).or_default().back = Some(hook);
            }
        }
        KeyType::ORPHAN_ITEM if key.objectid == ObjectId::ORPHAN => {
            roots.orphans.insert(key.offset);
        }
        KeyType::UNTYPED if key.objectid == ObjectId::FREE_SPACE => match fixed::<FreeSpaceHeader>(data) {
            Some(header) => roots.caches.push((key.offset, *header)),
            None => cx.sink.add(Id::SpaceCacheInvalid, site, "too short"),
        },
        KeyType::INODE_ITEM => {
            if let Some(inode) = fixed::<InodeItem>(data) {
                let file = roots.cache_inodes.entry(key.objectid.get()).or_default();
                file.generation = inode.generation.get();
                file.size_bytes = inode.size.get();
            }
        }
        KeyType::EXTENT_DATA => {
            if let (Some(FileExtentView::Regular(extent)), Some(file)) =
                (file_extent(data), roots.cache_inodes.get_mut(&key.objectid.get()))
            {
                let addr = extent.disk_bytenr.get().saturating_add(extent.offset.get());
                file.extents.push((key.offset, addr, extent.num_bytes.get()));
            }
        }
        KeyType::DIR_ITEM if key.objectid == ObjectId::ROOT_TREE_DIR => {
            if let Some(entry) = dir_entries(data).find(|entry| entry.name == DEFAULT_NAME) {
                roots.default = Some((Key::from(entry.head.location).objectid.tree_id(), site));
            }
        }
        KeyType::INODE_REF
        | KeyType::DIR_ITEM
        | KeyType::DIR_INDEX
        | KeyType::XATTR_ITEM
        | KeyType::ORPHAN_ITEM
        | KeyType::TEMPORARY_ITEM
        | KeyType::PERSISTENT_ITEM => {}
        _ => cx.sink.add(Id::ItemForeign, site, "does not belong in the root tree"),
    }
}

fn parse(cx: &Cx<'_>, key: Key, item: &RootItem) -> Result<TreeRoot, String> {
    let newest = cx.vol.sb.generation.get();
    let generation = item.generation.get();
    if generation > newest.saturating_add(1) || item.level > btrfs_format::block::LEVEL_MAX {
        return Err(format!(
            "generation {generation}, level {}; the volume is at {newest}",
            item.level
        ));
    }
    if item.drop_level > btrfs_format::block::LEVEL_MAX {
        return Err(format!("drop level {}", item.drop_level));
    }
    if item.bytenr.get() == 0 || !is_aligned(item.bytenr.get(), cx.vol.sectorsize) {
        return Err(format!("root block at {}", item.bytenr));
    }
    let valid_v2 = item.generation_v2 == item.generation;
    let progress = Key::from(item.drop_progress);
    let tree = key.objectid.tree_id();
    Ok(TreeRoot {
        root: Root {
            tree,
            addr: item.bytenr.get(),
            level: item.level,
            generation,
            drop: (item.refs.get() == 0 && progress != Key::MIN).then_some((progress, item.drop_level)),
            is_dead: item.refs.get() == 0 && tree.is_subvolume(),
            log: false,
            last_snapshot: (tree.is_subvolume() && item.refs.get() > 0).then_some(item.last_snapshot.get()),
        },
        refs: item.refs.get(),
        bytes_used: item.bytes_used.get(),
        uuid: if valid_v2 { item.uuid } else { Uuid::default() },
        received_uuid: if valid_v2 { item.received_uuid } else { Uuid::default() },
        // Kernels before 3.6 note no parent, but the transaction in the key.
        is_snapshot: tree.is_subvolume() && key.offset != 0 || valid_v2 && item.parent_uuid != Uuid::default(),
        root_dirid: item.root_dirid.get(),
    })
}

/// Trees that every volume has, and what root items say of each other.
pub(crate) fn check(cx: &mut Cx<'_>, roots: &Roots) {
    let mut needed = vec![TreeId::EXTENT, TreeId::DEV, TreeId::FS, TreeId::CSUM];
    if cx.vol.has_compat_ro(compat_ro::FREE_SPACE_TREE) {
        needed.push(TreeId::FREE_SPACE);
    }
    if cx.vol.has_compat_ro(compat_ro::BLOCK_GROUP_TREE) {
        needed.push(TreeId::BLOCK_GROUP);
    }
    for tree in needed {
        if roots.get(tree).is_none() {
            cx.incomplete = true;
            cx.sink.add(Id::RootMissing, Site::tree(tree), "no root item");
        }
    }
    if let Some((id, site)) = &roots.default
        && roots.get(*id).is_none_or(|tree| tree.refs == 0)
        && roots.whole
    {
        let what = format!("subvolume {id} is mounted by default, and does not exist");
        cx.sink.add(Id::RootDefaultMissing, site.clone(), what);
    }
    let mut blocks: BTreeMap<u64, TreeId> = BTreeMap::new();
    for tree in roots.trees.values() {
        if let Some(other) = blocks.insert(tree.root.addr, tree.root.tree) {
            let what = format!("tree {other} has the same root block");
            cx.sink.add(Id::RootShared, tree.root.site(), what);
        }
        if tree.root.tree.is_subvolume() {
            if tree.root_dirid != ObjectId::FIRST_FREE.get() {
                let what = format!("root directory {}", tree.root_dirid);
                cx.sink.add(Id::RootItemInvalid, Site::tree(tree.root.tree), what);
            }
            if tree.refs == 0 && !roots.orphans.contains(&tree.root.tree.get()) && roots.whole {
                let what = "deleted, without an orphan item";
                cx.sink.add(Id::RootOrphanMissing, Site::tree(tree.root.tree), what);
            }
        }
    }
}

/// Subvolume references, once all directories have been seen.
pub(crate) fn check_links(cx: &mut Cx<'_>, roots: &Roots) {
    if !roots.whole {
        return;
    }
    let mut referenced = BTreeSet::new();
    for (&(parent, child), link) in &roots.links {
        let site = Site::tree(TreeId(child));
        if roots.get(TreeId(child)).is_none() {
            cx.sink.add(
                Id::RootRefDangling,
                site.clone(),
                format!("tree {parent} refers to it, it does not exist"),
            );
        }
        match (&link.forward, &link.back) {
            (Some(forward), Some(back)) if forward != back => {
                let what = format!("reference and back reference of parent {parent} differ");
                cx.sink.add(Id::RootRefMismatch, site.clone(), what);
            }
            (Some(_), None) => {
                cx.sink.add(
                    Id::RootBackrefMissing,
                    site.clone(),
                    format!("parent {parent} has a reference only"),
                );
            }
            (None, Some(_)) => {
                cx.sink.add(
                    Id::RootRefMissing,
                    site.clone(),
                    format!("a back reference to parent {parent} only"),
                );
            }
            _ => {}
        }
        referenced.insert(child);
        if !(cx.incomplete || link.item_seen && link.index_seen) {
            let what = format!("tree {parent} has no directory entry at the place that the reference names");
            cx.sink.add(Id::RootDirEntryMissing, site, what);
        }
    }
    for tree in roots.trees.values() {
        let id = tree.root.tree;
        if id.is_subvolume() && id != TreeId::FS && tree.refs > 0 && !referenced.contains(&id.get()) {
            cx.sink.add(
                Id::RootUnreferenced,
                Site::tree(id),
                "a subvolume that no directory holds",
            );
        }
    }
}

/// Older mkfs.btrfs makes the uuid tree with a top directory, as it makes subvolumes. Nothing reads
/// it.
fn is_dir_of_mkfs(key: &Key) -> bool {
    let dir = ObjectId::FIRST_FREE;
    [
        Key::new(dir, KeyType::INODE_ITEM, 0),
        Key::new(dir, KeyType::INODE_REF, dir.get()),
    ]
    .contains(key)
}

/// The uuid tree against the subvolumes, where the superblock says that it is up to date.
pub(crate) fn check_uuid_tree(cx: &mut Cx<'_>, roots: &Roots) {
    let Some(tree) = roots.get(TreeId::UUID) else { return };
    let root = tree.root.clone();
    let mut found: BTreeSet<(u8, Uuid, u64)> = BTreeSet::new();
    let current = cx.vol.sb.uuid_tree_generation == cx.vol.sb.generation;
    let whole = cx.walk(&root, Shared::Skip, &mut |cx, leaf, _| {
        for (key, data) in leaf.items() {
            let site = item_site(TreeId::UUID, leaf, key);
            if key.ty != KeyType::UUID_SUBVOL && key.ty != KeyType::UUID_RECEIVED_SUBVOL {
                if !is_dir_of_mkfs(&key) {
                    cx.sink.add(Id::ItemForeign, site, "does not belong in the uuid tree");
                }
                continue;
            }
            let uuid = key_uuid(&key);
            for id in data.chunks(8).filter_map(|part| <[u8; 8]>::try_from(part).ok()) {
                let id = u64::from_le_bytes(id);
                let named = roots.get(TreeId(id)).map(|root| match key.ty {
                    KeyType::UUID_SUBVOL => root.uuid == uuid,
                    _ => root.received_uuid == uuid,
                });
                if current && roots.whole && named != Some(true) {
                    let what = format!("subvolume {id} has another uuid or is gone");
                    cx.sink.add(Id::UuidStale, site.clone(), what);
                }
                found.insert((key.ty.0, uuid, id));
            }
        }
    });
    if !(whole && current) {
        return;
    }
    for tree in roots.trees.values() {
        let id = tree.root.tree;
        let live = id.is_subvolume() && id != TreeId::FS && tree.refs > 0;
        if live && tree.uuid != Uuid::default() && !found.contains(&(KeyType::UUID_SUBVOL.0, tree.uuid, id.get())) {
            cx.sink.add(
                Id::UuidMissing,
                Site::tree(id),
                "the uuid tree does not know the subvolume's uuid",
            );
        }
        let received = tree.received_uuid != Uuid::default();
        if live && received && !found.contains(&(KeyType::UUID_RECEIVED_SUBVOL.0, tree.received_uuid, id.get())) {
            cx.sink.add(
                Id::UuidMissing,
                Site::tree(id),
                "the uuid tree does not know the subvolume's received uuid",
            );
        }
    }
}

fn key_uuid(key: &Key) -> Uuid {
    let mut uuid = Uuid::default();
    let words = key
        .objectid
        .get()
        .to_le_bytes()
        .into_iter()
        .chain(key.offset.to_le_bytes());
    for (to, from) in uuid.iter_mut().zip(words) {
        *to = from;
    }
    uuid
}

/// `bytes_used` of trees that are never shared.
pub(crate) fn check_bytes_used(cx: &mut Cx<'_>, tree: &TreeRoot, blocks: u64) {
    let bytes = blocks.saturating_mul(cx.vol.nodesize);
    if bytes != tree.bytes_used {
        let what = format!("{} bytes used, the tree has {bytes}", tree.bytes_used);
        cx.sink.add(Id::RootBytesUsed, tree.root.site(), what);
    }
}

/// How many subvolumes there are.
pub(crate) fn subvolumes(roots: &Roots) -> u64 {
    count(
        roots
            .trees
            .values()
            .filter(|tree| tree.root.tree.is_subvolume())
            .count(),
    )
}
