//! Why a volume was not made.

use btrfs_format::TreeId;

use crate::Profile;
use crate::signature::Signature;

/// The features that can be turned on and off: an error lists them.
pub(crate) const FEATURE_NAMES: [&str; 6] = [
    "mixed-bg",
    "extref",
    "skinny-metadata",
    "no-holes",
    "free-space-tree",
    "block-group-tree",
];

/// Why a volume was not made. Everything but `Device`, and `Corrupt`, which would be a fault of ours, is found before
/// the first byte is written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsError {
    #[error("{what} is not supported")]
    Unsupported { what: &'static str },
    #[error("unknown feature '{name}'; known are {}", FEATURE_NAMES.join(", "))]
    UnknownFeature { name: String },
    #[error("unknown checksum type '{name}'; known are crc32c, xxhash, sha256, blake2")]
    UnknownCsum { name: String },
    #[error("the block group tree needs no-holes and free-space-tree")]
    BlockGroupTreeNeeds,
    #[error("sectorsize {found} is not supported, only 4096 is")]
    SectorSize { found: u32 },
    #[error("nodesize {found} is not a power of two from {min} to 65536")]
    NodeSize { found: u32, min: u32 },
    #[error("with mixed block groups the nodesize is the sectorsize, {sectorsize}, not {found}")]
    MixedNodeSize { found: u32, sectorsize: u32 },
    #[error("with mixed block groups data and metadata have the same profile, not {data} and {metadata}")]
    MixedProfiles { data: Profile, metadata: Profile },
    #[error("label is {found} bytes long, limit 255")]
    LabelTooLong { found: usize },
    #[error("label holds a character that a label cannot hold: {found:?}")]
    LabelCharacter { found: char },
    #[error("'{name}' is no name for a subvolume, or is there already")]
    SubvolumeName { name: String },
    #[error("subvolume {parent}, which is to hold another one, is not there before it")]
    SubvolumeParent { parent: TreeId },
    #[error("no device given")]
    NoDevice,
    #[error("device {name} is given twice")]
    DeviceTwice { name: String },
    #[error("{kind} profile {profile} needs {needed} devices, have {found}")]
    TooFewDevices {
        kind: &'static str,
        profile: Profile,
        needed: usize,
        found: usize,
    },
    #[error("{found} device uuids given for {devices} devices")]
    DeviceUuidCount { found: usize, devices: usize },
    #[error("two devices have the same uuid")]
    DeviceUuidTwice,
    #[error("{name}: {found} bytes are too small for a volume, minimum {min} bytes for each device")]
    TooSmall { name: String, found: u64, min: u64 },
    #[error("{name}: has {found} bytes, {wanted} are asked for")]
    SmallerThanAsked { name: String, found: u64, wanted: u64 },
    #[error("no room for a {what} chunk of profile {profile}")]
    NoSpace { what: &'static str, profile: Profile },
    #[error("{name}: holds {found}; force overwrites it")]
    InUse { name: String, found: Signature },
    #[error("{name} is read-only")]
    ReadOnly { name: String },
    #[error(transparent)]
    Device(#[from] cowshed_device::Error),
    #[error("a block of the plan is wrong: {0}")]
    Corrupt(#[from] btrfs_format::Corrupt),
}
