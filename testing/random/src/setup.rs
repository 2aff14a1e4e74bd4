//! What volume a run works on, and the model of it when it is fresh.

use btrfs_format::TreeId;
use btrfs_image::Profile;
use cowshed_model::{MountRules, Name};
use cowshed_vfs::Compression;

/// What volume to make, and how to mount it.
#[derive(Clone, Debug)]
pub struct Setup {
    pub device_bytes: u64,
    pub node_bytes: u32,
    /// Data and metadata share block groups: volumes from 16 MiB on.
    pub mixed: bool,
    pub data: Option<Profile>,
    pub metadata: Option<Profile>,
    pub no_holes: bool,
    pub memory_bytes_max: u64,
    pub commit_interval_s: u32,
    /// Everything that is written is compressed so.
    pub compress: Option<Compression>,
    /// New files are written in place, without checksums.
    pub nodatacow: bool,
    /// An fsync writes a log where it can.
    pub tree_log: bool,
    /// What the volume has from the start: numbered from 256, each in the root of the top level or
    /// of one before it.
    pub subvolumes: Vec<(TreeId, Name)>,
}

impl Setup {
    /// What the model has to know of the mount.
    pub fn rules(&self) -> MountRules {
        MountRules {
            nodatacow: self.nodatacow,
            compress: self.compress.map(|how| how.algorithm().name()),
        }
    }
}

impl Setup {
    /// Two subvolumes, and one within the first.
    pub fn some_subvolumes() -> Vec<(TreeId, Name)> {
        vec![(TreeId::FS, Name(8)), (TreeId::FS, Name(9)), (TreeId(256), Name(7))]
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            device_bytes: 8 << 30,
            node_bytes: 4096,
            mixed: false,
            data: None,
            metadata: None,
            no_holes: true,
            memory_bytes_max: 1 << 30,
            commit_interval_s: 0,
            compress: None,
            nodatacow: false,
            tree_log: false,
            subvolumes: Vec::new(),
        }
    }
}
