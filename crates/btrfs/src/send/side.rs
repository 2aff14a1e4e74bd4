//! Subvolumes that are read, and why one is not sent.

use std::sync::Arc;

use btrfs_format::{Generation, TreeId, Uuid};
use btrfs_stream::WriteError;
use cowshed_vfs::Error as Errno;

use crate::dir::subvolumes;
use crate::error::Error;
use crate::files::Files;
use crate::object::Subvol;
use crate::subvol;

/// Why a subvolume was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The volume cannot be read.
    #[error(transparent)]
    Volume(#[from] Error),
    /// The stream cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// There is no such subvolume.
    #[error("there is no subvolume {0}")]
    Missing(TreeId),
    /// What can change while it is read is not sent.
    #[error("subvolume {0} is not read-only")]
    Writable(TreeId),
    /// Linux takes no longer paths.
    #[error("the path of inode {0} is longer than 4095 bytes")]
    PathTooLong(u64),
}

impl From<btrfs_store::Error> for SendError {
    fn from(error: btrfs_store::Error) -> Self {
        Self::Volume(error.into())
    }
}

impl From<Errno> for SendError {
    fn from(error: Errno) -> Self {
        Self::Volume(error.into())
    }
}

/// A result with [`SendError`].
pub(super) type Result<T> = std::result::Result<T, SendError>;

/// A subvolume that is read.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) subvol: Arc<Subvol>,
    /// As the receiver knows it.
    pub(super) uuid: Uuid,
    pub(super) ctransid: u64,
    /// Nothing in it is younger.
    pub(super) newest: Generation,
}

impl Side {
    pub(super) fn open(files: &Files, id: TreeId) -> Result<Side> {
        let found = subvolumes::find(files, id)?.ok_or(SendError::Missing(id))?;
        let subvol = subvol::load(files, id)?.ok_or(SendError::Missing(id))?;
        if subvol.is_dead() {
            return Err(SendError::Missing(id));
        }
        if !subvol.is_read_only() {
            return Err(SendError::Writable(id));
        }
        let item = &found.item;
        let is_received = item.received_uuid != Uuid::default();
        Ok(Side {
            subvol,
            uuid: if is_received { item.received_uuid } else { item.uuid },
            ctransid: if is_received { item.stransid } else { item.ctransid }.get(),
            newest: item.generation.into(),
        })
    }
}
