//! Unlinked inodes that the kernel's recovery could not free.
//!
//! Linux frees attributes in steps: one transaction cancels the root of their tree, a later one
//! takes it from the inode. A crash between them leaves an inode whose root was never written. The
//! kernel's recovery wants to read it, fails ("Metadata corruption detected at
//! xfs_da3_node_read_verify"), and leaves the inode on its list for ever. Ours frees what the inode
//! holds, and reads no such block.
//!
//! Likewise it frees the blocks of large values first: a leaf that names values without blocks
//! fails after a crash ("Internal error map->br_startblock == HOLESTARTBLOCK",
//! `xfs_attr_rmtval_stale`).

use anyhow::{Result, bail, ensure};
use xfs_format::ag::AgiSector;
use xfs_format::attr::{AttrLeafBlock, AttrValueView, remote_blocks};
use xfs_format::btree::BmapRecord;
use xfs_format::da::AttrNodeBlock;
use xfs_format::inode::{Fork, ForkKind, Inode};
use xfs_format::{AgIno, AgNumber, Daddr, Expect, Extent, FsBlock, Geometry, Ino};

/// What they hold.
#[derive(Debug, Default, PartialEq)]
pub struct Left {
    pub inodes: u64,
    pub blocks: u64,
}

/// Free blocks, inodes and free inodes.
pub type Counters = (u64, u64, u64);

impl Left {
    /// On the lists of a volume that the kernel has closed. Errors: an inode is there for another
    /// reason.
    pub fn find(geometry: &Geometry, image: &[u8]) -> Result<Left> {
        let mut left = Left::default();
        for group in (0..geometry.ag_count).map(AgNumber) {
            let daddr = geometry.header_daddr(group, 2);
            let sector = bytes(image, daddr, geometry.sector_bytes)?;
            let agi = AgiSector::verify(sector, &Expect::in_ag(geometry, daddr, group))?;
            for first in agi.agi().unlinked {
                let mut next = first.get();
                while next != AgIno::NULL {
                    ensure!(left.inodes < 1000, "a list of unlinked inodes has no end");
                    next = left.add(geometry, image, geometry.join_ino(group, AgIno(next)))?;
                }
            }
        }
        Ok(left)
    }

    /// Counts an inode. The result: the next one of its list.
    fn add(&mut self, geometry: &Geometry, image: &[u8], ino: Ino) -> Result<u32> {
        let Some((group, within)) = geometry.split_ino(ino) else {
            bail!("inode {ino} is not of the volume");
        };
        let daddr = geometry.ag_daddr(group, geometry.ino_block(within));
        let sector = Daddr(daddr.get() + u64::from(geometry.ino_offset_bytes(within) / 512));
        let expect = Expect::of_inode(geometry, daddr, ino);
        let inode = Inode::verify(bytes(image, sector, geometry.inode_bytes)?, &expect)?;
        let core = inode.core();
        ensure!(
            core.link_count() == 0 && core.data_extents() == 0,
            "the kernel left inode {ino} on a list, with {} links and {} extents",
            core.link_count(),
            core.data_extents()
        );
        let Some(root) = root_of_attributes(&inode) else {
            bail!("the kernel left inode {ino} on a list, without a tree of attributes");
        };
        let root = geometry.daddr(root).unwrap_or(Daddr(u64::MAX));
        // A block of another inode may have been there before.
        let expect = Expect::of_inode(geometry, root, ino);
        let root = bytes(image, root, geometry.block_bytes)?;
        let is_there =
            AttrLeafBlock::verify(&root[..], &expect).is_ok() || AttrNodeBlock::verify(root, &expect).is_ok();
        ensure!(
            !is_there || names_lost_values(geometry, image, &inode, ino)?,
            "the kernel left inode {ino} on a list, whose attributes have a root and all values"
        );
        self.inodes += 1;
        self.blocks += core.nblocks.get();
        Ok(core.next_unlinked.get())
    }

    /// The counters of the kernel's volume if it had freed them, too. A chunk that is empty then
    /// goes: how many inodes are left is known from ours.
    pub fn freed(&self, geometry: &Geometry, kernel: Counters, our_inodes: u64) -> Counters {
        let (blocks, inodes, free) = kernel;
        if self.inodes == 0 {
            return kernel;
        }
        let gone = inodes.saturating_sub(our_inodes);
        (
            blocks + self.blocks + (gone >> geometry.inodes_per_block_log),
            inodes - gone,
            (free + self.inodes).saturating_sub(gone),
        )
    }
}

fn root_of_attributes(inode: &Inode) -> Option<FsBlock> {
    let Some(Fork::Extents(records)) = inode.fork(ForkKind::Attr) else {
        return None;
    };
    let first = records.first()?.extent();
    (first.offset.get() == 0).then_some(first.start)
}

/// True where a leaf of attributes names a value whose blocks are not the inode's any more.
fn names_lost_values(geometry: &Geometry, image: &[u8], inode: &Inode, ino: Ino) -> Result<bool> {
    let Some(Fork::Extents(records)) = inode.fork(ForkKind::Attr) else {
        return Ok(false);
    };
    let extents: Vec<Extent> = records.iter().map(BmapRecord::extent).collect();
    let is_mapped = |block: u64| {
        let holds = |extent: &Extent| (extent.offset.get()..extent.end().get()).contains(&block);
        extents.iter().any(holds)
    };
    for extent in &extents {
        for block in extent.start.get()..extent.start.get() + u64::from(extent.blocks) {
            let daddr = geometry.daddr(FsBlock(block)).unwrap_or(Daddr(u64::MAX));
            let block = bytes(image, daddr, geometry.block_bytes)?;
            // A node, or a value.
            let Ok(leaf) = AttrLeafBlock::verify(block, &Expect::of_inode(geometry, daddr, ino)) else {
                continue;
            };
            let lost = leaf.entries().any(|entry| match entry.value {
                AttrValueView::Local(_) => false,
                AttrValueView::Remote { block, len_bytes } => {
                    let first = u64::from(block.get());
                    !(first..first + u64::from(remote_blocks(len_bytes, geometry))).all(is_mapped)
                }
            });
            if lost {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn bytes(image: &[u8], daddr: Daddr, len: u32) -> Result<Vec<u8>> {
    let from = daddr.checked_bytes().map(|at| at as usize);
    let found = from.and_then(|from| image.get(from..from.checked_add(len as usize)?));
    found.map_or_else(
        || bail!("daddr {daddr} is not of the volume"),
        |found| Ok(found.to_vec()),
    )
}
