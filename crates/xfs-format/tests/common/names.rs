//! Directories, symlinks and attributes of a volume: each block is verified, and encoded once more.

use xfs_format::attr::{
    AttrLeafBlock, AttrNew, AttrRemoteBlock, AttrValueView, ParentPointer, attr_flags, build_shortform as build_attrs,
    remote_blocks, shortform_entries,
};
use xfs_format::da::{AttrNodeBlock, DirNodeBlock};
use xfs_format::dir::{
    DataItem, DirBlock, DirDataBlock, DirFreeBlock, DirLeaf1Block, DirLeafEntry, DirLeafNBlock, ShortformDir,
    build_shortform, leaf_entries,
};
use xfs_format::symlink::SymlinkBlock;
use xfs_format::{Expect, Extent, Geometry, Ino, Lsn};

use super::{Found, Volume};

pub fn shortform(volume: &Volume, ino: Ino, bytes: &[u8], found: &mut Found) {
    let g = &volume.geometry;
    let dir = ShortformDir::verify(bytes, g, ino).unwrap_or_else(|e| panic!("{e}"));
    let entries: Vec<_> = dir.entries().collect();
    assert_eq!(entries.len(), dir.len());
    assert_eq!(build_shortform(dir.parent, &entries, g).unwrap(), bytes);
    found.note("shortform directory");
    if entries.len() > 3 {
        found.note("shortform directory with entries");
    }
}

fn note_items(items: &[DataItem<'_>], found: &mut Found) {
    for item in items {
        found.note(match item {
            DataItem::Entry(_) => "entry",
            DataItem::Free { .. } => "free span",
        });
    }
}

pub fn dir(volume: &Volume, ino: Ino, extents: &[Extent], size: u64, found: &mut Found) {
    let g = &volume.geometry;
    let per_block = 1 << g.dir_block_log;
    let mut hashes = Vec::new();
    let mut leaves: Vec<DirLeafEntry> = Vec::new();
    let mut blocks = extents
        .iter()
        .flat_map(|e| e.offset.get()..e.end().get())
        .collect::<Vec<_>>();
    blocks.retain(|block| block % per_block == 0);
    for block in blocks {
        let block = u32::try_from(block).unwrap();
        let (daddr, bytes) = volume.read_file(extents, block, per_block as u32);
        let expect = Expect::of_inode(g, daddr, ino);
        if block < g.dir_leaf_block().get() {
            if size == u64::from(g.dir_block_bytes)
                && extents.iter().all(|e| e.offset.get() < g.dir_leaf_block().get().into())
            {
                one_block(&expect, bytes, found);
                return;
            }
            let data = DirDataBlock::verify(bytes, &expect).unwrap_or_else(|e| panic!("{e}"));
            let items: Vec<_> = data.items(g).collect();
            let again = DirDataBlock::build(&items, &expect).expect("it fits");
            let again = DirDataBlock::seal(again, &expect, Lsn(0)).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(again.items(g).collect::<Vec<_>>(), items);
            hashes.extend(leaf_entries(items.iter().copied(), block / per_block as u32, g));
            note_items(&items, found);
            found.note("directory data");
        } else if block < g.dir_free_block().get() {
            leaves.extend(dir_leaf(&expect, bytes, found));
        } else {
            let free = DirFreeBlock::verify(bytes, &expect).unwrap_or_else(|e| panic!("{e}"));
            let again = DirFreeBlock::build(free.first_data_block(), free.bests(), &expect).unwrap();
            let again = DirFreeBlock::seal(again, &expect, Lsn(0)).unwrap();
            assert_eq!(
                (again.first_data_block(), again.bests()),
                (free.first_data_block(), free.bests())
            );
            found.note("directory free index");
        }
    }
    let order = |e: &DirLeafEntry| (e.hashval.get(), e.address.get());
    leaves.retain(|e| !e.is_stale());
    leaves.sort_by_key(order);
    hashes.sort_by_key(order);
    assert!(
        leaves == hashes,
        "leaves of directory {ino} are not those of its entries"
    );
}

fn one_block(expect: &Expect<'_>, bytes: Vec<u8>, found: &mut Found) {
    let g = expect.geometry;
    let block = DirBlock::verify(bytes, expect).unwrap_or_else(|e| panic!("{e}"));
    let items: Vec<_> = block.items(g).collect();
    let again = DirBlock::build(&items, block.leaf_entries(), expect).expect("it fits");
    let again = DirBlock::seal(again, expect, Lsn(0)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again.items(g).collect::<Vec<_>>(), items);
    let mut own: Vec<_> = block.leaf_entries().iter().copied().filter(|e| !e.is_stale()).collect();
    own.sort_by_key(|e| (e.hashval.get(), e.address.get()));
    assert_eq!(own, leaf_entries(items.iter().copied(), 0, g));
    note_items(&items, found);
    found.note("directory block");
}

fn magic16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[8], bytes[9]])
}

