//! The formats: recognises what lies on devices, and opens it as a [`Volume`]. The library and the
//! mount name a format nowhere else.

mod btrfs;
mod options;
mod probe;
mod xfs;

use std::sync::Arc;

use cowshed_device::BlockDevice;
use cowshed_vfs::{Failure, Volume};

pub use cowshed_btrfs::Commits;
pub use options::{BtrfsOptions, Options, XfsOptions};
pub use probe::{Format, probe};

/// The format of the volume on `devices`, given in any order. Where nothing is recognised it is
/// btrfs, which has further superblocks to look for.
pub fn format_of(devices: &[Arc<dyn BlockDevice>]) -> Format {
    let found = devices.iter().find_map(|device| probe(&**device));
    found.unwrap_or(Format::Btrfs)
}

/// As [`format_of`], for a volume that is opened with options. Where nothing is recognised and a
/// damaged first superblock of XFS is to be overlooked, it is XFS.
pub fn format_with(devices: &[Arc<dyn BlockDevice>], options: &Options) -> Format {
    let found = devices.iter().find_map(|device| probe(&**device));
    found.unwrap_or(match options.xfs.use_superblock_copy {
        true => Format::Xfs,
        false => Format::Btrfs,
    })
}

/// Opens the volume on `devices`, given in any order.
///
/// # Errors
/// A format that is not supported, and whatever keeps a volume of a supported one from being
/// opened.
pub fn open(devices: Vec<Arc<dyn BlockDevice>>, options: &Options) -> Result<Arc<dyn Volume>, Failure> {
    Ok(open_for_mounts(devices, options)?.first())
}

/// As [`open`], of a volume that may be shown more than once.
///
/// # Errors
/// Those of [`open`].
pub fn open_for_mounts(devices: Vec<Arc<dyn BlockDevice>>, options: &Options) -> Result<Views, Failure> {
    Ok(match format_with(&devices, options) {
        Format::Btrfs => Views::Btrfs(btrfs::open(devices, options)?),
        Format::Xfs => Views::Xfs(xfs::open(devices, options)?),
    })
}

/// An open volume, which is closed when its last view is destroyed.
#[derive(Clone, Debug)]
pub enum Views {
    /// A btrfs volume.
    Btrfs(btrfs::Views),
    /// An XFS volume.
    Xfs(xfs::Views),
}

impl Views {
    /// The volume's format.
    pub fn format(&self) -> Format {
        match self {
            Self::Btrfs(_) => Format::Btrfs,
            Self::Xfs(_) => Format::Xfs,
        }
    }

    /// The view that the volume was opened with.
    pub fn first(&self) -> Arc<dyn Volume> {
        match self {
            Self::Btrfs(views) => views.first(),
            Self::Xfs(views) => views.first(),
        }
    }

    /// A further view, with its own subvolume, read-only flag and rules for atime. All other
    /// options are those of the volume.
    ///
    /// # Errors
    /// There is no such subvolume; `ReadOnly`: the volume was opened read-only, and a writable view
    /// is wanted; `NotSupported`: it would show files that another view shows, whose front end
    /// cannot forget names; `NotConnected`: the last view has ended.
    pub fn another(&self, options: &Options) -> Result<Arc<dyn Volume>, Failure> {
        match self {
            Self::Btrfs(views) => views.another(options),
            Self::Xfs(views) => views.another(options),
        }
    }
}
