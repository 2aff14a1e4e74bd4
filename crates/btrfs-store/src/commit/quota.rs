//! Quota groups: we do not count for them, so the kernel must count anew after we wrote.

use std::sync::atomic::Ordering;

use btrfs_format::items::QgroupStatus;
use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::Committer;
use crate::error::Result;

/// `flags` of the status item: accounting is on; a count of all extents is under way; the numbers
/// are not to be trusted.
const STATUS_ON: u64 = 1 << 0;
const STATUS_RESCAN: u64 = 1 << 1;
const STATUS_INCONSISTENT: u64 = 1 << 2;

impl Committer<'_> {
    /// Marks the numbers of quota groups as inconsistent, once per mount, where quotas are on.
    ///
    /// A rescan that was interrupted ends here: Linux would go on with it where it stopped, miss
    /// what we changed before that, and take the numbers for right.
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
        let marked = (flags & !STATUS_RESCAN) | STATUS_INCONSISTENT;
        if flags & STATUS_ON == 0 || flags == marked {
            return Ok(());
        }
        status.flags = U64::new(marked);
        self.merge_edits(TreeId::QUOTA, vec![(key, Some(bytes.into()))])
    }
}
