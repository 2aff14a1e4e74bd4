//! Attributes in the inode.

use xfs_format::attr::{ShortformAttr, attr_flags, build_shortform, shortform_entries};
use xfs_format::features::incompat;
use xfs_format::inode::{Fork, ForkKind};

use super::list::{Attr, SHORTFORM_BYTES_END, Value};
use crate::error::Result;
use crate::recovery::finish::files::File;
use crate::recovery::finish::groups::Ags;

/// The attributes in an inode.
pub(super) fn read(fork: &[u8]) -> Vec<Attr> {
    shortform_entries(fork)
        .map(|attr| Attr::new(attr.flags, attr.name, attr.value))
        .collect()
}

/// The list as the inode holds it. `None`: an attribute is too long.
fn build(attrs: &[Attr]) -> Option<Vec<u8>> {
    let short = |attr: &Attr| -> Option<usize> {
        let Value::Local(value) = &attr.value else { return None };
        Some(attr.name.len().max(value.len())).filter(|len| *len < SHORTFORM_BYTES_END)
    };
    let list: Option<Vec<ShortformAttr<'_>>> = attrs
        .iter()
        .map(|attr| match &attr.value {
            Value::Local(value) if short(attr).is_some() => Some(ShortformAttr {
                flags: attr.flags & attr_flags::NAMESPACE_MASK,
                name: &attr.name,
                value,
            }),
            _ => None,
        })
        .collect();
    build_shortform(&list?)
}

/// Stores a list in the inode, whose forks may move. False where it does not fit.
pub(super) fn store(ags: &mut Ags<'_>, file: &mut File, attrs: &[Attr]) -> Result<bool> {
    let bytes = build(attrs);
    let offset = bytes.as_ref().and_then(|bytes| file.attr_offset_for(bytes.len()));
    let (Some(bytes), Some(offset)) = (bytes, offset) else {
        return Ok(false);
    };
    file.store_shortform(ags, offset, &bytes)?;
    Ok(true)
}

/// Stores the list that a removal left in the inode. Without any, the room goes, too: but for the
/// parent pointer that the next name needs.
pub(super) fn keep(ags: &mut Ags<'_>, file: &mut File, attrs: &[Attr], is_replaced: bool) -> Result<()> {
    let is_kept = is_replaced || ags.disk.geometry.has_incompat(incompat::PARENT);
    store_or_drop(ags, file, attrs, is_kept)
}

/// Stores what fitted before. Without attributes the room goes where it need not be kept, and the
/// data fork's root would not have to move.
fn store_or_drop(ags: &mut Ags<'_>, file: &mut File, attrs: &[Attr], is_kept: bool) -> Result<()> {
    let is_tree = matches!(file.fork(ForkKind::Data), Some(Fork::Btree(_)));
    if attrs.is_empty() && !is_kept && !is_tree {
        return file.drop_attr_fork(ags);
    }
    store(ags, file, attrs).map(|_| ())
}

/// Moves the attributes of a leaf that is alone into the inode where they fit. Those that were not
/// finished are left out. Without any the room goes, also on volumes with parent pointers, as in
/// Linux.
pub(super) fn take_back(ags: &mut Ags<'_>, file: &mut File, mut attrs: Vec<Attr>, is_replaced: bool) -> Result<()> {
    attrs.retain(|attr| !attr.is_incomplete());
    let fits = build(&attrs).is_some_and(|bytes| file.attr_offset_for(bytes.len()).is_some());
    if !fits {
        return Ok(());
    }
    file.free_attr_blocks(ags)?;
    store_or_drop(ags, file, &attrs, is_replaced)
}
