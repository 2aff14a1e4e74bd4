//! What one entry of a tree becomes: the items of a new inode that is like its source.

use std::ops::Range;
use std::sync::Arc;

use btrfs_format::items::InodeItem;
use btrfs_format::{Generation, Key, KeyType, ObjectId};
use btrfs_store::overlay::{Edit, ItemBytes, Packer};
use btrfs_store::refs::RefChange;
use btrfs_store::tree::{Item, Tree};
use cowshed_vfs::perm::{self, CopyAttrs};
use cowshed_vfs::xattr::Namespace;
use cowshed_vfs::{Context, FileKind, PERM_MASK, Timestamp};
use zerocopy::IntoBytes;

use super::batch::Source;
use crate::dir::names;
use crate::error::Result;
use crate::file::{SharedRefs, WholeFile};
use crate::object::{Inode, InodeAttr, flags};
use crate::staged::half_leaf_bytes;
use crate::xattr;

/// Extents of a file that come in the batch that makes it: 2 x 78 bytes each, item and reference.
pub(super) const EXTENTS_MAX: usize = 512;
/// What an item takes beside its bytes.
const HEADER_BYTES: usize = 25;
/// Of a reference of an extent.
const REF_BYTES: usize = 53;
/// Flags that say how data is stored: a file that shares extents has those of its source, as one of
/// a snapshot has.
const KEPT_FLAGS: u64 = flags::NODATASUM | flags::NODATACOW | flags::COMPRESS | flags::NOCOMPRESS;

/// What a new inode is planned for.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) ctx: &'a Context,
    pub(super) dir: &'a Arc<Inode>,
    /// Of `dir`.
    pub(super) dir_attr: InodeAttr,
    pub(super) generation: Generation,
    pub(super) now: Timestamp,
}

/// Attributes of a copy that has no content yet.
pub(super) fn attributes(source: &InodeAttr, at: &Place<'_>) -> InodeAttr {
    let new_gid = match at.dir_attr.mode & perm::SET_GID {
        0 => at.ctx.creds.gid,
        _ => at.dir_attr.gid,
    };
    let whose = CopyAttrs {
        uid: source.uid,
        gid: source.gid,
        perm: source.mode & PERM_MASK,
    };
    let kept = perm::of_copy(&at.ctx.creds, whose, new_gid);
    let is_dir = source.kind() == Some(FileKind::Directory);
    InodeAttr {
        generation: at.generation,
        transid: at.generation,
        size: if is_dir { 0 } else { source.size },
        nbytes: 0,
        nlink: 1,
        uid: kept.uid,
        gid: kept.gid,
        mode: source.mode & !PERM_MASK | kept.perm,
        rdev: source.rdev,
        flags: source.flags & KEPT_FLAGS,
        sequence: 0,
        block_group: 0,
        atime: source.atime,
        ctime: at.now,
        // A directory gets its source's time when its names are made: front ends tell by that time
        // whether a listing which they have cached is old.
        mtime: if is_dir { at.now } else { source.mtime },
        otime: at.now,
    }
}

/// May a copy of this caller's have the attribute?
fn keeps(ctx: &Context, name: &[u8]) -> bool {
    match xattr::space_of(name) {
        Ok(Namespace::User | Namespace::AccessAcl | Namespace::DefaultAcl | Namespace::Property) => true,
        Ok(Namespace::Trusted | Namespace::Security) | Err(_) => ctx.creds.is_privileged(),
    }
}

/// The extended attributes that the copy keeps, and their bytes.
pub(super) fn xattrs(
    src: &Inode,
    ctx: &Context,
    ino: ObjectId,
    generation: Generation,
) -> Result<(Vec<(Key, ItemBytes)>, usize)> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    if src.xattrs.is_known_empty() {
        return Ok((items, bytes));
    }
    let mut cursor = src.tree.cursor_type(Key::new(src.ino, KeyType::XATTR_ITEM, 0));
    while let Some((key, item)) = cursor.next()? {
        let copied = xattr::copied_item(&item, generation, |name| keeps(ctx, name));
        if !copied.is_empty() {
            bytes += HEADER_BYTES + copied.len();
            items.push((Key { objectid: ino, ..key }, copied.into()));
        }
    }
    Ok((items, bytes))
}

