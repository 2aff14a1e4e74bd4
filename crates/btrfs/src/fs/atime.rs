//! When reading changes the time of the last access.

use std::sync::Arc;

use cowshed_vfs::Timestamp;

use super::Fs;
use crate::error::Result;
use crate::object::{Inode, InodeAttr, flags};
use btrfs_store::space::Budget;

/// Mount options `relatime`, `strictatime`, `noatime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimePolicy {
    /// Only where the last access is not after the last change, or a day ago.
    #[default]
    Relative,
    /// Each access (`strictatime`).
    Always,
    /// No access (`noatime`).
    Never,
}

const DAY_SECS: i64 = 86_400;

impl AtimePolicy {
    fn wants(self, attr: &InodeAttr, now: Timestamp) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Relative => {
                attr.atime <= attr.mtime
                    || attr.atime <= attr.ctime
                    || now.secs.saturating_sub(attr.atime.secs) >= DAY_SECS
            }
        }
    }
}

impl Fs {
    /// Notes that an inode was read. Failing to note it is no failure of the reading.
    pub(super) fn note_access(&self, inode: &Arc<Inode>) {
        let objects = &self.mount.objects();
        if self.options.atime == AtimePolicy::Never
            || (self.options.nodiratime && inode.is_dir())
            || inode.is_placeholder()
            || inode.subvol.has_fixed_names()
            || objects.is_read_only()
            || self.options.read_only
        {
            return;
        }
        let now = self.mount.store().env().now();
        let attr = inode.attr_now();
        if attr.flags & flags::NOATIME != 0 || attr.nlink == 0 || !self.options.atime.wants(&attr, now) {
            return;
        }
        if let Err(error) = self.write_atime(inode, now) {
            tracing::debug!(%error, "the time of an access was not noted");
        }
    }

    fn write_atime(&self, inode: &Arc<Inode>, now: Timestamp) -> Result<()> {
        let space = self.mount.reserve(Budget::SETATTR)?;
        let join = self.mount.store().txn().join();
        let mut state = inode.attr.lock();
        if state.attr.nlink == 0 {
            return Ok(());
        }
        state.attr.atime = now;
        state.attr.transid = join.generation();
        let mut batch = btrfs_store::txn::Batch::new();
        batch.put(&inode.tree, inode.key(), inode.item_bytes(&state));
        join.apply(batch, space);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatime_moves_once_after_a_change_and_once_a_day() {
        let at = |secs| Timestamp { secs, nanos: 0 };
        let item: btrfs_format::items::InodeItem = zerocopy::FromZeros::new_zeroed();
        let mut attr = InodeAttr::decode(&item);
        (attr.atime, attr.mtime, attr.ctime) = (at(100), at(100), at(50));
        assert!(AtimePolicy::Relative.wants(&attr, at(101)));
        attr.atime = at(101);
        assert!(!AtimePolicy::Relative.wants(&attr, at(200)));
        assert!(AtimePolicy::Relative.wants(&attr, at(101 + DAY_SECS)));
        assert!(AtimePolicy::Always.wants(&attr, at(102)) && !AtimePolicy::Never.wants(&attr, at(1 << 40)));
    }
}
