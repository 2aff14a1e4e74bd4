//! The profiles of chunks: how many devices, how many copies.

use std::fmt;
use std::str::FromStr;

use btrfs_format::features::block_group;

use crate::MkfsError;

/// How a chunk's bytes are spread over devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Profile {
    Single,
    Dup,
    Raid0,
    Raid1,
    Raid1c3,
    Raid1c4,
    Raid10,
}

impl Profile {
    pub const ALL: [Self; 7] = [
        Self::Single,
        Self::Dup,
        Self::Raid0,
        Self::Raid1,
        Self::Raid1c3,
        Self::Raid1c4,
        Self::Raid10,
    ];

    /// As mkfs.btrfs takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Dup => "dup",
            Self::Raid0 => "raid0",
            Self::Raid1 => "raid1",
            Self::Raid1c3 => "raid1c3",
            Self::Raid1c4 => "raid1c4",
            Self::Raid10 => "raid10",
        }
    }

    /// The profile's bit in a chunk's type; single has none.
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

    /// The fewest devices of a chunk.
    pub const fn devices_min(self) -> usize {
        match self {
            Self::Single | Self::Dup | Self::Raid0 => 1,
            Self::Raid1 | Self::Raid10 => 2,
            Self::Raid1c3 => 3,
            Self::Raid1c4 => 4,
        }
    }

    /// How many copies of each byte there are.
    pub const fn copies(self) -> usize {
        match self {
            Self::Single | Self::Raid0 => 1,
            Self::Dup | Self::Raid1 | Self::Raid10 => 2,
            Self::Raid1c3 => 3,
            Self::Raid1c4 => 4,
        }
    }

    /// Stripes of one device: two copies on the same one for dup.
    pub const fn stripes_per_device(self) -> usize {
        match self {
            Self::Dup => 2,
            Self::Single | Self::Raid0 | Self::Raid1 | Self::Raid1c3 | Self::Raid1c4 | Self::Raid10 => 1,
        }
    }

    /// Whether a chunk takes as many devices as there are.
    pub const fn is_striped(self) -> bool {
        matches!(self, Self::Raid0 | Self::Raid10)
    }

    /// `sub_stripes` of a chunk item.
    pub const fn sub_stripes(self) -> u16 {
        match self {
            Self::Raid10 => 2,
            Self::Single | Self::Dup | Self::Raid0 | Self::Raid1 | Self::Raid1c3 | Self::Raid1c4 => 1,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Profile {
    type Err = MkfsError;

    /// Reads a name, in either case.
    fn from_str(text: &str) -> Result<Self, MkfsError> {
        let name = text.to_ascii_lowercase();
        if let Some(profile) = Self::ALL.into_iter().find(|profile| profile.name() == name) {
            return Ok(profile);
        }
        match name.as_str() {
            "raid5" => Err(MkfsError::Unsupported { what: "profile raid5" }),
            "raid6" => Err(MkfsError::Unsupported { what: "profile raid6" }),
            _ => Err(MkfsError::UnknownProfile { name: text.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_in_either_case() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse::<Profile>().unwrap(), profile);
            assert_eq!(profile.name().to_uppercase().parse::<Profile>().unwrap(), profile);
        }
    }

    #[test]
    fn other_profiles_are_refused_by_name() {
        let error = "RAID5".parse::<Profile>().unwrap_err();
        assert_eq!(error.to_string(), "profile raid5 is not supported");
        let error = "raid7".parse::<Profile>().unwrap_err();
        assert!(error.to_string().contains("unknown profile 'raid7'"), "{error}");
    }
}
