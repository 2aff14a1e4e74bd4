//! Views of items with variable parts. Readers return what is there up to the first thing that does
//! not fit; in a verified block everything fits.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::items::{
    ChunkHead, DirItem, ExtentDataRef, ExtentItem, FileExtent, FileExtentHead, InlineRef, InodeExtref, InodeRef,
    RootItem, RootRef, SharedDataRef, Stripe, TreeBlockInfo, file_extent_type,
};
use crate::key::{Key, KeyType};

/// Reads a fixed structure from the head of `data`.
pub fn fixed<T: FromBytes + KnownLayout + Immutable + Unaligned>(data: &[u8]) -> Option<&T> {
    T::ref_from_prefix(data).ok().map(|(value, _)| value)
}

/// One entry of a `DIR_ITEM`, `DIR_INDEX` or `XATTR_ITEM`.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The fixed fields.
    pub head: &'a DirItem,
    /// The name, without a terminator.
    pub name: &'a [u8],
    /// The value of an xattr; empty for directory entries.
    pub data: &'a [u8],
}

/// The entries packed into one item (names with the same hash share an item).
pub fn dir_entries(mut data: &[u8]) -> impl Iterator<Item = DirEntry<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = DirItem::ref_from_prefix(data).ok()?;
        let (name, rest) = rest.split_at_checked(head.name_len.get().into())?;
        let (value, rest) = rest.split_at_checked(head.data_len.get().into())?;
        data = rest;
        Some(DirEntry {
            head,
            name,
            data: value,
        })
    })
}

/// The (index, name) pairs of an `INODE_REF` item.
pub fn inode_refs(mut data: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = InodeRef::ref_from_prefix(data).ok()?;
        let (name, rest) = rest.split_at_checked(head.name_len.get().into())?;
        data = rest;
        Some((head.index.get(), name))
    })
}

/// The (head, name) pairs of an `INODE_EXTREF` item.
pub fn inode_extrefs(mut data: &[u8]) -> impl Iterator<Item = (&InodeExtref, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = InodeExtref::ref_from_prefix(data).ok()?;
        let (name, rest) = rest.split_at_checked(head.name_len.get().into())?;
        data = rest;
        Some((head, name))
    })
}

/// A `ROOT_REF` or `ROOT_BACKREF` item: head and name.
pub fn root_ref(data: &[u8]) -> Option<(&RootRef, &[u8])> {
    let (head, rest) = RootRef::ref_from_prefix(data).ok()?;
    Some((head, rest.get(..head.name_len.get().into())?))
}

/// A root item, also a short one of an old volume (its missing fields are zero).
pub fn root_item(data: &[u8]) -> Option<RootItem> {
    let mut bytes = [0; size_of::<RootItem>()];
    let len = data.len().min(bytes.len());
    if len < crate::items::ROOT_ITEM_V0_BYTES {
        return None;
    }
    bytes.get_mut(..len)?.copy_from_slice(data.get(..len)?);
    RootItem::read_from_bytes(&bytes).ok()
}

/// A chunk item: head and stripes.
pub fn chunk(data: &[u8]) -> Option<(&ChunkHead, &[Stripe])> {
    let (head, rest) = ChunkHead::ref_from_prefix(data).ok()?;
    let (stripes, _) = <[Stripe]>::ref_from_prefix_with_elems(rest, head.num_stripes.get().into()).ok()?;
    Some((head, stripes))
}

/// The (key, chunk head, stripes) triples of a superblock's system chunk array.
pub fn system_chunks(mut data: &[u8]) -> impl Iterator<Item = (Key, &ChunkHead, &[Stripe])> {
    std::iter::from_fn(move || {
        let (key, rest) = crate::key::DiskKey::ref_from_prefix(data).ok()?;
        let (head, rest) = ChunkHead::ref_from_prefix(rest).ok()?;
        let (stripes, rest) = <[Stripe]>::ref_from_prefix_with_elems(rest, head.num_stripes.get().into()).ok()?;
        data = rest;
        Some(((*key).into(), head, stripes))
    })
}

/// A file extent item.
#[derive(Clone, Copy, Debug)]
pub enum FileExtentView<'a> {
    /// The data lies in the item itself, behind the head.
    Inline {
        /// The fixed fields.
        head: &'a FileExtentHead,
        /// The data, compressed if the head says so.
        data: &'a [u8],
    },
    /// An extent of its own, or a hole or preallocated range.
    Regular(&'a FileExtent),
}

/// Reads an `EXTENT_DATA` item.
pub fn file_extent(data: &[u8]) -> Option<FileExtentView<'_>> {
    let (head, rest) = FileExtentHead::ref_from_prefix(data).ok()?;
    if head.ty == file_extent_type::INLINE {
        return Some(FileExtentView::Inline { head, data: rest });
    }
    FileExtent::ref_from_prefix(data)
        .ok()
        .map(|(extent, _)| FileExtentView::Regular(extent))
}

