//! Contents of files: where they are, and reading them from any thread.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::Digest as _;

use crate::error::{Error, Result};

/// Bytes that are hashed at once.
const DIGEST_STEP_BYTES: usize = 256 << 10;

/// A stretch of a file that is no hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it is in the file.
    pub offset_bytes: u64,
    /// How long it is.
    pub len_bytes: u64,
    /// Where its bytes are in what holds them.
    pub(crate) at_bytes: u64,
}

/// What a file of the host was when its directory was listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    dev: u64,
    ino: u64,
    size_bytes: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size_bytes: metadata.size(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[derive(Clone, Debug)]
enum Holder {
    Host {
        dir: Arc<Path>,
        name: Box<[u8]>,
        stamp: Stamp,
    },
    Shared(Arc<File>),
    Memory(Arc<[u8]>),
}

/// The contents of a file.
#[derive(Clone, Debug)]
pub struct Content {
    size_bytes: u64,
    holder: Holder,
    /// In order, not touching each other.
    pieces: Box<[Piece]>,
}

impl Content {
    /// Bytes in memory.
    pub fn in_memory(bytes: &[u8]) -> Self {
        let size_bytes = bytes.len() as u64;
        Self {
            size_bytes,
            holder: Holder::Memory(bytes.into()),
            pieces: whole(size_bytes),
        }
    }

    /// A file of a directory of the host; `data` are its stretches that are no holes.
    pub(crate) fn of_host(dir: Arc<Path>, name: &[u8], stamp: Stamp, data: Option<Vec<(u64, u64)>>) -> Self {
        let pieces = match data {
            None => whole(stamp.size_bytes),
            Some(data) => data
                .into_iter()
                .map(|(offset_bytes, len_bytes)| Piece {
                    offset_bytes,
                    len_bytes,
                    at_bytes: offset_bytes,
                })
                .collect(),
        };
        Self {
            size_bytes: stamp.size_bytes,
            holder: Holder::Host {
                dir,
                name: name.into(),
                stamp,
            },
            pieces,
        }
    }

    /// Stretches of a file that others share: an archive, a spool.
    pub(crate) fn in_file(file: Arc<File>, size_bytes: u64, pieces: Vec<Piece>) -> Self {
        Self {
            size_bytes,
            holder: Holder::Shared(file),
            pieces: pieces.into(),
        }
    }

    /// The stretch of a file that holds all of it; `None` where it has holes or is elsewhere.
    pub(crate) fn in_one(&self) -> Option<(Arc<File>, u64)> {
        match (&self.holder, &self.pieces[..]) {
            (Holder::Shared(file), []) => Some((file.clone(), 0)),
            (Holder::Shared(file), [piece]) if piece.len_bytes == self.size_bytes => {
                Some((file.clone(), piece.at_bytes))
            }
            _ => None,
        }
    }

    /// Bytes of the file, holes included.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    /// What is no hole, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// SHA-256 of what is no hole, with where it is. Reads all of it, one part after the other.
    pub fn digest(&self) -> Result<[u8; 32]> {
        let opened = self.open()?;
        let mut hash = sha2::Sha256::new();
        let mut buf = vec![0; DIGEST_STEP_BYTES];
        for piece in &self.pieces {
            hash.update(piece.offset_bytes.to_le_bytes());
            hash.update(piece.len_bytes.to_le_bytes());
            let mut done = 0;
            while done < piece.len_bytes {
                let step = usize::try_from(piece.len_bytes - done).map_or(buf.len(), |left| left.min(buf.len()));
                opened.read(piece, done, &mut buf[..step])?;
                hash.update(&buf[..step]);
                done += step as u64;
            }
        }
        opened.check_unchanged()?;
        Ok(hash.finalize().into())
    }

    /// Opens it for reading.
    pub fn open(&self) -> Result<Opened<'_>> {
        let file = match &self.holder {
            Holder::Host { dir, name, .. } => {
                let path = host_path(dir, name);
                let mut options = File::options();
                options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
                Some(options.open(&path).map_err(Error::host(path))?)
            }
            Holder::Shared(_) | Holder::Memory(_) => None,
        };
        Ok(Opened { content: self, file })
    }
}

fn whole(size_bytes: u64) -> Box<[Piece]> {
    let piece = Piece {
        offset_bytes: 0,
        len_bytes: size_bytes,
        at_bytes: 0,
    };
    (size_bytes > 0).then_some(piece).into_iter().collect()
}

fn host_path(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(std::ffi::OsStr::from_bytes(name))
}

/// Contents that are open.
#[derive(Debug)]
pub struct Opened<'c> {
    content: &'c Content,
    file: Option<File>,
}

impl Opened<'_> {
    /// The file of the host, if it is one of a directory: offsets in it are those of the contents.
    pub fn host_file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Fills `buf` from the offset within the piece. Errors: those of the host; the source is
    /// shorter than it was.
    pub fn read(&self, piece: &Piece, within_bytes: u64, buf: &mut [u8]) -> Result<()> {
        let at = piece.at_bytes + within_bytes;
        let read = match (&self.content.holder, &self.file) {
            (Holder::Host { .. }, Some(file)) => file.read_exact_at(buf, at),
            (Holder::Shared(file), _) => file.read_exact_at(buf, at),
            (Holder::Memory(bytes), _) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                match bytes.get(at..).and_then(|rest| rest.get(..buf.len())) {
                    Some(part) => {
                        buf.copy_from_slice(part);
                        Ok(())
                    }
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            (Holder::Host { .. }, None) => Err(io::ErrorKind::NotFound.into()),
        };
        read.map_err(|error| match (&self.content.holder, error.kind()) {
            (Holder::Host { dir, name, .. }, io::ErrorKind::UnexpectedEof) => Error::Changed {
                path: host_path(dir, name),
            },
            (Holder::Host { dir, name, .. }, _) => Error::host(host_path(dir, name))(error),
            _ => Error::host("contents of an archive")(error),
        })
    }

    /// An error about sharing extents with this file.
    pub fn refuse_sharing(&self, error: io::Error) -> Error {
        let path = match &self.content.holder {
            Holder::Host { dir, name, .. } => host_path(dir, name),
            Holder::Shared(_) | Holder::Memory(_) => PathBuf::new(),
        };
        Error::Sharing { path, error }
    }

    /// To be called after reading: the file is as it was when its directory was listed. Errors:
    /// `Changed`.
    pub fn check_unchanged(&self) -> Result<()> {
        if let (Holder::Host { dir, name, stamp }, Some(file)) = (&self.content.holder, &self.file) {
            let path = || host_path(dir, name);
            let metadata = file.metadata().map_err(|error| Error::host(path())(error))?;
            if Stamp::of(&metadata) != *stamp {
                return Err(Error::Changed { path: path() });
            }
        }
        Ok(())
    }
}
