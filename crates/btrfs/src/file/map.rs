//! The extents of a file as FIEMAP shows them: a walk over the items, leaf by leaf, nothing kept.
//! Where the items show a hole or a preallocated extent, the dirty ranges are asked, as the
//! kernel's btrfs does; dirty data over an extent that has data does not show. They are as they
//! were before the walk: what lands meanwhile would be seen in neither place.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use btrfs_format::view::{BackRef, ExtentView, keyed_back_ref};
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId};
use cowshed_vfs::{MapExtent, MapKind};

use crate::block::{round_down, round_up};
use crate::error::Result;
use crate::extent::{Extent, Kind, OnDisk, Walk};
use crate::files::Files;
use crate::object::Inode;
use btrfs_store::refs::RefName;

/// Shows what overlaps a range of a file to `take`, in order, until it breaks off. Extents come as
/// their items have them, not cut to the range and not merged; of a preallocated one that is dirty
/// in places, each part comes for itself, and only where it overlaps. `wants_shared`: find out what
/// is shared, which takes lookups for each extent.
pub(crate) fn map(
    files: &Files,
    inode: &Arc<Inode>,
    range: Range<u64>,
    wants_shared: bool,
    take: &mut dyn FnMut(&MapExtent) -> ControlFlow<()>,
) -> Result<()> {
    let _op = inode.lock.read();
    let size = inode.attr.lock().attr.size;
    let range = round_down(range.start)..range.end.min(i64::MAX as u64);
    let mut shares = wants_shared.then(|| Shares::new(files, inode)).transpose()?;
    let (mut from, mut taken) = (range.start, 0);
    while from < range.end {
        // The lock keeps writers out.
        let (dirty, to) = Dirty::of(inode, from..range.end);
        let part = Part {
            inode,
            dirty,
            range: from..to,
            cut: if to < range.end { to } else { u64::MAX },
            end: range.end.min(round_up(size)),
        };
        if part.map(&mut shares, &mut taken, take)?.is_break() {
            break;
        }
        from = to;
    }
    Ok(())
}

/// A part of a map, with what is in memory of it.
struct Part<'i> {
    inode: &'i Arc<Inode>,
    dirty: Dirty,
    range: Range<u64>,
    /// What is preallocated is told up to here: from there on it may be dirty.
    cut: u64,
    /// Where the file ends, or the map.
    end: u64,
}

impl Part<'_> {
    /// Up to `taken` the map is told already: an extent may reach from one part into the next.
    fn map(
        &self,
        shares: &mut Option<Shares<'_>>,
        taken: &mut u64,
        take: &mut dyn FnMut(&MapExtent) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let (dirty, range) = (&self.dirty, &self.range);
        let mut pos = range.start.max(*taken);
        let mut walk = Walk::new(&self.inode.tree, self.inode.ino, range.clone())?;
        while let Some(extent) = walk.next()? {
            if extent.end() <= *taken {
                continue;
            }
            let extent = extent.part(&(*taken..u64::MAX));
            if pending(dirty, pos..extent.start.min(range.end), take).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            pos = extent.end();
            let flow = match &extent.kind {
                Kind::Hole => pending(dirty, extent.start.max(range.start)..pos.min(range.end), take),
                Kind::Inline {
                    item,
                    ram_bytes,
                    compression,
                } => take(&MapExtent {
                    kind: MapKind::Inline,
                    start: 0,
                    len_bytes: *ram_bytes,
                    disk_addr: 0,
                    disk_bytes: inline_bytes(item),
                    offset_bytes: 0,
                    ram_bytes: *ram_bytes,
                    compression: *compression,
                    is_shared: false,
                }),
                Kind::Disk(disk) => {
                    let is_shared = shares.as_mut().map_or(Ok(false), |s| s.is_shared(&extent, disk))?;
                    on_disk(dirty, range.start..self.cut, &extent, disk, is_shared, take)
                }
            };
            if flow.is_break() {
                return Ok(flow);
            }
            *taken = if extent.is_data() { pos } else { pos.min(self.cut) };
        }
        let end = self.end.min(range.end);
        Ok(pending(dirty, pos..end.max(pos), take))
    }
}

