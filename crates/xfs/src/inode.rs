//! Inodes, and where the contents of their forks lie.

use std::ops::ControlFlow;

use cowshed_vfs::{Attr, Error as Errno, FileKind, PERM_MASK, Timestamp, rdev};
use xfs_format::btree::{BlockPtr, Bmap};
use xfs_format::inode::{Fork, ForkKind, InodeCore};
use xfs_format::{Daddr, Extent, Ino, Inode, Owner};

use crate::error::{Error, Result};
use crate::tree::{self, Root};
use crate::volume::{Volume, Window};

/// An inode in use.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub ino: Ino,
    pub core: InodeCore,
    pub kind: FileKind,
    inode: Inode,
}

/// The address of an inode's block, and its offset there.
fn place(volume: &Volume, ino: Ino) -> Result<(Daddr, u32)> {
    let geometry = volume.geometry();
    let (group, within) = geometry.split_ino(ino).ok_or(Errno::Stale)?;
    let daddr = geometry.ag_daddr(group, geometry.ino_block(within));
    Ok((daddr, geometry.ino_offset_bytes(within)))
}

impl Object {
    /// Loads an inode. Errors: `Stale` where no inode has this number or it is free.
    pub(crate) fn load(volume: &Volume, ino: Ino) -> Result<Self> {
        let (daddr, offset) = place(volume, ino)?;
        Self::of(ino, volume.inode(daddr, offset, Owner::Inode(ino))?)
    }

    /// As [`Object::load`], for one of a listing. `window`: where the last one was.
    pub(crate) fn load_near(volume: &Volume, window: &mut Window, ino: Ino) -> Result<Self> {
        let (daddr, offset) = place(volume, ino)?;
        Self::of(ino, volume.inode_near(window, daddr, offset, Owner::Inode(ino))?)
    }

    fn of(ino: Ino, inode: Inode) -> Result<Self> {
        let core = inode.core();
        let kind = FileKind::from_mode(core.mode.get().into()).ok_or(Errno::Stale)?;
        Ok(Self { ino, core, kind, inode })
    }

    pub(crate) fn damaged(&self, what: &'static str) -> Error {
        Error::Inconsistent {
            what,
            ino: self.ino.get(),
        }
    }

    pub(crate) fn fork(&self, kind: ForkKind) -> Option<Fork<'_>> {
        self.inode.fork(kind)
    }

    pub(crate) fn size(&self) -> u64 {
        self.core.size.get()
    }

    /// What stat shows.
    pub(crate) fn attr(&self, volume: &Volume) -> Attr {
        let core = &self.core;
        let time = |raw| {
            let time = core.time(raw);
            Timestamp::new(time.sec, time.nsec)
        };
        let block_bytes = volume.geometry().block_bytes;
        Attr {
            ino: self.ino.get(),
            size_bytes: core.size.get(),
            blocks_512: core.nblocks.get().saturating_mul(u64::from(block_bytes / 512)),
            is_estimate: false,
            blksize: block_bytes.max(4096),
            kind: self.kind,
            perm: u32::from(core.mode.get()) & PERM_MASK,
            nlink: core.link_count(),
            uid: core.uid.get(),
            gid: core.gid.get(),
            rdev: match (self.kind, self.fork(ForkKind::Data)) {
                // Packed as System V did: 14 bits of major, 18 of minor.
                (FileKind::BlockDevice | FileKind::CharDevice, Some(Fork::Dev(dev))) => rdev(dev >> 18, dev & 0x3_ffff),
                _ => 0,
            },
            atime: time(core.atime),
            mtime: time(core.mtime),
            ctime: time(core.ctime),
            // V4 keeps none; the kernel shows zero.
            btime: if core.version >= 3 {
                time(core.crtime)
            } else {
                Timestamp::new(0, 0)
            },
        }
    }

    /// Visits extents of a fork in order, from the one that covers `block` or the next one.
    pub(crate) fn extents(
        &self,
        volume: &Volume,
        kind: ForkKind,
        block: u64,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        match self.fork(kind) {
            None => Ok(()),
            Some(Fork::Extents(records)) => {
                let first = records.partition_point(|record| record.extent().end().get() <= block);
                let _ = records.iter().skip(first).try_for_each(|record| visit(record.extent()));
                Ok(())
            }
            Some(Fork::Btree(root)) => {
                let slot = root.keys.partition_point(|key| key.startoff.get() <= block);
                let child = root.pointers.get(slot.saturating_sub(1));
                let child = child.ok_or_else(|| self.damaged("root of the bmbt"))?;
                let below = Root {
                    owner: Owner::Inode(self.ino),
                    block: child.number(),
                    level: root.level.saturating_sub(1),
                };
                tree::visit::<Bmap>(volume, below, block, &mut |record| {
                    let extent = record.extent();
                    if extent.end().get() <= block {
                        return ControlFlow::Continue(());
                    }
                    visit(extent)
                })
            }
            Some(Fork::Dev(_) | Fork::Local(_)) => Err(self.damaged("fork")),
        }
    }

    /// The first extent that ends behind `block`.
    pub(crate) fn extent_from(&self, volume: &Volume, kind: ForkKind, block: u64) -> Result<Option<Extent>> {
        let mut found = None;
        self.extents(volume, kind, block, &mut |extent| {
            found = Some(extent);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Where blocks of a fork lie, all of which must be there.
    pub(crate) fn parts(&self, volume: &Volume, kind: ForkKind, block: u64, blocks: u32) -> Result<Vec<(Daddr, u32)>> {
        let geometry = volume.geometry();
        let end = block + u64::from(blocks);
        let (mut at, mut parts) = (block, Vec::new());
        let mut is_damaged = false;
        self.extents(volume, kind, block, &mut |extent| {
            if extent.offset.get() > at || at >= end {
                return ControlFlow::Break(());
            }
            let take = extent.end().get().min(end) - at;
            let start = xfs_format::FsBlock(extent.start.get() + (at - extent.offset.get()));
            match (
                geometry.daddr(start),
                u32::try_from(take * u64::from(geometry.block_bytes)),
            ) {
                (Some(daddr), Ok(len)) => parts.push((daddr, len)),
                _ => is_damaged = true,
            }
            at += take;
            if at < end && !is_damaged {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        if at < end || is_damaged {
            return Err(self.damaged("fork: a block is missing"));
        }
        Ok(parts)
    }
}
