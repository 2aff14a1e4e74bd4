//! What can go wrong, by family: a corrupt volume, a failing device, something unsupported, and plain outcomes.

use btrfs_format::{Corrupt, DevId, LogicalAddr, TreeId};

pub type Result<T> = std::result::Result<T, Error>;

/// An error of the engine. Translated to an errno only in [`crate::fs`].
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
    #[error("compressed extent at logical {addr} does not decompress: {what}")]
    Decompress { addr: LogicalAddr, what: String },
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
    /// The log that the last crash left cannot be replayed: a writable or plain read-only mount fails.
    #[error(
        "the log of tree {subvol} cannot be replayed: {reason} (rescue=nologreplay reads the volume as of its last \
         commit; `btrfs rescue zero-log` gives the log up)"
    )]
    LogReplay { subvol: TreeId, reason: Box<Error> },
    #[error("no space left")]
    NoSpace,
    /// An outcome that a caller of the file system expects to see: no such name, exists, not empty ...
    #[error("{0}")]
    Outcome(cowshed_vfs::Error),
}

impl From<cowshed_device::Error> for Error {
    fn from(e: cowshed_device::Error) -> Self {
        Self::Device(std::sync::Arc::new(e))
    }
}

impl From<cowshed_vfs::Error> for Error {
    fn from(e: cowshed_vfs::Error) -> Self {
        Self::Outcome(e)
    }
}

impl From<btrfs_format::UnknownProfile> for Error {
    fn from(e: btrfs_format::UnknownProfile) -> Self {
        Self::Unsupported { feature: e.to_string() }
    }
}
