//! What `statfs` says of space: the numbers that Linux gives for the same volume.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use btrfs_format::TreeId;
use btrfs_format::features::compat_ro;
use btrfs_format::items::STRIPE_LEN_BYTES;
use btrfs_format::superblock::DEVICE_RESERVED_BYTES;

use super::ledger::Pool;
use super::placement::Device;
use super::profile::Profile;
use super::{Space, chunks::pool_of};

/// Bytes as `df` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStat {
    /// Size of all devices, divided by the copies of data.
    pub total_bytes: u64,
    /// What is not in use, divided by the copies of data, less the global reserve.
    pub free_bytes: u64,
    /// What data can still take: free space of data groups, and of data chunks that can be made; 0
    /// where metadata has run out.
    pub available_bytes: u64,
}

/// Metadata left, beyond the global reserve, below which nothing counts as available.
const METADATA_LOW_BYTES: u64 = 4 << 20;

/// What a data chunk could at most fill of the devices: raw bytes over all its copies.
///
/// Takes the fullest devices that still form a stripe set together, and goes on with what is left
/// of the others.
fn raw_bytes_for_data(devices: &[Device], profile: Profile) -> u64 {
    let per_device = profile.dev_stripes * STRIPE_LEN_BYTES;
    let mut left: Vec<u64> = devices
        .iter()
        .filter(|d| d.writable)
        .map(|d| d.total_bytes.saturating_sub(d.used_bytes))
        .map(|bytes| bytes - bytes % STRIPE_LEN_BYTES)
        .filter(|bytes| *bytes > DEVICE_RESERVED_BYTES + per_device)
        .map(|bytes| bytes - DEVICE_RESERVED_BYTES)
        .collect();
    left.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let mut width = match profile.devs_max {
        Some(max) => max,
        // RAID10 spreads over all devices, but its smallest set is what fills them best.
        None if profile.copies > 1 => 4,
        None => left.len(),
    };
    let mut total = 0;
    while left.len() >= profile.devs_min.max(1) {
        width = width.min(left.len());
        let least = left.pop().unwrap_or(0);
        if least >= per_device {
            total += least * width as u64;
            let others = left.len() - (width - 1);
            for bytes in &mut left[others..] {
                *bytes -= least;
            }
        }
    }
    total
}

impl Space {
    /// Bytes that tree blocks take, each counted once whatever the profile.
    pub fn metadata_used_bytes(&self) -> u64 {
        let groups = self.groups.read();
        let trees = groups
            .values()
            .filter(|group| pool_of(group.flags) == Some(Pool::Metadata));
        trees.map(|group| group.used_bytes()).sum()
    }

    /// Total, free and available bytes.
    pub fn stat(&self) -> SpaceStat {
        let sb = self.volume.superblock();
        let global_reserve = self.shown_reserve_bytes.load(Ordering::Relaxed);
        let chunks = self.chunks.lock();
        let data_profile = chunks.profile(Pool::Data);
        let addable_data = data_profile.map_or(0, |profile| raw_bytes_for_data(&chunks.devices, profile));
        let metadata_full = chunks.place(self.ledger.meta_pool()).is_none();
        drop(chunks);
        let (mut used_raw, mut data_free_raw, mut metadata_free) = (0, 0, 0);
        let mut data_factor = 1;
        for group in self.groups.read().values() {
            let factor = Profile::of(group.flags).factor();
            let used = group.used_bytes();
            used_raw += used * factor;
            let free = group.shape.len_bytes - used;
            match pool_of(group.flags) {
                Some(Pool::Data) => {
                    data_free_raw += free * factor;
                    data_factor = factor;
                }
                Some(Pool::Metadata) => metadata_free += free * factor,
                Some(Pool::System) | None => {}
            }
        }
        let total_bytes = sb.total_bytes.get() / data_factor;
        let free_bytes = total_bytes
            .saturating_sub(used_raw / data_factor)
            .saturating_sub(global_reserve);
        let mut available_bytes = (data_free_raw + addable_data) / data_factor;
        let metadata_low = metadata_free.saturating_sub(METADATA_LOW_BYTES) < global_reserve;
        if !self.mixed && metadata_full && metadata_low {
            available_bytes = 0;
        }
        SpaceStat {
            total_bytes,
            free_bytes,
            available_bytes,
        }
    }
}

/// The global reserve as Linux counts (and shows) it: the size of the trees that every commit
/// changes, and not less than what some worst cases of single items would take. Ours, which counts
/// leaves, is smaller.
pub(super) fn shown_reserve_bytes(compat_ro_flags: u64, nodesize_bytes: u64, trees: &BTreeMap<TreeId, u64>) -> u64 {
    const RESERVE_BYTES_MAX: u64 = 512 << 20;
    /// Blocks of one worst case: two for each of eight levels.
    const ITEM_BLOCKS: u64 = 16;
    /// An unlink, in worst cases, and again for its references.
    const UNLINK_ITEMS: u64 = 6;
    let has = |bit: u64| u64::from(compat_ro_flags & bit != 0);
    // Root, extent and checksum tree, each once.
    let roots = 3 + has(compat_ro::FREE_SPACE_TREE) + has(compat_ro::BLOCK_GROUP_TREE);
    // References cost twice as much where they change a free-space tree.
    let items = roots + UNLINK_ITEMS + UNLINK_ITEMS * (1 + has(compat_ro::FREE_SPACE_TREE));
    let least = items * ITEM_BLOCKS * nodesize_bytes;
    let counted = trees.iter().filter(|(id, _)| **id != TreeId::DEV);
    let used: u64 = counted.map(|(_, bytes)| bytes).sum();
    used.max(least).min(RESERVE_BYTES_MAX)
}
