//! Items that hold names: directory entries, xattrs, and the references back to them.

use super::item::{Item, is_shareable};
use crate::corrupt::CorruptKind;
use crate::hash;
use crate::ids::ObjectId;
use crate::items::{DirItem, InodeExtref, InodeRef, RootRef, file_type};
use crate::key::{Key, KeyType};
use cowshed_layout::Rule;

/// The longest name, of files and of xattrs.
const NAME_BYTES_MAX: usize = 255;

#[cold]
fn name_error(item: &Item<'_>, name: &[u8]) -> CorruptKind {
    CorruptKind::Name {
        key: item.key,
        name: String::from_utf8_lossy(name.get(..NAME_BYTES_MAX).unwrap_or(name)).into_owned(),
    }
}

/// A name as a back reference states it: the root directory of a tree calls itself "..".
fn check_ref_name(item: &Item<'_>, name: &[u8]) -> Result<(), CorruptKind> {
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    if !fits || name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(name_error(item, name));
    }
    Ok(())
}

/// A name in a directory.
fn check_entry_name(item: &Item<'_>, name: &[u8]) -> Result<(), CorruptKind> {
    if name == b"." || name == b".." {
        return Err(name_error(item, name));
    }
    check_ref_name(item, name)
}

/// `DIR_ITEM`, `DIR_INDEX` and `XATTR_ITEM`: entries packed one behind the other, never none.
pub(super) fn check_dir_item(item: &Item<'_>) -> Result<(), CorruptKind> {
    let is_xattr = item.key.ty == KeyType::XATTR_ITEM;
    item.size(Rule::NonZero)?;
    let mut rest = item.data;
    while !rest.is_empty() {
        let (head, tail): (&DirItem, _) = item.part("entry", rest)?;
        let (name, tail) = item.bytes("name", tail, head.name_len.get())?;
        let (_value, tail) = item.bytes("data", tail, head.data_len.get())?;
        if is_xattr {
            item.field("entry type", head.ty.into(), Rule::Equal(file_type::XATTR.into()))?;
            if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(&0) {
                return Err(name_error(item, name));
            }
        } else {
            item.field("entry type", head.ty.into(), Rule::AtMost(file_type::SYMLINK.into()))?;
            item.field("data length", head.data_len.get().into(), Rule::Equal(0))?;
            check_entry_name(item, name)?;
        }
        check_location(item, head.location.into(), is_xattr)?;
        // `transid` is not judged: no implementation reads it, and btrfs-convert never sets it.
        if item.key.ty == KeyType::DIR_INDEX {
            // An index belongs to one entry alone.
            if !tail.is_empty() {
                let one = item.data.len().saturating_sub(tail.len());
                return Err(item.size_error(Rule::Equal(u64::try_from(one).unwrap_or_default())));
            }
        } else if hash::name_hash(name) != item.key.offset {
            return Err(item.field_error("key offset", item.key.offset, Rule::Equal(hash::name_hash(name))));
        }
        rest = tail;
    }
    Ok(())
}

/// What an entry points to: an inode of its tree, a subvolume, or nothing for an xattr.
fn check_location(item: &Item<'_>, location: Key, is_xattr: bool) -> Result<(), CorruptKind> {
    let plausible = if is_xattr {
        location == Key::MIN
    } else {
        match location.ty {
            KeyType::ROOT_ITEM => is_shareable(location.objectid.tree_id()),
            KeyType::INODE_ITEM => super::inode::is_inode_number(location.objectid) && location.offset == 0,
            _ => false,
        }
    };
    if plausible {
        Ok(())
    } else {
        Err(CorruptKind::Location {
            key: item.key,
            location,
        })
    }
}

/// `INODE_REF`: (index, name) pairs, never none.
pub(super) fn check_inode_ref(item: &Item<'_>) -> Result<(), CorruptKind> {
    item.size(Rule::NonZero)?;
    let mut rest = item.data;
    while !rest.is_empty() {
        let (head, tail): (&InodeRef, _) = item.part("reference", rest)?;
        let (name, tail) = item.bytes("name", tail, head.name_len.get())?;
        check_ref_name(item, name)?;
        rest = tail;
    }
    Ok(())
}

/// `INODE_EXTREF`: (parent, index, name) triples with one hash, never none.
pub(super) fn check_inode_extref(item: &Item<'_>) -> Result<(), CorruptKind> {
    item.size(Rule::NonZero)?;
    let mut rest = item.data;
    while !rest.is_empty() {
        let (head, tail): (&InodeExtref, _) = item.part("reference", rest)?;
        let (name, tail) = item.bytes("name", tail, head.name_len.get())?;
        check_ref_name(item, name)?;
        let parent = ObjectId::from(head.parent_objectid);
        let expected = hash::extref_hash(parent, name);
        item.field("key offset", item.key.offset, Rule::Equal(expected))?;
        rest = tail;
    }
    Ok(())
}

/// `ROOT_REF` and `ROOT_BACKREF`: one name.
pub(super) fn check_root_ref(item: &Item<'_>) -> Result<(), CorruptKind> {
    let (head, tail): (&RootRef, _) = item.part("reference", item.data)?;
    let (name, tail) = item.bytes("name", tail, head.name_len.get())?;
    if !tail.is_empty() {
        let one = item.data.len().saturating_sub(tail.len());
        return Err(item.size_error(Rule::Equal(u64::try_from(one).unwrap_or_default())));
    }
    check_entry_name(item, name)
}
