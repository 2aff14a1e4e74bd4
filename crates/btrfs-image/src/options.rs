//! What a volume is to be like: as asked ([`MkfsOptions`]), and as settled and checked
//! ([`Settings`]).

use std::time::{Duration, SystemTime};

use btrfs_format::items::Timespec;
use btrfs_format::superblock::LABEL_BYTES;
use btrfs_format::{ChecksumType, TreeId, U32, U64, Uuid};

use crate::{Features, MkfsError, NewSubvolume, Profile, SettledSubvolume, subvolumes};

const MIB: u64 = 1 << 20;
const SECTORSIZE_BYTES: u32 = 4096;
const NODESIZE_BYTES_DEFAULT: u32 = 16 << 10;
const NODESIZE_BYTES_MAX: u32 = 64 << 10;

/// What to make. Nothing is taken from the surroundings: the same options give the same volume.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// At most 255 bytes, without newlines.
    pub label: String,
    /// `None`: 16 KiB, or the sector size with mixed block groups.
    pub nodesize_bytes: Option<u32>,
    /// 4096.
    pub sectorsize_bytes: u32,
    /// `None`: dup on one device, raid1 on several; single with mixed block groups.
    pub metadata_profile: Option<Profile>,
    /// `None`: single.
    pub data_profile: Option<Profile>,
    /// Data and metadata share their chunks; the same as the feature mixed-bg.
    pub mixed: bool,
    /// Bytes to use of each device; `None`: all.
    pub byte_count: Option<u64>,
    /// The volume's uuid.
    pub uuid: Uuid,
    /// The devices' uuids in their order; empty: derived from `uuid` and `seed`.
    pub device_uuids: Vec<Uuid>,
    /// The checksum of blocks and data.
    pub csum_type: ChecksumType,
    /// Features, without those that follow from profiles.
    pub features: Features,
    /// Overwrite what the devices hold.
    pub force: bool,
    /// Tell the devices that all of their old contents are not needed any more.
    pub discard: bool,
    /// The time that the volume's root directory says it was made.
    pub time: SystemTime,
    /// Seed of the uuids that are not given: of the chunk tree and of the subvolumes.
    pub seed: u64,
    /// Empty ones, numbered from 256 in this order.
    pub subvolumes: Vec<NewSubvolume>,
}

impl MkfsOptions {
    /// The defaults of mkfs.btrfs. The time is 1970; set `time` for another.
    pub fn new(uuid: Uuid) -> Self {
        Self {
            label: String::new(),
            nodesize_bytes: None,
            sectorsize_bytes: SECTORSIZE_BYTES,
            metadata_profile: None,
            data_profile: None,
            mixed: false,
            byte_count: None,
            uuid,
            device_uuids: Vec::new(),
            csum_type: ChecksumType::Crc32c,
            features: Features::default(),
            force: false,
            discard: true,
            time: SystemTime::UNIX_EPOCH,
            seed: 0,
            subvolumes: Vec::new(),
        }
    }

    /// Fills in the defaults and checks everything that can be checked without the devices'
    /// contents. `devices` are their names and sizes.
    pub fn settle(&self, devices: &[(&str, u64)]) -> Result<Settings, MkfsError> {
        let mut features = self.features;
        features.mixed_bg |= self.mixed;
        features.check()?;
        let mixed = features.mixed_bg;
        check_label(&self.label)?;
        let nodesize_bytes = self.settle_nodesize(mixed)?;
        let (metadata, data) = self.settle_profiles(mixed, devices.len())?;
        let device_bytes = self.settle_device_bytes(mixed, metadata, data, devices)?;
        let settings = Settings {
            label: self.label.clone(),
            nodesize_bytes,
            sectorsize_bytes: self.sectorsize_bytes,
            metadata_profile: metadata,
            data_profile: data,
            device_bytes,
            uuid: self.uuid,
            device_uuids: self.settle_device_uuids(devices.len())?,
            chunk_tree_uuid: self.derive_uuid("chunk tree"),
            fs_tree_uuid: self.derive_uuid("fs tree"),
            csum_type: self.csum_type,
            features,
            time: timespec(self.time),
            default_subvolume: TreeId::FS,
            subvolumes: subvolumes::settle(&self.subvolumes, |id| self.derive_uuid(&format!("subvolume {id}")))?,
        };
        Ok(settings)
    }

