//! ATTRI: a change of an attribute. Linux logs them for parent pointers; values lie beside names.
//!
//! The attributes of the inode, or of the leaf that has the hash, are read as a list, changed, and
//! laid out anew; leaves are split and joined. What needs blocks for a value is refused.

use xfs_format::attr::{
    AttrShortformEntry, AttrShortformHead, LOCAL_ENTRY_SHARE, ShortformAttr, attr_flags, build_shortform,
    shortform_entries,
};
use xfs_format::da::AttrNodeBlock;
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::log::{AttrIntent, AttrOp};
use xfs_format::{DaBlock, Daddr, Expect, Geometry};

use super::attr_list::{Attr, Value, refused};
use super::attr_tree::{Way, fits_leaf, grow, join, place, raise_keys, read_leaf, read_node, split, write_leaf};
use super::files::{Extents, File};
use super::groups::Ags;
use crate::error::Result;

/// Hash trees of attributes have fewer levels.
const LEVELS_MAX: usize = 8;
const NODE_MAGICS: [u16; 2] = [0xfebe, 0x3ebe];

enum Change {
    Put(Attr),
    Remove(Attr),
}

impl Change {
    fn attr(&self) -> &Attr {
        match self {
            Self::Put(attr) | Self::Remove(attr) => attr,
        }
    }
    fn apply(&self, attrs: &mut Vec<Attr>, geometry: &Geometry) {
        attrs.retain(|attr| !attr.is(self.attr()));
        if let Self::Put(attr) = self {
            attrs.push(attr.clone());
        }
        attrs.sort_by_key(|attr| attr.view().hash(geometry));
    }
}

/// Finishes a change.
pub(super) fn change(ags: &mut Ags<'_>, intent: &AttrIntent<'_>) -> Result<()> {
    let flags = (intent.filter & u32::from(attr_flags::NAMESPACE_MASK)) as u8;
    let old = Attr::new(flags, intent.name, intent.value);
    let changes = match intent.op {
        AttrOp::Set | AttrOp::Replace | AttrOp::ParentSet => vec![Change::Put(old)],
        AttrOp::Remove | AttrOp::ParentRemove => vec![Change::Remove(old)],
        AttrOp::ParentReplace => {
            let new = Attr::new(flags, intent.new_name, intent.new_value);
            vec![Change::Remove(old), Change::Put(new)]
        }
    };
    for change in changes {
        let mut file = File::load(ags, intent.ino)?;
        if intent.generation != 0 && file.core.generation.get() != intent.generation {
            let found = file.core.generation.get();
            return Err(ags
                .disk
                .broken("generation of an ATTRI's inode", found, intent.generation));
        }
        apply(ags, &mut file, &change)?;
    }
    Ok(())
}

fn apply(ags: &mut Ags<'_>, file: &mut File, change: &Change) -> Result<()> {
    let geometry = ags.disk.geometry;
    let mut attrs: Vec<Attr> = match file.fork(ForkKind::Attr) {
        None => return Err(refused("the inode has no room for attributes yet")),
        Some(Fork::Local(bytes)) => shortform_entries(bytes)
            .map(|attr| Attr::new(attr.flags, attr.name, attr.value))
            .collect(),
        // An inode that got room for attributes, and none yet.
        Some(Fork::Extents([])) => Vec::new(),
        Some(_) => return apply_to_leaf(ags, file, change),
    };
    // The list in the inode has no order.
    let added = attrs.iter().any(|attr| attr.is(change.attr()));
    attrs.retain(|attr| !attr.is(change.attr()));
    if let Change::Put(attr) = change {
        attrs.push(attr.clone());
    }
    if attrs.is_empty() && !added {
        return Ok(());
    }
    if store_in_inode(ags, file, &attrs)? {
        return Ok(());
    }
    // One leaf, in a block of its own.
    attrs.sort_by_key(|attr| attr.view().hash(&geometry));
    let mut extents = file.extents(ags, ForkKind::Attr)?;
    let (_, daddr) = grow(ags, file, &mut extents)?;
    write_leaf(ags, file, daddr, &attrs, (DaBlock(0), DaBlock(0)))?;
    file.set_extents(ags, ForkKind::Attr, extents)
}

