//! Leaves of attributes that are split, joined and freed, so that a fork has as many blocks as
//! after Linux finished the change. Nodes are not split or joined: that is refused by name.

use xfs_format::attr::{
    AttrEntryHead, AttrLeafBlock, AttrLeafHeader, AttrLeafHeaderV5, AttrLocalHead, AttrNew, AttrRemoteHead,
    AttrValueView,
};
use xfs_format::da::{AttrNodeBlock, DaNodeEntry};
use xfs_format::inode::ForkKind;
use xfs_format::{AgBlock, DaBlock, Daddr, Expect, Extent, FileBlock, FsBlock, Geometry, U32};

use super::attr_list::{Attr, Value, refused};
use super::files::{Extents, File};
use super::groups::Ags;
use crate::error::Result;

/// Names and values begin at multiples of it.
const ALIGN_BYTES: usize = 4;
const NONE: DaBlock = DaBlock(0);

/// Where a leaf lies, and the way to it: nodes with the slot that was taken.
pub(super) struct Way {
    pub leaf: Daddr,
    pub block: DaBlock,
    pub nodes: Vec<(Daddr, usize)>,
}

fn header_bytes(geometry: &Geometry) -> usize {
    if geometry.is_v5() {
        size_of::<AttrLeafHeaderV5>()
    } else {
        size_of::<AttrLeafHeader>()
    }
}

/// Bytes of an attribute in a leaf.
fn entry_bytes(attr: &Attr) -> usize {
    let bytes = match &attr.value {
        Value::Local(value) => size_of::<AttrLocalHead>() + attr.name.len() + value.len(),
        Value::Remote { .. } => size_of::<AttrRemoteHead>() + attr.name.len(),
    };
    size_of::<AttrEntryHead>() + bytes.next_multiple_of(ALIGN_BYTES)
}

fn list_bytes(attrs: &[Attr]) -> usize {
    attrs.iter().map(entry_bytes).sum()
}

/// True where a leaf has room for all of them.
pub(super) fn fits_leaf(attrs: &[Attr], geometry: &Geometry) -> bool {
    header_bytes(geometry) + list_bytes(attrs) <= geometry.block_bytes as usize
}

fn last_hash(attrs: &[Attr], geometry: &Geometry) -> u32 {
    attrs.last().map_or(0, |attr| attr.view().hash(geometry))
}

fn entry(attrs: &[Attr], block: DaBlock, geometry: &Geometry) -> DaNodeEntry {
    DaNodeEntry {
        hashval: U32::new(last_hash(attrs, geometry)),
        before: U32::new(block.get()),
    }
}

/// The place of a block of the fork. Errors: it has none.
pub(super) fn place(ags: &Ags<'_>, file: &File, extents: &Extents, block: DaBlock) -> Result<Daddr> {
    let at = u64::from(block.get());
    let found = extents
        .list
        .iter()
        .find(|extent| extent.offset.get() <= at && at < extent.end().get());
    let daddr = found.and_then(|extent| {
        let start = extent.start.get() + (at - extent.offset.get());
        ags.disk.geometry.daddr(FsBlock(start))
    });
    daddr.ok_or_else(|| {
        let expected = format_args!("a block of inode {}", file.ino).to_string();
        ags.disk.broken("block of attributes", at, expected)
    })
}

/// The attributes of a leaf, and the blocks beside it.
pub(super) fn read_leaf(ags: &Ags<'_>, file: &File, daddr: Daddr) -> Result<(Vec<Attr>, (DaBlock, DaBlock))> {
    let geometry = &ags.disk.geometry;
    let bytes = ags.disk.read(daddr, geometry.block_bytes)?;
    let leaf = AttrLeafBlock::verify(bytes, &Expect::of_inode(geometry, daddr, file.ino))?;
    let attrs = leaf.entries().map(|entry| Attr {
        flags: entry.flags,
        name: entry.name.to_vec(),
        value: match entry.value {
            AttrValueView::Local(value) => Value::Local(value.to_vec()),
            AttrValueView::Remote { block, len_bytes } => Value::Remote { block, len_bytes },
        },
    });
    Ok((attrs.collect(), leaf.siblings()))
}

