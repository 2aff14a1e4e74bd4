//! Replay of buffer items.

use std::mem::offset_of;

use xfs_format::ag::{self, Agf, AgfSector, AgflHeader, AgflSector, Agi, AgiSector};
use xfs_format::attr::AttrLeafBlock;
use xfs_format::btree::{
    Bmap, Bno, BtreeBlock, Cnt, Finobt, Inobt, LongHeaderV5, Refcount, Rmap, ShortHeaderV5, Tree, TreeKind,
};
use xfs_format::da::{AttrNodeBlock, DaBlockInfoV5, DirNodeBlock};
use xfs_format::dir::{
    DirBlock, DirDataBlock, DirDataHeaderV5, DirFreeBlock, DirFreeHeaderV5, DirLeaf1Block, DirLeafNBlock,
};
use xfs_format::inode::InodeCore;
use xfs_format::log::{BufItem, BufType, buf_flags};
use xfs_format::symlink::{SYMLINK_MAGIC, SymlinkBlock, SymlinkHeader};
use xfs_format::{AgIno, Corrupt, Daddr, Lsn, Superblock, crc, superblock};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::disk::Disk;
use crate::error::Result;

const DIR_BLOCK_MAGIC: u32 = 0x5844_4233;
const DIR_DATA_MAGIC: u32 = 0x5844_4433;
const DIR_FREE_MAGIC: u32 = 0x5844_4633;
/// Nodes of directories and attributes, leaves of directories, leaves of attributes, on V5.
const DA_MAGICS: [u16; 4] = [0x3ebe, 0x3df1, 0x3dff, 0x3bee];

/// What a block of a directory is, or a node of attributes, by its magic. V5 alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DirMagic {
    Block,
    Data,
    Free,
    Node,
    Leaf1,
    LeafN,
}

impl DirMagic {
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        match be32(bytes, 0) {
            DIR_BLOCK_MAGIC => return Some(Self::Block),
            DIR_DATA_MAGIC => return Some(Self::Data),
            DIR_FREE_MAGIC => return Some(Self::Free),
            _ => {}
        }
        match be32(bytes, offset_of!(DaBlockInfoV5, magic)) >> 16 {
            0x3ebe => Some(Self::Node),
            0x3df1 => Some(Self::Leaf1),
            0x3dff => Some(Self::LeafN),
            _ => None,
        }
    }
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_be_bytes(*word))
}
pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_be_bytes(*word))
}

/// Places of uuid and LSN in a block of V5 with an LSN that counts. `None` where an image in the
/// log is replayed always: inodes and quotas have an LSN each, remote values are not logged.
fn identity(bytes: &[u8]) -> Option<(usize, usize)> {
    let magic = be32(bytes, 0);
    if let Some(tree) = Tree::from_magic(magic) {
        return Some(if tree.is_long() {
            (offset_of!(LongHeaderV5, uuid), offset_of!(LongHeaderV5, lsn))
        } else {
            (offset_of!(ShortHeaderV5, uuid), offset_of!(ShortHeaderV5, lsn))
        });
    }
    match magic {
        ag::AGF_MAGIC => return Some((offset_of!(Agf, uuid), offset_of!(Agf, lsn))),
        ag::AGI_MAGIC => return Some((offset_of!(Agi, uuid), offset_of!(Agi, lsn))),
        ag::AGFL_MAGIC => return Some((offset_of!(AgflHeader, uuid), offset_of!(AgflHeader, lsn))),
        SYMLINK_MAGIC => return Some((offset_of!(SymlinkHeader, uuid), offset_of!(SymlinkHeader, lsn))),
        DIR_BLOCK_MAGIC | DIR_DATA_MAGIC => {
            return Some((offset_of!(DirDataHeaderV5, uuid), offset_of!(DirDataHeaderV5, lsn)));
        }
        DIR_FREE_MAGIC => return Some((offset_of!(DirFreeHeaderV5, uuid), offset_of!(DirFreeHeaderV5, lsn))),
        superblock::MAGIC => return Some((offset_of!(Superblock, meta_uuid), offset_of!(Superblock, lsn))),
        _ => {}
    }
    let da_magic = be32(bytes, offset_of!(DaBlockInfoV5, magic)) >> 16;
    let is_da = DA_MAGICS.iter().any(|magic| u32::from(*magic) == da_magic);
    is_da.then_some((offset_of!(DaBlockInfoV5, uuid), offset_of!(DaBlockInfoV5, lsn)))
}