/// Where an item's bytes lie in the packer.
pub(super) type PackedItem = (Key, Range<usize>);

/// A new inode of the batch.
pub(super) struct New {
    pub(super) ino: ObjectId,
    pub(super) attr: InodeAttr,
    /// Names of the source.
    pub(super) source_links: u32,
    pub(super) has_xattrs: bool,
    pub(super) name_hash: u64,
}

/// The items of new inodes, and of their names.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) packer: Packer,
    pub(super) new: Vec<New>,
    /// Of the new inodes, in order.
    pub(super) items: Vec<PackedItem>,
    pub(super) dir_items: Vec<PackedItem>,
    pub(super) dir_indexes: Vec<PackedItem>,
    pub(super) shared: SharedRefs,
    pub(super) name_bytes: usize,
    pub(super) is_crowded: bool,
}

/// One entry to plan.
pub(super) struct Entry<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) src_tree: &'a Tree,
    pub(super) name_hash: u64,
    /// The item that its name shares with others.
    pub(super) item: Option<Item>,
    /// Of the source.
    pub(super) attr: InodeAttr,
    /// Attributes and extents of the source.
    pub(super) found: &'a [(Key, Item)],
    pub(super) ino: ObjectId,
    pub(super) index: u64,
}

/// What came of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Planned {
    New,
    /// More extents than one batch takes.
    TooManyExtents,
    /// More bytes than there is room for.
    TooLong,
    /// Some of it may be written in place, and no lock keeps it from that.
    Unlocked,
}

impl Plan {
    /// Plans an entry, of at most `room_bytes`: all of it, or nothing. Returns also how many bytes
    /// it takes.
    pub(super) fn add(&mut self, at: &Place<'_>, entry: &Entry<'_>, room_bytes: usize) -> Result<(Planned, usize)> {
        let lens = (
            self.items.len(),
            self.shared.refs.len(),
            self.shared.noted.len(),
            self.packer.len(),
        );
        let added = self.add_inode(at, entry, room_bytes);
        if !matches!(added, Ok((Planned::New, _))) {
            self.items.truncate(lens.0);
            self.shared.refs.truncate(lens.1);
            self.shared.noted.truncate(lens.2);
            self.packer.truncate(lens.3);
            return added;
        }
        self.add_name(at, entry);
        added
    }

    fn put(&mut self, key: Key, parts: &[&[u8]]) -> usize {
        let range = self.packer.add(parts);
        let bytes = HEADER_BYTES + range.len();
        self.items.push((key, range));
        bytes
    }

