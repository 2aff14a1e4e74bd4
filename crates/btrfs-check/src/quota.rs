//! Quota groups: what each subvolume references, and what it references alone.
//!
//! File trees are walked whole once per subvolume anyway; each extent remembers the last subvolume
//! that led to it and whether there was another: 16 bytes per extent, only on volumes with quotas.
//! Groups of groups are not judged.

use std::collections::BTreeMap;

use btrfs_format::features::incompat;
use btrfs_format::{KeyType, TreeId};

use crate::finding::{FindingId as Id, Site};
use crate::noted::{Quota, Users};
use crate::walk::{Cx, Root, Shared};

/// `flags` of the status item.
const ON: u64 = 1;
const RESCAN: u64 = 1 << 1;
const INCONSISTENT: u64 = 1 << 2;

fn word(data: &[u8], number: usize) -> Option<u64> {
    let bytes = data.chunks(8).nth(number)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Reads the quota tree. `None` where the counts claim nothing: quotas off, being counted, or known
/// to be wrong.
pub(crate) fn read(cx: &mut Cx<'_>, root: &Root) -> Option<Quota> {
    let mut flags = 0;
    let mut stated = BTreeMap::new();
    let whole = cx.walk(root, Shared::Skip, &mut |_, leaf, _| {
        for (key, data) in leaf.items() {
            match key.ty {
                // Under another key it says nothing: quotas are off.
                KeyType::QGROUP_STATUS if key.objectid.get() == 0 && key.offset == 0 => {
                    flags = word(data, 2).unwrap_or(0)
                }
                // Groups of level 0 are numbered as their subvolumes.
                KeyType::QGROUP_INFO if key.offset >> 48 == 0 => {
                    if let (Some(referenced), Some(exclusive)) = (word(data, 1), word(data, 3)) {
                        stated.insert(key.offset, (referenced, exclusive));
                    }
                }
                _ => {}
            }
        }
    });
    let judged = whole && flags & (ON | RESCAN | INCONSISTENT) == ON && !cx.vol.has_incompat(incompat::SIMPLE_QUOTA);
    judged.then(|| Quota {
        users: vec![Users::default(); cx.extents.list.len()],
        referenced: BTreeMap::new(),
        stated,
    })
}

/// All file trees have been walked whole.
pub(crate) fn judge(cx: &mut Cx<'_>, quota: &Quota) {
    let mut exclusive: BTreeMap<u64, u64> = BTreeMap::new();
    for (users, extent) in quota.users.iter().zip(&cx.extents.list) {
        if users.last != 0 && !users.several {
            let sum = exclusive.entry(users.last).or_default();
            *sum = sum.saturating_add(extent.len);
        }
    }
    for (&tree, &referenced) in &quota.referenced {
        let found = (referenced, exclusive.get(&tree).copied().unwrap_or(0));
        match quota.stated.get(&tree) {
            Some(&stated) if stated == found => {}
            Some(stated) => {
                let what = format!(
                    "{} bytes referenced and {} exclusive, counted {} and {}",
                    stated.0, stated.1, found.0, found.1
                );
                cx.sink.add(Id::QuotaCount, Site::tree(TreeId(tree)), what);
            }
            None => cx.sink.add(
                Id::QuotaMissing,
                Site::tree(TreeId(tree)),
                "the subvolume has no quota group",
            ),
        }
    }
}
