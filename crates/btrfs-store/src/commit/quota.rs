//! Quota groups: we do not count for them, so the kernel must count anew after we wrote.

use std::sync::atomic::Ordering;

use btrfs_format::items::QgroupStatus;
use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::Committer;
use crate::error::Result;

/// `flags` of the status item: accounting is on; its numbers are not to be trusted.
const STATUS_ON: u64 = 1 << 0;
const STATUS_INCONSISTENT: u64 = 1 << 2;

impl Committer<'_> {
    /// Marks the numbers of quota groups as inconsistent, once per mount, where quotas are on.
    pub(super) fn mark_quotas_inconsistent(&mut self) -> Result<()> {
        if self.store.jobs().quota_settled.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let Some(tree) = self.store.forest().load(TreeId::QUOTA)? else {
            return Ok(());
        };
        let key = Key::new(ObjectId(0), KeyType::QGROUP_STATUS, 0);
        let Some(item) = tree.get_committed(&key)? else {
            return Ok(());
        };
        let mut bytes = item.to_vec();
        let Ok((status, _)) = QgroupStatus::mut_from_prefix(&mut bytes) else {
            return Ok(());
        };
        let flags = status.flags.get();
        if flags & STATUS_ON == 0 || flags & STATUS_INCONSISTENT != 0 {
            return Ok(());
        }
        status.flags = U64::new(flags | STATUS_INCONSISTENT);
        self.merge_edits(TreeId::QUOTA, vec![(key, Some(bytes.into()))])
    }
}
