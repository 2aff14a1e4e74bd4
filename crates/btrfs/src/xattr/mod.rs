//! Extended attributes: `XATTR_ITEM` by hash of the whole name; colliding names share an item.
//!
//! Most inodes have none, and callers ask often: what is known about that is kept per inode
//! ([`XattrCache`]), so that asking an inode without attributes costs a load of one byte.

pub(crate) mod acl;
pub(crate) mod props;

use std::sync::atomic::Ordering;

use btrfs_format::items::{DirItem, file_type};
use btrfs_format::{Generation, Key, KeyType, ObjectId, hash, view};
use cowshed_vfs::xattr::Namespace;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use crate::error::{Error, Result, StoreError};
use crate::object::{Inode, NONE, SOME, UNKNOWN};
use crate::staged::Staged;

/// The prefix of properties.
const PROPERTY_PREFIX: &[u8] = b"btrfs.";

/// The name space of a full name. Errors: those of [`Namespace::of_format`].
pub(crate) fn space_of(name: &[u8]) -> std::result::Result<Namespace, cowshed_vfs::Error> {
    Namespace::of_format(name, PROPERTY_PREFIX)
}

fn item_key(ino: ObjectId, name: &[u8]) -> Key {
    Key::new(ino, KeyType::XATTR_ITEM, hash::name_hash(name))
}

/// Does the inode have attributes at all?
pub(crate) fn has_any(inode: &Inode) -> Result<bool> {
    let cache = &inode.xattrs;
    match cache.known.load(Ordering::Acquire) {
        NONE => return Ok(false),
        SOME => return Ok(true),
        _ => {}
    }
    let first = inode
        .tree
        .cursor_type(Key::new(inode.ino, KeyType::XATTR_ITEM, 0))
        .next()?;
    let found = if first.is_some() { SOME } else { NONE };
    let _ = cache
        .known
        .compare_exchange(UNKNOWN, found, Ordering::AcqRel, Ordering::Acquire);
    Ok(first.is_some())
}

/// The value of an attribute, without a check of permissions.
pub(crate) fn load(inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if !has_any(inode)? {
        return Ok(None);
    }
    let Some(item) = inode.tree.get(&item_key(inode.ino, name))? else {
        return Ok(None);
    };
    let found = view::dir_entries(&item).find(|e| e.name == name);
    Ok(found.map(|e| e.data.to_vec()))
}

/// Calls `sink` with each name.
pub(crate) fn for_each_name(inode: &Inode, mut sink: impl FnMut(&[u8])) -> Result<()> {
    if !has_any(inode)? {
        return Ok(());
    }
    let mut cursor = inode.tree.cursor_type(Key::new(inode.ino, KeyType::XATTR_ITEM, 0));
    while let Some((_, item)) = cursor.next()? {
        view::dir_entries(&item).for_each(|e| sink(e.name));
    }
    Ok(())
}

/// Stages the value of an attribute, new or not. Errors: `NoSpace` where it does not fit a leaf.
pub(crate) fn stage_set(
    staged: &mut Staged<'_>,
    ino: ObjectId,
    name: &[u8],
    value: &[u8],
    generation: Generation,
) -> Result<()> {
    let head_bytes = size_of::<DirItem>();
    let len = head_bytes + name.len() + value.len();
    let (Ok(data_len), Ok(name_len)) = (u16::try_from(value.len()), u16::try_from(name.len())) else {
        return Err(Error::Store(StoreError::NoSpace));
    };
    if len > staged.item_bytes_max() {
        return Err(Error::Store(StoreError::NoSpace));
    }
    let head = DirItem {
        location: Key::MIN.into(),
        transid: generation.into(),
        data_len: U16::new(data_len),
        name_len: U16::new(name_len),
        ty: file_type::XATTR,
    };
    let key = item_key(ino, name);
    let mut bytes = Vec::with_capacity(len);
    if let Some(item) = staged.get(&key)? {
        copy_others(&item, name, &mut bytes);
    }
    if bytes.len() + len > staged.item_bytes_max() {
        return Err(Error::Store(StoreError::NoSpace));
    }
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(value);
    staged.put(key, bytes);
    Ok(())
}

/// Stages the removal of an attribute; `false` where there is none.
pub(crate) fn stage_remove(staged: &mut Staged<'_>, ino: ObjectId, name: &[u8]) -> Result<bool> {
    let key = item_key(ino, name);
    let Some(item) = staged.get(&key)? else {
        return Ok(false);
    };
    if !view::dir_entries(&item).any(|e| e.name == name) {
        return Ok(false);
    }
    let mut rest = Vec::new();
    copy_others(&item, name, &mut rest);
    staged.put_or_delete(key, rest);
    Ok(true)
}

fn copy_others(item: &[u8], name: &[u8], out: &mut Vec<u8>) {
    for entry in view::dir_entries(item).filter(|e| e.name != name) {
        out.extend_from_slice(entry.head.as_bytes());
        out.extend_from_slice(entry.name);
        out.extend_from_slice(entry.data);
    }
}

/// The attributes of an item that are kept, as an item for another inode; nothing where none is.
pub(crate) fn copied_item(item: &[u8], generation: Generation, keeps: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(item.len());
    for entry in view::dir_entries(item).filter(|e| keeps(e.name)) {
        let head = DirItem {
            transid: generation.into(),
            ..*entry.head
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(entry.name);
        out.extend_from_slice(entry.data);
    }
    out
}

/// What setting or removing an attribute really does.
#[derive(Debug)]
pub(crate) struct Effect {
    /// What is stored; `None`: nothing, and what was there goes.
    pub value: Option<Vec<u8>>,
    /// A new mode.
    pub mode: Option<u32>,
    /// New inode flags.
    pub flags: Option<u64>,
}