pub(super) fn write_leaf(
    ags: &mut Ags<'_>,
    file: &File,
    daddr: Daddr,
    attrs: &[Attr],
    siblings: (DaBlock, DaBlock),
) -> Result<()> {
    let views: Vec<AttrNew<'_>> = attrs.iter().map(Attr::view).collect();
    let expect = Expect::of_inode(&ags.disk.geometry, daddr, file.ino);
    let bytes = AttrLeafBlock::build(&views, siblings, &expect).ok_or_else(|| {
        ags.disk
            .broken("leaf of attributes", attrs.len(), "attributes that fit")
    })?;
    let block = AttrLeafBlock::seal(bytes, &expect, ags.disk.lsn)?;
    ags.disk.write(daddr, block.bytes())
}

pub(super) fn read_node(ags: &Ags<'_>, file: &File, daddr: Daddr) -> Result<AttrNodeBlock> {
    let geometry = &ags.disk.geometry;
    let bytes = ags.disk.read(daddr, geometry.block_bytes)?;
    let expect = Expect::of_inode(geometry, daddr, file.ino);
    Ok(AttrNodeBlock::verify(bytes, &expect)?)
}

/// Writes a node of leaves, or one above.
fn write_node(
    ags: &mut Ags<'_>,
    file: &File,
    daddr: Daddr,
    level: u8,
    entries: &[DaNodeEntry],
    siblings: (DaBlock, DaBlock),
) -> Result<()> {
    let expect = Expect::of_inode(&ags.disk.geometry, daddr, file.ino);
    let bytes = AttrNodeBlock::build(level, entries, siblings, &expect)
        .ok_or_else(|| refused("a node that has to be split"))?;
    let block = AttrNodeBlock::seal(bytes, &expect, ags.disk.lsn)?;
    ags.disk.write(daddr, block.bytes())
}

/// The greatest hash below some nodes changed: they say so.
pub(super) fn raise_keys(ags: &mut Ags<'_>, file: &File, nodes: &[(Daddr, usize)], hash: u32) -> Result<()> {
    for (daddr, slot) in nodes.iter().rev() {
        let node = read_node(ags, file, *daddr)?;
        let mut entries: Vec<DaNodeEntry> = node.entries().to_vec();
        if let Some(entry) = entries.get_mut(*slot) {
            entry.hashval.set(hash);
        }
        write_node(ags, file, *daddr, node.level(), &entries, node.siblings())?;
        if slot + 1 < entries.len() {
            break;
        }
    }
    Ok(())
}

/// Takes a block for the first hole of the fork.
pub(super) fn grow(ags: &mut Ags<'_>, file: &mut File, extents: &mut Extents) -> Result<(DaBlock, Daddr)> {
    let geometry = ags.disk.geometry;
    let mut hole = 0;
    for extent in extents.list.iter() {
        if extent.offset.get() > hole {
            break;
        }
        hole = extent.end().get();
    }
    let (group, block) = ags.take_near(file.group(ags))?;
    let extent = Extent {
        offset: FileBlock(hole),
        start: geometry.join(group, AgBlock(block)),
        blocks: 1,
        is_unwritten: false,
    };
    let (group, mapping) = file.mapping(ags, ForkKind::Attr, &extent)?;
    ags.map(group, mapping)?;
    ags.settle(group)?;
    let number = u32::try_from(hole).ok().filter(|_| extents.list.put(extent));
    let number = number.ok_or_else(|| ags.disk.broken("blocks of attributes", hole, "a block of a fork"))?;
    file.core.nblocks.set(file.core.nblocks.get() + 1);
    Ok((DaBlock(number), geometry.ag_daddr(group, AgBlock(block))))
}

/// Gives a block of the fork back.
fn shrink(ags: &mut Ags<'_>, file: &mut File, extents: &mut Extents, block: DaBlock) -> Result<()> {
    let at = u64::from(block.get());
    for gone in extents.list.take(at, at + 1) {
        let (group, mapping) = file.mapping(ags, ForkKind::Attr, &gone)?;
        ags.unmap(group, mapping)?;
        ags.free_in(group, mapping.start, mapping.blocks)?;
        ags.settle(group)?;
        let left = file.core.nblocks.get().saturating_sub(gone.blocks.into());
        file.core.nblocks.set(left);
    }
    Ok(())
}

