//! Replay of quotas. Those of a type that is switched off later in the log are left alone.

use std::mem::offset_of;

use xfs_format::dquot::{DiskDquot, DquotBlock, dquot_type};
use xfs_format::features::quota;
use xfs_format::log::{BufFormat, ByteOrder, DquotLogFormat, QuotaoffLogFormat, buf_flags};
use xfs_format::{Daddr, Lsn, Superblock};
use zerocopy::FromBytes as _;

use super::disk::Disk;
use crate::error::Result;

/// Which quotas are replayed.
pub(super) struct Quotas {
    off: u8,
}

impl Quotas {
    /// Those that the superblock accounts.
    pub(super) fn new(sb: &Superblock) -> Self {
        let flags = u64::from(sb.qflags.get());
        let off = |bit: u64, ty: u8| if flags & bit == 0 { ty } else { 0 };
        Self {
            off: off(quota::UQUOTA_ACCT, dquot_type::USER)
                | off(quota::PQUOTA_ACCT, dquot_type::PROJECT)
                | off(quota::GQUOTA_ACCT, dquot_type::GROUP),
        }
    }

    /// Notes what is switched off: the first pass.
    pub(super) fn switch_off(&mut self, item: &QuotaoffLogFormat, order: ByteOrder) {
        let flags = u64::from(item.flags.get(order));
        for (bit, ty) in [
            (quota::UQUOTA_ACCT, dquot_type::USER),
            (quota::PQUOTA_ACCT, dquot_type::PROJECT),
            (quota::GQUOTA_ACCT, dquot_type::GROUP),
        ] {
            if flags & bit != 0 {
                self.off |= ty;
            }
        }
    }

    /// True where a buffer holds quotas that are left alone.
    pub(super) fn skips(&self, buf: &BufFormat) -> bool {
        let types = [
            (buf_flags::UDQUOT, dquot_type::USER),
            (buf_flags::PDQUOT, dquot_type::PROJECT),
            (buf_flags::GDQUOT, dquot_type::GROUP),
        ];
        types
            .iter()
            .any(|(flag, ty)| buf.flags & flag != 0 && self.off & ty != 0)
    }

    /// Replays a quota, unless the disk has a newer one.
    pub(super) fn replay(
        &self,
        disk: &mut Disk,
        format: &DquotLogFormat,
        dquot: &DiskDquot,
        order: ByteOrder,
        lsn: Lsn,
    ) -> Result<()> {
        if dquot.quota_type & self.off & !dquot_type::BIGTIME != 0 {
            return Ok(());
        }
        let (daddr, offset) = (Daddr(format.blkno.get(order)), format.boffset.get(order));
        let len = format.len.get(order).saturating_mul(512).min(65536);
        let block = disk.read(daddr, len)?;
        let is_v5 = disk.geometry.is_v5();
        let on_disk = block
            .get(offset as usize..)
            .and_then(|rest| DquotBlock::read_from_prefix(rest).ok())
            .map(|(block, _)| Lsn(block.lsn.get()));
        if is_v5 && on_disk.is_some_and(|found| found != Lsn(0) && found != Lsn::NULL && found >= lsn) {
            return Ok(());
        }
        let sealed = DquotBlock::seal(dquot, &disk.expect(daddr), lsn)?;
        let used = if is_v5 { sealed.len() } else { size_of::<DiskDquot>() };
        debug_assert!(offset_of!(DquotBlock, diskdq) == 0);
        disk.write_within(daddr, offset, sealed.get(..used).unwrap_or_default())
    }
}