    fn settle_nodesize(&self, mixed: bool) -> Result<u32, MkfsError> {
        let sectorsize = self.sectorsize_bytes;
        if sectorsize != SECTORSIZE_BYTES {
            return Err(MkfsError::SectorSize { found: sectorsize });
        }
        let default = if mixed { sectorsize } else { NODESIZE_BYTES_DEFAULT };
        let nodesize = self.nodesize_bytes.unwrap_or(default);
        if !nodesize.is_power_of_two() || !(sectorsize..=NODESIZE_BYTES_MAX).contains(&nodesize) {
            return Err(MkfsError::NodeSize {
                found: nodesize,
                min: sectorsize,
            });
        }
        if mixed && nodesize != sectorsize {
            return Err(MkfsError::MixedNodeSize {
                found: nodesize,
                sectorsize,
            });
        }
        Ok(nodesize)
    }

    fn settle_profiles(&self, mixed: bool, devices: usize) -> Result<(Profile, Profile), MkfsError> {
        if devices == 0 {
            return Err(MkfsError::NoDevice);
        }
        let default_metadata = match (mixed, devices) {
            (true, _) => self.data_profile.unwrap_or(Profile::Single),
            (false, 1) => Profile::Dup,
            (false, _) => Profile::Raid1,
        };
        let metadata = self.metadata_profile.unwrap_or(default_metadata);
        let default_data = if mixed { metadata } else { Profile::Single };
        let data = self.data_profile.unwrap_or(default_data);
        if mixed && metadata != data {
            return Err(MkfsError::MixedProfiles { data, metadata });
        }
        for (kind, profile) in [("metadata", metadata), ("data", data)] {
            if devices < profile.devices_min() {
                return Err(MkfsError::TooFewDevices {
                    kind,
                    profile,
                    needed: profile.devices_min(),
                    found: devices,
                });
            }
        }
        Ok((metadata, data))
    }

    fn settle_device_bytes(
        &self,
        mixed: bool,
        metadata: Profile,
        data: Profile,
        devices: &[(&str, u64)],
    ) -> Result<Vec<u64>, MkfsError> {
        let min = device_bytes_min(mixed, metadata, data);
        let mut device_bytes = Vec::with_capacity(devices.len());
        for (index, &(name, size)) in devices.iter().enumerate() {
            if devices.iter().take(index).any(|&(other, _)| other == name) {
                return Err(MkfsError::DeviceTwice { name: name.into() });
            }
            let wanted = self.byte_count.unwrap_or(size);
            if wanted > size {
                return Err(MkfsError::SmallerThanAsked {
                    name: name.into(),
                    found: size,
                    wanted,
                });
            }
            let used = wanted - wanted % u64::from(self.sectorsize_bytes);
            if used < min {
                return Err(MkfsError::TooSmall {
                    name: name.into(),
                    found: used,
                    min,
                });
            }
            device_bytes.push(used);
        }
        let sum = device_bytes
            .iter()
            .try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes));
        match sum {
            Some(_) => Ok(device_bytes),
            None => Err(MkfsError::TooLarge),
        }
    }

    fn settle_device_uuids(&self, devices: usize) -> Result<Vec<Uuid>, MkfsError> {
        if self.device_uuids.is_empty() {
            return Ok((1..=devices)
                .map(|devid| self.derive_uuid(&format!("device {devid}")))
                .collect());
        }
        if self.device_uuids.len() != devices {
            return Err(MkfsError::DeviceUuidCount {
                found: self.device_uuids.len(),
                devices,
            });
        }
        let mut sorted = self.device_uuids.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(MkfsError::DeviceUuidTwice);
        }
        Ok(self.device_uuids.clone())
    }

    /// A uuid that only this volume has, as far as its own uuid and seed are its own.
    pub(crate) fn derive_uuid(&self, purpose: &str) -> Uuid {
        let mut text = self.uuid.to_vec();
        text.extend(self.seed.to_le_bytes());
        text.extend(purpose.as_bytes());
        let hash = ChecksumType::Sha256.compute(&text);
        let mut random = [0; 16];
        random.copy_from_slice(&hash[..16]);
        uuid::Builder::from_random_bytes(random).into_uuid().into_bytes()
    }
}

/// What the volume will be: complete, and possible.
#[derive(Clone, Debug)]
pub struct Settings {
    /// As in the options.
    pub label: String,
    /// Bytes of a tree block.
    pub nodesize_bytes: u32,
    /// The unit of data.
    pub sectorsize_bytes: u32,
    /// The profile of system and metadata chunks.
    pub metadata_profile: Profile,
    /// The profile of data chunks.
    pub data_profile: Profile,
    /// Bytes to use of each device, a multiple of the sector size.
    pub device_bytes: Vec<u64>,
    /// The volume's uuid.
    pub uuid: Uuid,
    /// One for each device.
    pub device_uuids: Vec<Uuid>,
    /// The uuid that tree blocks and device extents carry.
    pub chunk_tree_uuid: Uuid,
    /// The uuid of the top-level subvolume.
    pub fs_tree_uuid: Uuid,
    /// The checksum of blocks and data.
    pub csum_type: ChecksumType,
    /// Features, consistent.
    pub features: Features,
    /// The time of everything that is made.
    pub time: Timespec,
    /// What is mounted where no subvolume is named.
    pub default_subvolume: TreeId,
    /// With ids and indices.
    pub subvolumes: Vec<SettledSubvolume>,
}