/// Tells a leaf that it has another one before or behind it.
fn relink(
    ags: &mut Ags<'_>,
    file: &File,
    extents: &Extents,
    leaf: DaBlock,
    change: impl FnOnce((DaBlock, DaBlock)) -> (DaBlock, DaBlock),
) -> Result<()> {
    if leaf == NONE {
        return Ok(());
    }
    let daddr = place(ags, file, extents, leaf)?;
    let (attrs, siblings) = read_leaf(ags, file, daddr)?;
    write_leaf(ags, file, daddr, &attrs, change(siblings))
}

/// Where a list is cut so that both halves have about as many bytes.
fn middle(attrs: &[Attr]) -> usize {
    let half = list_bytes(attrs) / 2;
    let mut bytes = 0;
    let at = attrs.iter().position(|attr| {
        bytes += entry_bytes(attr);
        bytes > half
    });
    at.unwrap_or_default().clamp(1, attrs.len().saturating_sub(1).max(1))
}

/// Splits a leaf whose attributes do not fit it any more. A leaf that is alone gets a node above
/// it, which takes its block.
pub(super) fn split(
    ags: &mut Ags<'_>,
    file: &mut File,
    mut extents: Extents,
    way: &Way,
    (back, forw): (DaBlock, DaBlock),
    attrs: &[Attr],
) -> Result<()> {
    let geometry = ags.disk.geometry;
    let (left, right) = attrs.split_at_checked(middle(attrs)).unwrap_or((attrs, &[]));
    if !fits_leaf(left, &geometry) || !fits_leaf(right, &geometry) || right.is_empty() {
        return Err(refused("a leaf that has to be split twice"));
    }
    let Some(((node, slot), above)) = way.nodes.split_last() else {
        let (first, first_at) = grow(ags, file, &mut extents)?;
        let (second, second_at) = grow(ags, file, &mut extents)?;
        write_leaf(ags, file, first_at, left, (NONE, second))?;
        write_leaf(ags, file, second_at, right, (first, NONE))?;
        let entries = [entry(left, first, &geometry), entry(right, second, &geometry)];
        write_node(ags, file, way.leaf, 1, &entries, (NONE, NONE))?;
        return file.set_extents(ags, ForkKind::Attr, extents);
    };
    let (new, new_at) = grow(ags, file, &mut extents)?;
    write_leaf(ags, file, way.leaf, left, (back, new))?;
    write_leaf(ags, file, new_at, right, (way.block, forw))?;
    relink(ags, file, &extents, forw, |(_, behind)| (new, behind))?;
    let parent = read_node(ags, file, *node)?;
    let mut entries: Vec<DaNodeEntry> = parent.entries().to_vec();
    if let Some(place) = entries.get_mut(*slot) {
        place.hashval.set(last_hash(left, &geometry));
    }
    entries.insert((slot + 1).min(entries.len()), entry(right, new, &geometry));
    write_node(ags, file, *node, parent.level(), &entries, parent.siblings())?;
    if slot + 2 == entries.len() {
        raise_keys(ags, file, above, last_hash(right, &geometry))?;
    }
    file.set_extents(ags, ForkKind::Attr, extents)
}

