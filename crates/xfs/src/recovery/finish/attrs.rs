//! ATTRI: a change of an attribute. Linux logs them for parent pointers; values lie beside names.
//!
//! The attributes of the inode, or of the leaf that has the hash, are read as a list, changed, and
//! laid out anew. What would split a leaf under a hash tree, or needs blocks for a value, is
//! refused.

use xfs_format::attr::{
    AttrLeafBlock, AttrNew, AttrShortformEntry, AttrShortformHead, AttrValueView, LOCAL_ENTRY_SHARE, ShortformAttr,
    attr_flags, build_shortform, shortform_entries,
};
use xfs_format::da::{AttrNodeBlock, DaNodeEntry};
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::log::{AttrIntent, AttrOp};
use xfs_format::{AgBlock, DaBlock, Daddr, Expect, Extent, FileBlock, Geometry};

use super::files::{Extents, File};
use super::groups::Ags;
use crate::error::{Error, Result};

/// Hash trees of attributes have fewer levels.
const LEVELS_MAX: usize = 8;
const NODE_MAGICS: [u16; 2] = [0xfebe, 0x3ebe];

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Local(Vec<u8>),
    Remote { block: DaBlock, len_bytes: u32 },
}

#[derive(Clone, Debug, PartialEq)]
struct Attr {
    flags: u8,
    name: Vec<u8>,
    value: Value,
}

impl Attr {
    fn new(flags: u8, name: &[u8], value: &[u8]) -> Self {
        Self {
            flags,
            name: name.to_vec(),
            value: Value::Local(value.to_vec()),
        }
    }
    fn view(&self) -> AttrNew<'_> {
        AttrNew {
            flags: self.flags,
            name: &self.name,
            value: match &self.value {
                Value::Local(value) => AttrValueView::Local(value),
                Value::Remote { block, len_bytes } => AttrValueView::Remote {
                    block: *block,
                    len_bytes: *len_bytes,
                },
            },
        }
    }
    /// True for the attribute that a change is about: a parent pointer is one with its value.
    fn is(&self, other: &Attr) -> bool {
        let namespace = |attr: &Attr| attr.flags & attr_flags::NAMESPACE_MASK;
        namespace(self) == namespace(other)
            && self.name == other.name
            && (namespace(self) & attr_flags::PARENT == 0 || self.value == other.value)
    }
}

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

fn refused(what: &'static str) -> Error {
    Error::Unsupported(format!("log with an unfinished ATTRI: {what}"))
}

