//! Blocks of directories that lie in several extents.
//!
//! Linux logs such a block extent by extent, each one a buffer item of its own, and logs only those
//! that changed. The checksum is that of the whole block, so it is computed when all parts are
//! replayed. (Linux 6.18 seals each part by itself: its recovery of such a log fails.) A part does
//! not name its block. It is found through the directory, which is in the log with its block.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;

use xfs_format::da::{AttrNodeBlock, DaBlockInfoV5, DirNodeBlock};
use xfs_format::dir::{DirBlock, DirDataBlock, DirDataHeaderV5, DirFreeBlock, DirLeaf1Block, DirLeafNBlock};
use xfs_format::inode::{ForkKind, mode};
use xfs_format::{Daddr, Expect, Extent, FsBlock, Ino, Lsn};

use super::super::buffers::{self, DirMagic, be32, be64};
use super::super::disk::Disk;
use super::files::File;
use super::groups::Ags;
use crate::error::{Error, Result};

/// Parts that were replayed, and where their directories may be.
#[derive(Default)]
pub(in crate::recovery) struct Parts {
    by_daddr: BTreeMap<Daddr, Part>,
    directories: BTreeSet<Ino>,
}

struct Part {
    len_bytes: u32,
    lsn: Lsn,
}

impl Parts {
    /// Notes a part that was replayed.
    pub(in crate::recovery) fn note(&mut self, daddr: Daddr, len_bytes: u32, lsn: Lsn) {
        self.by_daddr.insert(daddr, Part { len_bytes, lsn });
    }

    /// Notes a directory of the log.
    pub(in crate::recovery) fn note_directory(&mut self, ino: Ino) {
        self.directories.insert(ino);
    }

    /// Seals the blocks that the parts belong to. Parts of no directory were freed since. Errors: a
    /// block that does not pass its verifier.
    pub(in crate::recovery) fn seal(mut self, disk: &mut Disk) -> Result<()> {
        if self.by_daddr.is_empty() || !disk.geometry.is_v5() {
            return Ok(());
        }
        let heads: Vec<Daddr> = self.by_daddr.keys().copied().collect();
        for daddr in heads {
            let head = disk.read(daddr, disk.geometry.sector_bytes)?;
            self.directories.extend(owner_of(&head));
        }
        let ags = &mut Ags::new(disk);
        for ino in std::mem::take(&mut self.directories) {
            self.seal_directory(ags, ino)?;
        }
        // What is left is no part of a directory: a node of attributes.
        for (daddr, part) in self.by_daddr {
            let bytes = ags.disk.read(daddr, part.len_bytes)?;
            if DirMagic::of(&bytes) == Some(DirMagic::Node) && part.len_bytes == ags.disk.geometry.block_bytes {
                let node = AttrNodeBlock::seal(bytes, &ags.disk.expect(daddr), part.lsn)?;
                ags.disk.write(daddr, node.bytes())?;
            }
        }
        Ok(())
    }

    fn seal_directory(&mut self, ags: &mut Ags<'_>, ino: Ino) -> Result<()> {
        let geometry = ags.disk.geometry;
        if geometry.split_ino(ino).is_none() {
            return Ok(());
        }
        let file = match File::load(ags, ino) {
            // Its chunk was freed since.
            Err(Error::Corrupt(_)) => return Ok(()),
            other => other?,
        };
        if file.core.file_type() != mode::DIR {
            return Ok(());
        }
        let extents: Vec<Extent> = file.extents(ags, ForkKind::Data)?.list.iter().collect();
        let mut blocks: BTreeMap<u64, Lsn> = BTreeMap::new();
        for extent in &extents {
            let Some(start) = geometry.daddr(extent.start) else {
                continue;
            };
            let sectors = u64::from(geometry.block_bytes / 512);
            let end = Daddr(start.get() + u64::from(extent.blocks) * sectors);
            let found: Vec<Daddr> = self.by_daddr.range(start..end).map(|(daddr, _)| *daddr).collect();
            for daddr in found {
                let Some(part) = self.by_daddr.remove(&daddr) else {
                    continue;
                };
                let block = extent.offset.get() + (daddr.get() - start.get()) / sectors;
                let first = block >> geometry.dir_block_log << geometry.dir_block_log;
                let lsn = blocks.entry(first).or_insert(part.lsn);
                *lsn = part.lsn.max(*lsn);
            }
        }
        for (first, lsn) in blocks {
            seal_block(ags.disk, ino, &extents, first, lsn)?;
        }
        Ok(())
    }
}

/// The owner that a first part names.
fn owner_of(head: &[u8]) -> Option<Ino> {
    let at = match DirMagic::of(head)? {
        DirMagic::Block | DirMagic::Data | DirMagic::Free => offset_of!(DirDataHeaderV5, owner),
        DirMagic::Node | DirMagic::Leaf1 | DirMagic::LeafN => offset_of!(DaBlockInfoV5, owner),
    };
    Some(Ino(be64(head, at)))
}

/// Reads all parts of a block of a directory, seals it, and writes it back.
fn seal_block(disk: &mut Disk, ino: Ino, extents: &[Extent], first: u64, lsn: Lsn) -> Result<()> {
    let geometry = disk.geometry;
    let unit = geometry.block_bytes;
    let mut places = Vec::new();
    let mut bytes = Vec::new();
    for block in first..first + u64::from(geometry.dir_block_bytes / unit) {
        let holds = |extent: &&Extent| (extent.offset.get()..extent.end().get()).contains(&block);
        let place = extents
            .iter()
            .find(holds)
            .and_then(|extent| geometry.daddr(FsBlock(extent.start.get() + (block - extent.offset.get()))));
        let place = place.ok_or(Error::Inconsistent {
            what: "directory: a block has a hole",
            ino: ino.get(),
        })?;
        bytes.extend(disk.read(place, unit)?);
        places.push(place);
    }
    let Some(daddr) = places.first() else { return Ok(()) };
    let Some(magic) = DirMagic::of(&bytes) else {
        return Err(disk.broken(
            "magic of a directory's block",
            format_args!("{:#x} at daddr {daddr}", be32(&bytes, 0)),
            "one of a directory",
        ));
    };
    let lsn =
        buffers::lsn_on_disk(&bytes, disk).map_or(lsn, |found| if found == Lsn::NULL { lsn } else { found.max(lsn) });
    let expect = &Expect::of_inode(&geometry, *daddr, ino);
    let sealed = match magic {
        DirMagic::Block => DirBlock::seal(bytes, expect, lsn)?.bytes().to_vec(),
        DirMagic::Data => DirDataBlock::seal(bytes, expect, lsn)?.bytes().to_vec(),
        DirMagic::Free => DirFreeBlock::seal(bytes, expect, lsn)?.bytes().to_vec(),
        DirMagic::Node => DirNodeBlock::seal(bytes, expect, lsn)?.bytes().to_vec(),
        DirMagic::Leaf1 => DirLeaf1Block::seal(bytes, expect, lsn)?.bytes().to_vec(),
        DirMagic::LeafN => DirLeafNBlock::seal(bytes, expect, lsn)?.bytes().to_vec(),
    };
    for (place, part) in places.iter().zip(sealed.chunks(unit as usize)) {
        disk.write(*place, part)?;
    }
    Ok(())
}
