//! What can go wrong: what the store reports, a log or compressed data that makes no sense, and
//! plain outcomes.

use btrfs_format::{LogicalAddr, TreeId};
pub use btrfs_store::Error as StoreError;

/// A result with the engine's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the engine. Translated to an errno only in [`crate::fs`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Of volume, trees, space or commits.
    #[error(transparent)]
    Store(StoreError),
    /// A compressed extent that does not decompress.
    #[error("compressed extent at logical {addr} does not decompress: {what}")]
    Decompress {
        /// Where the extent begins.
        addr: LogicalAddr,
        /// The reason.
        what: String,
    },
    /// The log that the last crash left cannot be replayed: a writable or plain read-only mount
    /// fails.
    #[error(
        "the log of tree {subvol} cannot be replayed: {reason} (rescue=nologreplay reads the volume as of its last \
         commit; `btrfs rescue zero-log` gives the log up)"
    )]
    LogReplay {
        /// The subvolume whose log it is.
        subvol: TreeId,
        /// What the replay met.
        reason: Box<Error>,
    },
    /// An outcome that a caller of the file system expects to see: no such name, exists, not empty
    /// ...
    #[error("{0}")]
    Outcome(cowshed_vfs::Error),
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<btrfs_format::Corrupt> for Error {
    fn from(error: btrfs_format::Corrupt) -> Self {
        Self::Store(error.into())
    }
}

impl From<cowshed_device::Error> for Error {
    fn from(error: cowshed_device::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<cowshed_vfs::Error> for Error {
    fn from(e: cowshed_vfs::Error) -> Self {
        Self::Outcome(e)
    }
}
