//! Quotas as they are read.

use xfs_format::Ino;
use xfs_format::dquot::{DquotBlock, dquot_type, dquots_per_block};
use xfs_format::inode::InodeCore;

use crate::finding::{FindingId, Site};
use crate::fork::Mapped;
use crate::scan::Scan;
use crate::usage::{Usage, quota_inodes};

impl Scan<'_> {
    /// Linux counts all inodes but those of quotas: the two of the realtime device are root's.
    pub(crate) fn count_usage(&mut self, ino: Ino, core: &InodeCore) {
        if !self.counts_quota || self.is_quota(ino) {
            return;
        }
        for (which, id) in [
            (dquot_type::USER, core.uid.get()),
            (dquot_type::GROUP, core.gid.get()),
            (dquot_type::PROJECT, core.project_id()),
        ] {
            let usage = Usage {
                blocks: core.nblocks.get(),
                inodes: 1,
                stated: None,
            };
            self.usage.entry((which, id)).or_default().join(&usage);
        }
    }

    /// Reads the quotas of a type.
    pub(crate) fn quotas(&mut self, site: Site, _core: &InodeCore, map: &Mapped) {
        let vol = self.vol;
        let ino = site.inode.unwrap_or_default();
        let Some((_, which)) = quota_inodes(&vol.superblock)
            .into_iter()
            .find(|(quota, _)| *quota == ino)
        else {
            return;
        };
        let per_block = dquots_per_block(&vol.geometry);
        for extent in &map.extents {
            for step in 0..extent.blocks {
                let block = xfs_format::FsBlock(extent.start.get().saturating_add(step.into()));
                let Some((group, within)) = vol.geometry.split(block) else {
                    return;
                };
                let Some(bytes) = vol.read_block(&mut self.sink, group, within) else {
                    return;
                };
                let first = extent
                    .offset
                    .get()
                    .saturating_add(step.into())
                    .saturating_mul(per_block.into());
                for (slot, bytes) in (0..per_block).zip(bytes.chunks_exact(size_of::<DquotBlock>())) {
                    let id = u32::try_from(first.saturating_add(slot.into())).ok();
                    let site = Site {
                        slot: Some(slot),
                        ..site.with_block(&vol.geometry, block)
                    };
                    let expect = vol.expect_inode(block, ino);
                    match DquotBlock::verify(bytes, &expect, id) {
                        Ok(found) => self.quota(site, which, id.unwrap_or_default(), &found),
                        Err(fault) => self.sink.corrupt(&fault, site, FindingId::QuotaInvalid),
                    }
                }
            }
        }
    }

    fn quota(&mut self, site: Site, which: u8, id: u32, found: &DquotBlock) {
        let dquot = &found.diskdq;
        let stated = dquot.quota_type & !dquot_type::BIGTIME;
        if stated == 0 && dquot.bcount.get() == 0 && dquot.icount.get() == 0 {
            return;
        }
        if stated != which {
            let message = format!("type is {stated}, expected {which}");
            return self.sink.add(FindingId::QuotaInvalid, site, message);
        }
        let usage = self.usage.entry((which, id)).or_default();
        usage.stated = Some((dquot.bcount.get(), dquot.icount.get()));
    }
}
