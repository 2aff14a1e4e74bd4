//! Profiles: how a chunk spreads over devices; and where superblocks lie inside block groups.

use std::ops::Range;

use btrfs_format::features::block_group;
use btrfs_format::items::STRIPE_LEN_BYTES;
use btrfs_format::superblock::SUPERBLOCK_OFFSETS;

/// How chunks of one profile are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    /// The profile's bit in block group flags; 0 for single.
    pub bit: u64,
    pub sub_stripes: u16,
    /// Stripes on the same device (dup: 2).
    pub dev_stripes: u64,
    /// Most devices of one chunk; `None`: all.
    pub devs_max: Option<usize>,
    pub devs_min: usize,
    /// Devices come in multiples of this.
    pub devs_increment: usize,
    /// Copies of every byte.
    pub copies: u64,
    /// Stripes of parity.
    pub parity: u64,
}

const SINGLE: Profile = Profile {
    bit: 0,
    sub_stripes: 1,
    dev_stripes: 1,
    devs_max: Some(1),
    devs_min: 1,
    devs_increment: 1,
    copies: 1,
    parity: 0,
};

const fn mirrored(bit: u64, copies: usize) -> Profile {
    Profile {
        bit,
        devs_max: Some(copies),
        devs_min: copies,
        devs_increment: copies,
        copies: copies as u64,
        ..SINGLE
    }
}

/// In the order in which the kernel prefers them where block groups of a type have several
/// profiles; single comes last.
const BY_PREFERENCE: [Profile; 9] = [
    mirrored(block_group::RAID1C4, 4),
    Profile {
        bit: block_group::RAID6,
        devs_max: None,
        devs_min: 3,
        parity: 2,
        ..SINGLE
    },
    mirrored(block_group::RAID1C3, 3),
    Profile {
        bit: block_group::RAID5,
        devs_max: None,
        devs_min: 2,
        parity: 1,
        ..SINGLE
    },
    Profile {
        bit: block_group::RAID10,
        sub_stripes: 2,
        devs_max: None,
        devs_min: 2,
        devs_increment: 2,
        copies: 2,
        ..SINGLE
    },
    mirrored(block_group::RAID1, 2),
    Profile {
        bit: block_group::DUP,
        dev_stripes: 2,
        copies: 2,
        ..SINGLE
    },
    Profile {
        bit: block_group::RAID0,
        devs_max: None,
        ..SINGLE
    },
    SINGLE,
];

impl Profile {
    /// The profile of a block group.
    pub(crate) fn of(flags: u64) -> Self {
        BY_PREFERENCE
            .into_iter()
            .find(|p| p.bit != 0 && flags & p.bit != 0)
            .unwrap_or(SINGLE)
    }

    /// The profile for a new chunk, from the profile bits of the existing block groups of its type.
    pub(crate) fn for_new_chunk(existing_flags: u64, device_count: usize) -> Self {
        BY_PREFERENCE
            .into_iter()
            .find(|p| p.bit == 0 || (existing_flags & p.bit != 0 && p.devs_min <= device_count))
            .unwrap_or(SINGLE)
    }

    pub(crate) fn has_parity(self) -> bool {
        self.parity > 0
    }

    /// How many of `stripes` stripes hold different data.
    pub(crate) fn data_stripes(self, stripes: u64) -> u64 {
        (stripes - self.parity) / self.copies
    }

    /// Raw bytes that a byte of data takes, as `df` counts it.
    pub(crate) fn factor(self) -> u64 {
        self.copies
    }
}