fn dir_leaf(expect: &Expect<'_>, bytes: Vec<u8>, found: &mut Found) -> Vec<DirLeafEntry> {
    match magic16(&bytes) {
        0xd2f1 | 0x3df1 => {
            let leaf = DirLeaf1Block::verify(bytes, expect).unwrap_or_else(|e| panic!("{e}"));
            let again = DirLeaf1Block::build(leaf.entries(), leaf.bests(), expect).unwrap();
            let again = DirLeaf1Block::seal(again, expect, Lsn(0)).unwrap();
            assert_eq!((again.entries(), again.bests()), (leaf.entries(), leaf.bests()));
            found.note("directory leaf");
            leaf.entries().to_vec()
        }
        0xd2ff | 0x3dff => {
            let leaf = DirLeafNBlock::verify(bytes, expect).unwrap_or_else(|e| panic!("{e}"));
            let again = DirLeafNBlock::build(leaf.entries(), leaf.siblings(), expect).unwrap();
            let again = DirLeafNBlock::seal(again, expect, Lsn(0)).unwrap();
            assert_eq!((again.entries(), again.siblings()), (leaf.entries(), leaf.siblings()));
            found.note("directory leaf of several");
            leaf.entries().to_vec()
        }
        _ => {
            let node = DirNodeBlock::verify(bytes, expect).unwrap_or_else(|e| panic!("{e}"));
            let again = DirNodeBlock::build(node.level(), node.entries(), node.siblings(), expect).unwrap();
            let again = DirNodeBlock::seal(again, expect, Lsn(0)).unwrap();
            assert_eq!((again.entries(), again.level()), (node.entries(), node.level()));
            assert_eq!(again.siblings(), node.siblings());
            found.note("directory node");
            Vec::new()
        }
    }
}

pub fn symlink(volume: &Volume, ino: Ino, extents: &[Extent], size: u64, found: &mut Found) {
    let mut target = Vec::new();
    for extent in extents {
        let (daddr, bytes) = volume.read_file(extents, extent.offset.get() as u32, extent.blocks);
        let expect = Expect::of_inode(&volume.geometry, daddr, ino);
        let part = SymlinkBlock::verify(bytes, &expect).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(part.offset_bytes().unwrap_or(target.len() as u32), target.len() as u32);
        let again = SymlinkBlock::build(target.len() as u32, part.part(), extent.blocks, &expect).unwrap();
        let again = SymlinkBlock::seal(again, &expect, Lsn(0)).unwrap();
        assert_eq!(again.part(), part.part());
        target.extend_from_slice(part.part());
        found.note("symlink block");
    }
    assert!(target.len() as u64 >= size);
    assert!(target[..size as usize].iter().all(|byte| *byte == b'a'), "{target:?}");
}

pub fn short_attrs(bytes: &[u8], geometry: &Geometry, found: &mut Found) {
    let attrs: Vec<_> = shortform_entries(bytes).collect();
    assert_eq!(build_attrs(&attrs).unwrap()[4..], bytes[4..]);
    for attr in &attrs {
        if attr.flags & attr_flags::PARENT != 0 {
            let parent = ParentPointer::read(attr.value).unwrap();
            assert!(geometry.is_inode(parent.ino));
            found.note("parent pointer");
        }
    }
    found.note("shortform attributes");
}

pub fn attrs(volume: &Volume, ino: Ino, extents: &[Extent], found: &mut Found) {
    let g = &volume.geometry;
    // A fork may be there and hold nothing.
    let mut next = if extents.is_empty() { vec![] } else { vec![0] };
    while let Some(block) = next.pop() {
        let (daddr, bytes) = volume.read_file(extents, block, 1);
        let expect = Expect::of_inode(g, daddr, ino);
        if matches!(magic16(&bytes), 0xfebe | 0x3ebe) {
            let node = AttrNodeBlock::verify(bytes, &expect).unwrap_or_else(|e| panic!("{e}"));
            let again = AttrNodeBlock::build(node.level(), node.entries(), node.siblings(), &expect).unwrap();
            let again = AttrNodeBlock::seal(again, &expect, Lsn(0)).unwrap();
            assert_eq!(again.entries(), node.entries());
            next.extend(node.entries().iter().map(|e| e.before.get()));
            found.note("attribute node");
            continue;
        }
        let leaf = AttrLeafBlock::verify(bytes, &expect).unwrap_or_else(|e| panic!("{e}"));
        let entries: Vec<_> = leaf.entries().collect();
        assert_eq!(entries.len(), leaf.heads().len());
        let news: Vec<_> = entries
            .iter()
            .map(|e| AttrNew {
                flags: e.flags,
                name: e.name,
                value: e.value,
            })
            .collect();
        let again = AttrLeafBlock::build(&news, leaf.siblings(), &expect).expect("it fits");
        let again = AttrLeafBlock::seal(again, &expect, Lsn(0)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(again.entries().collect::<Vec<_>>(), entries);
        found.note("attribute leaf");
        for entry in &entries {
            if entry.flags & attr_flags::PARENT != 0 {
                found.note("parent pointer");
            }
            if let AttrValueView::Remote { block, len_bytes } = entry.value {
                remote_value(volume, ino, extents, block.get(), len_bytes, found);
            }
        }
    }
}

fn remote_value(volume: &Volume, ino: Ino, extents: &[Extent], first: u32, len: u32, found: &mut Found) {
    let g = &volume.geometry;
    let mut value = Vec::new();
    for block in first..first + remote_blocks(len, g) {
        let (daddr, bytes) = volume.read_file(extents, block, 1);
        let expect = Expect::of_inode(g, daddr, ino);
        let part = AttrRemoteBlock::verify(bytes, &expect).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(part.offset_bytes().unwrap_or(value.len() as u32), value.len() as u32);
        let again = AttrRemoteBlock::build(value.len() as u32, part.part(), &expect).unwrap();
        let again = AttrRemoteBlock::seal(again, &expect, Lsn::NULL).unwrap();
        assert_eq!(again.part(), part.part());
        value.extend_from_slice(part.part());
        found.note("remote value block");
    }
    assert!(value.len() >= len as usize);
    assert!(value[..len as usize].iter().all(|byte| *byte == b'v'));
}