impl Settings {
    /// Bytes of all devices together.
    pub fn total_bytes(&self) -> u64 {
        self.device_bytes.iter().sum()
    }
    /// Bytes of a tree block, as a length.
    pub fn nodesize(&self) -> usize {
        self.nodesize_bytes as usize
    }
}

/// The smallest device that mkfs.btrfs takes: room for its first chunks and for those of the
/// profiles asked for.
pub const fn device_bytes_min(mixed: bool, metadata: Profile, data: Profile) -> u64 {
    if mixed {
        return 16 * MIB;
    }
    // Reserved head 1 MiB, and 4 + 8 + 8 MiB for the first system, metadata and data chunk.
    let first = 21 * MIB;
    let metadata = match metadata {
        Profile::Single => 8 * MIB + 8 * MIB,
        Profile::Dup => 2 * (8 * MIB + 32 * MIB),
        Profile::Raid0 | Profile::Raid1 | Profile::Raid1c3 | Profile::Raid1c4 | Profile::Raid10 => 8 * MIB + 32 * MIB,
    };
    let data = match data {
        Profile::Single => 8 * MIB,
        Profile::Dup => 2 * 64 * MIB,
        Profile::Raid0 | Profile::Raid1 | Profile::Raid1c3 | Profile::Raid1c4 | Profile::Raid10 => 64 * MIB,
    };
    first + metadata + data
}

fn check_label(label: &str) -> Result<(), MkfsError> {
    // The last byte stays zero.
    if label.len() >= LABEL_BYTES {
        return Err(MkfsError::LabelTooLong { found: label.len() });
    }
    match label.chars().find(|&c| c == '\n' || c == '\0') {
        Some(found) => Err(MkfsError::LabelCharacter { found }),
        None => Ok(()),
    }
}

