//! What can go wrong: a device, a damaged structure, a feature that is not supported, and outcomes.

use xfs_format::{Corrupt, SuperblockError};

/// A result with the engine's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the engine. Translated to an errno only in `fs`.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] cowshed_device::Error),
    /// A structure is not what it should be.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The superblock is wrong.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The superblock is wrong, and a copy of it is right.
    #[error("{error}; the copy of group {group} is intact: rescue=usebackupsuper reads the volume by it")]
    HasCopy {
        /// What is wrong with the first one.
        error: SuperblockError,
        /// The group whose copy is right.
        group: u64,
    },
    /// Structures contradict each other.
    #[error("corrupt {what} of inode {ino}")]
    Inconsistent {
        /// What is wrong.
        what: &'static str,
        /// The inode.
        ino: u64,
    },
    /// The volume uses what is not supported.
    #[error("unsupported feature: {0}")]
    Unsupported(String),
    /// The device ends before the volume does.
    #[error("the device has {found} bytes, the volume {expected}")]
    Short {
        /// Bytes of the device.
        found: u64,
        /// Bytes of the volume.
        expected: u64,
    },
    /// The log is not what it should be.
    #[error("log, block {block}: {fault}")]
    Log {
        /// The block of the log, in units of 512 bytes.
        block: u32,
        /// What is wrong.
        fault: LogFault,
    },
    /// An outcome that a caller of the file system expects to see.
    #[error("{0}")]
    Outcome(cowshed_vfs::Error),
}

/// What is wrong with the log.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LogFault {
    /// A record, operation or item is not what it should be, or a block is not after its replay.
    #[error(transparent)]
    Corrupt(Corrupt),
    /// A field is not what led to it.
    #[error("{field} is {found}, expected {expected}")]
    Mismatch {
        /// The field's name in the format.
        field: &'static str,
        /// The value found.
        found: String,
        /// What led to it.
        expected: String,
    },
    /// There is no whole record before the place where writing ended.
    #[error("no whole record before it")]
    NoRecord,
    /// The changes of the log touch more than this, which no log of its size can.
    #[error("replay changes more than {limit} bytes")]
    TooMuch {
        /// The limit in bytes.
        limit: u64,
    },
}

impl From<cowshed_vfs::Error> for Error {
    fn from(error: cowshed_vfs::Error) -> Self {
        Self::Outcome(error)
    }
}
