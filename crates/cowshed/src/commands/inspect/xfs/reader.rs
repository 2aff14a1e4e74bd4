//! Reading structures for inspection: any block at any address. Shares the format with the engine,
//! not its code, and goes on where a block is bad.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cowshed_device::{BlockDevice, Locking};
use xfs_format::btree::{BlockPtr, Bmap, BtreeBlock};
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::{AgNumber, Daddr, Expect, Extent, FsBlock, Geometry, Ino, Inode, Superblock};

use crate::devices;

/// Bytes of the largest sector.
const SECTOR_BYTES_MAX: usize = 32768;

pub struct Reader {
    device: Arc<dyn BlockDevice>,
    pub superblock: Superblock,
    pub geometry: Geometry,
}

impl Reader {
    pub fn open(target: &Path) -> Result<Reader> {
        let open = || -> Result<Reader> {
            let device = open_device(target)?;
            let superblock = Superblock::verify(&head(&*device)?).context("the first superblock")?;
            let geometry = Geometry::new(&superblock)?;
            Ok(Reader {
                device,
                superblock,
                geometry,
            })
        };
        open().with_context(|| target.display().to_string())
    }

    pub fn read(&self, daddr: Daddr, len_bytes: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len_bytes as usize];
        let at = daddr.checked_bytes().context("an address that no device has")?;
        self.device.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// The groups that were asked for: one, or all.
    pub fn groups(&self, asked: Option<u32>) -> Result<std::ops::Range<u32>> {
        match asked {
            Some(group) if group >= self.geometry.ag_count => {
                bail!("there is no group {group}: the volume has {}", self.geometry.ag_count)
            }
            Some(group) => Ok(group..group + 1),
            None => Ok(0..self.geometry.ag_count),
        }
    }

    /// One of the sectors at the start of a group, and what is expected of it.
    pub fn header(&self, group: AgNumber, sector: u32) -> Result<(Vec<u8>, Expect<'_>)> {
        let daddr = self.geometry.header_daddr(group, sector);
        let bytes = self.read(daddr, self.geometry.sector_bytes)?;
        Ok((bytes, Expect::in_ag(&self.geometry, daddr, group)))
    }

    /// The inode of a number, or at the end of an absolute path.
    pub fn number(&self, target: &Path, text: &str) -> Result<Ino> {
        if text.starts_with('/') {
            let args = devices::ReadArgs {
                devices: Vec::new(),
                options: vec!["norecovery".into()],
            };
            let volume = devices::open_files(target, &args)?;
            return Ok(Ino(volume.symlink_metadata(text)?.ino()));
        }
        match text.parse() {
            Ok(number) => Ok(Ino(number)),
            Err(_) => bail!("{text:?} is neither the number of an inode nor an absolute path"),
        }
    }

    pub fn inode(&self, ino: Ino) -> Result<(Daddr, Inode)> {
        let geometry = &self.geometry;
        let Some((group, within)) = geometry.split_ino(ino).filter(|_| geometry.is_inode(ino)) else {
            bail!("the volume has no place for an inode {ino}");
        };
        let daddr = geometry.ag_daddr(group, geometry.ino_block(within));
        let block = self.read(daddr, geometry.block_bytes)?;
        let offset = geometry.ino_offset_bytes(within) as usize;
        let bytes = block.get(offset..offset + geometry.inode_bytes as usize);
        let bytes = bytes.context("an inode across two blocks")?;
        let inode = Inode::verify(bytes, &Expect::of_inode(geometry, daddr, ino));
        Ok((daddr, inode.with_context(|| format!("inode {ino}"))?))
    }

    /// The extents of a fork, in order.
    pub fn extents(&self, ino: Ino, inode: &Inode, kind: ForkKind) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        match inode.fork(kind) {
            Some(Fork::Extents(records)) => extents.extend(records.iter().map(|record| record.extent())),
            Some(Fork::Btree(root)) => {
                let mut seen = HashSet::new();
                for pointer in root.pointers {
                    self.leaves(
                        ino,
                        pointer.number(),
                        root.level.saturating_sub(1),
                        &mut seen,
                        &mut |block| {
                            extents.extend(block.records().iter().map(|record| record.extent()));
                            Ok(())
                        },
                    )?;
                }
            }
            None | Some(Fork::Dev(_) | Fork::Local(_)) => {}
        }
        Ok(extents)
    }

    /// A block of the map of a fork.
    pub fn map_block(&self, ino: Ino, block: u64, level: u8) -> Result<(Daddr, BtreeBlock<Bmap>)> {
        let daddr = self.geometry.daddr(FsBlock(block));
        let daddr = daddr.with_context(|| format!("block {block} is none of the volume"))?;
        let bytes = self.read(daddr, self.geometry.block_bytes)?;
        let expect = Expect::of_inode(&self.geometry, daddr, ino);
        Ok((daddr, BtreeBlock::verify(bytes, &expect, Some(level))?))
    }

    fn leaves(
        &self,
        ino: Ino,
        block: u64,
        level: u8,
        seen: &mut HashSet<u64>,
        take: &mut dyn FnMut(&BtreeBlock<Bmap>) -> Result<()>,
    ) -> Result<()> {
        if !seen.insert(block) {
            bail!("block {block} is in the map of inode {ino} twice");
        }
        let (_, found) = self.map_block(ino, block, level)?;
        if found.is_leaf() {
            return take(&found);
        }
        for child in found.pointers() {
            self.leaves(ino, child.number(), level - 1, seen, take)?;
        }
        Ok(())
    }

    /// Blocks of a fork, which may lie in several pieces: address of the first, and all bytes.
    /// `None` where one of them is a hole.
    pub fn fork_blocks(&self, extents: &[Extent], block: u64, blocks: u32) -> Result<Option<(Daddr, Vec<u8>)>> {
        let (mut first, mut bytes) = (None, Vec::new());
        for block in block..block + u64::from(blocks) {
            let at = extents.partition_point(|extent| extent.end().get() <= block);
            let Some(extent) = extents.get(at).filter(|extent| extent.offset.get() <= block) else {
                return Ok(None);
            };
            let place = self
                .geometry
                .daddr(FsBlock(extent.start.get() + (block - extent.offset.get())));
            let place = place.with_context(|| format!("block {block} of the fork lies outside of the volume"))?;
            bytes.extend(self.read(place, self.geometry.block_bytes)?);
            first.get_or_insert(place);
        }
        Ok(first.map(|first| (first, bytes)))
    }

    /// The bytes of the internal log.
    pub fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }
}

pub fn open_device(target: &Path) -> Result<Arc<dyn BlockDevice>> {
    let mut devices = devices::open_to_read(&[target.to_owned()], Locking::Unlocked)?;
    devices.pop().context("no device")
}

/// The start of a device: as much as the largest sector has.
pub fn head(device: &dyn BlockDevice) -> Result<Vec<u8>> {
    let size = usize::try_from(device.size_bytes()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; SECTOR_BYTES_MAX.min(size)];
    device.read_at(0, &mut bytes)?;
    Ok(bytes)
}
