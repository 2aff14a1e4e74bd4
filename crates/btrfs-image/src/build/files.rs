//! The items of a subvolume, in key order.

use std::collections::BTreeMap;

use btrfs_format::block::item_bytes_max;
use btrfs_format::hash::{extref_hash, name_hash};
use btrfs_format::items::{
    DirItem, FileExtent, FileExtentHead, InodeExtref, InodeItem, Timespec, file_extent_type, file_type,
};
use btrfs_format::{DiskKey, Generation, Key, KeyType, ObjectId, U16, U32, U64};
use cowshed_source::{Body, Inode, Time};
use zerocopy::{FromZeros, IntoBytes};

use super::bulk::Sink;
use super::extents::{DataMap, FileData};
use super::number::{Child, Numbered, Subvolume, inode_number};
use super::plan::Plan;
use crate::plan::{GENERATION, items};
use crate::{MkfsError, Settings};

/// Gives the items of a subvolume to `sink`.
pub(super) fn emit(
    plan: &Plan<'_, '_>,
    settings: &Settings,
    data: &DataMap,
    subvolume: &Subvolume<'_>,
    sink: &mut dyn Sink,
) -> Result<(), MkfsError> {
    for (index, numbered) in subvolume.inodes.iter().enumerate() {
        let emitting = Emitting {
            plan,
            settings,
            data,
            subvolume,
            numbered,
            inode: &plan.tree[numbered.id],
            number: inode_number(index),
            file: plan.leader(subvolume.base + index),
        };
        emitting.inode_item(sink)?;
        emitting.names(sink)?;
        emitting.xattrs(sink)?;
        emitting.entries(sink)?;
        emitting.contents(sink)?;
    }
    Ok(())
}

struct Emitting<'e> {
    plan: &'e Plan<'e, 'e>,
    settings: &'e Settings,
    data: &'e DataMap,
    subvolume: &'e Subvolume<'e>,
    numbered: &'e Numbered<'e>,
    inode: &'e Inode,
    number: ObjectId,
    /// The place of the inode whose data it has.
    file: usize,
}

const S_IFMT_SHIFT: u32 = 12;

/// The type in the upper bits of a mode, and that of directory entries.
fn kinds(body: &Body) -> (u32, u8) {
    match body {
        Body::Fifo => (0o01, file_type::FIFO),
        Body::Char { .. } => (0o02, file_type::CHRDEV),
        Body::Dir(_) => (0o04, file_type::DIR),
        Body::Block { .. } => (0o06, file_type::BLKDEV),
        Body::File(_) => (0o10, file_type::REG_FILE),
        Body::Symlink(_) => (0o12, file_type::SYMLINK),
        Body::Socket => (0o14, file_type::SOCK),
    }
}

/// Device numbers on disk have twenty bits of minor number.
fn rdev(body: &Body) -> u64 {
    match body {
        Body::Char { major, minor } | Body::Block { major, minor } => u64::from(*major) << 20 | u64::from(*minor),
        _ => 0,
    }
}

fn timespec(time: Time) -> Timespec {
    Timespec {
        sec: U64::new(time.sec.cast_unsigned()),
        nsec: U32::new(time.nsec),
    }
}

fn len16(bytes: &[u8]) -> U16 {
    U16::new(u16::try_from(bytes.len()).expect("an item is shorter than 64 KiB"))
}