/// Stores a list in the inode, whose forks may move. False where it does not fit.
fn store_in_inode(ags: &mut Ags<'_>, file: &mut File, attrs: &[Attr]) -> Result<bool> {
    let mut short = Vec::new();
    for attr in attrs {
        let Value::Local(value) = &attr.value else {
            return Ok(false);
        };
        if value.len() >= 256 || attr.name.len() >= 256 {
            return Ok(false);
        }
        short.push(ShortformAttr {
            flags: attr.flags & attr_flags::NAMESPACE_MASK,
            name: &attr.name,
            value,
        });
    }
    let Some(bytes) = build_shortform(&short) else {
        return Ok(false);
    };
    let Some(offset) = file.attr_offset_for(bytes.len()) else {
        return Ok(false);
    };
    file.store_shortform(ags, offset, &bytes)?;
    Ok(true)
}

/// Goes on from a block down to a leaf, by the child that `pick` names. `None`: a node without
/// children.
fn descend(
    ags: &Ags<'_>,
    file: &File,
    extents: &Extents,
    mut way: Way,
    pick: &dyn Fn(&AttrNodeBlock) -> Option<usize>,
) -> Result<Option<Way>> {
    let geometry = &ags.disk.geometry;
    loop {
        way.leaf = place(ags, file, extents, way.block)?;
        let bytes = ags.disk.read(way.leaf, geometry.block_bytes)?;
        let magic = bytes.get(8..10).and_then(|magic| magic.first_chunk());
        if !magic.is_some_and(|magic| NODE_MAGICS.contains(&u16::from_be_bytes(*magic))) {
            return Ok(Some(way));
        }
        let node = AttrNodeBlock::verify(bytes, &Expect::of_inode(geometry, way.leaf, file.ino))?;
        let Some(slot) = pick(&node) else { return Ok(None) };
        way.nodes.push((way.leaf, slot));
        if way.nodes.len() > LEVELS_MAX {
            return Err(ags.disk.broken("nodes of attributes", way.nodes.len(), LEVELS_MAX));
        }
        way.block = DaBlock(node.entries().get(slot).map_or(0, |child| child.before.get()));
    }
}

/// The way to the first leaf that may have a hash.
fn way_to(ags: &Ags<'_>, file: &File, extents: &Extents, hash: u32) -> Result<Option<Way>> {
    let root = Way {
        leaf: Daddr(0),
        block: DaBlock(0),
        nodes: Vec::new(),
    };
    descend(ags, file, extents, root, &|node| {
        node.child_slot(hash).or(node.entries().len().checked_sub(1))
    })
}

/// The way to the leaf behind another one. `None`: it is the last one.
fn way_behind(ags: &Ags<'_>, file: &File, extents: &Extents, way: &Way) -> Result<Option<Way>> {
    for (depth, (daddr, slot)) in way.nodes.iter().enumerate().rev() {
        let node = read_node(ags, file, *daddr)?;
        let Some(child) = node.entries().get(slot + 1) else {
            continue;
        };
        let mut nodes = way.nodes.get(..depth).unwrap_or_default().to_vec();
        nodes.push((*daddr, slot + 1));
        let next = Way {
            leaf: *daddr,
            block: DaBlock(child.before.get()),
            nodes,
        };
        return descend(ags, file, extents, next, &|node| {
            (!node.entries().is_empty()).then_some(0)
        });
    }
    Ok(None)
}

/// A leaf with its attributes and siblings, and the way to it.
type Leaf = (Way, Vec<Attr>, (DaBlock, DaBlock));

