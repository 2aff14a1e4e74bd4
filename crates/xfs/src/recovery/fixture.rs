//! A volume in memory for unit tests: four groups, nothing on it.

use std::sync::Arc;

use cowshed_device::MemDevice;
use cowshed_device_sim::CountingDevice;
use xfs_format::btree::{
    BlockFields, Bmap, BmapKey, BmapRecord, BmdrRoot, BtreeBlock, Siblings, TreeKind as _, build_bmdr_root,
};
use xfs_format::inode::{ForkFormat, INODE_MAGIC, InodeCore, mode};
use xfs_format::{Expect, Extent, FileBlock, FsBlock, Geometry, Ino, Inode, Lsn, Superblock, U64, superblock};
use zerocopy::FromZeros as _;

use super::disk::Disk;

/// The shape that mkfs.xfs gives 320 MiB.
pub(super) fn geometry() -> Geometry {
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

pub(super) fn disk() -> Disk {
    counted_disk().0
}

/// The same, and its device, which counts reads.
pub(super) fn counted_disk() -> (Disk, Arc<CountingDevice>) {
    let geometry = geometry();
    let memory = MemDevice::new("volume", geometry.blocks * u64::from(geometry.block_bytes));
    let device = Arc::new(CountingDevice::new(Arc::new(memory)));
    (Disk::new(device.clone(), geometry, 1 << 20), device)
}

/// Puts a block of a fork's tree on it.
pub(super) fn put_bmap(disk: &mut Disk, ino: Ino, block: u64, fields: &BlockFields<'_, Bmap>) {
    let geometry = geometry();
    let daddr = geometry.daddr(FsBlock(block)).unwrap();
    let expect = Expect::of_inode(&geometry, daddr, ino);
    let none = Siblings {
        left: U64::new(FsBlock::NULL),
        right: U64::new(FsBlock::NULL),
    };
    let bytes = BtreeBlock::<Bmap>::build(fields, none, &expect).unwrap();
    let sealed = BtreeBlock::<Bmap>::seal(bytes, &expect, Lsn(1)).unwrap();
    disk.write(daddr, sealed.bytes()).unwrap();
}

/// A record of one block.
pub(super) fn bmap_record(offset: u64) -> BmapRecord {
    BmapRecord::new(&Extent {
        offset: FileBlock(offset),
        start: FsBlock(10_000 + offset),
        blocks: 1,
        is_unwritten: false,
    })
}

/// A node whose children are these blocks.
pub(super) fn put_bmap_node(disk: &mut Disk, ino: Ino, block: u64, level: u8, children: &[u64]) {
    let key = |at: u64| Bmap::key(&bmap_record(at * 100));
    let keys: Vec<BmapKey> = (0..children.len() as u64).map(key).collect();
    let pointers: Vec<U64> = children.iter().map(|block| U64::new(*block)).collect();
    let node = BlockFields::Node {
        level,
        keys: &keys,
        pointers: &pointers,
    };
    put_bmap(disk, ino, block, &node);
}

/// A regular file whose data fork has a root of this level over block 500, and states so many
/// extents.
pub(super) fn put_file(disk: &mut Disk, ino: Ino, level: u8, extents: u64) {
    const ROOM_BYTES: usize = 512 - size_of::<InodeCore>();
    let geometry = geometry();
    let mut core = InodeCore::new_zeroed();
    core.magic.set(INODE_MAGIC);
    core.version = 3;
    core.mode.set(mode::REGULAR | 0o600);
    core.nlink.set(1);
    core.format = ForkFormat::Btree.to_raw();
    core.aformat = ForkFormat::Extents.to_raw();
    core.nblocks.set(1000);
    core.next_unlinked.set(u32::MAX);
    assert!(core.set_extents(extents, 0));
    let root = BmdrRoot {
        level,
        keys: &[Bmap::key(&bmap_record(0))],
        pointers: &[U64::new(500)],
    };
    let root = build_bmdr_root(&root, ROOM_BYTES).unwrap();
    let (group, within) = geometry.split_ino(ino).unwrap();
    let daddr = geometry.ag_daddr(group, geometry.ino_block(within));
    let expect = Expect::of_inode(&geometry, daddr, ino);
    let inode = Inode::seal(Inode::build(&core, &root, &[], &expect).unwrap(), &expect, Lsn(1)).unwrap();
    let offset = geometry.ino_offset_bytes(within);
    disk.write_within(daddr, offset, inode.bytes()).unwrap();
}
