//! What is built is read back the same, and no bytes make a reader panic: built blocks are damaged
//! at random, sealed (which passes the frame and reaches all checks of contents), and read.

use proptest::prelude::*;
use xfs_format::ag::{Agf, AgfSector, AgflSector, Agi, AgiSector};
use xfs_format::attr::{AttrLeafBlock, AttrNew, AttrValueView, ShortformAttr, build_shortform, shortform_entries};
use xfs_format::btree::*;
use xfs_format::da::{DaNodeEntry, DirNodeBlock};
use xfs_format::dir::*;
use xfs_format::inode::{ForkKind, InodeCore};
use xfs_format::log::{ByteOrder, LogCore, LogItem, Record, RecordHeader, operations};
use xfs_format::render;
use xfs_format::*;
use zerocopy::FromZeros;

fn geometry() -> Geometry {
    let mut sb = Superblock::new_zeroed();
    sb.magicnum.set(superblock::MAGIC);
    sb.blocksize.set(4096);
    sb.dblocks.set(81920);
    sb.uuid = [7; 16];
    sb.logstart.set(65543);
    sb.rootino.set(128);
    sb.rextsize.set(1);
    sb.agblocks.set(20480);
    sb.agcount.set(4);
    sb.logblocks.set(16384);
    sb.versionnum.set(0xb4a5);
    sb.sectsize.set(512);
    sb.inodesize.set(512);
    sb.inopblock.set(8);
    (sb.blocklog, sb.sectlog, sb.inodelog, sb.inopblog, sb.agblklog) = (12, 9, 9, 3, 15);
    sb.inoalignmt.set(8);
    sb.features2.set(0x18a);
    sb.features_ro_compat.set(0xf);
    sb.features_incompat.set(0xef);
    sb.spino_align.set(4);
    Geometry::new(&sb).unwrap()
}

const DADDR: Daddr = Daddr(20480 * 8 + 800);
const INO: Ino = Ino(1 << 18 | 131);

fn in_ag(g: &Geometry) -> Expect<'_> {
    Expect::in_ag(g, DADDR, AgNumber(1))
}
fn of_inode(g: &Geometry) -> Expect<'_> {
    Expect::of_inode(g, DADDR, INO)
}

/// Rising starts with a gap of at least the length between them.
fn ranges() -> impl Strategy<Value = Vec<(u32, u32)>> {
    prop::collection::vec((1_u32..20, 1_u32..20), 1..200).prop_map(|steps| {
        let mut at = 8;
        steps
            .into_iter()
            .map(|(gap, len)| {
                at += gap;
                let start = at;
                at += len;
                (start, len)
            })
            .collect()
    })
}

fn leaf_comes_back<K: TreeKind>(records: &[K::Record], expect: &Expect<'_>) -> Vec<u8> {
    let bytes = BtreeBlock::<K>::build(&BlockFields::Leaf(records), Siblings::none(), expect).unwrap();
    let sealed = BtreeBlock::<K>::seal(bytes, expect, Lsn::new(1, 2)).unwrap();
    let block = BtreeBlock::<K>::verify(sealed.bytes(), expect, Some(0)).unwrap();
    assert_eq!(block.records(), records);
    let again = BtreeBlock::<K>::build(&BlockFields::Leaf(block.records()), block.siblings(), expect).unwrap();
    let again = BtreeBlock::<K>::seal(again, expect, Lsn::new(1, 2)).unwrap();
    assert_eq!(again.bytes(), sealed.bytes());
    again.bytes().to_vec()
}

fn alloc(ranges: &[(u32, u32)]) -> Vec<AllocRecord> {
    let record = |(start, len): &(u32, u32)| AllocRecord {
        startblock: U32::new(*start),
        blockcount: U32::new(*len),
    };
    ranges.iter().map(record).collect()
}

fn dir_items(names: &[Vec<u8>], g: &Geometry) -> Vec<(u32, Vec<u8>, Ino)> {
    let mut at = data_header_bytes(g.is_v5());
    names
        .iter()
        .map(|name| {
            let offset = at as u32;
            at += entry_bytes(name.len(), g.has_ftype());
            (offset, name.clone(), INO)
        })
        .collect()
}

fn entry((offset_bytes, name, ino): &(u32, Vec<u8>, Ino)) -> DirEntry<'_> {
    DirEntry {
        offset_bytes: *offset_bytes,
        ino: *ino,
        name,
        file_type: Some(FileType::Regular),
    }
}

/// A block of the block form with these names.
fn dir_block(names: &[Vec<u8>], g: &Geometry) -> Option<Vec<u8>> {
    let entries = dir_items(names, g);
    let mut items: Vec<_> = entries.iter().map(|e| DataItem::Entry(entry(e))).collect();
    let leaf = leaf_entries(items.iter().copied(), 0, g);
    let used = entries.last().map_or(data_header_bytes(true), |(at, name, _)| {
        *at as usize + entry_bytes(name.len(), true)
    });
    let end = (g.dir_block_bytes as usize).checked_sub(8 + 8 * leaf.len())?;
    if end.checked_sub(used)? > 0 {
        items.push(DataItem::Free {
            offset_bytes: used as u32,
            len_bytes: (end - used) as u32,
        });
    }
    DirBlock::build(&items, &leaf, &of_inode(g))
}

