//! What can go wrong below files, by family: a corrupt volume, a failing device, something unsupported.

use btrfs_format::{Corrupt, DevId, LogicalAddr, TreeId};

pub type Result<T> = std::result::Result<T, Error>;

/// An error of the store.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A structure above single blocks that contradicts itself.
    #[error("corrupt volume: tree {tree}: {what}")]
    CorruptTree { tree: TreeId, what: String },
    #[error("superblock: {what}")]
    Superblock { what: String },
    #[error("checksum of data at logical {addr} does not match on any copy")]
    DataChecksum { addr: LogicalAddr },
    #[error(transparent)]
    Device(std::sync::Arc<cowshed_device::Error>),
    /// No copy of a tree block could even be read.
    #[error("tree {tree}, block {addr}: no copy can be read: {reason}")]
    BlockUnreadable {
        tree: TreeId,
        addr: LogicalAddr,
        reason: Box<Error>,
    },
    #[error("logical address {addr} is mapped by no chunk")]
    Unmapped { addr: LogicalAddr },
    #[error("device {devid} is missing")]
    MissingDevice { devid: DevId },
    #[error("not supported: {feature}")]
    Unsupported { feature: String },
    #[error("{what}")]
    Refused { what: String },
    /// The mount went read-only after an error, or was opened so.
    #[error("the volume is read-only")]
    ReadOnly,
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