pub(crate) fn timespec(time: SystemTime) -> Timespec {
    let (sec, nsec) = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => (after.as_secs(), after.subsec_nanos()),
        Err(before) => {
            // Seconds are signed on disk, nanoseconds count upwards.
            let before: Duration = before.duration();
            let up = u64::from(before.subsec_nanos() > 0);
            let nsec = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
            (before.as_secs().wrapping_add(up).wrapping_neg(), nsec)
        }
    };
    Timespec {
        sec: U64::new(sec),
        nsec: U32::new(nsec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[(&str, u64)] = &[("a", 1 << 30)];
    const TWO: &[(&str, u64)] = &[("a", 1 << 30), ("b", 1 << 30)];

    fn options(change: impl FnOnce(&mut MkfsOptions)) -> MkfsOptions {
        let mut options = MkfsOptions::new([1; 16]);
        change(&mut options);
        options
    }
    fn refusal(devices: &[(&str, u64)], change: impl FnOnce(&mut MkfsOptions)) -> String {
        options(change).settle(devices).unwrap_err().to_string()
    }

    #[test]
    fn minimum_sizes_are_those_of_mkfs_btrfs() {
        use Profile::*;
        // As `mkfs.btrfs` states them when a device is too small.
        let cases = [
            (Single, Single, 47_185_920),
            (Dup, Single, 114_294_784),
            (Dup, Dup, 240_123_904),
            (Single, Dup, 173_015_040),
            (Raid0, Single, 72_351_744),
            (Single, Raid0, 105_906_176),
            (Raid1c4, Single, 72_351_744),
            (Single, Raid10, 105_906_176),
            (Raid1, Raid1, 131_072_000),
        ];
        for (metadata, data, min) in cases {
            assert_eq!(device_bytes_min(false, metadata, data), min, "{metadata} {data}");
        }
        assert_eq!(device_bytes_min(true, Dup, Dup), 16_777_216);
    }

    #[test]
    fn default_profiles_follow_from_device_count() {
        let one = options(|_| {}).settle(ONE).unwrap();
        assert_eq!(
            (one.metadata_profile, one.data_profile),
            (Profile::Dup, Profile::Single)
        );
        assert_eq!(one.nodesize_bytes, 16384);
        let two = options(|_| {}).settle(TWO).unwrap();
        assert_eq!(
            (two.metadata_profile, two.data_profile),
            (Profile::Raid1, Profile::Single)
        );
        assert_ne!(two.device_uuids[0], two.device_uuids[1]);
        let mixed = options(|o| o.mixed = true).settle(TWO).unwrap();
        assert_eq!((mixed.metadata_profile, mixed.nodesize_bytes), (Profile::Single, 4096));
        let mixed = options(|o| (o.mixed, o.data_profile) = (true, Some(Profile::Raid1)));
        assert_eq!(mixed.settle(TWO).unwrap().metadata_profile, Profile::Raid1);
    }

    #[test]
    fn each_refusal_says_what_is_wrong() {
        let check = |found: String, expected: &str| assert_eq!(found, expected);
        check(refusal(&[], |_| {}), "no device given");
        check(refusal(&[ONE[0], ONE[0]], |_| {}), "device a is given twice");
        let huge = ["a", "b", "c"].map(|name| (name, 6 << 60));
        check(refusal(&huge, |_| {}), "the devices have more than 16 EiB together");
        check(
            refusal(ONE, |o| o.sectorsize_bytes = 8192),
            "sectorsize 8192 is not supported, only 4096 is",
        );
        for nodesize in [2048, 5120, 12288, 131_072] {
            check(
                refusal(ONE, |o| o.nodesize_bytes = Some(nodesize)),
                &format!("nodesize {nodesize} is not a power of two from 4096 to 65536"),
            );
        }
        check(
            refusal(ONE, |o| (o.mixed, o.nodesize_bytes) = (true, Some(16384))),
            "with mixed block groups the nodesize is the sectorsize, 4096, not 16384",
        );
        check(
            refusal(ONE, |o| {
                (o.mixed, o.data_profile, o.metadata_profile) = (true, Some(Profile::Single), Some(Profile::Dup));
            }),
            "with mixed block groups data and metadata have the same profile, not single and dup",
        );
        check(
            refusal(ONE, |o| o.label = "x".repeat(256)),
            "label is 256 bytes long, limit 255",
        );
        check(
            refusal(ONE, |o| o.label = "a\nb".into()),
            "label holds a character that a label cannot hold: '\\n'",
        );
        check(
            refusal(TWO, |o| o.data_profile = Some(Profile::Raid1c3)),
            "data profile raid1c3 needs 3 devices, have 2",
        );
        check(
            refusal(TWO, |o| o.device_uuids = vec![[1; 16]]),
            "1 device uuids given for 2 devices",
        );
        check(
            refusal(TWO, |o| o.device_uuids = vec![[1; 16]; 2]),
            "two devices have the same uuid",
        );
        check(
            refusal(&[("a", 114_294_783)], |_| {}),
            "a: 114290688 bytes are too small for a volume, minimum 114294784 bytes for each device",
        );
        check(
            refusal(ONE, |o| o.byte_count = Some(2 << 30)),
            "a: has 1073741824 bytes, 2147483648 are asked for",
        );
    }

    #[test]
    fn subvolume_without_valid_name_or_parent_is_refused() {
        let subvolume = |parent, name: &str| NewSubvolume {
            parent: TreeId(parent),
            name: name.into(),
        };
        let fs = TreeId::FS.0;
        for name in ["", ".", "..", "a/b", "twice", &"x".repeat(256)] {
            let found = refusal(ONE, |o| {
                o.subvolumes = vec![subvolume(fs, "twice"), subvolume(fs, name)];
            });
            assert_eq!(
                found,
                format!("'{name}' is no name for a subvolume, or is there already")
            );
        }
        // Not even in itself.
        for parent in [256, 300, TreeId::EXTENT.0] {
            let found = refusal(ONE, |o| o.subvolumes = vec![subvolume(parent, "a")]);
            assert!(found.contains("is not there before it"), "{found}");
        }
        let settled = options(|o| {
            o.subvolumes = vec![subvolume(fs, "a"), subvolume(256, "a"), subvolume(fs, "b")];
        })
        .settle(ONE)
        .unwrap();
        let places: Vec<_> = settled.subvolumes.iter().map(|new| (new.id.0, new.index)).collect();
        assert_eq!(places, [(256, 2), (257, 2), (258, 3)]);
    }

    #[test]
    fn times_before_1970_have_positive_nanoseconds() {
        let time = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
        let spec = timespec(time);
        assert_eq!((spec.sec.get() as i64, spec.nsec.get()), (-2, 500_000_000));
    }
}
