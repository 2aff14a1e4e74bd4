//! ATTRI: a change of an attribute. Linux logs them for parent pointers, whose values lie beside
//! their names, and for all attributes where it is told to.
//!
//! Attributes are in the inode ([`short`]), in one leaf, or in leaves below nodes. [`blocks`] are
//! the blocks of a fork, [`walk`] finds leaves, [`split`] adds, [`join`] removes, [`value`] has
//! values with blocks of their own. [`room`] makes room for attributes in an inode that has none.

mod blocks;
mod join;
mod list;
mod room;
mod short;
mod split;
mod value;
mod walk;

use xfs_format::attr::{VALUE_BYTES_MAX, attr_flags};
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::log::{AttrIntent, AttrOp};

use super::files::File;
use super::groups::Ags;
use crate::error::Result;
use blocks::{AttrFork, NONE, ROOT};
use list::{Attr, Value, sort};

/// Finishes a change. A replacement is a removal and an addition, as in Linux.
pub(super) fn change(ags: &mut Ags<'_>, intent: &AttrIntent<'_>) -> Result<()> {
    let flags = (intent.filter & u32::from(attr_flags::NAMESPACE_MASK)) as u8;
    let attr = |name, value| Attr::new(flags, name, value);
    let old = attr(intent.name, intent.value);
    let new = match intent.op {
        AttrOp::Remove | AttrOp::ParentRemove => None,
        AttrOp::Set | AttrOp::Replace | AttrOp::ParentSet => Some(old.clone()),
        AttrOp::ParentReplace => Some(attr(intent.new_name, intent.new_value)),
    };
    for (name, value) in [(intent.name, intent.value), (intent.new_name, intent.new_value)] {
        if name.len() > usize::from(u8::MAX) || value.len() > VALUE_BYTES_MAX as usize {
            let found = format_args!("{} and {} bytes", name.len(), value.len()).to_string();
            return Err(ags
                .disk
                .broken("name and value of an ATTRI", found, "what the format allows"));
        }
    }
    let mut file = File::load(ags, intent.ino)?;
    if intent.generation != 0 && file.core.generation.get() != intent.generation {
        let found = file.core.generation.get();
        return Err(ags
            .disk
            .broken("generation of an ATTRI's inode", found, intent.generation));
    }
    remove(ags, &mut file, &old, new.is_some())?;
    if let Some(new) = new {
        if new != old {
            remove(ags, &mut file, &new, true)?;
        }
        add(ags, &mut file, new)?;
    }
    Ok(())
}

/// Removes an attribute where it is; `is_replaced`: another one follows.
fn remove(ags: &mut Ags<'_>, file: &mut File, attr: &Attr, is_replaced: bool) -> Result<()> {
    match file.fork(ForkKind::Attr) {
        // An inode that got room for attributes, and none yet.
        None | Some(Fork::Extents([])) => return Ok(()),
        Some(Fork::Local(bytes)) => {
            let mut attrs = short::read(bytes);
            let count = attrs.len();
            attrs.retain(|other| !other.is(attr));
            return if attrs.len() == count {
                Ok(())
            } else {
                short::keep(ags, file, &attrs, is_replaced)
            };
        }
        Some(_) => {}
    }
    let mut fork = AttrFork::open(ags, file)?;
    let mut is_changed = false;
    loop {
        let (way, leaf) = fork.find(attr)?;
        if !leaf.attrs.iter().any(|other| other.is(attr)) {
            break;
        }
        fork.remove(way, leaf, attr)?;
        is_changed = true;
    }
    if !is_changed {
        return Ok(());
    }
    let root = if fork.is_one_block() {
        Some(fork.read_leaf(ROOT)?)
    } else {
        None
    };
    fork.store()?;
    match root {
        Some(leaf) => short::take_back(ags, file, leaf.attrs, is_replaced),
        None => Ok(()),
    }
}

/// Adds an attribute that is not there.
fn add(ags: &mut Ags<'_>, file: &mut File, attr: Attr) -> Result<()> {
    let geometry = ags.disk.geometry;
    if file.fork(ForkKind::Attr).is_none() {
        room::make(ags, file, &attr)?;
    }
    let short = match file.fork(ForkKind::Attr) {
        Some(Fork::Local(bytes)) => Some(short::read(bytes)),
        Some(Fork::Extents([])) | None => Some(Vec::new()),
        Some(_) => None,
    };
    if let Some(mut attrs) = short.clone() {
        // The list in the inode has no order.
        attrs.push(attr.clone());
        if short::store(ags, file, &attrs)? {
            return Ok(());
        }
    }
    let mut fork = AttrFork::open(ags, file)?;
    if let Some(mut attrs) = short {
        // One leaf, in a block of its own.
        sort(&mut attrs, &geometry);
        fork.file.reset_attr_offset();
        let root = fork.grow()?;
        fork.write_leaf(root, &attrs, (NONE, NONE))?;
    }
    match &attr.value {
        Value::Local(value) if !attr.fits_beside_name(&geometry) => fork.add_with_blocks(&attr, value)?,
        _ => fork.add(attr)?,
    }
    fork.store()
}
