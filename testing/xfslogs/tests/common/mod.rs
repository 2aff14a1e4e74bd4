//! What tests with planted logs share: volumes as we recover them, and attributes as they lie on
//! disk.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_device::{BlockDevice, FileDevice, Locking, OpenMode};
use cowshed_xfs::{OpenOptions, Volume};
use xfs_check::{CheckOptions, Report, check};
use xfs_format::attr::{AttrLeafBlock, AttrRemoteBlock, AttrValueView, attr_flags, remote_blocks, shortform_entries};
use xfs_format::btree::{Bmap, BmapRecord, BtreeBlock};
use xfs_format::da::AttrNodeBlock;
use xfs_format::inode::{Fork, ForkKind, InodeCore};
use xfs_format::{DaBlock, Daddr, Expect, Extent, FsBlock, Ino, Inode};

pub fn device(image: &Path) -> Result<Arc<dyn BlockDevice>> {
    let device = FileDevice::open_with(image, OpenMode::ReadOnly, Locking::Unlocked)?;
    Ok(Arc::new(device))
}

/// The volume as we recover it.
pub fn recovered(image: &Path) -> Result<Volume> {
    Ok(Volume::open(device(image)?, &OpenOptions::default())?)
}

pub fn judge(image: &Path) -> Result<Report> {
    let replay = || {
        let volume = recovered(image).map_err(|error| format!("{error:#}"))?;
        Ok(volume.recovered_device())
    };
    let options = CheckOptions {
        replay: Some(&replay),
        ..CheckOptions::default()
    };
    Ok(check(device(image)?, &options))
}

/// An inode as it is after recovery, and its address.
pub fn inode(volume: &Volume, ino: u64) -> Result<Inode> {
    let (geometry, ino) = (volume.geometry(), Ino(ino));
    let (group, within) = geometry.split_ino(ino).context("an inode of the volume")?;
    let daddr = geometry.ag_daddr(group, geometry.ino_block(within));
    let at = daddr.checked_bytes().context("an address")? + u64::from(geometry.ino_offset_bytes(within));
    let mut bytes = vec![0; geometry.inode_bytes as usize];
    volume.recovered_device().read_at(at, &mut bytes)?;
    Ok(Inode::verify(bytes, &Expect::of_inode(geometry, daddr, ino))?)
}

/// Inode and generation.
pub fn handle(volume: &Volume, ino: Ino) -> Result<(u64, u32)> {
    Ok((ino.get(), inode(volume, ino.get())?.core().generation.get()))
}

/// Attributes by flags (those of their place left out) and name.
pub type Attrs = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

/// An inode's attributes, and how they lie there.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub attrs: Attrs,
    /// Levels of the hash tree; 1 is a leaf alone, 0 is the inode.
    pub levels: usize,
    /// Blocks of the tree level by level from the root: hashes in each.
    pub tree: Vec<Vec<Vec<u32>>>,
    pub forkoff: u8,
    /// Format of the data fork.
    pub format: u8,
    /// The attributes lie in the inode.
    pub is_short: bool,
    pub data_extents: u64,
    /// Blocks of both forks, those of their trees left out.
    pub blocks: (u64, u64),
}

impl Stored {
    /// Errors: the first thing that is not as in another one.
    pub fn compare(&self, kernel: &Stored) -> Result<()> {
        let facts = |of: &Stored| {
            let Stored {
                levels,
                forkoff,
                format,
                is_short,
                data_extents,
                blocks,
                ..
            } = of;
            format!(
                "{levels} levels, short {is_short}, forkoff {forkoff}, data of format {format} with {data_extents} \
                 extents, blocks {blocks:?}"
            )
        };
        let (found, expected) = (facts(self), facts(kernel));
        ensure!(found == expected, "{found}; the kernel's: {expected}");
        for (level, (found, expected)) in self.tree.iter().zip(&kernel.tree).enumerate() {
            ensure!(
                found == expected,
                "level {level}: {found:?}\nthe kernel's: {expected:?}"
            );
        }
        ensure!(self.attrs == kernel.attrs, "attributes");
        Ok(())
    }
}

/// Extents of a fork.
pub fn extents(volume: &Volume, inode: &Inode, ino: u64, kind: ForkKind) -> Result<Vec<Extent>> {
    let (geometry, device) = (volume.geometry(), volume.recovered_device());
    let read = |record: &BmapRecord| record.extent();
    match inode.fork(kind) {
        Some(Fork::Extents(records)) => Ok(records.iter().map(read).collect()),
        Some(Fork::Btree(root)) => {
            let mut list = Vec::new();
            let mut level: Vec<u64> = root.pointers.iter().map(|pointer| pointer.get()).collect();
            for height in (0..root.level).rev() {
                let mut below = Vec::new();
                for number in level {
                    let daddr = geometry.daddr(FsBlock(number)).context("a block")?;
                    let mut bytes = vec![0; geometry.block_bytes as usize];
                    device.read_at(daddr.get() * 512, &mut bytes)?;
                    let expect = Expect::of_inode(geometry, daddr, Ino(ino));
                    let block = BtreeBlock::<Bmap>::verify(bytes, &expect, Some(height))?;
                    list.extend(block.records().iter().map(read));
                    below.extend(block.pointers().iter().map(|pointer| pointer.get()));
                }
                level = below;
            }
            Ok(list)
        }
        _ => Ok(Vec::new()),
    }
}