/// A back reference, inline or of its own item, with its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackRef {
    /// A tree block referenced by the tree with this id.
    TreeBlock {
        /// The tree's id.
        root: u64,
    },
    /// A tree block referenced by the block at this address.
    SharedBlock {
        /// Logical address of the referring block.
        parent: u64,
    },
    /// A data extent referenced by a file: `offset` is the file offset minus the offset into the
    /// extent.
    ExtentData {
        /// The subvolume's id.
        root: u64,
        /// The inode's number.
        objectid: u64,
        /// The file offset less the offset into the extent; it may wrap below zero.
        offset: u64,
        /// How many file extent items of the inode have this offset.
        count: u32,
    },
    /// A data extent referenced by the leaf at this address.
    SharedData {
        /// Logical address of the referring leaf.
        parent: u64,
        /// How many of its items refer to the extent.
        count: u32,
    },
    /// Simple quotas: the subvolume that first wrote the extent. Not counted as a reference.
    Owner {
        /// The subvolume's id.
        root: u64,
    },
}

/// An `EXTENT_ITEM` or `METADATA_ITEM` in parts.
#[derive(Clone, Debug)]
pub struct ExtentView<'a> {
    /// The fixed fields.
    pub head: &'a ExtentItem,
    /// First key and level, on tree blocks of volumes without skinny metadata.
    pub block_info: Option<&'a TreeBlockInfo>,
    inline: &'a [u8],
}

impl<'a> ExtentView<'a> {
    /// Reads the item under `key`.
    pub fn new(key: &Key, data: &'a [u8]) -> Option<Self> {
        let (head, mut rest) = ExtentItem::ref_from_prefix(data).ok()?;
        let mut block_info = None;
        if key.ty == KeyType::EXTENT_ITEM && head.flags.get() & crate::features::extent_flags::TREE_BLOCK != 0 {
            let (info, tail) = TreeBlockInfo::ref_from_prefix(rest).ok()?;
            block_info = Some(info);
            rest = tail;
        }
        Some(Self {
            head,
            block_info,
            inline: rest,
        })
    }

    /// The inline references in their order on disk; stops at the first malformed one.
    pub fn inline_refs(&self) -> impl Iterator<Item = BackRef> + use<'a> {
        let mut data = self.inline;
        std::iter::from_fn(move || {
            let ty = KeyType(*data.first()?);
            let (found, rest) = if ty == KeyType::EXTENT_DATA_REF {
                let (raw, rest) = ExtentDataRef::ref_from_prefix(data.get(1..)?).ok()?;
                (extent_data_ref(raw), rest)
            } else {
                let (raw, rest) = InlineRef::ref_from_prefix(data).ok()?;
                let offset = raw.offset.get();
                match ty {
                    KeyType::TREE_BLOCK_REF => (BackRef::TreeBlock { root: offset }, rest),
                    KeyType::SHARED_BLOCK_REF => (BackRef::SharedBlock { parent: offset }, rest),
                    KeyType::EXTENT_OWNER_REF => (BackRef::Owner { root: offset }, rest),
                    KeyType::SHARED_DATA_REF => {
                        let (count, rest) = SharedDataRef::ref_from_prefix(rest).ok()?;
                        (
                            BackRef::SharedData {
                                parent: offset,
                                count: count.count.get(),
                            },
                            rest,
                        )
                    }
                    _ => return None,
                }
            };
            data = rest;
            Some(found)
        })
    }
}

fn extent_data_ref(raw: &ExtentDataRef) -> BackRef {
    BackRef::ExtentData {
        root: raw.root.get(),
        objectid: raw.objectid.get(),
        offset: raw.offset.get(),
        count: raw.count.get(),
    }
}

/// A back reference kept as an item of its own (`TREE_BLOCK_REF` and so on).
pub fn keyed_back_ref(key: &Key, data: &[u8]) -> Option<BackRef> {
    match key.ty {
        KeyType::TREE_BLOCK_REF => Some(BackRef::TreeBlock { root: key.offset }),
        KeyType::SHARED_BLOCK_REF => Some(BackRef::SharedBlock { parent: key.offset }),
        KeyType::SHARED_DATA_REF => {
            let count = fixed::<SharedDataRef>(data)?.count.get();
            Some(BackRef::SharedData {
                parent: key.offset,
                count,
            })
        }
        KeyType::EXTENT_DATA_REF => fixed::<ExtentDataRef>(data).map(extent_data_ref),
        _ => None,
    }
}
