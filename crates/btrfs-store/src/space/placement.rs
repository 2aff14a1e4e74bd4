//! Where a new chunk goes: device holes, stripe length, number of stripes. Pure; sizes as Linux
//! chooses them.

use std::ops::Range;

use btrfs_format::features::block_group;
use btrfs_format::items::STRIPE_LEN_BYTES;
use btrfs_format::superblock::DEVICE_RESERVED_BYTES;
use btrfs_format::{DevId, Uuid};

use super::profile::Profile;
use super::ranges::RangeSet;
use crate::volume::Chunk;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Longest stripe of any chunk on one device.
const STRIPE_BYTES_MAX: u64 = GIB;
/// Most data of a data (or mixed) chunk over all its stripes.
const DATA_CHUNK_BYTES_MAX: u64 = 10 * GIB;
/// Volumes above this take metadata in [`METADATA_CHUNK_BYTES_BIG`].
const BIG_VOLUME_BYTES: u64 = 50 * GIB;
const METADATA_CHUNK_BYTES: u64 = 256 * MIB;
const METADATA_CHUNK_BYTES_BIG: u64 = GIB;
const SYSTEM_CHUNK_BYTES_MAX: u64 = 32 * MIB;
/// No chunk holds more than this share of the writable devices.
const CHUNK_SHARE_DIVISOR: u64 = 10;
/// Where the data limit cuts stripes shorter, they stay a multiple of this.
const CUT_STRIPE_ALIGN_BYTES: u64 = 16 * MIB;
/// Most devices of a chunk: what fits a chunk item in a 16 KiB leaf is more, in the superblock's
/// array less.
const CHUNK_DEVICES_MAX: usize = 256;
const SYSTEM_CHUNK_DEVICES_MAX: usize = 31;

/// What is taken of one device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub devid: DevId,
    pub uuid: Uuid,
    pub total_bytes: u64,
    /// As the device item counts: the sum of its device extents.
    pub used_bytes: u64,
    pub writable: bool,
    /// Device extents, by device offset.
    pub taken: RangeSet,
}

impl Device {
    /// The first hole of at least `want_bytes`, else the biggest one (the first of them).
    fn find_hole(&self, want_bytes: u64) -> Range<u64> {
        let mut best = DEVICE_RESERVED_BYTES..DEVICE_RESERVED_BYTES;
        let mut at = DEVICE_RESERVED_BYTES;
        let end = self.total_bytes;
        let tail = std::iter::once(end..end);
        for taken in self.taken.iter().chain(tail) {
            let hole = at..taken.start.min(end).max(at);
            if hole.end - hole.start > best.end - best.start {
                best = hole.clone();
            }
            if best.end - best.start >= want_bytes {
                break;
            }
            at = at.max(taken.end);
        }
        best
    }
}

/// A chunk to be: where its stripes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub profile: Profile,
    pub stripe_bytes: u64,
    /// Bytes of data that it holds.
    pub chunk_bytes: u64,
    /// Index of the device, device offset; in the order of the chunk item.
    pub stripes: Vec<(usize, u64)>,
}

fn chunk_bytes_max(type_flags: u64, writable_bytes: u64) -> u64 {
    if type_flags & block_group::DATA != 0 {
        DATA_CHUNK_BYTES_MAX
    } else if type_flags & block_group::SYSTEM != 0 {
        SYSTEM_CHUNK_BYTES_MAX
    } else if writable_bytes > BIG_VOLUME_BYTES {
        METADATA_CHUNK_BYTES_BIG
    } else {
        METADATA_CHUNK_BYTES
    }
}

