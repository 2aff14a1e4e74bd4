//! Why an image was not built.

use std::io;
use std::path::PathBuf;

/// The result of building an image.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an image was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The volume: it has no room, an option or an entry is impossible, a device failed.
    #[error(transparent)]
    Volume(#[from] btrfs_image::MkfsError),
    /// A source could not be read.
    #[error(transparent)]
    Source(#[from] cowshed_source::Error),
    /// A device could not be opened or written.
    #[error(transparent)]
    Device(#[from] cowshed_device::Error),
    /// The output.
    #[error("{}: {error}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// What happened. Not the source of the error: its text is part of the message.
        error: io::Error,
    },
    /// An option that names something that is not there, or says nothing that can be done.
    #[error("{0}")]
    Option(String),
}

impl Error {
    pub(crate) fn output(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Output { path, error }
    }
}
