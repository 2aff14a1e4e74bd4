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

/// Why a volume was not made. Everything but `Device`, and `Corrupt`, which would be a fault of
/// ours, is found before the first byte is written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// A feature that is known and cannot be made.
    #[error("{what} is not supported")]
    Unsupported {
        /// What is meant.
        what: &'static str,
    },
    /// A name that no feature has.
    #[error("unknown feature '{name}'; known are {}", FEATURE_NAMES.join(", "))]
    UnknownFeature {
        /// The name given.
        name: String,
    },
    /// A name that no checksum type has.
    #[error("unknown checksum type '{name}'; known are crc32c, xxhash, sha256, blake2")]
    UnknownCsum {
        /// The name given.
        name: String,
    },
    /// The block group tree is asked for without the features that it needs.
    #[error("the block group tree needs no-holes and free-space-tree")]
    BlockGroupTreeNeeds,
    /// A sector size other than 4096.
    #[error("sectorsize {found} is not supported, only 4096 is")]
    SectorSize {
        /// The value found.
        found: u32,
    },
    /// A node size that the format or the sector size does not allow.
    #[error("nodesize {found} is not a power of two from {min} to 65536")]
    NodeSize {
        /// The value found.
        found: u32,
        /// The smallest value allowed.
        min: u32,
    },
    /// Mixed block groups with a node size of its own.
    #[error("with mixed block groups the nodesize is the sectorsize, {sectorsize}, not {found}")]
    MixedNodeSize {
        /// The value found.
        found: u32,
        /// The sector size.
        sectorsize: u32,
    },
    /// Mixed block groups with two profiles.
    #[error("with mixed block groups data and metadata have the same profile, not {data} and {metadata}")]
    MixedProfiles {
        /// The profile of data.
        data: Profile,
        /// The profile of metadata.
        metadata: Profile,
    },
    /// A label that does not fit.
    #[error("label is {found} bytes long, limit 255")]
    LabelTooLong {
        /// Its bytes.
        found: usize,
    },
    /// A label with a newline or a NUL.
    #[error("label holds a character that a label cannot hold: {found:?}")]
    LabelCharacter {
        /// The character.
        found: char,
    },
    /// A subvolume with an impossible name, or one that is taken.
    #[error("'{name}' is no name for a subvolume, or is there already")]
    SubvolumeName {
        /// The name given.
        name: String,
    },
    /// A subvolume below one that is not listed before it.
    #[error("subvolume {parent}, which is to hold another one, is not there before it")]
    SubvolumeParent {
        /// The id given.
        parent: TreeId,
    },
    /// More bytes than a volume counts.
    #[error("the devices have more than 16 EiB together")]
    TooLarge,
    /// No device.
    #[error("no device given")]
    NoDevice,
    /// The same device twice.
    #[error("device {name} is given twice")]
    DeviceTwice {
        /// The device.
        name: String,
    },
    /// Fewer devices than the profile needs.
    #[error("{kind} profile {profile} needs {needed} devices, have {found}")]
    TooFewDevices {
        /// What the chunk holds.
        kind: &'static str,
        /// The profile.
        profile: Profile,
        /// Devices that it needs.
        needed: usize,
        /// Number of devices.
        found: usize,
    },
    /// Another number of uuids than of devices.
    #[error("{found} device uuids given for {devices} devices")]
    DeviceUuidCount {
        /// Number of uuids.
        found: usize,
        /// Number of devices.
        devices: usize,
    },
    /// The same uuid for two devices.
    #[error("two devices have the same uuid")]
    DeviceUuidTwice,
    /// A device that is smaller than the smallest volume.
    #[error("{name}: {found} bytes are too small for a volume, minimum {min} bytes for each device")]
    TooSmall {
        /// The device.
        name: String,
        /// Its bytes.
        found: u64,
        /// Bytes that each device needs.
        min: u64,
    },
    /// A device with fewer bytes than the volume is to have of it.
    #[error("{name}: has {found} bytes, {wanted} are asked for")]
    SmallerThanAsked {
        /// The device.
        name: String,
        /// Its bytes.
        found: u64,
        /// Bytes asked for.
        wanted: u64,
    },
    /// The devices have no room for the contents.
    #[error("no room for a {what} chunk of profile {profile}")]
    NoSpace {
        /// What is meant.
        what: &'static str,
        /// The profile.
        profile: Profile,
    },
    /// A device with contents, without `force`.
    #[error("{name}: holds {found}; force overwrites it")]
    InUse {
        /// The device.
        name: String,
        /// What it holds.
        found: Signature,
    },
    /// A device that is open for reading only.
    #[error("{name} is read-only")]
    ReadOnly {
        /// The device.
        name: String,
    },
    /// The contents do not fit.
    #[error("the contents need {needed} bytes, there are {found}: {} bytes are missing", needed.saturating_sub(*found))]
    Missing {
        /// Bytes of the smallest volume that holds them.
        needed: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// An entry that the format cannot hold.
    #[error("'{path}': {what}")]
    Entry {
        /// Its path in the image.
        path: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A source could not be read.
    #[error(transparent)]
    Source(#[from] cowshed_source::Error),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] cowshed_device::Error),
    /// The plan made a block that the verifier refuses: a fault of this crate.
    #[error("a block of the plan is wrong: {0}")]
    Corrupt(#[from] btrfs_format::Corrupt),
}