/// Finds room for a chunk of `type_flags` (DATA, METADATA, SYSTEM bits); `None` where the devices
/// have none.
pub(super) fn place(devices: &[Device], type_flags: u64, profile: Profile) -> Option<Placement> {
    let writable_bytes: u64 = devices.iter().filter(|d| d.writable).map(|d| d.total_bytes).sum();
    let size_max = chunk_bytes_max(type_flags, writable_bytes);
    let stripe_max = size_max.min(STRIPE_BYTES_MAX);
    let chunk_max = size_max.min(writable_bytes / CHUNK_SHARE_DIVISOR);
    let devices_max = if type_flags & block_group::SYSTEM != 0 {
        SYSTEM_CHUNK_DEVICES_MAX
    } else {
        CHUNK_DEVICES_MAX
    };

    let least = STRIPE_LEN_BYTES * profile.dev_stripes;
    let mut holes: Vec<(usize, Range<u64>, u64)> = devices
        .iter()
        .enumerate()
        .filter(|(_, d)| d.writable)
        .map(|(i, d)| {
            let hole = d.find_hole(stripe_max * profile.dev_stripes);
            (i, hole, d.total_bytes.saturating_sub(d.used_bytes))
        })
        .filter(|(_, hole, avail)| hole.end - hole.start >= least && *avail >= least)
        .collect();
    // Most room first; what is equal stays in device order.
    let room = |hole: &Range<u64>| (hole.end - hole.start).min(stripe_max * profile.dev_stripes);
    holes.sort_by_key(|(_, hole, avail)| std::cmp::Reverse((room(hole), *avail)));

    let mut count = holes
        .len()
        .min(profile.devs_max.unwrap_or(devices_max))
        .min(devices_max);
    count -= count % profile.devs_increment;
    if count < profile.devs_min {
        return None;
    }
    holes.truncate(count);
    let stripes = count as u64 * profile.dev_stripes;
    let data_stripes = profile.data_stripes(stripes);
    if data_stripes == 0 {
        return None;
    }
    let smallest = holes.last().map_or(0, |(_, hole, _)| room(hole));
    let mut stripe_bytes = smallest / profile.dev_stripes;
    if stripe_bytes.saturating_mul(data_stripes) > chunk_max {
        let cut = (chunk_max / data_stripes).next_multiple_of(CUT_STRIPE_ALIGN_BYTES);
        stripe_bytes = stripe_bytes.min(cut);
    }
    stripe_bytes = stripe_bytes.min(stripe_max);
    stripe_bytes -= stripe_bytes % STRIPE_LEN_BYTES;
    if stripe_bytes == 0 {
        return None;
    }
    let stripes = holes
        .iter()
        .flat_map(|(i, hole, _)| (0..profile.dev_stripes).map(move |j| (*i, hole.start + j * stripe_bytes)))
        .collect();
    Some(Placement {
        profile,
        stripe_bytes,
        chunk_bytes: stripe_bytes * data_stripes,
        stripes,
    })
}

/// Notes the placement's stripes as taken.
pub(super) fn take(devices: &mut [Device], placement: &Placement) {
    for &(device, start) in &placement.stripes {
        let device = &mut devices[device];
        let added = device.taken.insert(start..start + placement.stripe_bytes, |_| {});
        assert_eq!(added, placement.stripe_bytes, "a new stripe lies in a hole");
        device.used_bytes += placement.stripe_bytes;
    }
}

/// Notes a chunk's stripes as free again.
pub(super) fn give_back(devices: &mut [Device], chunk: &Chunk) {
    for stripe in chunk.stripes() {
        let Some(device) = devices.iter_mut().find(|d| d.devid == stripe.at.dev) else {
            continue;
        };
        let range = stripe.at.offset..stripe.at.offset + chunk.stripe_bytes();
        let removed = device.taken.remove(range, |_| {});
        assert_eq!(removed, chunk.stripe_bytes(), "an old stripe was taken");
        device.used_bytes -= chunk.stripe_bytes();
    }
}

/// Chunks simulated at most by [`addable_bytes`]: what more could be added is of no interest.
const ADDABLE_CHUNKS_MAX: usize = 32;

