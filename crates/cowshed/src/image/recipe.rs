//! All that is said about an image, before anything is read.

use std::path::PathBuf;
use std::sync::Arc;

use btrfs_image::MkfsOptions;
use btrfs_image::build::BuildSubvolume;
use cowshed_source::Platform;

use super::contexts::FileContexts;
use super::edit::Edits;
use super::filter::Filter;
use super::gpt::{self, PartitionType};
use super::policy::Storage;

#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// Of any kind.
    Path(PathBuf),
    /// A directory, whatever it holds.
    Dir(PathBuf),
    /// An archive.
    Stdin,
}

/// Whether an image shares extents of the host with its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reflink {
    Never,
    /// Else the data is copied.
    IfPossible,
    /// Else there is no image.
    Always,
}

/// Where the volume is in the image.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Alone,
    /// Behind so many bytes.
    At(u64),
    /// In a partition table of its own.
    Partition(PartitionType),
}

impl Place {
    /// Bytes before and behind the volume.
    pub(super) fn around(self) -> (u64, u64) {
        match self {
            Self::Alone => (0, 0),
            Self::At(offset) => (offset, 0),
            Self::Partition(_) => (gpt::HEAD_BYTES, gpt::TAIL_BYTES),
        }
    }
}

pub(super) type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// What goes into a directory of the image.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) origin: Origin,
    /// Empty: the root.
    pub(super) into: Vec<u8>,
}

/// What [`super::Builder`] collects.
#[derive(Clone)]
pub(super) struct Recipe {
    pub(super) sources: Vec<Source>,
    pub(super) platform: Platform,
    pub(super) spool_dir: Option<PathBuf>,
    pub(super) subvolumes: Vec<BuildSubvolume>,
    /// The directory for states after the layers of container images.
    pub(super) layers: Option<Vec<u8>>,
    pub(super) filter: Filter,
    pub(super) edits: Edits,
    pub(super) contexts: Option<FileContexts>,
    pub(super) storage: Storage,
    pub(super) dedupe: bool,
    pub(super) reflink: Reflink,
    pub(super) volume: MkfsOptions,
    pub(super) has_uuid: bool,
    pub(super) seed: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) size_min: u64,
    pub(super) slack_bytes: u64,
    pub(super) place: Place,
    pub(super) jobs: Option<usize>,
    pub(super) progress: Progress,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            sources: Vec::new(),
            platform: Platform::default(),
            spool_dir: None,
            subvolumes: Vec::new(),
            layers: None,
            filter: Filter::default(),
            edits: Edits::default(),
            contexts: None,
            storage: Storage::default(),
            dedupe: false,
            reflink: Reflink::Never,
            volume: MkfsOptions::new([0; 16]),
            has_uuid: false,
            seed: None,
            size: None,
            size_min: 0,
            slack_bytes: 0,
            place: Place::Alone,
            jobs: None,
            progress: Arc::new(|_, _| {}),
        }
    }
}