/// A leaf from which something was removed: where it is less than 37 % full, it is joined with a
/// leaf beside it if both leave a quarter free, and freed where it is empty. True where one leaf
/// alone is left.
pub(super) fn join(
    ags: &mut Ags<'_>,
    file: &mut File,
    mut extents: Extents,
    way: &Way,
    siblings: (DaBlock, DaBlock),
    attrs: &[Attr],
) -> Result<bool> {
    let geometry = ags.disk.geometry;
    let block_bytes = geometry.block_bytes as usize;
    let Some(((node, slot), above)) = way.nodes.split_last() else {
        return Ok(false);
    };
    if header_bytes(&geometry) + list_bytes(attrs) >= block_bytes * 37 / 100 {
        return Ok(false);
    }
    let parent = read_node(ags, file, *node)?;
    let mut entries: Vec<DaNodeEntry> = parent.entries().to_vec();
    let (back, forw) = siblings;
    if attrs.is_empty() {
        relink(ags, file, &extents, back, |(before, _)| (before, forw))?;
        relink(ags, file, &extents, forw, |(_, behind)| (back, behind))?;
        shrink(ags, file, &mut extents, way.block)?;
        entries.remove((*slot).min(entries.len().saturating_sub(1)));
    } else {
        let found = beside(ags, file, &extents, siblings, attrs)?;
        let Some((other, theirs, (before, behind))) = found else {
            return Ok(false);
        };
        let is_behind = other == forw;
        let other_slot = if is_behind { Some(slot + 1) } else { slot.checked_sub(1) };
        let other_slot =
            other_slot.filter(|at| entries.get(*at).is_some_and(|entry| entry.before.get() == other.get()));
        let Some(other_slot) = other_slot else {
            return Err(refused("leaves of two nodes that have to be joined"));
        };
        let (whole, outer) = if is_behind {
            ([attrs, &theirs].concat(), (back, behind))
        } else {
            ([&theirs, attrs].concat(), (before, forw))
        };
        let (kept, dropped) = (way.block.min(other), way.block.max(other));
        let at = place(ags, file, &extents, kept)?;
        write_leaf(ags, file, at, &whole, outer)?;
        relink(ags, file, &extents, outer.0, |(before, _)| (before, kept))?;
        relink(ags, file, &extents, outer.1, |(_, behind)| (kept, behind))?;
        shrink(ags, file, &mut extents, dropped)?;
        let first = other_slot.min(*slot);
        if let Some(place) = entries.get_mut(first) {
            *place = entry(&whole, kept, &geometry);
        }
        entries.remove((first + 1).min(entries.len().saturating_sub(1)));
    }
    let is_root = above.is_empty();
    let most = (block_bytes - header_bytes(&geometry)) / size_of::<DaNodeEntry>();
    if !is_root && entries.len() <= most / 2 {
        return Err(refused("nodes that have to be joined"));
    }
    if let ([last], true) = (&entries[..], is_root) {
        // The last leaf takes the place of the root.
        let last = DaBlock(last.before.get());
        let at = place(ags, file, &extents, last)?;
        let (attrs, _) = read_leaf(ags, file, at)?;
        write_leaf(ags, file, *node, &attrs, (NONE, NONE))?;
        shrink(ags, file, &mut extents, last)?;
        file.set_extents(ags, ForkKind::Attr, extents)?;
        return Ok(true);
    }
    write_node(ags, file, *node, parent.level(), &entries, parent.siblings())?;
    if let Some(last) = entries.last() {
        raise_keys(ags, file, above, last.hashval.get())?;
    }
    file.set_extents(ags, ForkKind::Attr, extents)?;
    Ok(false)
}

/// A leaf with its attributes and siblings.
type Beside = (DaBlock, Vec<Attr>, (DaBlock, DaBlock));

/// The leaf to join with: that of the smaller number first.
fn beside(
    ags: &Ags<'_>,
    file: &File,
    extents: &Extents,
    (back, forw): (DaBlock, DaBlock),
    attrs: &[Attr],
) -> Result<Option<Beside>> {
    let geometry = &ags.disk.geometry;
    let most = geometry.block_bytes as usize / 4 * 3;
    let order = if forw < back { [forw, back] } else { [back, forw] };
    for other in order.into_iter().filter(|other| *other != NONE) {
        let (theirs, siblings) = read_leaf(ags, file, place(ags, file, extents, other)?)?;
        if header_bytes(geometry) + list_bytes(attrs) + list_bytes(&theirs) <= most {
            return Ok(Some((other, theirs, siblings)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_in_the_middle_of_their_bytes() {
        let attr = |len: usize| Attr::new(0, &vec![b'a'; len], b"");
        assert_eq!(middle(&[attr(5), attr(5), attr(5), attr(5)]), 2);
        assert_eq!(middle(&[attr(200), attr(5), attr(5)]), 1);
        assert_eq!(middle(&[attr(5), attr(5), attr(200)]), 2);
        assert_eq!(middle(&[attr(5), attr(200)]), 1);
        assert_eq!(entry_bytes(&attr(5)), 8 + 8);
        assert_eq!(entry_bytes(&attr(6)), 8 + 12);
    }
}
