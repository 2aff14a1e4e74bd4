//! Where the receiver has an extent already: in a subvolume that it was sent before, or in a file
//! of this stream.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use btrfs_format::items::FileExtent;
use btrfs_format::items::file_extent_type::REG;
use btrfs_format::view::{self, ExtentView};
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId};
use btrfs_store::tree::Run;

use super::side::Side;
use crate::diff::changes::Extents;
use crate::error::Result;
use crate::extent::OnDisk;
use crate::files::Files;

/// Extents of this stream that are remembered, of about 80 bytes each. Data that is shared with one
/// that was forgotten is sent.
const OWN_EXTENTS_MAX: usize = 1 << 22;
/// Places that are remembered of an extent.
const SPOTS_MAX: usize = 8;

/// Which subvolume an extent is found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The one that is sent.
    Own,
    /// One of the sources, by its place in the list.
    Source(usize),
}

/// A part of an extent, and a file that has it.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) owner: Owner,
    pub(super) ino: ObjectId,
    /// Where in the file it begins, in bytes.
    pub(super) pos: u64,
    /// Which part of the extent.
    part: Range<u64>,
}

impl Spot {
    /// Where in the file this offset of the extent is, and how many bytes go on from there.
    pub(super) fn at(&self, offset: u64) -> Option<(u64, u64)> {
        self.part
            .contains(&offset)
            .then(|| (self.pos + (offset - self.part.start), self.part.end - offset))
    }
}

/// See the module.
pub(super) struct CloneIndex {
    sources: Vec<Side>,
    /// Extents that came, and might be in a source.
    wanted: BTreeSet<u64>,
    spots: HashMap<u64, Vec<Spot>>,
    own: usize,
}

impl CloneIndex {
    pub(super) fn new(sources: Vec<Side>) -> Self {
        Self {
            sources,
            wanted: BTreeSet::new(),
            spots: HashMap::new(),
            own: 0,
        }
    }

    pub(super) fn source(&self, index: usize) -> &Side {
        &self.sources[index]
    }

    /// Finds the extents that came in the sources: those that are as old as these. Where there is
    /// none, no source is looked through.
    pub(super) fn load(&mut self, files: &Files) -> Result<()> {
        let newest = self.sources.iter().map(|side| side.newest).max();
        let Some(newest) = newest else { return Ok(()) };
        let mut old = BTreeSet::new();
        for addr in std::mem::take(&mut self.wanted) {
            if is_as_old(files, addr, newest)? {
                old.insert(addr);
            }
        }
        if old.is_empty() {
            return Ok(());
        }
        for (index, side) in self.sources.iter().enumerate() {
            let mut cursor = side.subvol.tree.cursor(Key::MIN, Key::MAX);
            while let Some(run) = cursor.next_run()? {
                // Trees of read-only subvolumes have nothing pending.
                let Run::Leaf { block, slots } = run else { continue };
                for slot in slots {
                    let (key, data) = block.item(slot);
                    let extent = view::fixed::<FileExtent>(data)
                        .filter(|extent| key.ty == KeyType::EXTENT_DATA && extent.ty == REG);
                    let Some(extent) = extent.filter(|extent| old.contains(&extent.disk_bytenr.get())) else {
                        continue;
                    };
                    let start = extent.offset.get();
                    let spot = Spot {
                        owner: Owner::Source(index),
                        ino: key.objectid,
                        pos: key.offset,
                        part: start..start.saturating_add(extent.num_bytes.get()),
                    };
                    let spots = self.spots.entry(extent.disk_bytenr.get()).or_default();
                    if spots.len() < SPOTS_MAX {
                        spots.push(spot);
                    }
                }
            }
        }
        Ok(())
    }

    /// The receiver has this part of an extent in a file of this stream.
    pub(super) fn note(&mut self, ino: ObjectId, pos: u64, disk: &OnDisk, len_bytes: u64) {
        if self.own >= OWN_EXTENTS_MAX {
            return;
        }
        let spots = self.spots.entry(disk.addr.get()).or_default();
        if spots.len() < SPOTS_MAX {
            self.own += 1;
            spots.push(Spot {
                owner: Owner::Own,
                ino,
                pos,
                part: disk.offset_bytes..disk.offset_bytes + len_bytes,
            });
        }
    }

    /// Files that have the part of an extent that begins at an offset.
    pub(super) fn find(&self, disk: &OnDisk) -> impl Iterator<Item = &Spot> {
        let offset = disk.offset_bytes;
        let spots = self.spots.get(&disk.addr.get()).into_iter().flatten();
        spots.filter(move |spot| spot.part.contains(&offset))
    }
}

impl Extents for CloneIndex {
    fn came(&mut self, addr: u64) {
        if !self.sources.is_empty() {
            self.wanted.insert(addr);
        }
    }

    /// The file is one of the parent, which is the last of the sources.
    fn had(&mut self, ino: ObjectId, pos: u64, extent: &FileExtent) {
        let Some(parent) = self.sources.len().checked_sub(1).filter(|_| extent.ty == REG) else {
            return;
        };
        let start = extent.offset.get();
        let spots = self.spots.entry(extent.disk_bytenr.get()).or_default();
        if spots.len() < SPOTS_MAX {
            spots.push(Spot {
                owner: Owner::Source(parent),
                ino,
                pos,
                part: start..start.saturating_add(extent.num_bytes.get()),
            });
        }
    }
}

/// Was the extent made in this transaction or before? Where that is not known, it was not: then its
/// data is sent.
fn is_as_old(files: &Files, addr: u64, newest: Generation) -> Result<bool> {
    let Some(tree) = files.store().forest().load(TreeId::EXTENT)? else {
        return Ok(false);
    };
    let from = Key::new(ObjectId(addr), KeyType::EXTENT_ITEM, 0);
    let Ok(found) = tree.cursor_type(from).next() else {
        return Ok(false);
    };
    Ok(found.is_some_and(|(key, item)| {
        ExtentView::new(&key, &item).is_some_and(|view| view.head.generation.get() <= newest.get())
    }))
}
