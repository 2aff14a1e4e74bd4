//! Replay of inode items, and of the creation of inodes.

use std::collections::HashSet;
use std::mem::offset_of;

use xfs_format::btree::{BMDR_HEADER_BYTES, BmapKey, BmdrRoot, LongHeader, LongHeaderV5, build_bmdr_root};
use xfs_format::inode::{INODE_MAGIC, InodeCore, InodeCoreV2, core_bytes};
use xfs_format::log::{IcreateLogFormat, InodeItem, inode_fields};
use xfs_format::{AgBlock, AgIno, AgNumber, CHUNK_INODES, Daddr, Expect, Ino, Inode, Lsn, U64};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::cancels::Cancels;
use super::disk::Disk;
use crate::error::{Error, LogFault, Result};

/// The largest value of the flush counter of inodes of V4, which then begins again.
const FLUSH_COUNT_MAX: u16 = 0xffff;

fn core_of(bytes: &[u8], disk: &Disk) -> InodeCore {
    let mut core = [0; size_of::<InodeCore>()];
    let used = bytes.get(..core_bytes(disk.geometry.is_v5())).unwrap_or_default();
    core.iter_mut().zip(used).for_each(|(to, from)| *to = *from);
    zerocopy::transmute!(core)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes.get_mut(at..)?.get_mut(..value.len())?.copy_from_slice(value);
    Some(())
}

/// Replays an inode item. Of the core all is taken but checksum, LSN and `next_unlinked`. Returns
/// the inode's new bytes where its trees have another owner now.
pub(super) fn replay(disk: &mut Disk, item: &InodeItem<'_>, lsn: Lsn) -> Result<()> {
    let format = item.format;
    let offset = format.offset_bytes;
    let inode_bytes = disk.geometry.inode_bytes;
    if !offset.is_multiple_of(inode_bytes) || u64::from(offset) + u64::from(inode_bytes) > format.len_bytes.into() {
        return Err(disk.broken("ilf_boffset", offset, "an inode of its cluster"));
    }
    let sector = Daddr(format.daddr.get().saturating_add(u64::from(offset / 512)));
    let mut bytes = disk.read(sector, inode_bytes)?;
    let on_disk = core_of(&bytes, disk);
    if on_disk.magic.get() != INODE_MAGIC {
        return Err(disk.broken(
            "di_magic",
            format_args!("{:#x} at daddr {sector}, inode {}", on_disk.magic, format.ino),
            format_args!("{INODE_MAGIC:#x}"),
        ));
    }
    let Some(core) = &item.core else {
        return Err(disk.broken("regions of an inode item", 1, "at least 2"));
    };
    let mut core = core.to_disk();
    if is_older(&core, &on_disk, lsn) {
        return Ok(());
    }
    core.next_unlinked = on_disk.next_unlinked;
    let is_v5 = disk.geometry.is_v5();
    if !is_v5 {
        // The counter has done its work.
        let _ = put(core.as_mut_bytes(), offset_of!(InodeCoreV2, flushiter), &[0; 2]);
    }
    let head_bytes = core_bytes(is_v5);
    let place = |at: usize| head_bytes + at;
    let attr_at = core.attr_fork_at();
    let room = bytes.len().saturating_sub(head_bytes);
    let data_room = if attr_at == 0 { room } else { attr_at.min(room) };
    let mut fits = put(&mut bytes, 0, core.as_bytes().get(..head_bytes).unwrap_or_default());
    if let Some(data) = item.data {
        let is_root = format.fields & inode_fields::DBROOT != 0;
        for (at, part) in contents(disk, is_root, data, data_room)? {
            fits = fits.filter(|()| at + part.len() <= data_room);
            fits = fits.and_then(|()| put(&mut bytes, place(at), &part));
        }
    }
    if format.fields & inode_fields::DEV != 0 {
        fits = fits.and_then(|()| put(&mut bytes, place(0), &format.device.to_be_bytes()));
    }
    if let Some(attr) = item.attr {
        let is_root = format.fields & inode_fields::ABROOT != 0;
        fits = fits.filter(|()| attr_at != 0);
        for (at, part) in contents(disk, is_root, attr, room.saturating_sub(attr_at))? {
            fits = fits.and_then(|()| put(&mut bytes, place(attr_at + at), &part));
        }
    }
    if fits.is_none() {
        return Err(disk.broken("forks of an inode item", format.ino, "forks that fit the inode"));
    }
    let inode = seal(disk, sector, format.ino, bytes, lsn)?;
    disk.write(sector, inode.bytes())
}