/// The logical ranges of a chunk in which copies of the superblock lie: never free space.
///
/// `stripes_physical` are the device offsets of the chunk's stripes. A superblock makes the whole
/// 64 KiB stripe unit that starts at it unusable, on every volume; what a chunk at logical 0 has
/// below 64 KiB is left out as well.
pub(super) fn superblock_ranges(chunk: Range<u64>, flags: u64, stripes_physical: &[u64]) -> Vec<Range<u64>> {
    let profile = Profile::of(flags);
    let count = stripes_physical.len() as u64;
    if count <= profile.parity || profile.data_stripes(count) == 0 {
        return Vec::new();
    }
    let data_stripes = profile.data_stripes(count);
    let stripe_bytes = (chunk.end - chunk.start) / data_stripes;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    if chunk.start < SUPERBLOCK_OFFSETS[0] {
        ranges.push(chunk.start..SUPERBLOCK_OFFSETS[0].min(chunk.end));
    }
    for (i, &physical) in (0u64..).zip(stripes_physical) {
        for superblock in SUPERBLOCK_OFFSETS {
            let Some(offset) = superblock.checked_sub(physical).filter(|o| *o < stripe_bytes) else {
                continue;
            };
            let row = offset / STRIPE_LEN_BYTES;
            let (unit, unit_bytes) = if profile.has_parity() {
                // Where the parity lies rotates: the whole row is left out.
                (row, STRIPE_LEN_BYTES * data_stripes)
            } else if flags & block_group::RAID10 != 0 {
                let data_index = i / u64::from(profile.sub_stripes);
                (row * data_stripes + data_index, STRIPE_LEN_BYTES)
            } else if flags & block_group::RAID0 != 0 {
                (row * data_stripes + i, STRIPE_LEN_BYTES)
            } else {
                (row, STRIPE_LEN_BYTES)
            };
            let start = chunk.start + unit * unit_bytes + offset % STRIPE_LEN_BYTES;
            if start < chunk.end {
                ranges.push(start..(start + unit_bytes).min(chunk.end));
            }
        }
    }
    ranges.sort_by_key(|r| (r.start, r.end));
    ranges.dedup();
    ranges
}

#[cfg(test)]
// A list of one range is meant as such.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn new_chunks_take_the_strongest_profile_that_the_devices_allow() {
        let both = block_group::DUP | block_group::RAID1;
        assert_eq!(Profile::for_new_chunk(both, 2).bit, block_group::RAID1);
        assert_eq!(Profile::for_new_chunk(both, 1).bit, block_group::DUP);
        assert_eq!(Profile::for_new_chunk(0, 4).bit, 0);
        assert_eq!(Profile::for_new_chunk(block_group::RAID10, 1).bit, 0);
    }

    #[test]
    fn superblocks_in_single_and_mirrored_chunks() {
        // Device bytes 32..96 MiB hold the copy at 64 MiB.
        let one = superblock_ranges(1000 * MIB..1064 * MIB, 0, &[32 * MIB]);
        assert_eq!(one, [1032 * MIB..1032 * MIB + 65536]);
        // Both mirrors at the same place: the same range, once.
        let two = superblock_ranges(1000 * MIB..1064 * MIB, block_group::RAID1, &[32 * MIB, 32 * MIB]);
        assert_eq!(two, one);
        // Dup: the copies lie behind one another, one of them over the superblock.
        let dup = superblock_ranges(0x10_0000..0x10_0000 + 32 * MIB, block_group::DUP, &[20 * MIB, 52 * MIB]);
        assert_eq!(dup, [MIB + 12 * MIB..MIB + 12 * MIB + 65536]);
    }

    #[test]
    fn superblocks_in_striped_chunks() {
        let r = superblock_ranges(1024 * MIB..1152 * MIB, block_group::RAID0, &[MIB, 32 * MIB]);
        // Stripe 0 holds device bytes 1..65 MiB: row (63 MiB / 64 KiB), unit row * 2. Stripe 1: row
        // 512, unit 1025.
        let first = 1024 * MIB + 63 * 16 * 2 * 65536;
        let second = 1024 * MIB + 1025 * 65536;
        assert_eq!(r, [second..second + 65536, first..first + 65536]);
    }

    #[test]
    fn nothing_outside_the_chunk() {
        assert!(superblock_ranges(0x10_0000..9 * MIB, 0, &[65 * MIB]).is_empty());
        assert_eq!(superblock_ranges(0..MIB, 0, &[MIB]), [0..65536]);
    }
}