fn apply(ags: &mut Ags<'_>, file: &mut File, change: &Change) -> Result<()> {
    let geometry = ags.disk.geometry;
    let mut attrs: Vec<Attr> = match file.fork(ForkKind::Attr) {
        None => return Err(refused("the inode has no room for attributes yet")),
        Some(Fork::Local(bytes)) => shortform_entries(bytes)
            .map(|attr| Attr::new(attr.flags, attr.name, attr.value))
            .collect(),
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
    let (group, block) = ags.take_near(file.group(ags))?;
    let extent = Extent {
        offset: FileBlock(0),
        start: geometry.join(group, AgBlock(block)),
        blocks: 1,
        is_unwritten: false,
    };
    let (group, mapping) = file.mapping(ags, ForkKind::Attr, &extent)?;
    ags.map(group, mapping)?;
    ags.settle(group)?;
    let _is_hole = extents.list.put(extent);
    file.core.nblocks.set(file.core.nblocks.get() + 1);
    write_leaf(
        ags,
        file,
        geometry.ag_daddr(group, AgBlock(block)),
        &attrs,
        (DaBlock(0), DaBlock(0)),
    )?;
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

/// Where a leaf lies, and the way to it: nodes with the slot that was taken.
struct Way {
    leaf: Daddr,
    nodes: Vec<(Daddr, usize)>,
}

fn place(ags: &Ags<'_>, file: &File, extents: &Extents, block: u64) -> Result<Daddr> {
    let found = extents
        .list
        .iter()
        .find(|extent| extent.offset.get() <= block && block < extent.end().get());
    let daddr = found.and_then(|extent| {
        let start = extent.start.get() + (block - extent.offset.get());
        ags.disk.geometry.daddr(xfs_format::FsBlock(start))
    });
    daddr.ok_or_else(|| {
        ags.disk.broken(
            "block of attributes",
            block,
            format_args!("a block of inode {}", file.ino),
        )
    })
}

fn way_to(ags: &Ags<'_>, file: &File, extents: &Extents, hash: u32) -> Result<Option<Way>> {
    let geometry = &ags.disk.geometry;
    let (mut block, mut nodes) = (0, Vec::new());
    loop {
        let daddr = place(ags, file, extents, block)?;
        let bytes = ags.disk.read(daddr, geometry.block_bytes)?;
        let magic = bytes.get(8..10).and_then(|magic| magic.first_chunk());
        if !magic.is_some_and(|magic| NODE_MAGICS.contains(&u16::from_be_bytes(*magic))) {
            return Ok(Some(Way { leaf: daddr, nodes }));
        }
        let node = AttrNodeBlock::verify(bytes, &Expect::of_inode(geometry, daddr, file.ino))?;
        let last = node.entries().len().checked_sub(1);
        let Some(slot) = node.child_slot(hash).or(last) else {
            return Ok(None);
        };
        nodes.push((daddr, slot));
        if nodes.len() > LEVELS_MAX {
            return Err(ags.disk.broken("nodes of attributes", nodes.len(), LEVELS_MAX));
        }
        block = node.entries().get(slot).map_or(0, |child| child.before.get()).into();
    }
}

fn apply_to_leaf(ags: &mut Ags<'_>, file: &mut File, change: &Change) -> Result<()> {
    let geometry = ags.disk.geometry;
    let extents = file.extents(ags, ForkKind::Attr)?;
    let hash = change.attr().view().hash(&geometry);
    let Some(way) = way_to(ags, file, &extents, hash)? else {
        return Err(refused("a hash tree without leaves"));
    };
    let bytes = ags.disk.read(way.leaf, geometry.block_bytes)?;
    let leaf = AttrLeafBlock::verify(bytes, &Expect::of_inode(&geometry, way.leaf, file.ino))?;
    let mut attrs: Vec<Attr> = leaf
        .entries()
        .map(|entry| Attr {
            flags: entry.flags,
            name: entry.name.to_vec(),
            value: match entry.value {
                AttrValueView::Local(value) => Value::Local(value.to_vec()),
                AttrValueView::Remote { block, len_bytes } => Value::Remote { block, len_bytes },
            },
        })
        .collect();
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
    let is_alone = way.nodes.is_empty();
    let is_whole = attrs.iter().all(|attr| attr.flags & attr_flags::INCOMPLETE == 0);
    if is_alone && is_whole && matches!(change, Change::Remove(_)) && !attrs.is_empty() {
        let list = attrs.clone();
        if let Some(bytes) = fits_inode(file, &list) {
            file.free_attr_blocks(ags)?;
            let offset = file.attr_offset_for(bytes.len()).unwrap_or(file.core.forkoff);
            return file.store_shortform(ags, offset, &bytes);
        }
    }
    if !is_alone && attrs.is_empty() {
        return Err(refused("a leaf without attributes"));
    }
    write_leaf(ags, file, way.leaf, &attrs, leaf.siblings())?;
    match last {
        Some(last) if before != Some(last) => raise_keys(ags, file, &way, last),
        _ => Ok(()),
    }
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

fn write_leaf(
    ags: &mut Ags<'_>,
    file: &File,
    daddr: Daddr,
    attrs: &[Attr],
    siblings: (DaBlock, DaBlock),
) -> Result<()> {
    let views: Vec<AttrNew<'_>> = attrs.iter().map(Attr::view).collect();
    let expect = Expect::of_inode(&ags.disk.geometry, daddr, file.ino);
    let bytes =
        AttrLeafBlock::build(&views, siblings, &expect).ok_or_else(|| refused("a leaf that has to be split"))?;
    let block = AttrLeafBlock::seal(bytes, &expect, ags.disk.lsn)?;
    ags.disk.write(daddr, block.bytes())
}

/// The greatest hash of a leaf changed: the nodes above say so.
fn raise_keys(ags: &mut Ags<'_>, file: &File, way: &Way, hash: u32) -> Result<()> {
    for (daddr, slot) in way.nodes.iter().rev() {
        let expect = Expect::of_inode(&ags.disk.geometry, *daddr, file.ino);
        let bytes = ags.disk.read(*daddr, ags.disk.geometry.block_bytes)?;
        let node = AttrNodeBlock::verify(bytes, &expect)?;
        let mut entries: Vec<DaNodeEntry> = node.entries().to_vec();
        if let Some(entry) = entries.get_mut(*slot) {
            entry.hashval.set(hash);
        }
        let bytes = AttrNodeBlock::build(node.level(), &entries, node.siblings(), &expect)
            .ok_or_else(|| ags.disk.broken("node of attributes", entries.len(), "a node that fits"))?;
        let block = AttrNodeBlock::seal(bytes, &expect, ags.disk.lsn)?;
        ags.disk.write(*daddr, block.bytes())?;
        if slot + 1 < entries.len() {
            break;
        }
    }
    Ok(())
}