    fn add_inode(&mut self, at: &Place<'_>, entry: &Entry<'_>, room_bytes: usize) -> Result<(Planned, usize)> {
        let (ino, name) = (entry.ino, entry.source.name);
        let mut attr = attributes(&entry.attr, at);
        // The name's two items.
        let mut bytes = 2 * (HEADER_BYTES + size_of::<btrfs_format::items::DirItem>() + name.len());
        let own = self.items.len();
        bytes += self.put(Key::new(ino, KeyType::INODE_ITEM, 0), &[&[0; size_of::<InodeItem>()]]);
        let head = names::ref_head(name, entry.index);
        bytes += self.put(names::ref_key(ino, at.dir.ino), &[head.as_bytes(), name]);
        let before = self.items.len();
        bytes += self.add_xattrs(at, entry)?;
        let has_xattrs = self.items.len() > before;
        if bytes > room_bytes {
            return Ok((Planned::TooLong, bytes));
        }
        let mut file = WholeFile {
            size_bytes: attr.size,
            flags: entry.attr.flags,
            target: (at.dir.tree.id(), ino),
            generation: at.generation,
            nbytes: 0,
            has_unwritten: false,
            last_end: 0,
        };
        if matches!(entry.source.kind, FileKind::Regular | FileKind::Symlink) {
            let first = self.items.len();
            let extents = entry.found.iter().filter(|(key, _)| key.ty == KeyType::EXTENT_DATA);
            for (key, item) in extents {
                if self.items.len() - first == EXTENTS_MAX {
                    return Ok((Planned::TooManyExtents, bytes));
                }
                let found = (*key, item.clone());
                if let Some((key, extent)) = file.add(entry.src_tree, found, &mut self.shared)? {
                    bytes += HEADER_BYTES + REF_BYTES;
                    bytes += extent.with_bytes(|parts| self.put(key, parts));
                }
                if bytes > room_bytes {
                    return Ok((Planned::TooLong, bytes));
                }
            }
        }
        attr.nbytes = file.nbytes;
        if file.has_unwritten {
            // The flag says so of nearly all of these files.
            if entry.source.loaded().is_none() {
                return Ok((Planned::Unlocked, bytes));
            }
            attr.flags |= flags::PREALLOC;
        }
        let (_, range) = &self.items[own];
        let item = attr.encode(attr.size);
        self.packer.item_mut(range.clone()).copy_from_slice(item.as_bytes());
        self.new.push(New {
            ino,
            attr,
            source_links: entry.attr.nlink,
            has_xattrs,
            name_hash: entry.name_hash,
        });
        Ok((Planned::New, bytes))
    }

    fn add_xattrs(&mut self, at: &Place<'_>, entry: &Entry<'_>) -> Result<usize> {
        let mut bytes = 0;
        if entry.source.kind == FileKind::Directory {
            if let Some(inode) = entry.source.loaded() {
                let (items, _) = xattrs(inode, at.ctx, entry.ino, at.generation)?;
                bytes += items.iter().map(|(key, item)| self.put(*key, &[item])).sum::<usize>();
            }
            return Ok(bytes);
        }
        for (key, item) in entry.found.iter().filter(|(key, _)| key.ty == KeyType::XATTR_ITEM) {
            let copied = xattr::copied_item(item, at.generation, |name| keeps(at.ctx, name));
            if !copied.is_empty() {
                let objectid = entry.ino;
                bytes += self.put(Key { objectid, ..*key }, &[&copied]);
            }
        }
        Ok(bytes)
    }

    fn add_name(&mut self, at: &Place<'_>, entry: &Entry<'_>) {
        let name = entry.source.name;
        let location = Key::new(entry.ino, KeyType::INODE_ITEM, 0);
        let ty = names::file_type(entry.source.kind);
        let head = names::entry_head(name, location, ty, at.generation);
        let range = self.packer.add(&[head.as_bytes(), name]);
        let key = Key::new(at.dir.ino, KeyType::DIR_ITEM, entry.name_hash);
        let of_hash = match &entry.item {
            None => range.clone(),
            Some(item) => {
                let all = self.packer.add(&[item, head.as_bytes(), name]);
                let half = half_leaf_bytes(at.dir.tree.store().nodesize_bytes());
                self.is_crowded |= all.len() > half;
                all
            }
        };
        self.dir_items.push((key, of_hash));
        self.dir_indexes
            .push((names::index_key(at.dir.ino, entry.index), range));
        self.name_bytes += name.len();
    }

    /// All items as one run, which begins with the directory's own item, and the references.
    pub(super) fn into_run(mut self, dir: Key, dir_item: &[u8]) -> (Vec<(Key, Edit)>, Vec<RefChange>) {
        let dir_item = self.packer.add(&[dir_item]);
        self.dir_items.sort_unstable_by_key(|(key, _)| *key);
        let packed = self.packer.finish();
        let all = std::iter::once((dir, dir_item))
            .chain(self.dir_items)
            .chain(self.dir_indexes)
            .chain(self.items);
        let run = all.map(|(key, range)| (key, Some(packed.item(range)))).collect();
        (run, self.shared.refs)
    }
}