fn seal(disk: &Disk, sector: Daddr, ino: Ino, bytes: Vec<u8>, lsn: Lsn) -> Result<Inode> {
    let expect = Expect::of_inode(&disk.geometry, sector, ino);
    Inode::seal(bytes, &expect, lsn).map_err(|fault| Error::Log {
        block: disk.lsn.block(),
        fault: LogFault::Corrupt(fault),
    })
}

/// True where the disk has a newer state than the log.
fn is_older(core: &InodeCore, on_disk: &InodeCore, lsn: Lsn) -> bool {
    if on_disk.version >= 3 {
        let found = Lsn(on_disk.lsn.get());
        return found != Lsn(0) && found != Lsn::NULL && found > lsn;
    }
    let flushes = |core: &InodeCore| {
        let old = InodeCoreV2::read_from_prefix(core.as_bytes());
        old.map_or(0, |(old, _)| old.flushiter.get())
    };
    let (logged, found) = (flushes(core), flushes(on_disk));
    let began_again = found == FLUSH_COUNT_MAX && logged < FLUSH_COUNT_MAX / 2;
    logged < found && !began_again
}

/// Bytes and where they go in a fork.
type Part = (usize, Vec<u8>);

/// What goes into a fork: a root is logged as a block of the tree, not as it lies in the inode.
/// What lies between its keys and pointers stays.
fn contents(disk: &Disk, is_root: bool, logged: &[u8], room_bytes: usize) -> Result<Vec<Part>> {
    if !is_root {
        // Regions are whole words: zeros fill the last one, in the log and in the inode.
        let mut bytes = logged.to_vec();
        bytes.resize(logged.len().next_multiple_of(4).min(room_bytes.max(logged.len())), 0);
        return Ok(vec![(0, bytes)]);
    }
    let root = root_of(logged, disk.geometry.is_v5(), room_bytes);
    root.ok_or_else(|| disk.broken("root of the bmbt", format_args!("{} bytes", logged.len()), "a root"))
}

fn root_of(logged: &[u8], is_v5: bool, room_bytes: usize) -> Option<Vec<Part>> {
    let head_bytes = if is_v5 {
        size_of::<LongHeaderV5>()
    } else {
        size_of::<LongHeader>()
    };
    let header = LongHeader::read_from_prefix(logged).ok()?.0;
    let count = usize::from(header.numrecs.get());
    let behind = logged.get(head_bytes..)?;
    let child_bytes = size_of::<BmapKey>() + size_of::<U64>();
    let pointers_at = behind.len() / child_bytes * size_of::<BmapKey>();
    let (keys, _) = <[BmapKey]>::ref_from_prefix_with_elems(behind, count).ok()?;
    let (pointers, _) = <[U64]>::ref_from_prefix_with_elems(behind.get(pointers_at..)?, count).ok()?;
    let root = BmdrRoot {
        level: u8::try_from(header.level.get()).ok()?,
        keys,
        pointers,
    };
    let bytes = build_bmdr_root(&root, room_bytes)?;
    let keys_end = BMDR_HEADER_BYTES + count * size_of::<BmapKey>();
    let most = (room_bytes - BMDR_HEADER_BYTES) / child_bytes;
    let pointers_at = BMDR_HEADER_BYTES + most * size_of::<BmapKey>();
    let pointers = bytes.get(pointers_at..pointers_at + count * size_of::<U64>())?;
    Some(vec![
        (0, bytes.get(..keys_end)?.to_vec()),
        (pointers_at, pointers.to_vec()),
    ])
}

/// New inodes: each gets a core, and nothing else. Not replayed where a later transaction freed
/// them.
pub(super) fn create(disk: &mut Disk, item: &IcreateLogFormat, cancels: &Cancels) -> Result<()> {
    let geometry = disk.geometry;
    let (group, first) = (AgNumber(item.ag.get()), AgBlock(item.agbno.get()));
    let (count, blocks) = (item.count.get(), item.length.get());
    let per_block = 1_u32 << geometry.inodes_per_block_log;
    let is_whole = blocks.checked_mul(per_block) == Some(count)
        && item.isize.get() == geometry.inode_bytes
        && (count <= CHUNK_INODES || blocks == 1)
        && geometry.is_ag_extent(group, first, blocks);
    if !is_whole {
        let found = format_args!("{count} inodes in {blocks} blocks from {group}:{first}").to_string();
        return Err(disk.broken("icl_count", found, "a chunk of the group"));
    }
    let end = geometry.ag_daddr(group, AgBlock(first.get() + blocks));
    if cancels.touches(geometry.ag_daddr(group, first), end) {
        return Ok(());
    }
    for index in 0..count {
        let within = AgIno((first.get() << geometry.inodes_per_block_log) + index);
        let daddr = geometry.ag_daddr(group, geometry.ino_block(within));
        let expect = Expect::of_inode(&geometry, daddr, geometry.join_ino(group, within));
        let bytes = Inode::build_free(item.generation.get(), &expect)
            .ok_or_else(|| disk.broken("icl_isize", item.isize, "room for a core"))?;
        let inode = Inode::seal(bytes, &expect, Lsn(0))?;
        disk.write_within(daddr, geometry.ino_offset_bytes(within), inode.bytes())?;
    }
    Ok(())
}

