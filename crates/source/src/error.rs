//! Why a source cannot be read. Each error names the entry.

use std::io;
use std::path::PathBuf;

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the host.
    #[error("{}: {error}", path.display())]
    Host {
        /// The file.
        path: PathBuf,
        /// What went wrong. Not the source of the error: its text is part of the message.
        error: io::Error,
    },
    /// A file of the host is not as it was when the directories were listed.
    #[error("{}: changed while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A file whose extents the image cannot share.
    #[error("{}: its extents cannot be shared with the image: {error}", path.display())]
    Sharing {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// An entry of an archive that cannot be, or that is not supported.
    #[error("{archive}: entry '{entry}': {what}")]
    Entry {
        /// The archive.
        archive: String,
        /// The name of the entry.
        entry: String,
        /// What is wrong with it.
        what: String,
    },
    /// An archive whose structure is broken.
    #[error("{archive}: at byte {offset_bytes}: {what}")]
    Archive {
        /// The archive.
        archive: String,
        /// Where in it, after decompression.
        offset_bytes: u64,
        /// What is wrong.
        what: String,
    },
    /// A blob of a container image that is not the one that the image names.
    #[error("{blob}: has the digest sha256:{found}")]
    Digest {
        /// Its path in the image, which has the digest that it should have.
        blob: String,
        /// SHA-256 of what is there, in hexadecimal digits.
        found: String,
    },
    /// A name or path that the tree cannot take.
    #[error("'{path}': {what}")]
    Path {
        /// The path in the image.
        path: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The result of reading a source.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn host(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Host { path, error }
    }

    pub(crate) fn path(path: &[u8], what: &'static str) -> Self {
        Self::Path {
            path: String::from_utf8_lossy(path).into_owned(),
            what,
        }
    }
}
