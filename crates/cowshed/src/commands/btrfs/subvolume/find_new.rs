//! `subvolume find-new`: extents of a subvolume that were written since a transaction.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{BufWriter, Result as IoResult, Write as _, stdout};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Result, anyhow};
use btrfs_format::items::file_extent_type;
use btrfs_format::view::{self, FileExtentView};
use btrfs_format::{KeyType, ObjectId, TreeId};
use cowshed_vfs::{ItemKey, Search};

use super::super::place::{Images, Place};
use super::super::roots::items_of;
use super::super::say::{number, reason};
use crate::people::printable;

/// An extent of a file.
struct Found {
    inode: u64,
    offset: u64,
    len: u64,
    disk_start: u64,
    disk_offset: u64,
    generation: u64,
    flags: &'static str,
}

pub fn run(path: &Path, generation: &str) -> Result<u8> {
    let mut images = Images::to_read();
    let (place, id) = images.subvolume(path)?;
    let since = number(generation)?;
    let failed = |error| anyhow!("can't perform the search: {}", reason(&error));
    // Extents of dirty data have no items yet, and the marker is that of the last commit.
    place
        .commit()
        .map_err(|error| anyhow!("sync ioctl failed on '{}': {}", path.display(), reason(&error)))?;
    let marker = marker(&place, id).map_err(failed)?;
    let what = Search {
        tree: id,
        from: (ObjectId::FIRST_FREE.get(), 0, 0),
        to: (u64::MAX, u8::MAX, u64::MAX),
        since,
        until: u64::MAX,
    };
    let mut found = Vec::new();
    place
        .search_types(&what, &[KeyType::EXTENT_DATA], &mut |(inode, _, offset), bytes, _| {
            let extent = view::file_extent(bytes).map(|view| extent(inode, offset, view));
            found.extend(extent.filter(|extent| extent.generation >= since));
            ControlFlow::Continue(())
        })
        .map_err(failed)?;
    let mut out = BufWriter::new(stdout().lock());
    let mut names = Names::new(&place, id);
    for (n, extent) in found.iter().enumerate() {
        let name = names.of(&found[n..]).map_err(failed)?;
        writeln!(
            out,
            "inode {} file offset {} len {} disk start {} offset {} gen {} flags {} {}",
            extent.inode,
            extent.offset,
            extent.len,
            extent.disk_start,
            extent.disk_offset,
            extent.generation,
            extent.flags,
            printable(OsStr::from_bytes(name))
        )?;
    }
    writeln!(out, "transid marker was {marker}")?;
    out.flush()?;
    Ok(0)
}

/// The transaction in which the tree was written last.
fn marker(place: &Place, id: u64) -> IoResult<u64> {
    let what = items_of(TreeId::ROOT, ObjectId(id), KeyType::ROOT_ITEM);
    let generation = |_, bytes: &[u8]| view::root_item(bytes).map_or(0, |item| item.generation.get());
    Ok(place.first(&what, generation)?.unwrap_or(0))
}

fn extent(inode: u64, offset: u64, view: FileExtentView<'_>) -> Found {
    let (compression, ty, generation) = match view {
        FileExtentView::Inline { head, .. } => (head.compression, head.ty, head.generation),
        FileExtentView::Regular(extent) => (extent.compression, extent.ty, extent.generation),
    };
    let is_compressed = compression != 0;
    let flags = match (is_compressed, ty) {
        (true, file_extent_type::INLINE) => "COMPRESS|INLINE",
        (true, file_extent_type::PREALLOC) => "COMPRESS|PREALLOC",
        (true, _) => "COMPRESS",
        (false, file_extent_type::INLINE) => "INLINE",
        (false, file_extent_type::PREALLOC) => "PREALLOC",
        (false, _) => "NONE",
    };
    let (len, disk_start, disk_offset) = match view {
        FileExtentView::Inline { head, .. } => (head.ram_bytes.get(), 0, 0),
        FileExtentView::Regular(extent) => (extent.num_bytes.get(), extent.disk_bytenr.get(), extent.offset.get()),
    };
    Found {
        inode,
        offset,
        len,
        disk_start,
        disk_offset,
        generation: generation.get(),
        flags,
    }
}

/// Names of files are asked for together while their inode numbers differ by no more than this:
/// their items are in the same leaf then, or in the next one. For more distant files, leaves would
/// be read that nothing else needs.
const NEAR: u64 = 4;
/// Items of one search for names.
const AT_A_TIME: u32 = 24;

/// Paths of inodes, which are asked for in the order of their numbers.
struct Names<'a> {
    place: &'a Place,
    tree: u64,
    dirs: HashMap<u64, Vec<u8>>,
    /// First names of the inodes that were looked up together: of all that have a name, up to the
    /// last one here. `None`: the item was too long to be shown.
    ahead: BTreeMap<u64, Option<Name>>,
    last: (u64, Vec<u8>),
}

/// A directory, and a name in it.
type Name = (u64, Vec<u8>);

impl<'a> Names<'a> {
    fn new(place: &'a Place, tree: u64) -> Self {
        Names {
            place,
            tree,
            dirs: HashMap::new(),
            ahead: BTreeMap::new(),
            last: (0, Vec::new()),
        }
    }

    /// The path of the first one's inode by its first name; empty where it has none any more.
    fn of(&mut self, found: &[Found]) -> IoResult<&[u8]> {
        let inode = found[0].inode;
        if self.last.0 != inode {
            if self.ahead.last_key_value().is_none_or(|(last, _)| *last < inode) {
                self.look_ahead(found)?;
            }
            let name = match self.ahead.remove(&inode).flatten() {
                Some(name) => Some(name),
                // It has no name, or so many in one directory that their item was too long.
                None => {
                    let what = items_of(TreeId(self.tree), ObjectId(inode), KeyType::INODE_REF);
                    self.place.first(&what, first_name)?.flatten()
                }
            };
            let mut path = Vec::new();
            if let Some((dir, name)) = name {
                path = self.dir(dir)?.to_vec();
                path.extend(name);
            }
            self.last = (inode, path);
        }
        Ok(&self.last.1)
    }

    /// Looks up the first one's name, and those of the files near it.
    fn look_ahead(&mut self, found: &[Found]) -> IoResult<()> {
        self.ahead.clear();
        let first = found[0].inode;
        let is_near = |pair: &&[Found]| pair[1].inode.abs_diff(pair[0].inode) <= NEAR;
        let last = found.windows(2).take_while(is_near).take(AT_A_TIME as usize).last();
        let last = last.map_or(first, |pair| pair[1].inode);
        let what = Search {
            to: (last, KeyType::INODE_REF.0, u64::MAX),
            ..items_of(TreeId(self.tree), ObjectId(first), KeyType::INODE_REF)
        };
        let mut left = AT_A_TIME;
        self.place.search_by(&what, AT_A_TIME, &mut |key, bytes, _| {
            let is_name = KeyType(key.1) == KeyType::INODE_REF;
            if is_name {
                self.ahead.entry(key.0).or_insert_with(|| first_name(key, bytes));
            }
            left -= 1;
            match left == 0 || is_name && key.0 == last {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    }

    fn dir(&mut self, dir: u64) -> IoResult<&[u8]> {
        if !self.dirs.contains_key(&dir) {
            self.dirs.insert(dir, self.place.path_in(self.tree, dir)?);
        }
        Ok(&self.dirs[&dir])
    }
}

fn first_name((.., dir): ItemKey, bytes: &[u8]) -> Option<Name> {
    view::inode_refs(bytes).next().map(|(_, name)| (dir, name.to_vec()))
}