/// The leaf that has an attribute, or the one that it goes to. Attributes of one hash may fill
/// several leaves: while it is not found and may be in the next leaf, that one is looked at, and
/// like Linux we put a new one into the last leaf that was.
fn find_leaf(ags: &Ags<'_>, file: &File, extents: &Extents, attr: &Attr) -> Result<Option<Leaf>> {
    let geometry = &ags.disk.geometry;
    let hash = attr.view().hash(geometry);
    let Some(mut way) = way_to(ags, file, extents, hash)? else {
        return Ok(None);
    };
    let first = way.block;
    let (mut attrs, mut siblings) = read_leaf(ags, file, way.leaf)?;
    loop {
        let last = attrs.last().map(|attr| attr.view().hash(geometry));
        if last != Some(hash) || attrs.iter().any(|other| other.is(attr)) {
            return Ok(Some((way, attrs, siblings)));
        }
        let Some(next) = way_behind(ags, file, extents, &way)? else {
            return Ok(Some((way, attrs, siblings)));
        };
        let (theirs, beside) = read_leaf(ags, file, next.leaf)?;
        // As each leaf names the one before it, a circle would lead back to the first one.
        if siblings.1 != next.block || beside.0 != way.block || next.block == first {
            let found = format_args!("{} and {} beside each other", way.block, next.block).to_string();
            return Err(ags.disk.broken("leaves of attributes", found, "leaves that say so"));
        }
        (way, attrs, siblings) = (next, theirs, beside);
    }
}

fn apply_to_leaf(ags: &mut Ags<'_>, file: &mut File, change: &Change) -> Result<()> {
    let geometry = ags.disk.geometry;
    let extents = file.extents(ags, ForkKind::Attr)?;
    let Some((way, mut attrs, siblings)) = find_leaf(ags, file, &extents, change.attr())? else {
        return Err(refused("a hash tree without leaves"));
    };
    let is_remote = |attr: &Attr| matches!(attr.value, Value::Remote { .. });
    if attrs.iter().any(|attr| attr.is(change.attr()) && is_remote(attr)) {
        return Err(refused("a value in blocks of its own"));
    }
    if let (Change::Put(attr), Value::Local(value)) = (change, &change.attr().value) {
        let local_max = geometry.block_bytes as usize / LOCAL_ENTRY_SHARE.1 as usize * LOCAL_ENTRY_SHARE.0 as usize;
        if attr.name.len() + value.len() > local_max {
            return Err(refused("a value that needs blocks of its own"));
        }
    }
    let before = attrs.last().map(|attr| attr.view().hash(&geometry));
    change.apply(&mut attrs, &geometry);
    let last = attrs.last().map(|attr| attr.view().hash(&geometry));
    if !fits_leaf(&attrs, &geometry) {
        return split(ags, file, extents, &way, siblings, &attrs);
    }
    if !attrs.is_empty() || way.nodes.is_empty() {
        write_leaf(ags, file, way.leaf, &attrs, siblings)?;
    }
    if let Some(last) = last.filter(|last| before != Some(*last)) {
        raise_keys(ags, file, &way.nodes, last)?;
    }
    if matches!(change, Change::Put(_)) {
        return Ok(());
    }
    let is_alone = way.nodes.is_empty() || join(ags, file, extents, &way, siblings, &attrs)?;
    if is_alone { to_inode(ags, file) } else { Ok(()) }
}

/// Moves the attributes of a leaf that is alone into the inode where they fit.
fn to_inode(ags: &mut Ags<'_>, file: &mut File) -> Result<()> {
    let extents = file.extents(ags, ForkKind::Attr)?;
    let daddr = place(ags, file, &extents, DaBlock(0))?;
    let (attrs, _) = read_leaf(ags, file, daddr)?;
    let is_whole = attrs.iter().all(|attr| attr.flags & attr_flags::INCOMPLETE == 0);
    let list = fits_inode(file, &attrs).filter(|_| is_whole && !attrs.is_empty());
    let Some(bytes) = list else { return Ok(()) };
    file.free_attr_blocks(ags)?;
    let offset = file.attr_offset_for(bytes.len()).unwrap_or(file.core.forkoff);
    file.store_shortform(ags, offset, &bytes)
}

/// The list as the inode would hold it.
fn fits_inode(file: &File, attrs: &[Attr]) -> Option<Vec<u8>> {
    let mut bytes = size_of::<AttrShortformHead>();
    let mut short = Vec::new();
    for attr in attrs {
        let Value::Local(value) = &attr.value else { return None };
        if value.len() >= 256 {
            return None;
        }
        bytes += size_of::<AttrShortformEntry>() + attr.name.len() + value.len();
        short.push(ShortformAttr {
            flags: attr.flags & attr_flags::NAMESPACE_MASK,
            name: &attr.name,
            value,
        });
    }
    file.attr_offset_for(bytes)?;
    build_shortform(&short)
}