fn attr_leaf(names: &[Vec<u8>], g: &Geometry) -> Option<Vec<u8>> {
    let mut attrs: Vec<_> = names
        .iter()
        .map(|name| AttrNew {
            flags: 2,
            name,
            value: if name.len() % 3 == 0 {
                AttrValueView::Remote {
                    block: DaBlock(5),
                    len_bytes: 9000,
                }
            } else {
                AttrValueView::Local(&name[1..])
            },
        })
        .collect();
    attrs.sort_by_key(|attr| attr.hash(g));
    AttrLeafBlock::build(&attrs, (DaBlock(0), DaBlock(3)), &of_inode(g))
}

fn names() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(b'a'..=b'z', 1..40), 1..40)
}

proptest! {
    #[test]
    fn leaves_of_trees_come_back(ranges in ranges()) {
        let g = geometry();
        let records = alloc(&ranges);
        leaf_comes_back::<Bno>(&records, &in_ag(&g));
        let mut by_size = records;
        by_size.sort_by_key(|r| (r.blockcount.get(), r.startblock.get()));
        leaf_comes_back::<Cnt>(&by_size, &in_ag(&g));
        let shared: Vec<_> = ranges
            .iter()
            .map(|(start, len)| RefcountRecord {
                startblock: U32::new(*start),
                blockcount: U32::new(*len),
                refcount: U32::new(len + 1),
            })
            .collect();
        leaf_comes_back::<Refcount>(&shared, &in_ag(&g));
        let owned: Vec<_> = ranges
            .iter()
            .take(100)
            .map(|(start, len)| RmapRecord {
                startblock: U32::new(*start),
                blockcount: U32::new(*len),
                owner: U64::new(INO.get()),
                offset: U64::new(u64::from(*start)),
            })
            .collect();
        leaf_comes_back::<Rmap>(&owned, &in_ag(&g));
        let extents: Vec<_> = ranges
            .iter()
            .map(|(start, len)| {
                let offset = FileBlock((*start).into());
                BmapRecord::new(&Extent { offset, start: FsBlock(2 << 15 | 100), blocks: *len, is_unwritten: len % 2 == 0 })
            })
            .collect();
        leaf_comes_back::<Bmap>(&extents, &of_inode(&g));
    }

    #[test]
    fn extents_are_packed_without_loss(offset in 0_u64..1 << 54, start in 0_u64..1 << 52, blocks in 0_u32..1 << 21, is_unwritten: bool) {
        let extent = Extent { offset: FileBlock(offset), start: FsBlock(start), blocks, is_unwritten };
        prop_assert!(extent.fits());
        prop_assert_eq!(BmapRecord::new(&extent).extent(), extent);
    }

    #[test]
    fn directories_and_attributes_come_back(names in names()) {
        let g = geometry();
        let expect = of_inode(&g);
        if let Some(bytes) = dir_block(&names, &g) {
            let block = DirBlock::seal(bytes, &expect, Lsn(9)).unwrap();
            let items: Vec<_> = block.items(&g).collect();
            let again = DirBlock::build(&items, block.leaf_entries(), &expect).unwrap();
            let sealed = DirBlock::seal(again, &expect, Lsn(9)).unwrap();
            prop_assert_eq!(sealed.bytes(), block.bytes());
        }
        if let Some(bytes) = attr_leaf(&names, &g) {
            let leaf = AttrLeafBlock::seal(bytes, &expect, Lsn(9)).unwrap();
            let entries: Vec<_> = leaf.entries().map(|e| AttrNew { flags: e.flags, name: e.name, value: e.value }).collect();
            let again = AttrLeafBlock::build(&entries, leaf.siblings(), &expect).unwrap();
            let sealed = AttrLeafBlock::seal(again, &expect, Lsn(9)).unwrap();
            prop_assert_eq!(sealed.bytes(), leaf.bytes());
        }
        let short: Vec<_> = names.iter().map(|name| ShortformAttr { flags: 4, name, value: &name[1..] }).collect();
        let bytes = build_shortform(&short).unwrap();
        prop_assert_eq!(shortform_entries(&bytes).collect::<Vec<_>>(), short);
    }

    #[test]
    fn records_of_the_log_come_back(body in prop::collection::vec(any::<u8>(), 1..70_000), cycle in 1_u32..1000) {
        let mut header = RecordHeader::new_zeroed();
        header.cycle.set(cycle);
        header.version.set(2);
        header.lsn.set(Lsn::new(cycle, 5).get());
        header.tail_lsn.set(Lsn::new(cycle, 5).get());
        header.fmt.set(1);
        header.size.set(256 << 10);
        let blocks = Record::pack(&header, &body).unwrap();
        let record = Record::unpack(&blocks).unwrap();
        record.header.verify(None, 1000).unwrap();
        prop_assert_eq!(&record.body, &body);
        prop_assert_eq!(Record::pack(&record.header, &record.body).unwrap(), blocks);
    }

    #[test]
    fn cores_of_the_log_come_back(bytes in prop::array::uniform32(any::<u8>()), little: bool, v3: bool) {
        let mut core = InodeCore::new_zeroed();
        core.version = if v3 { 3 } else { 2 };
        core.magic.set(0x494e);
        core.size.set(u64::from_be_bytes(bytes[..8].try_into().unwrap()));
        core.atime.set(u64::from_be_bytes(bytes[8..16].try_into().unwrap()));
        core.nextents.set(u32::from_be_bytes(bytes[16..20].try_into().unwrap()));
        if v3 {
            core.flags2.set(u64::from_be_bytes(bytes[24..].try_into().unwrap()));
        }
        let order = if little { ByteOrder::Little } else { ByteOrder::Big };
        let region = LogCore::region_of(&core, order);
        let read = LogCore { bytes: &region, order }.to_disk();
        prop_assert_eq!(LogCore::region_of(&read, order), region);
        prop_assert_eq!(read, core);
    }

    #[test]
    fn damaged_blocks_do_not_hurt(
        ranges in ranges(),
        names in names(),
        damage in prop::collection::vec((0_usize..4096, any::<u8>()), 0..12),
    ) {
        let g = geometry();
        let harm = |mut bytes: Vec<u8>| {
            for (at, byte) in &damage {
                let at = at % bytes.len();
                bytes[at] = *byte;
            }
            bytes
        };
        let lsn = Lsn(1);
        let leaf = leaf_comes_back::<Bno>(&alloc(&ranges), &in_ag(&g));
        if let Ok(block) = BtreeBlock::<Bno>::seal(harm(leaf), &in_ag(&g), lsn) {
            let _ = render::btree_report(&block).to_string();
            assert!(BtreeBlock::<Bno>::verify(block.bytes(), &in_ag(&g), None).is_ok());
        }
        if let Some(bytes) = dir_block(&names, &g)
            && let Ok(block) = DirBlock::seal(harm(bytes), &of_inode(&g), lsn)
        {
            let _ = render::dir_report(block.items(&g)).json();
        }
        if let Some(bytes) = attr_leaf(&names, &g)
            && let Ok(block) = AttrLeafBlock::seal(harm(bytes), &of_inode(&g), lsn)
        {
            let _ = render::attr_leaf_report(&block).to_string();
        }
        let entries: Vec<_> = ranges.iter().map(|(a, _)| DaNodeEntry { hashval: U32::new(*a), before: U32::new(*a) }).collect();
        let node = DirNodeBlock::build(1, &entries, (DaBlock(0), DaBlock(0)), &of_inode(&g)).unwrap();
        if let Ok(block) = DirNodeBlock::seal(harm(node), &of_inode(&g), lsn) {
            block.entries().iter().for_each(|e| assert!(block.child_slot(e.hashval.get()).is_some()));
        }
        let inode = Inode::build_free(5, &of_inode(&g)).unwrap();
        if let Ok(inode) = Inode::seal(harm(inode), &of_inode(&g), lsn) {
            let _ = (inode.fork(ForkKind::Data), inode.fork(ForkKind::Attr));
            let _ = render::inode_report(&inode, &g).to_string();
        }
        let _ = AgfSector::seal(harm(AgfSector::build(&Agf::new_zeroed(), &in_ag(&g))), &in_ag(&g), lsn);
        let _ = AgiSector::seal(harm(AgiSector::build(&Agi::new_zeroed(), &in_ag(&g))), &in_ag(&g), lsn);
        let _ = AgflSector::seal(harm(AgflSector::build(&[], &in_ag(&g))), &in_ag(&g), lsn);
    }

    #[test]
    fn random_bytes_do_not_hurt(bytes in prop::collection::vec(any::<u8>(), 0..2000), ty in 0x1230_u16..0x1252) {
        let g = geometry();
        let _ = Superblock::verify(&bytes);
        let _ = ShortformDir::verify(&bytes, &g, INO);
        if let Some(dir) = ShortformDir::read(&bytes, &g) {
            dir.entries().count();
        }
        shortform_entries(&bytes).count();
        BmdrRoot::read(&bytes);
        operations(&bytes, 100).count();
        let _ = Record::unpack(&bytes);
        let mut first = ty.to_le_bytes().to_vec();
        first.extend([3, 0]);
        first.extend(&bytes);
        let (a, b) = bytes.split_at(bytes.len() / 2);
        if let Ok(item) = LogItem::read(&[&first, a, b], ByteOrder::Little) {
            let _ = render::log_item_report(&item, ByteOrder::Little).json();
        }
    }
}