/// Bytes of data in an inline item, as stored.
fn inline_bytes(item: &[u8]) -> u64 {
    match btrfs_format::view::file_extent(item) {
        Some(btrfs_format::view::FileExtentView::Inline { data, .. }) => data.len() as u64,
        Some(_) | None => 0,
    }
}

/// What is in memory only, in order, disjoint.
struct Dirty(Vec<Range<u64>>);

/// So many are looked at before what is on disk between them. A map that is asked for in pages
/// would look at all of them each time.
const DIRTY_MAX: usize = 1024;

impl Dirty {
    /// Of a range of the file, and how far they are known. An extent may begin long before the
    /// range that is asked for: the last one before it is there, too.
    fn of(inode: &Inode, range: Range<u64>) -> (Self, u64) {
        let state = inode.data.state.lock();
        let mut all: Vec<_> = state.last_pending(range.start).into_iter().collect();
        let mut pos = all.last().map_or(range.start, |last| last.end.max(range.start));
        while let Some(from) = state.next_pending(pos).filter(|from| *from < range.end) {
            if all.len() == DIRTY_MAX {
                return (Self(all), from);
            }
            pos = state.next_settled(from);
            all.push(from..pos);
        }
        (Self(all), range.end)
    }

    /// The first at or behind `pos`, cut off before it.
    fn next(&self, pos: u64) -> Option<Range<u64>> {
        let at = self.0.partition_point(|dirty| dirty.end <= pos);
        self.0.get(at).map(|dirty| dirty.start.max(pos)..dirty.end)
    }
}

/// Dirty ranges where there are no extents.
fn pending(dirty: &Dirty, range: Range<u64>, take: &mut dyn FnMut(&MapExtent) -> ControlFlow<()>) -> ControlFlow<()> {
    let mut pos = range.start;
    while let Some(found) = dirty.next(pos).filter(|found| found.start < range.end) {
        let dirty = found.start..found.end.min(range.end);
        take(&MapExtent {
            kind: MapKind::Delalloc,
            start: dirty.start,
            len_bytes: dirty.end - dirty.start,
            disk_addr: 0,
            disk_bytes: 0,
            offset_bytes: 0,
            ram_bytes: dirty.end - dirty.start,
            compression: 0,
            is_shared: false,
        })?;
        pos = dirty.end;
    }
    ControlFlow::Continue(())
}

/// An extent on disk; of a preallocated one, what is dirty comes as such, and parts outside of the
/// range do not come: a map that is asked for in pages would never get beyond them.
fn on_disk(
    dirty: &Dirty,
    Range { start: from, end: cut }: Range<u64>,
    extent: &Extent,
    disk: &OnDisk,
    is_shared: bool,
    take: &mut dyn FnMut(&MapExtent) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let part = |range: Range<u64>| MapExtent {
        kind: if disk.is_prealloc {
            MapKind::Unwritten
        } else {
            MapKind::Data
        },
        start: range.start,
        len_bytes: range.end - range.start,
        disk_addr: disk.addr.get(),
        disk_bytes: disk.len_bytes,
        offset_bytes: disk.offset_bytes + (range.start - extent.start),
        ram_bytes: disk.ram_bytes,
        compression: disk.compression,
        is_shared,
    };
    if !disk.is_prealloc {
        return take(&part(extent.range()));
    }
    let (mut pos, end) = (extent.start, extent.end().min(cut));
    while pos < end {
        let next = dirty.next(pos).filter(|next| next.start < end);
        let next = next.map_or(end..end, |next| next.start..next.end.min(end));
        if next.start > pos && next.start > from {
            take(&part(pos..next.start))?;
        }
        pos = next.end;
        if pos > from {
            pending(dirty, next.start..pos, take)?;
        }
    }
    ControlFlow::Continue(())
}

