//! What can go wrong below files, by family: a corrupt volume, a failing device, something
//! unsupported.

use btrfs_format::{Corrupt, DevId, LogicalAddr, TreeId};

/// A result with the store's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the store.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tree block or an item breaks a rule of the format.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A structure above single blocks that contradicts itself.
    #[error("corrupt volume: tree {tree}: {what}")]
    CorruptTree {
        /// The tree.
        tree: TreeId,
        /// The contradiction.
        what: String,
    },
    /// No superblock can be used.
    #[error("superblock: {what}")]
    Superblock {
        /// The reason.
        what: String,
    },
    /// Data that matches its checksum on no copy.
    #[error("checksum of data at logical {addr} does not match on any copy")]
    DataChecksum {
        /// The first such sector.
        addr: LogicalAddr,
    },
    /// A device failed; the error names device and offset.
    #[error(transparent)]
    Device(std::sync::Arc<cowshed_device::Error>),
    /// No copy of a tree block could even be read.
    #[error("tree {tree}, block {addr}: no copy can be read: {reason}")]
    BlockUnreadable {
        /// Tree of the block.
        tree: TreeId,
        /// Address of the block.
        addr: LogicalAddr,
        /// Error of the last copy that was tried.
        reason: Box<Error>,
    },
    /// An address that lies in no chunk.
    #[error("logical address {addr} is mapped by no chunk")]
    Unmapped {
        /// The address.
        addr: LogicalAddr,
    },
    /// A device of the volume was not given at open.
    #[error("device {devid} is missing")]
    MissingDevice {
        /// The device.
        devid: DevId,
    },
    /// The volume uses a feature that cannot be read, or cannot be written and the volume was not
    /// opened read-only.
    #[error("not supported: {feature}")]
    Unsupported {
        /// Name of the feature.
        feature: String,
    },
    /// Not done because the volume would not stay consistent, or could not be trusted afterwards.
    #[error("{what}")]
    Refused {
        /// The reason.
        what: String,
    },
    /// The mount went read-only after an error, or was opened so.
    #[error("the volume is read-only")]
    ReadOnly,
    /// A reservation found too little space, after everything that makes space was tried.
    #[error("no space left")]
    NoSpace,
}

impl From<cowshed_device::Error> for Error {
    fn from(e: cowshed_device::Error) -> Self {
        Self::Device(std::sync::Arc::new(e))
    }
}

impl From<btrfs_format::UnknownProfile> for Error {
    fn from(e: btrfs_format::UnknownProfile) -> Self {
        Self::Unsupported { feature: e.to_string() }
    }
}
