//! Profiles: how many copies of the bytes there are, and how they lie over the stripes of a chunk.
//! All arithmetic that differs by profile is here.

use crate::features::block_group;

/// The most copies that any profile keeps.
pub const COPIES_MAX: usize = 4;

/// Replication and striping of a chunk. RAID5 and RAID6 are refused by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Profile {
    /// One copy.
    Single,
    /// Two copies on one device.
    Dup,
    /// One copy, striped over all devices.
    Raid0,
    /// Two copies on two devices.
    Raid1,
    /// Three copies on three devices.
    Raid1c3,
    /// Four copies on four devices.
    Raid1c4,
    /// Two copies, striped over pairs of devices.
    Raid10,
}

/// No profile that we know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownProfile {
    /// Bits of a block group's flags: parity, or a combination.
    #[error("{}", bits_text(*.0))]
    Bits(u64),
    /// A name on a command line.
    #[error("{}", name_text(.0))]
    Name(String),
}

fn bits_text(bits: u64) -> String {
    match bits {
        block_group::RAID5 => "profile RAID5".into(),
        block_group::RAID6 => "profile RAID6".into(),
        _ => format!("combination of profile bits {bits:#x}"),
    }
}

fn name_text(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    if lower == "raid5" || lower == "raid6" {
        return format!("profile {lower} is not supported");
    }
    format!("unknown profile '{name}'; known are single, dup, raid0, raid1, raid1c3, raid1c4, raid10")
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 7] = [
        Self::Single,
        Self::Dup,
        Self::Raid0,
        Self::Raid1,
        Self::Raid1c3,
        Self::Raid1c4,
        Self::Raid10,
    ];

    /// The profile in the `type` of a chunk or the `flags` of a block group.
    pub fn from_flags(flags: u64) -> Result<Self, UnknownProfile> {
        let bits = flags & block_group::PROFILE_MASK;
        Self::ALL
            .into_iter()
            .find(|p| p.flag() == bits)
            .ok_or(UnknownProfile::Bits(bits))
    }

    /// The bit of the profile in chunk types; 0 for single.
    pub const fn flag(self) -> u64 {
        match self {
            Self::Single => 0,
            Self::Dup => block_group::DUP,
            Self::Raid0 => block_group::RAID0,
            Self::Raid1 => block_group::RAID1,
            Self::Raid1c3 => block_group::RAID1C3,
            Self::Raid1c4 => block_group::RAID1C4,
            Self::Raid10 => block_group::RAID10,
        }
    }

    /// As btrfs-progs print it; mkfs.btrfs takes it in either case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Dup => "DUP",
            Self::Raid0 => "RAID0",
            Self::Raid1 => "RAID1",
            Self::Raid1c3 => "RAID1C3",
            Self::Raid1c4 => "RAID1C4",
            Self::Raid10 => "RAID10",
        }
    }

    /// Copies of every byte; also the factor from logical to raw bytes.
    pub const fn copies(self) -> usize {
        match self {
            Self::Single | Self::Raid0 => 1,
            Self::Dup | Self::Raid1 | Self::Raid10 => 2,
            Self::Raid1c3 => 3,
            Self::Raid1c4 => 4,
        }
    }

    /// `sub_stripes` of a chunk item.
    pub const fn sub_stripes(self) -> u16 {
        match self {
            Self::Raid10 => 2,
            Self::Single | Self::Dup | Self::Raid0 | Self::Raid1 | Self::Raid1c3 | Self::Raid1c4 => 1,
        }
    }

    /// Whether consecutive stripes go to different devices.
    pub const fn is_striped(self) -> bool {
        matches!(self, Self::Raid0 | Self::Raid10)
    }

    /// Devices without which no new chunk can be made (mkfs asks for more: two for RAID0, four for
    /// RAID10).
    pub const fn devices_min(self) -> usize {
        match self {
            Self::Single | Self::Dup | Self::Raid0 => 1,
            Self::Raid1 | Self::Raid10 => 2,
            Self::Raid1c3 => 3,
            Self::Raid1c4 => 4,
        }
    }

    /// Devices that a chunk uses at most; `None` where it takes all there are.
    pub const fn devices_max(self) -> Option<usize> {
        match self {
            Self::Single | Self::Dup => Some(1),
            Self::Raid1 => Some(2),
            Self::Raid1c3 => Some(3),
            Self::Raid1c4 => Some(4),
            Self::Raid0 | Self::Raid10 => None,
        }
    }

    /// A chunk has a multiple of this many stripes.
    pub const fn devices_increment(self) -> usize {
        match self {
            Self::Dup => 1,
            Self::Single | Self::Raid0 | Self::Raid1 | Self::Raid1c3 | Self::Raid1c4 | Self::Raid10 => self.copies(),
        }
    }

    /// Stripes of a chunk on each of its devices.
    pub const fn stripes_per_device(self) -> usize {
        match self {
            Self::Dup => 2,
            Self::Single | Self::Raid0 | Self::Raid1 | Self::Raid1c3 | Self::Raid1c4 | Self::Raid10 => 1,
        }
    }

    /// Devices that may be lost whatever they are, without losing a byte.
    pub const fn devices_spare(self) -> usize {
        match self {
            Self::Single | Self::Dup | Self::Raid0 => 0,
            Self::Raid1 | Self::Raid10 => 1,
            Self::Raid1c3 => 2,
            Self::Raid1c4 => 3,
        }
    }

    /// Whether a chunk of this profile may have so many stripes.
    pub const fn allows_stripes(self, num_stripes: usize) -> bool {
        if self.is_striped() {
            num_stripes > 0 && num_stripes.is_multiple_of(self.copies())
        } else {
            num_stripes == self.copies()
        }
    }

    /// Stripes that hold different bytes.
    pub const fn data_stripes(self, num_stripes: usize) -> usize {
        match self.copies() {
            2 => num_stripes / 2,
            3 => num_stripes / 3,
            4 => num_stripes / 4,
            _ => num_stripes,
        }
    }
}

impl std::str::FromStr for Profile {
    type Err = UnknownProfile;

    /// Reads a name, in either case.
    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        let found = Self::ALL.into_iter().find(|p| p.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownProfile::Name(name.to_owned()))
    }
}

/// As mkfs.btrfs takes it: in lower case.
impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.name().to_ascii_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_names_and_profiles_correspond() {
        for profile in Profile::ALL {
            assert_eq!(Profile::from_flags(profile.flag() | block_group::DATA), Ok(profile));
            assert_eq!(profile.name().to_lowercase().parse(), Ok(profile));
            let stripes = profile.copies() * if profile.is_striped() { 2 } else { 1 };
            assert!(profile.allows_stripes(stripes));
            assert!(!profile.allows_stripes(0));
            assert_eq!(profile.data_stripes(stripes), if profile.is_striped() { 2 } else { 1 });
        }
    }

    #[test]
    fn parity_and_mixtures_are_refused_by_name() {
        for (flags, name) in [
            (block_group::RAID5, "RAID5"),
            (block_group::RAID6 | block_group::DATA, "RAID6"),
            (block_group::RAID1 | block_group::DUP, "0x30"),
        ] {
            let error = Profile::from_flags(flags).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        for (name, part) in [
            ("RAID5", "raid5 is not supported"),
            ("raid7", "unknown profile 'raid7'"),
        ] {
            let error = name.parse::<Profile>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
