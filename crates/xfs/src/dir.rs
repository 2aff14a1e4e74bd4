//! Directories in all their forms: lookup by hash, listing by position.

use std::ops::ControlFlow;

use xfs_format::dir::{DataItem, DirBlock, DirDataBlock, DirEntry, DirLeafEntry, POSITION_BYTES, ShortformDir};
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::{Extent, FsBlock, Ino, Owner};

use crate::error::{Error, Result};
use crate::inode::Object;
use crate::volume::{Block, DirIndexBlock, Volume};

/// Bytes of a directory that are read at once where it is listed.
const LIST_READ_BYTES: u32 = 128 << 10;

fn read<B: Block>(volume: &Volume, dir: &Object, block: u64) -> Result<B> {
    let blocks = 1_u32 << volume.geometry().dir_block_log;
    let parts = dir.parts(volume, ForkKind::Data, block, blocks)?;
    volume.block_of_parts(&parts, Owner::Inode(dir.ino))
}

/// The root of the hash index; `None` in the block form, which has it in its block.
fn index(volume: &Volume, dir: &Object) -> Result<Option<DirIndexBlock>> {
    let leaf = u64::from(volume.geometry().dir_leaf_block().get());
    let is_there = dir.extent_from(volume, ForkKind::Data, leaf)?;
    if is_there.is_none_or(|extent| extent.offset.get() > leaf) {
        return Ok(None);
    }
    read(volume, dir, leaf).map(Some)
}

/// The entry's place among leaf entries of this hash.
fn with_hash(entries: &[DirLeafEntry], hash: u32) -> impl Iterator<Item = &DirLeafEntry> {
    let first = entries.partition_point(|entry| entry.hashval.get() < hash);
    let same = entries
        .iter()
        .skip(first)
        .take_while(move |entry| entry.hashval.get() == hash);
    same.filter(|entry| !entry.is_stale())
}

/// The inode behind a name.
pub(crate) fn lookup(volume: &Volume, dir: &Object, name: &[u8]) -> Result<Option<Ino>> {
    let geometry = volume.geometry();
    if let Some(Fork::Local(bytes)) = dir.fork(ForkKind::Data) {
        let list = ShortformDir::verify(bytes, geometry, dir.ino)?;
        let found = list.entries().find(|entry| geometry.is_same_dir_name(entry.name, name));
        return Ok(found.map(|entry| entry.ino));
    }
    let hash = geometry.dir_name_hash(name);
    match index(volume, dir)? {
        None => {
            let block: DirBlock = read(volume, dir, 0)?;
            for entry in with_hash(block.leaf_entries(), hash) {
                let offset = entry.address.get().saturating_mul(POSITION_BYTES);
                let found = block.entry_at(geometry, offset);
                let found = found.ok_or_else(|| dir.damaged("hash index: it leads to no entry"))?;
                if geometry.is_same_dir_name(found.name, name) {
                    return Ok(Some(found.ino));
                }
            }
            Ok(None)
        }
        Some(DirIndexBlock::Leaf1(leaf)) => among(volume, dir, with_hash(leaf.entries(), hash), name),
        Some(root) => lookup_in_nodes(volume, dir, root, hash, name),
    }
}

fn lookup_in_nodes(volume: &Volume, dir: &Object, root: DirIndexBlock, hash: u32, name: &[u8]) -> Result<Option<Ino>> {
    let damaged = || dir.damaged("hash index");
    let mut at = u64::from(volume.geometry().dir_leaf_block().get());
    let (mut block, mut level) = (root, None);
    let mut leaf = loop {
        let node = match block {
            DirIndexBlock::Leaf(leaf) => break leaf,
            DirIndexBlock::Leaf1(_) => return Err(damaged()),
            DirIndexBlock::Node(node) => node,
        };
        if level.is_some_and(|level| node.level() >= level) {
            return Err(damaged());
        }
        level = Some(node.level());
        let Some(child) = node.child_slot(hash).and_then(|slot| node.entries().get(slot)) else {
            return Ok(None);
        };
        at = child.before.get().into();
        block = read(volume, dir, at)?;
    };
    // Names of one hash may go on in the next leaves. As each leaf names the one before it, a circle
    // would lead back to the first one.
    let first = at;
    loop {
        if let Some(ino) = among(volume, dir, with_hash(leaf.entries(), hash), name)? {
            return Ok(Some(ino));
        }
        let goes_on = leaf.entries().last().is_none_or(|last| last.hashval.get() <= hash);
        let next = u64::from(leaf.siblings().1.get());
        if !goes_on || next == 0 {
            return Ok(None);
        }
        leaf = match read(volume, dir, next)? {
            DirIndexBlock::Leaf(leaf) if u64::from(leaf.siblings().0.get()) == at && next != first => leaf,
            _ => return Err(damaged()),
        };
        at = next;
    }
}

