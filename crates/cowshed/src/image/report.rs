//! What was built.

use btrfs_image::build::BuildReport;
use btrfs_image::{DeviceReport, MkfsOptions, MkfsReport};

/// An image that was built, or would be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Bytes of the image.
    pub bytes: u64,
    /// Bytes that the smallest image with these contents has.
    pub needed_bytes: u64,
    /// Bytes of files, without holes.
    pub content_bytes: u64,
    /// Bytes that their data takes, after compression, without what lies in tree blocks.
    pub data_bytes: u64,
    /// Bytes of the data that the image shares with files of the host.
    pub reflinked_bytes: u64,
    /// Bytes of tree blocks, each counted once.
    pub metadata_bytes: u64,
    /// Files, directories and all else, in all subvolumes.
    pub inodes: u64,
    /// The volume's uuid.
    pub uuid: uuid::Uuid,
    /// The volume's label.
    pub label: String,
    pub(crate) details: BuildReport,
    pub(crate) devices: Vec<DeviceReport>,
}

impl Report {
    /// In the form of a volume without contents.
    #[doc(hidden)]
    pub fn as_mkfs(&self) -> MkfsReport {
        MkfsReport {
            incompat_flags: 0,
            compat_ro_flags: 0,
            total_bytes: self.bytes,
            used_bytes: self.details.used_bytes,
            chunks: self.details.chunks.reports(),
            devices: self.devices.clone(),
            settings: self.details.settings.clone(),
        }
    }
}

pub(super) fn report(details: BuildReport, devices: Vec<DeviceReport>, volume: &MkfsOptions) -> Report {
    Report {
        bytes: details.device_bytes.iter().sum(),
        needed_bytes: details.needed_bytes,
        content_bytes: details.content_bytes,
        data_bytes: details.data_bytes,
        reflinked_bytes: 0,
        metadata_bytes: details.metadata_bytes,
        inodes: details.inodes,
        uuid: uuid::Uuid::from_bytes(volume.uuid),
        label: volume.label.clone(),
        details,
        devices,
    }
}
