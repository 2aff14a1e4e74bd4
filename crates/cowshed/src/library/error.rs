//! What can go wrong, for users of the library.

use std::io;
use std::path::{Path, PathBuf};

/// A result with the library's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the library. Turns into [`std::io::Error`] of the right kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on a path failed. Damage of the volume is [`cowshed_vfs::Error::Io`] here; its
    /// details are events of [`tracing`](https://docs.rs/tracing).
    #[error("{}: {error}", path.display())]
    Path {
        /// The path as the caller gave it.
        path: PathBuf,
        /// What happened; one `errno` each.
        error: cowshed_vfs::Error,
    },
    /// The volume could not be opened, committed or closed.
    #[error(transparent)]
    Volume(#[from] cowshed_vfs::Failure),
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] cowshed_device::Error),
}

impl Error {
    pub(super) fn at(path: impl AsRef<Path>) -> impl FnOnce(cowshed_vfs::Error) -> Error {
        move |error| Error::Path {
            path: path.as_ref().into(),
            error,
        }
    }

    /// The `errno` value that a mount would answer with.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Path { error, .. } => error.errno(),
            Self::Volume(failure) => failure.error().errno(),
            Self::Device(cowshed_device::Error::Busy { .. }) => libc::EBUSY,
            Self::Device(_) => libc::EIO,
        }
    }

    /// The kind that the [`std::io::Error`] has.
    pub fn kind(&self) -> io::ErrorKind {
        if let Self::Device(cowshed_device::Error::Io { source, .. }) = self {
            return source.kind();
        }
        io::Error::from_raw_os_error(self.errno()).kind()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_io_errors_of_their_kind_and_keep_their_words() {
        let error = Error::at("a/b")(cowshed_vfs::Error::NotFound);
        assert_eq!(error.errno(), libc::ENOENT);
        let io: io::Error = error.into();
        assert_eq!(
            (io.kind(), io.to_string().as_str()),
            (io::ErrorKind::NotFound, "a/b: not found")
        );
        let full: io::Error = Error::Volume(cowshed_vfs::Failure::new(cowshed_vfs::Error::NoSpace, "full")).into();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    }
}
