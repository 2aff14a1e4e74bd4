//! An entry of the index by hash: in leaves, and at the end of the block form.

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::corrupt::{Checked, field};
use crate::da::hash_order;

on_disk!(
    /// `xfs_dir2_leaf_entry`: the hash of a name, and where its entry lies.
    /// docs/format/xfs/directories.md
    DirLeafEntry(8) { hashval: U32, address: U32 }
);

/// `address` of an entry that is gone.
pub const STALE_ADDRESS: u32 = 0;

impl DirLeafEntry {
    /// True where the entry is gone.
    pub fn is_stale(&self) -> bool {
        self.address.get() == STALE_ADDRESS
    }
}

/// Checks order and number of stale entries.
pub(super) fn check_leaf_entries(entries: &[DirLeafEntry], stale: u32) -> Checked {
    let (mut before, mut found) = (0, 0_u32);
    for (slot, entry) in entries.iter().enumerate() {
        hash_order(before, entry.hashval.get()).map_err(|fault| fault.in_slot(slot))?;
        before = entry.hashval.get();
        found = found.saturating_add(u32::from(entry.is_stale()));
    }
    field("stale", stale, Rule::Equal(found.into()))
}