/// Finds out whether extents are shared; remembers the last one, because neighbours are often parts
/// of one.
struct Shares<'e> {
    files: &'e Files,
    inode: &'e Inode,
    last_snapshot: Generation,
    last: Option<(btrfs_format::LogicalAddr, bool)>,
}

impl<'e> Shares<'e> {
    fn new(files: &'e Files, inode: &'e Inode) -> Result<Self> {
        let key = Key::new(inode.tree.id().object_id(), KeyType::ROOT_ITEM, u64::MAX);
        let root = files.store().forest().root_tree().floor_same_type(&key)?;
        let root = root.and_then(|(_, item)| btrfs_format::view::root_item(&item));
        Ok(Self {
            files,
            inode,
            last_snapshot: root.map_or(Generation(0), |root| root.last_snapshot.into()),
            last: None,
        })
    }

    fn is_shared(&mut self, extent: &Extent, disk: &OnDisk) -> Result<bool> {
        if let Some((addr, is_shared)) = self.last
            && addr == disk.addr
        {
            return Ok(is_shared);
        }
        let is_shared = self.has_other_references(disk)?
            || (extent.generation <= self.last_snapshot && self.lies_in_shared_leaf(extent.start)?);
        self.last = Some((disk.addr, is_shared));
        Ok(is_shared)
    }

    /// More than one reference by name, on disk and pending: places in other files, or elsewhere in
    /// this one.
    fn has_other_references(&self, disk: &OnDisk) -> Result<bool> {
        let mut refs = self.files.store().txn().pending_references(disk.addr);
        let extents = self.files.store().forest().require(TreeId::EXTENT)?;
        let object = ObjectId(disk.addr.get());
        let key = Key::new(object, KeyType::EXTENT_ITEM, disk.len_bytes);
        if let Some(item) = extents.get(&key)?
            && let Some(view) = ExtentView::new(&key, &item)
        {
            view.inline_refs().for_each(|found| add(&mut refs, found));
        }
        let (from, to) = (KeyType::EXTENT_OWNER_REF, KeyType::SHARED_DATA_REF);
        let mut keyed = extents.cursor(Key::new(object, from, 0), Key::new(object, to, u64::MAX));
        // Two are enough to know.
        while refs.iter().filter(|(_, count)| *count > 0).count() < 2 {
            let Some((key, item)) = keyed.next()? else {
                return Ok(false);
            };
            if let Some(found) = keyed_back_ref(&key, &item) {
                add(&mut refs, found);
            }
        }
        Ok(true)
    }

    /// A snapshot has the leaf, too, or a node above it.
    fn lies_in_shared_leaf(&self, start: u64) -> Result<bool> {
        let extents = self.files.store().forest().require(TreeId::EXTENT)?;
        let path = self
            .inode
            .tree
            .path(&crate::extent::extent_key(self.inode.ino, start))?;
        for (addr, level) in path {
            let object = ObjectId(addr.get());
            let skinny = Key::new(object, KeyType::METADATA_ITEM, level.into());
            let (key, item) = match extents.get(&skinny)? {
                Some(item) => (skinny, Some(item)),
                None => {
                    let key = Key::new(
                        object,
                        KeyType::EXTENT_ITEM,
                        self.files.store().nodes().nodesize_bytes() as u64,
                    );
                    (key, extents.get(&key)?)
                }
            };
            let view = item.as_ref().and_then(|item| ExtentView::new(&key, item));
            if view.is_some_and(|view| view.head.refs.get() > 1) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn add(refs: &mut Vec<(RefName, i64)>, found: BackRef) {
    if let Some((name, count)) = RefName::from_disk(found) {
        match refs.iter_mut().find(|(known, _)| *known == name) {
            Some((_, n)) => *n += i64::from(count),
            None => refs.push((name, count.into())),
        }
    }
}