impl Emitting<'_> {
    fn key(&self, ty: KeyType, offset: u64) -> Key {
        Key::new(self.number, ty, offset)
    }

    fn refuse(&self, what: &'static str) -> MkfsError {
        self.plan.refuse(self.subvolume, self.numbered, what)
    }

    /// Refuses an item that no leaf holds.
    fn check_len(&self, len: usize, what: &'static str) -> Result<(), MkfsError> {
        match len <= item_bytes_max(self.settings.nodesize()) {
            true => Ok(()),
            false => Err(self.refuse(what)),
        }
    }

    fn inode_item(&self, sink: &mut dyn Sink) -> Result<(), MkfsError> {
        let meta = &self.inode.meta;
        let (size, nbytes) = self.sizes();
        let item = InodeItem {
            generation: GENERATION.into(),
            transid: GENERATION.into(),
            size: U64::new(size),
            nbytes: U64::new(nbytes),
            nlink: U32::new(1 + u32::try_from(self.numbered.more.len()).expect("names are limited")),
            uid: U32::new(meta.uid),
            gid: U32::new(meta.gid),
            mode: U32::new(kinds(&self.inode.body).0 << S_IFMT_SHIFT | meta.mode),
            rdev: U64::new(rdev(&self.inode.body)),
            flags: U64::new(self.plan.options.policy.of(self.numbered.id).inode_flags),
            atime: timespec(meta.atime),
            ctime: timespec(meta.mtime),
            mtime: timespec(meta.mtime),
            otime: timespec(meta.mtime),
            ..InodeItem::new_zeroed()
        };
        sink.put(self.key(KeyType::INODE_ITEM, 0), &[item.as_bytes()])
    }

    /// Its size, and the bytes that its extents hold.
    fn sizes(&self) -> (u64, u64) {
        match &self.inode.body {
            Body::Dir(_) if self.numbered.is_stub => (0, 0),
            Body::Dir(entries) => (entries.keys().map(|name| 2 * name.len() as u64).sum(), 0),
            Body::Symlink(target) => (target.len() as u64, target.len() as u64),
            Body::File(content) => {
                let nbytes = match &self.data.files[self.file] {
                    FileData::None => 0,
                    FileData::Inline(inline) => inline.ram_bytes,
                    &FileData::Extents { start, count } => {
                        let extents = &self.data.extents[start..start + count];
                        extents.iter().map(|extent| extent.ram_bytes).sum()
                    }
                };
                (content.size_bytes(), nbytes)
            }
            _ => (0, 0),
        }
    }

    /// `INODE_REF` for each parent, as far as one item holds its names, then `INODE_EXTREF`.
    fn names(&self, sink: &mut dyn Sink) -> Result<(), MkfsError> {
        if self.numbered.more.is_empty() {
            let link = &self.numbered.first;
            let item = items::inode_ref(link.index, link.name);
            return sink.put(self.key(KeyType::INODE_REF, link.parent.0), &[&item]);
        }
        let mut refs: BTreeMap<ObjectId, Vec<u8>> = BTreeMap::new();
        let mut extrefs: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for link in self.numbered.links() {
            let item = items::inode_ref(link.index, link.name);
            let held = refs.entry(link.parent).or_default();
            if held.len() + item.len() <= item_bytes_max(self.settings.nodesize()) {
                held.extend(item);
                continue;
            }
            if !self.settings.features.extref {
                return Err(self.refuse("has too many hard links in one directory for a volume without extref"));
            }
            let head = InodeExtref {
                parent_objectid: link.parent.into(),
                index: U64::new(link.index),
                name_len: len16(link.name),
            };
            let held = extrefs.entry(extref_hash(link.parent, link.name)).or_default();
            held.extend(head.as_bytes());
            held.extend(link.name);
            self.check_len(held.len(), "has too many hard links whose names have the same hash")?;
        }
        for (parent, item) in refs {
            sink.put(self.key(KeyType::INODE_REF, parent.0), &[&item])?;
        }
        for (hash, item) in extrefs {
            sink.put(self.key(KeyType::INODE_EXTREF, hash), &[&item])?;
        }
        Ok(())
    }

    fn xattrs(&self, sink: &mut dyn Sink) -> Result<(), MkfsError> {
        let xattrs = &self.inode.meta.xattrs;
        if xattrs.is_empty() {
            return Ok(());
        }
        let mut by_hash: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for xattr in xattrs {
            let held = by_hash.entry(name_hash(&xattr.name)).or_default();
            let len = held.len() + size_of::<DirItem>() + xattr.name.len() + xattr.value.len();
            self.check_len(len, "has an extended attribute that is too large for a leaf")?;
            let head = DirItem {
                location: DiskKey::default(),
                transid: GENERATION.into(),
                data_len: len16(&xattr.value),
                name_len: len16(&xattr.name),
                ty: file_type::XATTR,
            };
            held.extend(head.as_bytes());
            held.extend(&xattr.name);
            held.extend(&xattr.value);
        }
        for (hash, item) in by_hash {
            sink.put(self.key(KeyType::XATTR_ITEM, hash), &[&item])?;
        }
        Ok(())
    }

    /// `DIR_ITEM`s by the hashes of names, then `DIR_INDEX`es by their order.
    fn entries(&self, sink: &mut dyn Sink) -> Result<(), MkfsError> {
        let entries = match &self.inode.body {
            Body::Dir(entries) if !self.numbered.is_stub => entries,
            _ => return Ok(()),
        };
        let entries: Vec<(&[u8], DirItem)> = entries
            .keys()
            .zip(&self.numbered.children)
            .map(|(name, child)| (&**name, self.dir_item(name, *child)))
            .collect();
        let mut by_hash: Vec<(u64, usize)> = entries.iter().map(|(name, _)| name_hash(name)).zip(0..).collect();
        by_hash.sort_unstable();
        for same in by_hash.chunk_by(|a, b| a.0 == b.0) {
            let parts: Vec<&[u8]> = same
                .iter()
                .flat_map(|(_, index)| {
                    let (name, head) = &entries[*index];
                    [head.as_bytes(), name]
                })
                .collect();
            let len = parts.iter().map(|part| part.len()).sum();
            self.check_len(len, "has too many entries whose names have the same hash")?;
            sink.put(self.key(KeyType::DIR_ITEM, same[0].0), &parts)?;
        }
        for ((name, head), index) in entries.iter().zip(2..) {
            sink.put(self.key(KeyType::DIR_INDEX, index), &[head.as_bytes(), name])?;
        }
        Ok(())
    }

    fn dir_item(&self, name: &[u8], child: Child) -> DirItem {
        let (location, ty) = match child {
            Child::Inode(place) => {
                let body = &self.plan.tree[self.subvolume.inodes[place].id].body;
                (Key::new(inode_number(place), KeyType::INODE_ITEM, 0), kinds(body).1)
            }
            Child::Subvolume(place) => {
                let tree = self.plan.subvolumes[place].id;
                (Key::new(tree.object_id(), KeyType::ROOT_ITEM, u64::MAX), file_type::DIR)
            }
        };
        DirItem {
            location: location.into(),
            transid: Generation::into(GENERATION),
            data_len: U16::new(0),
            name_len: len16(name),
            ty,
        }
    }

    fn contents(&self, sink: &mut dyn Sink) -> Result<(), MkfsError> {
        match &self.inode.body {
            Body::Symlink(target) => {
                let max = item_bytes_max(self.settings.nodesize()) - size_of::<FileExtentHead>();
                if target.is_empty() || target.len() > max.min(self.settings.sectorsize_bytes as usize - 1) {
                    return Err(self.refuse("is a symbolic link with an empty target, or one that is too long"));
                }
                let head = inline_head(target.len() as u64, 0);
                sink.put(self.key(KeyType::EXTENT_DATA, 0), &[head.as_bytes(), target])
            }
            Body::File(content) => self.file_extents(content.size_bytes(), sink),
            _ => Ok(()),
        }
    }

    fn file_extents(&self, size: u64, sink: &mut dyn Sink) -> Result<(), MkfsError> {
        let explicit_holes = !self.settings.features.no_holes;
        let sectorsize = u64::from(self.settings.sectorsize_bytes);
        let mut at = 0;
        match &self.data.files[self.file] {
            FileData::Inline(inline) => {
                let head = inline_head(inline.ram_bytes, inline.compression);
                let key = self.key(KeyType::EXTENT_DATA, 0);
                // While sizes are counted the bytes are not there yet.
                if inline.bytes.len() != inline.len_bytes {
                    let zeros = vec![0; inline.len_bytes];
                    return sink.put(key, &[head.as_bytes(), &zeros]);
                }
                return sink.put(key, &[head.as_bytes(), &inline.bytes]);
            }
            FileData::None => {}
            &FileData::Extents { start, count } => {
                for extent in &self.data.extents[start..start + count] {
                    if explicit_holes && at < extent.offset_bytes {
                        self.hole(at, extent.offset_bytes, sink)?;
                    }
                    let item = FileExtent {
                        generation: GENERATION.into(),
                        ram_bytes: U64::new(extent.ram_bytes),
                        compression: extent.compression,
                        ty: file_extent_type::REG,
                        disk_bytenr: extent.addr.into(),
                        disk_num_bytes: U64::new(extent.disk_bytes),
                        num_bytes: U64::new(extent.ram_bytes),
                        ..FileExtent::new_zeroed()
                    };
                    sink.put(self.key(KeyType::EXTENT_DATA, extent.offset_bytes), &[item.as_bytes()])?;
                    at = extent.offset_bytes + extent.ram_bytes;
                }
            }
        }
        let end = size.next_multiple_of(sectorsize);
        match explicit_holes && at < end {
            true => self.hole(at, end, sink),
            false => Ok(()),
        }
    }

    fn hole(&self, start: u64, end: u64, sink: &mut dyn Sink) -> Result<(), MkfsError> {
        let item = FileExtent {
            generation: GENERATION.into(),
            ram_bytes: U64::new(end - start),
            ty: file_extent_type::REG,
            num_bytes: U64::new(end - start),
            ..FileExtent::new_zeroed()
        };
        sink.put(self.key(KeyType::EXTENT_DATA, start), &[item.as_bytes()])
    }
}

fn inline_head(ram_bytes: u64, compression: u8) -> FileExtentHead {
    FileExtentHead {
        generation: GENERATION.into(),
        ram_bytes: U64::new(ram_bytes),
        compression,
        ty: file_extent_type::INLINE,
        ..FileExtentHead::new_zeroed()
    }
}