/// The LSN of what lies on disk, where it counts: blocks of V5 that are this volume's.
pub(super) fn lsn_on_disk(bytes: &[u8], disk: &Disk) -> Option<Lsn> {
    let (uuid_at, lsn_at) = identity(bytes).filter(|_| disk.geometry.is_v5())?;
    let uuid_at = if be32(bytes, 0) == superblock::MAGIC {
        // The superblock's other uuid is empty unless the volume was renamed.
        let sb = Superblock::read_from_prefix(bytes).ok()?.0;
        if sb.metadata_uuid() == sb.uuid {
            offset_of!(Superblock, uuid)
        } else {
            uuid_at
        }
    } else {
        uuid_at
    };
    let uuid = bytes.get(uuid_at..).and_then(|rest| rest.first_chunk::<16>())?;
    (*uuid == disk.geometry.uuid).then(|| Lsn(be64(bytes, lsn_at)))
}

/// Replays an item. True where the block changed and has to be stamped with [`stamp`].
pub(super) fn replay(disk: &mut Disk, item: &BufItem<'_>, lsn: Lsn) -> Result<bool> {
    let (daddr, len) = (item.format.daddr, item.format.len_bytes);
    let mut bytes = disk.read(daddr, len)?;
    if item.format.flags & buf_flags::INODE != 0 {
        replay_unlinked(disk, item, &mut bytes)?;
        disk.write(daddr, &bytes)?;
        return Ok(false);
    }
    let on_disk = lsn_on_disk(&bytes, disk);
    if on_disk.is_some_and(|found| found != Lsn(0) && found != Lsn::NULL && found >= lsn) {
        return Ok(false);
    }
    for (offset, chunk) in &item.chunks {
        let at = *offset as usize;
        if let Some(place) = bytes.get_mut(at..at + chunk.len()) {
            place.copy_from_slice(chunk);
        }
    }
    disk.write(daddr, &bytes)?;
    Ok(true)
}

/// A buffer of inodes: `next_unlinked` alone counts, where the item has it.
fn replay_unlinked(disk: &Disk, item: &BufItem<'_>, bytes: &mut [u8]) -> Result<()> {
    let field_at = offset_of!(InodeCore, next_unlinked);
    for (index, inode) in bytes.chunks_exact_mut(disk.geometry.inode_bytes as usize).enumerate() {
        let at = index * disk.geometry.inode_bytes as usize + field_at;
        let logged = item.chunks.iter().find_map(|(offset, chunk)| {
            let within = at.checked_sub(*offset as usize)?;
            chunk.get(within..within + size_of::<u32>())
        });
        let Some(logged) = logged else { continue };
        let next = be32(logged, 0);
        if next == 0 {
            let found = format_args!("0 in the buffer at daddr {}", item.format.daddr).to_string();
            return Err(disk.broken("di_next_unlinked", found, "an inode of the group"));
        }
        let next = (next != AgIno::NULL).then_some(AgIno(next));
        xfs_format::inode::set_next_unlinked(inode, next, &disk.geometry);
    }
    Ok(())
}

/// True for what may be a part of a directory's block: a block in several extents is logged extent
/// by extent. A node of attributes looks like the first part of such a one.
pub(super) fn may_be_part(disk: &Disk, len_bytes: u32, ty: BufType) -> bool {
    use BufType::{DaNode, DirBlock, DirData, DirFree, DirLeaf1, DirLeafN};
    matches!(ty, DirBlock | DirData | DirFree | DirLeaf1 | DirLeafN | DaNode)
        && len_bytes != disk.geometry.dir_block_bytes
}

/// Stamps LSN and checksum of a block whose items are replayed, and verifies it as its type.
pub(super) fn stamp(disk: &mut Disk, daddr: Daddr, len_bytes: u32, ty: BufType, lsn: Lsn) -> Result<()> {
    let bytes = disk.read(daddr, len_bytes)?;
    if let Some(bytes) = sealed(disk, daddr, bytes, ty, lsn)? {
        disk.write(daddr, &bytes)?;
    }
    Ok(())
}