/// Bytes that new chunks of this type could add (a lower bound where it is more than 32 chunks).
pub(super) fn addable_bytes(devices: &[Device], type_flags: u64, profile: Profile) -> u64 {
    let mut devices = devices.to_vec();
    let mut total = 0;
    for _ in 0..ADDABLE_CHUNKS_MAX {
        let Some(placement) = place(&devices, type_flags, profile) else {
            break;
        };
        take(&mut devices, &placement);
        total += placement.chunk_bytes;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(devid: u64, total_bytes: u64) -> Device {
        Device {
            devid: DevId(devid),
            uuid: [0; 16],
            total_bytes,
            used_bytes: 0,
            writable: true,
            taken: RangeSet::default(),
        }
    }
    fn profile(bit: u64) -> Profile {
        Profile::of(bit)
    }

    #[test]
    fn sizes_are_those_of_linux() {
        let small = [device(1, GIB)];
        // A tenth of the volume, rounded up to 16 MiB.
        let data = place(&small, block_group::DATA, profile(0)).unwrap();
        assert_eq!((data.chunk_bytes, &data.stripes[..]), (112 * MIB, &[(0, MIB)][..]));
        let big = [device(1, 100 * GIB)];
        assert_eq!(place(&big, block_group::DATA, profile(0)).unwrap().chunk_bytes, GIB);
        assert_eq!(place(&big, block_group::METADATA, profile(0)).unwrap().chunk_bytes, GIB);
        assert_eq!(
            place(&[device(1, 20 * GIB)], block_group::METADATA, profile(block_group::DUP))
                .unwrap()
                .chunk_bytes,
            256 * MIB
        );
        assert_eq!(
            place(&big, block_group::SYSTEM, profile(0)).unwrap().chunk_bytes,
            32 * MIB
        );
    }

    #[test]
    fn dup_puts_both_stripes_into_one_hole() {
        let p = place(&[device(1, 8 * GIB)], block_group::METADATA, profile(block_group::DUP)).unwrap();
        assert_eq!(p.stripes, [(0, MIB), (0, MIB + p.stripe_bytes)]);
        assert_eq!(p.chunk_bytes, p.stripe_bytes);
    }

    #[test]
    fn mirrors_take_the_emptiest_devices() {
        let mut devices = [device(1, 10 * GIB), device(2, 10 * GIB), device(3, 10 * GIB)];
        devices[0].taken.insert(MIB..10 * GIB - 100 * MIB, |_| {});
        let p = place(&devices, block_group::DATA, profile(block_group::RAID1)).unwrap();
        assert_eq!(p.stripes, [(1, MIB), (2, MIB)]);
        let all = place(&devices, block_group::DATA, profile(block_group::RAID0)).unwrap();
        assert_eq!((all.stripes.len(), all.stripe_bytes), (3, 100 * MIB));
        assert_eq!(all.chunk_bytes, 300 * MIB);
        let ten = place(&devices, block_group::DATA, profile(block_group::RAID10)).unwrap();
        assert_eq!((ten.stripes.len(), ten.chunk_bytes), (2, ten.stripe_bytes));
        assert!(place(&devices, block_group::DATA, profile(block_group::RAID1C4)).is_none());
    }

    #[test]
    fn a_full_device_gets_nothing_and_what_can_be_added_is_counted() {
        let mut d = [device(1, GIB)];
        let addable = addable_bytes(&d, block_group::DATA, profile(0));
        assert_eq!(addable, GIB - MIB);
        d[0].taken.insert(MIB..GIB, |_| {});
        assert!(place(&d, block_group::DATA, profile(0)).is_none());
    }

    #[test]
    fn holes_are_filled_first_fit() {
        let mut d = [device(1, 4 * GIB)];
        d[0].taken.insert(MIB..100 * MIB, |_| {});
        d[0].taken.insert(200 * MIB..GIB, |_| {});
        // Data wants 1 GiB stripes: the first hole is too small for that.
        let p = place(&d, block_group::DATA, profile(0)).unwrap();
        assert_eq!(p.stripes, [(0, GIB)]);
        let s = place(&d, block_group::SYSTEM, profile(0)).unwrap();
        assert_eq!(s.stripes, [(0, 100 * MIB)]);
    }
}
