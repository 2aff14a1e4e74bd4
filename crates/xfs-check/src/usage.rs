//! Usage by users, groups and projects, and what their quotas state.

use std::collections::BTreeMap;

use xfs_format::dquot::dquot_type;
use xfs_format::features::{incompat, quota, version};
use xfs_format::{Ino, Superblock};

use crate::finding::{FindingId, Sink, Site};
use crate::volume::index;

/// What a user, group or project uses, and what its quota states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) blocks: u64,
    pub(crate) inodes: u64,
    pub(crate) stated: Option<(u64, u64)>,
}

impl Usage {
    pub(crate) fn join(&mut self, other: &Self) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.inodes = self.inodes.saturating_add(other.inodes);
        self.stated = self.stated.or(other.stated);
    }
}

/// The inodes of quotas and their types. Those below a metadata directory are not looked up.
pub(crate) fn quota_inodes(sb: &Superblock) -> Vec<(Ino, u8)> {
    if !sb.has_version_bit(version::QUOTA) || sb.has_incompat(incompat::METADIR) {
        return Vec::new();
    }
    let project = if sb.is_v5() { sb.pquotino.get() } else { 0 };
    // V4 has one inode for groups or projects.
    let group = if !sb.is_v5() && u64::from(sb.qflags.get()) & quota::PQUOTA_ACCT != 0 {
        dquot_type::PROJECT
    } else {
        dquot_type::GROUP
    };
    let all = [
        (sb.uquotino.get(), dquot_type::USER),
        (sb.gquotino.get(), group),
        (project, dquot_type::PROJECT),
    ];
    let there = all.into_iter().filter(|(ino, _)| *ino != 0 && *ino != Ino::NULL);
    there.map(|(ino, which)| (Ino(ino), which)).collect()
}

/// Compares usage where the superblock says that it was counted.
pub(crate) fn judge(sb: &Superblock, sink: &mut Sink, usage: &BTreeMap<(u8, u32), Usage>) {
    let flags = u64::from(sb.qflags.get());
    for (ino, which) in quota_inodes(sb) {
        let counted = match which {
            dquot_type::USER => quota::UQUOTA_CHKD,
            _ if !sb.is_v5() => quota::OQUOTA_CHKD,
            dquot_type::GROUP => quota::GQUOTA_CHKD,
            _ => quota::PQUOTA_CHKD,
        };
        if flags & counted == 0 {
            continue;
        }
        for ((_, id), usage) in usage.range((which, 0)..=(which, u32::MAX)) {
            let found = usage.stated.unwrap_or_default();
            if found != (usage.blocks, usage.inodes) {
                let name = index(which);
                let message = format!(
                    "quota of type {name}, id {id}: {} blocks and {} inodes, expected {} and {}",
                    found.0, found.1, usage.blocks, usage.inodes
                );
                sink.add(FindingId::QuotaCount, Site::inode(ino), message);
            }
        }
    }
}