macro_rules! seal {
    ($block:ty, $bytes:expr, $expect:expr, $lsn:expr) => {
        <$block>::seal($bytes, $expect, $lsn)?.bytes().to_vec()
    };
}

/// `None` where nothing is stamped.
fn sealed(disk: &Disk, daddr: Daddr, bytes: Vec<u8>, ty: BufType, lsn: Lsn) -> Result<Option<Vec<u8>>> {
    let expect = &disk.expect(daddr);
    Ok(Some(match ty {
        BufType::Btree => btree(disk, daddr, bytes, lsn)?,
        BufType::Agf => seal!(AgfSector, bytes, expect, lsn),
        BufType::Agfl => seal!(AgflSector, bytes, expect, lsn),
        BufType::Agi => seal!(AgiSector, bytes, expect, lsn),
        BufType::Symlink => seal!(SymlinkBlock, bytes, expect, lsn),
        BufType::AttrLeaf => seal!(AttrLeafBlock, bytes, expect, lsn),
        BufType::DaNode if disk.geometry.dir_block_bytes == disk.geometry.block_bytes => {
            seal!(AttrNodeBlock, bytes, expect, lsn)
        }
        BufType::DirBlock => seal!(DirBlock, bytes, expect, lsn),
        BufType::DirData => seal!(DirDataBlock, bytes, expect, lsn),
        BufType::DirFree => seal!(DirFreeBlock, bytes, expect, lsn),
        BufType::DirLeaf1 => seal!(DirLeaf1Block, bytes, expect, lsn),
        BufType::DirLeafN => seal!(DirLeafNBlock, bytes, expect, lsn),
        BufType::DaNode => seal!(DirNodeBlock, bytes, expect, lsn),
        BufType::Super => superblock_of(bytes, lsn)?,
        BufType::Unknown
        | BufType::Udquot
        | BufType::Pdquot
        | BufType::Gdquot
        | BufType::Dino
        | BufType::AttrRemote
        | BufType::RtBitmap
        | BufType::RtSummary => return Ok(None),
    }))
}

fn superblock_of(mut bytes: Vec<u8>, lsn: Lsn) -> Result<Vec<u8>> {
    let Ok((mut sb, _)) = Superblock::read_from_prefix(&bytes) else {
        return Ok(bytes);
    };
    sb.check()?;
    if sb.is_v5() {
        sb.lsn.set(lsn.get());
        if let Some(place) = bytes.get_mut(..superblock::SUPERBLOCK_BYTES) {
            place.copy_from_slice(sb.as_bytes());
        }
        crc::store(&mut bytes, offset_of!(Superblock, crc));
    }
    Ok(bytes)
}

fn btree(disk: &Disk, daddr: Daddr, bytes: Vec<u8>, lsn: Lsn) -> Result<Vec<u8>> {
    fn of<K: TreeKind>(disk: &Disk, daddr: Daddr, bytes: Vec<u8>, lsn: Lsn) -> std::result::Result<Vec<u8>, Corrupt> {
        Ok(BtreeBlock::<K>::seal(bytes, &disk.expect(daddr), lsn)?.bytes().to_vec())
    }
    let tree = Tree::from_magic(be32(&bytes, 0));
    Ok(match tree {
        Some(Tree::Bno) => of::<Bno>(disk, daddr, bytes, lsn)?,
        Some(Tree::Cnt) => of::<Cnt>(disk, daddr, bytes, lsn)?,
        Some(Tree::Inobt) => of::<Inobt>(disk, daddr, bytes, lsn)?,
        Some(Tree::Finobt) => of::<Finobt>(disk, daddr, bytes, lsn)?,
        Some(Tree::Rmap) => of::<Rmap>(disk, daddr, bytes, lsn)?,
        Some(Tree::Refcount) => of::<Refcount>(disk, daddr, bytes, lsn)?,
        Some(Tree::Bmap) | None => of::<Bmap>(disk, daddr, bytes, lsn)?,
    })
}