/// The tree of a fork belongs to this inode now: its blocks get it as their owner.
pub(super) fn change_owner(disk: &mut Disk, item: &InodeItem<'_>, lsn: Lsn) -> Result<()> {
    use xfs_format::btree::{Bmap, BtreeBlock, Tree};
    use xfs_format::inode::{Fork, ForkKind};
    let format = item.format;
    let sector = Daddr(format.daddr.get().saturating_add(u64::from(format.offset_bytes / 512)));
    let bytes = disk.read(sector, disk.geometry.inode_bytes)?;
    let inode = Inode::verify(bytes, &Expect::of_inode(&disk.geometry, sector, format.ino))?;
    for (bit, kind) in [
        (inode_fields::DOWNER, ForkKind::Data),
        (inode_fields::AOWNER, ForkKind::Attr),
    ] {
        let Some(Fork::Btree(root)) = inode.fork(kind).filter(|_| format.fields & bit != 0) else {
            continue;
        };
        // Each level is one lower than the one above, so the walk ends. A block may be met again: nodes
        // that are newer on disk than this item have other children than they had.
        let mut seen = HashSet::new();
        let mut level: Vec<u64> = root.pointers.iter().map(|pointer| pointer.get()).collect();
        for height in (0..root.level).rev() {
            let mut below = Vec::new();
            for number in level {
                if !seen.insert(number) {
                    continue;
                }
                let daddr = disk.geometry.daddr(xfs_format::FsBlock(number));
                let daddr = daddr.ok_or_else(|| disk.broken("bmbt.ptr", number, "a block of the volume"))?;
                let mut bytes = disk.read(daddr, disk.geometry.block_bytes)?;
                if !bytes.starts_with(&Tree::Bmap.magic(true).to_be_bytes()) {
                    continue;
                }
                let _ = put(
                    &mut bytes,
                    offset_of!(LongHeaderV5, owner),
                    &format.ino.get().to_be_bytes(),
                );
                let block = BtreeBlock::<Bmap>::seal(bytes, &disk.expect(daddr), lsn)?;
                if block.level() != height {
                    return Err(disk.broken("level", block.level(), height));
                }
                below.extend(block.pointers().iter().map(|pointer| pointer.get()));
                disk.write(daddr, block.bytes())?;
            }
            level = below;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{bmap_record, counted_disk, put_bmap, put_bmap_node, put_file};
    use super::*;
    use xfs_format::FsBlock;
    use xfs_format::btree::{BlockFields, Bmap, BtreeBlock};
    use xfs_format::log::InodeFormat;

    #[test]
    fn owner_of_a_tree_changes_and_each_block_is_read_once() {
        let (before, ino) = (Ino(130), Ino(131));
        let (mut disk, device) = counted_disk();
        let geometry = disk.geometry;
        put_bmap(&mut disk, before, 600, &BlockFields::Leaf(&[bmap_record(0)]));
        // All pointers of a node lead to one child: 27,000 ways to the leaf.
        for (block, level, child) in [(502, 1, 600), (501, 2, 502), (500, 3, 501)] {
            put_bmap_node(&mut disk, before, block, level, &[child; 30]);
        }
        put_file(&mut disk, ino, 4, 1000);
        let (group, within) = geometry.split_ino(ino).unwrap();
        let item = InodeItem {
            format: InodeFormat {
                ino,
                fields: inode_fields::DOWNER,
                data_bytes: 0,
                attr_bytes: 0,
                device: 0,
                daddr: geometry.ag_daddr(group, geometry.ino_block(within)),
                len_bytes: 4096,
                offset_bytes: geometry.ino_offset_bytes(within),
            },
            core: None,
            data: None,
            attr: None,
        };
        device.take();
        change_owner(&mut disk, &item, Lsn(2)).unwrap();
        let count = device.take().reads;
        assert!(count <= 10, "{count} reads");
        for (block, level) in [(500, 3), (501, 2), (502, 1), (600, 0)] {
            let daddr = geometry.daddr(FsBlock(block)).unwrap();
            let bytes = disk.read(daddr, geometry.block_bytes).unwrap();
            let expect = Expect::of_inode(&geometry, daddr, ino);
            assert!(
                BtreeBlock::<Bmap>::verify(bytes, &expect, Some(level)).is_ok(),
                "{block}"
            );
        }
    }
}
