//! The extents of a fork: from the inode or from its tree.

use xfs_format::btree::{Bmap, BmapRecord, RmapOwner, rmap_offset};
use xfs_format::inode::{Fork, ForkKind, mode};
use xfs_format::{AgNumber, DaBlock, Extent, FileBlock, FsBlock, Inode};

use crate::claims::Claim;
use crate::finding::{FindingId, Sink, Site};
use crate::scan::Scan;
use crate::tree::{Child, Walk, walk};
use crate::volume::Volume;

/// A fork as it was read.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    /// The extents, but for those of files, which are not looked up.
    pub(crate) extents: Vec<Extent>,
    /// Blocks of contents and tree.
    pub(crate) blocks: u64,
    /// True where all of it could be read.
    pub(crate) is_whole: bool,
}

impl Mapped {
    /// The block of the volume that holds a block of the fork.
    pub(crate) fn block(&self, at: u64) -> Option<FsBlock> {
        let slot = self.extents.partition_point(|extent| extent.offset.get() <= at);
        let extent = self.extents.get(slot.checked_sub(1)?)?;
        let within = at.checked_sub(extent.offset.get())?;
        let block = extent.start.get().checked_add(within)?;
        (within < extent.blocks.into()).then_some(FsBlock(block))
    }
    /// One behind the last block that is mapped.
    pub(crate) fn end(&self) -> u64 {
        self.extents.last().map_or(0, |extent| extent.end().get())
    }
}

struct Counts {
    extents: u64,
    blocks: u64,
    end: FileBlock,
}

impl Scan<'_> {
    /// Reads a fork and claims its blocks.
    pub(crate) fn map(&mut self, site: Site, inode: &Inode, kind: ForkKind) -> Mapped {
        let Some(fork) = inode.fork(kind) else {
            return Mapped {
                is_whole: true,
                ..Mapped::default()
            };
        };
        let core = inode.core();
        let is_attr = kind == ForkKind::Attr;
        let is_file = !is_attr && core.file_type() == mode::REGULAR;
        let is_realtime = !is_attr && core.is_realtime();
        let ino = site.inode.unwrap_or_default();
        let keep = !is_file || self.is_quota(ino);
        let mut mapped = Mapped {
            is_whole: true,
            ..Mapped::default()
        };
        let mut counts = Counts {
            extents: 0,
            blocks: 0,
            end: FileBlock(0),
        };
        let vol = self.vol;
        let fork_flag = if is_attr { rmap_offset::ATTR_FORK } else { 0 };
        let claims = &mut self.claims;
        let mut take = |sink: &mut Sink, site: Site, record: &BmapRecord| {
            let extent = record.extent();
            if extent.offset < counts.end {
                let message = format!(
                    "an extent of the fork begins at block {}, before {}, the end of the one before",
                    extent.offset, counts.end
                );
                sink.add(FindingId::ExtentInvalid, site, message);
            }
            if extent.is_unwritten && !is_file {
                sink.add(
                    FindingId::ExtentInvalid,
                    site,
                    format!(
                        "the extent at block {} is unwritten, which only those of files can be",
                        extent.offset
                    ),
                );
            }
            counts.end = extent.end();
            counts.extents = counts.extents.saturating_add(1);
            counts.blocks = counts.blocks.saturating_add(extent.blocks.into());
            if !is_realtime {
                let unwritten = if extent.is_unwritten { rmap_offset::UNWRITTEN } else { 0 };
                let offset = extent.offset.get() | fork_flag | unwritten;
                match Claim::of_fork(&vol.geometry, ino, extent.start, extent.blocks, offset) {
                    Some((group, claim)) if vol.geometry.is_extent(extent.start, extent.blocks.into()) => {
                        claims.push(group, claim);
                    }
                    _ => sink.add(
                        FindingId::ExtentInvalid,
                        site,
                        format!(
                            "the extent at block {} lies at {}, outside of the volume",
                            extent.offset, extent.start
                        ),
                    ),
                }
            }
            if keep {
                mapped.extents.push(extent);
            }
        };
        let stated = if is_attr {
            core.attr_extents().into()
        } else {
            core.data_extents()
        };
        let mut tree_claims: Vec<(AgNumber, Claim)> = Vec::new();
        match fork {
            Fork::Dev(_) | Fork::Local(_) => {}
            Fork::Extents(records) => records.iter().for_each(|record| take(&mut self.sink, site, record)),
            Fork::Btree(root) => {
                let level = root.level.saturating_sub(1);
                let children = root.keys.iter().zip(root.pointers);
                let children = children
                    .map(|(key, ptr)| Child {
                        ptr: *ptr,
                        key: Some(*key),
                    })
                    .collect();
                let is_whole = walk::<Bmap>(
                    vol,
                    &mut self.sink,
                    &Walk::of_inode(ino, level),
                    children,
                    &mut |group, block| {
                        let claim = Claim {
                            offset: rmap_offset::BMBT_BLOCK | fork_flag,
                            ..Claim::new(block, 1, RmapOwner::Inode(ino))
                        };
                        tree_claims.push((group, claim));
                    },
                    &mut |sink, site, records| records.iter().for_each(|record| take(sink, site, record)),
                );
                mapped.is_whole = is_whole;
            }
        }
        let Counts { extents, blocks, .. } = counts;
        mapped.blocks = blocks.saturating_add(u64::try_from(tree_claims.len()).unwrap_or_default());
        for (group, claim) in tree_claims {
            self.claims.push(group, claim);
        }
        let sum = &mut self.sink.report.statistics.extents;
        *sum = sum.saturating_add(extents);
        if mapped.is_whole && extents != stated {
            let name = if is_attr { "naextents" } else { "nextents" };
            self.sink.add(
                FindingId::InodeExtents,
                site,
                format!("{name} is {stated}, expected {extents}"),
            );
        }
        mapped
    }

    /// Blocks of a directory or of attributes: bytes, and the first block of the volume.
    pub(crate) fn read_mapped(
        &mut self,
        site: Site,
        map: &Mapped,
        at: DaBlock,
        blocks: u32,
        id: FindingId,
    ) -> Option<(Vec<u8>, FsBlock)> {
        let vol: &Volume = self.vol;
        let mut bytes = Vec::new();
        let first = map.block(at.get().into());
        for step in 0..u64::from(blocks) {
            let offset = u64::from(at.get()).saturating_add(step);
            let found = map.block(offset).and_then(|block| vol.geometry.split(block));
            let Some((group, block)) = found else {
                self.sink
                    .broken(id, site, format!("block {offset} of the fork is not mapped"));
                return None;
            };
            bytes.extend(vol.read_block(&mut self.sink, group, block)?);
        }
        Some((bytes, first?))
    }
}
