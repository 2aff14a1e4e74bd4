//! The subvolumes of a volume as plain values: equal where two replays mean the same, whichever
//! side did them.
//!
//! Left out: numbers of transactions, sequence numbers and times of change, which each replay gives
//! anew, and how a range is cut into extent items.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result};
use btrfs_format::items::{InodeItem, Timespec, file_extent_type};
use btrfs_format::view::{self, FileExtentView};
use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use btrfs_store::tree::Tree;
use cowshed_btrfs::Mount;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub generation: u64,
    pub size: u64,
    pub nbytes: u64,
    pub nlink: u32,
    pub owner: (u32, u32),
    pub mode: u32,
    pub rdev: u64,
    pub flags: u64,
    /// atime, mtime, otime.
    pub times: [(u64, u32); 3],
}

/// A run of a file's data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    Inline {
        bytes: Vec<u8>,
    },
    Hole {
        start: u64,
        len: u64,
    },
    Disk {
        start: u64,
        len: u64,
        addr: u64,
        disk_len: u64,
        offset: u64,
        compression: u8,
        is_prealloc: bool,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subvolume {
    pub inodes: BTreeMap<u64, Inode>,
    /// (directory, name) with what it leads to.
    pub by_hash: BTreeSet<(u64, Vec<u8>, Key, u8)>,
    /// (directory, index) with name and what it leads to.
    pub by_index: BTreeMap<(u64, u64), (Vec<u8>, Key, u8)>,
    /// (inode, directory, index, name).
    pub refs: BTreeSet<(u64, u64, u64, Vec<u8>)>,
    pub xattrs: BTreeMap<(u64, Vec<u8>), Vec<u8>>,
    pub extents: BTreeMap<u64, Vec<Extent>>,
}

fn time(raw: &Timespec) -> (u64, u32) {
    (raw.sec.get(), raw.nsec.get())
}

/// All subvolumes.
pub fn of(engine: &Mount) -> Result<BTreeMap<u64, Subvolume>> {
    let roots = engine.store().forest().root_tree();
    let mut all = BTreeMap::new();
    let mut cursor = roots.cursor(Key::MIN, Key::MAX);
    while let Some((key, item)) = cursor.next()? {
        let id = TreeId(key.objectid.get());
        let is_live = || view::root_item(&item).is_some_and(|root| root.refs.get() > 0);
        if key.ty == KeyType::ROOT_ITEM && id.is_subvolume() && is_live() {
            let tree = engine.store().forest().require(id)?;
            all.insert(id.get(), subvolume(&tree).with_context(|| format!("subvolume {id}"))?);
        }
    }
    Ok(all)
}

fn subvolume(tree: &Arc<Tree>) -> Result<Subvolume> {
    let mut found = Subvolume::default();
    let mut orphans = BTreeSet::new();
    let mut cursor = tree.cursor(Key::MIN, Key::MAX);
    while let Some((key, item)) = cursor.next()? {
        let ino = key.objectid.get();
        match key.ty {
            KeyType::INODE_ITEM => {
                let raw = view::fixed::<InodeItem>(&item).context("a short inode item")?;
                found.inodes.insert(ino, inode(raw));
            }
            KeyType::INODE_REF => {
                let refs = view::inode_refs(&item).map(|(index, name)| (ino, key.offset, index, name.to_vec()));
                found.refs.extend(refs);
            }
            KeyType::INODE_EXTREF => {
                let refs = view::inode_extrefs(&item);
                let refs = refs.map(|(head, name)| (ino, head.parent_objectid.get(), head.index.get(), name.to_vec()));
                found.refs.extend(refs);
            }
            KeyType::XATTR_ITEM => {
                let xattrs = view::dir_entries(&item).map(|e| ((ino, e.name.to_vec()), e.data.to_vec()));
                found.xattrs.extend(xattrs);
            }
            KeyType::DIR_ITEM => {
                let names = view::dir_entries(&item).map(|e| (ino, e.name.to_vec(), e.head.location.into(), e.head.ty));
                found.by_hash.extend(names);
            }
            KeyType::DIR_INDEX => {
                for e in view::dir_entries(&item) {
                    let entry = (e.name.to_vec(), e.head.location.into(), e.head.ty);
                    found.by_index.insert((ino, key.offset), entry);
                }
            }
            KeyType::EXTENT_DATA => {
                let extents = found.extents.entry(ino).or_default();
                add_extent(
                    extents,
                    key.offset,
                    view::file_extent(&item).context("a short extent item")?,
                );
            }
            KeyType::ORPHAN_ITEM if key.objectid == ObjectId::ORPHAN => {
                orphans.insert(key.offset);
            }
            _ => {}
        }
    }
    // Inodes without a name go with the first write to the volume: whether that happened is no
    // difference.
    found.inodes.retain(|ino, _| !orphans.contains(ino));
    found.extents.retain(|ino, _| !orphans.contains(ino));
    found.xattrs.retain(|(ino, _), _| !orphans.contains(ino));
    Ok(found)
}

fn inode(raw: &InodeItem) -> Inode {
    Inode {
        generation: raw.generation.get(),
        size: raw.size.get(),
        nbytes: raw.nbytes.get(),
        nlink: raw.nlink.get(),
        owner: (raw.uid.get(), raw.gid.get()),
        mode: raw.mode.get(),
        rdev: raw.rdev.get(),
        flags: raw.flags.get(),
        times: [time(&raw.atime), time(&raw.mtime), time(&raw.otime)],
    }
}

fn add_extent(extents: &mut Vec<Extent>, start: u64, item: FileExtentView<'_>) {
    let new = match item {
        FileExtentView::Inline { data, .. } => Extent::Inline { bytes: data.to_vec() },
        FileExtentView::Regular(raw) if raw.disk_bytenr.get() == 0 => Extent::Hole {
            start,
            len: raw.num_bytes.get(),
        },
        FileExtentView::Regular(raw) => Extent::Disk {
            start,
            len: raw.num_bytes.get(),
            addr: raw.disk_bytenr.get(),
            disk_len: raw.disk_num_bytes.get(),
            offset: raw.offset.get(),
            compression: raw.compression,
            is_prealloc: raw.ty == file_extent_type::PREALLOC,
        },
    };
    match (extents.last_mut(), &new) {
        (Some(Extent::Hole { start: s, len: l }), Extent::Hole { start, len }) if *s + *l == *start => *l += len,
        (
            Some(Extent::Disk {
                start: s,
                len: l,
                addr,
                disk_len,
                offset,
                compression,
                is_prealloc,
            }),
            Extent::Disk {
                start: s2,
                len: l2,
                addr: a2,
                disk_len: d2,
                offset: o2,
                compression: c2,
                is_prealloc: p2,
            },
        ) if *s + *l == *s2
            && *offset + *l == *o2
            && (*addr, *disk_len, *compression, *is_prealloc) == (*a2, *d2, *c2, *p2) =>
        {
            *l += l2;
        }
        _ => extents.push(new),
    }
}

/// What differs, in words; empty where nothing does.
pub fn differences(left: &BTreeMap<u64, Subvolume>, right: &BTreeMap<u64, Subvolume>) -> Vec<String> {
    let mut out = Vec::new();
    let ids: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    for id in ids {
        let none = Subvolume::default();
        let (l, r) = (left.get(id).unwrap_or(&none), right.get(id).unwrap_or(&none));
        diff_maps(&mut out, id, "inode", &l.inodes, &r.inodes);
        diff_maps(&mut out, id, "entry by index", &l.by_index, &r.by_index);
        diff_maps(&mut out, id, "xattr", &l.xattrs, &r.xattrs);
        diff_maps(&mut out, id, "extents", &l.extents, &r.extents);
        diff_sets(&mut out, id, "entry by hash", &l.by_hash, &r.by_hash);
        diff_sets(&mut out, id, "reference", &l.refs, &r.refs);
    }
    out
}

fn diff_maps<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
    out: &mut Vec<String>,
    id: &u64,
    what: &str,
    left: &BTreeMap<K, V>,
    right: &BTreeMap<K, V>,
) {
    let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    for key in keys {
        let (l, r) = (left.get(key), right.get(key));
        if l != r {
            out.push(format!("subvolume {id}: {what} {key:?}:\n  left  {l:?}\n  right {r:?}"));
        }
    }
}

fn diff_sets<T: Ord + std::fmt::Debug>(
    out: &mut Vec<String>,
    id: &u64,
    what: &str,
    left: &BTreeSet<T>,
    right: &BTreeSet<T>,
) {
    out.extend(
        left.difference(right)
            .map(|x| format!("subvolume {id}: {what} only left: {x:?}")),
    );
    out.extend(
        right
            .difference(left)
            .map(|x| format!("subvolume {id}: {what} only right: {x:?}")),
    );
}
