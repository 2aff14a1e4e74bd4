//! What to build, and how files are stored.

use std::collections::HashMap;
use std::ops::Range;

use cowshed_runtime::Workers;
use cowshed_source::{Content, InodeId};

use crate::{MkfsError, MkfsOptions};

/// Makes streams that the format knows.
pub trait Packer: Sync {
    /// Compresses `data`, if the result has at most `limit_bytes`. The same data always gives the
    /// same bytes.
    fn pack(&self, data: &[u8], limit_bytes: usize) -> Option<Vec<u8>>;
    /// The number of the algorithm in file extents.
    fn algorithm(&self) -> u8;
    /// The incompatible feature that a volume with such an extent has.
    fn incompat_bits(&self) -> u64;
}

/// How a file is stored.
#[derive(Clone, Copy, Default)]
pub struct FilePolicy<'p> {
    /// `None`: not compressed.
    pub packer: Option<&'p dyn Packer>,
    /// Flags of the inode: those about checksums and copy on write count.
    pub inode_flags: u64,
}

/// Puts contents onto a device without reading and writing them: both share blocks of the host.
pub trait Cloner: Sync {
    /// Puts whole sectors of a file to an offset of the only device. False: these contents lie
    /// where that cannot be done, and are to be written. Errors: it should be possible, and is not.
    fn share(&self, content: &Content, within: Range<u64>, device_offset_bytes: u64) -> Result<bool, MkfsError>;
}

/// Says how each file is stored.
pub trait Policy: Sync {
    /// Of an inode of the tree.
    fn of(&self, id: InodeId) -> FilePolicy<'_>;
}

/// A directory that becomes a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildSubvolume {
    /// Its path.
    pub path: Vec<u8>,
    /// Whether it may be changed.
    pub read_only: bool,
    /// What is mounted where no subvolume is named.
    pub is_default: bool,
    /// It is a snapshot of that subvolume, which comes before it (an empty path: of the top level),
    /// and its directory is empty. Subvolumes in it are empty directories, as in all snapshots.
    pub snapshot_of: Option<Vec<u8>>,
    /// With contents of its own, but a later state of that subvolume, which comes before it: its
    /// parent, as that of a snapshot.
    pub later_state_of: Option<Vec<u8>>,
}

/// The volume's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// That of the devices.
    OfDevices,
    /// That of the contents, or so many bytes if that is more. The devices must only be large
    /// enough.
    AtLeast {
        /// Bytes.
        bytes: u64,
    },
    /// That of the contents, and so many bytes that belong to no chunk. The devices must only be
    /// large enough.
    Fit {
        /// Bytes that belong to no chunk.
        slack_bytes: u64,
    },
}

/// What to build.
pub struct BuildOptions<'b> {
    /// The volume.
    pub volume: MkfsOptions,
    /// Directories that become subvolumes, numbered from 256 in this order.
    pub subvolumes: Vec<BuildSubvolume>,
    /// How each file is stored.
    pub policy: &'b dyn Policy,
    /// Files that share the extents of another one: both have the same contents and are stored in
    /// the same way.
    pub twins: &'b HashMap<InodeId, InodeId>,
    /// Data that is stored as it is goes this way, if there is one.
    pub cloner: Option<&'b dyn Cloner>,
    /// The volume's size.
    pub size: Size,
    /// Threads that read, compress and write.
    pub workers: &'b Workers,
    /// Called with the bytes of contents that are done, of how many.
    pub progress: &'b dyn Fn(u64, u64),
}