/// Reads all of an inode's attributes, level by level. Errors: a block that does not pass its
/// verifier, keys that are not those of the children, siblings that are not in order.
pub fn stored(volume: &Volume, ino: u64) -> Result<Stored> {
    let (geometry, device) = (volume.geometry(), volume.recovered_device());
    let inode = inode(volume, ino)?;
    let core: InodeCore = inode.core();
    let data = extents(volume, &inode, ino, ForkKind::Data)?;
    let extents = extents(volume, &inode, ino, ForkKind::Attr)?;
    let count = |extents: &[Extent]| extents.iter().map(|extent| u64::from(extent.blocks)).sum();
    let read = |block: u32| -> Result<(Vec<u8>, Daddr)> {
        let holds = |extent: &&Extent| (extent.offset.get()..extent.end().get()).contains(&block.into());
        let extent = extents.iter().find(holds).context("a block of the fork")?;
        let start = extent.start.get() + u64::from(block) - extent.offset.get();
        let daddr = geometry.daddr(FsBlock(start)).context("a block")?;
        let mut bytes = vec![0; geometry.block_bytes as usize];
        device.read_at(daddr.get() * 512, &mut bytes)?;
        Ok((bytes, daddr))
    };
    let (mut attrs, mut tree) = (Attrs::new(), Vec::new());
    if let Some(Fork::Local(bytes)) = inode.fork(ForkKind::Attr) {
        for attr in shortform_entries(bytes) {
            attrs.insert((attr.flags, attr.name.to_vec()), attr.value.to_vec());
        }
    }
    let mut children = if extents.is_empty() { vec![] } else { vec![(0, None)] };
    while !children.is_empty() {
        let (mut below, mut level, mut before) = (Vec::new(), Vec::new(), DaBlock(0));
        for (at, (block, key)) in children.iter().enumerate() {
            let (bytes, daddr) = read(*block)?;
            let expect = Expect::of_inode(geometry, daddr, Ino(ino));
            let (hashes, siblings): (Vec<u32>, _) = if bytes[8..10] == [0x3e, 0xbe] {
                let node = AttrNodeBlock::verify(bytes, &expect)?;
                let entries = node.entries().iter();
                below.extend(entries.map(|entry| (entry.before.get(), Some(entry.hashval.get()))));
                let hashes = node.entries().iter().map(|entry| entry.hashval.get());
                (hashes.collect(), node.siblings())
            } else {
                let leaf = AttrLeafBlock::verify(bytes, &expect)?;
                for entry in leaf.entries() {
                    let value = match entry.value {
                        _ if entry.flags & attr_flags::INCOMPLETE != 0 => Vec::new(),
                        AttrValueView::Local(value) => value.to_vec(),
                        AttrValueView::Remote { block, len_bytes } => {
                            let mut value = Vec::new();
                            for number in 0..remote_blocks(len_bytes, geometry) {
                                let (bytes, daddr) = read(block.get() + number)?;
                                let expect = Expect::of_inode(geometry, daddr, Ino(ino));
                                let part = AttrRemoteBlock::verify(bytes, &expect)?;
                                ensure!(part.offset_bytes() == Some(value.len() as u32), "offset of a part");
                                value.extend_from_slice(part.part());
                            }
                            ensure!(value.len() == len_bytes as usize, "bytes of a value");
                            value
                        }
                    };
                    let flags = entry.flags & !attr_flags::LOCAL;
                    let key = (flags, entry.name.to_vec());
                    // Parent pointers of one name differ in their values.
                    ensure!(
                        attrs.insert(key, value).is_none() || flags & attr_flags::PARENT != 0,
                        "an attribute is there twice"
                    );
                }
                (leaf.entries().map(|entry| entry.hash).collect(), leaf.siblings())
            };
            let next = children.get(at + 1).map_or(0, |(block, _)| *block);
            ensure!(siblings == (before, DaBlock(next)), "siblings of {block}: {siblings:?}");
            if let Some(key) = key {
                ensure!(hashes.last() == Some(key), "key of {block}");
            }
            before = DaBlock(*block);
            level.push(hashes);
        }
        if !below.is_empty() && below.len() != level.iter().map(Vec::len).sum::<usize>() {
            bail!("a level of leaves and nodes");
        }
        tree.push(level);
        children = below;
    }
    Ok(Stored {
        attrs,
        levels: tree.len(),
        tree,
        forkoff: core.forkoff,
        format: core.format,
        is_short: matches!(inode.fork(ForkKind::Attr), Some(Fork::Local(_))),
        data_extents: core.data_extents(),
        blocks: (count(&data), count(&extents)),
    })
}
