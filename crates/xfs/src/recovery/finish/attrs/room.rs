//! Room for attributes in an inode that has none: the data fork gets shorter, and moves to blocks
//! where it does not fit any more.

use xfs_format::attr::{AttrShortformEntry, AttrShortformHead};
use xfs_format::dir::{
    DataItem, DirBlock, DirBlockTail, DirEntry, DirLeafEntry, FileType, ShortformDir, data_header_bytes, entry_bytes,
    leaf_entries,
};
use xfs_format::inode::{Fork, ForkFormat, ForkKind, mode};
use xfs_format::symlink::SymlinkBlock;
use xfs_format::{Daddr, Expect, Extent, FileBlock, Geometry, Ino};

use super::list::{Attr, Value};
use crate::error::Result;
use crate::recovery::finish::files::File;
use crate::recovery::finish::groups::Ags;

/// Makes room for a first attribute.
pub(super) fn make(ags: &mut Ags<'_>, file: &mut File, attr: &Attr) -> Result<()> {
    // Watched on Linux 6.18: of the value's length the low 8 bits count here.
    let value_bytes = match &attr.value {
        Value::Local(value) => value.len() & usize::from(u8::MAX),
        Value::Remote { .. } => 0,
    };
    let bytes = size_of::<AttrShortformHead>() + size_of::<AttrShortformEntry>() + attr.name.len() + value_bytes;
    file.core.forkoff = file.new_attr_offset_for(bytes);
    file.core.aformat = ForkFormat::Extents.to_raw();
    ags.has_new_attr_fork = true;
    let room = file.room_bytes(ForkKind::Data);
    match file.fork(ForkKind::Data) {
        Some(Fork::Btree(_)) => file.refit_root(ags),
        Some(Fork::Extents(records)) if size_of_val(records) > room => {
            let extents = file.extents(ags, ForkKind::Data)?;
            file.set_extents(ags, ForkKind::Data, extents)
        }
        Some(Fork::Local(bytes)) if bytes.len() > room => {
            let bytes = bytes.to_vec();
            if file.core.file_type() == mode::DIR {
                move_directory(ags, file, &bytes)
            } else {
                move_symlink(ags, file, &bytes)
            }
        }
        _ => file.store_data(ags),
    }
}

/// Takes blocks for the data of an inode that had it inside, and gives their places.
fn take(ags: &mut Ags<'_>, file: &mut File, blocks: u32) -> Result<Vec<Daddr>> {
    let geometry = ags.disk.geometry;
    let mut extents = file.extents(ags, ForkKind::Data)?;
    let mut places = Vec::new();
    while (places.len() as u32) < blocks {
        let at = places.len() as u32;
        let (start, blocks) = ags.take_run(file.group(ags), blocks - at)?;
        let extent = Extent {
            offset: FileBlock(at.into()),
            start,
            blocks,
            is_unwritten: false,
        };
        file.map_new(ags, ForkKind::Data, &extent)?;
        if !extents.list.put(extent) {
            return Err(ags.disk.broken("blocks of a fork", at, "a hole of the fork"));
        }
        let first = geometry.daddr(start).map_or(0, Daddr::get);
        let sectors = u64::from(geometry.block_bytes / 512);
        places.extend((0..u64::from(blocks)).map(|block| Daddr(first + block * sectors)));
    }
    file.set_extents(ags, ForkKind::Data, extents)?;
    Ok(places)
}

fn move_symlink(ags: &mut Ags<'_>, file: &mut File, target: &[u8]) -> Result<()> {
    let places = take(ags, file, 1)?;
    let Some(daddr) = places.first() else { return Ok(()) };
    let expect = Expect::of_inode(&ags.disk.geometry, *daddr, file.ino);
    let bytes = SymlinkBlock::build(0, target, 1, &expect)
        .ok_or_else(|| ags.disk.broken("symlink", target.len(), "one that fits a block"))?;
    let block = SymlinkBlock::seal(bytes, &expect, ags.disk.lsn)?;
    ags.disk.write(*daddr, block.bytes())
}

/// Entries keep their places.
fn move_directory(ags: &mut Ags<'_>, file: &mut File, bytes: &[u8]) -> Result<()> {
    let geometry = ags.disk.geometry;
    let dir = ShortformDir::verify(bytes, &geometry, file.ino)?;
    file.core.size.set(geometry.dir_block_bytes.into());
    let places = take(ags, file, geometry.dir_block_bytes / geometry.block_bytes)?;
    let Some(daddr) = places.first() else { return Ok(()) };
    let expect = Expect::of_inode(&geometry, *daddr, file.ino);
    let items = items(&dir, file.ino, &geometry);
    let leaf = leaf_entries(items.iter().copied(), 0, &geometry);
    let block = DirBlock::build(&items, &leaf, &expect)
        .ok_or_else(|| ags.disk.broken("directory", dir.len(), "entries that fit a block"))?;
    let block = DirBlock::seal(block, &expect, ags.disk.lsn)?;
    for (place, part) in places.iter().zip(block.bytes().chunks(geometry.block_bytes as usize)) {
        ags.disk.write(*place, part)?;
    }
    Ok(())
}

/// What the block of a directory holds: its own entries, those that it had, and free space between
/// them.
fn items<'a>(dir: &ShortformDir<'a>, ino: Ino, geometry: &Geometry) -> Vec<DataItem<'a>> {
    let len_of = |name: &[u8]| entry_bytes(name.len(), geometry.has_ftype()) as u32;
    let first = data_header_bytes(geometry.is_v5()) as u32;
    let own = |name: &'static [u8], ino, offset_bytes| DirEntry {
        offset_bytes,
        ino,
        name,
        file_type: geometry.has_ftype().then_some(FileType::Dir),
    };
    let own = [own(b".", ino, first), own(b"..", dir.parent, first + len_of(b"."))];
    let (mut items, mut at) = (Vec::new(), first);
    let fill = |items: &mut Vec<DataItem<'a>>, at: u32, to: u32| {
        if at < to {
            items.push(DataItem::Free {
                offset_bytes: at,
                len_bytes: to - at,
            });
        }
    };
    for entry in own.into_iter().chain(dir.entries()) {
        fill(&mut items, at, entry.offset_bytes);
        at = entry.offset_bytes + len_of(entry.name);
        items.push(DataItem::Entry(entry));
    }
    let leaf_bytes = (dir.len() + 2) * size_of::<DirLeafEntry>() + size_of::<DirBlockTail>();
    fill(
        &mut items,
        at,
        geometry.dir_block_bytes.saturating_sub(leaf_bytes as u32),
    );
    items
}