/// The entry with this name among those that leaf entries lead to.
fn among<'a>(
    volume: &Volume,
    dir: &Object,
    entries: impl Iterator<Item = &'a DirLeafEntry>,
    name: &[u8],
) -> Result<Option<Ino>> {
    let geometry = volume.geometry();
    for entry in entries {
        let position = u64::from(entry.address.get()) * u64::from(POSITION_BYTES);
        let block = (position / u64::from(geometry.dir_block_bytes)) << geometry.dir_block_log;
        let offset = (position % u64::from(geometry.dir_block_bytes)) as u32;
        let data: DirDataBlock = read(volume, dir, block)?;
        let found = data.entry_at(geometry, offset);
        let found = found.ok_or_else(|| dir.damaged("hash index: it leads to no entry"))?;
        if geometry.is_same_dir_name(found.name, name) {
            return Ok(Some(found.ino));
        }
    }
    Ok(None)
}

/// The directory above.
pub(crate) fn parent(volume: &Volume, dir: &Object) -> Result<Ino> {
    if let Some(Fork::Local(bytes)) = dir.fork(ForkKind::Data) {
        return Ok(ShortformDir::verify(bytes, volume.geometry(), dir.ino)?.parent);
    }
    lookup(volume, dir, b"..")?.ok_or_else(|| dir.damaged("directory without .."))
}

/// Reads the data blocks of an extent from one on, which will be visited one after the other.
fn read_ahead(volume: &Volume, dir: &Object, block: u64, extent: &Extent) {
    let geometry = volume.geometry();
    let end = extent.end().get().min(geometry.dir_leaf_block().get().into());
    let blocks = end.saturating_sub(block) >> geometry.dir_block_log;
    let at_once = u64::from(LIST_READ_BYTES / geometry.dir_block_bytes);
    let start = FsBlock(extent.start.get() + (block - extent.offset.get()));
    let count = u32::try_from(blocks.min(at_once)).unwrap_or(0);
    if let Some(daddr) = geometry.daddr(start) {
        volume.read_ahead::<DirDataBlock>(daddr, geometry.dir_block_bytes, count, Owner::Inode(dir.ino));
    }
}

/// Visits entries but "." and "..", from a position on, each with its position: its place in the
/// directory's data, in units of 8 bytes.
pub(crate) fn list(
    volume: &Volume,
    dir: &Object,
    from: u64,
    visit: &mut dyn FnMut(DirEntry<'_>, u64) -> ControlFlow<()>,
) -> Result<()> {
    let geometry = volume.geometry();
    let mut take = |entry: DirEntry<'_>, block_bytes: u64| {
        let position = (block_bytes + u64::from(entry.offset_bytes)) / u64::from(POSITION_BYTES);
        if position < from || entry.name == b"." || entry.name == b".." {
            return ControlFlow::Continue(());
        }
        visit(entry, position)
    };
    if let Some(Fork::Local(bytes)) = dir.fork(ForkKind::Data) {
        let list = ShortformDir::verify(bytes, geometry, dir.ino)?;
        let _ = list.entries().try_for_each(|entry| take(entry, 0));
        return Ok(());
    }
    let mut visit_items = |items: xfs_format::dir::DataItems<'_>, at: u64| {
        items.into_iter().try_for_each(|item| match item {
            DataItem::Entry(entry) => take(entry, at),
            DataItem::Free { .. } => ControlFlow::Continue(()),
        })
    };
    if index(volume, dir)?.is_none() {
        let block: DirBlock = read(volume, dir, 0)?;
        let _ = visit_items(block.items(geometry), 0);
        return Ok(());
    }
    let per_block = 1_u64 << geometry.dir_block_log;
    let mut block = from * u64::from(POSITION_BYTES) / u64::from(geometry.dir_block_bytes) * per_block;
    let end = u64::from(geometry.dir_leaf_block().get());
    while let Some(extent) = dir.extent_from(volume, ForkKind::Data, block)? {
        block = block.max(extent.offset.get());
        if block >= end {
            break;
        }
        read_ahead(volume, dir, block, &extent);
        let data: DirDataBlock = read(volume, dir, block)?;
        let at = block * u64::from(geometry.block_bytes);
        if visit_items(data.items(geometry), at).is_break() {
            break;
        }
        block += per_block;
    }
    Ok(())
}

/// What lies behind an entry, where its type is not known.
pub(crate) fn kind_of(volume: &Volume, entry: &DirEntry<'_>) -> std::result::Result<cowshed_vfs::FileKind, Error> {
    use cowshed_vfs::FileKind as Kind;
    use xfs_format::dir::FileType as Type;
    Ok(match entry.file_type {
        Some(Type::Regular) => Kind::Regular,
        Some(Type::Dir) => Kind::Directory,
        Some(Type::Char | Type::Whiteout) => Kind::CharDevice,
        Some(Type::Block) => Kind::BlockDevice,
        Some(Type::Fifo) => Kind::Fifo,
        Some(Type::Socket) => Kind::Socket,
        Some(Type::Symlink) => Kind::Symlink,
        Some(Type::Unknown) | None => Object::load(volume, entry.ino)?.kind,
    })
}
